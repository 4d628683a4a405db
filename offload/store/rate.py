"""So many units a second and no more: bytes, or requests.

A debt, not a purse: whoever asks waits until earlier use is paid for, and then its own use is noted,
however large. So one request larger than a second's share passes, and the next waits the longer; over
time the rate holds. Nothing is saved up while nobody asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class Rate:
    """Bounds a rate of use. `None` bounds nothing."""

    __slots__ = ("_clock", "_free_at", "_per_second", "_sleep")

    def __init__(
        self,
        per_second: float | None,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    async def take(self, units: int) -> None:
        """Note the use of `units`, and wait until what was noted before is paid for."""
        pause = self.note(units)
        if pause > 0:
            await self._sleep(pause)

    def note(self, units: int) -> float:
        """Note the use of `units` without waiting. Returns how long whoever is honest would wait first."""
        if self._per_second is None:
            return 0.0
        now = self._clock()
        begin = max(now, self._free_at)
        self._free_at = begin + units / self._per_second
        return begin - now
