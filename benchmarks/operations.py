"""The requests of every operation to a store, and their cost at public list prices.

    python benchmarks/operations.py [--size small|medium|large] [--only PART] [--json]

The real code runs over a bucket in memory. Requests are counted as providers bill them (`tally`), and priced
(`offload.model.prices`). Manifests have 1,000, 100,000 and 10,000,000 fragments (`large`). Their entries are
made up, and the real code commits them in commits of 1,024. A fragment's object is made when it is read.
Fragments have one small chunk: their size, up to 128 MiB, changes no count, and no byte of roots and groups.
Each operation begins as a new process does, with nothing opened or cached. Only the sequential read moves
fragments of 64 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

from tally import AZURE_PAGE_KEYS, Bucket, Tally, TallyStore
from throughput import _processor

from offload.commit.log import RootLog
from offload.commit.writer import Append, Claim, Prepare
from offload.contracts.ledger import ReadHandle
from offload.env import Env
from offload.formats.chunk import scan
from offload.formats.chunk_writer import build_chunk
from offload.formats.keys import StreamKeys
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.compression import Compression
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.model.position import AtTime
from offload.model.prices import GIB, PRICES, Price
from offload.native.fragment_writer import FragmentWriter
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.streams.reader import StreamReader
from offload.streams.writer import StreamWriter
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.upkeep.sweep.tier import GRACE_SECONDS, PAGE_KEYS_MAX, sweep
from offload.upkeep.verify.report import VerifyLevel
from offload.upkeep.verify.tier import verify

STREAM: Final = "stream"
KEYS: Final = StreamKeys(STREAM)
WRITER, ATTEMPT, DROPPED = UUID(int=1), UUID(int=2), UUID(int=3)
RECORDS: Final = 4
FRAGMENTS_PER_LEDGER: Final = 8
BATCH: Final = 1024
ROOTS_LEFT: Final = 16
MANIFEST_SIZES: Final = {"small": (10**3,), "medium": (10**3, 10**5), "large": (10**3, 10**5, 10**7)}
SWEEP_OBJECTS: Final = {"small": (10**4,), "medium": (10**5,), "large": (10**5, 10**6)}
REBUILD_FRAGMENTS: Final = {"small": (10**3,), "medium": (10**4,), "large": (10**4,)}
READ_BYTES: Final = {"small": (2**26,), "medium": (2**28,), "large": (2**30,)}
LISTED_FRAGMENTS_MAX: Final = 10**6
"""The longest stream whose fragments are in the listing. Verify, which lists them, runs only up to here."""

TRIMMED, GARBAGE = 0.05, 0.05
"""The shares of swept objects that are trimmed fragments, and fragments of dropped attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operation, measured."""

    operation: str
    fragments: int
    tally: Tally
    seconds: float
    cpu_seconds: float
    peak_mib: float | None = None

    def cost(self, price: Price, times: float = 1.0) -> float:
        """Return the cost in dollars of so many of these operations."""
        lists = self.tally.lists if price.list_keys_max == 1000 else self.tally.azure_lists
        return price.of(writes=self.tally.writes * times, lists=lists * times, reads=self.tally.reads * times)


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
    _report(rows, as_json=arguments.json)


async def _all(size: str, parts: list[str]) -> list[Row]:
    rows: list[Row] = []
    for part in parts:
        sizes, measure = PARTS[part]
        for number in sizes[size]:
            rows += await measure(number)
    return rows


def chunk(offset: int, records: int = RECORDS, padding: bytes = b"") -> bytes:
    """Return the chunk that begins at this offset. All chunks with the same records have the same size."""
    bodies = [b"%020d" % each + padding for each in range(offset, offset + records)]
    return build_chunk(bodies, offset=offset, timestamp_ms=offset, epoch=1)


class Ledger(ReadHandle):
    """A ledger of generated chunks, held in memory."""

    def __init__(self, first_offset: int, chunks: int, records: int = RECORDS, padding: bytes = b"") -> None:
        self._first, self._next = first_offset, first_offset + chunks * records
        starts = range(first_offset, self._next, records)
        self._raw = b"".join(chunk(offset, records, padding) for offset in starts)
        self._table = scan(self._raw, where=self.where)

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self._first

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self._first

    @property
    def next_offset(self) -> int:
        """First offset after the last record."""
        return self._next

    @property
    def where(self) -> str:
        """The name of the ledger in messages."""
        return f"generated ledger {self._first}"

    async def table(self) -> ChunkTable:
        """Return the table: one row for each chunk."""
        return self._table

    async def read(self, rows: ChunkTable) -> bytes:
        """Return the stored chunks of `rows`."""
        start = int(rows["position"][0])
        return self._raw[start : start + int(rows["size_bytes"].sum())]


class Scene:
    """A tier with one stream of made-up entries. Each operation begins with a copy of it."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.manifest: Manifest | None = None
        self._sample: Entry | None = None

    @classmethod
    async def grown(cls, fragments: int, *, garbage: int = 0) -> Scene:
        """Return a stream with so many fragments, and `garbage` ones of dropped attempts between them."""
        scene = cls()
        await ObjectStoreOffloader(scene.bucket).open(create=True)
        log = RootLog(store=scene.bucket, stream=STREAM, env=Env())
        claim = Claim(stream=STREAM, writer=WRITER, first_offset=0)
        base = await ObjectStoreOffloader(scene.bucket).commit_manifest(
            STREAM, claim, base=None, committer=WRITER
        )
        prepare = Prepare(writer=WRITER, attempts=[(ATTEMPT, 0)])
        scene.manifest = base = await log.commit(prepare, base=base, committer=WRITER)
        await scene._sample_fragment()
        for start in range(0, fragments, BATCH):
            entries = list(scene._entries(start, min(BATCH, fragments - start)))
            finished = frozenset({ATTEMPT} if start + BATCH >= fragments else ())
            append = Append(writer=WRITER, entries=entries, finished=finished)
            base = await log.commit(append, base=base, committer=WRITER)
            if base.version % 128 == 0:
                await scene._drop_old_roots(base.version)
        await scene._drop_old_roots(base.version)
        scene.bucket.make = scene._make
        if fragments <= LISTED_FRAGMENTS_MAX:
            keys = [KEYS.fragment(number * RECORDS, ATTEMPT) for number in range(fragments)]
            each = max(fragments // garbage, 1) if garbage else 0
            keys += [KEYS.fragment(number * each * RECORDS, DROPPED) for number in range(garbage)]
            scene.bucket.add_made(keys)
        scene.fragments = fragments
        return scene

    fragments: int

    def fork(self) -> TallyStore:
        """Return a copy of the tier, as a new process finds it. Changes to it do not affect others."""
        return TallyStore(self.bucket.fork())

    async def make_all(self, fragments: int) -> None:
        """Make the objects of the first `fragments` now, and not when they are read."""
        for number in range(fragments):
            key = KEYS.fragment(number * RECORDS, ATTEMPT)
            data = await self._make(key)
            assert data is not None
            self.bucket.objects[key] = data

    async def _sample_fragment(self) -> None:
        writer = self._writer(0)
        data = b"".join([window async for window in writer.body().windows()])
        self._sample, self.bucket.made_size_bytes = writer.entry, len(data)

    def _writer(self, first_offset: int) -> FragmentWriter:
        assert self.manifest is not None
        ledger = Ledger(first_offset, 1)
        ledger_id = first_offset // RECORDS // FRAGMENTS_PER_LEDGER
        return FragmentWriter(
            handle=ledger,
            rows=scan(chunk(first_offset), where=ledger.where),
            attempt=Attempt(stream=STREAM, ledger_id=ledger_id, uid=ATTEMPT),
            manifest=self.manifest,
            metadata={},
            compression=Compression(),
            turns=nullcontext(),
        )

    async def _make(self, key: str) -> bytes | None:
        parsed = KEYS.parse_fragment(key)
        if parsed is None or parsed[1] != ATTEMPT:
            return None
        return b"".join([window async for window in self._writer(parsed[0]).body().windows()])

    def _entries(self, start: int, count: int) -> Iterator[Entry]:
        assert self._sample is not None
        for number in range(start, start + count):
            yield Entry(
                first_offset=number * RECORDS,
                records=RECORDS,
                messages=RECORDS,
                first_timestamp_ms=number * RECORDS,
                last_timestamp_ms=number * RECORDS,
                data_size_bytes=self._sample.data_size_bytes,
                stored_size_bytes=self._sample.stored_size_bytes,
                ledger_id=number // FRAGMENTS_PER_LEDGER,
                attempt=ATTEMPT,
                checksum=number % 2**32,
                tail_size_bytes=self._sample.tail_size_bytes,
            )

    async def _drop_old_roots(self, version: int) -> None:
        roots = [row.key async for row in self.bucket.list(KEYS.roots)]
        await self.bucket.delete([key for key in roots if key < KEYS.root(version - ROOTS_LEFT + 1)])


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
        size_bytes = sum(entry.data_size_bytes for entry in scene._entries(0, 1)) * count
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of a month of 30 days."""

    streams: int = 100
    bytes_per_second: int = 10 * 2**20
    """The rate of each stream."""
    fragment_bytes: int = 2**26
    days_kept: int = 7
    syncs_per_hour: int = 6
    """The syncs of each stream. Each claims the stream, and commits after every 8 fragments, which is about a
    broker's segment."""
    trims_per_hour: int = 1
    sweeps_per_hour: int = 1
    verifies_per_day: int = 1
    """The verifies at the level of the manifest."""
    reads: float = 1.0
    """The reads of each byte, by readers that open the tier again for every `READ_BYTES`."""

    @property
    def bytes_per_month(self) -> int:
        """The bytes that all streams produce in a month."""
        return self.streams * self.bytes_per_second * 30 * 86_400

    @property
    def fragments_per_month(self) -> float:
        """The fragments that all streams produce in a month."""
        return self.bytes_per_month / self.fragment_bytes

    @property
    def fragments_kept(self) -> float:
        """The fragments that all streams keep."""
        return self.fragments_per_month * self.days_kept / 30


def month(rows: list[Row], price: Price, work: Workload) -> dict[str, float]:
    """Return the dollars by purpose. A sweep and a verify count as equally expensive for each object."""

    def of(operation: str, times: float, *, per_fragment: bool = False) -> float:
        alike = [row for row in rows if row.operation.startswith(operation)]
        near = min(alike, key=lambda row: abs(row.fragments - work.fragments_kept / work.streams))
        return near.cost(price, times / near.fragments if per_fragment else times)

    hours = 30 * 24
    read = next(row for row in rows if "and read" in row.operation)
    read_gib = int(read.operation.split()[-2]) / 1024
    stored_gib = work.fragments_kept * work.fragment_bytes / GIB
    return {
        "store what is kept": price.of(writes=0, lists=0, reads=0, gib_months=stored_gib),
        "copy": of("copy 8 fragments", work.fragments_per_month / 8),
        "claim": of("claim", work.streams * work.syncs_per_hour * hours),
        "trim": of("trim 1,000", work.streams * work.trims_per_hour * hours),
        "sweep": of(
            "sweep, an hour later", work.fragments_kept * work.sweeps_per_hour * hours, per_fragment=True
        ),
        "verify --level manifest": of(
            "verify --level manifest", work.fragments_kept * work.verifies_per_day * 30, per_fragment=True
        ),
        "read once": read.cost(price, work.reads * work.bytes_per_month / GIB / read_gib),
    }


def _report(rows: list[Row], *, as_json: bool) -> None:
    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "processor": _processor(),
    }
    work = Workload()
    is_whole = len({row.operation.partition(",")[0] for row in rows} & {"claim", "open", "sweep"}) == 3
    months = {price.provider: month(rows, price, work) for price in PRICES} if is_whole else {}
    if as_json:
        print(
            json.dumps(
                {
                    "machine": machine,
                    "prices": [asdict(price) for price in PRICES],
                    "rows": [
                        asdict(row) | {"dollars": {price.provider: row.cost(price) for price in PRICES}}
                        for row in rows
                    ],
                    "workload": asdict(work),
                    "month": months,
                },
                indent=2,
            )
        )
        return
    print("\n".join(f"{name}: {value}" for name, value in machine.items()))
    _print_requests(rows)
    _print_costs(rows)
    if months:
        print(f"\ndollars in 30 days: {work}")
        _table(["for", *(price.provider for price in PRICES)], _month_rows(months))
    print("\nprices, to be checked on the provider's page:")
    for price in PRICES:
        print(f"{price.provider}, {price.region}: {price.known}; {price.source}")


def _print_requests(rows: list[Row]) -> None:
    heads = ["operation", "fragments", "PUT", "GET", "LIST", "LIST, Azure", "DELETE", "keys deleted"]
    heads += ["bytes up, no fragments", "bytes down", "seconds", "CPU s", "peak MiB"]
    lines = []
    for row in rows:
        tally = row.tally
        counts = (tally.writes, tally.reads, tally.lists, tally.azure_lists, tally.deletes, tally.deleted)
        bytes_moved = tally.other_bytes_up, tally.bytes_down
        peak = "" if row.peak_mib is None else f"{row.peak_mib:.1f}"
        numbers = [f"{number:,}" for number in (row.fragments, *counts, *bytes_moved)]
        lines.append([row.operation, *numbers, f"{row.seconds:.3f}", f"{row.cpu_seconds:.3f}", peak])
    print()
    _table(heads, lines)


def _print_costs(rows: list[Row]) -> None:
    print("\ndollars for a million of each operation, and for one of those that go over all objects:")
    lines = []
    for row in rows:
        times = 1 if row.peak_mib is not None or "nothing" in row.operation else 10**6
        costs = [f"{row.cost(price, times):,.4f}" for price in PRICES]
        lines.append([row.operation, f"{row.fragments:,}", f"{times:,}", *costs])
    _table(["operation", "fragments", "times", *(price.provider for price in PRICES)], lines)


def _month_rows(months: dict[str, dict[str, float]]) -> list[list[str]]:
    purposes = list(next(iter(months.values())))
    lines = [[purpose, *(f"{dollars[purpose]:,.2f}" for dollars in months.values())] for purpose in purposes]
    return [*lines, ["all", *(f"{sum(dollars.values()):,.2f}" for dollars in months.values())]]


def _table(heads: list[str], lines: list[list[str]]) -> None:
    """Print a table as Markdown, for use in a page."""
    print("| " + " | ".join(heads) + " |")
    print("|---" * len(heads) + "|")
    for line in lines:
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
