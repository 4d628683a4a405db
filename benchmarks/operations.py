"""The requests of every operation to a store, and their cost at public list prices.

    python benchmarks/operations.py [--size small|medium|large] [--only PART] [--json]

The real code runs over a bucket in memory. Requests are counted as providers bill them (`tally`), and priced
(`offload.model.prices`). Manifests have 1,000, 100,000 and 10,000,000 fragments (`large`). Their entries are
made up (`made_stream`), and the real code commits them in commits of 1,024. Fragments have one small chunk:
their size, up to 128 MiB, changes no count, and no byte of roots and groups. Each operation begins as a new
process does, with nothing opened or cached. Only the sequential read moves fragments of 64 MiB. The tables
are those of `operation_report`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from made_stream import KEYS, LISTED_FRAGMENTS_MAX, RECORDS, STREAM, Ledger, Scene, chunk
from operation_report import Row, print_report
from tally import AZURE_PAGE_KEYS, Bucket, TallyStore

from offload.ground.env import Env
from offload.model.position import AtTime
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.read.reader import StreamReader
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.upkeep.sweep.tier import GRACE_SECONDS, PAGE_KEYS_MAX, sweep
from offload.upkeep.verify.report import VerifyLevel
from offload.upkeep.verify.tier import verify
from offload.write.writer import StreamWriter

MANIFEST_SIZES: Final = {"small": (10**3,), "medium": (10**3, 10**5), "large": (10**3, 10**5, 10**7)}
SWEEP_OBJECTS: Final = {"small": (10**4,), "medium": (10**5,), "large": (10**5, 10**6)}
REBUILD_FRAGMENTS: Final = {"small": (10**3,), "medium": (10**4,), "large": (10**4,)}
READ_BYTES: Final = {"small": (2**26,), "medium": (2**28,), "large": (2**30,)}

TRIMMED, GARBAGE = 0.05, 0.05
"""The shares of swept objects that are trimmed fragments, and fragments of dropped attempts."""


def main() -> None:
    """Parse arguments, run everything, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=list(MANIFEST_SIZES), default="large")
    parser.add_argument("--only", choices=list(PARTS), help="run only this part, and print no month")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = asyncio.run(_all(arguments.size, [arguments.only] if arguments.only else list(PARTS)))
    print_report(rows, as_json=arguments.json)


async def _all(size: str, parts: list[str]) -> list[Row]:
    rows: list[Row] = []
    for part in parts:
        sizes, measure = PARTS[part]
        for number in sizes[size]:
            rows += await measure(number)
    return rows


Operation = Callable[[TallyStore], Awaitable[Any]]


async def _measured(
    name: str,
    fragments: int,
    store: TallyStore,
    operation: Operation,
    *,
    beside: TallyStore | None = None,
) -> Row:
    """Run an operation. If `beside` is given, run it there again for its memory, which makes it slower."""
    gc.collect()
    gc.freeze()  # the collector would walk the bucket's million keys, which a real sweep does not hold
    before, began, cpu = store.tally.copy(), time.perf_counter(), time.process_time()
    await operation(store)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    gc.unfreeze()
    tally = store.tally - before
    peak_mib = None
    if beside is not None:
        tracemalloc.start()
        await operation(beside)
        peak_mib = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
    print(f"{name}, {fragments:,}: {seconds:.2f} s", file=sys.stderr)
    return Row(
        operation=name,
        fragments=fragments,
        tally=tally,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        peak_mib=peak_mib,
    )


async def _life(fragments: int) -> list[Row]:
    """Measure every operation on a stream of that length, except those with a size of their own."""
    scene = await Scene.grown(fragments)
    end, count = scene.fragments * RECORDS, scene.fragments
    options = TierOptions(fragment_size_bytes=1)  # a fragment for each chunk

    def opened(store: TallyStore) -> ObjectStoreOffloader:
        return ObjectStoreOffloader(store, options=options)

    async def claim(store: TallyStore) -> StreamWriter:
        return await StreamWriter.claim(opened(store), STREAM)

    async def lookup(store: TallyStore) -> None:
        offloader = opened(store)
        reader = await StreamReader.open(offloader, STREAM)
        found = await offloader.tree(reader.manifest).find(end // 3)
        assert found is not None
        assert found.first_offset <= end // 3 < found.next_offset

    async def lookup_time(store: TallyStore) -> None:
        reader = await StreamReader.open(opened(store), STREAM)
        assert await reader.offset_of(AtTime(end // 3)) == -(-(end // 3) // RECORDS) * RECORDS

    async def trim_1000(store: TallyStore) -> None:
        before = min(1000, count // 2) * RECORDS
        done = await trim(opened(store), STREAM, Retention(before_offset=before))
        assert done.dropped.fragments == min(1000, count // 2)

    async def trim_percent(store: TallyStore) -> None:
        size_bytes = sum(entry.data_size_bytes for entry in scene.entries(0, 1)) * count
        done = await trim(opened(store), STREAM, Retention(size_bytes_max=size_bytes * 99 // 100))
        assert done.dropped.fragments >= count // 100

    rows = [await _measured("claim", count, scene.fork(), claim)]
    for fragments, name in (
        (1, "copy 1 fragment, 2 commits"),
        (8, "copy 8 fragments, 2 commits"),
        (256, "copy 256 fragments, 2 commits"),
    ):
        store = scene.fork()
        writer = await claim(store)
        ledger = Ledger(end, fragments)

        async def copy(_: TallyStore, writer: StreamWriter = writer, ledger: Ledger = ledger) -> None:
            await writer.offload([ledger])

        rows.append(await _measured(name, count, store, copy))
    for name, operation in (
        ("open a reader", lambda store: StreamReader.open(opened(store), STREAM)),
        ("open, and find an offset", lookup),
        ("open, and find a time", lookup_time),
        ("trim 1,000 fragments", trim_1000),
        ("trim 1 %, by size", trim_percent),
        ("delete the stream", lambda store: delete_stream(opened(store), STREAM)),
    ):
        rows.append(await _measured(name, count, scene.fork(), operation))
    if count <= LISTED_FRAGMENTS_MAX:
        rows += await _verified(scene)
    return rows


async def _verified(scene: Scene) -> list[Row]:
    rows = []
    for level in (VerifyLevel.MANIFEST, VerifyLevel.CHECKSUM):

        async def check(store: TallyStore, level: VerifyLevel = level) -> None:
            report = await verify(store, level=level)
            assert not report.damages, report.damages[0]
            assert report.objects >= scene.fragments

        name = f"verify --level {level.value}"
        rows.append(await _measured(name, scene.fragments, scene.fork(), check, beside=scene.fork()))
    return rows


async def _sequential_read(size_bytes: int) -> list[Row]:
    """Copy so many bytes in fragments of 64 MiB, and read them from the first to the last."""
    bucket, padding = Bucket(), bytes(1000)
    writer = await StreamWriter.claim(ObjectStoreOffloader(bucket), STREAM)
    records = 128
    chunk_size_bytes = len(chunk(0, records, padding))
    per_fragment = -(-(2**26) // chunk_size_bytes)
    for _ in range(-(-size_bytes // 2**26)):
        await writer.offload([Ledger(writer.manifest.next_offset, per_fragment, records, padding)])

    async def read(store: TallyStore) -> None:
        reader = await StreamReader.open(ObjectStoreOffloader(store), STREAM)
        windows = reader.windows(0)
        found = 0
        async for window in windows:
            found += len(window.data)
        await windows.aclose()
        assert found == reader.manifest.data_size_bytes >= size_bytes

    fragments = writer.manifest.fragments
    name = f"open, and read {size_bytes // 2**20} MiB"
    return [await _measured(name, fragments, TallyStore(bucket), read)]


async def _sweeps(objects: int) -> list[Row]:
    """Measure a first sweep, which notes unused objects, and one after the grace, which deletes them."""
    trimmed, garbage = int(objects * TRIMMED), int(objects * GARBAGE)
    scene = await Scene.grown(objects - garbage, garbage=garbage)
    await trim(ObjectStoreOffloader(scene.bucket), STREAM, Retention(before_offset=trimmed * RECORDS))
    now_ms = time.time_ns() // 1_000_000

    condemned = trimmed + garbage

    def run(after_seconds: float, *, waits: int = 0, deletes: int = 0) -> Operation:
        async def swept(store: TallyStore) -> None:
            env = Env(now_ms=lambda: now_ms + int(after_seconds * 1000))
            report = await sweep(store, env=env)
            [row] = report.streams
            assert not row.errors, row.errors[0]
            assert row.waits.objects.total() >= waits
            assert row.deleted.objects.total() >= deletes
            assert row.stays.objects.total() >= objects - condemned

        return swept

    store, beside = scene.fork(), scene.fork()
    first = await _measured("sweep, first", objects, store, run(0, waits=condemned), beside=beside)
    later = run(GRACE_SECONDS + 1, deletes=condemned)
    second = await _measured("sweep, an hour later", objects, store, later, beside=beside)
    much_later = run(2 * GRACE_SECONDS + 2)
    third = await _measured("sweep, nothing to do", objects - condemned, store, much_later)
    pages = objects // PAGE_KEYS_MAX + 1
    for row in (first, second, third):
        # Once through the stream, and once to find the next stream, but never once for each page.
        most = 2 * (objects // AZURE_PAGE_KEYS + 1) + 5 * pages + 16
        assert row.tally.azure_lists <= most, row.tally
    return [first, second, third]


async def _rebuilt(fragments: int) -> list[Row]:
    scene = await Scene.grown(fragments)
    await scene.make_all(fragments)
    gone = [row.key async for row in scene.bucket.list(KEYS.metadata)]
    gone += [row.key async for row in scene.bucket.list(KEYS.groups)]
    await scene.bucket.delete(gone)

    async def again(store: TallyStore) -> None:
        report = await rebuild(ObjectStoreOffloader(store), STREAM)
        assert report.manifest is not None
        assert report.manifest.fragments == fragments

    return [await _measured("rebuild", fragments, scene.fork(), again, beside=scene.fork())]


PARTS: Final[dict[str, tuple[Mapping[str, tuple[int, ...]], Callable[[int], Awaitable[list[Row]]]]]] = {
    "life": (MANIFEST_SIZES, _life),
    "read": (READ_BYTES, _sequential_read),
    "sweep": (SWEEP_OBJECTS, _sweeps),
    "rebuild": (REBUILD_FRAGMENTS, _rebuilt),
}
"""The measurements by name: their sizes, and the function that makes them."""


if __name__ == "__main__":
    main()
