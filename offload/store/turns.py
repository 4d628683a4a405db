"""How many requests run at once: a bound that the store itself lowers, and success raises again.

Additive increase, multiplicative decrease, as TCP does it: a store that says `Throttled` halves the
bound, at most once in `COOLDOWN_SECONDS`, because requests that were under way then say the same; a
bound's worth of successes raises it by one. It never falls below one nor rises above its maximum.
Invariants: turns are given in order of asking; a waiter that is cancelled takes no turn with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

COOLDOWN_SECONDS: Final = 1.0


class Turns:
    """An asynchronous context manager: inside it, one of at most `bound` requests runs."""

    __slots__ = ("_bound", "_clock", "_lowered", "_most", "_taken", "_waiting")

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._bound = float(most)
        self._lowered = -COOLDOWN_SECONDS
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def bound(self) -> int:
        """How many requests may run now."""
        return int(self._bound)

    async def __aenter__(self) -> None:
        """Wait for a turn."""
        if not self._waiting and self._taken < self.bound:
            self._taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # it was given and we were cancelled at the same time
                self._give_back()
            with suppress(ValueError):
                self._waiting.remove(turn)
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        """Give the turn to whoever waits longest."""
        self._give_back()

    def succeeded(self) -> None:
        """The store answered: raise the bound a little."""
        self._bound = min(self._bound + 1 / self._bound, float(self._most))

    def throttled(self) -> None:
        """The store wants fewer: halve the bound, unless that was done just now."""
        now = self._clock()
        if now - self._lowered >= COOLDOWN_SECONDS:
            self._lowered = now
            self._bound = max(self._bound / 2, 1.0)

    def _give_back(self) -> None:
        self._taken -= 1
        while self._waiting and self._taken < self.bound:
            turn = self._waiting.popleft()
            if not turn.done():
                self._taken += 1
                turn.set_result(None)
