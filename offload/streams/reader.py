"""Reading a stream back: chunks in order, checked, several requests ahead of the consumer.

A reader sees one view of the stream, the newest when it was opened, until something that it names is gone.
Then the newest view decides:

    names it too                              it is damage, and the error stands
    is of another incarnation, or there is
    a tombstone                               `StreamDeleted`
    does not name it                          the stream was trimmed: reading goes on by this view, at
                                              its first offset where that is higher, and `Skipped` is told

Invariants: offsets ascend, each is delivered once; nothing is delivered that its checksum does not
vouch for, and nothing is left out unsaid. Memory is bounded as `windows` says, and by the messages of one
chunk.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.events import DamageFound, Event, Skipped
from offload.contracts.offloader import LedgerOffloader
from offload.errors import Absent, NotOffloaded, StreamDeleted
from offload.formats.entries import messages
from offload.model.chunk_table import ChunkType
from offload.model.manifest import CommittedStream, Manifest
from offload.model.position import OFFSET_MAX, AtEdge, AtOffset, AtTime, Position
from offload.streams.windows import Keep, Window, WindowStream

__all__ = ["Messages", "StreamReader"]


T = TypeVar("T")

IN_FLIGHT: Final = 4

_log: Final = logging.getLogger(__name__)


def warn_of_skips(event: Event) -> None:
    """What listens to a reader where nothing else does: a warning in the log."""
    if isinstance(event, Skipped):
        skipped = f"[{event.from_offset}, {event.to_offset})"
        _log.warning("stream %r: offsets %s were trimmed before they were read", event.stream, skipped)


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of one chunk, from `offset` on: body k has offset `offset + k`."""

    offset: int
    timestamp_ms: int
    bodies: list[bytes]


class StreamReader:
    """Reads one stream of a tier, or of whatever else is a `Catalogue`. Belongs to one event loop.

    `emit` is told of `Skipped` and `DamageFound`. Every method but `open` raises `StreamDeleted` where the
    stream is deleted and its objects are swept.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        committed: CommittedStream,
        *,
        in_flight: int = IN_FLIGHT,
        emit: Callable[[Event], None] = warn_of_skips,
    ) -> None:
        """`committed` is what an earlier view of this catalogue said. Asks for nothing."""
        self._catalogue, self._in_flight, self.emit = catalogue, in_flight, emit
        self._view = catalogue.view_of(committed)

    @classmethod
    async def open(
        cls,
        catalogue: Catalogue,
        stream: str,
        *,
        in_flight: int = IN_FLIGHT,
        emit: Callable[[Event], None] = warn_of_skips,
    ) -> StreamReader:
        """A reader of the newest view, with so many requests ahead of its consumer.

        Raises `NotOffloaded` where there is no such stream.
        """
        view = await catalogue.view(stream)
        return cls(catalogue, view.committed, in_flight=in_flight, emit=emit)

    @property
    def manifest(self) -> CommittedStream:
        """What is committed, as the reader has seen it last: a `Manifest` if the tier takes commits."""
        return self._view.committed

    async def offset_of(self, position: Position) -> int:
        """The offset from which a reader of this position is served.

        An offset below the first becomes the first. A time, and `last`, become the first offset of
        a chunk; where no chunk fits, `next_offset`. Raises `NotOffloaded` for an offset beyond
        `next_offset`. Where a chunk must be found, costs one request for an index, and one for each group
        above it that was not used lately; else none. Those are three at most; for a time six, where the
        stream was trimmed within a group that says that it reaches so far, and what of it lives does not.
        """
        return await self._asked(partial(_offset_of, position))

    async def last_timestamp_ms(self) -> int | None:
        """The greatest timestamp of any chunk; None where the stream is empty. Mostly without a request."""
        return await self._asked(lambda view: view.last_timestamp_ms())

    def windows(self, offset: int, *, until: int = OFFSET_MAX, keep: Keep | None = None) -> StreamWindows:
        """The chunks from the one that holds `offset` to the end, a window at a time. Close it when done.

        Those that begin at `until` or behind it are left out unfetched, and so are those that `keep` does not
        want; what is fetched is as if they were not there.
        """
        return StreamWindows(self, self._view, offset, in_flight_max=self._in_flight, until=until, keep=keep)

    async def messages(self, offset: int) -> AsyncGenerator[Messages, None]:
        """The messages from `offset` on, chunk by chunk; chunks without any are passed over.

        A generator: where a wait for it is cancelled, it is over. Begin again behind the last offset.
        """
        async with aclosing(self.windows(offset)) as windows:
            async for window in windows:
                for batch in messages_of(window):
                    skip = offset - batch.offset
                    if skip <= 0:
                        yield batch
                    elif skip < len(batch.bodies):
                        yield Messages(offset, batch.timestamp_ms, batch.bodies[skip:])

    async def newer_view(self, view: StreamView, absent: Absent) -> StreamView:
        """The newest view, which does not name what is absent, though `view` does.

        Raises `absent` where it does, and `StreamDeleted` where the stream is not the same any more.
        """
        seen = view.committed
        while True:
            newest = await self._newest_of(seen, absent)
            try:
                is_named = newest.committed.version == seen.version or await newest.names(absent.where)
            except Absent as another:  # trimmed once more, and swept, while it was looked at
                seen, absent = newest.committed, another
                continue
            if is_named:
                self.emit(DamageFound(damage=absent))
                raise absent
            self._view = newest
            return newest

    async def _newest_of(self, seen: CommittedStream, absent: Absent) -> StreamView:
        epoch, deleted = None, f"stream {seen.stream!r} was deleted while it was read"
        try:
            newest = await self._catalogue.view(seen.stream)
        except StreamDeleted:
            raise StreamDeleted(deleted) from absent
        if newest.committed.incarnation != seen.incarnation:
            if isinstance(newest.committed, Manifest):
                epoch = newest.committed.epoch
            raise StreamDeleted(deleted, epoch=epoch) from absent
        return newest

    async def _asked(self, ask: Callable[[StreamView], Awaitable[T]]) -> T:
        """What the view answers, or a newer one if what it needed for that was trimmed."""
        while True:
            view = self._view
            try:
                return await ask(view)
            except Absent as absent:
                await self.newer_view(view, absent)


async def newer_manifest(offloader: LedgerOffloader, manifest: Manifest, absent: Absent) -> Manifest:
    """The newest manifest, which does not name what is absent, though `manifest` does.

    Raises as `StreamReader.newer_view`.
    """
    reader = StreamReader(offloader, manifest)
    newest = (await reader.newer_view(offloader.view_of(manifest), absent)).committed
    assert isinstance(newest, Manifest), "the views of an offloader are of manifests"
    return newest


async def _offset_of(position: Position, view: StreamView) -> int:
    committed = view.committed
    match position:
        case AtEdge.FIRST:
            return committed.first_offset
        case AtEdge.NEXT:
            return committed.next_offset
        case AtEdge.LAST:
            return await _last_with_messages(view)
        case AtTime(timestamp_ms):
            return await _first_since(timestamp_ms, view)
        case AtOffset(offset):
            if offset > committed.next_offset:
                covered = f"[{committed.first_offset}, {committed.next_offset})"
                raise NotOffloaded(f"stream {committed.stream!r} has offsets {covered}; {offset} is beyond")
            return max(offset, committed.first_offset)


async def _last_with_messages(view: StreamView) -> int:
    entry = await view.last_with_messages()
    if entry is None:
        return view.committed.next_offset
    async with await view.open(entry) as handle:
        table = await handle.table()
        return int(table["offset"][table["type"] == ChunkType.USER][-1])


async def _first_since(timestamp_ms: int, view: StreamView) -> int:
    entry = await view.first_since(timestamp_ms)
    if entry is None:
        return view.committed.next_offset
    async with await view.open(entry) as handle:
        table = await handle.table()
        return int(table["offset"][(table["timestamp_ms"] >= timestamp_ms).argmax()])


class StreamWindows(WindowStream):
    """The windows of a reader: goes on where the stream begins now when what it came to was trimmed."""

    def __init__(
        self,
        reader: StreamReader,
        view: StreamView,
        offset: int,
        *,
        in_flight_max: int,
        until: int = OFFSET_MAX,
        keep: Keep | None = None,
    ) -> None:
        self._reader = reader
        self._next_offset = max(offset, view.committed.first_offset)
        super().__init__(view, self._next_offset, in_flight_max=in_flight_max, until=until, keep=keep)

    async def __anext__(self) -> Window:
        """As `WindowStream` does it. Raises `StreamDeleted` where the stream is gone."""
        while True:
            try:
                window = await super().__anext__()
            except Absent as absent:
                await self._go_on(absent)
            else:
                self._next_offset = int(window.rows["offset"][-1]) + int(window.rows["records"][-1])
                return window

    async def _go_on(self, absent: Absent) -> None:
        """Take a newer view. Where the waiting is cancelled, the next call does it again."""
        newest = await self._reader.newer_view(self._view, absent)
        goes_on = max(self._next_offset, newest.committed.first_offset)
        await self.begin_anew(newest, goes_on)
        skipped = Skipped(stream=newest.committed.stream, from_offset=self._next_offset, to_offset=goes_on)
        self._next_offset = goes_on
        if skipped.from_offset < skipped.to_offset:
            self._reader.emit(skipped)


def messages_of(window: Window) -> Iterator[Messages]:
    """The messages of every user chunk in a window, in order."""
    rows = window.rows
    start = int(rows["position"][0])
    columns = (rows["type"], rows["position"], rows["size_bytes"], rows["offset"], rows["timestamp_ms"])
    view = memoryview(window.data)
    for kind, position, size, offset, timestamp_ms in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if kind == ChunkType.USER:
            chunk = view[position - start : position - start + size]
            yield Messages(offset, timestamp_ms, messages(chunk, where=window.where, position=position))
