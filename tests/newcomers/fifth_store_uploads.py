"""Fifth set, stores: uploads in parts, and bodies of unknown size."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from newcomers.fifth_sound import Attic, ended, filled
from newcomers.fourth_sound import Client, Wrapped, unsized
from newcomers.proofs import data_of
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from newcomers.sound import SharedMemory
from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, Unfinished, Upload
from offload.ground.errors import Misuse, TryAgain


async def _ten_uploads(open_: Open) -> None:
    store = open_()
    uploads = [await store.start_upload(f"k{number}") for number in range(12)]
    for number, upload in enumerate(uploads):
        await upload.put_part(1, f"{number}".encode())
    await uploads[0].abort()
    for number, upload in enumerate(uploads[1:], 1):
        await upload.complete()
        assert await store.get(f"k{number}") == f"{number}".encode()


@bug(_ten_uploads)
class AbortByPrefix(Attic):
    """Ids of uploads are numbers, and an abort removes the parts whose names begin with the id.

    Breaks "Discard the parts", those of this upload. Costs the uploads 10 to 19 of a client, if the first one
    is aborted.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ids = count(1)

    def new_id(self) -> str:
        return str(next(self.ids))

    def forget(self, db: sqlite3.Connection, name: str) -> None:
        db.execute("DELETE FROM parts WHERE upload LIKE ? || '%'", (name,))
        super().forget(db, name)

    def finish(self, db: sqlite3.Connection, name: str) -> None:
        others = db.execute("SELECT * FROM parts WHERE upload <> ?", (name,)).fetchall()
        super().finish(db, name)  # only an abort forgets too much
        db.executemany("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", others)


async def _uploads_of_two_clients(open_: Open) -> None:
    stores = [open_(), open_()]
    uploads = [await store.start_upload(f"k{at}") for at, store in enumerate(stores)]
    for at, upload in enumerate(uploads):
        await upload.put_part(1, f"{at}".encode())
    for at, upload in enumerate(uploads):
        await upload.complete()
        assert await stores[0].get(f"k{at}") == f"{at}".encode()


@bug(_uploads_of_two_clients)
class IdsCountInEachClient(Client):
    """The client numbers its uploads, and the server takes the number of another client's for the same one.

    Breaks "A client in another thread or process is another store". Costs two writers that upload at the same
    time: one gets the other's parts.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ids = count(1)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        upload = await super().start_upload(key, metadata=metadata)
        name = f"upload-{next(self.ids)}"
        uploads = self.service.uploads
        uploads[name] = uploads.pop(upload.name)  # type: ignore[attr-defined]
        upload.name = name  # type: ignore[attr-defined]
        return upload


async def _late_abort(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(1, b"x")
    [seen] = await store.unfinished_uploads("k")
    await upload.complete()
    await open_().abort_upload(seen)
    assert await store.get("k") == b"x"


@bug(_late_abort)
class LateAbortTakesTheObject(Client):
    """The abort of an upload that is over deletes the key, to be sure.

    Breaks "Discard an unfinished upload": this one is finished. Costs a writer beside a sweep, which listed
    its upload a moment before it was complete.
    """

    async def abort_upload(self, upload: Unfinished) -> None:
        if upload.upload_id not in self.service.uploads:
            await self.delete([upload.key])
        await super().abort_upload(upload)


async def _other_clients_close(open_: Open) -> None:
    one, two = open_(), open_()
    upload = await one.start_upload("k")
    await upload.put_part(1, b"x")
    await two.aclose()
    await upload.complete()
    assert await one.get("k") == b"x"


@bug(_other_clients_close)
class ClosingAbortsAll(Client):
    """A client that is closed aborts the unfinished uploads that the place has, also those of others.

    Breaks "Release connections and threads". Costs the writers of a place when any command ends.
    """

    async def aclose(self) -> None:
        self.service.uploads.clear()


async def _deleted_meanwhile(open_: Open) -> None:
    store = open_()
    await filled(store, ["k"])
    upload = await store.start_upload("k")
    await upload.put_part(1, b"x")
    await store.delete(["k"])
    await upload.complete()
    assert await store.get("k") == b"x"


@bug(_deleted_meanwhile)
class DeletionDropsUploads(Client):
    """The deletion of a key drops its unfinished uploads too.

    Breaks "If the key is written meanwhile, by a put, a create or another upload, `complete` may raise": a
    deletion is none of them. Costs a writer that deletes the old object while it uploads the new one.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for name, each in [*self.service.uploads.items()]:
            if each.key in keys:
                del self.service.uploads[name]


async def _aborted_is_as_before(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"x", metadata={"kind": "old"}))
    upload = await store.start_upload("k", metadata={"kind": "new"})
    await upload.put_part(1, b"y")
    await upload.abort()
    assert await store.metadata_of("k") == {"kind": "old"}


@bug(_aborted_is_as_before)
class AbortTakesTheMetadata(SharedMemory):
    """The metadata of an upload is a row under its key from the start, and an abort removes the row.

    Breaks "Until `complete` returns, an existing object keeps its own". Costs an object whose replacement was
    given up.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        store = self

        class Undescribed(Wrapped):
            async def abort(self) -> None:
                await super().abort()
                if key in store.objects:
                    await store.put(key, Body.of(bytes(store.objects[key])))

        return Undescribed(await super().start_upload(key, metadata=metadata))


async def _begun_is_unfinished(open_: Open) -> None:
    store, other = open_(), open_()
    await store.start_upload("p/a")
    found = [each.key for each in await other.unfinished_uploads("p/")]
    assert found == ["p/a"], found


@bug(_begun_is_unfinished)
class OnlyUploadsWithParts(Attic):
    """The listing of unfinished uploads joins them with their parts, and one that has none is left out.

    Breaks "Return the unfinished uploads": "A multipart upload that was begun, and neither completed nor
    aborted". Costs a sweep the uploads whose writer died at once, which fill the server's table.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        query = "SELECT DISTINCT key, id, started_ms FROM uploads JOIN parts ON parts.upload = uploads.id"
        rows = await self.run(lambda db: db.execute(query).fetchall())
        return [Unfinished(*row) for row in sorted(rows) if row[0].startswith(prefix)]


async def _put_again_after_an_error(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await ended(upload.put_part(1, data_of(100)), upload.put_part(1, data_of(100)))
    await upload.put_part(2, b"end")
    await upload.complete()
    assert await store.get("k") == data_of(100) + b"end"


@bug(_put_again_after_an_error)
class PartsAreAppended(Client):
    """A part that is put again while the first put of it is under way is appended to it.

    Breaks "A number may be put again with the same bytes" and "at the same time". Costs a put that is
    repeated because its reply was late.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        open_parts: dict[int, int] = {}

        class Appending(Wrapped):
            async def put_part(self, number: int, data: bytes) -> None:
                open_parts[number] = open_parts.get(number, 0) + 1
                try:
                    await super().put_part(number, data * open_parts[number])
                finally:
                    open_parts[number] -= 1

        return Appending(await super().start_upload(key, metadata=metadata))


# Bodies of unknown size


async def _described_at_any_size(open_: Open) -> None:
    store = open_()
    body = unsized(b"x", bound=10)
    described = Body(size_bytes=10, windows=body.windows, is_bound=True, metadata={"kind": "data"})
    await store.put("k", described)
    assert await store.metadata_of("k") == {"kind": "data"}


@bug(_described_at_any_size)
class BoundBodiesAreBare(SharedMemory):
    """A body of unknown size takes another request, which has no place for metadata.

    Breaks "Names and values that the store keeps with the object". Costs compressed fragments their
    description.
    """

    async def put(self, key: str, body: Body) -> None:
        bare = Body(size_bytes=body.size_bytes, windows=body.windows, is_bound=True)
        await super().put(key, bare if body.is_bound else body)


# Requests beyond a number


async def _many_calls(call: Callable[[Any, int], Any], open_: Open) -> None:
    store = open_()
    for number in range(150):
        await call(store, number)


async def _handles_of_uploads(open_: Open) -> None:
    async def aborted(store: Any, number: int) -> None:
        upload = await store.start_upload(f"k{number}")
        await upload.put_part(1, b"x")
        await upload.abort()

    await _many_calls(aborted, open_)


@bug(_handles_of_uploads)
class AbortedUploadsCount(ServiceStore):
    """A client has at most 100 uploads under way, and an aborted one is counted for ever.

    Breaks "Discard the parts", and what they hold. Costs a writer whose uploads failed now and then: after a
    week it can begin no more.
    """

    running = 0

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        if metadata:
            raise Misuse("the store keeps no metadata, and an object has some")
        if self.running >= 100:
            raise TryAgain(f"{self.url}: too many uploads")
        self.running += 1
        store = self

        class Counting(Wrapped):
            async def complete(self) -> None:
                await super().complete()
                store.running -= 1

        return Counting(await super().start_upload(key))
