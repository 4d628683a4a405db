"""The throughput of a stream to an object store and back, compared with raw clients on the same objects.

    python benchmarks/object_store.py [--server minio] [--size-gib 2] [--rounds 3] [--at-once 4]
                                      [--delay-ms 0] [--folder DIR] [--json]

The server runs on this machine, and takes the same share of the cores from all jobs. Each round runs every
job once, in turn; one more round goes first and is not counted. Rates and CPU seconds are those of the
transfer alone, without the start of the interpreter and the import of the SDK; peak memory is that of the
process. With `--delay-ms`, a
proxy adds this delay to every request; then only the jobs of `offload` run, with several numbers of transfers
at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stream
from servers.catalogue import server
from servers.proxy import delayed
from stopwatch import Stopwatch
from throughput import _processor

HERE = Path(__file__).resolve().parent
SELF = [sys.executable, str(Path(__file__).resolve())]
RAW = [sys.executable, str(HERE / "raw_clients.py")]
CLIENTS = ("fsspec", "direct")


@dataclass(frozen=True)
class Run:
    """One run of one job."""

    seconds: float
    cpu_seconds: float
    peak_mib: float


@dataclass(frozen=True)
class Job:
    """A command that reads its task from stdin and prints the times of its transfer."""

    name: str
    verb: str
    argv: list[str]
    task: dict[str, Any]
    before: Callable[[], None] = lambda: None


def main() -> None:
    """Parse arguments, make the data, run the rounds, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default="minio", choices=["minio", "rgw", "moto"])
    parser.add_argument("--size-gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument(
        "--folder", type=Path, default=None, help="folder for the data: needs 5 times the size"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--job", choices=["sync", "read"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        task = json.load(sys.stdin)
        print(asyncio.run(_sync(task) if arguments.job == "sync" else _read(task)))
        return
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder, prefix="offload-benchmark-") as folder,
        server(arguments.server).running() as running,
    ):
        _measure(Path(folder), running, arguments)


async def _sync(task: dict[str, Any]) -> str:
    """Sync as `offload sync` does. Return the times."""
    from offload import Plugins, TierOptions, open_source, open_tier, sync

    plugins = Plugins.find()
    how = TierOptions(uploads_max=task["at_once"])
    async with open_tier(task["url"], plugins=plugins, storage_options=task["options"], options=how) as tier:
        # From here on, as in `_read` and in the raw clients: opening the tier imports the SDK.
        watch = Stopwatch()
        async for report in sync(open_source(task["source"], plugins=plugins), tier):
            if report.error:
                raise report.error
    return watch.read()


async def _read(task: dict[str, Any]) -> str:
    """Read every chunk of the stream with all checks, and drop it. Return the times."""
    from offload import Plugins, StreamReader, open_tier

    async with open_tier(task["url"], plugins=Plugins.find(), storage_options=task["options"]) as tier:
        watch = Stopwatch()
        reader = await StreamReader.open(tier, "stream", in_flight=task["at_once"])
        windows = reader.windows(0)
        size_bytes = 0
        async for window in windows:
            size_bytes += len(window.data)
        await windows.aclose()
        assert size_bytes == reader.manifest.entries["data_size_bytes"].sum()
        return watch.read()


def _measure(folder: Path, running: Any, arguments: argparse.Namespace) -> None:
    stream.write(folder / "source" / "stream", int(arguments.size_gib * 2**30))
    objects = _objects(folder)
    size_bytes = sum(Path(path).stat().st_size for path, _ in objects)
    with _maybe_delayed(running.endpoint, arguments.delay_ms) as endpoint:
        place = running.place()
        if arguments.delay_ms:
            jobs = _jobs_with_delay(folder, place, endpoint)
        else:
            jobs = _jobs(folder, place, endpoint, objects, arguments.at_once)
        runs: dict[str, list[Run]] = {job.name: [] for job in jobs}
        for number in range(arguments.rounds + 1):
            for job in jobs:
                job.before()
                done = _timed(job)
                if number:
                    runs[job.name].append(done)
                print(f"round {number} {job.name}: {done.seconds:.2f} s", file=sys.stderr)
    _report(jobs, runs, size_bytes, running, arguments)


def _objects(folder: Path) -> list[tuple[str, str]]:
    """Return the fragments that `offload sync` makes of the source, as files for the raw clients."""
    tier = folder / "tier"
    argv = [sys.executable, "-c", "from offload.cli.main import main; main()"]
    subprocess.run([*argv, "sync", f"rabbitmq://{folder / 'source'}", str(tier)], check=True, stdout=2)
    files = sorted((tier / "stream" / "data").iterdir())
    return [(str(path), f"raw/{number:04}") for number, path in enumerate(files)]


@contextmanager
def _maybe_delayed(endpoint: str, delay_ms: float) -> Iterator[str]:
    if delay_ms:
        with delayed(endpoint, delay_ms=delay_ms) as slow:
            yield slow
    else:
        yield endpoint


def _jobs(folder: Path, place: Any, endpoint: str, objects: list[tuple[str, str]], at_once: int) -> list[Job]:
    raw = {
        "endpoint": endpoint,
        "bucket": place.url.removeprefix("s3://"),
        "key": place.options["key"],
        "secret": place.options["secret"],
        "objects": objects,
    }
    names = ("boto3", "obstore", "curl")
    return [
        *(Job(f"{name} put", "put", [*RAW, name, "put", str(at_once)], raw) for name in names),
        *(_ours("sync", folder, place, endpoint, client, at_once) for client in CLIENTS),
        *(Job(f"{name} get", "get", [*RAW, name, "get", str(at_once)], raw) for name in names),
        *(_ours("read", folder, place, endpoint, client, at_once) for client in CLIENTS),
    ]


def _jobs_with_delay(folder: Path, place: Any, endpoint: str) -> list[Job]:
    return [
        _ours(job, folder, place, endpoint, client, at_once)
        for client in CLIENTS
        for at_once in (1, 2, 4, 8, 16)
        for job in ("sync", "read")
    ]


def _ours(job: str, folder: Path, place: Any, endpoint: str, client: str, at_once: int) -> Job:
    tier = f"tier-{client}"
    task = {
        "url": f"{place.url}/{tier}",
        "options": {**place.options, "endpoint_url": endpoint, "client": client},
        "source": f"rabbitmq://{folder / 'source'}",
        "at_once": at_once,
    }

    def empty() -> None:
        keys = [key for key in place.keys() if key.startswith(tier + "/")]  # noqa: SIM118 - no mapping
        for key in keys:
            place.boto.delete_object(Bucket=place.name, Key=key)

    name = f"offload {job}, {client}, {at_once} at once"
    return Job(
        name, "put" if job == "sync" else "get", [*SELF, "--job", job], task, _if(job == "sync", empty)
    )


def _if(condition: bool, then: Callable[[], None]) -> Callable[[], None]:
    return then if condition else lambda: None


def _timed(job: Job) -> Run:
    with tempfile.TemporaryFile() as task, tempfile.TemporaryFile() as output:
        task.write(json.dumps(job.task).encode())
        task.seek(0)
        process = subprocess.Popen(job.argv, stdin=task, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{job.name} ended with {process.returncode}")
        output.seek(0)
        seconds, cpu_seconds = json.load(output)
    return Run(seconds, cpu_seconds, usage.ru_maxrss / 1024)


def _report(
    jobs: list[Job], runs: dict[str, list[Run]], size_bytes: int, running: Any, arguments: argparse.Namespace
) -> None:
    def seconds(job: Job) -> float:
        return statistics.median(run.seconds for run in runs[job.name])

    rows = []
    for job in jobs:
        raw = [seconds(each) for each in jobs if each.verb == job.verb and each.argv[:2] == RAW]
        cpu = statistics.median(run.cpu_seconds for run in runs[job.name])
        row = {
            "job": job.name,
            "seconds": round(seconds(job), 2),
            "mib_per_second": round(size_bytes / 2**20 / seconds(job)),
            "cpu_seconds_per_gib": round(cpu / (size_bytes / 2**30), 2),
            "peak_mib": round(max(run.peak_mib for run in runs[job.name])),
        }
        if raw and job.argv[:2] != RAW:
            row["speed_of_best_raw"] = round(min(raw) / seconds(job), 2)
        rows.append(row)
    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "server": f"{running.server.name} {running.version}",
        "size_bytes": size_bytes,
        "rounds": arguments.rounds,
        "at_once": arguments.at_once,
        "delay_ms": arguments.delay_ms,
    }
    if arguments.json:
        print(json.dumps({"machine": machine, "jobs": rows}, indent=2))
        return
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    heads = ("job", "seconds", "mib_per_second", "cpu_seconds_per_gib", "peak_mib", "speed_of_best_raw")
    for row in (dict(zip(heads, heads, strict=True)), *rows):
        first, *others = (str(row.get(head, "")) for head in heads)
        print(first.ljust(34) + "".join(cell.rjust(21) for cell in others))


if __name__ == "__main__":
    main()
