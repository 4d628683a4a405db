"""Mistakes with pools, sessions, locks and queues."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.contracts.store import Body, Listed, Span, Suffix, check_key
from offload.ground.errors import NotFound, TryAgain


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


@bug(proofs.many_times(proofs.left_early, 120))
class ConnectionIsKeptByAListingLeftEarly(_Manual):
    """A listing holds its connection until the caller has taken the last row. The pool has a hundred, as in
    aiohttp.

    Breaks "Pages are fetched as the caller advances": after a hundred lookups of a first key the store
    hangs.
    """

    CONNECTIONS = 100

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        await self.take()
        token: str | None = after
        while token is not None:
            rows, token = self.service.page(prefix, token, self.PAGE_ROWS)
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)
        self.give()


@bug(proofs.many_times(proofs.cancelled, 40))
class ConnectionIsKeptWhenCancelled(_Manual):
    """`except Exception` gives the connection back after an error, but not after a cancellation.

    Breaks "connections return to the pool or are closed; and the next call works".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        check_key(key)
        await self.take()
        try:
            await asyncio.sleep(0)
            data = self.service.get(key, span)
        except Exception:
            self.give()
            raise
        self.give()
        if data is None:
            raise NotFound(key)
        return data


async def _closed_beside(open_: Open) -> None:
    one, two = open_(), open_()
    await one.put("k", Body.of(b"x"))
    await one.aclose()
    await one.aclose()
    assert await two.get("k") == b"x"


@bug(_closed_beside)
class ClientsShareASession(ServiceStore):
    """All clients of a process share one session, and the first client that closes it closes it for all.

    Breaks "`aclose`: Release connections and threads", which are the store's own: a second tier in the
    process fails.
    """

    closed: ClassVar[set[str]] = set()

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.closed.discard(url)

    async def ask(self, request: Callable[..., Any], *arguments: Any) -> Any:
        if self._url in self.closed:
            raise TryAgain("the session is closed")
        return await super().ask(request, *arguments)

    async def aclose(self) -> None:
        self.closed.add(self._url)


@bug(_closed_beside)
class SecondCloseFails(ServiceStore):
    """`aclose` forgets the session, and a second call fails because there is none.

    Breaks "`aclose`: Idempotent": the error of a job is hidden by that of its clean-up.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.session: list[str] | None = [url]

    async def aclose(self) -> None:
        self.session.clear()  # type: ignore[union-attr]
        self.session = None


@bug(proofs.together(lambda store: [store.put(f"k{n}", Body.of(b"x")) for n in range(4)], [None] * 4))
class LockOfThreadsIsHeldWhileWaiting(ServiceStore):
    """A `threading.Lock` is held across an `await`: the second call at the same time blocks the event loop
    for ever.

    Breaks "methods may be called at the same time". (It gives up after five seconds, and fails.)
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lock = threading.Lock()

    async def put(self, key: str, body: Body) -> None:
        if not self.lock.acquire(timeout=5):
            raise RuntimeError("deadlock")
        try:
            await super().put(key, body)
        finally:
            self.lock.release()


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
