"""The contract of a ledger that can be read: `ReadHandle`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from offload.model.chunk_table import ChunkTable

__all__ = ["ReadHandle"]


class ReadHandle(ABC):
    """A snapshot [first_offset, next_offset) of one ledger, sealed or still open.

    **Snapshots do not move.** The range, the table and the bytes behind it are the same at every call.
    **Chunks are whole.** The range begins and ends with a chunk.

    Handles of a source promise no checks: the offloader checks every byte that it takes from them.
    Handles of a tier promise that `read` returns only chunks whose checksums hold, and raises
    `Corrupt` otherwise.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def ledger_id(self) -> int:
        """The ledger."""

    @property
    @abstractmethod
    def first_offset(self) -> int:
        """Offset of the first record."""

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """First offset after the last record."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The file or object, for messages."""

    @abstractmethod
    async def table(self) -> ChunkTable:
        """One row per chunk of the range, in order. `position` is the handle's own and means nothing else."""

    @abstractmethod
    async def read(self, rows: ChunkTable) -> bytes:
        """The stored chunks of `rows`, a slice of the table, back to back.

        Raises `Corrupt` where bytes are missing, `TryAgain` where the source is gone for now.
        """

    async def aclose(self) -> None:
        """Release files and connections. Idempotent."""

    async def __aenter__(self) -> Self:
        """Close on the way out."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
