"""The rates of a queue: moving averages, in which what is `HALF_LIFE_SECONDS` old counts half.

    weight   1 |*
               |  *  *
             ½ |        *  *  *
               +----------------- age
                 0        5 s

Each sum of events fades with time, so a rate needs one number and no list of events.
"""

from __future__ import annotations

from math import log
from typing import Final

from offload.ground.env import Env
from offload_queue.backing_queue import QueueRates

__all__ = ["RateMeter"]

HALF_LIFE_SECONDS: Final = 5.0
_FROM_SUM: Final = log(2) / HALF_LIFE_SECONDS
"""A steady rate r keeps a fading sum at r divided by this."""


class RateMeter:
    """Counts what a queue does, and returns its rates."""

    __slots__ = ("_at_seconds", "_env", "_sums")

    def __init__(self, env: Env) -> None:
        self._env, self._at_seconds = env, env.monotonic()
        self._sums = (0.0, 0.0, 0.0)

    def note(self, *, published: int = 0, fetched: int = 0, acked: int = 0) -> None:
        """Count messages that were published, fetched or acknowledged now."""
        faded = self._faded()
        self._sums = faded[0] + published, faded[1] + fetched, faded[2] + acked

    def rates(self) -> QueueRates:
        """Return the rates as they are now."""
        return QueueRates(*(each * _FROM_SUM for each in self._faded()))

    def _faded(self) -> tuple[float, float, float]:
        now = self._env.monotonic()
        factor = 0.5 ** ((now - self._at_seconds) / HALF_LIFE_SECONDS)
        self._at_seconds = now
        published, fetched, acked = self._sums
        self._sums = published * factor, fetched * factor, acked * factor
        return self._sums
