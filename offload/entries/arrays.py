"""A ledger whose sizes and times are arrays, and whose bytes a function gathers from the files of a store.

Stores that index their messages know the size of each before they read one. So nothing is read to cut chunks,
and a run is one call that gathers its entries back to back.

Invariant: a run has exactly the bytes that the sizes state. If the function returns more or fewer, the run
raises `Corrupt`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from offload.contracts.entries import EntryLedger, EntryRun, EntrySizes, EntryTimes
from offload.contracts.store import Buffer
from offload.ground.errors import Corrupt

__all__ = ["ArrayLedger"]


class ArrayLedger(EntryLedger):
    """Entries with an array of sizes in bytes, and one of times in milliseconds since 1970, or one time.

    `gather(first, stop)` returns the entries from `first` to the one before `stop`, back to back. It is
    called in a thread, may be called several times at once, and raises the errors of `EntryLedger.entries`.
    """

    __slots__ = (
        "_ends",
        "_first_offset",
        "_gather",
        "_is_sealed",
        "_ledger_id",
        "_sizes",
        "_times",
        "_where",
    )

    def __init__(
        self,
        gather: Callable[[int, int], Buffer],
        *,
        sizes: npt.NDArray[np.uint64],
        timestamps_ms: EntryTimes,
        where: str,
        ledger_id: int = 0,
        first_offset: int | None = None,
        is_sealed: bool = True,
    ) -> None:
        """`where` names the files of the ledger, for messages."""
        self._gather, self._sizes, self._times, self._where = gather, sizes, timestamps_ms, where
        self._ends = np.cumsum(sizes, dtype=np.uint64)
        self._ledger_id, self._first_offset, self._is_sealed = ledger_id, first_offset, is_sealed

    @property
    def ledger_id(self) -> int:
        """The id that was given."""
        return self._ledger_id

    @property
    def last_entry(self) -> int:
        """The last row of the arrays."""
        return len(self._sizes) - 1

    @property
    def length(self) -> int:
        """The sum of the sizes."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def is_sealed(self) -> bool:
        """As it was given."""
        return self._is_sealed

    @property
    def first_offset(self) -> int | None:
        """The offset that was given, if any."""
        return self._first_offset

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return the entries up to the one that brings the run to `size_bytes`, in one buffer."""
        begin = self._ends[first] - self._sizes[first]
        enough = np.searchsorted(self._ends[first : last + 1], begin + np.uint64(size_bytes))
        stop = min(first + int(enough), last) + 1
        data = await asyncio.to_thread(self._gather, first, stop)
        ends = self._ends[first:stop] - begin
        if len(data) != ends[-1]:
            what = f"size of entries {first} to {stop - 1}"
            raise Corrupt(what, self._where, expected=int(ends[-1]), found=len(data))
        return EntryRun.packed(data, ends, first=first, timestamps_ms=self._times_of(first, stop))

    async def sizes(self, first: int, last: int) -> EntrySizes:
        """Return rows of the arrays."""
        rows = self._sizes[first : last + 1]
        return EntrySizes(first=first, sizes=rows, timestamps_ms=self._times_of(first, last + 1))

    def _times_of(self, first: int, stop: int) -> EntryTimes:
        return self._times[first:stop] if isinstance(self._times, np.ndarray) else self._times
