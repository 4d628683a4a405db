"""The example broker, killed again and again: what was acknowledged reaches every consumer, in order.

    python benchmarks/example_broker.py [--seconds 300] [--rate 5000] [--kills 20] [--tier minio]

The broker of `examples/broker` runs as a process of its own, with a folder for its logs, and a tier: a server
of `tests/servers` (`minio` by default), a folder, or a URL. A producer sends RATE messages of 1 KB a second.
The broker is killed with SIGKILL at random moments, and started again at once. The producer then sends again
what was not acknowledged. Three consumers, each a process, connect again and go on:

    follower    from the first message on, behind the last offset that it got
    late        joins after 60 % of the time, at offset 0, most of which only the tier has
    cursor      has a cursor, acknowledges every hundred messages, and always goes on where its cursor is

At the end each consumer must have got every acknowledged message under its offset, and its offsets must have
no hole. The exit code is 1 if one has not. Messages whose acknowledgement was lost are published again, and a
cursor may get some again: these are counted. The lag is the time from the first sending to the delivery, of
messages that were sent after the consumer had joined. It includes the time without a broker. Everything
shares this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from array import array
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "broker"))

import machine
from broker.client import BrokerClient, BrokerConsumer, BrokerError, connect, consume
from servers import server

ROOT: Final = Path(__file__).parent.parent
TOPIC: Final = "orders"
HOST: Final = "127.0.0.1"
SIZE_BYTES: Final = 1000
END: Final = b"the end"
WINDOW: Final = 20_000
"""The producer waits if so many messages are not acknowledged."""

RETRY_SECONDS: Final = 0.05
ACKNOWLEDGE_EVERY: Final = 100
READY_SECONDS: Final = 60.0
HANGS_SECONDS: Final = 400.0
"""A consumer that has not finished so long after the last message hangs. Busy machines need minutes."""
LATE_SHARE: Final = 0.6
OUR_SERVERS: Final = ("minio", "rgw")
CONSUMERS: Final = ("follower", "late", "cursor")
LOST: Final = (OSError, EOFError, BrokerError)


@dataclass
class Run:
    """What is asked for."""

    seconds: float
    rate: float
    kills: int
    tier: str
    options: dict[str, str]
    local: str
    roll_size: str
    seed: int
    folder: Path
    port: int = 0


@dataclass
class BrokerProcess:
    """The broker, which is killed and started again."""

    run: Run
    running: Process | None = None
    cpu_seconds: float = 0.0
    """That of all processes that were killed."""
    restart_seconds: list[float] = field(default_factory=list)

    async def start(self) -> None:
        """Start it, and wait until it listens."""
        begun = time.monotonic()
        run = self.run
        options = [part for key, value in run.options.items() for part in ("-o", f"{key}={value}")]
        arguments = ["--port", str(run.port), "serve", "--data", str(run.folder / "data"), "--tier", run.tier]
        arguments += ["--local", run.local, "--roll-size", run.roll_size]
        with (run.folder / "broker.log").open("ab") as log:
            self.running = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "broker", *arguments, *options),
                env={**os.environ, "PYTHONPATH": str(ROOT / "examples" / "broker")},
                stdout=PIPE,
                stderr=log,
            )
        assert self.running.stdout is not None
        async with asyncio.timeout(READY_SECONDS):
            line = (await self.running.stdout.readline()).decode()
        if not line.startswith("listening on "):
            log_end = (run.folder / "broker.log").read_text().splitlines()[-5:]
            raise SystemExit(f"the broker did not start: {log_end}")
        run.port = int(line.rpartition(":")[2])
        self.restart_seconds.append(time.monotonic() - begun)

    async def kill(self) -> None:
        """Kill it, as a crash would."""
        assert self.running is not None
        self.cpu_seconds += cpu_seconds_of(self.running.pid)
        self.running.kill()
        await self.running.wait()

    async def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        assert self.running is not None
        self.cpu_seconds += cpu_seconds_of(self.running.pid)
        self.running.terminate()
        return await self.running.wait()


@dataclass
class Producer:
    """Sends messages with rising numbers, again until they are acknowledged."""

    run: Run
    sent: int = 0
    waiting: dict[int, bytes] = field(default_factory=dict)
    """The messages that are not acknowledged, by number."""
    offsets: dict[int, int] = field(default_factory=dict)
    """The offset of each acknowledged message."""
    refused: BrokerError | None = None

    async def produce(self) -> None:
        """Send all messages, and the last one that ends the consumers."""
        begun = time.monotonic()
        while len(self.offsets) < self._total:
            with suppress(*LOST):
                async with connect(HOST, self.run.port) as client:
                    for number, body in list(self.waiting.items()):
                        await self._send(client, number, body)
                    await self._send_new(client, begun)
            await asyncio.sleep(RETRY_SECONDS)
        while True:
            with suppress(*LOST):
                async with connect(HOST, self.run.port) as client:
                    await client.publish(TOPIC, END)
                    return
            await asyncio.sleep(RETRY_SECONDS)

    @property
    def _total(self) -> int:
        return int(self.run.seconds * self.run.rate)

    async def _send_new(self, client: BrokerClient, begun: float) -> None:
        self.refused = None
        while len(self.offsets) < self._total:
            due = min(int((time.monotonic() - begun) * self.run.rate), self._total)
            while self.sent < due and len(self.waiting) < WINDOW:
                body = b"%012d %016d" % (self.sent, time.time_ns() // 1000)
                body = self.waiting[self.sent] = body.ljust(SIZE_BYTES, b".")
                self.sent += 1
                await self._send(client, self.sent - 1, body)
            await asyncio.sleep(0.01)
            if self.refused is not None:
                raise self.refused
            client.check()

    async def _send(self, client: BrokerClient, number: int, body: bytes) -> None:
        (await client.send(TOPIC, body)).add_done_callback(lambda done: self._take(number, done))

    def _take(self, number: int, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.offsets[number] = done.result()
            del self.waiting[number]
        elif isinstance(error, BrokerError):
            self.refused = error


@dataclass
class Got:
    """What a consumer got, in order of arrival."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    numbers: array[int] = field(default_factory=lambda: array("q"))
    lags_ms: array[float] = field(default_factory=lambda: array("f"))
    begins: array[int] = field(default_factory=lambda: array("q"))
    """How many messages it had at each connection."""
    joined: float = field(default_factory=time.time)

    def take(self, offset: int, body: bytes) -> None:
        """Note a message. Raises an error if its bytes are not those that were sent."""
        if len(body) != SIZE_BYTES or body[29:].strip(b"."):
            raise SystemExit(f"WRONG bytes at offset {offset}: {body[:40]!r}")
        self.offsets.append(offset)
        self.numbers.append(int(body[:12]))
        sent = int(body[13:29]) / 1e6
        self.lags_ms.append((time.time() - sent) * 1000 if sent >= self.joined else nan)

    def save(self, folder: Path, name: str) -> None:
        """Write it to files."""
        for each in ("offsets", "numbers", "lags_ms", "begins"):
            (folder / f"{name}.{each}").write_bytes(getattr(self, each).tobytes())


async def consumer_task(name: str, port: int, folder: Path) -> None:
    """Consume until the end, through all restarts of the broker."""
    got = Got()
    cursor = "billing" if name == "cursor" else ""
    ended = False
    while not ended:
        start = "first" if cursor else str(got.offsets[-1] + 1 if got.offsets else 0)
        got.begins.append(len(got.offsets))
        with suppress(*LOST):
            async with consume(HOST, port, TOPIC, start, cursor) as consumer:
                ended = await consume_all(consumer, got, acknowledges=bool(cursor))
        await asyncio.sleep(RETRY_SECONDS)
    got.save(folder, name)


async def consume_all(consumer: BrokerConsumer, got: Got, *, acknowledges: bool) -> bool:
    """Take messages. Return True at the last one."""
    async for message in consumer:
        if message.body == END:
            return True
        got.take(message.offset, message.body)
        if acknowledges and len(got.offsets) % ACKNOWLEDGE_EVERY == 0:
            await consumer.acknowledge(message.offset)
    raise AssertionError("a consumer has no end")


async def run_all(run: Run, store_cpu: Callable[[], float | None]) -> dict[str, Any]:
    """Run the broker, its clients and the kills, and return what was found."""
    broker, producer = BrokerProcess(run), Producer(run)
    most = [0]
    await broker.start()
    cpu_before = store_cpu()
    sampling = asyncio.create_task(sample_size(run.folder / "data", most))
    producing = asyncio.create_task(producer.produce())
    consumers = [asyncio.create_task(consumer_process(run, name)) for name in CONSUMERS]
    begun = time.monotonic()
    draw = random.Random(run.seed)
    try:
        for at in sorted(draw.uniform(0.05, 0.95) * run.seconds for _ in range(run.kills)):
            await asyncio.sleep(max(begun + at - time.monotonic(), 0.5))
            await broker.kill()
            await broker.start()
        await producing
        took = time.monotonic() - begun
        await asyncio.wait_for(asyncio.gather(*consumers), HANGS_SECONDS + run.seconds)
    finally:
        sampling.cancel()
        for task in (producing, *consumers):
            task.cancel()
        await asyncio.gather(sampling, producing, *consumers, return_exceptions=True)
        code = await broker.stop()
    cpu_after = store_cpu()
    log = (run.folder / "broker.log").read_text()
    return {
        "acknowledged": len(producer.offsets),
        "seconds": round(took, 1),
        "kills": run.kills,
        "exit_code": code,
        "start_seconds_most": round(max(broker.restart_seconds), 2),
        "local_mib_most": round(most[0] / 2**20, 1),
        "local_ledgers_deleted": log.count("LocalLedgerDeleted("),
        "broker_cpu_seconds": round(broker.cpu_seconds, 1),
        "store_cpu_seconds": None if cpu_before is None else round((cpu_after or 0.0) - cpu_before, 1),
        "consumers": {name: judged(run.folder, name, producer.offsets) for name in CONSUMERS},
    }


async def consumer_process(run: Run, name: str) -> None:
    """Run a consumer as a process, and wait until it has seen the end."""
    if name == "late":
        await asyncio.sleep(LATE_SHARE * run.seconds)
    task = json.dumps({"name": name, "port": run.port, "folder": str(run.folder)})
    running = await asyncio.create_subprocess_exec(sys.executable, __file__, "--task", task)
    try:
        if await running.wait():
            raise SystemExit(f"consumer {name} failed")
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


def judged(folder: Path, name: str, acknowledged: dict[int, int]) -> dict[str, Any]:
    """Compare what a consumer got with what was acknowledged."""
    got: dict[str, npt.NDArray[Any]] = {
        each: np.frombuffer((folder / f"{name}.{each}").read_bytes(), kind)
        for each, kind in (("offsets", "q"), ("numbers", "q"), ("lags_ms", "f4"), ("begins", "q"))
    }
    offsets, numbers = got["offsets"], got["numbers"]
    at = dict(zip(offsets.tolist(), numbers.tolist(), strict=True))
    unique, first = np.unique(offsets, return_index=True)
    _, first_of_number = np.unique(numbers[first], return_index=True)
    steps = np.diff(offsets)
    is_begin = np.zeros(len(offsets), bool)
    is_begin[[begin for begin in got["begins"].tolist() if begin < len(offsets)]] = True
    highest = np.maximum.accumulate(offsets)[:-1]
    # Within a connection each offset is one above that before it. A new one may begin lower, not higher.
    wrong = np.where(is_begin[1:], offsets[1:] > highest + 1, steps != 1)
    return {
        "delivered": len(unique),
        "missing": sum(at.get(offset) != number for number, offset in acknowledged.items()),
        "out_of_order": int(wrong.sum()) + int((np.diff(first_of_number) < 0).sum()) + int(offsets[0] != 0),
        "again": len(offsets) - len(unique),
        "published_twice": len(unique) - len(first_of_number),
        "connections": len(got["begins"]),
        "lag_p50_ms": round(float(np.nanquantile(got["lags_ms"], 0.5)), 1),
        "lag_p99_ms": round(float(np.nanquantile(got["lags_ms"], 0.99)), 1),
    }


async def sample_size(folder: Path, most: list[int]) -> None:
    """Keep the largest size of a folder in `most`."""
    while True:
        most[0] = max(most[0], size_of(folder))
        await asyncio.sleep(0.5)


def size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    size_bytes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # deleted meanwhile
            size_bytes += path.stat().st_size
    return size_bytes


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_seconds_naming(text: str) -> float:
    """Return the CPU seconds of the processes whose command line has a text: those of a server."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if text.encode() in path.read_bytes():
                total += cpu_seconds_of(int(path.parent.name))
    return total


@contextmanager
def tier_of(name: str) -> Iterator[tuple[str, dict[str, str], Callable[[], float | None]]]:
    """Return a tier's URL, its options, and a function that returns the CPU seconds of a server of ours."""
    if name not in OUR_SERVERS:
        yield name, {}, lambda: None
        return
    with server(name).running() as running:
        place = running.place()
        yield f"{place.url}/topics", place.options, lambda: cpu_seconds_naming(str(running.scratch))


def show(found: dict[str, Any]) -> None:
    """Print the tables."""
    rate = found["acknowledged"] / found["seconds"]
    print(f"| acknowledged | {found['acknowledged']:,} messages in {found['seconds']} s ({rate:,.0f}/s) |")
    print("|---|---|")
    print(f"| kill -9 | {found['kills']}; the slowest start took {found['start_seconds_most']} s |")
    deleted = found["local_ledgers_deleted"]
    print(f"| local, at most | {found['local_mib_most']} MiB; {deleted} ledgers deleted |")
    print(f"| CPU of the broker | {found['broker_cpu_seconds']} s |")
    store = found["store_cpu_seconds"]
    print(f"| CPU of the store | {'-' if store is None else f'{store} s'} |")
    heads = list(found["consumers"]["follower"])
    print(f"\n| consumer | {' | '.join(head.replace('_', ' ') for head in heads)} |")
    print(f"|---|{'---|' * len(heads)}")
    for name, row in found["consumers"].items():
        print(f"| {name} | {' | '.join(f'{row[head]:,}' for head in heads)} |")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--tier", default="minio")
    parser.add_argument("--local", default="30s")
    parser.add_argument("--roll-size", default="64MiB")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=None, help="folder for the data")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.task:
        task = json.loads(asked.task)
        asyncio.run(consumer_task(task["name"], task["port"], Path(task["folder"])))
        return
    with (
        tempfile.TemporaryDirectory(dir=asked.folder, prefix="example-broker.") as scratch,
        tier_of(asked.tier) as (url, options, store_cpu),
    ):
        run = Run(
            seconds=asked.seconds,
            rate=asked.rate,
            kills=asked.kills,
            tier=url,
            options=options,
            local=asked.local,
            roll_size=asked.roll_size,
            seed=asked.seed,
            folder=Path(scratch),
        )
        found = asyncio.run(run_all(run, store_cpu))
    if asked.json:
        print(json.dumps({**machine.description(), **found}))
    else:
        print(f"{machine.description()['processor']}, {os.cpu_count()} processors\n")
        show(found)
    bad = found["exit_code"] or sum(
        row["missing"] + row["out_of_order"] for row in found["consumers"].values()
    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
