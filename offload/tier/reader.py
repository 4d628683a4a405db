"""Reading a stream back: chunks in order, checked, several requests ahead of the consumer.

Invariants: offsets ascend, each is delivered once; nothing is delivered that its checksum does not
vouch for; a reader sees one manifest, the newest when it was opened. Memory is bounded: at most
`in_flight` windows of `WINDOW_SIZE_BYTES` (or one larger chunk each), and two fragments' indexes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from offload.errors import Corrupt, NotOffloaded, OffloadError
from offload.formats.chunk import ChunkTable, ChunkType
from offload.formats.entries import messages
from offload.formats.manifest import Entry, Manifest
from offload.offloader import Attempt, LedgerOffloader, ReadHandle
from offload.position import AtOffset, AtTime, Place, Position
from offload.source import chunk_holding
from offload.tier.fragment_writer import windows_of

WINDOW_SIZE_BYTES: Final = 4 * 1024 * 1024
FIRST_WINDOW_SIZE_BYTES: Final = 256 * 1024
"""The first window is small, so that a reader of one message fetches little and has it soon."""

IN_FLIGHT: Final = 4


@dataclass(frozen=True, slots=True)
class Window:
    """Stored chunks, back to back and checked, with the rows that say what they are.

    `rows["position"]` counts from the beginning of an object; `rows["position"] - rows["position"][0]`
    from the beginning of `data`.
    """

    rows: ChunkTable
    data: bytes
    where: str


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
    async def open(cls, offloader: LedgerOffloader, stream: str) -> StreamReader:
        """A reader of the newest manifest. Raises `NotOffloaded` where there is none."""
        return cls(offloader, await offloader.load_manifest(stream))

    async def offset_of(self, position: Position) -> int:
        """The offset from which a reader of this position is served.

        An offset below the first becomes the first. A time, and `last`, become the first offset of
        a chunk; where no chunk fits, `next_offset`. Raises `NotOffloaded` for an offset beyond
        `next_offset`. Costs one request for an index where a chunk must be found, else none.
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
        return WindowStream(self, offset, self._in_flight)

    async def messages(self, offset: int) -> AsyncGenerator[Messages, None]:
        """The messages from `offset` on, chunk by chunk; chunks without any are passed over."""
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
        rows = np.flatnonzero(self.manifest.entries["messages"])
        if not len(rows):
            return self.manifest.next_offset
        async with await self.open_entry(self.manifest.entry(int(rows[-1]))) as handle:
            table = await handle.table()
            return int(table["offset"][table["type"] == ChunkType.USER][-1])

    async def _first_since(self, timestamp_ms: int) -> int:
        # The entry's last timestamp is its greatest: entries before this one hold nothing that fits.
        late = self.manifest.entries["last_timestamp_ms"] >= timestamp_ms
        if not late.any():
            return self.manifest.next_offset
        async with await self.open_entry(self.manifest.entry(int(late.argmax()))) as handle:
            table = await handle.table()
            return int(table["offset"][(table["timestamp_ms"] >= timestamp_ms).argmax()])


class WindowStream:
    """An asynchronous iterator of windows that keeps several requests in flight, across fragments too.

    The number grows by one with each window taken, so that a reader of one message fetches little. An
    error ends it where it belongs: whatever stands before it is handed out first.
    """

    def __init__(self, reader: StreamReader, offset: int, in_flight_max: int) -> None:
        self._reader, self._offset = reader, offset
        self._in_flight, self._in_flight_max = 1, in_flight_max
        entries = reader.manifest.entries
        nexts = entries["first_offset"] + entries["records"]
        self._row = int(np.searchsorted(nexts, np.uint64(offset), side="right"))
        self._opening: asyncio.Future[ReadHandle] | None = None
        self._handles: list[ReadHandle] = []
        self._planned: deque[tuple[ReadHandle, ChunkTable]] = deque()
        self._fetching: deque[tuple[ReadHandle, ChunkTable, asyncio.Future[bytes]]] = deque()
        self._end: OffloadError | None = None

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> Window:
        """The next window. Raises `Corrupt` at the first chunk that does not hold."""
        if self._end is None:
            try:
                await self._fill()
            except OffloadError as error:
                self._end = error
        if not self._fetching:
            if self._end is not None:
                raise self._end
            raise StopAsyncIteration
        handle, rows, fetched = self._fetching.popleft()
        try:
            data = await fetched
        except Corrupt as damage:
            await self._cancel()
            self._end = damage
            rows = rows[rows["position"] + rows["size_bytes"] <= damage.position]
            if not len(rows):
                raise
            data = await handle.read(rows)
        self._in_flight = min(self._in_flight + 1, self._in_flight_max)
        return Window(rows, data, handle.where)

    async def aclose(self) -> None:
        """Cancel what is in flight and release the handles. Idempotent."""
        await self._cancel()
        for handle in self._handles:
            await handle.aclose()

    async def _cancel(self) -> None:
        waiting: list[asyncio.Future[Any]] = [fetched for _, _, fetched in self._fetching]
        if self._opening is not None:
            waiting.append(self._opening)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        self._fetching.clear()
        self._opening = None

    async def _fill(self) -> None:
        while len(self._fetching) < self._in_flight:
            if not self._planned and not await self._plan_next_fragment():
                return
            handle, rows = self._planned.popleft()
            self._fetching.append((handle, rows, asyncio.ensure_future(handle.read(rows))))

    async def _plan_next_fragment(self) -> bool:
        if self._opening is None:
            self._open_next()
        if self._opening is None:
            return False
        handle = await self._opening
        self._handles.append(handle)
        self._opening = None
        self._open_next()  # so that its index is there when this fragment ends
        table = await handle.table()
        start = chunk_holding(table, self._offset)
        rows = table[int(np.searchsorted(table["offset"], start)) :]
        if len(self._handles) == 1:
            first = next(windows_of(rows, size_bytes=FIRST_WINDOW_SIZE_BYTES))
            self._planned.append((handle, first))
            rows = rows[len(first) :]
        self._planned.extend((handle, window) for window in windows_of(rows, size_bytes=WINDOW_SIZE_BYTES))
        return True

    def _open_next(self) -> None:
        manifest = self._reader.manifest
        if self._row < manifest.fragments:
            self._opening = asyncio.ensure_future(self._reader.open_entry(manifest.entry(self._row)))
            self._row += 1


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
