"""Threads for blocking calls: made when first needed, and anew in a process that was forked."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from offload.errors import Misuse

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """At most `threads` blocking calls at once."""

    __slots__ = ("_closed", "_executor", "_process", "_threads")

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0
        self._closed = False

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Begin `work`. Cancelling the future abandons the work, which goes on to its end unheard."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._ready(), lambda: work(*args, **kwargs))

    async def finish(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `work`, and even when cancelled not return before it ended: it holds something of ours."""
        future = self.submit(work, *args, **kwargs)
        try:
            return await asyncio.shield(future)
        finally:
            await settle(future)

    def close(self) -> None:
        """Let the threads go once they are idle. No further work is taken."""
        self._closed = True
        if self._executor is not None and self._process == os.getpid():
            self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = None

    def _ready(self) -> ThreadPoolExecutor:
        if self._closed:
            raise Misuse("this store was closed")
        if self._executor is None or self._process != os.getpid():
            _let_malloc_keep_buffers()
            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="offload-posix")
            self._process = os.getpid()
        return self._executor


def _let_malloc_keep_buffers() -> None:
    """Spare the page faults of a fresh mapping for every buffer that a thread reads into.

    glibc maps a large block and unmaps it when freed, until it has seen a block of that size freed:
    from then on it keeps up to twice as much per arena. Showing it one of just under 32 MiB, the largest
    it learns from, more than doubles the rate of reads in several threads. The block is never touched,
    so it costs two system calls; other allocators take no notice.
    """
    bytes(31 << 20)


async def settle(future: asyncio.Future[Any]) -> None:
    """Wait until `future` is done, however often the waiting task is cancelled, and take no notice how.

    Only for use while the task is unwinding anyway: a cancellation that arrives here is swallowed,
    the one that led here goes on.
    """
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    if not future.cancelled():
        future.exception()
