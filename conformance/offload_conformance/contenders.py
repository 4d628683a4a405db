"""Contenders in threads of their own, each with an event loop of its own, that begin together.

Invariants: one that fails lets the others go at once; its error, and not what followed from it, is what the
caller gets. When `contend_in_threads` returns or raises, every thread has ended, or is left behind as a
daemon because it did not end in time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from offload_conformance.asynchronous import GRACE_SECONDS

Contend = Callable[[int, threading.Barrier], Coroutine[Any, Any, None]]
"""One contender, by its number; it waits at the barrier as often as all begin anew."""


def contend_in_threads(contenders: int, contend: Contend, *, seconds_max: float) -> None:
    """Run all to their ends, in `seconds_max` at most.

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
    )  # in which those at a broken barrier end
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    own = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if own:
        raise own[0]
    late = sum(thread.is_alive() for thread in threads)
    assert not late, (
        f"expected: each thread ends within {seconds_max:g} s; found: {late} of {contenders} wait"
    )
    if errors:
        raise errors[0]
