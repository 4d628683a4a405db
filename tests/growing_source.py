"""A source in memory that grows, and the clock of a test."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from offload import MemoryHandle, Snapshot, Source, SourceStream, build_chunk
from offload.ground.errors import Corrupt, OffloadError
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import Manifest

BODY_SIZE_BYTES = 1000


class DamagedHandle(MemoryHandle):
    """A ledger whose table cannot be read."""

    async def table(self) -> ChunkTable:
        """Raise the damage."""
        raise Corrupt("index", self.where, expected="a sound one", found="a damaged one")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSnapshot(Snapshot):
    """A snapshot that says when it is closed."""

    on_close: Callable[[], None]

    async def aclose(self) -> None:
        """Note the end. The handles stay, for the next snapshot."""
        self.on_close()


@dataclass
class GrowingStream(SourceStream):
    """A stream whose ledgers grow. `error` is raised by its next looks, until it is removed."""

    name: str = "orders"  # type: ignore[misc]  # a field instead of a property
    ledgers: list[list[bytes]] = field(default_factory=lambda: [[]])
    first_offset: int = 0
    next_offset: int = 0
    committed_offset: int | None = None
    epoch: int = 1
    error: OffloadError | None = None
    snapshots: int = 0
    snapshots_open: int = 0
    damage: Corrupt | None = None
    """The damage at which its snapshots end."""
    damaged: list[int] = field(default_factory=list)
    """The first offsets of ledgers whose tables are damaged."""
    _handles: dict[int, tuple[int, MemoryHandle]] = field(default_factory=dict, repr=False)
    """The ledgers as they were last shown, by the identity of their list, which lives as long as they do."""

    def append(self, chunks: int = 1, *, records: int = 10, timestamp_ms: int = 1) -> None:
        """Append chunks to the newest ledger."""
        for _ in range(chunks):
            bodies = [bytes([self.epoch]) * BODY_SIZE_BYTES] * records
            self.ledgers[-1].append(
                build_chunk(bodies, offset=self.next_offset, timestamp_ms=timestamp_ms, epoch=self.epoch)
            )
            self.next_offset += records

    def roll(self) -> None:
        """Begin a new ledger."""
        self.ledgers.append([])

    def drop_first_ledger(self) -> None:
        """Delete the oldest ledger, as the broker's retention does."""
        self.first_offset = MemoryHandle(self.ledgers[1]).first_offset
        self._handles.pop(id(self.ledgers[0]), None)
        del self.ledgers[0]

    async def mark(self) -> Hashable:
        """Return the extent of the stream."""
        if self.error is not None:
            raise self.error
        return self.first_offset, self.next_offset

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return the ledgers as they are now."""
        self.snapshots += 1
        if self.error is not None:
            raise self.error
        self.snapshots_open += 1
        return CountedSnapshot(
            ledgers=[self._handle(chunks) for chunks in self.ledgers if chunks],
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            epoch=self.epoch,
            committed_offset=self.committed_offset,
            damage=self.damage,
            on_close=self._closed,
        )

    def _closed(self) -> None:
        self.snapshots_open -= 1

    def _handle(self, chunks: list[bytes]) -> MemoryHandle:
        count, handle = self._handles.get(id(chunks), (0, None))
        if handle is None or count != len(chunks):
            handle = MemoryHandle(list(chunks))
            if handle.first_offset in self.damaged:
                handle = DamagedHandle(list(chunks))
            self._handles[id(chunks)] = len(chunks), handle
        return handle


@dataclass
class GrowingSource(Source):
    """A source with streams that a test adds and removes."""

    held: list[GrowingStream] = field(default_factory=list)
    url = "memory://source"  # type: ignore[assignment]
    notes = ()  # type: ignore[assignment]

    async def streams(self) -> Sequence[SourceStream]:
        """Return the streams that there are now."""
        return sorted(self.held, key=lambda stream: stream.name)
