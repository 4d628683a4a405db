"""Mistakes in what is declared, with event loops and with clocks."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.contracts.store import Body
from offload.ground.errors import Misuse


async def _in_another_loop(open_: Open) -> None:
    async def work() -> None:
        store = open_()
        await asyncio.gather(*(store.put(f"k{number}", Body.of(b"x")) for number in range(4)))

    await work()
    await asyncio.to_thread(asyncio.run, work())


@bug(_in_another_loop)
class LockOfTheFirstLoop(ServiceStore):
    """All clients of a process share one `asyncio.Lock`, which belongs to the loop on which a task first
    waits.

    Breaks "A store belongs to one event loop": a store on a second loop of the process raises `RuntimeError`.
    """

    lock: ClassVar = asyncio.Lock()

    async def put(self, key: str, body: Body) -> None:
        async with self.lock:
            await super().put(key, body)


@bug(proofs.keeps(4 * 2**20 + 1))
class PutsOfFourMegabytesAtMostUndeclared(ServiceStore):
    """A message of more than 4 MiB is refused, as gRPC does, and `put_size_bytes_max` is None.

    Breaks "The largest object that a single `put` takes": a fragment of the usual size cannot be stored.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.size_bytes > 4 * 2**20:
            raise Misuse("RESOURCE_EXHAUSTED: message larger than max")
        await super().put(key, body)
