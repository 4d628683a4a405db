"""Handles of the core: a part of another ledger, and one whose table is measured."""

from __future__ import annotations

from abc import abstractmethod

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Buffer
from offload.ground.errors import Misuse
from offload.model.chunk_table import ChunkTable, row_from, rows_from


class MeasuredHandle(ReadHandle):
    """A ledger without stored chunks: its records are read to make the table, so `table` finds any damage."""

    __slots__ = ()

    @abstractmethod
    async def sound_table(self) -> ChunkTable:
        """Return the rows before the record whose damage `table` has raised, perhaps none."""


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
