"""The contract of a source: a broker's local data, read and never changed.

A plugin declares a source by a URL scheme. The framework asks it for streams, takes a snapshot of
each, and copies the snapshot's ledgers. Checking bytes is the framework's part; saying which bytes
the broker itself would still show after a crash is the source's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from offload.contracts.ledger import ReadHandle
from offload.errors import Corrupt, NotOffloaded
from offload.model.chunk_table import ChunkType, row_from, row_holding
from offload.model.position import AtEdge, AtOffset, AtTime, Position

__all__ = ["Snapshot", "Source", "SourceStream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a stream's source holds at one moment: ledgers that follow each other without hole.

    Appends and retention of the broker do not move it, though files may vanish behind it: reading
    then raises `TryAgain`. Close it to release the files.
    """

    ledgers: Sequence[ReadHandle]
    first_offset: int
    next_offset: int
    epoch: int = 0
    """The broker's own leader epoch of the newest chunk; 0 where it has none."""

    damage: Corrupt | None = None
    """Why the snapshot ends before the source does, where damage is the reason."""

    async def chunk_at(self, offset: int) -> bytes | None:
        """The stored chunk that begins at `offset`, unchecked; None where no chunk begins there."""
        for ledger in self.ledgers:
            if ledger.first_offset <= offset < ledger.next_offset:
                table = await ledger.table()
                row = row_from(table, offset)
                rows = table[row : row + 1]
                return await ledger.read(rows) if rows["offset"].tolist() == [offset] else None
        return None

    async def attach(self, position: Position) -> int:
        """The offset of the chunk at which a reader of this position begins.

        An offset below the first, or a time before all, attaches at the first chunk; beyond the
        last, at `next_offset`. Of several chunks that a time fits, the first in the whole stream:
        osiris itself can miss some where one millisecond spans two segments.
        """
        match position:
            case AtEdge.FIRST:
                return self.first_offset
            case AtEdge.NEXT:
                return self.next_offset
            case AtEdge.LAST:
                return await self._last_with_messages()
            case AtOffset(offset):
                return await self._holding(offset)
            case AtTime(timestamp_ms):
                return await self._first_since(timestamp_ms)

    async def aclose(self) -> None:
        """Release the files. Idempotent."""
        for ledger in self.ledgers:
            await ledger.aclose()

    async def __aenter__(self) -> Self:
        """Close on the way out."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def _last_with_messages(self) -> int:
        for ledger in reversed(self.ledgers):
            table = await ledger.table()
            users = table["offset"][table["type"] == ChunkType.USER]
            if len(users):
                return int(users[-1])
        return self.next_offset

    async def _holding(self, offset: int) -> int:
        if offset >= self.next_offset:
            return self.next_offset
        for ledger in self.ledgers:
            if offset < ledger.next_offset:
                table = await ledger.table()
                return int(table["offset"][row_holding(table, offset)])
        return self.next_offset

    async def _first_since(self, timestamp_ms: int) -> int:
        for ledger in self.ledgers:
            table = await ledger.table()
            late = table["timestamp_ms"] >= timestamp_ms
            if late.any():
                return int(table["offset"][late.argmax()])
        return self.next_offset


class SourceStream(ABC):
    """One stream of a source."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The stream's name on a tier. The same data always has the same name."""

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """What the broker would show of the stream now, torn tails left out by its own rules.

        Changes no file. Raises `Corrupt` where nothing of the stream can be read, `TryAgain` where
        the broker moved files meanwhile.
        """


class Source(ABC):
    """A broker's local data, opened by URL."""

    __slots__ = ()

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the data is, for messages."""

    @abstractmethod
    async def streams(self) -> Sequence[SourceStream]:
        """The streams, in order of names. Raises `NotOffloaded` where the place holds none."""

    @property
    @abstractmethod
    def notes(self) -> Sequence[str]:
        """What was passed over by `streams`, and why; one line each, for people."""

    async def stream(self, name: str) -> SourceStream:
        """The stream of this name. Raises `NotOffloaded` where there is none."""
        for stream in await self.streams():
            if stream.name == name:
                return stream
        raise NotOffloaded(f"{self.url} has no stream {name!r}")
