"""How far a source may be believed: up to where its broker vouches, or what has been there for a while.

Files do not say which data a majority of replicas has. If nobody can be asked, data counts as soon as it has
been in the source for `hold_back_seconds`, because a broker that replaces its tail does so soon.

Invariants: nothing beyond a snapshot is vouched for; after a cut of the source, all of its data behind the
last vouched record counts as new.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from offload.contracts.source import Snapshot, SourceStream

__all__ = ["Arrival", "Arrivals", "vouched_end"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Data that two looks found between them."""

    since_seconds: float
    """The earliest moment at which it can have come: that of the look before."""
    seen_seconds: float
    next_offset: int


@dataclass(slots=True)
class Arrivals:
    """The data that came into a source lately, in order. It is true if there is any."""

    _waiting: deque[Arrival] = field(default_factory=deque)
    _end: int | None = None
    """The end of the source at the last look."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def oldest(self) -> Arrival | None:
        """The first data that was not forgotten."""
        return self._waiting[0] if self._waiting else None

    def notice(self, end: int, *, since_seconds: float, seen_seconds: float) -> None:
        """Note that a look found the source to end at the offset `end`."""
        known = self._waiting[-1].next_offset if self._waiting else self._end
        if self._waiting and end < self._waiting[-1].next_offset:
            # The broker cut its log. What is there now may have been written after the cut.
            since_seconds, known = self._waiting[0].since_seconds, None
            self._waiting.clear()
        if known is None or end > known:
            self._waiting.append(Arrival(since_seconds, seen_seconds, end))
        self._end = end

    def forget(self, done: int) -> None:
        """Forget what ends at the offset `done` or before."""
        while self._waiting and self._waiting[0].next_offset <= done:
            self._waiting.popleft()

    def end_seen_by(self, seconds: float) -> int:
        """Return the end of what was seen at this moment. 0 if it is nothing that was not forgotten."""
        return max((each.next_offset for each in self._waiting if each.seen_seconds <= seconds), default=0)


async def vouched_end(
    source: SourceStream,
    snapshot: Snapshot,
    arrivals: Arrivals,
    *,
    seen_seconds: float,
    hold_back_seconds: float,
) -> int:
    """Return the offset up to which a snapshot, taken at `seen_seconds`, may be believed."""
    vouched = await source.vouched(snapshot)
    end = arrivals.end_seen_by(seen_seconds - hold_back_seconds) if vouched is None else vouched
    return min(end, snapshot.next_offset)
