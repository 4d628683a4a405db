"""The turns of uploads: how many fragments are in memory at once.

A fragment takes one turn, for `UPLOAD_SIZE_BYTES`. A chunk is in memory whole: as it was read, as it is
stored, and as the store's client sends it. So a fragment with a very large chunk takes as many turns as that
needs, or all of them.

Invariant: only one fragment at a time gathers several turns, so no two wait for each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

__all__ = ["UploadTurns"]


TURN_MEMORY_SIZE_BYTES: Final = 96 * 2**20
"""The memory of one turn: 64 MiB of a fragment, and 32 MiB to read and code. See `service.assembly`."""

PROGRAM_MEMORY_SIZE_BYTES: Final = 128 * 2**20

COPIES_OF_CHUNK: Final = 3
"""How often a chunk is in memory while it is uploaded: 2.8 times were measured with chunks of 105 MiB."""

_log: Final = logging.getLogger(__name__)


class UploadTurns:
    """So many turns. Used in one event loop."""

    def __init__(self, count: int) -> None:
        self._count, self._turns, self._gathering = count, asyncio.Semaphore(count), asyncio.Lock()
        self._told_size_bytes = 0

    @asynccontextmanager
    async def turn(self, stream: str, chunk_size_bytes: int) -> AsyncIterator[None]:
        """Wait for the turns of a fragment of `stream` with a largest chunk of this size, and hold them."""
        needed = -(-COPIES_OF_CHUNK * chunk_size_bytes // TURN_MEMORY_SIZE_BYTES)
        if needed > self._count:
            self._tell(stream, chunk_size_bytes, needed)
        wanted, taken = max(1, min(needed, self._count)), 0
        try:
            if wanted == 1:
                await self._turns.acquire()
                taken = 1
            else:
                async with self._gathering:
                    while taken < wanted:
                        await self._turns.acquire()
                        taken += 1
            yield
        finally:
            for _ in range(taken):
                self._turns.release()

    def _tell(self, stream: str, chunk_size_bytes: int, needed: int) -> None:
        """Say what such a chunk needs before it is read: the process may not survive it."""
        if chunk_size_bytes <= self._told_size_bytes:
            return
        self._told_size_bytes = chunk_size_bytes
        memory = PROGRAM_MEMORY_SIZE_BYTES + needed * TURN_MEMORY_SIZE_BYTES
        _log.warning(
            "stream %r: a chunk of %d MiB takes about %d MiB of memory while it is uploaded, and %d MiB are "
            'planned for uploads: in the configuration of offload run, write memory = "%dMiB", and let the '
            "service or the container have more than that",
            stream,
            chunk_size_bytes // 2**20,
            COPIES_OF_CHUNK * chunk_size_bytes // 2**20,
            self._count * TURN_MEMORY_SIZE_BYTES // 2**20,
            memory // 2**20,
        )
