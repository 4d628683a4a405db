"""Stored chunks on their way to a consumer: windows of them, runs of them, and the messages of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from offload.contracts.store import Buffer
from offload.formats.entries import messages
from offload.formats.records import RecordRun
from offload.model.chunk_table import ChunkTable, ChunkType

__all__ = ["MessageRun", "Messages", "PartRun", "WholeRun", "Window", "messages_of"]


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
