"""How far a streaming query has come, and how far it may go next. Runs beside the driver; knows no Spark.

A `Mark` is what Spark keeps in its checkpoint: of each stream, its incarnation, and the first offset that is
not read yet. Invariants: two marks alone say what a micro-batch holds, so one that is planned again, in
another process, holds the same records; no offset is passed over unsaid: what retention took before it was
read, and a stream that was deleted, are errors, unless the user asked to go on.
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
    """Where a query stands in one stream."""

    incarnation: UUID
    offset: int
    """The first one that is not read yet."""

    begin: int
    """Where the query began to read this incarnation: for a mark before which the stream was not known."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a query stands, in each of its streams."""

    places: Mapping[str, QueryProgress] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For Spark's checkpoint."""
        return {
            "version": VERSION,
            "streams": {
                stream: {"incarnation": str(at.incarnation), "offset": at.offset, "begin": at.begin}
                for stream, at in self.places.items()
            },
        }

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Mark:
        """From a checkpoint. Raises `UnsupportedFormat` for one of a newer version, `Misuse` for none."""
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
            raise Misuse(f"{str(found)[:200]} is no offset of the source offload") from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLimit:
    """How much a micro-batch may hold; None: everything. Of each stream with a backlog, a record at least."""

    rows: int | None = None
    size_bytes: int | None = None
    """About: within a fragment, sizes are taken to be even."""


async def initial(catalogue: Catalogue, options: ReadOptions) -> Mark:
    """Where a new query begins."""
    places = {}
    for committed in await chosen(catalogue, options, EVERYTHING):
        places[committed.stream] = await _begin(catalogue, committed, options)
    return Mark(places)


async def newest(catalogue: Catalogue, options: ReadOptions) -> Mark:
    """Where everything ends that is there now."""
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
    """How far the next micro-batch goes. `start` itself where there is nothing new.

    A stream that has come since is begun. `target` is where a query ends that reads what is there now.
    """
    manifests = {each.stream: each for each in await chosen(catalogue, options, EVERYTHING)}
    places = {stream: at for stream, at in start.places.items() if stream in manifests}
    if options.fail_on_data_loss and (gone := start.places.keys() - places.keys()):
        raise NotOffloaded(f"stream {min(gone)!r} is not there any more; {_GO_ON}")
    ends: dict[str, int] = {}
    for stream, committed in manifests.items():
        if target is None or stream in target.places:
            places[stream] = await _progress(catalogue, committed, options, places.get(stream))
            ends[stream] = max(_end(committed, target), places[stream].offset)
    backlog = {stream: end - places[stream].offset for stream, end in ends.items()}
    for stream, rows in backlog.items():
        share = _Share(rows, sum(backlog.values()))
        reached = await _reached(catalogue, manifests[stream], places[stream].offset, share, limit)
        places[stream] = replace(places[stream], offset=reached)
    return Mark(places)


async def plan_between(
    catalogue: Catalogue, options: ReadOptions, start: Mark, end: Mark
) -> list[list[PlannedPart]]:
    """The partitions of a micro-batch. Raises `NotOffloaded` where some of it is not there any more."""
    pieces: list[PlannedPiece] = []
    for stream, at in end.places.items():
        before = start.places.get(stream)
        known = before is not None and before.incarnation == at.incarnation
        first = before.offset if before is not None and known else at.begin
        if first < at.offset:
            pieces += await _pieces(catalogue, options, stream, at, first)
    return partitions_of(pieces, size_bytes=options.partition_size_bytes, count_min=options.min_partitions)


_GO_ON: Final = "with failOnDataLoss=false the query goes on with what is there"


async def _begin(catalogue: Catalogue, committed: CommittedStream, options: ReadOptions) -> QueryProgress:
    reader = StreamReader(catalogue, committed)
    offset = await offset_of(reader, options.start, strict=options.fail_on_data_loss)
    return QueryProgress(incarnation=committed.incarnation, offset=offset, begin=offset)


async def _progress(
    catalogue: Catalogue, committed: CommittedStream, options: ReadOptions, before: QueryProgress | None
) -> QueryProgress:
    """Where the query stands in a stream; at the beginning of one that is new, or was born again."""
    if before is None:
        return await _begin(catalogue, committed, options)
    if before.incarnation == committed.incarnation:
        if before.offset > committed.next_offset and options.fail_on_data_loss:
            ends = f"ends at offset {committed.next_offset}, and was read up to {before.offset}"
            raise NotOffloaded(f"stream {committed.stream!r} {ends}; {_GO_ON}")
        return before
    if options.fail_on_data_loss:
        raise NotOffloaded(f"stream {committed.stream!r} was deleted, and began anew; {_GO_ON}")
    first = committed.first_offset
    return QueryProgress(incarnation=committed.incarnation, offset=first, begin=first)


def _end(committed: CommittedStream, target: Mark | None) -> int:
    if target is not None and target.places[committed.stream].incarnation == committed.incarnation:
        return min(committed.next_offset, target.places[committed.stream].offset)
    return committed.next_offset


@dataclass(frozen=True, slots=True)
class _Share:
    """One stream's part of the backlog, in records."""

    rows: int
    of: int

    def part(self, limit: int) -> int:
        """Of a limit for all streams together: at least 1."""
        return max(limit * self.rows // self.of, 1)


async def _reached(
    catalogue: Catalogue, committed: CommittedStream, offset: int, share: _Share, limit: TailLimit
) -> int:
    """Where a stream's part of the limit ends."""
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
    at = max(offset, committed.first_offset)
    async with aclosing(catalogue.view_of(committed).walk(at)) as runs:
        async for run in runs:
            for entry in entries_of_rows(run):
                left = entry.data_size_bytes * (entry.next_offset - at) // entry.records
                if left >= size_bytes:
                    return at + max((entry.next_offset - at) * size_bytes // max(left, 1), 1)
                size_bytes -= left
                at = entry.next_offset
    return at


async def _pieces(
    catalogue: Catalogue, options: ReadOptions, stream: str, at: QueryProgress, first: int
) -> list[PlannedPiece]:
    try:
        committed = (await catalogue.view(stream)).committed
    except NotOffloaded:
        if options.fail_on_data_loss:
            raise
        return []
    kept = range(committed.first_offset, committed.next_offset + 1)
    is_there = committed.incarnation == at.incarnation and first in kept and at.offset in kept
    if not is_there and options.fail_on_data_loss:
        raise NotOffloaded(
            f"stream {stream!r} has offsets [{committed.first_offset}, {committed.next_offset}) now, and not "
            f"all of [{first}, {at.offset}), which the query has not read; {_GO_ON}"
        )
    if committed.incarnation != at.incarnation:
        return []
    return await pieces_of(catalogue, committed, ScanBounds(first_offset=first, next_offset=at.offset))
