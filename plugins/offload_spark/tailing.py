"""The position of a streaming query, and the end of its next micro-batch. Runs without Spark.

Spark keeps a `Mark` in its checkpoint: for each stream, its incarnation and the first offset that is not read
yet. Invariants:

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
from offload.errors import Misuse, NotOffloaded, UnsupportedFormat
from offload.model.entry import entries_of_rows
from offload.model.manifest import CommittedStream
from offload.streams.reader import StreamReader
from offload_spark.bounds import ScanBounds
from offload_spark.options import ReadOptions
from offload_spark.planning import PlannedPart, PlannedPiece, chosen, offset_of, partitions_of, pieces_of

VERSION: Final = 1
EVERYTHING: Final = ScanBounds()


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


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of a query in each of its streams."""

    places: Mapping[str, QueryProgress] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the mark in the form of Spark's checkpoint."""
        return {
            "version": VERSION,
            "streams": {
                stream: {"incarnation": str(at.incarnation), "offset": at.offset, "begin": at.begin}
                for stream, at in self.places.items()
            },
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
            return cls(
                {
                    stream: QueryProgress(
                        incarnation=UUID(at["incarnation"]), offset=int(at["offset"]), begin=int(at["begin"])
                    )
                    for stream, at in found["streams"].items()
                }
            )
        except (KeyError, TypeError, ValueError) as exc:
            raise Misuse(f"the checkpoint is not of the source offload: {str(found)[:200]}") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLimit:
    """The limits of a micro-batch; None is no limit. Each stream with a backlog gets at least one record."""

    rows: int | None = None
    size_bytes: int | None = None
    """An approximate limit: within a fragment, all records count as equally large."""


async def initial(catalogue: Catalogue, options: ReadOptions) -> Mark:
    """Return the mark at which a new query begins."""
    places = {}
    for committed in await chosen(catalogue, options, EVERYTHING):
        places[committed.stream] = await _begin(catalogue, committed, options)
    return Mark(places)


async def newest(catalogue: Catalogue, options: ReadOptions) -> Mark:
    """Return the mark behind everything that is committed now."""
    return Mark(
        {
            each.stream: QueryProgress(
                incarnation=each.incarnation, offset=each.next_offset, begin=each.first_offset
            )
            for each in await chosen(catalogue, options, EVERYTHING)
        }
    )


async def latest(
    catalogue: Catalogue, options: ReadOptions, start: Mark, limit: TailLimit, target: Mark | None
) -> Mark:
    """Return the end of the next micro-batch; `start` if there is nothing new.

    A new stream is begun. `target` is the end of a query that reads what is committed now, and stops.
    """
    manifests = {each.stream: each for each in await chosen(catalogue, options, EVERYTHING)}
    # A deleted stream leaves the mark. If it is begun again, it is a new stream for the query.
    places = {stream: at for stream, at in start.places.items() if stream in manifests}
    if options.fail_on_data_loss and (gone := start.places.keys() - places.keys()):
        raise NotOffloaded(f"stream {min(gone)!r} no longer exists; {_GO_ON}")
    ends: dict[str, int] = {}
    for stream, committed in manifests.items():
        # A query with a target does not read streams that came after it began.
        if target is None or stream in target.places:
            places[stream] = await _progress(catalogue, committed, options, places.get(stream))
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


async def plan_between(
    catalogue: Catalogue, options: ReadOptions, start: Mark, end: Mark
) -> list[list[PlannedPart]]:
    """Return the partitions of a micro-batch. Raises `NotOffloaded` if some of its records are gone."""
    pieces: list[PlannedPiece] = []
    for stream, at in end.places.items():
        # Only the two marks decide, not the stream as it is: Spark may plan a batch of its checkpoint again.
        before = start.places.get(stream)
        known = before is not None and before.incarnation == at.incarnation
        first = before.offset if before is not None and known else at.begin
        if first < at.offset:
            pieces += await _pieces(catalogue, options, stream, at, first)
    return partitions_of(pieces, size_bytes=options.partition_size_bytes, count_min=options.min_partitions)


_GO_ON: Final = "to continue with the data that exists, set failOnDataLoss=false"


async def _begin(catalogue: Catalogue, committed: CommittedStream, options: ReadOptions) -> QueryProgress:
    reader = StreamReader(catalogue, committed)
    offset = await offset_of(reader, options.start, strict=options.fail_on_data_loss)
    return QueryProgress(incarnation=committed.incarnation, offset=offset, begin=offset)


async def _progress(
    catalogue: Catalogue, committed: CommittedStream, options: ReadOptions, before: QueryProgress | None
) -> QueryProgress:
    """Return the query's position in a stream: at its beginning if it is new, or was begun again."""
    if before is None:
        return await _begin(catalogue, committed, options)
    if before.incarnation == committed.incarnation:
        if before.offset > committed.next_offset and options.fail_on_data_loss:
            ends = f"ends at offset {committed.next_offset}, but was read up to {before.offset}"
            raise NotOffloaded(f"stream {committed.stream!r} {ends}; {_GO_ON}")
        return before
    if options.fail_on_data_loss:
        raise NotOffloaded(f"stream {committed.stream!r} was deleted and begun again; {_GO_ON}")
    # Another stream of this name: its offsets say nothing about what the query has read.
    first = committed.first_offset
    return QueryProgress(incarnation=committed.incarnation, offset=first, begin=first)


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


async def _pieces(
    catalogue: Catalogue, options: ReadOptions, stream: str, at: QueryProgress, first: int
) -> list[PlannedPiece]:
    try:
        # The manifest as it is now: trims and deletions since the mark are found before a task starts.
        committed = (await catalogue.view(stream)).committed
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
    return await pieces_of(catalogue, committed, ScanBounds(first_offset=first, next_offset=at.offset))
