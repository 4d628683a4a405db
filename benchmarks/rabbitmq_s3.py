"""Buckets of rabbitmq-stream-s3 on MinIO: tables of large fragments, and a scan beside a listing.

    python benchmarks/rabbitmq_s3.py [--objects 20000] [--rounds 5]

    table     of a fragment of 64 MiB: 64 chunks, and 100,000 chunks of one record. The peer is the index
              alone. A chunk's type is in its header, so the second one reads the whole fragment
    scan      `offload rabbitmq-s3 scan` of a stream of so many objects, beside a listing of its keys

Rounds are in turn, and figures are medians. Memory is the peak of what Python allocates, in a run of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from statistics import median
from typing import Final
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from machine import minio
from offload_rabbitmq_s3 import RabbitmqS3Catalogue
from offload_rabbitmq_s3.fragment import RabbitmqFragment
from offload_rabbitmq_s3.scanning import RabbitmqS3Scan, scan_bucket
from rabbitmq_s3_bucket import Bucket

from offload import Session
from offload.contracts.store import ObjectStore, Span
from offload.model.entry import Entry

FRAGMENT_SIZE_BYTES: Final = 64 * 2**20
PUTS_AT_ONCE: Final = 32


async def milliseconds(act: Callable[[], Awaitable[object]], rounds: int) -> float:
    """Return how long a call takes."""
    found = list[float]()
    for _ in range(rounds):
        began = time.perf_counter()
        await act()
        found.append((time.perf_counter() - began) * 1000)
    return median(found)


async def tables(store: ObjectStore, session: Session, rounds: int) -> None:
    """Measure the tables of two fragments of the same size."""
    for count in (64, 100_000):
        bucket = Bucket(store=store)
        records = 1 if count > 64 else 1000
        bodies = [bytes(FRAGMENT_SIZE_BYTES // count // records - 4)] * records
        chunks = [bucket.chunk(bodies, offset=records * at, time_ms=at) for at in range(count)]
        named = await bucket.upload(chunks)
        key = f"{bucket.prefix}data/{0:020d}.{named.uid:08x}.fragment"
        size = sum(map(len, chunks))
        entry = Entry(
            first_offset=0,
            ledger_id=0,
            first_timestamp_ms=0,
            last_timestamp_ms=count - 1,
            records=count * records,
            messages=count * records,
            data_size_bytes=size,
            stored_size_bytes=size,
            attempt=UUID(int=named.uid),
            checksum=0,
        )

        async def table(key: str = key, entry: Entry = entry) -> None:
            await RabbitmqFragment(store, key, "s", entry).table()

        async def index(key: str = key, size: int = size, count: int = count) -> None:
            await store.get(key, Span(8 + size, 20 * count))

        before = sum(session.metrics.requests.values())
        await table()
        requests = sum(session.metrics.requests.values()) - before
        tracemalloc.start()
        await table()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        row = {"row": f"table, {count:,} chunks", "requests": requests, "peak_mib": round(peak / 2**20, 1)}
        taken = [await milliseconds(each, rounds) for each in (table, index)]
        print(json.dumps(row | {"ms": round(taken[0], 1), "index_alone_ms": round(taken[1], 1)}), flush=True)
        await store.delete([key])


async def scan(store: ObjectStore, objects: int, rounds: int) -> None:
    """Measure a scan of one stream, all of whose fragments the root names."""
    bucket = Bucket(store=store, branching=1024)
    turns = asyncio.Semaphore(PUTS_AT_ONCE)
    chunks = bucket.messages(objects, records=1)

    async def upload(chunk: bytes) -> None:
        async with turns:
            bucket.entries.append(await bucket.upload([chunk]))

    await asyncio.gather(*map(upload, chunks))
    bucket.entries.sort(key=lambda each: each.offset)
    bucket.next = bucket.entries[-1].offset + 1
    await bucket.rebalance()
    await bucket.persist()

    async def listing() -> None:
        assert len([row async for row in store.list(bucket.prefix)]) > objects

    async def scanned() -> None:
        found = RabbitmqS3Scan()
        await scan_bucket(RabbitmqS3Catalogue(store, "rabbitmq+s3://bucket"), found)
        assert not found.streams[0].missing
        assert not found.streams[0].unused

    ratios, alone, whole = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        alone.append(await milliseconds(listing, 1))
        whole.append(await milliseconds(scanned, 1))
        ratios.append(whole[-1] / alone[-1])
    row = {
        "row": f"scan, {objects:,} objects",
        "ms": round(median(whole)),
        "listing_ms": round(median(alone)),
    }
    print(json.dumps(row | {"ratio": round(median(ratios), 2)}), flush=True)


async def measure(url: str, objects: int, rounds: int) -> None:
    """Measure all rows in a bucket."""
    async with Session() as session, aclosing(session.store(url)) as store:
        await tables(store, session, rounds)
        await scan(store, objects, rounds)


def main() -> None:
    """Parse arguments, and print a row of JSON for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with minio() as url:
        asyncio.run(measure(url, given.objects, given.rounds))


if __name__ == "__main__":
    main()
