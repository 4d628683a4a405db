"""A ledger in memory: for brokers that build their chunks themselves, and for tests."""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Buffer
from offload.formats.chunk import scan
from offload.model.chunk_table import ChunkTable

__all__ = ["MemoryHandle"]


class MemoryHandle(ReadHandle):
    """A snapshot of stored chunks that follow each other (`formats.chunk_writer.build_chunk`).

    Raises `Corrupt` if a chunk's header breaks its rules or does not continue the offsets. The bytes are
    joined in memory, so memory must have room for the whole ledger.
    """

    def __init__(
        self, chunks: Sequence[bytes], *, ledger_id: int | None = None, where: str = "memory"
    ) -> None:
        self._data = b"".join(chunks)
        self._table = scan(self._data, where=where)
        self._ledger_id = self.first_offset if ledger_id is None else ledger_id
        self._where = where

    @property
    def ledger_id(self) -> int:
        """The id that was given, or else the first offset."""
        return self._ledger_id

    @property
    def first_offset(self) -> int:
        """Offset of the first record."""
        return int(self._table["offset"][0])

    @property
    def next_offset(self) -> int:
        """First offset after the last record."""
        return int(self._table["offset"][-1]) + int(self._table["records"][-1])

    @property
    def where(self) -> str:
        """The name that was given, for messages."""
        return self._where

    async def table(self) -> ChunkTable:
        """Return one row per chunk. `position` counts from the first chunk."""
        return self._table

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return the bytes of these rows."""
        start = int(rows["position"][0])
        return self._data[start : start + int(rows["size_bytes"].sum())]
