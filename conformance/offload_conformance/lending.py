"""Clients that the tests of one run borrow one after the other, because opening one can take long.

Before its first answer, a client of a distant store may ask for a token, connect, and agree on TLS. Hundreds
of clients would wait longer than all clauses work. So the tests of a run share one event loop, and the
clients that were opened on it.

    a test passed, and left no task     its clients and the loop serve the next test
    it failed, or left a task           they are closed, and the next test begins with new ones

So no mistake that shows in one clause hides behind another. Clauses about opening and closing open clients of
their own (`StoreClauses.open_store`). Invariants: no two borrowers have one client at the same time; a client
is lent only on the loop on which it was opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from offload.contracts.store import ObjectStore
from offload.store.wrap import StoreDecorator
from offload_conformance.asynchronous import Loop, Run


class Lent(StoreDecorator):
    """A borrowed client. Its borrower may close it: with `is_kept`, that changes nothing."""

    __slots__ = ("is_closed", "is_kept")

    def __init__(self, inner: ObjectStore, *, is_kept: bool) -> None:
        super().__init__(inner)
        self.is_closed, self.is_kept = False, is_kept

    async def aclose(self) -> None:
        """Close the client, unless it is kept for the next borrower."""
        if not self.is_kept:
            self.is_closed = True
            await self.inner.aclose()


class Lending:
    """The event loop and the clients that the tests of a run share."""

    def __init__(self, open_store: Callable[[], ObjectStore]) -> None:
        self._open_store = open_store
        self._loop: Loop | None = None
        self._free: list[ObjectStore] = []
        self._lent: list[Lent] = []

    @contextmanager
    def loop(self, seconds_max: float) -> Iterator[Run]:
        """Yield `run` of the shared loop for one test, with this deadline."""
        if self._loop is None:
            self._loop = Loop(seconds_max)
        self._loop.begin(seconds_max)
        yield self._loop.run

    def borrow(self, *, is_kept: bool) -> ObjectStore:
        """Return a client for the rest of the test. On another loop, it is a new one that is not lent."""
        if self._loop is None or not self._loop.is_running_here():
            return self._open_store()
        lent = Lent(self._free.pop() if self._free else self._open_store(), is_kept=is_kept)
        self._lent.append(lent)
        return lent

    def end(self, *, passed: bool) -> None:
        """Take the clients of a test back, or close them and the loop. Errors of closing are no result."""
        used = [lent.inner for lent in self._lent if not lent.is_closed]
        self._lent.clear()
        self._free += used
        if self._loop is None or (passed and not self._loop.is_busy()):
            return
        loop, self._loop = self._loop, None
        clients, self._free = self._free, []
        loop.begin(loop.grace_seconds)
        for client in clients:
            with suppress(Exception):
                loop.run(_closed(client))
        loop.close()


async def _closed(client: ObjectStore) -> None:
    async with asyncio.timeout(1):
        await client.aclose()
