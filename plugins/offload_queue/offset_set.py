"""A sorted set of offsets in one array, with room at both ends.

    |    room    | lowest ... highest |    room    |
                 ^ _low               ^ _high

A queue takes from the low end, appends at the high end, and puts back near the low end. Each of these costs
as much as the values that move: never the length of the queue.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from offload_queue.log_records import MessageTags

__all__ = ["OffsetSet"]

_ROOM: Final = 64


class OffsetSet:
    """Ascending offsets. Arguments are ascending arrays without repetitions."""

    __slots__ = ("_high", "_low", "_values")

    def __init__(self, values: MessageTags | None = None) -> None:
        self._values = np.empty(0, np.int64) if values is None else values
        self._low, self._high = 0, len(self._values)

    def __len__(self) -> int:
        return self._high - self._low

    @property
    def values(self) -> MessageTags:
        """All values: a view that the next change makes invalid."""
        return self._values[self._low : self._high]

    def first(self, count: int) -> MessageTags:
        """Return a copy of up to `count` values of the low end."""
        return self._values[self._low : min(self._low + count, self._high)].copy()

    def append(self, first: int, end: int) -> None:
        """Add the values from `first` to `end` - 1, which are above all others."""
        count = end - first
        self._make_room(count)
        if count == 1:
            self._values[self._high] = first
        else:
            self._values[self._high : self._high + count] = np.arange(first, end)
        self._high += count

    def add(self, values: MessageTags) -> None:
        """Add values that are not in the set."""
        count = len(values)
        if not count:
            return
        if not len(self) or values[0] > self._values[self._high - 1]:
            self._make_room(count)
            self._values[self._high : self._high + count] = values
            self._high += count
            return
        # Only what is below the highest new value moves. It is merged into the room before the low end.
        edge = self._low + int(np.searchsorted(self.values, values[-1]))
        merged = np.concatenate([values, self._values[self._low : edge]])
        merged.sort(kind="stable")
        if self._low < count:
            self._make_room(0, before=count + len(self) // 4)
            edge = self._low + len(merged) - count
        self._low -= count
        self._values[self._low : edge] = merged

    def drop_first(self, count: int) -> None:
        """Remove `count` values of the low end."""
        self._low += count
        if self._low >= self._high:
            self._low = self._high = min(_ROOM, len(self._values))

    def cut(self, end: int) -> MessageTags:
        """Remove and return the values from `end` on."""
        at = self._low + int(np.searchsorted(self.values, end))
        found = self._values[at : self._high].copy()
        self._high = at
        return found

    def below(self, end: int) -> MessageTags:
        """Return a copy of the values below `end`."""
        return self._values[self._low : self._low + int(np.searchsorted(self.values, end))].copy()

    def contains(self, values: MessageTags) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return for each value whether it is in the set."""
        mine = self.values
        if not len(mine):
            return np.zeros(len(values), bool)
        at = np.searchsorted(mine, values)
        at[at == len(mine)] = 0
        return np.asarray(mine[at] == values)

    def remove(self, values: MessageTags) -> MessageTags:
        """Remove values, and return those that were in the set."""
        mine, count = self.values, len(values)
        if 0 < count <= len(mine) and mine[count - 1] == values[-1] and (mine[:count] == values).all():
            self.drop_first(count)  # mostly
            return values
        found = values[self.contains(values)]
        if not len(found):
            return found
        at = np.searchsorted(mine, found)
        first, last = int(at[0]), int(at[-1]) + 1
        kept = np.ones(last - first, bool)
        kept[at - first] = False
        between = mine[first:last][kept]
        if first < len(mine) - last:  # the low end is nearer
            moved = np.concatenate([mine[:first], between])
            self._values[self._low + len(found) : self._low + last] = moved
            self.drop_first(len(found))
        else:
            moved = np.concatenate([between, mine[last:]])
            self._values[self._low + first : self._high - len(found)] = moved
            self._high -= len(found)
        return found

    def _make_room(self, after: int, *, before: int = 0) -> None:
        if self._high + after <= len(self._values) and self._low >= before:
            return
        count = len(self)
        low = max(before, min(self._low, _ROOM))
        room = low + count + after + (count + after) // 2 + _ROOM
        values = np.empty(room, np.int64)
        values[low : low + count] = self.values
        self._values, self._low, self._high = values, low, low + count
