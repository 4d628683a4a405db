"""Reading a stream back: chunks in order, checked, several requests ahead of the consumer.

A reader sees one manifest, the newest when it was opened, until an object that it names is gone. Then the
newest manifest decides:

    names the object too                      it is damage, and the error stands
    is of another incarnation, or there is
    a tombstone                               `StreamDeleted`
    does not name it                          the stream was trimmed: reading goes on by this manifest, at
                                              its first offset where that is higher, and `Skipped` is told

Invariants: offsets ascend, each is delivered once; nothing is delivered that its checksum does not
vouch for, and nothing is left out unsaid. Memory is bounded as `windows` says, and by the messages of one
chunk.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from offload.errors import Absent, NotOffloaded, StreamDeleted
from offload.events import DamageFound, Event, Skipped
from offload.formats.chunk import ChunkType
from offload.formats.entries import messages
from offload.formats.keys import StreamKeys
from offload.formats.manifest import Entry, Manifest
from offload.manifest.groups import key_of
from offload.manifest.tree import OFFSET_MAX, Tree
from offload.offloader import Attempt, LedgerOffloader, ReadHandle
from offload.position import AtOffset, AtTime, Place, Position
from offload.tier.retention import load_unless_deleted
from offload.tier.windows import Keep, Window, WindowStream

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
    """Reads one stream of a tier. Made by `open`; belongs to one event loop.

    `emit` is told of `Skipped` and `DamageFound`. Every method but `open` raises `StreamDeleted` where the
    stream is deleted and its objects are swept.
    """

    def __init__(
        self,
        offloader: LedgerOffloader,
        manifest: Manifest,
        *,
        in_flight: int = IN_FLIGHT,
        emit: Callable[[Event], None] = warn_of_skips,
    ) -> None:
        self._offloader, self._in_flight, self.emit = offloader, in_flight, emit
        self.manifest = manifest
        """The newest that the reader has seen."""

    @classmethod
    async def open(
        cls,
        offloader: LedgerOffloader,
        stream: str,
        *,
        in_flight: int = IN_FLIGHT,
        emit: Callable[[Event], None] = warn_of_skips,
    ) -> StreamReader:
        """A reader of the newest manifest, with so many requests ahead of its consumer.

        Raises `NotOffloaded` where there is no such stream.
        """
        return cls(offloader, await offloader.load_manifest(stream), in_flight=in_flight, emit=emit)

    async def offset_of(self, position: Position) -> int:
        """The offset from which a reader of this position is served.

        An offset below the first becomes the first. A time, and `last`, become the first offset of
        a chunk; where no chunk fits, `next_offset`. Raises `NotOffloaded` for an offset beyond
        `next_offset`. Where a chunk must be found, costs one request for an index, and one for each group
        above it that was not used lately; else none. Those are three at most; for a time six, where the
        stream was trimmed within a group that says that it reaches so far, and what of it lives does not.
        """
        while True:
            try:
                return await self._offset_of(position, self.manifest)
            except Absent as absent:
                await self.newer_than(self.manifest, absent)

    async def _offset_of(self, position: Position, manifest: Manifest) -> int:
        match position:
            case Place.FIRST:
                return manifest.first_offset
            case Place.NEXT:
                return manifest.next_offset
            case Place.LAST:
                return await self._last_with_messages(manifest)
            case AtTime(timestamp_ms):
                return await self._first_since(timestamp_ms, manifest)
            case AtOffset(offset):
                if offset > manifest.next_offset:
                    covered = f"[{manifest.first_offset}, {manifest.next_offset})"
                    raise NotOffloaded(
                        f"stream {manifest.stream!r} has offsets {covered}; {offset} is beyond"
                    )
                return max(offset, manifest.first_offset)

    async def last_timestamp_ms(self) -> int | None:
        """The greatest timestamp of any chunk; None where the stream is empty. Mostly without a request."""
        while True:
            manifest = self.manifest
            try:
                return await self._offloader.tree(manifest).last_timestamp_ms()
            except Absent as absent:
                await self.newer_than(manifest, absent)

    def windows(self, offset: int, *, until: int = OFFSET_MAX, keep: Keep | None = None) -> StreamWindows:
        """The chunks from the one that holds `offset` to the end, a window at a time. Close it when done.

        Those that begin at `until` or behind it are left out unfetched, and so are those that `keep` does not
        want; what is fetched is as if they were not there.
        """
        return StreamWindows(
            self, self._offloader.tree, offset, in_flight_max=self._in_flight, until=until, keep=keep
        )

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

    async def open_entry(self, entry: Entry, *, manifest: Manifest | None = None) -> ReadHandle:
        """A handle on one fragment that `manifest` names, or the reader's own."""
        manifest = manifest or self.manifest
        attempt = Attempt(stream=manifest.stream, ledger_id=entry.ledger_id, uid=entry.attempt)
        only = range(entry.first_offset, entry.next_offset)
        return await self._offloader.read_offloaded(attempt, manifest=manifest, only=only)

    async def newer_than(self, manifest: Manifest, absent: Absent) -> Manifest:
        """The newest manifest, which does not name what is absent, though `manifest` does.

        Raises `absent` where it does, and `StreamDeleted` where the stream is not the same any more.
        """
        while True:
            newest = await load_unless_deleted(self._offloader, manifest.stream)
            if newest is None or newest.incarnation != manifest.incarnation:
                epoch = None if newest is None else newest.epoch
                deleted = f"stream {manifest.stream!r} was deleted while it was read"
                raise StreamDeleted(deleted, epoch=epoch) from absent
            try:
                is_named = newest.version == manifest.version or await _names(
                    self._offloader.tree(newest), absent.where
                )
            except Absent as another:  # trimmed once more, and swept, while it was looked at
                manifest, absent = newest, another
                continue
            if is_named:
                self.emit(DamageFound(damage=absent))
                raise absent
            self.manifest = newest
            return newest

    async def _last_with_messages(self, manifest: Manifest) -> int:
        entry = await self._offloader.tree(manifest).last_with_messages()
        if entry is None:
            return manifest.next_offset
        async with await self.open_entry(entry, manifest=manifest) as handle:
            table = await handle.table()
            return int(table["offset"][table["type"] == ChunkType.USER][-1])

    async def _first_since(self, timestamp_ms: int, manifest: Manifest) -> int:
        entry = await self._offloader.tree(manifest).first_since(timestamp_ms)
        if entry is None:
            return manifest.next_offset
        async with await self.open_entry(entry, manifest=manifest) as handle:
            table = await handle.table()
            return int(table["offset"][(table["timestamp_ms"] >= timestamp_ms).argmax()])


class StreamWindows(WindowStream):
    """The windows of a reader: goes on where the stream begins now when what it came to was trimmed."""

    def __init__(
        self,
        reader: StreamReader,
        tree_of: Callable[[Manifest], Tree],
        offset: int,
        *,
        in_flight_max: int,
        until: int = OFFSET_MAX,
        keep: Keep | None = None,
    ) -> None:
        self._reader, self._tree_of, self._manifest = reader, tree_of, reader.manifest
        self._next_offset = max(offset, self._manifest.first_offset)
        open_entry = partial(reader.open_entry, manifest=self._manifest)
        tree = tree_of(self._manifest)
        super().__init__(
            tree,
            self._next_offset,
            open_entry=open_entry,
            in_flight_max=in_flight_max,
            until=until,
            keep=keep,
        )

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
        """Take a newer manifest. Where the waiting is cancelled, the next call does it again."""
        newest = await self._reader.newer_than(self._manifest, absent)
        goes_on = max(self._next_offset, newest.first_offset)
        open_entry = partial(self._reader.open_entry, manifest=newest)
        await self.begin_anew(self._tree_of(newest), goes_on, open_entry=open_entry)
        skipped = Skipped(stream=newest.stream, from_offset=self._next_offset, to_offset=goes_on)
        self._manifest, self._next_offset = newest, goes_on
        if skipped.from_offset < skipped.to_offset:
            self._reader.emit(skipped)


async def _names(tree: Tree, key: str) -> bool:
    """Whether this tree names the object. What is no fragment and no group is never let go of."""
    keys, manifest = StreamKeys(tree.manifest.stream), tree.manifest
    if (fragment := keys.parse_fragment(key)) is not None:
        offset, kind = fragment[0], 0
    elif (group := keys.parse_group(key)) is not None:
        offset, kind = group[0], group[3]
    else:
        return True
    offset = max(offset, manifest.first_offset)  # of a group, a part may live
    entries = manifest.entries
    while True:
        ends = entries["first_offset"] + entries["records"]
        one = entries[ends > np.uint64(offset)][:1]
        if not len(one) or one["kind"][0] <= kind:
            return bool(len(one)) and key_of(manifest.stream, one) == key
        entries = await tree.load(manifest, one)


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
