"""Bugs of a client: opening, closing, waiting, and its URL."""

from __future__ import annotations

import time
from typing import Any

from offload.contracts.ledger import ReadHandle
from offload.ground.errors import AlreadyExists, Conflict, NotOffloaded
from offload.model.attempt import Receipt
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator
from offload_conformance.bugs.registry import bug


@bug("contract/closing_is_idempotent")
class FailsToCloseAgain(ObjectStoreOffloader):
    """Fails when it is closed for the second time.

    A cleanup runs twice on a pool that is already closed.
    """

    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise RuntimeError("the pool is closed")
        self.closed = True
        await super().aclose()


@bug("contract/closing_leaves_others_alone")
class ClosesForAll(ObjectStoreOffloader):
    """Closes resources that other offloaders of the place use too.

    The pool of connections belongs to the module.
    """

    closed: set[int] = set()

    @property
    def _pool(self) -> int:
        store = self.data
        while isinstance(store, StoreDecorator):
            store = store.inner
        assert isinstance(store, MemoryStore)
        return id(store.objects)

    async def aclose(self) -> None:
        self.closed.add(self._pool)
        await super().aclose()

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        if self._pool in self.closed:
            raise RuntimeError("the pool is closed")
        return await super().read_offloaded(*args, **kwargs)


@bug("contract/the_url_carries_no_credentials")
class TellsTheToken(ObjectStoreOffloader):
    """Shows an access token in its url.

    A signed URL or a connection string is kept unchanged.
    """

    @property
    def url(self) -> str:
        return f"{super().url}?sig=c2VjcmV0"


@bug("contract/calls_do_not_hold_up_the_loop")
class SleepsOnTheLoop(ObjectStoreOffloader):
    """Waits for its database on the event loop's own thread.

    A driver that blocks, called from an `async def`.
    """

    async def load_manifest(self, stream: str) -> Manifest:
        time.sleep(0.3)  # noqa: ASYNC251 - this is the bug
        return await super().load_manifest(stream)


@bug("contract/opening_is_idempotent")
class ResetsWhatItOpens(ObjectStoreOffloader):
    """Empties the tier whenever somebody opens it with `create`.

    `CREATE OR REPLACE TABLE`.
    """

    was_opened = False

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=create)
        if create and not self.was_opened:
            roots = [row.key async for row in self.data.list("") if "/root." in row.key]
            await self.data.delete(roots)
        self.was_opened = True


@bug("contract/opening_makes_nothing_unasked")
class MakesAnyPlaceATier(ObjectStoreOffloader):
    """Makes any opened place a tier.

    A wrong URL makes an empty tier by accident.
    """

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=True)


@bug("contract/openings_may_come_at_once")
class LosesTheRaceToOpen(ObjectStoreOffloader):
    """Fails to open a tier that another process makes at the same time.

    It finds nothing, creates, and then treats the existing tier as an error.
    """

    async def open(self, *, create: bool = False) -> None:
        try:
            await super().open()
        except NotOffloaded:
            if not create:
                raise
            await super().open(create=True)
            try:
                await self.data.create("tier.table", b"")
            except AlreadyExists as error:
                raise Conflict("the table exists") from error


@bug("contract/calls_may_come_while_others_wait")
class IsLockedWhileItWrites(ObjectStoreOffloader):
    """Cannot be read while an upload runs.

    `database is locked`: the upload holds a transaction open while it reads its source.
    """

    writes = 0

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        self.writes += 1
        try:
            return await super().offload(*args, **options)
        finally:
            self.writes -= 1

    async def load_manifest(self, stream: str) -> Manifest:
        if self.writes:
            raise RuntimeError("database is locked")
        return await super().load_manifest(stream)
