"""The broker of a simulated world: one log, which each new leader may cut before it continues.

A log records which leader wrote the chunk at each offset. A new leader keeps the log of the previous one up
to an offset, and writes other chunks from there on. Writers copy from the log that they saw, which may be an
older one. If the tier holds data that was cut since, an operator restores the broker's log from the tier.

The broker also records the chunks that the tier committed. Invariants: the chunk at an offset stays the same
as long as the stream's incarnation lives, and each chunk follows one that preceded it in a leader's log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from protocol_judge import Root
from protocol_world import CHUNK_RECORDS, Ledger, chunk, records_of

from offload.contracts.source import Snapshot

SEEN_CHUNKS: Final = 8
"""The number of chunks around an offset in a snapshot: enough to compare histories there."""


@dataclass(frozen=True)
class Log:
    """The log of one leader: the first offset and the leader of each part, in order."""

    reigns: tuple[tuple[int, int], ...]

    @property
    def leader(self) -> int:
        """Return the newest leader, which is also the broker's leader epoch."""
        return self.reigns[-1][1]

    def leader_at(self, offset: int) -> int:
        """Return the leader that wrote the chunk at this offset."""
        return next((leader for begin, leader in reversed(self.reigns) if begin <= offset), 1)

    def ledger(self, first_offset: int, next_offset: int) -> Ledger:
        """Return a range of the log."""
        return _ledger(self, first_offset, next_offset)

    def snapshot(self, offset: int) -> Snapshot:
        """Return the log around an offset, as a sync compares it with the tier."""
        span = SEEN_CHUNKS * CHUNK_RECORDS
        first = max(self.reigns[0][0], offset - span)
        ledger = self.ledger(first, offset + span)
        return Snapshot(
            ledgers=[ledger], first_offset=first, next_offset=ledger.next_offset, epoch=self.leader
        )


@lru_cache(4096)
def _ledger(log: Log, first_offset: int, next_offset: int) -> Ledger:
    offsets = range(first_offset, next_offset, CHUNK_RECORDS)
    raw = b"".join(chunk(offset, log.leader_at(offset)) for offset in offsets)
    return Ledger(first_offset, next_offset, raw=raw)


@dataclass
class Broker:
    """A broker, as the module's docstring describes it."""

    first_offset: int
    log: Log = field(init=False)
    logs: dict[int, Log] = field(default_factory=dict)
    """The log of each leader, as it was when that leader began."""
    committed: dict[tuple[bytes, int], int] = field(default_factory=dict)
    """The leader whose chunk was committed, by incarnation and offset."""

    def __post_init__(self) -> None:
        self._reign(((self.first_offset, 1),))

    def cut(self, offset: int) -> None:
        """Let a new leader continue from this offset. It drops the chunks behind it."""
        kept = tuple(reign for reign in self.log.reigns if reign[0] < offset)
        self._reign((*kept, (max(offset, self.first_offset), self.log.leader + 1)))

    def restore(self, root: Root) -> None:
        """Let a new leader continue at the end of the tier, with the chunks that the tier holds."""
        reigns: list[tuple[int, int]] = []
        for offset in range(self.first_offset, root.next_offset, CHUNK_RECORDS):
            leader = self.committed.get((root.incarnation, offset), 1)
            if not reigns or reigns[-1][1] != leader:
                reigns.append((offset, leader))
        self._reign((*reigns, (root.next_offset, self.log.leader + 1)))

    def _reign(self, reigns: tuple[tuple[int, int], ...]) -> None:
        self.log = Log(reigns)
        self.logs[self.log.leader] = self.log

    def wrote(self, root: Root, first_offset: int, next_offset: int, data: bytes) -> bool:
        """Return True if the data is a part of a leader's log that continues the committed chunks."""
        at = 0
        for offset in range(first_offset, next_offset, CHUNK_RECORDS):
            leader = self._leader_of(data, at, offset)
            if leader is None or self.committed.setdefault((root.incarnation, offset), leader) != leader:
                return False
            if offset > root.first_offset:  # otherwise a sync has nothing to compare
                before = self.committed[root.incarnation, offset - CHUNK_RECORDS]
                if not self._follows(before, leader, offset):
                    return False
            at += len(chunk(offset, leader))
        return at == len(data)

    def forget(self, incarnation: bytes, offset: int) -> None:
        """Forget the committed chunks from this offset on. Others may be committed there."""
        for key in [key for key in self.committed if key[0] == incarnation and key[1] >= offset]:
            del self.committed[key]

    def _follows(self, before: int, leader: int, offset: int) -> bool:
        """Return True if a log has a chunk of `leader` at this offset, behind one of `before`."""
        return any(
            (log.leader_at(offset - CHUNK_RECORDS), log.leader_at(offset)) == (before, leader)
            for log in self.logs.values()
        )

    def _leader_of(self, data: bytes, at: int, offset: int) -> int | None:
        return next((leader for leader in self.logs if data.startswith(chunk(offset, leader), at)), None)

    def records(self, incarnation: bytes, offset: int) -> list[bytes]:
        """Return the records that a reader of this incarnation must get for the chunk at this offset."""
        return records_of(offset, self.committed[incarnation, offset])

    def chunks(self, incarnation: bytes, first_offset: int, next_offset: int) -> bytes:
        """Return the stored chunks of a range that a reader of this incarnation must get."""
        offsets = range(first_offset, next_offset, CHUNK_RECORDS)
        return b"".join(chunk(offset, self.committed[incarnation, offset]) for offset in offsets)
