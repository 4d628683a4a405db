"""Mistakes in stores, of the third set: the suite missed them at first."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from newcomers import proofs
from newcomers.proofs import names, raises
from newcomers.registry import Open, bug
from newcomers.sound import Folder, SharedMemory, Sqlite
from newcomers.store_late_writes import OwnUpload
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, Span, Suffix, check_key
from offload.ground.errors import AlreadyExists, Misuse
from offload.store.memory import _MemoryUpload


async def shows_listing_locks_client(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(b""))
    async with asyncio.timeout(2):
        async for row in store.list(""):
            await store.delete([row.key])


@bug(shows_listing_locks_client)
class ListingLocksClient(SharedMemory):
    """A lock around the one cursor is held while a listing is iterated: a call within the loop waits for
    ever.

    Breaks "methods may be called at the same time".
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._lock = asyncio.Lock()

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async with self._lock:
            async for row in super().list(prefix, after=after):
                yield row

    async def delete(self, keys: Sequence[str]) -> None:
        async with self._lock:
            await super().delete(keys)


async def shows_delete_below_an_object(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(b"x"))
    await store.delete(["a/b"])


@bug(shows_delete_below_an_object)
class DeleteBelowAnObject(Folder):
    """Deleting `a/b` beside an object `a` is refused, as putting it would be.

    Breaks "Deleting what is absent succeeds".
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if os.path.isfile(os.path.dirname(f"{self._root}/{check_key(key)}")):  # noqa: ASYNC240 - as newcomers write
                raise Misuse(f"deleting {key!r}: not a directory")
        await super().delete(keys)


async def shows_threads_stay(open_: Open) -> None:
    before, store = {*threading.enumerate()}, open_()
    await store.put("a", Body.of(b"x"))
    await store.aclose()
    for _ in range(200):  # a thread that ends takes a moment
        left = {*threading.enumerate()} - before
        if not left:
            return
        await asyncio.sleep(0.01)
    store._thread.shutdown(wait=False)
    raise AssertionError(left)


@bug(shows_threads_stay)
class ThreadsStay(Sqlite):
    """`aclose` closes the connection, but not the thread that used it.

    Breaks "Release connections and threads": a process that opens a client for each job ends without threads.
    """

    async def aclose(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, db.close)


async def shows_descriptors_stay(open_: Open) -> None:
    store, before = open_(), len(os.listdir("/proc/self/fd"))
    for key in ("a", "b", "c", "d"):
        await store.put(key, Body.of(b"x"))
        await store.get(key)
    await store.aclose()
    assert len(os.listdir("/proc/self/fd")) <= before


@bug(shows_descriptors_stay)
class DescriptorsStay(Folder):
    """Files that were read stay open for the next read, even after the client is closed.

    Breaks "Release connections and threads": the process runs out of descriptors.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._readers: dict[str, int] = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        if key not in self._readers:
            self._readers[key] = os.open(f"{self._root}/{key}", os.O_RDONLY)
        return data

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in {*keys} & {*self._readers}:
            os.close(self._readers.pop(key))


async def shows_last_of_many_stays(open_: Open) -> None:
    store, keys = open_(), [f"k{number:03}" for number in range(201)]
    await proofs.fill(store, keys)
    await store.delete(keys)
    assert await names(store) == []


@bug(shows_last_of_many_stays)
class LastOfManyStays(SharedMemory):
    """Keys are deleted in batches of 100, and `range(0, len(keys) - 1, 100)` leaves out a batch of one key.

    Breaks "Remove these objects, any number of them."
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, delete_batch_max=100)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        if len(keys) == 1:
            await super().delete(keys)
        for at in range(0, len(keys) - 1, 100):
            await super().delete(keys[at : at + 100])


class OverTooEarly(_MemoryUpload):
    async def complete(self) -> None:
        try:
            await super().complete()
        except Misuse:
            self._over = True
            raise

    async def abort(self) -> None:
        if not self._over:
            await super().abort()


async def shows_failed_is_over(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("a")
    await upload.put_part(2, b"12")
    await raises(Misuse, upload.complete())
    await upload.abort()
    assert await store.unfinished_uploads("") == []


@bug(shows_failed_is_over)
class FailedIsOver(OwnUpload):
    """An upload whose `complete` failed counts as ended, so its abort sends no request.

    Breaks "Idempotent; also right after a failed `complete`": its parts stay, and are paid for.
    """

    UPLOAD = OverTooEarly


async def shows_joined_reads(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(b"0123"))
    one, two = (asyncio.create_task(store.get("a")) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.wait([one, two])
    assert not two.cancelled()


class Joining(SharedMemory):
    """A store in which equal concurrent reads share one request."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._flights: dict[object, asyncio.Future[bytes]] = {}

    def flight(self, key: str, span: Span | Suffix | None) -> asyncio.Future[bytes]:
        flight = self._flights.get((key, span))
        if flight is None:
            flight = self._flights[key, span] = asyncio.ensure_future(self.fetched(key, span))
            flight.add_done_callback(lambda _: self._flights.pop((key, span), None))
        return flight

    async def fetched(self, key: str, span: Span | Suffix | None) -> bytes:
        return await super().get(key, span)


@bug(shows_joined_reads)
class JoinedReads(Joining):
    """If one of several reads that share a request is cancelled, all are cancelled.

    Breaks "methods may be called at the same time".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await self.flight(key, span)


async def shows_known_to_exist(open_: Open) -> None:
    one, two = open_(), open_()
    await one.create("k", b"x")
    await two.delete(["k"])
    await one.create("k", b"y")


@bug(shows_known_to_exist)
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
