"""The range of a read, and its partitions for Spark's tasks. Runs on the driver, without Spark.

A stream that has further parts is read with them (`read.joined`). An offset or time of the options
attaches as in every other reader. Each of these parts is planned by itself. In the rest of this module, a
part is a piece of work:

A partition is a list of parts. A part is a run of fragments of one stream, or a piece of one fragment. It has
the manifest's entries of these fragments alone, some hundred bytes each. So a task loads no manifest, and all
tasks of a read see the stream as it was when the read was planned.

Invariants: each chunk of the range belongs to exactly one part: the one in whose [`first`, `until`) it
begins. So planning does not need to know where chunks begin. It fetches manifests and groups, and an index
only to find a time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from offload.contracts.catalogue import Catalogue, StreamView
from offload.ground.errors import NotOffloaded
from offload.ground.tasks import in_order, one_by_one
from offload.model.entry import Entries, joined_entries
from offload.model.excerpt import of_fragments
from offload.model.manifest import CommittedStream
from offload.model.position import AtTime, PartOffset
from offload.parts.whole_stream import WholeStream, grouped
from offload.read.joined import place_of, reading_end
from offload.read.reader import StreamReader
from offload_spark.bounds import ScanBounds
from offload_spark.options import EARLIEST, LATEST, Edge, ReadOptions
from offload_spark.suggestions import nearest

T = TypeVar("T")
R = TypeVar("R")

STREAMS_AT_ONCE: Final = 32
"""The number of streams that are asked for at once. A store's own limit of requests still applies."""

FRAGMENTS_MAX: Final = 256
"""The most fragments of a task, however small they are.

A small fragment costs a task little more than its requests, of which several run at once, and a task costs
tens of milliseconds before it reads. So tiny fragments share a task, and enough tasks remain for a cluster:
40 for 10,000 fragments.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPart:
    """A part of one stream, in the form that a task gets."""

    stream: str
    """The name of the stream in its rows."""

    part: int
    """The number of the stream's part."""

    committed: CommittedStream
    """The stream with the part's own fragments alone."""

    first: int
    until: int
    """The chunks that begin in [first, until) are the part's."""

    bounds: ScanBounds
    """The bounds of the read, which apply to those chunks."""

    places: npt.NDArray[np.uint64] | None = None
    """The only offsets that are wanted, in order. None: all of them (`finding`)."""
    ranges: npt.NDArray[np.uint64] | None = None
    """The only ranges of offsets that can have wanted records, as rows. None: all of them (`selecting`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPiece:
    """A whole fragment, or a piece of one."""

    stream: str
    part: int
    committed: CommittedStream
    entry: Entries
    """The fragment's entry, as an array of one row."""

    first: int
    until: int
    bounds: ScanBounds
    size_bytes: int

    @property
    def is_end(self) -> bool:
        """True if the fragment ends with this piece."""
        return self.until == _next_offset(self.entry)

    @property
    def is_begin(self) -> bool:
        """True if the fragment begins with this piece."""
        return self.first == int(self.entry["first_offset"][0])

    def split(self, count: int) -> list[PlannedPiece]:
        """Return `count` pieces with equal numbers of offsets, or fewer if it has fewer offsets."""
        count = min(count, self.until - self.first)
        edges = [self.first + (self.until - self.first) * n // count for n in range(count + 1)]
        return [
            replace(self, first=first, until=until, size_bytes=self.size_bytes // count)
            for first, until in pairwise(edges)
        ]


async def plan(catalogue: Catalogue, options: ReadOptions, bounds: ScanBounds) -> list[list[PlannedPart]]:
    """Return the partitions of a batch read.

    Raises `NotOffloaded` for a named stream that does not exist, and, if `fail_on_data_loss`, for an offset
    that the stream does not have. Raises `Misuse` if offsets name a stream that is not read.
    """

    async def pieces_in(stream: ChosenStream) -> list[PlannedPiece]:
        start, end = await stream.bounds(options)
        found: list[PlannedPiece] = []
        for reader in stream.readers:
            # A part before the start, or behind the end, has an empty range, and no piece.
            first, until = stream.begin_in(reader, start), stream.begin_in(reader, end)
            found += await pieces_of(
                catalogue,
                reader.manifest,
                bounds.and_offsets(first, until),
                stream=stream.name,
                part=reader.part,
            )
        return found

    streams = await chosen(catalogue, options, bounds)
    pieces = [piece for found in await each_of(pieces_in, streams) for piece in found]
    return partitions_of(pieces, size_bytes=options.partition_size_bytes, count_min=options.min_partitions)


@dataclass(frozen=True, slots=True)
class ChosenStream:
    """A stream to read: the name by which it was chosen, and a reader of each of its parts."""

    name: str
    readers: Sequence[StreamReader]

    async def bounds(self, options: ReadOptions) -> tuple[PartOffset, PartOffset]:
        """Return where a read begins and ends. A time ends where it is met first from the beginning on."""
        strict = options.fail_on_data_loss
        start = await self.place_of(options.start, strict=strict)
        if options.end.timestamp_ms is not None:
            end = await reading_end(self.readers, start, AtTime(options.end.timestamp_ms))
            last = self.readers[-1]
            return start, end or PartOffset(last.part, last.manifest.next_offset)
        return start, await self.place_of(options.end, strict=strict)

    async def place_of(self, edge: Edge, *, strict: bool) -> PartOffset:
        """Return the place of an edge. If not `strict`, an offset that no part has becomes the nearest."""
        if len(self.readers) == 1:
            [reader] = self.readers
            return PartOffset(reader.part, await offset_of(reader, edge, strict=strict))
        if edge.timestamp_ms is not None:
            return await place_of(self.readers, AtTime(edge.timestamp_ms))
        offset = edge.offset(self.name)
        if offset in (EARLIEST, LATEST):
            reader = self.readers[0 if offset == EARLIEST else -1]
            return PartOffset(reader.part, await offset_of(reader, edge, strict=strict))
        holding = [reader for reader in self.readers if offset <= reader.manifest.next_offset]
        reader = holding[0] if holding else self.readers[-1]
        return PartOffset(reader.part, await offset_of(reader, edge, strict=strict))

    def begin_in(self, reader: StreamReader, place: PartOffset) -> int:
        """Return the first offset of a part that is at this place or behind it."""
        if reader.part == place.part:
            return place.offset
        committed = reader.manifest
        return committed.first_offset if reader.part > place.part else committed.next_offset


async def chosen(catalogue: Catalogue, options: ReadOptions, bounds: ScanBounds) -> list[ChosenStream]:
    """Return the wanted streams with their committed data. Leave out deleted streams that were not named.

    A named stream costs one listing for its parts. A part that is named itself is read alone. Otherwise a
    part is read with its stream, and costs nothing that a stream of its own would not cost.
    """
    # The parts of a named stream are looked up when its turn comes.
    known = {name: WholeStream(catalogue, name) for name in options.streams.names}
    if not known:
        every = {stream.name: stream for stream in await grouped(catalogue)}
        known = {name: every[name] for name in options.streams.of([*every])}
    options.streams.check_offsets("startingOffsets", options.start, [*known])
    options.streams.check_offsets("endingOffsets", options.end, [*known])
    wanted = {name: stream for name, stream in known.items() if bounds.holds_stream(name)}

    async def views_of(name: str) -> Sequence[tuple[int, StreamView]]:
        try:
            return await wanted[name].views()
        except NotOffloaded as error:
            if options.streams.names:
                await raise_with_nearest(catalogue, name, error)
            return ()

    found = zip(wanted, await each_of(views_of, wanted), strict=True)
    return [stream_of(catalogue, name, views) for name, views in found if views]


async def raise_with_nearest(catalogue: Catalogue, name: str, error: NotOffloaded) -> NoReturn:
    """Raise the error, with the nearest names of streams if the tier never had a stream of this name."""
    if type(error) is not NotOffloaded:  # deleted, or being rebuilt
        raise error
    raise NotOffloaded(f"{error}{nearest(name, await catalogue.streams())}") from error


def stream_of(catalogue: Catalogue, name: str, views: Sequence[tuple[int, StreamView]]) -> ChosenStream:
    """Return a chosen stream with these views of its parts, in order."""
    readers = [StreamReader(catalogue, view.committed, part=number) for number, view in views]
    for reader in readers:
        reader.stream = name
    return ChosenStream(name, readers)


async def each_of(work: Callable[[T], Coroutine[Any, Any, R]], items: Iterable[T]) -> list[R]:
    """Return the results of `work` for all items, in their order. Raises the error of the first that fails.

    Several run at a time: with 1,000 streams, their requests would otherwise take a thousand round trips.
    """
    async with aclosing(in_order(work, one_by_one(items), at_once=STREAMS_AT_ONCE)) as results:
        return [result async for _, result in results]


async def offset_of(reader: StreamReader, edge: Edge, *, strict: bool) -> int:
    """Return the offset of an edge in a stream. If not `strict`, return the nearest offset that it has."""
    committed = reader.manifest
    if edge.timestamp_ms is not None:
        return await reader.offset_of(AtTime(edge.timestamp_ms))
    offset = edge.offset(reader.stream)
    if offset in (EARLIEST, LATEST):
        return committed.first_offset if offset == EARLIEST else committed.next_offset
    within = min(max(offset, committed.first_offset), committed.next_offset)
    if strict and within != offset:
        raise NotOffloaded(
            f"stream {committed.stream!r} has offsets [{committed.first_offset}, {committed.next_offset}), "
            f"but {offset} is asked for; to read the offsets that it has, set failOnDataLoss=false"
        )
    return within


async def pieces_of(
    catalogue: Catalogue, committed: CommittedStream, bounds: ScanBounds, *, stream: str, part: int
) -> list[PlannedPiece]:
    """Return the fragments of a part that may have records within these bounds, each as one piece."""
    if bounds.is_empty:
        return []
    found = []
    async with aclosing(catalogue.view_of(committed).walk(bounds.first_offset)) as runs:
        async for run in runs:
            wanted = bounds.of_fragments(run)
            found += [
                _piece(stream, part, committed, run[row : row + 1], bounds)
                for row in np.flatnonzero(wanted).tolist()
            ]
            if _next_offset(run[-1:]) >= bounds.next_offset:
                break
    return found


def _piece(
    stream: str, part: int, committed: CommittedStream, entry: Entries, bounds: ScanBounds
) -> PlannedPiece:
    """Return a fragment as a piece. Its size is scaled by the share of its offsets that is wanted."""
    first, until = int(entry["first_offset"][0]), _next_offset(entry)
    share = min(until, bounds.next_offset) - max(first, bounds.first_offset)
    size = int(entry["data_size_bytes"][0]) * share // (until - first)
    return PlannedPiece(
        stream=stream,
        part=part,
        committed=committed,
        entry=entry,
        first=first,
        until=until,
        bounds=bounds,
        size_bytes=size,
    )


def partitions_of(
    pieces: Sequence[PlannedPiece], *, size_bytes: int, count_min: int
) -> list[list[PlannedPart]]:
    """Pack pieces in order into partitions of about `size_bytes`, and at least `count_min` of them.

    No partition has more than `FRAGMENTS_MAX` pieces. A larger fragment is split. A small remainder is not
    split off.
    """
    packed = _packed(pieces, size_bytes)
    if len(packed) < count_min:
        total = sum(piece.size_bytes for piece in pieces)
        packed = _packed(pieces, max(total // count_min, 1))
    return [parts_of(partition) for partition in packed]


def _packed(pieces: Sequence[PlannedPiece], target_bytes: int) -> list[list[PlannedPiece]]:
    partitions: list[list[PlannedPiece]] = []
    size_bytes = 0
    for whole in pieces:
        for piece in whole.split(max(round(whole.size_bytes / target_bytes), 1)):
            is_full = size_bytes + piece.size_bytes > target_bytes
            if not partitions or is_full or len(partitions[-1]) == FRAGMENTS_MAX:
                partitions.append([])
                size_bytes = 0
            partitions[-1].append(piece)
            size_bytes += piece.size_bytes
    return partitions


def parts_of(pieces: Iterable[PlannedPiece]) -> list[PlannedPart]:
    """Return pieces as parts. Consecutive pieces without a gap become one part."""
    runs: list[list[PlannedPiece]] = []
    for piece in pieces:
        if runs and _touch(runs[-1][-1], piece):
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return [
        PlannedPart(
            stream=run[0].stream,
            part=run[0].part,
            committed=of_fragments(run[0].committed, joined_entries(*(piece.entry for piece in run))),
            first=run[0].first,
            until=run[-1].until,
            bounds=run[0].bounds,
        )
        for run in runs
    ]


def _touch(one: PlannedPiece, other: PlannedPiece) -> bool:
    follows = one.is_end and other.is_begin and one.until == other.first
    return one.committed is other.committed and one.bounds == other.bounds and follows


def _next_offset(entry: Entries) -> int:
    return int(entry["first_offset"][0]) + int(entry["records"][0])
