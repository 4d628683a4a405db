"""Queues beside SQLite, a bare `FolderLog`, and themselves on another medium.

    python benchmarks/queues.py [calls] [drain] [start] [backlog] [--rounds 5] [--seconds 2] [--folder DIR]

`calls`    rows of publishing and consuming. A round has each of ours, SQLite (WAL, `synchronous=full`, one
           transaction for each call of the same size) and a bare log, one after the other. A ratio is that of
           the rates, the median of the rounds. `acks synced` waits for each acknowledgement, as SQLite does.
`drain`    messages of 1 KB that lie in the log, and on MinIO: the rate of fetch and ack.
`start`    --live messages of 100 bytes, a process that is killed, and the next one: seconds and memory.
`backlog`  --backlog-mib on MinIO, with a log of --log-mib: fill, kill, start, drain, and their memory.

Each job of the last two runs in a process of its own. `--json` prints everything that was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

import machine
from offload_queue import Vhosts

from offload import FolderLog, open_tier
from offload.contracts.offloader import LedgerOffloader

ROWS: Final = {"singles": (100, 1, 100), "small": (1, 1000, 100), "large": (1, 100, 5000)}
"""Callers, messages of a call, bytes of a message. `singles` only publishes."""
DRAIN_COUNT: Final = 200_000
BACKLOG_BODY_SIZE_BYTES: Final = 10_000


def main() -> None:
    """Parse arguments, run the jobs, print what they found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", default=["calls", "drain", "start"])
    parser.add_argument("--folder", type=Path, default=None, help="folder for the files, on a disk")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each job")
    parser.add_argument("--live", type=int, default=10_000_000)
    parser.add_argument("--backlog-mib", type=int, default=2048)
    parser.add_argument("--log-mib", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        asyncio.run(CHILDREN[arguments.child](arguments))
        return
    machine.require_disk()
    found: dict[str, Any] = {"machine": machine.description()}
    for job in arguments.jobs:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
            found[job] = JOBS[job](Path(scratch), arguments)
            if not arguments.json:
                print(job, json.dumps(found[job], indent=1), flush=True)
    if arguments.json:
        print(json.dumps(found))


# Calls.


def calls(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the rates of each row, and the ratios to SQLite."""
    found = {}
    for name, (callers, batch, size) in ROWS.items():
        rates: dict[str, list[float]] = {}
        for _ in range(arguments.rounds):
            shape = (scratch, callers, batch, size, arguments.seconds)
            jobs: dict[str, Callable[[], float]] = {
                "queue": partial(awaited, ours, *shape),
                "sqlite": partial(sqlite, scratch, batch, size, arguments.seconds, consumes=callers == 1),
                "log": partial(awaited, bare, *shape),
            }
            if callers == 1:
                jobs["queue, acks synced"] = partial(awaited, ours, *shape, synced=True)
            for job, run in jobs.items():
                rates.setdefault(job, []).append(run())
        ratios = {
            job: statistics.median(one / other for one, other in zip(each, rates["sqlite"], strict=True))
            for job, each in rates.items()
        }
        found[name] = {
            job: {"messages_per_second": round(statistics.median(each)), "ratio": round(ratios[job], 2)}
            for job, each in rates.items()
        }
    return found


def awaited(job: Callable[..., Coroutine[Any, Any, float]], *shape: Any, **options: Any) -> float:
    """Run a job in an event loop of its own."""
    return asyncio.run(job(*shape, **options))


async def ours(
    scratch: Path, callers: int, batch: int, size: int, seconds: float, *, synced: bool = False
) -> float:
    """Publish, and consume if there is one caller. Return messages for each second."""
    async with Vhosts(scratch / "ours", None) as vhosts:
        queue = await (await vhosts.open("bench")).declare("q")
        body, done = os.urandom(size), 0

        async def caller() -> None:
            nonlocal done
            while time.perf_counter() - began < seconds:
                await queue.publish([body] * batch)
                if callers == 1:
                    messages = await queue.fetch(batch)
                    await queue.ack([each.tag for each in messages])
                    if synced:
                        await queue.flush()
                done += batch

        began = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(callers)))
        rate = done / (time.perf_counter() - began)
    shutil.rmtree(scratch / "ours")
    return rate


def sqlite(scratch: Path, batch: int, size: int, seconds: float, *, consumes: bool) -> float:
    """Do the same with a table and transactions that are synced."""
    path = scratch / "peer.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=full")
    db.execute("create table messages (id integer primary key, body blob)")
    body, done, began = os.urandom(size), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        db.execute("begin")
        db.executemany("insert into messages (body) values (?)", [(body,)] * batch)
        db.execute("commit")
        if consumes:
            rows = db.execute("select id, body from messages order by id limit ?", (batch,)).fetchall()
            db.execute("begin")
            db.execute("delete from messages where id <= ?", (rows[-1][0],))
            db.execute("commit")
        done += batch
    rate = done / (time.perf_counter() - began)
    db.close()
    for each in scratch.glob("peer.db*"):
        each.unlink()
    return rate


async def bare(scratch: Path, callers: int, batch: int, size: int, seconds: float) -> float:
    """Append to a log, which is what no queue above it can beat."""
    log = await FolderLog.open(scratch / "bare")
    body, done, began = os.urandom(size), 0, time.perf_counter()

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await log.append([body] * batch, timestamp_ms=1)
            done += batch

    await asyncio.gather(*(caller() for _ in range(callers)))
    rate = done / (time.perf_counter() - began)
    await log.destroy()
    return rate


# Drains.


def drain(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the rates of a drain from the log and from MinIO, and their ratio."""
    rates: dict[str, list[float]] = {"log": [], "minio": []}
    with machine.minio() as url:
        for number in range(arguments.rounds):
            for medium, each in rates.items():
                each.append(asyncio.run(drained(scratch, url, f"{medium}-{number}", medium == "minio")))
    ratios = [one / other for one, other in zip(rates["minio"], rates["log"], strict=True)]
    return {"ratio": round(statistics.median(ratios), 2)} | {
        medium: round(statistics.median(each)) for medium, each in rates.items()
    }


async def drained(scratch: Path, url: str, name: str, moves: bool) -> float:
    """Fill a queue, put it where it should be, open it again, and drain it."""
    async with open_tier(url) as tier:
        await tier.open(create=True)
        bound = 2**24 if moves else 2**30
        async with Vhosts(scratch / name, tier, log_size_bytes_max=bound) as vhosts:
            queue = await (await vhosts.open(name)).declare("q")
            queue.set_ram_target(0)
            body = os.urandom(1000)
            for _ in range(DRAIN_COUNT // 1000):
                await queue.publish([body] * 1000)
        async with Vhosts(scratch / name, tier, log_size_bytes_max=bound) as vhosts:
            queue = await (await vhosts.open(name)).declare("q")
            began, done = time.perf_counter(), 0
            while messages := await queue.fetch(1000):
                await queue.ack([each.tag for each in messages])
                done += len(messages)
            assert done == DRAIN_COUNT
            rate = done / (time.perf_counter() - began)
    shutil.rmtree(scratch / name)
    return rate


# Processes of their own.


def start(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return seconds and memory of a start after a kill."""
    child(scratch, arguments, "fill-local", killed=True)
    return child(scratch, arguments, "start-local")


def backlog(scratch: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a fill, and a drain after a kill, took."""
    with machine.minio() as url:
        os.environ["QUEUES_TIER"] = url
        filled = child(scratch, arguments, "fill-tier", killed=True)
        return {"fill": filled, "drain": child(scratch, arguments, "drain-tier")}


def child(scratch: Path, arguments: argparse.Namespace, job: str, *, killed: bool = False) -> Any:
    """Run a job in a process, which is killed when it says so, and return the line that it prints."""
    options = ["--folder", str(scratch), "--live", str(arguments.live)]
    options += ["--backlog-mib", str(arguments.backlog_mib), "--log-mib", str(arguments.log_mib)]
    command = [sys.executable, __file__, "--child", job, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if killed:
            process.send_signal(signal.SIGKILL)
    return json.loads(line)


async def fill_local(arguments: argparse.Namespace) -> None:
    """Publish messages of 100 bytes, and wait to be killed."""
    async with Vhosts(arguments.folder / "v", None, log_size_bytes_max=2**33) as vhosts:
        queue = await (await vhosts.open("v")).declare("q")
        queue.set_ram_target(0)
        bodies = [os.urandom(100)] * 10_000
        for _ in range(arguments.live // len(bodies)):
            await queue.publish(bodies)
        await told({})


async def start_local(arguments: argparse.Namespace) -> None:
    """Open the vhost, and fetch the first message."""
    began = time.perf_counter()
    async with Vhosts(arguments.folder / "v", None, log_size_bytes_max=2**33) as vhosts:
        queue = await (await vhosts.open("v")).declare("q")
        live = await queue.length()
        await queue.fetch(1)
        seconds = time.perf_counter() - began
        await told({"live": live, "seconds": round(seconds, 2)}, stays=False)


async def fill_tier(arguments: argparse.Namespace) -> None:
    """Publish more than the log may have, and wait to be killed."""
    count, began, highest = arguments.backlog_mib * 2**20 // BACKLOG_BODY_SIZE_BYTES, time.perf_counter(), 0
    async with (
        open_tier(os.environ["QUEUES_TIER"]) as tier,
        vhosts_of(arguments, tier) as vhosts,
    ):
        await tier.open(create=True)
        queue = await (await vhosts.open("v")).declare("q")
        for at in range(0, count, 100):
            await queue.publish(
                [b"%010d" % each + os.urandom(BACKLOG_BODY_SIZE_BYTES - 10) for each in range(at, at + 100)]
            )
            highest = max(highest, disk_size(arguments.folder))
        took = time.perf_counter() - began
        await told({"messages": count, "seconds": round(took, 1), "disk_mib": highest >> 20})


async def drain_tier(arguments: argparse.Namespace) -> None:
    """Open the vhost of a killed process, and take everything."""
    began = time.perf_counter()
    async with open_tier(os.environ["QUEUES_TIER"]) as tier, vhosts_of(arguments, tier) as vhosts:
        queue = await (await vhosts.open("v")).declare("q")
        opened, expected = time.perf_counter() - began, 0
        while messages := await queue.fetch(500):
            assert [int(each.body[:10]) for each in messages] == [*range(expected, expected + len(messages))]
            expected += len(messages)
            await queue.ack([each.tag for each in messages])
        took = time.perf_counter() - began
        report = {"messages": expected, "start_seconds": round(opened, 2), "seconds": round(took, 1)}
        await told(report, stays=False)


def vhosts_of(arguments: argparse.Namespace, tier: LedgerOffloader) -> Vhosts:
    """Return vhosts with a small log."""
    return Vhosts(arguments.folder / "v", tier, log_size_bytes_max=arguments.log_mib * 2**20)


def disk_size(folder: Path) -> int:
    """Return the size of all files."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


async def told(report: dict[str, Any], *, stays: bool = True) -> None:
    """Print a report with the memory of this process, and stay until the kill."""
    report["memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps(report), flush=True)
    if stays:
        await asyncio.sleep(1000)


JOBS: Final = {"calls": calls, "drain": drain, "start": start, "backlog": backlog}
CHILDREN: Final = {
    "fill-local": fill_local,
    "start-local": start_local,
    "fill-tier": fill_tier,
    "drain-tier": drain_tier,
}

if __name__ == "__main__":
    main()
