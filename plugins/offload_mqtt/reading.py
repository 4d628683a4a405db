"""Reading one part of a sorted stream for a replay: the chunks that can hold matches, and their records.

A chunk is read if a sound index says that its range of keys can hold a match, or if no sound index covers it.
Then the topic of each record decides, so the answer does not depend on the index.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from offload.contracts.events import Skipped
from offload.formats.chunk import headers_at
from offload.formats.records import RecordRun, record_runs
from offload.ground.errors import Corrupt
from offload.index.find import OffsetChoice, of_rows
from offload.index.ranges import PartRanges
from offload.index.selection import neighbours, wanted_ranges
from offload.model.record_columns import RecordBytes
from offload.read.batches import Window
from offload_mqtt.iterators import HistoryTrimmed, ReplayIterator, ReplayUnit
from offload_mqtt.key_scan import of_filters
from offload_mqtt.selector import TopicSelector
from offload_mqtt.structure import decode_structures
from offload_mqtt.topic_record import TopicRecords, columns_of
from offload_mqtt.topics import TopicFilter

__all__ = ["ReplayMessage", "ReplayRun", "SortedReading", "TopicPicker", "units_of"]

_NONE: Final = np.zeros(0, np.int64)
NO_RECORDS: Final = RecordRun(np.zeros(0, np.uint64), _NONE, _NONE, _NONE, b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayMessage:
    """A message: where it is, and what it says."""

    part: int
    offset: int
    origin: int
    """Its offset in the stream that was sorted. It counts in the order of arrival."""
    time_us: int
    topic: bytes
    kind: int
    """1: `rest` is an AMQP message. 2: `rest` is the payload of an MQTT message."""
    rest: bytes
    is_live: bool = False


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """Selected messages in order, as topic records. It may be empty: then only the place is new."""

    at: ReplayIterator
    """The place behind them."""
    run: RecordRun
    """Offsets are those of the sorted stream, or those of the origin if `is_live`."""
    ledger: int = -1
    """The first offset of the ledger that they are of. -1 of the origin's."""
    before: ReplayIterator | None = None
    """The place before all of them, if they are not in the order of their offsets."""

    @property
    def is_live(self) -> bool:
        """True if they come from the origin, and were not sorted when they were read."""
        return self.ledger < 0

    def __len__(self) -> int:
        return len(self.run)

    @property
    def columns(self) -> TopicRecords:
        """The fields of the records."""
        return columns_of(_bytes(self.run))

    def rows(self, first: int, stop: int) -> ReplayRun:
        """Return some of the messages, with the place behind the last of them."""
        at = self.at
        if stop < len(self) and self.before is not None:
            at = self.before
        elif stop < len(self):
            following = int(self.run.offsets[stop - 1]) + 1
            at = replace(at, origin=following) if self.is_live else replace(at, offset=following)
        return ReplayRun(at, self.run.rows(first, stop), self.ledger, self.before)

    def messages(self) -> Iterator[ReplayMessage]:
        """Yield the messages one by one, with copies of their bytes."""
        found = self.columns
        origins = self.run.offsets if self.is_live else found.origins
        for row, topic in enumerate(found.topics):
            yield ReplayMessage(
                part=self.at.part,
                offset=int(self.run.offsets[row]),
                origin=int(origins[row]),
                time_us=int(found.times_us[row]),
                topic=topic,
                kind=int(found.kinds[row]),
                rest=found.rests.at(row),
                is_live=self.is_live,
            )


class TopicPicker:
    """Selects records by topic and time."""

    def __init__(self, filters: Sequence[TopicFilter], since_us: int) -> None:
        self.selector, self.since_us = TopicSelector(filters), since_us

    def picked(self, found: TopicRecords) -> npt.NDArray[np.bool_]:
        """Return which records are selected."""
        return self.selector.picked(found.topics) & (found.kinds > 0) & (found.times_us >= self.since_us)

    def of(self, run: RecordRun, at: ReplayIterator) -> ReplayRun:
        """Return what is selected of a run of the origin, with the place behind it."""
        found = columns_of(_bytes(run))
        rows = np.flatnonzero(self.picked(found))
        return ReplayRun(at, of_rows(run, rows))


@dataclass(slots=True)
class SortedReading:
    """The reading of one part from the place of an iterator on, which is in this part."""

    part: PartRanges
    at: ReplayIterator
    pick: TopicPicker
    skips: list[Skipped]
    """What the part's reader has reported as trimmed while it read."""
    end: int
    """Nothing is read from here on."""
    ledger: int = 0
    """The ledger of the records that were read last: the epoch of their chunks."""

    async def runs(self) -> AsyncGenerator[ReplayRun, None]:
        """Yield what is selected. The last run is behind all that was read, and is empty.

        Raises `HistoryTrimmed` if a wanted offset was trimmed.
        """
        unit, end = self.at.unit, self.end
        if unit is None:
            async with aclosing(self._read(self.at.offset, end)) as runs:
                async for run in runs:
                    yield self._selected(run, columns_of(_bytes(run)))
        else:
            end = unit.ledger_end
            if self.at.offset < end:
                async with aclosing(self._unit(unit)) as picked:
                    async for each in picked:
                        yield each
        self.at = replace(self.at, offset=max(end, self.at.offset))
        yield ReplayRun(self.at, NO_RECORDS, self.ledger)

    async def _unit(self, unit: ReplayUnit) -> AsyncGenerator[ReplayRun, None]:
        """Yield the messages of a unit: without a topic that began before it, with the rest of its last."""
        earlier = await self._topic_at(unit.first_offset - 1) if unit.first_offset > unit.ledger else b""
        # Where that topic ends is seen only from the first offset on, also if the iterator is behind it.
        is_earlier = self.pick.selector.wants(earlier)
        begin = unit.first_offset if is_earlier else self.at.offset
        async with aclosing(self._read(begin, unit.next_offset)) as runs:
            async for run in runs:
                found = columns_of(_bytes(run))
                rows = _leading(found, earlier) if is_earlier else 0
                is_earlier = is_earlier and rows == len(run)
                begun = max(rows, int(np.searchsorted(run.offsets, np.uint64(self.at.offset))))
                yield self._selected(run, found, first=begun)
        if is_earlier:
            return
        last = await self._topic_at(unit.next_offset - 1)
        if not self.pick.selector.wants(last):
            return
        begin = max(unit.next_offset, self.at.offset)
        async with aclosing(self._stretch(begin, unit.ledger_end)) as runs:
            async for run in runs:
                found = columns_of(_bytes(run))
                rows = _leading(found, last)
                yield self._selected(run, found, stop=rows)
                if rows < len(run):
                    return

    async def _topic_at(self, offset: int) -> bytes:
        async with aclosing(self._stretch(offset, offset + 1)) as runs:
            async for run in runs:
                return columns_of(_bytes(run)).topics[0]
        return b""

    async def _read(self, begin: int, end: int) -> AsyncGenerator[RecordRun, None]:
        """Yield the records between two offsets that may be selected, in order."""
        ranges = _clipped(wanted_ranges(self.part, self.pick.selector), begin, end)
        choice = OffsetChoice(np.zeros(0, np.uint64), ranges)
        for first, stop in choice.stretches():
            async with aclosing(self._stretch(first, stop, choice, ranges)) as runs:
                async for run in runs:
                    yield run

    async def _stretch(
        self, begin: int, end: int, choice: OffsetChoice | None = None, ranges: Sequence[range] = ()
    ) -> AsyncGenerator[RecordRun, None]:
        """Yield the records of the chunks that a choice wants. Without one, of all chunks."""
        ranges = ranges or [range(begin, end)]
        async with aclosing(self.part.reader.windows(begin, until=end, rows_of=choice)) as windows:
            async for window in windows:
                self._check_skips(ranges)
                for piece, self.ledger in _by_ledger(window):
                    for whole in record_runs(piece.data, piece.rows, where=piece.where):
                        run = whole.between(begin, end)
                        if len(run):
                            yield run
        self._check_skips(ranges)

    def _check_skips(self, ranges: Sequence[range]) -> None:
        for skip in self.skips:
            if _clipped(ranges, skip.from_offset, skip.to_offset):
                raise trimmed(self.at, skip.to_offset)
        self.skips.clear()

    def _selected(
        self, run: RecordRun, found: TopicRecords, first: int = 0, stop: int | None = None
    ) -> ReplayRun:
        is_picked = self.pick.picked(found)
        is_picked &= found.origins >= self.at.origin
        rows = np.flatnonzero(is_picked[first:stop]) + first
        self.at = replace(self.at, offset=max(self.at.offset, int(run.offsets[-1]) + 1))
        return ReplayRun(self.at, of_rows(run, rows), self.ledger)


def trimmed(at: ReplayIterator, first_offset: int) -> HistoryTrimmed:
    """Return the error of an iterator whose messages were trimmed up to an offset of its part."""
    text = (
        f"stream {at.stream!r}: what follows offset {at.offset} was trimmed; history begins at {first_offset}"
    )
    return HistoryTrimmed(text, str(replace(at, offset=first_offset)))


def units_of(part: PartRanges, filters: Sequence[TopicFilter], chunks_max: int | None) -> list[ReplayUnit]:
    """Return the units of a part, in the order of their offsets."""
    number = part.reader.part
    units = [ReplayUnit(number, each.start, each.stop, 0, each.start, each.stop) for each in part.to_scan]
    for ledger in part.ledgers:
        edges = [*ledger.offsets.tolist(), ledger.next_offset]
        end = 0
        try:
            found = of_filters(ledger.keys, decode_structures(ledger.about), filters)
        except Corrupt:  # somebody else's index, as in `wanted_ranges`
            found = {0: [*range(len(ledger.offsets))]}
        for structure, chunks in found.items():
            # The first chunk of a structure may be the last one of the structure before: it is in one unit.
            for run in neighbours([each for each in chunks if each >= end], chunks_max):
                bounds = edges[run[0]], edges[run[-1] + 1]
                units.append(ReplayUnit(number, ledger.first_offset, ledger.next_offset, structure, *bounds))
                end = run[-1] + 1
    return sorted(units, key=lambda each: each.first_offset)


def _clipped(ranges: Sequence[range], begin: int, end: int) -> list[range]:
    """Return what of these ranges is between two offsets."""
    clipped = (range(max(each.start, begin), min(each.stop, end)) for each in ranges)
    return [each for each in clipped if each]


def _leading(found: TopicRecords, topic: bytes) -> int:
    """Return how many records have this topic before the first that has another."""
    return next((row for row, each in enumerate(found.topics) if each != topic), len(found.kinds))


def _by_ledger(window: Window) -> Iterator[tuple[Window, int]]:
    """Yield the chunks of a window, cut where a ledger ends, with the ledger of each piece."""
    epochs = headers_at(window.data, window.rows["position"] - window.rows["position"][0])["epoch"]
    cuts = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(epochs)]
    for first, stop in pairwise(cuts):
        yield window.cut(slice(first, stop)), int(epochs[first])


def _bytes(run: RecordRun) -> RecordBytes:
    return RecordBytes(np.frombuffer(run.data, np.uint8), run.starts, run.sizes)
