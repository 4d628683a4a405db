"""Contenders in threads of their own, each with an event loop of its own, that begin together.

Invariants: one that fails lets the others go at once; its error, and not what followed from it, is what the
caller gets; when `contend_in_threads` returns or raises, every thread has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Contend = Callable[[int, threading.Barrier], Coroutine[Any, Any, None]]
"""One contender, by its number; it waits at the barrier as often as all begin anew."""


def contend_in_threads(contenders: int, contend: Contend, *, seconds_max: float) -> None:
    """Run all to their ends. Nobody waits longer than `seconds_max` for the others, at each barrier."""
    start = threading.Barrier(contenders, timeout=seconds_max)

    def run(contender: int) -> None:
        try:
            asyncio.run(contend(contender, start))
        except BaseException:
            start.abort()
            raise

    with ThreadPoolExecutor(contenders) as pool:
        ended = [pool.submit(run, contender) for contender in range(contenders)]
    errors = [error for each in ended if (error := each.exception()) is not None]
    if errors:
        raise min(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError))
