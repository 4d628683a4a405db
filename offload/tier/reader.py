"""Reading a stream back: chunks in order, checked, several requests ahead of the consumer.

Invariants: offsets ascend, each is delivered once; nothing is delivered that its checksum does not
vouch for; a reader sees one manifest, the newest when it was opened. Memory is bounded as `windows`
says, and by the messages of one chunk.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from offload.errors import NotOffloaded
from offload.formats.chunk import ChunkType
from offload.formats.entries import messages
from offload.formats.manifest import Entry, Manifest
from offload.offloader import Attempt, LedgerOffloader, ReadHandle
from offload.position import AtOffset, AtTime, Place, Position
from offload.tier.windows import Window, WindowStream

IN_FLIGHT: Final = 4


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of one chunk, from `offset` on: body k has offset `offset + k`."""

    offset: int
    timestamp_ms: int
    bodies: list[bytes]


class StreamReader:
    """Reads one stream of a tier. Made by `open`; belongs to one event loop."""

    def __init__(self, offloader: LedgerOffloader, manifest: Manifest, *, in_flight: int = IN_FLIGHT) -> None:
        self._offloader, self.manifest, self._in_flight = offloader, manifest, in_flight

    @classmethod
    async def open(
        cls, offloader: LedgerOffloader, stream: str, *, in_flight: int = IN_FLIGHT
    ) -> StreamReader:
        """A reader of the newest manifest, with so many requests ahead of its consumer.

        Raises `NotOffloaded` where there is no such stream.
        """
        return cls(offloader, await offloader.load_manifest(stream), in_flight=in_flight)

    async def offset_of(self, position: Position) -> int:
        """The offset from which a reader of this position is served.

        An offset below the first becomes the first. A time, and `last`, become the first offset of
        a chunk; where no chunk fits, `next_offset`. Raises `NotOffloaded` for an offset beyond
        `next_offset`. Where a chunk must be found, costs one request for an index, and one for each group
        above it that was not used lately (three at most); else none.
        """
        manifest = self.manifest
        match position:
            case Place.FIRST:
                return manifest.first_offset
            case Place.NEXT:
                return manifest.next_offset
            case Place.LAST:
                return await self._last_with_messages()
            case AtTime(timestamp_ms):
                return await self._first_since(timestamp_ms)
            case AtOffset(offset):
                if offset > manifest.next_offset:
                    covered = f"[{manifest.first_offset}, {manifest.next_offset})"
                    raise NotOffloaded(
                        f"stream {manifest.stream!r} has offsets {covered}; {offset} is beyond"
                    )
                return max(offset, manifest.first_offset)

    def windows(self, offset: int) -> WindowStream:
        """The chunks from the one that holds `offset` to the end, a window at a time. Close it when done."""
        tree = self._offloader.tree(self.manifest)
        return WindowStream(tree, offset, open_entry=self.open_entry, in_flight_max=self._in_flight)

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

    async def open_entry(self, entry: Entry) -> ReadHandle:
        """A handle on one fragment."""
        attempt = Attempt(stream=self.manifest.stream, ledger_id=entry.ledger_id, uid=entry.attempt)
        only = range(entry.first_offset, entry.next_offset)
        return await self._offloader.read_offloaded(attempt, manifest=self.manifest, only=only)

    async def _last_with_messages(self) -> int:
        entry = await self._offloader.tree(self.manifest).last_with_messages()
        if entry is None:
            return self.manifest.next_offset
        async with await self.open_entry(entry) as handle:
            table = await handle.table()
            return int(table["offset"][table["type"] == ChunkType.USER][-1])

    async def _first_since(self, timestamp_ms: int) -> int:
        entry = await self._offloader.tree(self.manifest).first_since(timestamp_ms)
        if entry is None:
            return self.manifest.next_offset
        async with await self.open_entry(entry) as handle:
            table = await handle.table()
            return int(table["offset"][(table["timestamp_ms"] >= timestamp_ms).argmax()])


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
