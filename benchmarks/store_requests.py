"""The requests and bytes of a sync and of a sequential read, as `StoreMetrics` counts them.

    python benchmarks/store_requests.py [--server minio] [--size-gib 1] [-o client=fsspec] [--json]

The server runs on this machine. A first row is the cost of counting: the time of one `get` and of one row of
a listing with the counters, less that without them, of a store that does nothing.

`requests` are those that were sent, repeats included: calls of the port, without the reads that an open reply
continued. A listing counts as one. `fetched` is bytes received for each byte delivered, or sent for each byte
of the source.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import stream
from servers.catalogue import SERVERS, server

from offload import Plugins, Session, StreamReader, sync
from offload.contracts.metrics import BUCKET_SECONDS, RequestTimes, StoreMetrics
from offload.contracts.store import Listed, ObjectStore, Span, Suffix
from offload.store.memory import MemoryStore
from offload.store.metrics import MeteredStore

CALLS = 20_000
ROUNDS = 9


class Idle(MemoryStore):
    """A store that does nothing."""

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Return nothing."""
        return b""

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Yield the same row again and again."""
        row = Listed("key", 1)
        for _ in range(CALLS):
            yield row


def main() -> None:
    """Parse arguments, make the data, print a row for each job."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default="minio", choices=[each.name for each in SERVERS])
    parser.add_argument("--size-gib", type=float, default=1.0)
    parser.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--folder", type=Path, default=None, help="folder for the data: needs 2 times the size"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    options = dict(each.split("=", 1) for each in arguments.option)
    rows: list[dict[str, Any]] = [asyncio.run(_costs())]
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder, prefix="offload-benchmark-") as folder,
        server(arguments.server).running() as running,
    ):
        stream.write(Path(folder) / "source" / "stream", int(arguments.size_gib * 2**30))
        place = running.place()
        url, options = f"{place.url}/tier", place.options | options
        rows += [asyncio.run(job(Path(folder), url, options)) for job in (_sync, _read)]
    for row in rows:
        print(json.dumps(row) if arguments.json else "  ".join(f"{k}: {v}" for k, v in row.items()))


async def _sync(folder: Path, url: str, options: dict[str, Any]) -> dict[str, Any]:
    async with Session(plugins=Plugins.find()) as session:
        tier = session.tier(url, storage_options=options)
        async for report in sync(session.source(f"rabbitmq://{folder / 'source'}"), tier):
            if report.error:
                raise report.error
        size_bytes = sum(each.stat().st_size for each in (folder / "source" / "stream").glob("*.segment"))
        return _row("sync", session.metrics, session.metrics.bytes_put, size_bytes)


async def _read(folder: Path, url: str, options: dict[str, Any]) -> dict[str, Any]:
    async with Session(plugins=Plugins.find()) as session:
        reader = await StreamReader.open(session.tier(url, storage_options=options), "stream")
        windows = reader.windows(0)
        size_bytes = 0
        async for window in windows:
            size_bytes += len(window.data)
        await windows.aclose()
        return _row("read", session.metrics, session.metrics.bytes_got, size_bytes)


def _row(job: str, metrics: StoreMetrics, moved: int, size_bytes: int) -> dict[str, Any]:
    sent = metrics.requests.total() - metrics.reads_shared
    return {
        "job": job,
        "gib": round(size_bytes / 2**30, 3),
        "requests_per_gib": round(sent / (size_bytes / 2**30), 1),
        "fetched": round(moved / size_bytes, 5),
        "calls": dict(metrics.requests),
        "shared_reads": metrics.reads_shared,
        "retries": metrics.retries.total(),
        "throttled": metrics.throttled,
        "outcomes": {" ".join(key): times.count for key, times in sorted(metrics.times.items())},
        "first_byte_p50_seconds": _quantile(metrics.first_bytes, 0.5),
        "first_byte_p99_seconds": _quantile(metrics.first_bytes, 0.99),
    }


def _quantile(times: RequestTimes, share: float) -> float | str | None:
    """Return the upper end of the bucket that has the quantile."""
    left = share * times.count
    for end, number in zip((*BUCKET_SECONDS, "more"), times.counts, strict=True):
        left -= number
        if number and left <= 0:
            return end
    return None


async def _costs() -> dict[str, Any]:
    async def gets(store: ObjectStore) -> None:
        for _ in range(CALLS):
            await store.get("key")

    async def rows(store: ObjectStore) -> None:
        async for _ in store.list(""):
            pass

    async def microseconds(job: Any, store: ObjectStore) -> float:
        found = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            await job(store)
            found.append((time.perf_counter() - begun) / CALLS * 1e6)
        return min(found)

    idle, metered = Idle(), MeteredStore(Idle())
    return {
        "job": "counting",
        "microseconds_of_a_get": round(await microseconds(gets, metered) - await microseconds(gets, idle), 2),
        "microseconds_of_a_row": round(await microseconds(rows, metered) - await microseconds(rows, idle), 2),
    }


if __name__ == "__main__":
    main()
