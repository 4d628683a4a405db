"""Observations of a client from outside: how long it blocks the event loop, and secrets in its URL.

A stall is measured by a clock, and on a busy machine other programs cause stalls too. So a call is tried
several times and the best try counts: a call that blocks does so every time. A stall in which the system took
the processor from this process, and in which the process itself worked for less time, tells nothing.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qsl, urlsplit

TRIES_MAX: Final = 5
VOID_TRIES_MAX: Final = 20
"""The number of tries that other programs may spoil. After more, there is no finding."""

TICK_SECONDS: Final = 0.005
SECRETS: Final = ("key", "secret", "token", "password", "passwd", "credential", "sig", "signature")


async def longest_stall(
    call: Callable[[], Awaitable[object]],
    *,
    enough_seconds: float,
    between: Callable[[], Awaitable[object]] | None = None,
) -> float:
    """Return the longest time for which other tasks did not run during `call`, in the best of a few tries.

    A try below `enough_seconds` is the last one. `between` is awaited before each try. Returns 0 if other
    programs spoiled too many tries.
    """
    best, spoiled, tries = float("inf"), 0, 0
    while tries < TRIES_MAX and best >= enough_seconds:
        if between is not None:
            await between()
        stall_seconds = await _stall(call, enough_seconds)
        if stall_seconds is not None:
            tries, best = tries + 1, min(best, stall_seconds)
        elif (spoiled := spoiled + 1) > VOID_TRIES_MAX:
            return 0.0
    return best


async def _stall(call: Callable[[], Awaitable[object]], enough_seconds: float) -> float | None:
    """Return the longest stall of one try, or None if only other programs may have made it so long."""
    gaps: list[tuple[float, bool]] = []

    async def tick() -> None:
        last, before = time.monotonic(), _spent()
        while True:
            try:
                await asyncio.sleep(TICK_SECONDS)
            finally:
                now, spent = time.monotonic(), _spent()
                worked_seconds, lost_it = spent[0] - before[0], spent[1] > before[1]
                gaps.append((now - last, lost_it and worked_seconds < enough_seconds))
                last, before = now, spent

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        await call()
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
    longest = max(gap for gap, _ in gaps)
    known = max((gap for gap, is_spoiled in gaps if not is_spoiled), default=0.0)
    return longest if longest < enough_seconds else known if known >= enough_seconds else None


def _spent() -> tuple[float, int]:
    """Return the processor seconds of this process, and how often the system took a processor from it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_nivcsw


def has_credentials(url: str) -> bool:
    """Return True if a URL shows a password, or has a parameter with the name of a secret."""
    parts = urlsplit(url)
    words = {name.lower().replace("-", "_").split("_")[-1] for name, _ in parse_qsl(parts.query)}
    return parts.password is not None or not words.isdisjoint(SECRETS)
