"""Bugs of a client: calls that disturb each other, cancellation, closing, and its URL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import ClassVar, Final
from uuid import uuid4

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Buffer, Span, Suffix, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse, NotFound
from offload.store.memory import MemoryStore
from offload.store.spans import clip
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound import proofs
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.service import ServiceStore
from offload_conformance.bugs.sound.views import ended
from offload_conformance.bugs.sound.wrappers import checked
from offload_conformance.bugs.store.shared import FewConnections, Shared


@bug("store/capabilities_do_not_change")
class LearnsAsItGoes(MemoryStore):
    """Declares capabilities that its last request has shown.

    Capabilities are discovered at the first call, so two clients have different declarations.
    """

    made = 0

    def __init__(self, *, objects: dict[str, bytes]) -> None:
        super().__init__(objects=objects)
        LearnsAsItGoes.made += 1
        self.number = LearnsAsItGoes.made

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, part_size_bytes_min=self.number)


@bug("store/closing_is_idempotent")
class ClosesOnce(MemoryStore):
    """Fails when it is closed for the second time.

    `self._session = None` after closing, and no look at it before.
    """

    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise RuntimeError("the session is closed")
        self.closed = True


@bug("store/closing_leaves_other_clients_alone")
class ClosesTheSession(MemoryStore):
    """Closes the connections of all clients of the place.

    A library caches sessions or instances by their arguments, as fsspec does with file systems.
    """

    closed: set[int] = set()

    async def aclose(self) -> None:
        self.closed.add(id(self.objects))

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if id(self.objects) in self.closed:
            raise RuntimeError("session is closed")
        return await super().get(key, span)


@bug("store/the_url_names_the_place")
class NamesItself(MemoryStore):
    """Has another url for each client.

    The `repr` of a session in it, or a temporary token.
    """

    def __init__(self, *, objects: dict[str, bytes]) -> None:
        super().__init__(objects=objects, name=str(uuid4()))


@bug("store/the_url_carries_no_credentials")
class TellsThePassword(MemoryStore):
    """Shows the password in its url.

    The user's URL is returned unchanged, and gets into every log.
    """

    @property
    def url(self) -> str:
        return "memory://user:hunter2@place"


@bug("store/calls_may_overlap")
class KeepsTheReplyInItself(MemoryStore):
    """Keeps the key of a request in the client until the reply is there.

    A client was written for one thread, and all concurrent calls share its attributes.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.asked = key
        await asyncio.sleep(0)
        return await super().get(self.asked, span)


@bug("store/calls_do_not_hold_up_the_loop")
class BlocksTheLoop(MemoryStore):
    """Waits for the store on the event loop's own thread.

    boto3, requests or sqlite3 called from an `async def`.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        time.sleep(0.3)  # noqa: ASYNC251 - this is the bug
        return await super().get(key, span)


@bug("store/calls_may_overlap")
class SharesAFile(MemoryStore):
    """Uses one file position for all readers of an object.

    A file stays open, with `seek` and then `read`, so two simultaneous ranges of an object are mixed up.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        start, end = clip(span, len(data))
        self.at: dict[str, int] = getattr(self, "at", {})
        self.at[key] = start
        await asyncio.sleep(0)
        return data[self.at[key] : self.at[key] + end - start]


@bug("store/a_cancelled_call_hinders_no_other")
class LosesConnections(FewConnections):
    """Does not give a connection back if its call is cancelled.

    `acquire`, the call, `release`, without `finally`: each reader that gives up takes a connection out of
    the pool.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.take()
        try:
            data = await super().get(key, span)
        except Exception:
            self.free += 1
            raise
        self.free += 1
        return data


@bug("store/a_cancelled_call_hinders_no_other")
class ReadsTheLastReply(MemoryStore):
    """Gives the reply of a cancelled call to the next call.

    redis-py did this, on connections that were returned to the pool before their reply arrived.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        replies: list[bytes] = self.__dict__.setdefault("replies", [])
        replies.append(await super().get(key, span))
        await asyncio.sleep(0)
        return replies.pop(0)


@bug("store/capabilities_do_not_change")
class LearnsWhatItCan(MemoryStore):
    """Declares no uploads until its first call.

    The capabilities of the server are in the reply to the first request.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=bool(self.objects))


@bug("store/calls_may_overlap")
class HasOneBuffer(MemoryStore):
    """Gathers the windows of all puts in one buffer of the client.

    The buffer is kept to save memory, and two puts at the same time share it.
    """

    async def put(self, key: str, body: Body) -> None:
        buffer: list[Buffer] = self.__dict__.setdefault("buffer", [])
        buffer.clear()
        async for window in body.windows():
            buffer[len(buffer) :] = [window]
        data = b"".join(buffer)

        async def windows() -> AsyncIterator[Buffer]:
            if data:
                yield data

        await super().put(key, replace(body, windows=windows))


@bug("store/calls_may_overlap")
class PutsAlone(MemoryStore):
    """Refuses every read while a put of the same client waits for its body.

    A client has one connection, which a put holds until its body has ended.
    """

    putting = 0

    async def put(self, key: str, body: Body) -> None:
        self.__dict__["putting"] = self.putting + 1
        try:
            await super().put(key, body)
        finally:
            self.__dict__["putting"] = self.putting - 1

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if self.putting:
            raise Misuse("the connection is in use")
        return await super().get(key, span)


CONNECTIONS: Final = 16


@bug("store/calls_may_overlap")
class CutsTemporaryNames(MemoryStore):
    """Writes bodies with long names to one temporary file.

    The name of the file is that of the key and a suffix, cut to the longest name of the file system.
    """

    async def put(self, key: str, body: Body) -> None:
        files: dict[str, bytes] = self.__dict__.setdefault("files", {})
        name = f"{key}.temporary"[:200]
        files[name] = b"".join([bytes(window) async for window in body.windows()])
        await asyncio.sleep(0)
        await super().put(key, Body.of(files[name], metadata=body.metadata))


@bug("store/calls_may_overlap")
class AsksWithinARequest(MemoryStore):
    """Waits for a second connection while it holds the first one, and gives up after a while.

    The token of a session is fetched within the request that needs it, and all connections are taken.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        connections = self.__dict__.setdefault("connections", asyncio.Semaphore(CONNECTIONS))
        async with connections:
            await asyncio.sleep(0)
            async with asyncio.timeout(0.2), connections:
                return crc32c(await self.get(key))


@bug("store/closing_leaves_other_clients_alone")
class AbortsAllWhenClosed(Shared):
    """Aborts every unfinished upload of the place when a client is closed.

    What is left behind is cleaned up at the end, and nobody asks whose it is.
    """

    async def aclose(self) -> None:
        for upload in [*self._unfinished.values()]:
            await upload.abort()


async def _last_put_wins(open_: OpenClient) -> None:
    one, two = open_(), open_()
    await one.put("k", Body.of(b"one"))
    await two.put("k", Body.of(b"two"))
    assert await one.get("k") == b"two"


@bug("store/closing_leaves_other_clients_alone", _last_put_wins)
class ClientsHaveTheirClocks(SharedMemory):
    """A row keeps the value with the greatest time, and times come from the clocks of clients, which differ.

    Breaks "Store a whole object, and replace an existing one". Costs the puts of a client whose clock is
    behind: they succeed, and change nothing.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kept[""] = self.kept.get("", 0) + 1
        self.behind_seconds = 5 * self.kept[""]

    async def put(self, key: str, body: Body) -> None:
        checked(self, key, body)
        before, stood = self.objects.get(key), self.kept.get(key, 0)
        await super().put(key, body)
        now = time.time() - self.behind_seconds
        if before is not None and stood > now:
            self.objects[key] = before
        else:
            self.kept[key] = now


async def _in_another_loop(open_: OpenClient) -> None:
    async def work() -> None:
        store = open_()
        await asyncio.gather(*(store.put(f"k{number}", Body.of(b"x")) for number in range(4)))

    await work()
    await asyncio.to_thread(asyncio.run, work())


@bug("store/calls_may_overlap", _in_another_loop)
class LockOfTheFirstLoop(ServiceStore):
    """All clients of a process share one `asyncio.Lock`, which belongs to the loop on which a task first
    waits.

    Breaks "A store belongs to one event loop": a store on a second loop of the process raises `RuntimeError`.
    """

    lock: ClassVar = asyncio.Lock()

    async def put(self, key: str, body: Body) -> None:
        async with self.lock:
            await super().put(key, body)


@bug("store/calls_do_not_hold_up_the_loop", proofs.keeps(4 * 2**20 + 1))
class PutsOfFourMegabytesAtMostUndeclared(ServiceStore):
    """A message of more than 4 MiB is refused, as gRPC does, and `put_size_bytes_max` is None.

    Breaks "The largest object that a single `put` takes": a fragment of the usual size cannot be stored.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.size_bytes > 4 * 2**20:
            raise Misuse("RESOURCE_EXHAUSTED: message larger than max")
        await super().put(key, body)


async def shows_joined_reads(open_: OpenClient) -> None:
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


@bug("store/a_cancelled_call_hinders_no_other", shows_joined_reads)
class JoinedReads(Joining):
    """If one of several reads that share a request is cancelled, all are cancelled.

    Breaks "methods may be called at the same time".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await self.flight(key, span)


async def _folders_come_and_go(open_: OpenClient) -> None:
    store = open_()
    for number in range(10):
        await store.put("p/a", Body.of(b"x"))
        key = f"p/b{number}"
        put, deleted = await ended(store.put(key, Body.of(b"x")), store.delete(["p/a"]))
        assert (put, deleted) == (None, None), (put, deleted)
        assert await store.get(key) == b"x"
        await store.delete([key])


@bug("store/calls_may_overlap", _folders_come_and_go)
class FolderGoesWithItsLast(SharedMemory):
    """A put makes its folder and then a file in it. The deletion of the last file takes the folder between.

    Breaks "methods may be called at the same time". Costs a writer beside a sweep: its put fails, as if the
    bucket were gone.
    """

    async def put(self, key: str, body: Body) -> None:
        folder, _, _ = check_key(key).rpartition("/")
        folders = self.kept.setdefault("folders", set())
        folders.add(folder)
        for _ in range(5):  # the file is opened
            await asyncio.sleep(0)
        if folder not in folders:
            raise NotFound(key, store=self.url)
        await super().put(key, body)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            folder, slash, _ = key.rpartition("/")
            if slash and not any(each.startswith(folder + slash) for each in self.objects):
                self.kept.setdefault("folders", set()).discard(folder)
