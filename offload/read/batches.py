"""Stored chunks on their way to a consumer: windows of them, runs, single ones, and the messages of each."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from offload.contracts.chunks import StoredChunk
from offload.contracts.store import Buffer
from offload.formats.chunk import CHUNK_HEADER
from offload.formats.entries import messages
from offload.formats.records import RecordRun
from offload.model.chunk_table import ChunkTable, ChunkType

__all__ = ["MessageRun", "Messages", "PartRun", "WholeRun", "Window", "messages_of"]

_SIZES: Final = struct.Struct(">IIB")
"""The sizes of data, trailer and filter, as they follow each other in a chunk header."""

_SIZES_AT: Final = CHUNK_HEADER.offset_of("data_size_bytes")


@dataclass(frozen=True, slots=True)
class Window:
    """Stored chunks, back to back and checked, with the rows that describe them.

    `rows["position"]` counts from the beginning of an object; `rows["position"] - rows["position"][0]`
    from the beginning of `data`.

    `data` is valid for as long as the consumer holds it, a slice of it, or an array made of it. Its memory is
    used again when the last of them is gone, and not before: there is nothing to release. A slice keeps the
    memory of the whole window. So copy a part that is kept for long: `bytes(window.data[a:b])`.
    """

    rows: ChunkTable
    data: Buffer
    where: str

    def cut(self, run: slice) -> Window:
        """Return a run of the chunks as a window of the same bytes."""
        rows = self.rows[run]
        start = int(rows["position"][0]) - int(self.rows["position"][0])
        return Window(rows, memoryview(self.data)[start : start + int(rows["size_bytes"].sum())], self.where)


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of one chunk, from `offset` on. Body k has offset `offset + k`.

    Bodies are copies: a consumer that keeps one keeps no other bytes in memory.
    """

    offset: int
    timestamp_ms: int
    bodies: list[bytes]
    part: int = 1
    """The number of the part of the stream that holds them."""


@dataclass(frozen=True, slots=True)
class PartRun:
    """The messages of several chunks of one part of a stream. Bodies are in the memory of a window."""

    part: int
    run: RecordRun


class MessageRun(ABC):
    """A run of chunks that a reader has come to."""

    __slots__ = ("next_offset",)

    def __init__(self) -> None:
        self.next_offset = 0
        """The first offset behind the chunks that were taken from here; 0 if none was."""

    @abstractmethod
    def window(self) -> Window:
        """Take all chunks that are left."""

    @abstractmethod
    def batches(self, part: int) -> Iterator[Messages]:
        """Take the messages of the chunks that are left, one chunk after the other, as far as they are in
        memory.
        """

    @abstractmethod
    def chunks(self, part: int) -> Iterator[StoredChunk]:
        """Take the chunks that are left, one after the other, as far as they are in memory."""


class WholeRun(MessageRun):
    """The chunks of a window, which it keeps in memory."""

    __slots__ = ("_window",)

    def __init__(self, window: Window) -> None:
        self._window = window
        self.next_offset = int(window.rows["offset"][-1]) + int(window.rows["records"][-1])

    def window(self) -> Window:
        """Return the window."""
        return self._window

    def batches(self, part: int) -> Iterator[Messages]:
        """Yield the messages of the window."""
        return messages_of(self._window, part=part)

    def chunks(self, part: int) -> Iterator[StoredChunk]:
        """Yield the chunks of the window."""
        return chunks_in(self._window, part=part)


ChunkRow = tuple[int, int, int, int, int, int]
"""A row of a chunk table as plain integers, in the order of its columns."""


def messages_of(window: Window, *, part: int = 1) -> Iterator[Messages]:
    """Yield the messages of every user chunk in a window, in order."""
    begin = int(window.rows["position"][0])
    for row in window.rows.tolist():
        if (batch := batch_of(window, begin, row, part)) is not None:
            yield batch


def batch_of(window: Window, begin: int, row: ChunkRow, part: int) -> Messages | None:
    """Return the messages of a chunk in a window that begins at `begin`; None if it is no user chunk."""
    offset, timestamp_ms, position, size, _, kind = row
    if kind != ChunkType.USER:
        return None
    chunk = memoryview(window.data)[position - begin : position - begin + size]
    return Messages(offset, timestamp_ms, messages(chunk, where=window.where, position=position), part)


def chunks_in(window: Window, *, part: int = 1) -> Iterator[StoredChunk]:
    """Yield every chunk in a window, in order."""
    begin = int(window.rows["position"][0])
    for row in window.rows.tolist():
        yield chunk_of(window, begin, row, part)


def chunk_of(window: Window, begin: int, row: ChunkRow, part: int) -> StoredChunk:
    """Return the chunk of a row in a window that begins at `begin` of its object."""
    offset, timestamp_ms, position, size, records, kind = row
    raw = memoryview(window.data)[position - begin : position - begin + size]
    data_size, _, filter_size = _SIZES.unpack_from(raw, _SIZES_AT)
    data_at = CHUNK_HEADER.size_bytes + filter_size
    # By position, because names double the cost of a small chunk.
    return StoredChunk(
        part, offset, timestamp_ms, records, kind, raw,
        CHUNK_HEADER.size_bytes, data_at, data_at + data_size, window.where, position,
    )  # fmt: skip


def messages_in(chunk: StoredChunk) -> Messages | None:
    """Return the messages of a chunk; None if it is no user chunk."""
    if chunk.type != ChunkType.USER:
        return None
    bodies = messages(chunk.raw, where=chunk.where, position=chunk.position)
    return Messages(chunk.offset, chunk.timestamp_ms, bodies, chunk.part)
