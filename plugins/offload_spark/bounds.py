"""What a read may leave out: streams, offsets and times that its filters rule out.

Invariant: bounds only ever leave out what no filter would let through; they may let through more, because
Spark filters every row again.
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
    """Offsets in [first_offset, next_offset), times from first to last, both included."""

    first_offset: int = 0
    next_offset: int = OFFSET_MAX
    first_timestamp_ms: int = TIMESTAMP_MS_MIN
    last_timestamp_ms: int = TIMESTAMP_MS_MAX
    streams: frozenset[str] | None = None
    """None: any."""

    def and_offsets(self, first_offset: int, next_offset: int) -> ScanBounds:
        """These offsets only."""
        return replace(
            self,
            first_offset=max(self.first_offset, first_offset),
            next_offset=min(self.next_offset, next_offset),
        )

    def and_times(self, first_ms: int, last_ms: int) -> ScanBounds:
        """These times only."""
        return replace(
            self,
            first_timestamp_ms=max(self.first_timestamp_ms, first_ms),
            last_timestamp_ms=min(self.last_timestamp_ms, last_ms),
        )

    def and_streams(self, names: frozenset[str]) -> ScanBounds:
        """These streams only."""
        return replace(self, streams=names if self.streams is None else self.streams & names)

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is within."""
        return (
            self.first_offset >= self.next_offset
            or self.first_timestamp_ms > self.last_timestamp_ms
            or self.streams == frozenset()
        )

    def holds_stream(self, name: str) -> bool:
        """Whether the stream is within."""
        return self.streams is None or name in self.streams

    def of_fragments(self, entries: Entries) -> npt.NDArray[np.bool_]:
        """Which of these fragments have something within."""
        nexts = entries["first_offset"] + entries["records"]
        wanted: npt.NDArray[np.bool_] = nexts > np.uint64(self.first_offset)
        wanted &= entries["first_offset"] < np.uint64(self.next_offset)
        wanted &= entries["last_timestamp_ms"] >= self.first_timestamp_ms
        wanted &= entries["first_timestamp_ms"] <= self.last_timestamp_ms
        wanted &= entries["messages"] > 0
        return wanted

    def of_chunks(self, rows: ChunkTable) -> npt.NDArray[np.bool_]:
        """Which of these chunks have something within."""
        wanted: npt.NDArray[np.bool_] = rows["offset"] + rows["records"] > np.uint64(self.first_offset)
        wanted &= rows["offset"] < np.uint64(self.next_offset)
        wanted &= rows["timestamp_ms"] >= self.first_timestamp_ms
        wanted &= rows["timestamp_ms"] <= self.last_timestamp_ms
        wanted &= rows["type"] == ChunkType.USER
        return wanted
