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

    filter_at: int
    """Where the sections behind the header begin in `raw`: the filter, the entries, and the trailer."""

    data_at: int
    trailer_at: int
    where: str
    """The object that has it."""

    position: int
    """The position of its first byte in the object."""

    @property
    def next_offset(self) -> int:
        """The offset behind the last record."""
        return self.offset + self.records

    @property
    def header(self) -> memoryview:
        """The header, in the broker's layout (`formats.layout`)."""
        return self.raw[: self.filter_at]

    @property
    def filter(self) -> memoryview:
        """The bloom filter (`formats.bloom`). Empty if no record has a filter value."""
        return self.raw[self.filter_at : self.data_at]

    @property
    def data(self) -> memoryview:
        """The entries (`formats.entries`)."""
        return self.raw[self.data_at : self.trailer_at]

    @property
    def trailer(self) -> memoryview:
        """The broker's own tracking records."""
        return self.raw[self.trailer_at :]
