"""Observations of a client from outside: how long it blocks the event loop, and secrets in its URL.

A stall is measured by a clock, and on a busy machine other programs cause stalls too. So a call is tried
several times and the best try counts: a call that blocks does so every time.
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
    """Return the longest time for which other tasks did not run during `call`, in the best of a few tries.

    A try below `enough_seconds` is the last one. `between` is awaited before each try.
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
    """Return True if a URL shows a password, or has a parameter with the name of a secret."""
    parts = urlsplit(url)
    words = {name.lower().replace("-", "_").split("_")[-1] for name, _ in parse_qsl(parts.query)}
    return parts.password is not None or not words.isdisjoint(SECRETS)
