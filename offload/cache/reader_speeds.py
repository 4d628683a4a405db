"""The readers of one stream that share a cache: where each of them is, and how fast it reads.

`Paces.seconds_until` estimates when one of them will want a run of offsets. The cache keeps what is wanted
soonest.

Places and speeds are in records, not in bytes. Only their ratio counts, and offsets need no sums over
fragments.

Invariants: a reader that has not moved for `STILL_SECONDS` does not count; a move and a question cost
O(log n), besides the shift of a list.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from itertools import count
from math import exp, inf
from typing import Final

__all__ = ["Pace", "Paces"]

STILL_SECONDS: Final = 20.0
"""A reader that has taken nothing for so long stands still: nothing is kept for it."""

SMOOTHING_SECONDS: Final = 5.0
NEAREST: Final = 8
"""How many readers before a run of offsets are asked. A faster one behind them is not seen."""

_serials: Final = count()


class Pace:
    """The place of one reader in its stream, and its speed lately."""

    __slots__ = ("_began_at", "_records", "moved_at", "offset", "serial")

    def __init__(self, offset: int, now: float) -> None:
        self.offset, self.moved_at, self._began_at = offset, now, now
        self.serial = next(_serials)
        """Tells readers at the same offset apart."""

        self._records = 0.0
        """The records that were read, each weighted by its age."""

    def records_per_second(self, now: float) -> float:
        """Return the speed. It falls while the reader stands still."""
        # If records come evenly, their weighted sum is the speed times `SMOOTHING_SECONDS`, or times the
        # reader's age if that is less.
        seconds = min(SMOOTHING_SECONDS, max(now - self._began_at, 0.001))
        return self._records * exp((self.moved_at - now) / SMOOTHING_SECONDS) / seconds

    def move(self, offset: int, now: float) -> None:
        """Note that the reader has come to `offset`."""
        self._records *= exp((self.moved_at - now) / SMOOTHING_SECONDS)
        self._records += max(offset - self.offset, 0)
        self.offset, self.moved_at = offset, now


class Paces:
    """The readers of one stream that have moved lately."""

    __slots__ = ("_moved", "_places")

    def __init__(self) -> None:
        self._places: list[tuple[int, int, Pace]] = []
        """In the order of offsets."""

        self._moved: OrderedDict[Pace, None] = OrderedDict()
        """The same readers, the one that moved last at the end."""

    def __len__(self) -> int:
        return len(self._places)

    def move(self, pace: Pace, offset: int, now: float) -> None:
        """Note that a reader has come to `offset`. It counts from now on."""
        self.leave(pace)
        pace.move(offset, now)
        self._moved[pace] = None
        insort(self._places, (offset, pace.serial, pace))
        self._forget_still(now)

    def leave(self, pace: Pace) -> None:
        """Forget a reader. Idempotent."""
        if pace in self._moved:
            del self._moved[pace]
            del self._places[bisect_left(self._places, (pace.offset, pace.serial))]

    def seconds_until(self, first_offset: int, next_offset: int, now: float) -> float:
        """Return the time until a reader comes to these offsets: 0 if one is there, infinity if none will."""
        self._forget_still(now)
        behind, soonest = bisect_left(self._places, (next_offset,)), inf
        for offset, _, pace in reversed(self._places[max(behind - NEAREST, 0) : behind]):
            if offset >= first_offset:
                return 0.0
            if speed := pace.records_per_second(now):
                soonest = min(soonest, (first_offset - offset) / speed)
        return soonest

    def _forget_still(self, now: float) -> None:
        while self._moved and (pace := next(iter(self._moved))).moved_at < now - STILL_SECONDS:
            self.leave(pace)
