"""Finding the records with a term: candidates from index objects, and a scan of what no object covers.

    1. list      the index objects of each part of the stream
    2. load      the newest root of each part, and choose the objects that count by it (`index.rules`)
    3. look up   the terms: the directory entries of their buckets, then the rows of these buckets
    4. read      the records at the offsets that were found, and all records that no sound object covers,
                 through a view, and compare their terms with the wanted ones

Invariants: a record is returned only if it has a wanted term by itself, so an index that lies costs requests
and returns nothing false. A record is left out only if a sound object covers it and does not name it. What a
damaged object covers is scanned, and one that is gone is listed again, because a merge may have replaced it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from offload.contracts.catalogue import Catalogue
from offload.contracts.decoder import Decoder
from offload.contracts.events import Event
from offload.contracts.row_choice import RowChoice, Wanted
from offload.contracts.store import ObjectStore
from offload.formats.index_object import HASH_BITS, Hashes
from offload.formats.keys import IndexName
from offload.formats.records import RecordRun
from offload.formats.rows import ValuePool, column_of
from offload.ground.errors import Corrupt, Misuse, NotFound, TryAgain
from offload.ground.tasks import run_each
from offload.index.build import index_folder_of, term_hashes
from offload.index.objects import IndexObject, IndexReads, list_indexes
from offload.index.rules import judged, uncovered
from offload.index.terms import Spec
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry
from offload.model.position import AtEdge, PartOffset, Position
from offload.model.record_columns import ByteColumn, RecordBytes
from offload.native.layout_check import native_or_none
from offload.parts.whole_stream import WholeStream
from offload.read.joined import reading_end
from offload.read.reader import StreamReader, warn_of_skips

__all__ = [
    "FindReport",
    "FoundRun",
    "OffsetChoice",
    "PartIndexes",
    "PartLookup",
    "find",
    "look_up",
    "of_rows",
    "part_indexes",
    "with_terms",
]

LOOKUPS_AT_ONCE: Final = 16
LISTS_MAX: Final = 8
ENTRIES_BETWEEN: Final = 512
"""Directory entries that are read between two wanted ones, to save a request: 8 KiB."""
BUCKETS_BETWEEN: Final = 4
OFFSETS_BETWEEN: Final = 2**20
"""Two places so far apart are read apart: the entries of all fragments between them would be walked."""

_Places = npt.NDArray[np.uint64]
T = TypeVar("T")


@dataclass(slots=True)
class FindReport(IndexReads):
    """What a find has read, and what it has left out."""

    records: int = 0
    """Records at the places that indexes named."""
    scanned: int = 0
    """Records that were read because no sound index covers them."""
    terms: int = 0
    """Terms of the records that were read, wanted or not."""
    damages: list[Corrupt] = field(default_factory=list)
    """The damage of index objects. What they cover was scanned."""
    left_out: list[tuple[str, range]] = field(default_factory=list)
    """With `indexed_only`: the offsets that no sound index covers, with the name of their part."""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """Records with a wanted term, in order, with a copy of their bytes."""

    stream: str
    """The name of the part that holds them."""
    part: int
    run: RecordRun


@dataclass(frozen=True, slots=True)
class PartLookup:
    """Where the wanted records of one part can be. Offsets below its end, and none below its first offset."""

    reader: StreamReader
    offsets: _Places
    """Where indexes say that a wanted term is, in order, each once."""
    to_scan: Sequence[range]
    """The offsets that no sound index covers, in order."""


async def find(
    catalogue: Catalogue,
    stream: str,
    terms: Sequence[bytes],
    *,
    by: Spec,
    decoder: Decoder,
    start: Position | PartOffset = AtEdge.FIRST,
    until: Position | PartOffset | None = None,
    indexed_only: bool = False,
    report: FindReport | None = None,
    emit: Callable[[Event], None] = warn_of_skips,
) -> AsyncGenerator[FoundRun, None]:
    """Yield the records of a stream, in all of its parts, that have one of these terms. Close the generator.

    Reads from `start` up to where `until` is met first, as `read.joined` says. With `indexed_only`, nothing
    is scanned, and `report` says what was left out. Damage of an index is in `report`, and is no error.

    Raises what reading raises, and `Misuse` for an empty term, for no term, and if the decoder lacks a
    section of the SPEC.
    """
    report = FindReport() if report is None else report
    wanted = frozenset(terms)
    if not wanted or b"" in wanted:
        raise Misuse("a find takes one term or more, and none is empty: an empty value has no term")
    by.terms(decoder, RecordBytes.of([]))
    lookups = look_up(catalogue, stream, terms, by=by, start=start, until=until, report=report, emit=emit)
    async with aclosing(lookups):
        async for each in lookups:
            name = each.reader.manifest.stream
            if indexed_only:
                report.left_out += [(name, offsets) for offsets in each.to_scan]
            reading = _read(each, [] if indexed_only else each.to_scan, report)
            async with aclosing(reading):
                async for run in reading:
                    found = with_terms(run, wanted, by, decoder, report)
                    if len(found):
                        yield FoundRun(name, each.reader.part, found)


async def look_up(
    catalogue: Catalogue,
    stream: str,
    terms: Sequence[bytes],
    *,
    by: Spec,
    start: Position | PartOffset = AtEdge.FIRST,
    until: Position | PartOffset | None = None,
    report: FindReport | None = None,
    emit: Callable[[Event], None] = warn_of_skips,
) -> AsyncGenerator[PartLookup, None]:
    """Yield where the records with these terms can be, for each part of a stream, in order of parts.

    Reads indexes and no record. A tier of another layout has no indexes: all of it is to be scanned.
    """
    report = FindReport() if report is None else report
    if by.is_of_ranges:
        raise Misuse(f"{by} is the SPEC of an index of ranges, which finds no terms")
    hashes = np.unique(term_hashes(ByteColumn.of([*terms])))
    indexes = await part_indexes(catalogue, stream, by=by, report=report, emit=emit)
    readers = [each.reader for each in indexes]
    begin = start if isinstance(start, PartOffset) else await readers[0].place_of(start)
    readers = [each for each in readers if each.part >= begin.part]
    end = None if until is None else await reading_end(readers, begin, until)
    for part in indexes:
        reader = part.reader
        if reader.part < begin.part or (end is not None and reader.part > end.part):
            continue
        first = max(begin.offset if reader.part == begin.part else 0, reader.manifest.first_offset)
        next_offset = reader.manifest.next_offset
        if end is not None and reader.part == end.part:
            next_offset = min(next_offset, end.offset)
        if first >= next_offset:
            continue
        lookup = _Lookup(hashes, range(first, next_offset))
        yield await part.ask(lookup.looked_up)


@dataclass(slots=True)
class PartIndexes:
    """The index objects of one part of a stream, by a listing, and a reader that was loaded after it."""

    catalogue: Catalogue
    reader: StreamReader
    store: ObjectStore | None
    """None for a tier of another layout, which has no indexes."""
    folder: str
    listed: Sequence[IndexObject]
    report: FindReport

    def used(self, offsets: range) -> list[IndexObject]:
        """Return the objects that count, and that have some of these offsets. Counts them in the report."""
        objects = {each.name: each for each in self.listed}
        names = judged(objects, self.reader.manifest).used
        used = [objects[name] for name in names if name.first_offset < offsets.stop]
        used = [one for one in used if one.name.next_offset > offsets.start]
        self.report.objects += len(used)
        return used

    async def ask(self, ask: Callable[[PartIndexes], Awaitable[T]]) -> T:
        """Return the answer. If an object is gone, list and load the root again, and ask again."""
        for _ in range(LISTS_MAX):
            try:
                return await ask(self)
            except NotFound:  # a merge, a trim or a sweep came between
                assert self.store is not None, "nothing was listed"
                reader = self.reader
                name = reader.manifest.stream
                self.listed = await list_indexes(self.store, name, self.folder, self.report)
                newest = await self.catalogue.newer_view(reader.manifest)
                if newest is not None:
                    self.reader = StreamReader(
                        self.catalogue, newest.committed, part=reader.part, emit=reader.emit
                    )
        name = self.reader.manifest.stream
        raise TryAgain(f"stream {name!r}: its indexes change faster than they can be read; run again")


async def part_indexes(
    catalogue: Catalogue, stream: str, *, by: Spec, report: FindReport, emit: Callable[[Event], None]
) -> list[PartIndexes]:
    """Return the index objects of each part of a stream, in order of parts, and a reader of it."""
    tier, listed = native_or_none(catalogue), dict[str, list[IndexObject]]()
    if tier is not None:
        await tier.open()
        for name in await WholeStream(catalogue, stream).names():
            listed[name] = await list_indexes(tier.store, name, index_folder_of(name, by), report)
    # After the indexes were listed: a root that is older than an index would not know whether it counts.
    whole, found = await StreamReader.open(catalogue, stream, emit=emit), list[PartIndexes]()
    for reader in whole.parts:
        name = reader.manifest.stream
        folder, store = index_folder_of(name, by), None if tier is None else tier.store
        found.append(PartIndexes(catalogue, reader, store, folder, listed.get(name, []), report))
    return found


@dataclass(frozen=True, slots=True)
class _Lookup:
    """The lookup of hashes in the indexes of one part."""

    hashes: Hashes
    offsets: range

    async def looked_up(self, part: PartIndexes) -> PartLookup:
        begin = max(self.offsets.start, part.reader.manifest.first_offset)
        used = part.used(range(begin, self.offsets.stop))
        found, damages = [np.zeros(0, np.uint64)], dict[IndexName, Corrupt]()

        async def ask(one: IndexObject) -> None:
            try:
                offsets = await _offsets_in(one, self.hashes)
            except Corrupt as damage:
                damages[one.name] = damage
            else:
                found.append(offsets.astype(np.uint64) + np.uint64(one.name.first_offset))

        await run_each(ask, used, at_once=LOOKUPS_AT_ONCE)
        part.report.damages += damages.values()
        places, sure = np.unique(np.concatenate(found)), [one.name for one in used if one.name not in damages]
        return PartLookup(
            part.reader,
            places[(places >= begin) & (places < self.offsets.stop)],
            uncovered(sure, begin, self.offsets.stop),
        )


async def _offsets_in(one: IndexObject, hashes: Hashes) -> npt.NDArray[np.uint32]:
    """Return the offsets that an object has for these hashes."""
    shape = one.shape
    wanted = np.unique(hashes >> np.uint64(HASH_BITS - shape.bits)).astype(np.int64)
    found = [np.zeros(0, np.uint32)]
    for first, stop in _runs(wanted, between=ENTRIES_BETWEEN):
        directory = await one.directory(first, stop)
        here = wanted[(wanted >= first) & (wanted < stop)] - first
        for begin, end in _runs(here, between=BUCKETS_BETWEEN):
            async with aclosing(one.rows(directory.between(begin, end), first + begin)) as pieces:
                async for stored, offsets in pieces:
                    found.append(offsets[np.isin(stored, hashes)])
    return np.concatenate(found)


def _runs(numbers: npt.NDArray[np.int64], *, between: int) -> Iterator[tuple[int, int]]:
    """Yield ascending numbers as runs [first, stop) that have gaps of at most `between`."""
    cuts = np.flatnonzero(np.diff(numbers) > between) + 1
    for run in np.split(numbers, cuts):
        yield int(run[0]), int(run[-1]) + 1


async def _read(
    lookup: PartLookup, to_scan: Sequence[range], report: FindReport
) -> AsyncGenerator[RecordRun, None]:
    """Yield the records of a lookup, in order."""
    choice = OffsetChoice(lookup.offsets, to_scan)
    for begin, end in choice.stretches():
        async with aclosing(lookup.reader.runs_here(begin, until=end, rows_of=choice)) as runs:
            async for each in runs:
                run = each.run.between(begin, end)
                is_scanned = choice.are_scanned(run.offsets)
                kept = np.flatnonzero(is_scanned | choice.are_named(run.offsets))
                report.scanned += int(is_scanned.sum())
                report.records += len(kept) - int(is_scanned.sum())
                if len(kept):
                    yield of_rows(run, kept)


def with_terms(
    run: RecordRun, wanted: frozenset[bytes], by: Spec, decoder: Decoder, report: FindReport | None = None
) -> RecordRun:
    """Return the records of a run that have a wanted term. `report` counts all terms."""
    found = by.terms(decoder, RecordBytes(np.frombuffer(run.data, np.uint8), run.starts, run.sizes))
    if report is not None:
        report.terms += len(found.values)
    has = np.fromiter((term in wanted for term in found.values.to_list()), np.bool_, len(found.values))
    kept = of_rows(run, np.unique(found.rows[has]).astype(np.int64))
    # Copied: a consumer may collect many, and each would hold a window of 8 MiB.
    pool = ValuePool(np.frombuffer(kept.data, np.uint8), kept.starts, kept.sizes)
    bodies = column_of([pool], len(kept))
    return RecordRun(kept.offsets, kept.timestamps_ms, bodies.offsets[:-1], kept.sizes, bodies.data.data)


def of_rows(run: RecordRun, rows: npt.NDArray[np.int64]) -> RecordRun:
    """Return these records of a run. Copies no bytes."""
    return RecordRun(run.offsets[rows], run.timestamps_ms[rows], run.starts[rows], run.sizes[rows], run.data)


class OffsetChoice(RowChoice):
    """The chunks with one of some offsets, or with an offset of some ranges. Both ascend."""

    def __init__(self, offsets: _Places, ranges: Sequence[range]) -> None:
        self._offsets = offsets
        self._starts = np.array([each.start for each in ranges], np.uint64)
        self._stops = np.array([each.stop for each in ranges], np.uint64)

    def stretches(self) -> Iterator[tuple[int, int]]:
        """Yield the runs of offsets that are read in one go, in order."""
        starts = np.concatenate([self._offsets, self._starts])
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        # Ranges and the offsets of sound objects may touch and overlap: the furthest end so far counts.
        stops = np.maximum.accumulate(np.concatenate([self._offsets + np.uint64(1), self._stops])[order])
        if not len(starts):
            return
        cuts = np.flatnonzero(starts[1:] > stops[:-1] + np.uint64(OFFSETS_BETWEEN)) + 1
        for first, last in zip([0, *cuts], [*cuts, len(starts)], strict=True):
            yield int(starts[first]), int(stops[last - 1])

    def are_scanned(self, offsets: _Places) -> npt.NDArray[np.bool_]:
        """Return which offsets are in a range."""
        return self.overlap(offsets, offsets + np.uint64(1))

    def are_named(self, offsets: _Places) -> npt.NDArray[np.bool_]:
        """Return which offsets are among those of the choice."""
        return np.isin(offsets, self._offsets, assume_unique=True)

    async def of_entries(self, entries: Entries) -> npt.NDArray[np.uint8]:
        """Let the chunk table decide about each fragment with a wanted offset."""
        firsts = entries["first_offset"].astype(np.uint64)
        return np.where(self._wants(firsts, firsts + entries["records"]), Wanted.SOME, Wanted.NONE).astype(
            np.uint8
        )

    async def of_rows(self, entry: Entry, rows: ChunkTable) -> npt.NDArray[np.bool_]:
        """Want the chunks with a wanted offset."""
        firsts = rows["offset"].astype(np.uint64)
        return self._wants(firsts, firsts + rows["records"])

    def _wants(self, firsts: _Places, nexts: _Places) -> npt.NDArray[np.bool_]:
        named = np.searchsorted(self._offsets, nexts) > np.searchsorted(self._offsets, firsts)
        return named | self.overlap(firsts, nexts)

    def overlap(self, firsts: _Places, nexts: _Places) -> npt.NDArray[np.bool_]:
        """Return which runs of offsets overlap a range."""
        begun = np.searchsorted(self._starts, nexts)
        ended = np.searchsorted(self._stops, firsts, side="right")
        return begun > ended
