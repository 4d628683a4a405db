"""What a stream should hold: the model that a walk holds an offloader against.

Invariants: it is changed only by what an offloader promised, never by what one is seen to do, but where the
contract leaves a choice: how much of a crashed attempt is adopted, and at which fragment a trim ends. There
the model says what is allowed, and then takes the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final, NamedTuple
from uuid import UUID

from offload.commit.guest import Delete, Trim
from offload.commit.writer import Append
from offload.contracts.change import Change
from offload.errors import Conflict, Fenced, OffloadError, OutcomeUnknown
from offload.formats.chunk_writer import build_chunk
from offload.model.attempt import Attempt, Receipt
from offload.model.manifest import Manifest
from offload.streams.writer import StreamWriter
from offload_conformance.ledgers import BIRTH_MS, EPOCH, MemoryLedger

Verdict = tuple[type[OffloadError], ...]
"""With which of these errors a call must fail; with none, it must succeed."""

YES: Final[Verdict] = ()


@cache
def chunk(stream: str, life: int, offset: int) -> bytes:
    """The one chunk at this offset. A stream that was deleted and begun anew has other bytes."""
    body = f"record {offset} of {stream} in its life {life}".encode()
    return build_chunk([body], offset=offset, timestamp_ms=BIRTH_MS + offset, epoch=EPOCH)


class Sent(NamedTuple):
    """A change that was committed, and the manifest on which that was done."""

    change: Change
    base: Manifest


@dataclass(eq=False)
class Held:
    """A writer that claimed the stream once."""

    writer: StreamWriter
    life: int


@dataclass(eq=False)
class Copy:
    """What one attempt copied."""

    attempt: Attempt
    first: int
    end: int
    held: Held
    receipt: Receipt


@dataclass
class ModelStream:
    """One stream of a walk."""

    name: str
    life: int = 0
    """How often it was begun."""

    lives: bool = False
    first: int = 0
    next: int = 0
    holder: Held | None = None
    writers: list[Held] = field(default_factory=list)
    pending: list[Copy] = field(default_factory=list)
    """Uploaded, announced still, and not committed."""

    dropped: list[Copy] = field(default_factory=list)
    """Uploaded, and condemned: they can never be committed."""

    committed: list[Copy] = field(default_factory=list)
    """In this life; what of them was adopted is narrowed to that."""

    gone: list[Copy] = field(default_factory=list)
    """Committed in an earlier life."""

    sent: list[Sent] = field(default_factory=list)
    """What was committed, to be sent again."""

    known: Manifest | None = None
    """The newest manifest that somebody saw."""

    def ledger(self, first: int, end: int) -> MemoryLedger:
        """Its source's [first, end)."""
        return MemoryLedger(self.chunks(first, end))

    def chunks(self, first: int, end: int) -> list[bytes]:
        """What a reader of [first, end) is given now."""
        return [chunk(self.name, self.life, offset) for offset in range(first, end)]

    @property
    def uncommitted(self) -> list[Copy]:
        """What a writer may try to commit: in time or too late."""
        return self.dropped + self.pending

    @property
    def copies(self) -> list[Copy]:
        """All that was ever uploaded."""
        return self.gone + self.committed + self.dropped + self.pending

    @property
    def reach(self) -> int:
        """How far the next claim may adopt what is pending: a chain from the end on, without a hole."""
        end = self.next
        while further := [copy.end for copy in self.pending if copy.first <= end < copy.end]:
            end = max(further)
        return end

    def claimed(self, writer: StreamWriter, adopted: Mapping[UUID, tuple[int, int]]) -> None:
        """A claim was accepted, and what was pending is settled: adopted in this range, or dropped."""
        if not self.lives:
            self.life += 1
            self.lives = True
            self.first = self.next = writer.manifest.first_offset
        self.holder = Held(writer, self.life)
        self.writers.append(self.holder)
        self.next = writer.manifest.next_offset
        for copy in self.pending:
            if (span := adopted.get(copy.attempt.uid)) is None:
                self.dropped.append(copy)
            else:
                self.committed.append(replace(copy, first=span[0], end=span[1]))
        self.pending.clear()

    def deleted(self) -> None:
        """A tombstone stands in its place."""
        self.lives, self.holder = False, None
        self.dropped += self.pending
        self.gone += self.committed
        self.pending.clear()
        self.committed.clear()

    def floor(self, offset: int) -> int:
        """Where it begins at least when all before `offset` may go: attempts share no fragment."""
        return max([copy.end for copy in self.committed if copy.end <= offset], default=self.first)

    def lets(self, copy: Copy) -> Verdict:
        """What becomes of committing this copy now. Of what was trimmed, nothing shows whether it was in."""
        trimmed = (OutcomeUnknown,) if copy.first < self.first else ()
        if copy.held is self.holder:
            return YES if copy in self.pending and copy.first == self.next else (Conflict, *trimmed)
        seen = copy.held.writer.manifest  # what did not fit there need not be asked about
        fitted = seen.runs(copy.attempt.uid) and copy.first == seen.next_offset
        return (Fenced, *trimmed) if fitted else (Fenced, Conflict, *trimmed)

    def forgets(self, change: Change) -> Verdict:
        """What else may come of sending a committed change again: what it named may have been trimmed."""
        named = change.entries if isinstance(change, Append) else ()
        return (OutcomeUnknown,) if named and named[-1].first_offset < self.first else ()

    def repeats(self, change: Change) -> Verdict:
        """What becomes of sending a committed change again. Where it is taken, nothing changes."""
        if isinstance(change, Delete):
            return YES
        if not self.lives:
            return (Fenced,)
        if isinstance(change, Append):
            return YES if self.holder and change.writer == self.holder.writer.writer else (Fenced,)
        assert isinstance(change, Trim)
        return YES if self.known and change.incarnation == self.known.incarnation else (Conflict,)
