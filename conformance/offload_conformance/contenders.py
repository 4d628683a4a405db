"""Contenders that start together, each in its own thread with its own event loop.

Invariants: if one fails, the others stop waiting at once, and the caller gets its error, not their broken
barriers. When `contend_in_threads` returns or raises, every thread has ended, or did not end in time and is
left behind as a daemon.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from offload_conformance.asynchronous import GRACE_SECONDS

Contend = Callable[[int, threading.Barrier], Coroutine[Any, Any, None]]
"""A contender, called with its number and a barrier. It waits at the barrier before each new start."""


def contend_in_threads(contenders: int, contend: Contend, *, seconds_max: float) -> None:
    """Run all contenders to their ends, in `seconds_max` at most.

    Raises the first error of a contender, and `AssertionError` if one has not ended in time.
    """
    start = threading.Barrier(contenders, timeout=seconds_max)
    errors: list[BaseException] = []

    def run(contender: int) -> None:
        try:
            asyncio.run(contend(contender, start))
        except BaseException as error:  # noqa: BLE001 - it is raised in the caller's thread
            errors.append(error)
            start.abort()

    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in range(contenders)]
    for thread in threads:
        thread.start()
    until = (
        time.monotonic() + seconds_max + min(GRACE_SECONDS, seconds_max)
    )  # the grace lets those at a broken barrier end
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    own = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if own:
        raise own[0]
    late = sum(thread.is_alive() for thread in threads)
    assert not late, (
        f"expected each thread to end within {seconds_max:g} s; found {late} of {contenders} still waiting"
    )
    if errors:
        raise errors[0]
