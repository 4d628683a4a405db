"""A bound on the requests that run at once. Throttling by the store lowers it, and successes raise it again.

The bound follows additive increase and multiplicative decrease, as TCP does. `Throttled` halves it, at most
once in `COOLDOWN_SECONDS`, because the requests that were under way at that moment get the same reply. As
many successes as the bound raise it by about one. It never falls below one or rises above its maximum.

Invariants: turns are given in the order of requests; a waiter that is cancelled takes no turn with it.
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
        self._bound = float(most)  # not a whole number, because each success raises it by 1 / bound
        self._lowered = -COOLDOWN_SECONDS  # the first throttling counts, also at second 0 of the clock
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def bound(self) -> int:
        """The number of requests that may run now."""
        return int(self._bound)

    async def __aenter__(self) -> None:
        """Wait for a turn."""
        # There may be free turns and waiters at once, because a success raises the bound and wakes no waiter.
        # Then a newcomer must not overtake the waiters.
        if not self._waiting and self._taken < self.bound:
            self._taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            # The turn may have been given to this waiter before its task ran again and was cancelled. Then
            # nobody else would ever get it.
            if turn.done() and not turn.cancelled():
                self._give_back()
            with suppress(ValueError):  # `_give_back` has taken it off the queue already
                self._waiting.remove(turn)
            raise

    async def __aexit__(self, *exc_info: object) -> None:
        """Give the turn to the request that has waited longest."""
        self._give_back()

    def succeeded(self) -> None:
        """Raise the bound a little: the store answered a request."""
        self._bound = min(self._bound + 1 / self._bound, float(self._most))

    def throttled(self) -> None:
        """Halve the bound, unless that was done just now: the store asked for fewer requests."""
        now = self._clock()
        if now - self._lowered >= COOLDOWN_SECONDS:
            self._lowered = now
            self._bound = max(self._bound / 2, 1.0)

    def _give_back(self) -> None:
        self._taken -= 1
        # The bound may have changed since the turn was taken: a lower one admits none, a higher one several.
        while self._waiting and self._taken < self.bound:
            turn = self._waiting.popleft()
            if not turn.done():  # a cancelled waiter stays in the queue until its task runs
                # Counted here and not by the waiter, which runs later: a newcomer must not take the turn.
                self._taken += 1
                turn.set_result(None)
