"""The position of a streaming query, and the end of its next micro-batch. Runs without Spark.

Spark keeps a `Mark` in its checkpoint: for each stream, its incarnation and the first offset that is not read
yet. Each part of a stream has a place of its own in it, under the part's name. A part that is begun while the
query runs is read from its first offset. Invariants:

- Two marks alone determine the records of a micro-batch. So a batch that is planned again, in another
  process, has the same records. That is why a sink that takes a repeated batch once has each record once.
- No offset is skipped silently. Records that were trimmed before they were read, and a deleted stream, are
  errors, unless the user asked to continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from offload.contracts.catalogue import Catalogue
from offload.ground.errors import Misuse, NotOffloaded, UnsupportedFormat
from offload.model.entry import entries_of_rows
from offload.model.manifest import CommittedStream
from offload.model.position import PartOffset
from offload.read.reader import StreamReader
from offload_spark.bounds import ScanBounds
from offload_spark.known import KnownStreams
from offload_spark.options import ReadOptions
from offload_spark.planning import (
    ChosenStream,
    PlannedPart,
    PlannedPiece,
    each_of,
    partitions_of,
    pieces_of,
)

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress:
    """The position of a query in one stream."""

    incarnation: UUID
    offset: int
    """The first offset that is not read yet."""

    begin: int
    """The offset at which the query began to read this incarnation.

    A batch may begin with a mark that does not have the stream, or has an earlier incarnation. Then the batch
    begins here.
    """

    stream: str
    """The name of the stream in its rows."""

    part: int
    """The number of the part."""

    def as_json(self) -> dict[str, Any]:
        """Return the place in the form of Spark's checkpoint. A first part has no more than ever."""
        place = {"incarnation": str(self.incarnation), "offset": self.offset, "begin": self.begin}
        return place if self.part == 1 else {**place, "of": self.stream, "part": self.part}

    @classmethod
    def of_json(cls, stream: str, at: Mapping[str, Any]) -> QueryProgress:
        """Undo `as_json`."""
        return cls(
            incarnation=UUID(at["incarnation"]),
            offset=int(at["offset"]),
            begin=int(at["begin"]),
            stream=at.get("of", stream),
            part=int(at["part"]) if "of" in at else 1,
        )


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of a query in each of its streams."""

    places: Mapping[str, QueryProgress] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the mark in the form of Spark's checkpoint."""
        return {
            "version": VERSION,
            "streams": {stream: at.as_json() for stream, at in self.places.items()},
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Mark:
        """Read a mark from a checkpoint.

        Raises `UnsupportedFormat` if its version is newer, and `Misuse` if it is no mark.
        """
        if found.get("version", VERSION) != VERSION:
            raise UnsupportedFormat(
                f"a checkpoint of version {found['version']}: this program reads {VERSION}"
            )
        try:
            places = found["streams"].items()
            return cls({stream: QueryProgress.of_json(stream, at) for stream, at in places})
        except (KeyError, TypeError, ValueError) as exc:
            raise Misuse(f"the checkpoint is not of the source offload: {str(found)[:200]}") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLimit:
    """The limits of a micro-batch; None is no limit. Each stream with a backlog gets at least one record."""

    rows: int | None = None
    size_bytes: int | None = None
    """An approximate limit: within a fragment, all records count as equally large."""


async def initial(known: KnownStreams) -> Mark:
    """Return the mark at which a new query begins.

    Raises `Misuse` if the offsets of the start name a stream that is not read.
    """
    options = known.options
    streams = await known.newest()
    # Only here: a query that continues does not use these offsets, and its streams may have been deleted.
    options.streams.check_offsets("startingOffsets", options.start, known.names)

    async def start_of(stream: ChosenStream) -> PartOffset:
        return await stream.place_of(options.start, strict=options.fail_on_data_loss)

    return Mark(
        {
            reader.manifest.stream: _begin(stream, reader, start)
            for stream, start in zip(streams, await each_of(start_of, streams), strict=True)
            for reader in stream.readers
        }
    )


async def newest(known: KnownStreams) -> Mark:
    """Return the mark behind everything that is committed now."""
    return Mark(
        {
            each.stream: QueryProgress(
                incarnation=each.incarnation,
                offset=each.next_offset,
                begin=each.first_offset,
                stream=stream.name,
                part=reader.part,
            )
            for stream in await known.newest()
            for reader in stream.readers
            for each in [reader.manifest]
        }
    )


async def latest(known: KnownStreams, start: Mark, limit: TailLimit, target: Mark | None) -> Mark:
    """Return the end of the next micro-batch; `start` if there is nothing new.

    A new stream is begun. `target` is the end of a query that reads what is committed now, and stops.
    """
    catalogue, options = known.catalogue, known.options
    found = {
        reader.manifest.stream: (stream, reader)
        for stream in await known.newest()
        for reader in stream.readers
    }
    manifests = {name: reader.manifest for name, (_, reader) in found.items()}
    # A deleted stream leaves the mark. If it is begun again, it is a new stream for the query.
    places = {stream: at for stream, at in start.places.items() if stream in manifests}
    if options.fail_on_data_loss and (gone := start.places.keys() - places.keys()):
        raise NotOffloaded(f"stream {min(gone)!r} no longer exists; {_GO_ON}")
    ends: dict[str, int] = {}
    for stream, committed in manifests.items():
        # A query with a target does not read streams that came after it began.
        if target is None or stream in target.places:
            places[stream] = places.get(stream) or await _begun(*found[stream], start, options)
            places[stream] = _progress(committed, options, places[stream])
            # A mark never moves back, even if the stream ends before it now.
            ends[stream] = max(_end(committed, target), places[stream].offset)
    # Each stream gets a share of the limit in proportion to its backlog.
    # All ends are known by now, because a share depends on the backlogs of the other streams.
    backlog = {stream: end - places[stream].offset for stream, end in ends.items()}
    for stream, rows in backlog.items():
        share = _Share(rows, sum(backlog.values()))
        reached = await _reached(catalogue, manifests[stream], places[stream].offset, share, limit)
        places[stream] = replace(places[stream], offset=reached)
    return Mark(places)


async def plan_between(known: KnownStreams, start: Mark, end: Mark) -> list[list[PlannedPart]]:
    """Return the partitions of a micro-batch. Raises `NotOffloaded` if some of its records are gone."""

    async def pieces_in(stream: str) -> list[PlannedPiece]:
        # Only the two marks decide, not the stream as it is: Spark may plan a batch of its checkpoint again.
        before, at = start.places.get(stream), end.places[stream]
        is_known = before is not None and before.incarnation == at.incarnation
        first = before.offset if before is not None and is_known else at.begin
        return await _pieces(known, stream, at, first) if first < at.offset else []

    pieces = [piece for found in await each_of(pieces_in, end.places) for piece in found]
    options = known.options
    return partitions_of(pieces, size_bytes=options.partition_size_bytes, count_min=options.min_partitions)


_GO_ON: Final = "to continue with the data that exists, set failOnDataLoss=false"


def _begin(stream: ChosenStream, reader: StreamReader, start: PartOffset) -> QueryProgress:
    offset = stream.begin_in(reader, start)
    incarnation = reader.manifest.incarnation
    return QueryProgress(
        incarnation=incarnation, offset=offset, begin=offset, stream=stream.name, part=reader.part
    )


async def _begun(
    stream: ChosenStream, reader: StreamReader, mark: Mark, options: ReadOptions
) -> QueryProgress:
    """Return where the query begins in a stream, or in a part, that it does not know yet."""
    # A part continues a stream that the query reads already. The start of the options lies behind the query.
    if any(at.stream == stream.name for at in mark.places.values()):
        return _begin(stream, reader, PartOffset(reader.part, reader.manifest.first_offset))
    return _begin(stream, reader, await stream.place_of(options.start, strict=options.fail_on_data_loss))


def _progress(committed: CommittedStream, options: ReadOptions, before: QueryProgress) -> QueryProgress:
    """Return the query's position in a stream: at its beginning if it was begun again."""
    if before.incarnation == committed.incarnation:
        if before.offset > committed.next_offset and options.fail_on_data_loss:
            ends = f"ends at offset {committed.next_offset}, but was read up to {before.offset}"
            raise NotOffloaded(f"stream {committed.stream!r} {ends}; {_GO_ON}")
        return before
    if options.fail_on_data_loss:
        raise NotOffloaded(f"stream {committed.stream!r} was deleted and begun again; {_GO_ON}")
    # Another stream of this name: its offsets say nothing about what the query has read.
    first = committed.first_offset
    return replace(before, incarnation=committed.incarnation, offset=first, begin=first)


def _end(committed: CommittedStream, target: Mark | None) -> int:
    # The target is an offset of its own incarnation, and means nothing in another one.
    if target is not None and target.places[committed.stream].incarnation == committed.incarnation:
        return min(committed.next_offset, target.places[committed.stream].offset)
    return committed.next_offset


@dataclass(frozen=True, slots=True)
class _Share:
    """One stream's part of the backlog, in records."""

    rows: int
    of: int

    def part(self, limit: int) -> int:
        """Return the stream's part of a limit for all streams together: at least 1."""
        return max(limit * self.rows // self.of, 1)


async def _reached(
    catalogue: Catalogue, committed: CommittedStream, offset: int, share: _Share, limit: TailLimit
) -> int:
    """Return the offset at which the stream's part of the limit ends."""
    if not share.rows:
        return offset
    end = offset + share.rows
    if limit.rows is not None:
        end = min(end, offset + share.part(limit.rows))
    if limit.size_bytes is not None:
        end = min(end, await _reached_by_bytes(catalogue, committed, offset, share.part(limit.size_bytes)))
    return end


async def _reached_by_bytes(
    catalogue: Catalogue, committed: CommittedStream, offset: int, size_bytes: int
) -> int:
    # A trim may have passed the query's offset; `plan_between` reports that.
    at = max(offset, committed.first_offset)
    async with aclosing(catalogue.view_of(committed).walk(at)) as runs:
        async for run in runs:
            for entry in entries_of_rows(run):
                # The first entry may begin before `at`: only the rest of it counts, by its share of offsets.
                left = entry.data_size_bytes * (entry.next_offset - at) // entry.records
                if left >= size_bytes:
                    # One record at least: a record larger than the limit would stop the query for ever.
                    return at + max((entry.next_offset - at) * size_bytes // max(left, 1), 1)
                size_bytes -= left
                at = entry.next_offset
    return at


async def _pieces(known: KnownStreams, stream: str, at: QueryProgress, first: int) -> list[PlannedPiece]:
    options = known.options
    try:
        # The manifest as it is now: trims and deletions since the mark are found before a task starts.
        committed = await known.part(at.stream, at.part)
    except NotOffloaded:
        if options.fail_on_data_loss:
            raise
        return []
    # The stream's end is a valid position too, at which nothing is left to read.
    kept = range(committed.first_offset, committed.next_offset + 1)
    is_there = committed.incarnation == at.incarnation and first in kept and at.offset in kept
    if not is_there and options.fail_on_data_loss:
        raise NotOffloaded(
            f"stream {stream!r} has offsets [{committed.first_offset}, {committed.next_offset}) now, but not "
            f"all of [{first}, {at.offset}), which the query has not read yet; {_GO_ON}"
        )
    if committed.incarnation != at.incarnation:
        return []  # another stream of this name: it has other records at these offsets
    bounds = ScanBounds(first_offset=first, next_offset=at.offset)
    return await pieces_of(known.catalogue, committed, bounds, stream=at.stream, part=at.part)
