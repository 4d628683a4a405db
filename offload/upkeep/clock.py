"""A guard against a wall clock that jumps: what is deleted by age would then be deleted too early."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from offload.ground.env import Env
from offload.ground.errors import Denied

__all__ = ["ClockGuard"]


CLOCK_AHEAD_SECONDS_MAX: Final = 3600.0
"""How far the wall clock may run ahead of the monotonic one. A change of a time zone does not move it."""


@dataclass(slots=True)
class ClockGuard:
    """Compares the wall clock with the monotonic one, since the guard was made."""

    env: Env
    _difference_seconds: float = field(init=False)
    """The difference between the two clocks at the beginning."""

    def __post_init__(self) -> None:
        self._difference_seconds = self._difference()

    def check(self) -> None:
        """Raise `Denied` if the wall clock of this machine has jumped ahead since the beginning."""
        ahead = self._difference() - self._difference_seconds
        if ahead > CLOCK_AHEAD_SECONDS_MAX:
            raise Denied(
                f"the clock of this machine has jumped {ahead / 3600:,.1f} hours ahead since this process "
                "began, so nothing is deleted by age, and nothing is swept; correct the clock, or restart "
                "this process if the clock is right"
            )

    def _difference(self) -> float:
        return self.env.now_ms() / 1000 - self.env.monotonic()
