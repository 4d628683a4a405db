"""The contract of a store of ledgers whose entries have no chunks: `EntryLedger`.

BookKeeper, and stores like it, keep a stream as ledgers, and a ledger as entries 0, 1, 2 and so on. An entry
is bytes. `entries.ledger` makes a source of such ledgers: each entry becomes one record, untouched.

    ledger 7     entries 0 1 2 3        sealed
    ledger 9     entries 0 1            sealed, and later the oldest: 7 was deleted
    ledger 12    entries 0 1 2 ...      open, it grows

A store may also delete the oldest entries of a ledger. The others keep their numbers (`first_entry`).

Entries move in runs: one buffer, and arrays that say where each entry lies in it. There is no object for each
entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from offload.contracts.store import Buffer

__all__ = ["EntryLedger", "EntryRun", "EntrySizes", "EntryTimes"]


EntryTimes: TypeAlias = npt.NDArray[np.int64] | int
"""The time of each entry, in milliseconds since 1970, or one time for all entries of a run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntryRun:
    """Consecutive entries in one buffer. Entry `first + k` is `data[starts[k]:ends[k]]`."""

    first: int
    """The id of the first entry. It shows that the run is the one that was asked for."""

    data: Buffer
    """Valid for as long as somebody holds it or a part of it (`Buffer`)."""

    starts: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]
    """The entries lie in `data` in order and do not overlap. Other bytes may lie between them, such as the
    headers of a block, so a store need not copy."""

    timestamps_ms: EntryTimes

    @classmethod
    def packed(
        cls, data: Buffer, ends: npt.NDArray[np.uint64], *, first: int, timestamps_ms: EntryTimes
    ) -> EntryRun:
        """Return a run whose entries lie back to back, from the first byte of `data` on."""
        starts = np.zeros_like(ends)
        starts[1:] = ends[:-1]
        return cls(first=first, data=data, starts=starts, ends=ends, timestamps_ms=timestamps_ms)

    @classmethod
    def of(cls, entries: Sequence[bytes], *, first: int, timestamps_ms: EntryTimes) -> EntryRun:
        """Return a run of entries that lie in memory one by one. Copies them."""
        ends = np.cumsum([len(entry) for entry in entries], dtype=np.uint64)
        return cls.packed(b"".join(entries), ends, first=first, timestamps_ms=timestamps_ms)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntrySizes:
    """The sizes and times of consecutive entries, without their bytes. Size `k` is that of `first + k`."""

    first: int
    sizes: npt.NDArray[np.uint64]
    timestamps_ms: EntryTimes


class EntryLedger(ABC):
    """A ledger as it was when its store listed it: a stated number of entries, and a way to read them.

    **Facts do not move.** The properties of one object never change. If the ledger grows, the next listing
    has a new object with more entries.
    **Entries do not change.** An entry has the same bytes and the same time at every read, in every run and
    every process.
    **Entries are acknowledged.** No crash, recovery or rival takes back an entry up to `last_entry`.
    **Wrong answers are found.** Every run is compared with the question and with the properties. A source
    raises `Corrupt`, with the ledger and the entry, for a run that is too short or too long, for positions
    that go back or leave the buffer, and for sizes that are not the same at the second read. The sum of sizes
    must be `length`, if it is stated. If the beginning was copied by an earlier snapshot, the sum of the rest
    must not exceed it. Nothing more of such a ledger is copied.

    Not promised: that the ledger still exists. `entries` and `sizes` raise `TryAgain` if it is gone, or if
    the store does not answer. They may raise `Denied` and `Corrupt`, too.

    Methods belong to one event loop, and may be called at the same time.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def ledger_id(self) -> int:
        """The id, from 0 to 2^64 - 1. A later ledger of a stream has a higher one. Ids may be left out."""

    @property
    @abstractmethod
    def last_entry(self) -> int:
        """The id of the last entry, which is one less than the number of entries. -1 if there is none."""

    @property
    @abstractmethod
    def length(self) -> int | None:
        """The sum of the sizes of all entries, 0 to `last_entry`, in bytes, deleted ones too.

        None if the store knows no sizes before it reads the ledger. Then the sum is not checked.
        """

    @property
    @abstractmethod
    def is_sealed(self) -> bool:
        """True if no entry is ever added. Only the last ledger of a stream may be open."""

    @property
    def first_entry(self) -> int:
        """The id of the first entry that can still be read: 0, the default, up to one above `last_entry`.

        It never falls. If it is not 0, no entry of an earlier ledger can be read. A snapshot begins there. If
        the tier does not reach so far, that is a gap. Only a store that keeps `first_offset` may state it.
        """
        return 0

    @property
    def closed_ms(self) -> int | None:
        """The time when the ledger was sealed, in milliseconds since 1970. None if open, or not known."""
        return None

    @property
    def first_offset(self) -> int | None:
        """The offset of entry 0 in the stream, if the store keeps it. None, the default, if it does not.

        A source then counts on from what is on the tier. A store that keeps offsets lets it find every lost
        ledger, also one that was deleted before it was copied.
        """
        return None

    @property
    def leader_epoch(self) -> int | None:
        """The broker's own epoch in which the ledger was written. None, the default, if it has none.

        A later ledger of a stream has the same or a higher one, and a writer with a lower one is refused.
        Only a store that keeps `first_offset` may state it: chunks have one number for both, and carry the
        offset of entry 0 otherwise. State it from the first copy on: a tier that was filled without it has
        recorded offsets in its place, and refuses a lower epoch with `Fenced`.
        """
        return None

    @abstractmethod
    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return the entries from `first` to `last`, both included, in one run.

        The run may end early, with the entry that brings it to `size_bytes`, so that memory is bounded. It
        has at least one entry. A store may ignore `size_bytes` and return all of them. `first` is
        `first_entry` or more, and `last` is `first` to `last_entry`.
        """

    async def sizes(self, first: int, last: int) -> EntrySizes | None:
        """Return the sizes and times of exactly these entries; None, the default, to have them read.

        Optional: a source must know the sizes of all entries before it copies the first one. A store that
        has them beside the data, in an index, saves one of two reads of every byte.
        """
        return None

    async def aclose(self) -> None:
        """Release files and connections. A later read opens them again. Idempotent."""
