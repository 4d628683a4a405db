"""The throughput of a stream to an object store and back, compared with raw clients on the same objects.

    python benchmarks/object_store.py [--server minio] [--size-gib 2] [--rounds 5] [--at-once 4]
                                      [--delay-ms 0] [--folder DIR] [--json]

The server runs on this machine, and takes the same share of the cores from all jobs. MinIO and RGW keep their
objects on the disk of `$TMPDIR`, which needs 7 times the size; fakes and emulators keep them in memory. Each
round runs every job once, all puts first, and begins with another job than the round before; one more round
goes first and is not counted. What a put will replace is removed before it. Seconds and CPU seconds are
those of the transfer alone, without the start of the interpreter. The CPU seconds of the server are those of
its processes while the job's process ran. Peak memory is that of the job's largest process. A ratio is the
speed of a job by that of the fastest raw client of the same round. With `--delay-ms`, a proxy adds this delay
to every request; then only the jobs of `offload` run, with several numbers of transfers at once.
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
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import machine
import stream
from servers.catalogue import SERVERS, Running, server
from servers.places import Place
from servers.proxy import delayed
from stopwatch import running_children_cpu_seconds

from offload import Plugins
from offload.opening.by_url import open_store

HERE: Final = Path(__file__).resolve().parent
RAW_CLIENTS: Final = {"s3": ("curl", "boto3", "obstore", "rclone"), "gcs": ("curl",), "azure": ("curl",)}
VERBS: Final = ("put", "get")
RAW: Final = "raw"  # the prefix of the objects of the raw clients
GIB: Final = 2**30


@dataclass(frozen=True)
class Job:
    """A command that reads its task from stdin and prints the times of its transfer."""

    name: str
    verb: str  # "put" or "get"
    is_raw: bool
    argv: list[str]
    task: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of one job."""

    seconds: float
    cpu_seconds: float
    server_cpu_seconds: float
    peak_mib: float
    counters: dict[str, Any]
    """The requests and bytes, if the job is ours."""


@dataclass(frozen=True)
class Row:
    """The medians of a job's runs. The fields are the columns."""

    job: str
    seconds: float
    mib_per_second: int
    cpu_seconds_per_gib: float
    server_cpu_seconds_per_gib: float
    peak_mib: int
    ratio: tuple[float, float, float] | None
    """The median over the rounds, the least and the most; None without raw clients."""
    requests_per_gib: float | None
    bytes_per_byte: float | None


def main() -> None:
    """Parse arguments, make the data, run the rounds, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server", default="minio", choices=[each.name for each in SERVERS if each.honours_create]
    )
    parser.add_argument("--size-gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument(
        "--folder", type=Path, default=None, help="folder for the data: needs 2 times the size"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    machine.require_disk()
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder, prefix="offload-benchmark-") as folder,
        server(arguments.server).running() as running,
    ):
        _measure(Path(folder), running, arguments)


def _measure(folder: Path, running: Running, arguments: argparse.Namespace) -> None:
    stream.write(folder / "source" / "stream", int(arguments.size_gib * GIB))
    size_bytes = sum(path.stat().st_size for path in (folder / "source" / "stream").glob("*.segment"))
    place = running.place()
    with _maybe_delayed(place, arguments.delay_ms) as options:
        if arguments.delay_ms:
            jobs = _jobs_with_delay(folder, place, options, size_bytes)
        else:
            jobs = _jobs(folder, running, place, size_bytes, arguments.at_once)
        rounds = [_round(number, jobs, running) for number in range(arguments.rounds + 1)]
    _report(jobs, rounds[1:], size_bytes, running, arguments)


def _round(number: int, jobs: list[Job], running: Running) -> list[Run]:
    """Run every job once. Return their runs in the order of `jobs`."""
    done: dict[str, Run] = {}
    for verb in VERBS:
        of_verb = [job for job in jobs if job.verb == verb]
        first = number % len(of_verb)  # the first of a row of jobs may find the disk in another state
        for job in of_verb[first:] + of_verb[:first]:
            if verb == "put":
                asyncio.run(_empty(job.task["url"], job.task["options"]))
                _empty_trash(running.scratch)
            done[job.name] = _timed(job)
            print(f"round {number} {job.name}: {done[job.name].seconds:.2f} s", file=sys.stderr)
    return [done[job.name] for job in jobs]


async def _empty(url: str, options: dict[str, str]) -> None:
    """Delete all objects of a place."""
    async with aclosing(open_store(url, plugins=Plugins.find(), storage_options=options)) as store:
        await store.delete([row.key async for row in store.list("")])


@contextmanager
def _maybe_delayed(place: Place, delay_ms: float) -> Iterator[dict[str, str]]:
    """Yield the options of the place, with the endpoint of a slow proxy if a delay is asked for."""
    if not delay_ms:
        yield place.options
        return
    if "endpoint_url" not in place.options:
        raise SystemExit(
            f"--delay-ms: not for {place.scheme}://, whose requests are signed for their endpoint"
        )
    with delayed(place.options["endpoint_url"], delay_ms=delay_ms) as slow:
        yield place.options | {"endpoint_url": slow}


def _jobs(folder: Path, running: Running, place: Place, size_bytes: int, at_once: int) -> list[Job]:
    protocol = running.server.protocol
    task = {
        "protocol": protocol,
        "options": place.options,
        "url": f"{place.url}/{RAW}",
        "bucket": place.name,
        "objects": _objects(folder),
    }

    def raw(name: str, verb: str) -> Job:
        argv = [sys.executable, str(HERE / "raw_clients.py"), name, verb, str(at_once)]
        return Job(f"{name} {verb}", verb, is_raw=True, argv=argv, task=task)

    jobs: list[Job] = []
    for verb in VERBS:
        jobs += [raw(name, verb) for name in RAW_CLIENTS[protocol]]
        jobs.append(_ours(verb, folder, place, place.options, size_bytes, at_once))
    return jobs


def _empty_trash(scratch: Path) -> None:
    """Remove what MinIO keeps of deleted objects for five minutes.

    With more than 4 GiB of it, the same puts took twice as long, and twice the CPU seconds of MinIO: here the
    disk of a virtual machine was slow where it was new.
    """
    for path in scratch.glob("data/.minio.sys/tmp/.trash/*"):
        shutil.rmtree(path, ignore_errors=True)


def _objects(folder: Path) -> list[tuple[str, str]]:
    """Return the fragments that `offload sync` makes of the source, as files and keys for the raw clients."""
    tier = folder / "tier"
    argv = [sys.executable, "-c", "from offload.cli.main import main; main()"]
    subprocess.run([*argv, "sync", f"rabbitmq://{folder / 'source'}", str(tier)], check=True, stdout=2)
    files = sorted((tier / "stream" / "data").iterdir())
    return [(str(path), f"{RAW}/{number:04}") for number, path in enumerate(files)]


def _jobs_with_delay(folder: Path, place: Place, options: dict[str, str], size_bytes: int) -> list[Job]:
    return [
        replace(job, name=f"{job.name}, {at_once} at once")
        for at_once in (1, 2, 4, 8, 16)
        for verb in VERBS
        for job in [_ours(verb, folder, place, options, size_bytes, at_once)]
    ]


def _ours(
    verb: str, folder: Path, place: Place, options: dict[str, str], size_bytes: int, at_once: int
) -> Job:
    task = {
        "url": f"{place.url}/tier",
        "options": options,
        "source": str(folder / "source"),
        "size_bytes": size_bytes,
    }
    job = {"put": "sync", "get": "read"}[verb]
    argv = [sys.executable, str(HERE / "our_clients.py"), job, str(at_once)]
    return Job(job, verb, is_raw=False, argv=argv, task=task)


def _timed(job: Job) -> Run:
    of_server = -running_children_cpu_seconds()
    with tempfile.TemporaryFile() as task, tempfile.TemporaryFile() as output:
        task.write(json.dumps(job.task).encode())
        task.seek(0)
        process = subprocess.Popen(job.argv, stdin=task, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        of_server += running_children_cpu_seconds()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{job.name} ended with {process.returncode}")
        output.seek(0)
        counters = json.load(output)
    seconds, cpu_seconds = counters.pop("seconds"), counters.pop("cpu_seconds")
    return Run(seconds, cpu_seconds, of_server, usage.ru_maxrss / 1024, counters)


def _report(
    jobs: list[Job],
    rounds: list[list[Run]],
    size_bytes: int,
    running: Running,
    arguments: argparse.Namespace,
) -> None:
    runs = list(zip(jobs, zip(*rounds, strict=True), strict=True))
    best = {verb: _best([done for job, done in runs if job.is_raw and job.verb == verb]) for verb in VERBS}
    rows = [_row(job, done, size_bytes, best[job.verb]) for job, done in runs]
    about = {
        **machine.description(),
        "server": f"{running.server.name} {running.version}",
        "size_bytes": size_bytes,
        "rounds": arguments.rounds,
        "at_once": arguments.at_once,
        "delay_ms": arguments.delay_ms,
    }
    if arguments.json:
        seconds = [{"seconds_by_round": [run.seconds for run in done]} for _, done in runs]
        counters = [{"counters": done[-1].counters} for _, done in runs]
        each = [asdict(row) | one | other for row, one, other in zip(rows, seconds, counters, strict=True)]
        print(json.dumps({"machine": about, "jobs": each}, indent=2))
        return
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    heads = [name.replace("_", " ") for name in asdict(rows[0])]
    for line in (
        heads,
        ["---"] * len(heads),
        *([_cell(each) for each in asdict(row).values()] for row in rows),
    ):
        print(f"| {' | '.join(line)} |")


def _cell(value: float | str | tuple[float, float, float] | None) -> str:
    if isinstance(value, tuple):
        return "{:.2f} ({:.2f} to {:.2f})".format(*value)
    return "" if value is None else str(value)


def _best(runs: list[tuple[Run, ...]]) -> list[float]:
    """Return the least seconds of each round; nothing if there are no runs."""
    return [min(run.seconds for run in done) for done in zip(*runs, strict=True)]


def _row(job: Job, runs: Sequence[Run], size_bytes: int, best: list[float]) -> Row:
    def per_gib(values: Iterator[float]) -> float:
        return round(statistics.median(values) / (size_bytes / GIB), 2)

    seconds, counters = statistics.median(run.seconds for run in runs), runs[-1].counters
    ratios = [least / run.seconds for least, run in zip(best, runs, strict=True)] if best else []
    return Row(
        job=job.name,
        seconds=round(seconds, 2),
        mib_per_second=round(size_bytes / 2**20 / seconds),
        cpu_seconds_per_gib=per_gib(run.cpu_seconds for run in runs),
        server_cpu_seconds_per_gib=per_gib(run.server_cpu_seconds for run in runs),
        peak_mib=round(max(run.peak_mib for run in runs)),
        ratio=(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None,
        requests_per_gib=per_gib(iter([counters["requests"]])) if counters else None,
        bytes_per_byte=round(counters["moved"], 4) if counters else None,
    )


if __name__ == "__main__":
    main()
