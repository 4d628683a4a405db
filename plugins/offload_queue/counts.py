"""The number of queues that still have a message, and its size, as arrays by offset of the log."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from offload_queue.log_records import MessageTags

__all__ = ["ReferenceCounts"]

_STEP: Final = 2**16


class ReferenceCounts:
    """Counts of the offsets from `first` up to `end`. Changed by one task."""

    __slots__ = ("_low", "_refs", "_sizes", "end", "first")

    def __init__(self, first: int, *, room: int = 0) -> None:
        self.first = self.end = self._low = first
        room += _STEP
        self._refs, self._sizes = np.zeros(room, np.uint32), np.zeros(room, np.uint32)

    def append(self, references: int, sizes: npt.NDArray[np.uint32]) -> None:
        """Add offsets behind the last one, each with so many references."""
        at, count = self.end - self.first, len(sizes)
        if at + count > len(self._refs):
            room = (at + count) * 5 // 4 + _STEP
            for name in ("_refs", "_sizes"):
                grown = np.zeros(room, np.uint32)
                grown[:at] = getattr(self, name)[:at]
                setattr(self, name, grown)
        self._refs[at : at + count] = references
        self._sizes[at : at + count] = sizes
        self.end += count

    def refer(self, tags: MessageTags) -> None:
        """Add a reference to each of these."""
        for begin in range(0, len(tags), _STEP):
            self._refs[tags[begin : begin + _STEP] - self.first] += 1

    def release(self, tags: MessageTags) -> None:
        """Remove a reference from each of these. Those below `first` have none."""
        self._refs[tags[tags >= self.first] - self.first] -= 1

    def references(self, tags: MessageTags) -> npt.NDArray[np.uint32]:
        """Return the numbers of references."""
        return self._refs[tags - self.first]

    def dead_from(self, begin: int) -> MessageTags:
        """Return the places, counted from `begin`, that no queue has."""
        return np.flatnonzero(self._refs[begin - self.first : self.end - self.first] == 0)

    def end_of_size(self, begin: int, end: int, size_bytes: int) -> int:
        """Return the offset up to which live messages from `begin` on have about this size; at most `end`."""
        part = slice(max(begin, self.first) - self.first, end - self.first)
        sizes = np.cumsum(np.where(self._refs[part] > 0, self._sizes[part], 0), dtype=np.int64)
        return min(max(begin, self.first) + int(np.searchsorted(sizes, size_bytes)) + 1, end)

    def live_count(self) -> int:
        """Return the number of messages that a queue has."""
        return int(np.count_nonzero(self._refs[: self.end - self.first]))

    def sizes(self, tags: MessageTags) -> npt.NDArray[np.uint32]:
        """Return the sizes of these records."""
        return self._sizes[tags - self.first]

    def lowest_live(self) -> int:
        """Return the lowest offset that a queue has; `end` if there is none. Never looks back."""
        while self._low < self.end:
            at = self._low - self.first
            found = np.flatnonzero(self._refs[at : min(at + _STEP, self.end - self.first)])
            if len(found):
                self._low += int(found[0])
                break
            self._low = min(self._low + _STEP, self.end)
        return self._low

    def cut(self, end: int) -> None:
        """Forget the offsets from `end` on."""
        self._refs[end - self.first : self.end - self.first] = 0
        self.end, self._low = end, min(self._low, end)

    def forget(self, first: int) -> None:
        """Forget the offsets below `first`."""
        if first > self.first:
            gone, count = first - self.first, self.end - first
            self._refs, self._sizes = (
                np.concatenate([each[gone : gone + count], np.zeros(_STEP, np.uint32)])
                for each in (self._refs, self._sizes)
            )
            self.first, self._low = first, max(self._low, first)
