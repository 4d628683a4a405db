"""The steps of a read into Arrow: which rows are wanted, and where the reader has come to.

The consumer's thread makes batches while the event loop fetches. So a source yields stored bytes and tables,
and `runs_in` finds the records in them.

Invariants: sources come in order, each offset of the range once; an offset that is gone is an error, because
a table that lacks rows looks like one that has all of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event, Skipped
from offload.contracts.row_choice import RowChoice
from offload.formats.records import RecordRun, record_runs, runs_of_table
from offload.ground.errors import NotOffloaded
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import CommittedStream
from offload.model.position import PartOffset, Position
from offload.read.batches import Window
from offload.read.joined import place_of, reading_end
from offload.read.reader import StreamReader
from offload.read.tables import chunk_tables, count_messages
from offload.read.windows import EntriesAhead

__all__ = [
    "PartRange",
    "RangeSource",
    "count_in",
    "pieces_of_ranges",
    "ranges_between",
    "runs_in",
    "sources",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRange:
    """The offsets in [first, until) of one part of a stream, as it was committed at one moment."""

    number: int
    committed: CommittedStream
    first: int
    until: int

    def from_place(self, place: PartOffset) -> PartRange | None:
        """Return what of the range is at this place or behind it; None if nothing is."""
        if self.number < place.part:
            return None
        first = self.first if self.number > place.part else max(self.first, place.offset)
        if first >= self.until:
            return None
        return replace(self, first=first)


@dataclass(frozen=True, slots=True)
class RangeSource:
    """Stored chunks, or the table of a fragment, of one range."""

    of: PartRange
    found: Window | ChunkTable


async def ranges_between(
    catalogue: Catalogue,
    parts: Sequence[tuple[int, CommittedStream]],
    start: Position | PartOffset,
    end: Position | PartOffset,
) -> list[PartRange]:
    """Return the ranges from `start` to `end`, without `end`, in the order of reading.

    The rules for positions are those of `read.joined`. An `end` beyond the stream is its end. If `end` is
    before `start`, nothing is in the range. Raises `NotOffloaded` for a `start` beyond the end.
    """
    lost: list[Event] = []
    readers = [_reader(catalogue, number, committed, lost) for number, committed in parts]
    begin = start if isinstance(start, PartOffset) else await place_of(readers, start)
    last = readers[-1]
    stop = await reading_end(readers, begin, end) or PartOffset(last.part, last.manifest.next_offset)
    found = []
    for number, committed in parts:
        first, until = committed.first_offset, committed.next_offset
        if number == stop.part:
            until = min(until, stop.offset)
        elif number > stop.part:
            continue
        whole = PartRange(number=number, committed=committed, first=first, until=until)
        if (wanted := whole.from_place(begin)) is not None:
            found.append(wanted)
    return found


async def sources(
    catalogue: Catalogue,
    ranges: Sequence[PartRange],
    *,
    needs_chunks: bool,
    chosen: RowChoice | None = None,
) -> AsyncGenerator[RangeSource, None]:
    """Yield what the rows of these ranges are made of. Close it when done.

    With `chosen`, only the chunks that it wants, which have to be fetched.

    Raises `NotOffloaded` if offsets were trimmed since the ranges were made, and `Corrupt` at damage, after
    everything before it.
    """
    for each in ranges:
        lost: list[Event] = []
        reader = _reader(catalogue, each.number, each.committed, lost)
        if needs_chunks or chosen is not None:
            windows = reader.windows(each.first, until=each.until, rows_of=chosen)
            async with aclosing(windows):
                async for window in windows:
                    _check(lost)
                    yield RangeSource(each, window)
        else:
            async with aclosing(chunk_tables(catalogue, reader, each.first, until=each.until)) as tables:
                async for table in tables:
                    _check(lost)
                    yield RangeSource(each, table)
        _check(lost)


async def pieces_of_ranges(
    catalogue: Catalogue, ranges: Sequence[PartRange], *, size_bytes: int
) -> list[PartRange]:
    """Cut ranges behind the fragments that bring them to this size. Fetches no chunk and no table."""
    pieces: list[PartRange] = []
    for each in ranges:
        entries = EntriesAhead(catalogue.view_of(each.committed), each.first, each.until)
        first, size = each.first, 0
        try:
            while (entry := await entries.next()) is not None:
                size += entry.data_size_bytes
                if size >= size_bytes and entry.next_offset < each.until:
                    pieces.append(replace(each, first=first, until=entry.next_offset))
                    first, size = entry.next_offset, 0
        finally:
            await entries.aclose()
        pieces.append(replace(each, first=first))
    return pieces


async def count_in(catalogue: Catalogue, ranges: Sequence[PartRange]) -> int:
    """Return the number of messages in these ranges. Fetches no chunk. Raises as `sources` does."""
    counted = 0
    for each in ranges:
        lost: list[Event] = []
        reader = _reader(catalogue, each.number, each.committed, lost)
        counted += await count_messages(catalogue, reader, each.first, until=each.until)
        _check(lost)
    return counted


def runs_in(source: RangeSource, *, rows_max: int) -> Iterator[RecordRun]:
    """Yield the messages of a source that are in its range. Those of a table have no bodies."""
    found, of = source.found, source.of
    runs = (
        record_runs(found.data, found.rows, where=found.where)
        if isinstance(found, Window)
        else runs_of_table(found, rows_max=rows_max)
    )
    for run in runs:
        wanted = run.between(of.first, of.until)
        if len(wanted):
            yield wanted


def _reader(catalogue: Catalogue, number: int, committed: CommittedStream, lost: list[Event]) -> StreamReader:
    return StreamReader(catalogue, committed, part=number, emit=lost.append)


def _check(events: Sequence[Event]) -> None:
    for event in events:
        if isinstance(event, Skipped):
            raise NotOffloaded(
                f"stream {event.stream!r}: offsets [{event.from_offset}, {event.to_offset}) were trimmed "
                "while they were read; open the stream again"
            )
