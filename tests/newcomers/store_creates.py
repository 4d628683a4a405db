"""Mistakes in create-if-absent."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from offload.contracts.store import Body, check_key
from offload.ground.errors import AlreadyExists


@bug(proofs.one_creates(lambda number: b"same"))
class OwnBytesAreASuccess(ServiceStore):
    """A create that finds its own bytes succeeds: it assumes that they come from its own earlier request.

    Breaks "Of any number of creates of one absent key, exactly one succeeds": two writers both win the same
    marker.
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists:
            if await self.get(key) != data:
                raise


@bug(
    proofs.answers(AlreadyExists, lambda store: _create_twice(store)),
)
class EmptyCountsAsAbsent(ServiceStore):
    """`if not existing` treats an empty object as absent and overwrites it.

    Breaks "Store a small object if the key is absent": an empty marker protects nothing.
    """

    async def create(self, key: str, data: bytes) -> None:
        check_key(key)

        def unless_there() -> bool:
            if self.service.objects.get(key):
                return False
            self.service.put(key, bytes(data))
            return True

        if not await self.ask(unless_there):
            raise AlreadyExists(key)


async def _create_twice(store: Any) -> None:
    await store.create("k", b"")
    try:
        await store.create("k", b"second")
    finally:
        found = await store.get("k")
        await store.delete(["k"])
        assert found == b""


async def _created_again(open_: Open) -> None:
    store = open_()
    await store.create("k", b"one")
    await store.delete(["k"])
    await store.create("k", b"two")
    assert await store.get("k") == b"two"


@bug(_created_again)
class DeletedKeysStayTaken(ServiceStore):
    """A deleted key leaves a row that says so, and a create finds the row.

    Breaks "Store a small object if the key is absent": a job's marker can never be created again.
    """

    async def create(self, key: str, data: bytes) -> None:
        if check_key(key) in self.service.keys and key not in self.service.objects:
            raise AlreadyExists(key)
        await super().create(key, data)


async def _create_beside_put(open_: Open) -> None:
    one, two = open_(), open_()
    for turn in range(30):
        key, put = f"k{turn}", b"put" * 1000
        await asyncio.gather(one.create(key, b"created"), two.put(key, Body.of(put)), return_exceptions=True)
        assert await one.get(key) == put  # it came last, or the create is refused


@bug(_create_beside_put)
class CreateIsAtomicAmongCreatesOnly(ServiceStore):
    """Creates take turns: each checks that the key is free, and then puts. A put in between is overwritten.

    Breaks "Store a small object if the key is absent, in one request": both writers believe that theirs is
    there.
    """

    turns: ClassVar = threading.Lock()

    async def create(self, key: str, data: bytes) -> None:
        check_key(key)
        while not self.turns.acquire(blocking=False):  # noqa: ASYNC110 - a lock of threads has no event
            await asyncio.sleep(0)
        try:
            if await self.ask(self.service.head, key) is not None:
                raise AlreadyExists(key)
            await self.ask(self.service.put, key, bytes(data))
        finally:
            self.turns.release()
