"""Restarts of a part that failed: at most so many within a period, as a supervisor of Erlang counts them.

    failures at second          0    100   200   299                                300 and a bit
    intensity 3, period 300     1st  2nd   3rd   the fourth within the period: no    1st is too old: yes

A failure is followed by a restart if fewer than `intensity` restarts began in the period before it. Both ends
belong to the period: a restart exactly `period_seconds` ago counts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from offload.ground.errors import Denied, Fenced, Misuse, OffloadError

__all__ = ["GivenUp", "RestartLimit", "Restarts", "down"]


class GivenUp(StrEnum):
    """What follows when a vhost has failed too often."""

    CONTINUE = "continue"
    """The vhost stays down until a person restarts it. The others go on."""
    STOP = "stop"
    """All vhosts of the process stop, and the block of `Vhosts` raises the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimit:
    """How often a part may be restarted, and what follows. Raises `Misuse` for a limit that is none."""

    intensity: int = 3
    """The number of restarts that one period may have. 0: the first failure is the last."""
    period_seconds: float = 300.0
    then: GivenUp = GivenUp.CONTINUE

    def __post_init__(self) -> None:
        if self.intensity < 0 or not (isfinite(self.period_seconds) and self.period_seconds > 0):
            raise Misuse(
                "restarts have an intensity of at least 0 and a period of more than 0 seconds, "
                f"not {self.intensity} and {self.period_seconds}"
            )
        if self.then not in list(GivenUp):
            raise Misuse(f"after the last restart, `continue` or `stop`, not {self.then!r}")


@dataclass(slots=True)
class Restarts:
    """The restarts of one part. It keeps the times of at most `intensity` of them."""

    limit: RestartLimit
    _begun: deque[float] = field(default_factory=deque)

    def allow(self, now_seconds: float) -> bool:
        """Note a restart and return True, or return False if this failure is one too many.

        `now_seconds` is the time of the failure by a clock that never goes backwards.
        """
        while self._begun and now_seconds - self._begun[0] > self.limit.period_seconds:
            self._begun.popleft()
        if len(self._begun) >= self.limit.intensity:
            return False
        self._begun.append(now_seconds)
        return True

    @property
    def recent(self) -> int:
        """The number of restarts that count, as of the last failure."""
        return len(self._begun)

    def forget(self) -> None:
        """Forget all restarts: a person has looked at the part."""
        self._begun.clear()


def down(what: str, error: BaseException) -> OffloadError:
    """Return the error of every call to a part that is down: of the class of what ended it, or a `Denied`."""
    text = f"{what} is down after: {error}"
    if not isinstance(error, Fenced):
        text += ". Mend the cause, then open the vhost or restart the queue again"
    if not isinstance(error, OffloadError):
        return Denied(text)
    remade, arguments, attributes = error.__reduce__()[:3]
    found: OffloadError = remade(*arguments)
    found.__dict__.update(attributes)
    found.args = (text,)
    return found
