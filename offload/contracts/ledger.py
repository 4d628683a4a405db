"""The contract of a ledger that can be read: `ReadHandle`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Self

from offload.contracts.store import Buffer
from offload.model.chunk_table import WINDOW_SIZE_BYTES, ChunkTable, windows_of

__all__ = ["ReadHandle"]


class ReadHandle(ABC):
    """A snapshot [first_offset, next_offset) of one ledger, sealed or still open.

    **Snapshots do not move.** The range, the table and the bytes behind it are the same at every call.
    **Chunks are whole.** The range begins and ends with a chunk.

    Handles of a source promise no checks: the offloader checks every byte that it takes from them.
    Handles of a tier promise that `read` returns only chunks whose checksums match, and raises `Corrupt`
    otherwise. However the chunks are stored, it fetches at most 512 KiB beside them. If the type of a chunk
    is only in the chunk, `table` may also read the chunks that have one record, and gaps of at most 1 MiB
    between them: at most all chunks once.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def ledger_id(self) -> int:
        """The id of the ledger."""

    @property
    @abstractmethod
    def first_offset(self) -> int:
        """The offset of the first record."""

    @property
    @abstractmethod
    def next_offset(self) -> int:
        """The first offset after the last record."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The file or object, for messages."""

    @abstractmethod
    async def table(self) -> ChunkTable:
        """Return one row per chunk of the range, in order. Only this handle can interpret `position`."""

    @abstractmethod
    async def read(self, rows: ChunkTable) -> Buffer:
        """Return the stored chunks of `rows`, a slice of the table, back to back.

        They are valid for as long as the caller holds them or a part of them (`Buffer`).
        Raises `Corrupt` if bytes are missing, and `TryAgain` if the source is gone for now.
        """

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
        """Return what `read` returns. The caller is likely to read `then`, the rows behind, next, in order.

        Optional: a handle of a tier can get all of them by one request.
        """
        return await self.read(rows)

    def windows(self, rows: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
        """Yield `rows`, a slice of the table, in runs of about `size_bytes` that are cheap to read.

        The same rows yield the same runs at every call. Optional: by default a run ends with the chunk that
        brings it to `size_bytes`.
        """
        return windows_of(rows, size_bytes=size_bytes)

    async def modified_ms(self) -> int | None:
        """Return when the ledger was last written, in milliseconds since 1970. None if nothing shows it.

        Optional: a ledger in a file has the file's time. It bounds the timestamps of chunks, which a clock
        that was wrong may have made.
        """
        return None

    def unknown_sections(self) -> Mapping[str, int]:
        """Return the names of sections of other programs, each with the number of fragments that have one.

        They lie beside the chunks that were opened until now, and a copy of the chunks lacks them. Optional:
        by default there are none.
        """
        return {}

    async def aclose(self) -> None:
        """Release files and connections. Idempotent."""

    async def __aenter__(self) -> Self:
        """Return the handle. The exit closes it."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
