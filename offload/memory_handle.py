"""Chunks in memory as a ledger: for brokers that build their chunks themselves, and for tests."""

from __future__ import annotations

from collections.abc import Sequence

from offload.formats.chunk import ChunkTable, scan
from offload.offloader import ReadHandle


class MemoryHandle(ReadHandle):
    """A snapshot made of stored chunks (`formats.chunk_writer.build_chunk`) that follow each other.

    Raises `Corrupt` where a chunk's header breaks its rules or does not continue the offsets. The
    bytes are kept as one piece: hand over ledgers of a size that memory can hold.
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
        """As given, or the first offset."""
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
        """As given."""
        return self._where

    async def table(self) -> ChunkTable:
        """One row per chunk; `position` counts from the first."""
        return self._table

    async def read(self, rows: ChunkTable) -> bytes:
        """The bytes of these rows."""
        start = int(rows["position"][0])
        return self._data[start : start + int(rows["size_bytes"].sum())]
