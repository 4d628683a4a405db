"""One pass of a log that several streams share: who copies next, and how far.

A broker may write the records of all its streams into one log. To copy one stream after the other would read
the log once for each of them. So turns are given in the log's order, and a turn ends with the window of the
log in which it began:

    log       | window 0         | window 1         | ...
    streams   a b a c b a c b b  | c a b a c a b c  |
    turns     a0    b0    c0       a1    b1    c1

Waiting streams are served in rounds. A round has all that wait when it begins, and each has one turn in it,
in the order of their places. So a stream far behind holds back the others for one turn in each round, as
without a shared log.

Invariants: at most `at_once` turns are taken; a turn that fails, or is cancelled, is given on; without a
shared log turns are given in the order in which they were asked for; each turn copies one chunk at least.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from operator import index
from typing import TypeAlias

import numpy as np

from offload.contracts.source import Snapshot, SourceStream
from offload.ground.errors import Corrupt

LogPlace: TypeAlias = tuple[Hashable, int]
"""A log, and a byte in it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    place: LogPlace | None
    given: asyncio.Future[None]


@dataclass(slots=True)
class LogTurns:
    """Turns for the copies of many streams. Used by one event loop."""

    at_once: int
    _taken: int = 0
    _round: deque[_Waiting] = field(default_factory=deque)
    """Those whose turns come next, in order."""
    _arrived: list[_Waiting] = field(default_factory=list)
    """Those who wait for the next round."""

    @asynccontextmanager
    async def turn(self, place: LogPlace | None) -> AsyncGenerator[None, None]:
        """Wait for a turn of a stream whose next record is at this place. The exit hands the turn on."""
        waiting = _Waiting(place, asyncio.get_running_loop().create_future())
        self._arrived.append(waiting)
        self._give()
        try:
            await waiting.given
        except asyncio.CancelledError:
            # The turn may have been given in the same step of the loop in which the wait was cancelled.
            if not waiting.given.cancelled():
                self._end()
            raise
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        self._taken -= 1
        self._give()

    def _give(self) -> None:
        while self._taken < self.at_once:
            if not self._round:
                self._round, self._arrived = deque(_in_order(self._arrived)), []
            if not self._round:
                return
            waiting = self._round.popleft()
            if not waiting.given.done():  # else its wait was cancelled
                self._taken += 1
                waiting.given.set_result(None)


def _in_order(waiting: list[_Waiting]) -> list[_Waiting]:
    """Return those without a place as they came, and behind them each log in its own order."""
    logs: dict[Hashable, int] = {}
    for each in waiting:
        if each.place is not None:
            logs.setdefault(each.place[0], len(logs))

    def rank(each: _Waiting) -> tuple[int, int]:
        return (-1, 0) if each.place is None else (logs[each.place[0]], each.place[1])

    return sorted(waiting, key=rank)


async def log_place(stream: SourceStream, offset: int) -> LogPlace | None:
    """Return the place of a record in the shared log of its stream; None if there is no such log."""
    log = stream.shared_log
    # A place that cannot be compared would fail in the turns of all streams. Here it fails in its own.
    return None if log is None else (log.key, index(await stream.log_position(offset)))


async def end_in_window(stream: SourceStream, snapshot: Snapshot, start: int, until: int) -> int:
    """Return the offset up to which one turn copies: `until`, or the first chunk behind the log's window.

    A chunk begins at `start`. The window is the one in which its first record lies. A chunk that begins in
    the window is copied whole.
    """
    log = stream.shared_log
    if log is None or start >= until:
        return until
    size = log.window_size_bytes
    end = (await stream.log_position(start) // size + 1) * size
    for ledger in snapshot.ledgers:
        if ledger.next_offset <= start or ledger.first_offset >= until:
            continue
        try:
            offsets = (await ledger.table())["offset"]
        except Corrupt:
            # The copy raises it, when it has copied the ledgers before.
            return until
        low, high = np.searchsorted(offsets, np.array([start + 1, until], np.uint64)).tolist()
        stop = high
        while low < high:
            middle = (low + high) // 2
            if await stream.log_position(int(offsets[middle])) < end:
                low = middle + 1
            else:
                high = middle
        if low < stop:
            return int(offsets[low])
    return until
