"""The manifest: the committed state of a stream, as a plain value. `formats.root` encodes it.

An entry describes a fragment or a group. A group is an object of its own, which has entries of the next lower
kind (`formats.group`). Larger kinds come first, so the oldest fragments are the deepest.

Invariants:

- Entries ascend by offset, touch each other, and cover [first_offset, next_offset).
- Only a group may begin below first_offset. Its fragments below that offset are trimmed and dead.
- The totals are those of the live fragments: the sums over the entries, less the trimmed part of the first.

docs/commit-protocol.md explains the fields and the reasons for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final
from uuid import UUID

from offload.ground.errors import Corrupt
from offload.model.entry import NO_ENTRIES, TOTALS, Entries, check_entries, exact_sum

__all__ = ["AttemptKind", "CommittedStream", "Manifest", "Running", "StreamState"]


NOBODY: Final = UUID(int=0)
"""The writer in a tombstone, which no writer holds."""


class StreamState(IntEnum):
    """The state of a stream, as its root records it."""

    LIVE = 0
    DELETED = 1
    REBUILDING = 2


class AttemptKind(IntEnum):
    """The owner and purpose of a running attempt: the stream's writer, a job, or a job that copies."""

    STREAM = 0
    JOB = 1
    COPY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An attempt that is announced, and neither committed nor dropped yet. Fields as in docs/format.md."""

    attempt: UUID
    ledger_id: int
    epoch: int
    writer: UUID
    kind: AttemptKind = AttemptKind.STREAM


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommittedStream:
    """The committed state of one stream at one moment: its totals and its entries. Immutable.

    A reader needs no more than this. A tier of a foreign layout has no more. A tier that takes commits has a
    `Manifest`, which adds the rest.
    """

    stream: str
    version: int
    """A number that is higher for each later state."""

    incarnation: UUID
    """A new UUID if the stream was deleted and begun again: its offsets then mean other records."""

    first_offset: int
    next_offset: int
    messages: int = 0
    data_size_bytes: int = 0
    stored_size_bytes: int = 0
    fragments: int = 0
    ledgers: int = 0
    counts_messages: bool = True
    """False if entries do not show which records are messages, as in some foreign layouts.

    Then `messages`, here and of an entry, is an upper bound. `fragments` counts a group as one.
    """

    entries: Entries = field(default_factory=lambda: NO_ENTRIES)
    """The entries that are loaded, in the order of offsets: groups, and then fragments."""

    @property
    def records(self) -> int:
        """The number of committed offsets, tracking records included."""
        return self.next_offset - self.first_offset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Manifest(CommittedStream):
    """The committed state of one stream, as in one root. Immutable, `entries` included.

    `entries` are the root's own, groups first. `model.tree` finds the fragments in them.
    """

    writer: UUID
    epoch: int
    source_epoch: int
    committer: UUID
    commit_id: UUID
    parent_commit_id: UUID = NOBODY
    state: StreamState = StreamState.LIVE
    last_ledger_id: int = 0
    running: tuple[Running, ...] = ()

    @property
    def has_groups(self) -> bool:
        """True if some fragments are in groups."""
        # Larger kinds come first, so the first entry tells.
        return bool(len(self.entries) and self.entries["kind"][0])

    def runs(self, attempt: UUID) -> bool:
        """Return True if the attempt is announced, and neither committed completely nor dropped."""
        return any(running.attempt == attempt for running in self.running)

    def check(self, where: str) -> None:
        """Raise `Corrupt` unless the invariants at the head of this module hold.

        It is called before a root is written and after a root was read.
        """
        self.check_numbers(where)
        first = self.entries[0] if len(self.entries) else None
        begin = self.first_offset
        # A group that is trimmed in part keeps its entry. One that is trimmed whole must be gone.
        if first is not None and first["kind"] and int(first["first_offset"]) < begin:
            begin = int(first["first_offset"])
            if begin + int(first["records"]) <= self.first_offset:
                raise Corrupt("coverage", where, expected="no entry that is trimmed whole", found="one")
        check_entries(self.entries, begin, self.next_offset, where=where)
        if (self.entries["kind"][1:] > self.entries["kind"][:-1]).any():
            raise Corrupt("entry kind", where, expected="larger kinds first", found="another order")
        self._check_totals(where, trimmed=begin < self.first_offset)

    def check_numbers(self, where: str) -> None:
        """Raise `Corrupt` if a number does not fit its field: epochs and versions may exceed 64 bits."""
        numbers = [(name, getattr(self, name)) for name in MANIFEST_NUMBERS]
        for running in self.running:
            numbers += [("running ledger", running.ledger_id), ("running epoch", running.epoch)]
        for name, number in numbers:
            if not 0 <= number < 2**64:
                raise Corrupt(
                    f"root {name}", where, stream=self.stream, expected="0 or more, below 2**64", found=number
                )

    def _check_totals(self, where: str, *, trimmed: bool) -> None:
        for total in TOTALS:
            claimed, found = getattr(self, total), exact_sum(self.entries[total])
            # How much of a group is trimmed is in the group alone, which is not loaded here. So the total
            # lies between the sum without that group and the whole sum.
            less = int(self.entries[total][0]) if trimmed else 0
            if not found - less <= claimed <= found:
                raise Corrupt(f"total of {total}", where, expected=claimed, found=found)
        found = exact_sum(self.entries["ledgers"])
        less = int(self.entries["ledgers"][0]) if trimmed else 0
        # There is one more if the first live fragment continues a ledger whose beginning is trimmed.
        least, most = max(found - less, int(self.fragments > 0)), min(found + 1, self.fragments)
        if not least <= self.ledgers <= most:
            raise Corrupt("total of ledgers", where, expected=self.ledgers, found=found)


MANIFEST_NUMBERS: Final = (
    "state", "version", "epoch", "source_epoch", "first_offset", "next_offset",
    "messages", "data_size_bytes", "stored_size_bytes", "fragments", "ledgers", "last_ledger_id",
)  # fmt: skip
