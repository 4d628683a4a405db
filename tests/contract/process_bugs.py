"""Stores in a folder that are sound within one process and broken between two."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import ClassVar, Final

from contract.bugs import Bug, breaks
from offload_posix import PosixStore

from offload.contracts.store import Body, check_key
from offload.ground.errors import AlreadyExists

PROCESS_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=PROCESS_BUGS)


@bug("create_is_atomic_between_processes")
class KnowsOnlyItsOwnProcess(PosixStore):
    """Decides creates by an index that its process read when it began, under a lock of that process.

    A server with several workers, or a client with an index of keys in memory: a lock separates its threads,
    but not other processes.
    """

    lock: ClassVar = threading.Lock()
    known: ClassVar[dict[str, set[str]]] = {}

    async def create(self, key: str, data: bytes) -> None:
        check_key(key)
        if self.url not in self.known:
            there = {row.key async for row in self.list("")}
            self.known.setdefault(self.url, there)
        await asyncio.sleep(0)
        with self.lock:
            if key in self.known[self.url]:
                raise AlreadyExists(key)
            self.known[self.url].add(key)
        await self.put(key, Body.of(data))
