"""The throughput of a stream to a folder and back, compared with `cp` and `cat` on the same bytes.

    python benchmarks/throughput.py [--size-gib 2] [--rounds 5] [--bytes-only] [--folder DIR] [--json]

Each round runs every job once, in turn, so that a noisy minute affects all of them. One more round goes first
and is not counted. The source is in the page cache, and every target is new. The program prints medians:
seconds, throughput, CPU seconds (user and system time of the whole process, with its start) and peak memory;
and the ratios to the raw job of the same kind. `read chunks` also measures itself without the start of the
interpreter, because `cat` has none. `--bytes-only` leaves out the jobs that decode messages, which take most
of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import machine
import stream
from stopwatch import Stopwatch

SELF = [sys.executable, str(Path(__file__).resolve())]
OFFLOAD = [sys.executable, "-c", "from offload.cli.main import main; main()"]


@dataclass(frozen=True)
class Run:
    """One run of one job."""

    seconds: float
    cpu_seconds: float
    peak_mib: float
    own: tuple[float, float] | None = None
    """The seconds and CPU seconds without the start of the interpreter, if the job measured them."""


@dataclass(frozen=True)
class Job:
    """A command, its peer for comparison, and the unit of its work."""

    name: str
    argv: Callable[[], list[str]]
    peer: str | None
    unit: str  # "bytes" or "messages"
    after: Callable[[], None] = lambda: None


def main() -> None:
    """Parse arguments, make the data, run the rounds, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size-gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, default=None, help="folder for the data: needs 4 times the size"
    )
    parser.add_argument("--bytes-only", action="store_true", help="leave out the jobs that decode messages")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read-chunks", metavar="TIER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read_chunks:
        asyncio.run(_read_chunks(arguments.read_chunks))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="offload-benchmark-") as folder:
        _measure(Path(folder), int(arguments.size_gib * 2**30), arguments)


async def _read_chunks(tier: str) -> None:
    """Read every chunk of the stream with all checks, and drop it, as `cat` does with bytes."""
    from offload import Plugins, StreamReader, open_tier

    async with open_tier(tier, plugins=Plugins.find(), keys=os.environ.get("OFFLOAD_KEYS")) as offloader:
        watch = Stopwatch()
        reader = await StreamReader.open(offloader, "stream")
        windows = reader.windows(0)
        async for _ in windows:
            pass
        await windows.aclose()
        print(json.dumps(watch.read()))


def _measure(folder: Path, size_bytes: int, arguments: argparse.Namespace) -> None:
    source = folder / "source" / "stream"
    messages = stream.write(source, size_bytes)
    written = sum(path.stat().st_size for path in source.iterdir())
    files = [str(path) for path in sorted(source.glob("*.segment"))]
    subprocess.run(["sync"], check=True)
    jobs = [job for job in _jobs(folder, files) if job.unit == "bytes" or not arguments.bytes_only]
    runs: dict[str, list[Run]] = {job.name: [] for job in jobs}
    for number in range(arguments.rounds + 1):
        for job in jobs:
            done = _timed(job.argv())
            job.after()
            if number:
                runs[job.name].append(done)
            print(f"round {number} {job.name}: {done.seconds:.2f} s", file=sys.stderr)
    _report(jobs, runs, written, messages, as_json=arguments.json)


def _jobs(folder: Path, files: list[str]) -> list[Job]:
    source, tier, copy = f"rabbitmq://{folder / 'source'}", folder / "tier", folder / "copy"

    def fresh(target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)

    def shell(script: str) -> list[str]:
        return ["bash", "-c", script]

    def sync_afresh() -> list[str]:
        fresh(tier)
        return [*OFFLOAD, "sync", source, str(tier), "--json"]

    def copy_afresh() -> list[str]:
        fresh(copy)
        # With `sync`, because a commit of ours is durable, and `cp` alone is not.
        return shell(f"cp -r --reflink=never '{folder / 'source'}' '{copy}' && sync '{copy}'/stream/*")

    def fragments() -> list[str]:
        return shell(f"cat '{tier}'/stream/data/*.fragment > /dev/null")

    def reading(*how: str) -> Callable[[], list[str]]:
        command = " ".join(f"'{word}'" for word in [*OFFLOAD, "read", str(tier), "stream", *how])
        return lambda: shell(f"exec {command} > /dev/null")

    return [
        Job("cp + sync", copy_afresh, None, "bytes", lambda: fresh(copy)),
        Job("offload sync", sync_afresh, "cp + sync", "bytes"),
        Job("cat", fragments, None, "bytes"),
        Job("read chunks", lambda: [*SELF, "--read-chunks", str(tier)], "cat", "bytes"),
        Job("read amqp body", reading("--decode", "amqp", "--format", "body"), None, "messages"),
        Job("read amqp jsonl", reading("--decode", "amqp", "--format", "jsonl"), None, "messages"),
    ]


def _timed(argv: list[str]) -> Run:
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(argv, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        output.seek(0)
        said = output.read().decode().strip()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv} ended with {process.returncode}")
    own = tuple(json.loads(said).values()) if argv[: len(SELF)] == SELF else None
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, own)


def _report(
    jobs: list[Job], runs: dict[str, list[Run]], size_bytes: int, messages: int, *, as_json: bool
) -> None:
    rows = []
    for job in jobs:
        seconds = statistics.median(run.seconds for run in runs[job.name])
        cpu = statistics.median(run.cpu_seconds for run in runs[job.name])
        row: dict[str, object] = {
            "job": job.name,
            "seconds": round(seconds, 2),
            "rate": f"{messages / seconds:,.0f} messages/s"
            if job.unit == "messages"
            else f"{size_bytes / seconds / 2**20:,.0f} MiB/s",
            "cpu_seconds": round(cpu, 2),
            "peak_mib": round(max(run.peak_mib for run in runs[job.name])),
        }
        if job.peer:
            of_peer = statistics.median(run.seconds for run in runs[job.peer])
            cpu_of_peer = statistics.median(run.cpu_seconds for run in runs[job.peer])
            row |= {"speed_of_peer": round(of_peer / seconds, 2), "cpu_of_peer": round(cpu / cpu_of_peer, 2)}
            if own := [run.own for run in runs[job.name] if run.own]:
                own_seconds, own_cpu = (statistics.median(each) for each in zip(*own, strict=True))
                row["speed_without_start"] = round(of_peer / own_seconds, 2)
                row["cpu_without_start"] = round(own_cpu / cpu_of_peer, 2)
        rows.append(row)
    about = {
        **machine.description(),
        "size_bytes": size_bytes,
        "messages": messages,
        "rounds": len(runs[jobs[0].name]),
    }
    if as_json:
        print(json.dumps({"machine": about, "jobs": rows}, indent=2))
        return
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    heads = (
        "job",
        "seconds",
        "rate",
        "cpu_seconds",
        "peak_mib",
        "speed_of_peer",
        "cpu_of_peer",
        "speed_without_start",
        "cpu_without_start",
    )
    for row in (dict(zip(heads, heads, strict=True)), *rows):
        print("  ".join(str(row.get(head, "")).rjust(20 if head == "rate" else 15) for head in heads))


if __name__ == "__main__":
    main()
