"""What the core takes from outside: time, sleep, randomness and names.

They come in as one argument, so that a simulation replays from a seed. `Env()` is the real world.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

__all__ = ["Env"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Env:
    """The world as the core sees it."""

    uuid: Callable[[], UUID] = uuid4
    monotonic: Callable[[], float] = time.monotonic
    """Seconds, from some beginning, never backwards."""
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """Milliseconds since 1970 by the wall clock, which may jump. Nothing that must be safe rests on it."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = field(default=random.random)
    """At least 0, below 1."""

    def backoff_seconds(self, attempt: int, *, base_seconds: float = 0.01, max_seconds: float = 5.0) -> float:
        """How long to wait after failure number `attempt` (from 0): doubling, with jitter in [d/2, d]."""
        full = min(base_seconds * 2.0 ** min(attempt, 32), max_seconds)
        return full / 2 + self.random() * full / 2
