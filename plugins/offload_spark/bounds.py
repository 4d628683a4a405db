"""The bounds of a read: the streams, offsets and times that its filters allow.

Invariant: bounds exclude only records that the filters exclude. They may include more, because Spark filters
every row again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entries
from offload.model.position import OFFSET_MAX

TIMESTAMP_MS_MIN: Final = -(2**63)
TIMESTAMP_MS_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanBounds:
    """The bounds: offsets in [first_offset, next_offset), and times from first to last, both included."""

    first_offset: int = 0
    next_offset: int = OFFSET_MAX
    first_timestamp_ms: int = TIMESTAMP_MS_MIN
    last_timestamp_ms: int = TIMESTAMP_MS_MAX
    streams: frozenset[str] | None = None
    """The allowed streams; None for all."""

    def and_offsets(self, first_offset: int, next_offset: int) -> ScanBounds:
        """Return these bounds, narrowed to offsets in [first_offset, next_offset)."""
        return replace(
            self,
            first_offset=max(self.first_offset, first_offset),
            next_offset=min(self.next_offset, next_offset),
        )

    def and_times(self, first_ms: int, last_ms: int) -> ScanBounds:
        """Return these bounds, narrowed to times from `first_ms` to `last_ms`."""
        return replace(
            self,
            first_timestamp_ms=max(self.first_timestamp_ms, first_ms),
            last_timestamp_ms=min(self.last_timestamp_ms, last_ms),
        )

    def and_streams(self, names: frozenset[str]) -> ScanBounds:
        """Return these bounds, narrowed to these streams."""
        return replace(self, streams=names if self.streams is None else self.streams & names)

    @property
    def is_empty(self) -> bool:
        """True if the bounds exclude everything."""
        return (
            self.first_offset >= self.next_offset
            or self.first_timestamp_ms > self.last_timestamp_ms
            or self.streams == frozenset()
        )

    def holds_stream(self, name: str) -> bool:
        """Return True if the bounds allow the stream."""
        return self.streams is None or name in self.streams

    def of_fragments(self, entries: Entries) -> npt.NDArray[np.bool_]:
        """Return a mask of the fragments that may have records within the bounds."""
        nexts = entries["first_offset"] + entries["records"]
        wanted: npt.NDArray[np.bool_] = nexts > np.uint64(self.first_offset)
        wanted &= entries["first_offset"] < np.uint64(self.next_offset)
        wanted &= entries["last_timestamp_ms"] >= self.first_timestamp_ms
        wanted &= entries["first_timestamp_ms"] <= self.last_timestamp_ms
        wanted &= entries["messages"] > 0
        return wanted

    def of_chunks(self, rows: ChunkTable) -> npt.NDArray[np.bool_]:
        """Return a mask of the chunks that may have records within the bounds."""
        wanted: npt.NDArray[np.bool_] = rows["offset"] + rows["records"] > np.uint64(self.first_offset)
        wanted &= rows["offset"] < np.uint64(self.next_offset)
        wanted &= rows["timestamp_ms"] >= self.first_timestamp_ms
        wanted &= rows["timestamp_ms"] <= self.last_timestamp_ms
        wanted &= rows["type"] == ChunkType.USER
        return wanted
