"""Mistakes with pools, sessions, locks and queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.contracts.store import Span, Suffix, check_key
from offload.ground.errors import NotFound


class _Manual(ServiceStore):
    """Takes and returns connections by hand."""

    async def take(self) -> None:
        await self.connections.acquire()
        await asyncio.sleep(0)

    def give(self) -> None:
        self.connections.release()


@bug(proofs.many_times(lambda store, number: store.get(f"absent/{number}"), 40))
class ConnectionIsKeptWhenAbsent(_Manual):
    """A connection goes back to the pool only with a reply that has a body: sixteen absent keys use up the
    pool.

    Breaks "Reading a key that is not there raises `NotFound`", the seventeenth time: the call waits for ever.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        check_key(key)
        await self.take()
        data = self.service.get(key, span)
        if data is None:
            raise NotFound(key)
        self.give()
        return data


async def _burst(open_: Open) -> None:
    store = open_()
    await proofs.fill(store, ["k"])
    assert await asyncio.gather(*(store.get("k") for _ in range(100))) == [b"x"] * 100


@bug(_burst)
class FullQueueIsAnError(ServiceStore):
    """Requests wait in a queue of 64, and one more raises `asyncio.QueueFull`, which is no error of the
    framework.

    Breaks "Every method may raise `TryAgain`, `OutcomeUnknown`, `Denied` or `NoSpace`", and nothing else
    here.
    """

    waiting = 0

    async def ask(self, request: Callable[..., Any], *arguments: Any) -> Any:
        if self.waiting >= 64:
            raise asyncio.QueueFull
        self.waiting += 1
        try:
            return await super().ask(request, *arguments)
        finally:
            self.waiting -= 1
