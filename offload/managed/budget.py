"""A bound in bytes for what is under way at once. Whoever exceeds it waits, in the order of asking."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from offload.ground.errors import Misuse

__all__ = ["ByteBudget"]


class ByteBudget:
    """Lets bytes in while they fit. An append that is larger than the whole budget enters alone."""

    def __init__(self, size_bytes: int) -> None:
        if size_bytes < 1:
            raise Misuse(f"a budget is at least 1 byte, not {size_bytes}")
        self._size_bytes = size_bytes
        self.used_size_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold so many bytes for the block, after waiting for them."""
        if self._waiting or not self._fits(size_bytes):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, waiter))
            try:
                await waiter
            except asyncio.CancelledError:
                # It may have been let in at the moment of its cancellation.
                if waiter.done() and not waiter.cancelled():
                    self._give_back(size_bytes)
                else:
                    with suppress(ValueError):  # or passed over since
                        self._waiting.remove((size_bytes, waiter))
                    self._let_in()
                raise
        else:
            self.used_size_bytes += size_bytes
        try:
            yield
        finally:
            self._give_back(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_size_bytes or self.used_size_bytes + size_bytes <= self._size_bytes

    def _give_back(self, size_bytes: int) -> None:
        self.used_size_bytes -= size_bytes
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, waiter = self._waiting.popleft()
            if not waiter.done():
                self.used_size_bytes += size_bytes
                waiter.set_result(None)
