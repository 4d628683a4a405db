"""Planted bugs that need a backend of this project as their sound class, which the suite may not import."""

from __future__ import annotations

import asyncio
import threading
from typing import ClassVar

from offload_conformance.bugs import bug
from offload_posix import PosixStore

from offload.contracts.store import Body, check_key
from offload.ground.errors import AlreadyExists


class Folder(PosixStore):
    """A sound store in the folder that the URL names."""

    KIND: ClassVar = "store"

    def __init__(self, url: str) -> None:
        super().__init__(root=url.partition("://")[2])


@bug("store/create_is_atomic_between_processes")
class KnowsOnlyItsOwnProcess(Folder):
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
