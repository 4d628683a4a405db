"""A stored chunk as readers hand it on: its sections as views of checked bytes."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["StoredChunk"]


class StoredChunk(NamedTuple):
    """One chunk as it is stored, checked and whole, of any type.

    `raw` and its sections are views, valid for as long as somebody holds them. A view keeps the memory of the
    whole window that was read. So copy what is kept for long.
    """

    part: int
    """The number of the part of the stream that holds it."""

    offset: int
    timestamp_ms: int
    records: int
    """The offsets that it takes."""

    type: int
    """A `ChunkType`."""

    raw: memoryview
    """All sections, back to back."""

    header: memoryview
    filter: memoryview
    """The bloom filter (`formats.bloom`). Empty if no record has a filter value."""

    data: memoryview
    """The entries (`formats.entries`)."""

    trailer: memoryview
    """The broker's own tracking records."""

    where: str
    """The object that has it."""

    position: int
    """The position of its first byte in the object."""

    @property
    def next_offset(self) -> int:
        """The offset behind the last record."""
        return self.offset + self.records
