"""Appends to a `FolderLog` beside plain writes and syncs of the same bytes.

    python benchmarks/folder_log.py [--folder DIR] [--rounds 7] [--seconds 0.5] [--idle 1000] [--json]

Callers append batches of 1 KB messages. `log` waits for each batch under the policy ALWAYS, and `raw` makes
one write and one fdatasync of as many bytes, in one file, in the same thread. A round has both, one after the
other. The ratio is that of their rates, the median of the rounds: above 1, the log is faster, because it
syncs what several callers wait for together. CPU is that of the process, in microseconds for each message.

At the end, so many logs at rest are opened in one process: memory and descriptors of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import machine

from offload.log.folder_log import FolderLog

MESSAGE: Final = os.urandom(1000)
BATCHES: Final = (1, 10, 100, 1000)
CALLERS: Final = (1, 10, 100)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What one job did."""

    messages_per_second: float
    cpu_us: float


def main() -> None:
    """Parse arguments, run the rounds, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=None, help="folder for the files, on a disk")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each job")
    parser.add_argument("--idle", type=int, default=1000, help="number of logs at rest")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    machine.require_disk()
    found: dict[str, Any] = {"machine": machine.description(), "appends": []}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        for callers in CALLERS:
            for batch in BATCHES:
                row = measured(Path(scratch), callers, batch, arguments.rounds, arguments.seconds)
                found["appends"].append(row)
                if not arguments.json:
                    print(text_of(row), flush=True)
        found["idle"] = asyncio.run(idle(Path(scratch), arguments.idle))
    print(json.dumps(found) if arguments.json else found["idle"])


def measured(scratch: Path, callers: int, batch: int, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the medians of one row of the table."""
    logs, raws = [], []
    for _ in range(rounds):
        raws.append(raw(scratch, batch, seconds))
        logs.append(asyncio.run(log(scratch, callers, batch, seconds)))
    ratios = [
        ours.messages_per_second / theirs.messages_per_second for ours, theirs in zip(logs, raws, strict=True)
    ]
    return {
        "callers": callers,
        "batch": batch,
        "ratio": statistics.median(ratios),
        "log": asdict(middle(logs)),
        "raw": asdict(middle(raws)),
    }


def middle(rates: list[Rate]) -> Rate:
    """Return the rate in the middle."""
    return sorted(rates, key=lambda rate: rate.messages_per_second)[len(rates) // 2]


def text_of(row: dict[str, Any]) -> str:
    """Return a line of the table."""
    log_, raw_ = row["log"], row["raw"]
    return (
        f"{row['callers']:4} callers, batches of {row['batch']:4}: ratio {row['ratio']:5.2f}, "
        f"log {log_['messages_per_second']:9,.0f}/s {log_['cpu_us']:6.1f} us, "
        f"raw {raw_['messages_per_second']:9,.0f}/s {raw_['cpu_us']:6.1f} us"
    )


def raw(scratch: Path, batch: int, seconds: float) -> Rate:
    """Write and sync batches one after the other."""
    data, path = MESSAGE * batch, scratch / "raw"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    cpu, began, count = time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        count += batch
    rate = rate_of(count, began, cpu)
    os.close(descriptor)
    path.unlink()
    return rate


async def log(scratch: Path, callers: int, batch: int, seconds: float) -> Rate:
    """Append batches, each caller one after the other."""
    opened = await FolderLog.open(scratch / "log")
    records, count = [MESSAGE] * batch, 0
    await opened.append(records, timestamp_ms=1)
    cpu, began = time.process_time(), time.perf_counter()

    async def caller() -> None:
        nonlocal count
        while time.perf_counter() - began < seconds:
            await opened.append(records, timestamp_ms=1)
            count += batch

    await asyncio.gather(*(caller() for _ in range(callers)))
    rate = rate_of(count, began, cpu)
    await opened.destroy()
    return rate


def rate_of(messages: int, began: float, cpu: float) -> Rate:
    """Return the rate since `began`, and the CPU since `cpu`."""
    seconds = time.perf_counter() - began
    return Rate(messages_per_second=messages / seconds, cpu_us=(time.process_time() - cpu) / messages * 1e6)


async def idle(scratch: Path, count: int) -> dict[str, float]:
    """Return what a log at rest costs: each has one sealed ledger, and an open one with a message."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    one = await FolderLog.open(scratch / "one")
    await one.append([MESSAGE], timestamp_ms=1)
    await one.roll(now_ms=1)
    await one.append([MESSAGE], timestamp_ms=1)
    await one.aclose()
    for number in range(count):
        shutil.copytree(scratch / "one", scratch / f"idle-{number}")
    before, files, began = resident_bytes(), open_files(), time.perf_counter()
    logs = [await FolderLog.open(scratch / f"idle-{number}") for number in range(count)]
    seconds = time.perf_counter() - began
    found = {
        "logs": count,
        "bytes_each": (resident_bytes() - before) / count,
        "descriptors_each": (open_files() - files) / count,
        "open_ms_each": seconds / count * 1000,
    }
    for opened in logs:
        await opened.aclose()
    return found


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    """Return the number of open descriptors."""
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    main()
