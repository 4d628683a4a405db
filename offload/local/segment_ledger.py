"""A segment as a ledger: the index gives its table, and one positioned read the bytes of each window.

The file is opened read-only, at the first read: a stream may have more segments than a process may have
open files. A closed ledger opens its file again at the next read.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Buffer
from offload.local.files import explained, open_file, read_at, read_into, shown_path
from offload.local.pair import Pair
from offload.model.chunk_table import ChunkTable
from offload.store.buffers import POOLED_SIZE_BYTES_MIN, BufferPool

__all__ = ["SegmentLedger"]


class SegmentLedger(ReadHandle):
    """A snapshot of one segment, sealed or still open. Its id is the offset of its first chunk.

    `load` returns the table. For a sealed segment it reads the index, and raises `Corrupt` if index and
    segment do not match. Then nothing of this ledger can be read. The ledgers before it still can. Windows
    are read into memory of `pool`.
    """

    __slots__ = ("_descriptor", "_load", "_next_offset", "_opening", "_pair", "_pool")

    def __init__(
        self, pair: Pair, *, next_offset: int, load: Callable[[], ChunkTable], pool: BufferPool
    ) -> None:
        self._pair, self._next_offset, self._load, self._pool = pair, next_offset, load, pool
        self._descriptor: int | None = None
        self._opening = threading.Lock()

    @property
    def ledger_id(self) -> int:
        """The offset of the first chunk. The files are named after it too."""
        return self._pair.offset

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return self._pair.offset

    @property
    def next_offset(self) -> int:
        """First offset after the last record."""
        return self._next_offset

    @property
    def where(self) -> str:
        """The segment file."""
        return shown_path(self._pair.segment)

    async def table(self) -> ChunkTable:
        """Return one row for each chunk; `position` is the byte in the segment file at which it begins."""
        return await asyncio.to_thread(self._load)

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return the bytes from the first row's position to the end of the last row: one read, in a thread.

        Returns fewer if the file ends before. Raises `TryAgain` if the broker has deleted the file.
        """
        if not len(rows):
            return b""
        start = int(rows["position"][0])
        stop = int(rows["position"][-1]) + int(rows["size_bytes"][-1])
        return await asyncio.to_thread(self._read, start, stop - start)

    async def modified_ms(self) -> int:
        """Return the time of the last write to the segment. Raises `TryAgain` if the broker deleted it."""
        return await asyncio.to_thread(self._modified_ms)

    async def aclose(self) -> None:
        """Close the file if it is open. No read may be running."""
        with self._opening:
            # Taken away under the lock: a second close could hit a file that got the same number since.
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _read(self, start: int, size_bytes: int) -> Buffer:
        descriptor, path = self._open(), self._pair.segment
        if size_bytes < POOLED_SIZE_BYTES_MIN:
            return read_at(descriptor, start, size_bytes, path=path)
        memory = self._pool.take(size_bytes)
        filled = read_into(memory, descriptor, start, path=path)
        return memory[:filled].toreadonly()

    def _modified_ms(self) -> int:
        with explained("look at", self._pair.segment):
            return os.stat(self._pair.segment).st_mtime_ns // 1_000_000

    def _open(self) -> int:
        with self._opening:  # several windows are read at a time, in threads of their own
            # Once open, the file outlives its deletion by the broker: a running upload is not cut off.
            if self._descriptor is None:
                self._descriptor = open_file(self._pair.segment)
            return self._descriptor
