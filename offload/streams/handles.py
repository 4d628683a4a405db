"""Ledgers without a file: chunks in memory, and a part of another ledger.

They are for brokers that build their chunks themselves, and for tests.
"""

from __future__ import annotations

from collections.abc import Sequence

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Buffer
from offload.errors import Misuse
from offload.formats.chunk import scan
from offload.model.chunk_table import ChunkTable, row_from, rows_from

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


class CutHandle(ReadHandle):
    """A part of another handle's snapshot, from one chunk's offset to another's."""

    __slots__ = ("_first_offset", "_next_offset", "_whole")

    def __init__(self, whole: ReadHandle, *, first_offset: int, next_offset: int) -> None:
        self._whole, self._first_offset, self._next_offset = whole, first_offset, next_offset

    @property
    def ledger_id(self) -> int:
        """The id of the whole handle's ledger."""
        return self._whole.ledger_id

    @property
    def first_offset(self) -> int:
        """Offset of the first record of the part."""
        return self._first_offset

    @property
    def next_offset(self) -> int:
        """First offset after the part."""
        return self._next_offset

    @property
    def where(self) -> str:
        """The file or object, for messages."""
        return self._whole.where

    async def table(self) -> ChunkTable:
        """Return the rows of the part. Raises `Misuse` if it does not begin and end with a chunk."""
        table = rows_from(await self._whole.table(), self._first_offset)
        rows = table[: row_from(table, self._next_offset)]
        if int(rows["offset"][-1]) + int(rows["records"][-1]) != self._next_offset:
            raise Misuse(f"no chunk of {self.where} ends at offset {self._next_offset}")
        return rows

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return the bytes of these rows, as the whole handle reads them."""
        return await self._whole.read(rows)

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
        """Return the bytes of these rows, as the whole handle reads them."""
        return await self._whole.read_on(rows, then)

    async def aclose(self) -> None:
        """Do nothing: the owner of the whole handle closes it."""
