"""Fifth set, stores: caches, shared results, requests under way and who cancels them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from newcomers.fifth_sound import ended, filled, listed, stopped
from newcomers.fourth_sound import Client, Wrapped
from newcomers.proofs import data_of, raises
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory, SummedMemory
from offload.contracts.store import Body, Buffer, Listed, Span, Suffix, Unfinished, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, NotFound, OffloadError

# Stale by one call


async def _described_anew(open_: Open) -> None:
    store, other = open_(), open_()
    for number in range(3):
        await other.put("k", Body.of(b"x", metadata={"number": str(number)}))
        assert await store.metadata_of("k") == {"number": str(number)}


@bug(_described_anew)
class MetadataIsRevalidatedLater(SharedMemory):
    """Metadata is served from a cache, which asks the store afterwards: each answer is old by one call.

    Breaks "An object has only the metadata that it was written with". Costs a reader that takes the last
    object's description for the new one's.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.known: dict[str, Mapping[str, str]] = {}

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        answer = self.known.get(key, found)
        self.known[key] = found
        return answer


async def _no_longer_empty(open_: Open) -> None:
    store, other = open_(), open_()
    assert await listed(store, "p/") == []
    await other.create("p/x", b"1")
    assert await listed(store, "p/") == ["p/x"]


@bug(_no_longer_empty)
class EmptyFoldersAreRemembered(SharedMemory):
    """A listing that found nothing is remembered until this client itself writes below the prefix.

    Breaks "A listing that starts after a write or delete returned shows its effect". Costs a writer that
    waits for another one's first object: it never sees it, and begins the stream a second time.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.empty: set[str] = set()

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.empty.clear()

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        self.empty.clear()

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        if prefix in self.empty:
            return
        found = False
        async for row in super().list(prefix, after=after):
            found = True
            yield row
        if not found and not after:
            self.empty.add(prefix)


async def _ahead_ends_with_the_object(open_: Open) -> None:
    store, other = open_(), open_()
    await store.put("k", Body.of(data_of(300)))
    await store.get("k", Span(0, 100, follows=200))
    await other.delete(["k"])
    await raises(NotFound, store.get("k", Span(100, 100)))


@bug(_ahead_ends_with_the_object)
class AheadOutlivesTheObject(SharedMemory):
    """What was read ahead answers the next span, whatever has happened to the object since.

    Breaks "Reading an absent key raises `NotFound`". Costs a reader of an object that was deleted, or begun
    again with other bytes.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ahead: dict[tuple[str, int], bytes] = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if not isinstance(span, Span) or span.start < 0 or span.length < 0:
            return await super().get(key, span)
        if len(held := self.ahead.pop((key, span.start), b"")) >= span.length > 0:
            await asyncio.sleep(0)
            return held[: span.length]
        data = await super().get(key, Span(span.start, span.length + span.follows))
        if span.follows:
            self.ahead[key, span.start + span.length] = data[span.length :]
        return data[: span.length]


async def _created_again(open_: Open) -> None:
    store = open_()
    await store.create("k", b"1")
    await store.delete(["k"])
    await store.create("k", b"2")
    assert await open_().get("k") == b"2"


@bug(_created_again)
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


async def _sums_after_a_put(open_: Open) -> None:
    store = open_()
    for turns in range(6):
        await store.put("k", Body.of(b"old"))
        first = asyncio.create_task(store.stored_crc32c("k"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await store.put("k", Body.of(b"new"))
        assert await store.stored_crc32c("k") == crc32c(b"new")
        await first


@bug(_sums_after_a_put)
class SumOfAnEarlierFlight(SummedMemory):
    """Questions for one sum at the same time become one request, and a later one joins it however old it is.

    Breaks "If `stored_crc32c` returns a number, it is the object's CRC-32C". Costs a writer that checks what
    it has just put, beside another check: it finds damage.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.flights: dict[str, asyncio.Task[int | None]] = {}

    async def stored_crc32c(self, key: str) -> int | None:
        flight = self.flights.get(key)
        if flight is None:
            flight = self.flights[key] = asyncio.create_task(self.sent(key))
            flight.add_done_callback(lambda _: self.flights.pop(key, None))
        return await asyncio.shield(flight)

    async def sent(self, key: str) -> int | None:
        found = await super().stored_crc32c(key)
        for _ in range(50):  # the reply is on its way
            await asyncio.sleep(0)
        return found


async def _only_the_first_is_cancelled(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"x"))
    first = asyncio.create_task(store.get("k"))
    second = asyncio.create_task(store.get("k"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await stopped(first)
    assert await ended(second) == [b"x"]


@bug(_only_the_first_is_cancelled)
class FlightOfTheFirst(SharedMemory):
    """Reads of one object at the same time wait for the request of the first one, and end as it ends.

    Breaks "A call that is cancelled raises `CancelledError`", and no other call. Costs a reader whose
    neighbour has had enough.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.flights: dict[tuple[str, Any], asyncio.Future[bytes]] = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if (key, span) in self.flights:
            return await self.flights[key, span]
        future = self.flights[key, span] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            future.set_result(await super().get(key, span))
        except asyncio.CancelledError:
            future.cancel()
            raise
        except OffloadError as exc:
            future.set_exception(exc)
        finally:
            del self.flights[key, span]
        return await future


# Results that are shared


async def _descriptions_stay(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"x", metadata={"kind": "old"}))
    old = await store.metadata_of("k")
    await store.put("k", Body.of(b"x", metadata={"kind": "new"}))
    assert await store.metadata_of("k") == {"kind": "new"}
    assert old == {"kind": "old"}


@bug(_descriptions_stay)
class OneDescription(SharedMemory):
    """The metadata of an object is one dict of the client, which each later answer changes.

    Breaks "Return the metadata of an object": the one that it had. Costs a caller that compares what it has
    read with what is there now: nothing ever changes.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.known: dict[str, dict[str, str]] = {}

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        known = self.known.setdefault(key, {})
        known.clear()
        known.update(found)
        return known


async def _all_are_aborted(open_: Open) -> None:
    store = open_()
    for number in range(6):
        await store.start_upload(f"k{number}")
    for each in await store.unfinished_uploads(""):
        await store.abort_upload(each)
    assert list(await store.unfinished_uploads("")) == []


@bug(_all_are_aborted)
class UploadsOfTheMoment(Client):
    """The unfinished uploads are a view of the client's table, which shrinks while a caller walks over it.

    Breaks "Return the unfinished uploads of keys that begin with `prefix`": a `Sequence` is no view. Costs a
    sweep, which leaves every second upload.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.table: list[Unfinished] = []

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        self.table[:] = await super().unfinished_uploads(prefix)
        return self.table

    async def abort_upload(self, upload: Unfinished) -> None:
        await super().abort_upload(upload)
        self.table[:] = [each for each in self.table if each.upload_id != upload.upload_id]


async def _reads_stay_as_they_were(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(data_of(500, 1)))
    read = await store.get("k")
    await store.put("k", Body.of(data_of(500, 2)))
    assert bytes(read) == data_of(500, 1)


@bug(_reads_stay_as_they_were)
class ReplacedInItsPlace(SharedMemory):
    """An object of the same size is written over the old one, into the memory that readers look at.

    Breaks "They never change, for as long as anything refers to them". Costs a reader of a root that is
    replaced by one of its size.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.places: dict[str, bytearray] = self.kept.setdefault("places", {})

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:  # type: ignore[override]
        data = await super().get(key)
        place = self.places.setdefault(key, bytearray(data))
        if len(place) != len(data):
            place = self.places[key] = bytearray(data)
        place[:] = data
        found = await super().get(key, span)
        if span is not None:
            return found
        return memoryview(place).toreadonly()

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        if len(place := self.places.get(key, bytearray())) == len(self.objects[key]):
            place[:] = self.objects[key]


# Deletion while something is under way


async def _deletes_what_it_lists(open_: Open) -> None:
    store = open_()
    await filled(store, [f"k{number:04}" for number in range(2100)])
    async for row in store.list("k"):
        await store.delete([row.key])
    await raises(NotFound, store.get("k2099"))


@bug(_deletes_what_it_lists)
class TokenIsAKey(Client):
    """The token of a page is its last key, which the server looks up: if it is gone, no page follows.

    Breaks "An object that exists during the whole call is shown". Costs a sweep that deletes as it lists: it
    leaves everything behind the first 1,000 keys.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        token: str | None = after
        while token is not None:
            if token != after and token not in self.service.objects:
                return
            rows, token = await self.ask(self.service.page, prefix, token, self.PAGE_ROWS)
            for key, size_bytes in rows:
                yield Listed(key, size_bytes)


async def _folders_come_and_go(open_: Open) -> None:
    store = open_()
    for number in range(10):
        await store.put("p/a", Body.of(b"x"))
        key = f"p/b{number}"
        put, deleted = await ended(store.put(key, Body.of(b"x")), store.delete(["p/a"]))
        assert (put, deleted) == (None, None), (put, deleted)
        assert await store.get(key) == b"x"
        await store.delete([key])


@bug(_folders_come_and_go)
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


async def _cancelled_create_leaves_nothing_half(open_: Open) -> None:
    store = open_()
    for turns in range(6):
        key = f"k{turns}"
        task = asyncio.create_task(store.create(key, b"whole"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await stopped(task)
        try:
            found = await open_().get(key)
        except NotFound:
            continue
        assert found == b"whole", (turns, found)


@bug(_cancelled_create_leaves_nothing_half)
class CreateIsAnEmptyFileFirst(SharedMemory):
    """A create makes an empty file, which is exclusive, and writes its bytes afterwards.

    Breaks "Create is atomic" and, of the guide's rules for cancellation, "Nothing of a `put` may become
    visible". Costs a stream whose writer was stopped between: its root is empty, for ever.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, b"")
        await asyncio.sleep(0)
        self.objects[key] = bytes(data)


async def _many_sums_at_once(open_: Open) -> None:
    store = open_()
    await filled(store, [f"k{number}" for number in range(40)])
    sums = await ended(*(store.stored_crc32c(f"k{number}") for number in range(40)))
    assert all(isinstance(each, int) for each in sums), sums


@bug(_many_sums_at_once)
class RequestWithinARequest(Client):
    """A sum needs a token of the session, which is asked for while the connection of the sum is held.

    Breaks "methods may be called at the same time". Costs a check of 16 objects at once, which never ends.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        async with self.connections:
            await asyncio.sleep(0)
            return await super().stored_crc32c(key)


async def _metadata_with_its_bytes(open_: Open) -> None:
    store, other = open_(), open_()
    await store.put("k", Body.of(b"0", metadata={"number": "0"}))
    for number in range(1, 8):
        body = Body.of(str(number).encode(), metadata={"number": str(number)})
        putting = asyncio.create_task(store.put("k", body))
        while not putting.done():
            before = await other.get("k")
            found = await other.metadata_of("k")
            after = await other.get("k")
            assert before != after or found == {"number": before.decode()}, (before, found)
            await asyncio.sleep(0)
        await putting


@bug(_metadata_with_its_bytes)
class MetadataComesLater(SharedMemory):
    """The metadata is a second request, after that of the bytes, as attributes of a file are.

    Breaks "An object has only the metadata that it was written with". Costs a reader that comes between.
    """

    async def put(self, key: str, body: Body) -> None:
        if not body.metadata:
            await super().put(key, body)
            return
        old = await SharedMemory.metadata_of(self, key) if check_key(key) in self.objects else {}
        late = self.kept.setdefault("late", {})
        late[key] = old
        await super().put(key, body)
        for _ in range(5):
            await asyncio.sleep(0)
        late.pop(key, None)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        return self.kept.setdefault("late", {}).get(key, found)  # type: ignore[no-any-return]


async def _temporary_names(open_: Open) -> None:
    store = open_()
    keys = [f"p/{'x' * 240}-{number}" for number in range(4)]
    done = await ended(*(store.put(key, Body.of(data_of(1000, salt))) for salt, key in enumerate(keys)))
    assert done == [None] * 4, done
    for salt, key in enumerate(keys):
        assert await store.get(key) == data_of(1000, salt), key


@bug(_temporary_names)
class TemporaryNamesAreCut(SharedMemory):
    """A put writes to a file of its key and a suffix, cut to the length of names: long keys share one.

    Breaks "A reader finds a complete object or none". Costs two long keys that are put at the same time: both
    have the bytes of one.
    """

    async def put(self, key: str, body: Body) -> None:
        folder, slash, part = check_key(key).rpartition("/")
        name = f"{folder}{slash}{part[:200]}.new"
        data = b"".join([bytes(window) async for window in body.windows()])
        if len(part) <= 200:
            await super().put(key, body)
            return
        body.check_size(len(data))
        temporary = self.kept.setdefault("temporary", {})
        temporary[name] = data
        await asyncio.sleep(0)
        await super().put(key, Body.of(temporary[name], metadata=body.metadata))


async def _refused_for_its_object_only(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(1, b"x")
    try:
        await store.create("k", b"1")
    except AlreadyExists:
        await store.get("k")


@bug(_refused_for_its_object_only)
class UploadHoldsItsKey(Client):
    """An upload that was begun reserves its key, and a create of it is refused as if there were an object.

    Breaks "else raise `AlreadyExists`": the key is absent. Costs a stream whose upload a crash left: no root
    can be created, and none is there to read.
    """

    async def create(self, key: str, data: bytes) -> None:
        if any(each.key == key for each in self.service.uploads.values()):
            raise AlreadyExists(check_key(key))
        await super().create(key, data)


async def _sums_of_parts(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    for number in (2, 1, 3):
        await upload.put_part(number, data_of(100, number))
    await upload.complete()
    data = b"".join(data_of(100, number) for number in (1, 2, 3))
    await store.put("same", Body.of(data))
    found = await store.stored_crc32c("k")
    assert found in (None, await store.stored_crc32c("same")), found


@bug(_sums_of_parts)
class SumAsPartsArrive(SummedMemory):
    """The sum of an upload is carried on from part to part as they arrive, and not in order of their numbers.

    Breaks "If `stored_crc32c` returns a number, it is the object's CRC-32C". Costs a check of objects whose
    parts were sent at the same time.
    """

    async def start_upload(self, key: str, **keywords: Any) -> Any:
        store, arrived = self, bytearray()

        class Summing(Wrapped):
            async def put_part(self, number: int, data: bytes) -> None:
                await super().put_part(number, data)
                arrived.extend(data)

            async def complete(self) -> None:
                await super().complete()
                store.kept[key] = (store.objects[key], crc32c(bytes(arrived)))

        return Summing(await super().start_upload(key, **keywords))

    async def stored_crc32c(self, key: str) -> int | None:
        data, known = self.kept.get(key, (None, None))
        found = await super().stored_crc32c(key)
        return known if data is not None and data is self.objects.get(key) else found  # type: ignore[no-any-return]
