"""Looking at a client from outside: whether it holds up the event loop, or its url gives secrets away.

A stall is measured by a clock, and a busy machine stalls too. So a call is tried several times, and the
best try counts: what blocks does so every time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qsl, urlsplit

TRIES_MAX: Final = 5
TICK_SECONDS: Final = 0.005
SECRETS: Final = ("key", "secret", "token", "password", "passwd", "credential", "sig", "signature")


async def longest_stall(
    call: Callable[[], Awaitable[object]],
    *,
    enough_seconds: float,
    between: Callable[[], Awaitable[object]] | None = None,
) -> float:
    """The longest time for which other tasks did not run while `call` did, in the best of a few tries.

    A try below `enough_seconds` ends it. `between` is awaited before each try.
    """
    best = float("inf")
    for _ in range(TRIES_MAX):
        if between is not None:
            await between()
        best = min(best, await _stall(call))
        if best < enough_seconds:
            break
    return best


async def _stall(call: Callable[[], Awaitable[object]]) -> float:
    gaps: list[float] = []

    async def tick() -> None:
        last = time.monotonic()
        while True:
            try:
                await asyncio.sleep(TICK_SECONDS)
            finally:
                now = time.monotonic()
                gaps.append(now - last)
                last = now

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        await call()
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
    return max(gaps)


def has_credentials(url: str) -> bool:
    """Whether a url shows a password, or a parameter that is named like a secret."""
    parts = urlsplit(url)
    words = {name.lower().replace("-", "_").split("_")[-1] for name, _ in parse_qsl(parts.query)}
    return parts.password is not None or not words.isdisjoint(SECRETS)
