"""The port to a broker's own storage of one stream: `LedgerLog`.

    offset    0             6250          12500         14011
    ledgers   |   sealed    |   sealed    |   open -->  next_offset
                 closed_ms     closed_ms     takes appends

A log is a run of ledgers without a hole. The last one is open, and may be empty. The others are sealed, and
never empty. Retention deletes whole ledgers, the oldest first, so what is left is always a run.

`ManagedLedger` writes a stream through this port, copies its sealed ledgers to a tier, and decides when the
local copies go. `offload.local` has two logs: one in memory, and one in a folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from offload.contracts.ledger import ReadHandle

__all__ = ["LedgerLog", "LocalLedger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLedger:
    """The facts of one ledger of a log at one moment, without its data."""

    ledger_id: int
    """A number that rises from ledger to ledger."""

    first_offset: int
    next_offset: int
    """The first offset after the last record. Equal to `first_offset` if the ledger is empty."""

    size_bytes: int
    """The size of all chunks of the ledger."""

    closed_ms: int | None = None
    """The time when the ledger was sealed, in milliseconds since 1970. None while it is open."""

    @property
    def records(self) -> int:
        """The number of records."""
        return self.next_offset - self.first_offset

    @property
    def is_sealed(self) -> bool:
        """True if the ledger never changes again."""
        return self.closed_ms is not None


class LedgerLog(ABC):
    """The ledgers of one stream on this machine. It belongs to one event loop and has one writer.

    **Appends are in order.** The records of one call get consecutive offsets, and those of a call that began
    later get higher ones.
    **Appends last.** When `append` returns, the log's durability policy holds for the records: a policy that
    syncs keeps them through a power cut, and every policy keeps them when the process is killed.
    **A failed append is known.** Either its records have no offset, and `next_offset` is as before, or the
    log is broken: then every later append raises the same error, until the log is opened again.
    **Snapshots do not move.** A handle of `open_ledger` is a `ReadHandle`: later appends, a roll and a
    deletion do not change it. After a deletion, its `read` may raise `TryAgain`.
    **Only whole, sealed ledgers go**, the oldest first.

    Not promised: that the chunks of a ledger are cut as the calls of `append` were. One chunk may have the
    records of many calls.

    All methods may raise `TryAgain`, `Denied`, `NoSpace` and `Corrupt`; after `aclose`, `Misuse`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the stream."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The folder or service that keeps the log, for messages."""

    @property
    @abstractmethod
    def ledgers(self) -> Sequence[LocalLedger]:
        """The ledgers, in order. The last one is open. Costs no I/O."""

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return self.ledgers[-1].next_offset

    @property
    def first_offset(self) -> int:
        """The offset of the first record that the log still has."""
        return self.ledgers[0].first_offset

    @property
    @abstractmethod
    def committed_offset(self) -> int:
        """The offset up to which records are acknowledged: no crash or rival takes them back.

        A log of one machine returns the end of what it has written by its policy. A replicated log returns
        what a majority has. Nothing beyond it is copied to a tier or shown to consumers.
        """

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The leader epoch that new chunks get. 0 if the broker has none."""

    @abstractmethod
    async def append(self, records: Sequence[bytes], *, timestamp_ms: int) -> int:
        """Append records, at least one. Return the offset of the first one when they last.

        May be called many times at once: the log writes what waits together. Raises `Misuse` for a record
        that is too large for a chunk; then nothing of this call is written. A cancelled call may be written
        or not.
        """

    @abstractmethod
    async def roll(self, *, now_ms: int) -> LocalLedger | None:
        """Seal the open ledger, and begin the next one. Return the sealed one; None if it has no records."""

    @abstractmethod
    async def open_ledger(self, ledger_id: int) -> ReadHandle:
        """Return a snapshot of one ledger, sealed or open, up to `committed_offset`.

        Raises `NotOffloaded` if the log has no such ledger, or if it has no records.
        """

    @abstractmethod
    async def delete(self, ledger_id: int) -> None:
        """Delete the oldest ledger for good. Deleting one that is gone already succeeds.

        Raises `Misuse` if it is open, or if an older one is left.
        """

    @abstractmethod
    async def begin(self, offset: int, *, epoch: int = 0) -> None:
        """Let a log without records begin at this offset, in which others have written with lower epochs.

        New chunks get at least this leader epoch, unless the broker itself decides about epochs. The epoch is
        kept before a chunk has it. Raises `Misuse` if the log has a record, or ends behind the offset.
        """

    @abstractmethod
    async def load_note(self, name: str) -> bytes | None:
        """Return a small note that is kept beside the ledgers; None if there is none. See `save_note`."""

    @abstractmethod
    async def save_note(self, name: str, data: bytes) -> None:
        """Keep a note of at most 1 MiB under a name of `[a-z-]`, in place of the one before.

        A crash leaves the old note or the new one, whole. The note is durable when the call returns. A
        managed ledger keeps the positions of its cursors in notes.
        """

    @abstractmethod
    async def destroy(self) -> None:
        """Delete everything of the log, and close it. Idempotent."""

    @abstractmethod
    async def aclose(self) -> None:
        """Write what waits, and release files and the lock. Idempotent."""

    def __repr__(self) -> str:
        """Return the class, the name and the place."""
        return f"<{type(self).__name__} {self.name!r} in {self.where}>"

    async def __aenter__(self) -> Self:
        """Return the log. The exit closes it."""
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
