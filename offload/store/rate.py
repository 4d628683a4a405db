"""A bound on a rate: units a second, which are bytes or requests.

Use is a debt. A caller waits until earlier use is paid for, and its own use is then noted, of any size. So a
request that is larger than one second's share passes at once, and the next one waits longer. Over time the
rate is kept. Unused time is not saved up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class Rate:
    """A bound on a rate of use, in units per second. None bounds nothing."""

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
        self._free_at = clock()  # the time at which all use that was noted is paid for

    async def take(self, units: int) -> None:
        """Note the use of `units`, and wait until all earlier use is paid for."""
        # Noted before the wait: callers that come during the wait queue behind this one. If they all noted
        # after it, they would wait for the same moment and pass together.
        pause = self.note(units)
        if pause > 0:
            await self._sleep(pause)

    def note(self, units: int) -> float:
        """Note the use of `units` without waiting. Return the seconds until all earlier use is paid for."""
        if self._per_second is None:
            return 0.0
        now = self._clock()
        # From now at the earliest: time that passed without use gives no right to a burst.
        begin = max(now, self._free_at)
        self._free_at = begin + units / self._per_second
        return begin - now
