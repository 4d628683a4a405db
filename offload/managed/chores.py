"""The pieces of work of one ledger, each with its own errors, so that a failure of one stops no other.

A full disk must not keep copies from being deleted, and a store that is down must not keep cursors from being
saved. Only a claim by another process ends all of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from offload.ground.env import Env
from offload.ground.errors import Conflict, Fenced, OffloadError, OutcomeUnknown, TryAgain

__all__: list[str] = []


RETRY_SECONDS_MAX: Final = 60.0
PAUSED_STEP_SECONDS: Final = 300.0
"""The time between two tries of a chore that waits for a person."""


@dataclass(slots=True, kw_only=True)
class Chore:
    """One piece of work, which is run again and again."""

    run: Callable[[], Awaitable[None]]
    due_seconds: Callable[[], float]
    """The time until the clock alone makes something due, if the last run succeeded."""
    env: Env
    error: OffloadError | None = None
    """The error of the last run. None if it succeeded."""
    pause: OffloadError | None = None
    """The error for which a person must act. It lasts until a run succeeds."""

    _failures: int = 0
    _retry_at_seconds: float = 0.0

    async def turn(self) -> None:
        """Run, unless it failed only just now. Raises `Fenced` alone of the framework's errors."""
        if self.error is not None and self.env.monotonic() < self._retry_at_seconds:
            return
        try:
            await self.run()
        except Fenced:
            raise
        except OffloadError as error:
            self._fail(error)
        else:
            self.error = self.pause = None
            self._failures = 0

    @property
    def seconds(self) -> float:
        """The time until it may have something to do."""
        if self.error is None:
            return self.due_seconds()
        return self._retry_at_seconds - self.env.monotonic()

    def _fail(self, error: OffloadError) -> None:
        self.error = error
        if isinstance(error, TryAgain | OutcomeUnknown | Conflict):
            seconds = self.env.backoff_seconds(
                self._failures, base_seconds=1.0, max_seconds=RETRY_SECONDS_MAX
            )
            self._failures += 1
        else:
            seconds, self.pause = PAUSED_STEP_SECONDS, error
        self._retry_at_seconds = self.env.monotonic() + seconds
