"""Readers of one stream that share a cache, beside readers without one.

    python benchmarks/readers.py [--server minio] [--size-gib 1] [--rounds 3] [--paced-mib 25]
                                 [--standing 1000] [--folder DIR] [--json]

Each job is a process of its own, and reads the stream from a server on this machine:

    1 reader         as fast as it can
    8 together       eight readers that begin at once
    8 apart          eight readers that begin 1 s apart
    paced            the consumers take `--paced-mib` MiB per second each, or half of it. The others take all
    standing         readers at places all over the stream. Each takes one message, and then stands still

Seconds and CPU seconds are those of the reads alone. Requests and bytes are those of the whole session, per
GiB and per byte of the stream, so eight readers that share nothing have eight times those of one. Memory is
that of the process; `later` is after the cache has let go of what nobody uses. Figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import machine
import stream
from servers.catalogue import SERVERS, server
from stopwatch import Stopwatch

from offload import Plugins, Session, StreamReader
from offload.cache.block_cache import CACHE_SIZE_BYTES, BlockCache
from offload.cache.memory import AGE_SECONDS
from offload.contracts.catalogue import Catalogue
from offload.model.manifest import CommittedStream

GIB: Final = 2**30
MIB: Final = 2**20
READERS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one process does."""

    readers: int = 1
    apart_seconds: float = 0.0
    paced_mib: float = 0.0
    cache_mib: int = CACHE_SIZE_BYTES // MIB
    """0: none."""
    is_standing: bool = False

    @property
    def name(self) -> str:
        """The name in the table."""
        words = [f"{self.readers} standing" if self.is_standing else f"{self.readers} reader"]
        if self.readers > 1 and not self.is_standing:
            words = [f"{self.readers} {'1 s apart' if self.apart_seconds else 'together'}"]
        words += [f"{self.paced_mib:g} MiB/s each"] if self.paced_mib else []
        return ", ".join([*words, f"{self.cache_mib} MiB of cache" if self.cache_mib else "direct"])


def main() -> None:
    """Parse arguments, make the data, run the rounds, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--server", default="minio", choices=[each.name for each in SERVERS if each.honours_create]
    )
    parser.add_argument("--size-gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paced-mib", type=float, default=25.0)
    parser.add_argument("--standing", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=None, help="folder for the data")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        print(json.dumps(asyncio.run(_job(json.loads(arguments.task)))))
        return
    machine.require_disk()
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder, prefix="offload-benchmark-") as folder,
        server(arguments.server).running() as running,
    ):
        stream.write(Path(folder) / "source" / "stream", int(arguments.size_gib * GIB))
        place = running.place()
        tier = {"url": f"{place.url}/tier", "options": place.options}
        asyncio.run(_sync(Path(folder) / "source", tier))
        rows = _rows(tier, arguments)
        about = {
            **machine.description(),
            "server": f"{running.server.name} {running.version}",
            "size_gib": arguments.size_gib,
            "rounds": arguments.rounds,
        }
    _print(about, rows, is_json=arguments.json)


def _jobs(arguments: argparse.Namespace) -> list[Job]:
    return [
        Job(cache_mib=0),
        Job(),
        Job(readers=READERS, cache_mib=0),
        Job(readers=READERS),
        Job(readers=READERS, apart_seconds=1.0),
        Job(readers=READERS, paced_mib=arguments.paced_mib),
        Job(readers=READERS, paced_mib=arguments.paced_mib / 2, apart_seconds=1.0),
        Job(readers=READERS, paced_mib=arguments.paced_mib, apart_seconds=1.0),
        Job(readers=READERS, paced_mib=arguments.paced_mib, apart_seconds=1.0, cache_mib=256),
        Job(readers=arguments.standing, is_standing=True, cache_mib=0),
        Job(readers=arguments.standing, is_standing=True),
        Job(readers=10 * arguments.standing, is_standing=True),
    ]


def _rows(tier: dict[str, Any], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    jobs, found = _jobs(arguments), list[list[dict[str, Any]]]()
    for number in range(arguments.rounds):
        found.append([_run(job, tier) for job in jobs])
        for job, done in zip(jobs, found[-1], strict=True):
            print(f"round {number} {job.name}: {done}", file=sys.stderr)
    return [
        {"job": job.name}
        | {name: _median([each.get(name) for each in done]) for name in done[0] if name != "counts"}
        | {"counts": done[-1]["counts"]}
        for job, done in zip(jobs, zip(*found, strict=True), strict=True)
    ]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 2) if known else None


def _run(job: Job, tier: dict[str, Any]) -> dict[str, Any]:
    task = json.dumps({"job": asdict(job), **tier})
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--task", task], stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def _sync(source: Path, tier: dict[str, Any]) -> None:
    from offload import sync

    plugins = Plugins.find()
    async with Session(plugins=plugins) as session:
        target = session.tier(tier["url"], storage_options=tier["options"])
        async for report in sync(session.source(f"rabbitmq://{source}"), target):
            if report.error:
                raise report.error


async def _job(task: dict[str, Any]) -> dict[str, Any]:
    job = Job(**task["job"])
    async with Session(plugins=Plugins.find()) as session:
        tier = session.catalogue(task["url"], storage_options=task["options"])
        cache = None
        if job.cache_mib:
            cache = BlockCache(job.cache_mib * MIB, throttled=lambda: session.metrics.throttled)
        committed = (await StreamReader.open(tier, "stream")).manifest
        before = session.metrics.requests.total(), session.metrics.reads_shared, session.metrics.bytes_got
        watch = Stopwatch()
        if job.is_standing:
            done = await _stand(job, tier, committed, cache)
        else:
            done = await _read_all(job, tier, committed, cache)
        times = watch.read()
        metrics, size_bytes = session.metrics, committed.data_size_bytes
        requests = metrics.requests.total() - before[0] - (metrics.reads_shared - before[1])
        if job.is_standing:
            done |= {"requests": requests}
        else:
            delivered = job.readers * size_bytes
            done = {
                "seconds": times["seconds"],
                "mib_per_second": delivered / MIB / times["seconds"],
                "cpu_seconds_per_gib": times["cpu_seconds"] / (delivered / GIB),
                "requests_per_gib": requests / (size_bytes / GIB),
                "bytes_per_byte": (metrics.bytes_got - before[2]) / size_bytes,
                "peak_mib": _memory_mib("VmHWM"),
            }
        counts = asdict(cache.counts) if cache is not None else None
        if cache is not None:
            await cache.aclose()
        return done | {"counts": counts}


async def _read_all(
    job: Job, tier: Catalogue, committed: CommittedStream, cache: BlockCache | None
) -> dict[str, Any]:
    async def read(number: int) -> None:
        await asyncio.sleep(number * job.apart_seconds)
        reader, taken, loop = StreamReader(tier, committed, cache=cache), 0, asyncio.get_running_loop()
        began, windows = loop.time(), reader.windows(0)
        async for window in windows:
            taken += len(window.data)
            del window
            if job.paced_mib:
                await asyncio.sleep(began + taken / MIB / job.paced_mib - loop.time())
        await windows.aclose()
        assert taken == committed.data_size_bytes

    await asyncio.gather(*map(read, range(job.readers)))
    return {}


async def _stand(
    job: Job, tier: Catalogue, committed: CommittedStream, cache: BlockCache | None
) -> dict[str, Any]:
    empty = _memory_mib("VmRSS")
    step = (committed.next_offset - committed.first_offset) // job.readers
    standing = []
    for number in range(job.readers):
        reader = StreamReader(tier, committed, cache=cache)
        standing.append(reader.messages(committed.first_offset + number * step))
        await anext(standing[-1])
    done = {"empty_mib": empty, "peak_mib": _memory_mib("VmHWM"), "standing_mib": _memory_mib("VmRSS")}
    await asyncio.sleep(1.5 * AGE_SECONDS)
    done["later_mib"] = _memory_mib("VmRSS")
    for each in standing:
        await each.aclose()
    return done


def _memory_mib(name: str) -> float:
    status = Path(f"/proc/{os.getpid()}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith(name + ":")]
    return int(line.split()[1]) / 1024


def _print(about: dict[str, Any], rows: list[dict[str, Any]], *, is_json: bool) -> None:
    if is_json:
        print(json.dumps({"machine": about, "jobs": rows}, indent=2))
        return
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    for is_standing in (False, True):
        chosen = [row for row in rows if ("standing" in row["job"]) == is_standing]
        heads = [name for name in chosen[0] if name != "counts"]
        print()
        for line in (heads, ["---"] * len(heads), *([str(row[head]) for head in heads] for row in chosen)):
            print(f"| {' | '.join(line).replace('_', ' ')} |")


if __name__ == "__main__":
    main()
