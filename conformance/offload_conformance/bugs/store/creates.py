"""Bugs of creates: keys that two callers get, and free keys that nobody gets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, check_key
from offload.ground.errors import AlreadyExists, Conflict, Misuse
from offload.store.memory import MemoryStore
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.wrappers import CREATE_MAX, Gateway
from offload_conformance.bugs.store.shared import MIB


@bug("store/create_is_atomic")
class ChecksThenWrites(MemoryStore):
    """Checks if the key is taken, and writes in a second step.

    `if not await fs.exists(key)`: the default of fsspec's `mode="create"` if a store has nothing better.
    """

    async def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise AlreadyExists(key)
        await asyncio.sleep(0)
        self.objects[key] = data


@bug("store/create_is_atomic")
class TakesItselfForARival(MemoryStore):
    """Reports that the key is taken, after its own first request took it.

    A client repeats a request by itself, and reports the second reply.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        raise AlreadyExists(key)


@bug("store/create_is_atomic_between_threads")
class LocksItsOwnLoop(MemoryStore):
    """Checks and writes atomically only within its own event loop.

    An `asyncio.Lock` in the client: another thread, process or machine does not know of it.
    """

    async def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise AlreadyExists(key)
        time.sleep(0.02)  # noqa: ASYNC251 - lets the others run under any scheduler
        self.objects[key] = data


@bug("store/create_never_replaces")
class OverwritesOnCreate(MemoryStore):
    """Overwrites an existing object on create.

    A server that does not know `If-None-Match` ignores it and answers 200: several S3 servers did.
    """

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


@bug("store/create_never_replaces")
class CallsItAConflict(MemoryStore):
    """Raises `Conflict` if the key is taken.

    One table from status codes to errors for all requests, in which 409 and 412 are conflicts.
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists as taken:
            raise Conflict(str(taken)) from taken


@bug("store/create_refuses_its_own_bytes")
class TakesEqualForItsOwn(MemoryStore):
    """Counts a create as done if the same bytes are stored already.

    This is meant for lost replies, but two writers may send the same bytes.
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists:
            if self.objects.get(key) != data:
                raise


@bug("store/creates_are_whole")
class FillsWhatItCreated(MemoryStore):
    """Creates an object empty, and fills it afterwards.

    `open(path, "xb")` and then `write`, as a local file of fsspec; a crash in between leaves it empty.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, b"")
        await asyncio.sleep(0)
        self.objects[key] = bytes(data)


@bug("store/create_yields_to_a_put")
class CreatesOverEmpty(MemoryStore):
    """Treats an empty object as absent.

    `if existing:` instead of `is not None`, or a placeholder object of size zero that counts as free.
    """

    async def create(self, key: str, data: bytes) -> None:
        if not self.objects.get(key):
            self.objects.pop(key, None)
        await super().create(key, data)


@bug("store/create_succeeds_after_deletion")
class RemembersTheTaken(MemoryStore):
    """Refuses a key that was ever used before.

    A unique index over rows that are only marked as deleted.
    """

    async def create(self, key: str, data: bytes) -> None:
        self.taken: set[str] = getattr(self, "taken", set())
        if key in self.taken:
            raise AlreadyExists(key)
        await super().create(key, data)
        self.taken.add(key)


@bug("store/creates_may_be_as_large_as_declared")
class CreatesSmallObjectsOnly(MemoryStore):
    """Refuses to create more than 256 KiB, and declares no limit.

    A value of DynamoDB has at most 400 KB, one of etcd 1.5 MB; the commit of a long stream fails years later.
    """

    async def create(self, key: str, data: bytes) -> None:
        if len(data) > 256 * 1024:
            raise Misuse(f"{key!r}: the item is too large")
        await super().create(key, data)


@bug("store/creates_may_be_as_large_as_declared")
class DeclaresTooLittle(MemoryStore):
    """Declares a limit for creates, and accepts larger ones.

    The limit belongs to another version of the server.
    """

    capabilities = replace(MemoryStore().capabilities, create_size_bytes_max=2 * MIB)  # type: ignore[assignment]


@bug("store/creates_may_be_as_large_as_declared")
class DeclaresNoRoomForARoot(MemoryStore):
    """Declares that it creates half a mebibyte at most, and keeps to it.

    The limit of a small table is declared correctly, but no tier fits there: a full root, years later, is
    larger.
    """

    capabilities = replace(MemoryStore().capabilities, create_size_bytes_max=MIB // 2)  # type: ignore[assignment]

    async def create(self, key: str, data: bytes) -> None:
        if len(data) > MIB // 2:
            raise Misuse(f"{key!r}: the item is too large")
        await super().create(key, data)


@bug("store/create_never_undoes_a_put")
class LocksCreatesAlone(MemoryStore):
    """Checks and writes under a lock that puts do not take.

    A transaction or lock covers only creates, so a put between the two steps is overwritten.
    """

    async def create(self, key: str, data: bytes) -> None:
        check_key(key)
        self.taken: set[str] = getattr(self, "taken", set())
        if key in self.objects or key in self.taken:
            raise AlreadyExists(key)
        self.taken.add(key)
        await asyncio.sleep(0)
        self.objects[key] = data
        self.taken.discard(key)


@bug("store/create_is_atomic")
class LooksBeforeLargeCreates(MemoryStore):
    """Checks if the key is taken, and writes in a second step, if an object has more than 64 KiB.

    Only a small object is one request. A large one is a conditional look and an upload.
    """

    async def create(self, key: str, data: bytes) -> None:
        if len(data) <= 2**16:
            await super().create(key, data)
            return
        if check_key(key) in self.objects:
            raise AlreadyExists(key)
        await self.put(key, Body.of(data))


@bug("store/creates_may_be_as_large_as_declared")
class DeclaresWhatNothingChecks(MemoryStore):
    """Declares that it creates 20 MiB at most, and accepts more.

    The limit is that of a request, and a test with so large an object was never made.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, create_size_bytes_max=20 * MIB)


@bug("store/create_refuses_its_own_bytes")
class CreatesNothingTwice(MemoryStore):
    """Creates an empty object again and again.

    The entity tag of no bytes is known, so equal bytes count as the caller's own.
    """

    async def create(self, key: str, data: bytes) -> None:
        if data or self.objects.get(check_key(key), b"x"):
            await super().create(key, data)


@bug("store/create_never_replaces")
class RollsBackTheNext(MemoryStore):
    """Loses what a client puts after a create that was refused.

    The refusal leaves a transaction open, and the next one is rolled back with it.
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists:
            self.is_open = True
            raise

    async def put(self, key: str, body: Body) -> None:
        if self.__dict__.pop("is_open", False):
            return
        await super().put(key, body)


async def _created_again(open_: OpenClient) -> None:
    store = open_()
    await store.create("k", b"1")
    await store.delete(["k"])
    await store.create("k", b"2")
    assert await open_().get("k") == b"2"


@bug("store/create_never_replaces", _created_again)
class TokenOfAKey(SharedMemory):
    """A create sends a token of the client and the key, and the server answers a known token as it did
    before.

    Breaks "Store a small object if the key is absent". Costs a create after a deletion: it succeeds, and
    nothing is stored.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.done: set[str] = set()

    async def create(self, key: str, data: bytes) -> None:
        if check_key(key) in self.done and key not in self.objects:
            return
        await super().create(key, data)
        self.done.add(key)


async def _create_of_the_greatest_size(open_: OpenClient) -> None:
    store = open_()
    await store.create("k", bytes(CREATE_MAX))
    assert len(await store.get("k")) == CREATE_MAX


@bug("store/creates_may_be_as_large_as_declared", _create_of_the_greatest_size)
class LimitIsExclusive(Gateway):
    """The declared limit of `create` is compared with "less than".

    Breaks "The largest object that `create` accepts, at least `CREATE_SIZE_BYTES_LEAST`". Costs a root of
    exactly that size.
    """

    async def create(self, key: str, data: bytes) -> None:
        if len(data) >= CREATE_MAX:
            raise Misuse(f"{key!r} is too large")
        await super().create(key, data)


async def shows_known_to_exist(open_: OpenClient) -> None:
    one, two = open_(), open_()
    await one.create("k", b"x")
    await two.delete(["k"])
    await one.create("k", b"y")


@bug("store/create_never_replaces", shows_known_to_exist)
class KnownToExist(SharedMemory):
    """A client remembers the keys that it created, and refuses them without a request, although others
    delete.

    Breaks "Store a small object if the key is absent".
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._known: set[str] = set()

    async def create(self, key: str, data: bytes) -> None:
        if key in self._known:
            raise AlreadyExists(key)
        await super().create(key, data)
        self._known.add(key)

    async def delete(self, keys: Sequence[str]) -> None:
        self._known.difference_update(keys)
        await super().delete(keys)
