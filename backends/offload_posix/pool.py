"""Threads for blocking calls: started when first needed, and started again in a forked process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any, ParamSpec, TypeVar

from offload.ground.errors import Misuse

P = ParamSpec("P")
T = TypeVar("T")


class Pool:
    """A pool that runs at most `threads` blocking calls at once."""

    __slots__ = ("_closed", "_executor", "_process", "_threads")

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._executor: ThreadPoolExecutor | None = None
        self._process = 0
        self._closed = False

    def submit(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Begin `work`. If the future is cancelled, the work still runs to its end; its result is lost."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._ready(), lambda: work(*args, **kwargs))

    async def finish(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `work`. Even when cancelled, return only after it ended: it uses the caller's descriptors."""
        future = self.submit(work, *args, **kwargs)
        try:
            return await asyncio.shield(future)
        finally:
            await settle(future)

    def close(self) -> None:
        """Release the threads when they are idle. Later work is refused."""
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


@cache
def _let_malloc_keep_buffers() -> None:
    """Avoid the page faults of a fresh mapping for every buffer that a thread reads into.

    glibc maps a large block, and unmaps it when it is freed. Once it has seen a block of that size freed,
    it keeps up to twice as much in each arena instead. A block of just under 32 MiB is the largest that it
    learns from, and it more than doubles the rate of reads in several threads. The block is never touched,
    so it costs two system calls. It has no effect on other allocators. Once per process is
    enough, and a fork keeps it.
    """
    bytes(31 << 20)


async def settle(future: asyncio.Future[Any]) -> None:
    """Wait until `future` is done, however often the waiting task is cancelled. Ignore its result and error.

    Only for use while the task is ending anyway: a cancellation that arrives here is swallowed, and the one
    that led here continues.
    """
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    if not future.cancelled():
        future.exception()  # asyncio warns of an error that nobody fetched
