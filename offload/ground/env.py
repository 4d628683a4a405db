"""The core's inputs from outside: time, sleep, randomness and UUIDs.

They are passed in as one argument, so that a simulation can be replayed from a seed. `Env()` uses the real
clock and random sources.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID, uuid4

__all__ = ["REAL_ENV", "Env"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """The clock, the sleep and the random sources that the core uses."""

    uuid: Callable[[], UUID] = uuid4
    monotonic: Callable[[], float] = time.monotonic
    """Seconds since some fixed moment. It never goes backwards."""
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """Milliseconds since 1970 by the wall clock, which may jump. No safety rule depends on it."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = field(default=random.random)
    """A random number: at least 0, and below 1."""
    secret: Callable[[int], bytes] = os.urandom
    """Returns so many random bytes that nobody can guess."""

    def backoff_seconds(self, attempt: int, *, base_seconds: float = 0.01, max_seconds: float = 5.0) -> float:
        """Return the seconds to wait after failure number `attempt`, counted from 0.

        The delay d doubles from `base_seconds` up to `max_seconds`. The result is a random time in [d/2, d].
        """
        # The exponent is bounded because a large one would overflow a float before `min` could cut it off.
        full = min(base_seconds * 2.0 ** min(attempt, 32), max_seconds)
        return full / 2 + self.random() * full / 2


REAL_ENV: Final = Env()
"""The real clock and random sources: the default of a parameter that is one of them."""
