"""A pause: what ended the last tries of a piece of work, and when the next one comes.

    the error passes              the work is tried again, after longer and longer times
    the error waits for a person  the work is tried again slowly, and its owner tells the person once

The person is told again if the class of the error changes. Its text does not count, because the offsets in it
change with each try. The error that waits for a person is kept until a try succeeds: one that passes does not
hide it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from offload.ground.env import Env
from offload.ground.errors import Conflict, OffloadError, OutcomeUnknown, TryAgain

__all__ = ["PAUSE_SECONDS", "RETRY_SECONDS_MAX", "Pause"]


PAUSE_SECONDS: Final = 300.0
"""The time between two tries of work that waits for a person."""

RETRY_SECONDS_MAX: Final = 60.0
"""The longest time between two tries after errors that pass."""


@dataclass(slots=True, kw_only=True)
class Pause:
    """The errors of one piece of work since it succeeded last."""

    env: Env
    seconds: float = PAUSE_SECONDS
    """The time between two tries while it waits for a person."""
    error: OffloadError | None = None
    """The error for which it waits. None if the last try succeeded."""
    since_ms: int = 0
    """When the first of these tries failed."""
    kind: str = ""
    """The name of the class of the error that waits for a person. Empty if none does."""
    failures: int = 0
    """The number of errors that passed. The time until the next try grows with it."""
    try_seconds: float = 0.0
    """The moment of the next try, by the monotonic clock."""

    @property
    def left_seconds(self) -> float:
        """The time until the next try. It is not above 0 if the try is due."""
        return self.try_seconds - self.env.monotonic()

    def fail(self, error: OffloadError) -> bool:
        """Note that a try failed. Return True if the caller has to tell a person."""
        if isinstance(error, TryAgain | OutcomeUnknown | Conflict):
            self.retry(error)
            return False
        return self.wait(error)

    def retry(self, error: OffloadError) -> float:
        """Note an error that passes. Return the time until the next try."""
        seconds = self.env.backoff_seconds(self.failures, base_seconds=1.0, max_seconds=RETRY_SECONDS_MAX)
        self.failures += 1
        self._note(self.error if self.kind and self.error is not None else error, seconds)
        return seconds

    def wait(self, error: OffloadError) -> bool:
        """Note an error that waits for a person. Return True if the person has not been told of its class."""
        before, self.kind = self.kind, type(error).__name__
        self._note(error, self.seconds)
        return self.kind != before

    def clear(self) -> None:
        """Note that a try succeeded."""
        self.error, self.kind, self.failures = None, "", 0

    def _note(self, error: OffloadError, seconds: float) -> None:
        if self.error is None:
            self.since_ms = self.env.now_ms()
        self.error, self.try_seconds = error, self.env.monotonic() + seconds
