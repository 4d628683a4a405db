"""Stores that mistake a call for one before it, after it or beside it, and answers that callers share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final

from contract.bugs import Bug, breaks

from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, Listed, Span, Suffix, Unfinished, Upload
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, NotFound
from offload.store.memory import MemoryStore
from offload.store.wrap import UploadDecorator

BESIDE_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=BESIDE_BUGS)

PAGE_ROWS: Final = 1_000
CONNECTIONS: Final = 16


# Equal bytes


@bug("deletion_is_idempotent")
class KeepsEqualBytesOnce(MemoryStore):
    """Deletes the bytes of an object although another object has the same ones.

    Equal bytes are stored once, under their hash, and nobody counts who refers to them.
    """

    lost: dict[int, set[bytes]] = defaultdict(set)

    async def delete(self, keys: Sequence[str]) -> None:
        lost = {self.objects[key] for key in keys if key in self.objects}
        await super().delete(keys)
        self.lost[id(self.objects)] |= lost

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if self.objects.get(key) in self.lost[id(self.objects)]:
            raise NotFound(key, store=self.url)
        return await super().get(key, span)


@bug("metadata_is_kept_as_declared")
class DescribesEqualBytesOnce(MemoryStore):
    """Returns the metadata of the last object that was stored with the same bytes.

    Metadata is a column of the table of bytes, and not of the table of keys.
    """

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        data = await self.get(key)
        return await super().metadata_of([each for each in self.objects if self.objects[each] == data][-1])


@bug("keys_that_look_alike_differ")
class TakesKeysForNumbers(MemoryStore):
    """Refuses to create `7` beside `007`.

    SQLite takes a column of the type `STRING` for one of numbers.
    """

    async def create(self, key: str, data: bytes) -> None:
        if key.isdigit() and any(int(each) == int(key) for each in self.objects if each.isdigit()):
            raise AlreadyExists(key)
        await super().create(key, data)


# Answers


@bug("metadata_is_replaced_with_its_object")
class RefreshesOneMapping(MemoryStore):
    """Returns the same mapping for each question about an object, and changes it at the next one.

    A cache hands out its own entry instead of a copy.
    """

    known: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)

    async def metadata_of(self, key: str) -> Mapping[str, str]:
        found = await super().metadata_of(key)
        known = self.known[id(self), key]
        known.clear()
        known.update(found)
        return known


@bug("reads_are_never_stale")
class JoinsAnEarlierQuestion(MemoryStore):
    """Answers a question for a checksum with the reply to an earlier one that is still on its way.

    Equal requests at the same time become one, however old it is.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        flights: dict[str, asyncio.Task[int | None]] = self.__dict__.setdefault("flights", {})
        if key not in flights:
            flights[key] = asyncio.create_task(self._ask(key))
            flights[key].add_done_callback(lambda _: flights.pop(key))
        return await asyncio.shield(flights[key])

    async def _ask(self, key: str) -> int | None:
        data = await self.get(key)
        for _ in range(20):
            await asyncio.sleep(0)
        return crc32c(data)


# Writes beside reads and other writes


@bug("puts_are_invisible_until_they_return")
class DescribesLater(MemoryStore):
    """Stores the bytes of an object first and its metadata afterwards.

    Metadata is in attributes of a file, which are set when the file has its name.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, Body(size_bytes=body.size_bytes, windows=body.windows, is_bound=body.is_bound))
        for _ in range(5):
            await asyncio.sleep(0)
        if body.metadata:
            await super().put(key, Body.of(self.objects[key], metadata=body.metadata))


@bug("calls_may_overlap")
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


@bug("calls_may_overlap")
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


@bug("create_never_replaces")
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


# Listings


@bug("listing_finds_nothing_under_what_begins_no_key")
class EndsAPrefixAtTheNextCharacter(MemoryStore):
    """Lists up to the character that follows the last one of the prefix.

    Some characters have none: what follows U+D7FF is half of a pair, and nothing follows U+10FFFF.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        end = (prefix[:-1] + chr(ord(prefix[-1]) + 1)).encode() if prefix else None
        async for row in super().list(prefix, after=after):
            if end is None or row.key.encode() < end:
                yield row


@bug("listing_goes_on_while_keys_change")
class NamesCursorsByPrefix(MemoryStore):
    """Shares one cursor between all listings of a prefix.

    The cursors of a server have names, and the name is made of the query.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        cursors: dict[str, str] = self.__dict__.setdefault("cursors", {})
        while True:
            start = max(after, cursors.get(prefix, ""))
            rows = [row async for row in super().list(prefix, after=start)]
            cursors[prefix] = rows[PAGE_ROWS - 1].key if len(rows) > PAGE_ROWS else ""
            for row in rows[:PAGE_ROWS]:
                yield row
            if len(rows) <= PAGE_ROWS:
                return
            after = rows[PAGE_ROWS - 1].key


# Uploads


class Shared(MemoryStore):
    """A store whose clients share their uploads: the base of some bugs, itself without one."""

    places: dict[int, dict[str, object]] = {}

    def __init__(self, **keywords: object) -> None:
        super().__init__(**keywords)  # type: ignore[arg-type]  # passed on
        self._unfinished = self.places.setdefault(id(self.objects), {})  # type: ignore[assignment]  # shared


@bug("closing_leaves_other_clients_alone")
class AbortsAllWhenClosed(Shared):
    """Aborts every unfinished upload of the place when a client is closed.

    What is left behind is cleaned up at the end, and nobody asks whose it is.
    """

    async def aclose(self) -> None:
        for upload in [*self._unfinished.values()]:
            await upload.abort()


@bug("uploads_replace_whole")
class ReservesTheKeyOfAnUpload(Shared):
    """Refuses a create of a key that an unfinished upload will have.

    The row of the object is inserted when its upload begins.
    """

    async def create(self, key: str, data: bytes) -> None:
        if any(each.key == key for each in self._unfinished.values()):
            raise AlreadyExists(key)
        await super().create(key, data)


@bug("uploads_replace_whole")
class DropsUploadsOfDeletedKeys(Shared):
    """Aborts the unfinished uploads of a key when its object is deleted.

    All rows of the key are deleted, in each table.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for upload in [*self._unfinished.values()]:
            if upload.key in keys:
                await upload.abort()


@bug("an_aborted_upload_leaves_nothing")
class AbortsIdsThatBeginAlike(MemoryStore):
    """Aborts upload 1 together with the uploads 10 to 19.

    Ids count, and an abort deletes by a prefix: `parts/1*`.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        store, number = self, str(next(self.__dict__.setdefault("ids", count(1))))
        uploads: dict[str, Upload] = self.__dict__.setdefault("uploads", {})

        class Numbered(UploadDecorator):
            async def abort(self) -> None:
                for name, each in [*uploads.items()]:
                    if name.startswith(number):
                        await each.abort()

        uploads[number] = await super(AbortsIdsThatBeginAlike, store).start_upload(key, metadata=metadata)
        return Numbered(uploads[number])


@bug("an_aborted_upload_leaves_nothing")
class NumbersUploadsInEachClient(Shared):
    """Takes the first upload of one client for the first upload of another.

    Each client counts its own uploads, and the number is the id.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        upload = await super().start_upload(key, metadata=metadata)
        name = str(next(self.__dict__.setdefault("ids", count(1))))
        return self._unfinished.setdefault(name, upload)  # type: ignore[arg-type]


@bug("unfinished_uploads_can_be_forgotten")
class DeletesWhatWasCompleted(Shared):
    """Deletes the object if an upload that is aborted was completed in the meantime.

    The abort removes everything of the key, to be sure.
    """

    async def abort_upload(self, upload: Unfinished) -> None:
        if upload.upload_id not in self._unfinished:
            await self.delete([upload.key])
        await super().abort_upload(upload)


@bug("uploads_are_whole")
class SumsPartsAsTheyArrive(MemoryStore):
    """Takes the checksum of an upload over its parts in the order of their arrival.

    The sum is carried on from part to part.
    """

    sums: dict[tuple[int, str], int] = {}

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        arrived, name = bytearray(), (id(self.objects), key)

        class Summing(UploadDecorator):
            async def put_part(self, number: int, data: bytes) -> None:
                await super().put_part(number, data)
                arrived.extend(data)
                SumsPartsAsTheyArrive.sums[name] = crc32c(bytes(arrived))

        return Summing(await super().start_upload(key, metadata=metadata))

    async def stored_crc32c(self, key: str) -> int | None:
        return self.sums.get((id(self.objects), key))
