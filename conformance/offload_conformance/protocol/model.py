"""The model of a stream, with which a walk compares an offloader.

Invariants: the model follows the promises of the contract alone, never what the offloader is seen to do.
There are two exceptions, in which the contract leaves a choice: how much of a crashed attempt is adopted,
and at which fragment a trim ends. There the model says what is allowed, and then takes over the choice.
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
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Conflict, Fenced, OffloadError, OutcomeUnknown
from offload.model.attempt import Attempt, Receipt
from offload.model.manifest import Manifest
from offload.write.writer import StreamWriter
from offload_conformance.ledgers import BIRTH_MS, EPOCH, MemoryLedger

Verdict = tuple[type[OffloadError], ...]
"""The errors of which a call must raise one. If there are none, the call must succeed."""

YES: Final[Verdict] = ()


@cache
def chunk(stream: str, life: int, offset: int) -> bytes:
    """Return the chunk at this offset. A stream that is created again after a deletion has other bytes."""
    body = f"record {offset} of {stream} in its life {life}".encode()
    return build_chunk([body], offset=offset, timestamp_ms=BIRTH_MS + offset, epoch=EPOCH)


class Sent(NamedTuple):
    """A committed change, and the manifest on which it was committed."""

    change: Change
    base: Manifest


@dataclass(eq=False)
class Held:
    """A writer that claimed the stream once."""

    writer: StreamWriter
    life: int


@dataclass(eq=False)
class AttemptData:
    """The data of one attempt."""

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
    """The number of times that the stream was created."""

    lives: bool = False
    first: int = 0
    next: int = 0
    holder: Held | None = None
    writers: list[Held] = field(default_factory=list)
    pending: list[AttemptData] = field(default_factory=list)
    """Uploaded, still running, and not committed."""

    dropped: list[AttemptData] = field(default_factory=list)
    """Uploaded and condemned: they can never be committed."""

    committed: list[AttemptData] = field(default_factory=list)
    """Committed in this life. Of a partly adopted copy, only the adopted range."""

    gone: list[AttemptData] = field(default_factory=list)
    """Committed in an earlier life."""

    sent: list[Sent] = field(default_factory=list)
    """Committed changes, which a later step may send again."""

    known: Manifest | None = None
    """The newest manifest that any client loaded."""

    def ledger(self, first: int, end: int) -> MemoryLedger:
        """Return the ledger with [first, end) of the stream's source."""
        return MemoryLedger(self.chunks(first, end))

    def chunks(self, first: int, end: int) -> list[bytes]:
        """Return the chunks that a reader of [first, end) must get now."""
        return [chunk(self.name, self.life, offset) for offset in range(first, end)]

    @property
    def uncommitted(self) -> list[AttemptData]:
        """Return the copies that a writer may try to commit, in time or too late."""
        return self.dropped + self.pending

    @property
    def copies(self) -> list[AttemptData]:
        """Return all copies that were ever uploaded."""
        return self.gone + self.committed + self.dropped + self.pending

    @property
    def reach(self) -> int:
        """Return the offset up to which the next claim may adopt: the end of a chain of pending copies."""
        end = self.next
        while further := [copy.end for copy in self.pending if copy.first <= end < copy.end]:
            end = max(further)
        return end

    def claimed(self, writer: StreamWriter, adopted: Mapping[UUID, tuple[int, int]]) -> None:
        """Record an accepted claim. Pending copies are settled: adopted in this range, or dropped."""
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
        """Record the deletion of the stream."""
        self.lives, self.holder = False, None
        self.dropped += self.pending
        self.gone += self.committed
        self.pending.clear()
        self.committed.clear()

    def floor(self, offset: int) -> int:
        """Return the least first offset after a trim to `offset`.

        Whole attempts go, as they share no fragment.
        """
        return max([copy.end for copy in self.committed if copy.end <= offset], default=self.first)

    def lets(self, copy: AttemptData) -> Verdict:
        """Return the verdict on committing this copy now."""
        # Once its offsets are trimmed, nothing shows whether the copy was committed before.
        trimmed = (OutcomeUnknown,) if copy.first < self.first else ()
        if copy.held is self.holder:
            return YES if copy in self.pending and copy.first == self.next else (Conflict, *trimmed)
        # A change that does not even fit the manifest which its writer knows may be refused as a conflict
        # before anybody looks who holds the stream. One that fits must be refused by the fence.
        seen = copy.held.writer.manifest
        fitted = seen.runs(copy.attempt.uid) and copy.first == seen.next_offset
        return (Fenced, *trimmed) if fitted else (Fenced, Conflict, *trimmed)

    def forgets(self, change: Change) -> Verdict:
        """Return the error allowed for a committed change that is sent again.

        Its fragments may be trimmed.
        """
        named = change.entries if isinstance(change, Append) else ()
        return (OutcomeUnknown,) if named and named[-1].first_offset < self.first else ()

    def repeats(self, change: Change) -> Verdict:
        """Return the verdict on sending a committed change again. If it is accepted, nothing changes."""
        if isinstance(change, Delete):  # anyone may send it, and the deleted incarnation never comes back
            return YES
        if not self.lives:
            return (Fenced,)
        if isinstance(change, Append):
            return YES if self.holder and change.writer == self.holder.writer.writer else (Fenced,)
        assert isinstance(change, Trim)
        return YES if self.known and change.incarnation == self.known.incarnation else (Conflict,)
