"""Replay: the messages of a sorted stream whose topics some filters match, from a place in history on.

    1. look up   the ranges of each ledger, and the offsets that no sound index covers
    2. choose    the chunks whose ranges can hold a match (`key_scan`), and all chunks of unindexed offsets
    3. read      these chunks in the order of offsets, once for all filters
    4. decide    by the topic of each record. A filter is asked once for each different topic

A sorted ledger has the messages of a topic next to each other, in the order of arrival, and ledgers follow
each other as they were written. So the order of offsets has each topic in the order of publishing, and an
offset is all that an iterator must remember. There is no order between topics.

With a `ReplayOrigin`, a replay continues where the sorted ledgers end: with the messages of the source, in
the order of arrival. The iterator has the offset there as `origin`. Of ledgers that are sorted later,
messages with a smaller origin are left out.

    the iterator says           delivered was
    offset, origin              all below `offset` of the sorted stream, and all below `origin` of the source

Invariants: a chain of iterators delivers each selected message once, and each topic in order; an index that
is lost or damaged changes the cost, and no answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass

from msgspec.structs import replace

from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event, Skipped
from offload.ground.errors import Misuse, NotOffloaded, StreamDeleted
from offload.index.find import FindReport
from offload.index.ranges import PartRanges, look_up_ranges
from offload.index.terms import Spec
from offload.model.manifest import Manifest
from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position
from offload.read.reader import StreamReader
from offload_mqtt.iterators import HistoryTrimmed, ReplayIterator, ReplayUnit
from offload_mqtt.origin import OriginTrimmed, ReplayOrigin
from offload_mqtt.reading import ReplayMessage, ReplayRun, SortedReading, TopicPicker, trimmed, units_of
from offload_mqtt.selector import RANGES
from offload_mqtt.topics import TopicFilter

__all__ = ["Replay", "Replayed"]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The answer of `Replay.next`. Without messages, there is nothing now. More may come, unless `is_end`."""

    iterator: str
    messages: list[ReplayMessage]
    is_end: bool = False
    """True if the iterator is of one unit, whose ledger is complete, and has come to its end."""


class Replay:
    """Replays one stream to one consumer. It belongs to one event loop. Close it.

    `origin` is the source of the stream that was sorted, to be read on from there. Every method raises what
    reading raises: `NotOffloaded` if there is no such stream, `StreamDeleted` if it was deleted, or begun
    again since the iterator was made.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        stream: str,
        *,
        origin: ReplayOrigin | None = None,
        report: FindReport | None = None,
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """`report` counts what is read of indexes. `emit` is called with each event of reading."""
        self._catalogue, self._stream, self._origin = catalogue, stream, origin
        self._emit, self.report = emit, report or FindReport()
        self._joined_at = -1
        """The end of the sorted stream at which a ledger of the origin began."""
        self._kept: tuple[str, AsyncGenerator[ReplayRun, None], ReplayRun | None] | None = None

    async def streams(self, filters: Iterable[str], *, chunks_max: int | None = None) -> list[ReplayUnit]:
        """Return the runs of chunks that can hold matches, in the order of offsets.

        Each is of one ledger and structure, and has at most `chunks_max` chunks. Offsets that no sound index
        covers are one unit for each range of them. An iterator of a unit reads it alone.
        """
        wanted, units = [TopicFilter.parse(each) for each in filters], list[ReplayUnit]()
        async with aclosing(self._look_up(self._emit)) as lookups:
            async for part in lookups:
                units += units_of(part, wanted, chunks_max)
        return units

    async def iterator(
        self, filters: Iterable[str], since: Position = AtEdge.FIRST, *, unit: ReplayUnit | None = None
    ) -> str:
        """Return an iterator that begins at a position: at an offset of the origin, or at a time of messages.

        A message of exactly that time is included. `AtEdge.NEXT` is behind all that there is now, also at the
        origin. Raises `Misuse` for a filter that MQTT does not allow, for none, and for `AtEdge.LAST`.
        """
        texts = tuple(TopicFilter.parse(each).text for each in filters)
        is_position = isinstance(since, AtTime | AtOffset) or since in (AtEdge.FIRST, AtEdge.NEXT)
        if not texts or not is_position:
            raise Misuse(
                "a replay takes one topic filter or more, and begins at first, next, an offset or a time"
            )
        reader = await self._reader()
        at = ReplayIterator(self._stream, "", texts, 1, 0, unit=unit)
        if isinstance(since, AtTime):
            at = replace(at, since_us=since.timestamp_ms * 1000)
        if isinstance(since, AtOffset):
            at = replace(at, origin=since.offset)
        if reader is not None:
            own = None if unit is None else PartOffset(unit.part, unit.first_offset)
            at = _begun(at, reader, own or await _place_of(reader, since))
        if since is AtEdge.NEXT and self._origin is not None:
            at = replace(at, origin=max(at.offset, await self._origin.next_offset()))
        return str(at)

    async def next(self, iterator: str, most: int) -> Replayed:
        """Return at most so many messages from the place of an iterator on, and the iterator behind them.

        Raises `Misuse` for a text that is no iterator of this stream, and `HistoryTrimmed` if what follows
        its place was trimmed. After an error, the same iterator may be used again.
        """
        if most < 1:
            raise Misuse(f"most={most}: ask for one message or more")
        at, messages = self._parsed(iterator), list[ReplayMessage]()
        runs, left = await self._resumed(iterator, at)
        try:
            while len(messages) < most:
                run = left if left is not None else await anext(runs, None)
                left = None
                if run is None:
                    await runs.aclose()
                    is_end = not messages and at.unit is not None and await self._is_complete(at.unit)
                    return Replayed(str(at), messages, is_end)
                taken = run.rows(0, most - len(messages))
                messages += taken.messages()
                at = taken.at
                if len(taken) < len(run):
                    left = run.rows(len(taken), len(run))
        except BaseException as error:
            await runs.aclose()
            if isinstance(error, HistoryTrimmed) and messages:  # its iterator is behind these
                return Replayed(str(at), messages)
            raise
        self._kept = str(at), runs, left
        return Replayed(str(at), messages)

    def move(self, iterator: str, behind: ReplayMessage) -> str:
        """Return the iterator moved right behind a message that it, or one before it, has returned."""
        at = self._parsed(iterator)
        if behind.is_live:
            return str(replace(at, part=behind.part, origin=behind.offset + 1))
        return str(replace(at, part=behind.part, offset=behind.offset + 1))

    async def aclose(self) -> None:
        """Cancel the requests in flight. Idempotent."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept[1].aclose()

    async def runs(self, iterator: str) -> AsyncGenerator[ReplayRun, None]:
        """Yield the messages from the place of an iterator to the newest, in runs. Close the generator.

        Some runs are empty. The place of the last one is where another call continues. Bodies are valid as
        those of `StreamReader.runs`. Raises as `next` does.
        """
        at = self._parsed(iterator)
        pick = TopicPicker(at.parsed(), at.since_us)
        while True:
            begun = at
            async with aclosing(self._history(at, pick)) as history:
                async for run in history:
                    yield run
                    at = run.at
            is_joined = at.offset == self._joined_at or at.incarnation == ""
            if self._origin is None or at.unit is not None or not is_joined:
                return
            at = replace(at, origin=max(at.origin, at.offset))
            try:
                async with aclosing(self._origin.runs(at.origin)) as live:
                    async for found in live:
                        at = replace(at, origin=int(found.offsets[-1]) + 1)
                        yield pick.of(found, at)
                return
            except OriginTrimmed as gone:
                # Its ledgers were sealed and deleted meanwhile, so they are sorted, or lost.
                if at.origin == begun.origin and at.offset == begun.offset:
                    later = str(replace(at, origin=gone.first_offset))
                    lost = (
                        f"offsets [{at.origin}, {gone.first_offset}) are neither sorted nor at their source"
                    )
                    raise HistoryTrimmed(f"stream {self._stream!r}: {lost}", later) from gone

    async def _history(self, at: ReplayIterator, pick: TopicPicker) -> AsyncGenerator[ReplayRun, None]:
        """Yield what is selected of the sorted stream, from the place of an iterator on."""
        skips = list[Skipped]()
        emit = self._emit

        def told(event: Event) -> None:
            if isinstance(event, Skipped) and event.part is None:
                skips.append(event)
            else:
                emit(event)

        async with aclosing(self._look_up(told)) as lookups:
            parts = [part async for part in lookups]
        for part in parts:
            number = part.reader.part
            if number < at.part or (at.unit is not None and number != at.unit.part):
                continue
            end = part.reader.manifest.next_offset if part is not parts[-1] else await self._whole_end(part)
            is_whole = self._origin is not None and part is parts[-1]
            at = await _entered(at, part, end, is_whole=is_whole)
            async with aclosing(SortedReading(part, at, pick, skips, end).runs()) as runs:
                async for run in runs:
                    yield run
                    at = run.at

    async def _whole_end(self, part: PartRanges) -> int:
        """Return how far a replay reads of the newest part: with an origin, to the end of a whole ledger.

        A copy that was killed may have left the beginning of a ledger.
        """
        committed = part.reader.manifest
        end = committed.next_offset
        if self._origin is None or end == self._joined_at or await self._origin.begins_ledger(end):
            self._joined_at = end
            return end
        assert isinstance(committed, Manifest), "a stream that is sorted is on a tier that takes commits"
        return max(committed.last_ledger_id, committed.first_offset)

    async def _look_up(self, emit: Callable[[Event], None]) -> AsyncGenerator[PartRanges, None]:
        """Yield the parts of the stream. None if it is not on the tier yet, and there is an origin."""
        try:
            lookups = look_up_ranges(
                self._catalogue, self._stream, by=Spec.parse(RANGES), report=self.report, emit=emit
            )
            async with aclosing(lookups):
                async for part in lookups:
                    yield part
        except StreamDeleted:
            raise
        except NotOffloaded:
            if self._origin is None:
                raise

    async def _reader(self) -> StreamReader | None:
        try:
            return await StreamReader.open(self._catalogue, self._stream, emit=self._emit)
        except StreamDeleted:
            raise
        except NotOffloaded:
            if self._origin is None:
                raise
            return None

    async def _is_complete(self, unit: ReplayUnit) -> bool:
        """Return whether another ledger follows that of a unit: then it grows no more."""
        reader = await self._reader()
        if reader is None:
            return False
        last = reader.parts[-1]
        return unit.part < last.part or unit.ledger_end < last.manifest.next_offset

    def _parsed(self, iterator: str) -> ReplayIterator:
        at = ReplayIterator.parse(iterator)
        if at.stream != self._stream:
            raise Misuse(f"the iterator is of stream {at.stream!r}, and this is a replay of {self._stream!r}")
        return at

    async def _resumed(
        self, iterator: str, at: ReplayIterator
    ) -> tuple[AsyncGenerator[ReplayRun, None], ReplayRun | None]:
        """Return the reading that goes on at an iterator: the one that has stopped there, or a new one."""
        kept, self._kept = self._kept, None
        if kept is not None and kept[0] == iterator:
            return kept[1:]
        if kept is not None:
            await kept[1].aclose()
        return self.runs(str(at)), None


async def _entered(at: ReplayIterator, part: PartRanges, end: int, *, is_whole: bool) -> ReplayIterator:
    """Return the place at which an iterator continues in a part, its own or a later one. Checks it.

    `is_whole` says that a ledger ends at `end`.
    """
    manifest = part.reader.manifest
    first, incarnation = manifest.first_offset, manifest.incarnation.hex
    if part.reader.part > at.part:
        return replace(at, part=part.reader.part, incarnation=incarnation, offset=first, origin=0)
    if at.incarnation not in ("", incarnation):
        raise StreamDeleted(f"stream {at.stream!r} was deleted and begun again since the iterator was made")
    at = replace(at, incarnation=incarnation)
    if at.offset > manifest.next_offset:
        raise Misuse(
            f"the iterator is at offset {at.offset} of {at.stream!r}, which ends at {manifest.next_offset}"
        )
    if at.origin > at.offset:
        if at.origin >= end and is_whole:  # all that is sorted was delivered when it was not sorted yet
            begin = end
        else:
            begin = await _ledger_of(part, min(at.origin, end - 1))
        at = replace(at, offset=max(at.offset, begin))
    if at.offset < first:
        raise trimmed(at, first)
    return at


async def _ledger_of(part: PartRanges, offset: int) -> int:
    """Return where the ledger begins that holds an offset. What is before it has smaller origins.

    The manifest says so, and indexes do not: a ledger that was committed in pieces was perhaps indexed so.
    """
    entry = await part.reader.entry_at(offset) if offset >= part.reader.manifest.first_offset else None
    return 0 if entry is None else min(entry.ledger_id, offset)


def _begun(at: ReplayIterator, reader: StreamReader, place: PartOffset) -> ReplayIterator:
    part = next((each for each in reader.parts if each.part == place.part), reader.parts[-1])
    return replace(at, part=part.part, offset=place.offset, incarnation=part.manifest.incarnation.hex)


async def _place_of(reader: StreamReader, since: Position) -> PartOffset:
    """Return the place from which on the messages of a position can be."""
    if isinstance(since, AtOffset):  # the ledger that holds the offset has it anywhere
        holding = (each for each in reader.parts if each.manifest.next_offset > since.offset)
        part = next(holding, reader.parts[-1])
        return PartOffset(part.part, part.manifest.first_offset)
    return await reader.place_of(since)
