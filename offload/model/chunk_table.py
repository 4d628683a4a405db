"""A run of chunks as a table with one row per chunk, and the functions that cut runs.

Invariant: the rows of a table are in order. Each begins at the byte and at the offset at which the row before
it ends. `formats.chunk.scan` makes tables and checks that.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.ground.errors import Misuse

__all__ = ["CHUNK_TABLE", "WINDOW_SIZE_BYTES", "ChunkTable", "ChunkType", "cut", "row_from", "windows_of"]


CHUNK_TABLE: Final = np.dtype(
    [
        ("offset", "u8"),  # of the chunk's first record
        ("timestamp_ms", "i8"),
        ("position", "u8"),  # of the chunk's first byte, in its file or object
        ("size_bytes", "u8"),  # of the whole stored chunk
        ("records", "u4"),
        ("type", "u1"),  # a ChunkType
    ]
)
"""One chunk of a run, in the machine's own byte order: it exists in memory only and is not a format."""

ChunkTable: TypeAlias = npt.NDArray[np.void]
"""An array of `CHUNK_TABLE` rows that keeps the invariants above."""


def row_from(table: ChunkTable, offset: int) -> int:
    """Return the row of the first chunk that begins at or after `offset`, or the number of rows."""
    # As u64: NumPy would compare a plain integer as a float, which is not exact from 2**53 on.
    return int(np.searchsorted(table["offset"], np.uint64(offset)))


def row_holding(table: ChunkTable, offset: int) -> int:
    """Return the row of the chunk that holds `offset`, or 0 if `offset` is before the first chunk."""
    return max(int(np.searchsorted(table["offset"], np.uint64(offset), side="right")) - 1, 0)


class ChunkType(IntEnum):
    """The content of a chunk. Only `USER` chunks are delivered to readers."""

    USER = 0
    TRACKING_DELTA = 1
    TRACKING_SNAPSHOT = 2


def rows_from(table: ChunkTable, first_offset: int) -> ChunkTable:
    """Return the rows of chunks from `first_offset` on. Raises `Misuse` if no chunk begins at this offset."""
    row = row_from(table, first_offset)
    if row == len(table) or int(table["offset"][row]) != first_offset:
        raise Misuse(f"no chunk begins at offset {first_offset}")
    return table[row:]


WINDOW_SIZE_BYTES: Final = 4 * 1024 * 1024
"""The size that is read, checked and written at a time.

Each window takes two turns of threads, which cost more than the bytes of a small window.
"""


def cut(table: ChunkTable, *, size_bytes: int, count_max: int) -> Iterator[ChunkTable]:
    """Yield runs of chunks. Each ends with the chunk that brings it to `size_bytes`, or has `count_max`."""
    ends = np.cumsum(table["size_bytes"], dtype=np.uint64)
    start = 0
    while start < len(table):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, np.uint64(before + size_bytes))) + 1
        stop = min(stop, start + count_max)
        yield table[start:stop]
        start = stop


def windows_of(table: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
    """Yield runs of chunks to read at once. Each has about `size_bytes`, or is a single larger chunk.

    A run also ends if the next chunk does not follow it in the bytes: a handle may join several objects.
    """
    ends = table["position"] + table["size_bytes"]
    breaks = np.flatnonzero(table["position"][1:] != ends[:-1]) + 1
    for part in np.split(table, breaks):
        yield from cut(part, size_bytes=size_bytes, count_max=len(part))
