"""Stores that are wrong for a kind: an ending, a size, a way to store, a slow caller, a second client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Final
from urllib.parse import quote

from contract.bugs import Bug, breaks

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, Buffer, Listed, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound, TryAgain
from offload.store.memory import MemoryStore, _Described, _MemoryUpload
from offload.store.spans import clip
from offload.store.wrap import UploadDecorator

KIND_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=KIND_BUGS)

MIB: Final = 2**20


# Contents and sizes


@bug("contents_are_kept_as_they_are")
class TakesEndingsForText(MemoryStore):
    """Changes line ends in objects whose names end like those of text files.

    A mode of transfer that is chosen by the name: `ascii` of FTP, or `autocrlf` of Git.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        if key.endswith((".csv", ".txt", ".json")):
            self.objects[key] = self.objects[key].replace(b"\r\n", b"\n")


@bug("contents_are_kept_as_they_are")
class ListsSizesForPeople(MemoryStore):
    """Lists sizes from 1 MiB on in whole KiB.

    The listing is the text that a command prints for people.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            size = row.size_bytes
            yield Listed(row.key, size if size < MIB else size // 1024 * 1024)


@bug("contents_are_kept_as_they_are")
class DropsZerosAtTheEnd(MemoryStore):
    """Drops zero bytes at the end of a created object.

    A column of a fixed width is padded with zeros, and they are stripped when it is read.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data.rstrip(b"\0"))


@bug("puts_are_whole")
class GathersNoMoreThanOneCallTakes(MemoryStore):
    """Stores the first 1,024 windows of a body.

    `writev` takes no more buffers, and its result is not compared with what it was given.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        windows = [window async for window in body.windows()]
        self.objects[key] = b"".join(windows[:1024])


@bug("ranges_are_exact_at_every_border")
class ReadsNoFurtherThanAWindow(MemoryStore):
    """Returns no bytes beyond the window in which a range begins.

    Each window of a body is a row of a table, and a range is read from the first row alone.
    """

    rows: dict[int, list[int]] = {}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        sizes = [len(window) async for window in body.windows()]
        self.rows[id(self.objects)] = [*accumulate(sizes)][-5:]

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        start, end = clip(span, len(data))
        ends = [each for each in self.rows.get(id(self.objects), []) if start < each < end]
        return data[start : min(ends, default=end)] if isinstance(span, Span) else data[start:end]


# Bodies


@bug("a_failing_body_leaves_nothing_visible")
class ShowsLargeBodiesEarly(MemoryStore):
    """Shows the first 8 MiB of a body as soon as they have passed.

    A large body is an append to an object, and only a small one is a single request.
    """

    async def put(self, key: str, body: Body) -> None:
        async def windows() -> AsyncIterator[Buffer]:
            passed = b""
            async for window in body.windows():
                yield window
                passed += window
                if 4 * MIB <= len(passed) < body.size_bytes or (len(passed) > 8 * MIB):
                    self.objects[key] = passed

        await super().put(key, replace(body, windows=windows))


@bug("a_body_of_another_size_is_refused")
class StopsAtTheAnnouncedSize(MemoryStore):
    """Reads no window after the announced size is reached, and stores what it has.

    The loop over the body ends when as many bytes have passed as `Content-Length` says.
    """

    async def put(self, key: str, body: Body) -> None:
        async def windows() -> AsyncIterator[Buffer]:
            passed = 0
            async for window in body.windows():
                yield window
                passed += len(window)
                if passed == body.size_bytes:
                    return

        await super().put(key, replace(body, windows=windows))


@bug("puts_are_invisible_until_they_return")
class DescribesBeforeTheBody(MemoryStore):
    """Gives the metadata of a put to the present object before the body is read.

    Metadata is in a table of its own, and its row is written first.
    """

    async def put(self, key: str, body: Body) -> None:
        if key in self.objects and body.metadata:
            self.objects[key] = _Described.of(bytes(self.objects[key]), {**body.metadata})
        await super().put(key, body)


@bug("puts_are_invisible_until_they_return")
class GivesUpOnSlowBodies(MemoryStore):
    """Raises `TryAgain` if a body needs more than a second for a window.

    A timeout of the server for the rest of a request, which a slow source exceeds at each try.
    """

    async def put(self, key: str, body: Body) -> None:
        async def windows() -> AsyncIterator[Buffer]:
            asked = time.monotonic()
            async for window in body.windows():
                if time.monotonic() - asked > 1:
                    raise TryAgain("408: the request timed out")
                yield window
                asked = time.monotonic()

        await super().put(key, replace(body, windows=windows))


# Listings and levels


@bug("listing_is_strong")
class RemembersLevels(MemoryStore):
    """Answers a level from the memory of the client, which only its own writes clear.

    Listings are asked of the server, and levels come from a cache of folders.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        known: dict[str, list[str]] = self.__dict__.setdefault("known", {})
        if prefix not in known:
            known[prefix] = [name async for name in super().level(prefix)]
        for name in known[prefix]:
            yield name

    async def put(self, key: str, body: Body) -> None:
        self.__dict__.pop("known", None)
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        self.__dict__.pop("known", None)
        await super().create(key, data)

    async def delete(self, keys: Sequence[str]) -> None:
        self.__dict__.pop("known", None)
        await super().delete(keys)


@bug("listing_is_ordered_in_every_plane")
class LevelsInUtf16(MemoryStore):
    """Sorts a level as Java and JavaScript sort strings, and a listing by bytes.

    The database sorts the listing, and the client the names of folders and keys.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        names = [name async for name in super().level(prefix)]
        for name in sorted(names, key=lambda name: name.encode("utf-16-be")):
            yield name


@bug("listing_goes_on_while_keys_change")
class ForgetsTheCursor(MemoryStore):
    """Ends a listing whose caller waited for more than a second within a page.

    The server keeps a cursor for some time, and "no such cursor" is taken for its end.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        number, asked = 0, time.monotonic()
        async for row in super().list(prefix, after=after):
            if number and number % 100 == 0:
                if time.monotonic() - asked > 1:
                    return
                asked = time.monotonic()
            number += 1
            yield row


@bug("listing_goes_on_while_keys_change")
class CountsLevels(MemoryStore):
    """Finds the next page of a level by the number of names that it has shown.

    `OFFSET` in a query: each name that is deleted meanwhile moves the others.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        shown = 0
        while True:
            names = [name async for name in super().level(prefix)]
            if not (page := names[shown : shown + 100]):
                return
            for name in page:
                yield name
            shown += len(page)


# Keys, by each way


@bug("keys_are_taken_as_they_are")
class QuotesKeysOfUploads(MemoryStore):
    """Stores an upload under its key as a URL has it.

    The key is quoted for the request that begins an upload, and the reply is taken as it is.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        check_key(key)
        return await super().start_upload(quote(key, safe="/"), metadata=metadata)


@bug("keys_are_taken_as_they_are")
class HasFewFolders(MemoryStore):
    """Refuses a key with more than 32 parts, and does not declare it.

    A limit of nesting of the service, such as that of documents.
    """

    async def put(self, key: str, body: Body) -> None:
        if check_key(key).count("/") > 32:
            raise Misuse(f"{key[:40]!r} has too many parts")
        await super().put(key, body)


@bug("keys_are_refused_as_declared")
class RefusesMore(MemoryStore):
    """Refuses keys with a colon, and declares nothing.

    A rule of Windows, on a server that runs there.
    """

    async def create(self, key: str, data: bytes) -> None:
        if ":" in check_key(key):
            raise Misuse(f"{key!r} has a colon")
        await super().create(key, data)


# Creates


@bug("create_is_atomic")
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


@bug("creates_may_be_as_large_as_declared")
class DeclaresWhatNothingChecks(MemoryStore):
    """Declares that it creates 20 MiB at most, and accepts more.

    The limit is that of a request, and a test with so large an object was never made.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, create_size_bytes_max=20 * MIB)


@bug("create_refuses_its_own_bytes")
class CreatesNothingTwice(MemoryStore):
    """Creates an empty object again and again.

    The entity tag of no bytes is known, so equal bytes count as the caller's own.
    """

    async def create(self, key: str, data: bytes) -> None:
        if data or self.objects.get(check_key(key), b"x"):
            await super().create(key, data)


# Reads and checksums


@bug("bytes_that_were_read_never_change")
class MapsItsObjects(MemoryStore):
    """Returns a view of the stored bytes, which a replacement of the same size overwrites.

    A mapped file, or an arena of records, that is written in place.
    """

    mapped: dict[tuple[int, str], bytearray] = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> Any:
        data = await super().get(key)
        kept = self.mapped.setdefault((id(self.objects), key), bytearray(data))
        if len(kept) != len(data):
            kept = self.mapped[id(self.objects), key] = bytearray(data)
        kept[:] = data
        start, end = clip(span, len(data))
        return memoryview(kept).toreadonly()[start:end]


@bug("stored_checksums_are_true")
class AsksTheBodyTooEarly(MemoryStore):
    """Keeps the checksum of a body that it asked for before the windows passed, and 0 if there was none.

    The header is made when the request begins. Bodies of most tests know no checksum.
    """

    sums: dict[tuple[int, str], int] = {}

    async def put(self, key: str, body: Body) -> None:
        again = body.crc32c()
        await super().put(key, body)
        self.sums.pop((id(self.objects), key), None)
        if body.crc32c() is not None:
            self.sums[id(self.objects), key] = again or 0

    async def stored_crc32c(self, key: str) -> int | None:
        await self.get(key)
        return self.sums.get((id(self.objects), key))


@bug("stored_checksums_are_of_what_replaced_an_object")
class SumsByKeyAndSize(MemoryStore):
    """Remembers checksums by key and size.

    A cache whose key lacks what changes at each write.
    """

    sums: dict[tuple[int, str, int], int] = {}

    async def stored_crc32c(self, key: str) -> int | None:
        data = await self.get(key)
        return self.sums.setdefault((id(self.objects), key, len(data)), crc32c(data))


@bug("reads_are_never_stale")
class CachesByKeyAndSize(MemoryStore):
    """Answers reads from a cache, which it compares with the object by its size.

    A check of the size is cheap, and the time of a change has whole seconds.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        cache: dict[str, bytes] = self.__dict__.setdefault("cache", {})
        if len(cache.get(key, b"")) != len(data):
            cache[key] = data
        start, end = clip(span, len(data))
        return cache[key][start:end] if data else b""


@bug("what_is_absent_has_no_checksum")
class RemembersWhatWasAbsent(MemoryStore):
    """Raises `NotFound` for the checksum of an object that was absent when it looked before.

    A cache of absence, which only the client's own writes clear.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        absent: set[str] = self.__dict__.setdefault("absent", set())
        if check_key(key) not in self.objects or key in absent:
            absent.add(key)
            raise NotFound(key, store=self.url)
        return crc32c(await self.get(key))


@bug("errors_are_of_their_cause_alone")
class TakesAnObjectForAFolder(MemoryStore):
    """Raises `Misuse` for a read below an object.

    `ENOTDIR` is a mistake of the caller in a file system, and here it is only absence.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if any(key.startswith(f"{each}/") for each in self.objects):
            raise Misuse(f"{key!r} is below an object")
        return await super().get(key, span)


@bug("a_key_beside_its_folder_is_kept_or_refused")
class UploadsReplaceFolders(MemoryStore):
    """Deletes the keys below the key of a completed upload.

    A file is renamed over a folder, which is removed first because the system refuses it otherwise.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return self._Moved(await super().start_upload(key, metadata=metadata), self, key)

    class _Moved(UploadDecorator):
        def __init__(self, inner: Upload, store: MemoryStore, key: str) -> None:
            super().__init__(inner)
            self.store, self.key = store, key

        async def complete(self) -> None:
            await super().complete()
            for each in [*self.store.objects]:
                if each.startswith(f"{self.key}/") or self.key.startswith(f"{each}/"):
                    del self.store.objects[each]


# Metadata


@bug("metadata_is_kept_as_declared")
class DescribesNoLargeObjects(MemoryStore):
    """Drops the metadata of a put of more than 8 MiB.

    A large body is sent in parts, and the request that begins them has no headers.
    """

    async def put(self, key: str, body: Body) -> None:
        large = body.size_bytes > 8 * MIB
        await super().put(key, replace(body, metadata=NO_METADATA) if large else body)


@bug("metadata_is_kept_as_declared")
class HasNoneForNothing(MemoryStore):
    """Returns None for an object without metadata.

    `found or None`: the caller then believes that the store keeps none of any object.
    """

    async def metadata_of(self, key: str) -> Any:
        return await super().metadata_of(key) or None


@bug("metadata_is_replaced_with_its_object")
class KeepsHeadersByKey(MemoryStore):
    """Gives the metadata of an upload to every other upload of its key.

    The headers of uploads are kept by key until they are complete.
    """

    headers: dict[tuple[int, str], Mapping[str, str]] = {}

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        upload = await super().start_upload(key, metadata=metadata)
        self.headers[id(self.objects), key] = metadata
        return self._Late(upload, self, key)

    class _Late(UploadDecorator):
        def __init__(self, inner: Upload, store: Any, key: str) -> None:
            super().__init__(inner)
            self.store, self.key = store, key

        async def complete(self) -> None:
            await super().complete()
            headers = self.store.headers[id(self.store.objects), self.key]
            await self.store.put(self.key, Body.of(bytes(self.store.objects[self.key]), metadata=headers))


@bug("what_is_absent_has_no_metadata")
class RemembersNoMetadata(MemoryStore):
    """Returns no metadata of an object that was absent when it looked before.

    A cache of absence, which only the client's own writes clear.
    """

    async def metadata_of(self, key: str) -> Any:
        absent: set[str] = self.__dict__.setdefault("absent", set())
        if check_key(key) not in self.objects:
            absent.add(key)
        return None if key in absent else await super().metadata_of(key)


# Uploads


class _Cut(UploadDecorator):
    """An upload that keeps the first 4 MiB of each part."""

    async def put_part(self, number: int, data: bytes) -> None:
        await super().put_part(number, data[: 4 * MIB])


@bug("uploads_may_be_short")
class CutsLargeParts(MemoryStore):
    """Stores the first 4 MiB of each part.

    A buffer of a fixed size between the client and the service, and only small parts were tried.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return _Cut(await super().start_upload(key, metadata=metadata))


@bug("an_aborted_upload_leaves_nothing")
class ReservesTheKey(MemoryStore):
    """Refuses to create a key for which an upload was begun, also after it was aborted.

    The row of the key is inserted when the upload begins, and nobody removes it.
    """

    begun: set[tuple[int, str]] = set()

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        self.begun.add((id(self.objects), key))
        return await super().start_upload(key, metadata=metadata)

    async def create(self, key: str, data: bytes) -> None:
        if (id(self.objects), check_key(key)) in self.begun:
            raise AlreadyExists(key)
        await super().create(key, data)


class _Shared(MemoryStore):
    """A store whose clients share their unfinished uploads, as those of a server do."""

    places: dict[int, dict[str, _MemoryUpload]] = {}

    def __init__(self, *, objects: dict[str, bytes]) -> None:
        super().__init__(objects=objects)
        self._unfinished = self.places.setdefault(id(objects), {})


@bug("uploads_of_one_key_do_not_mix")
class AbortsAllThatAreListed(_Shared):
    """Aborts every unfinished upload of a key if one of them is aborted by what lists it.

    The request names the key, and the id of the upload is left out.
    """

    async def abort_upload(self, upload: Unfinished) -> None:
        for each in [*await super().unfinished_uploads(upload.key)]:
            await super().abort_upload(each)


@bug("unfinished_uploads_are_all_told")
class ListsUploadsOfFolders(_Shared):
    """Lists no unfinished uploads for a prefix that ends within a name.

    Uploads are kept by folder, and the prefix is taken for one.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        whole = not prefix or prefix.endswith("/")
        return await super().unfinished_uploads(prefix) if whole else []


@bug("uploads_lack_no_part")
class CountsFromTheFirstPart(MemoryStore):
    """Completes an upload whose parts follow one another, wherever they begin.

    The numbers are compared with their neighbours, and the first one has none.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return self._Shifted(await super().start_upload(key, metadata=metadata))

    class _Shifted(UploadDecorator):
        def __init__(self, inner: Upload) -> None:
            super().__init__(inner)
            self.parts: dict[int, bytes] = {}

        async def put_part(self, number: int, data: bytes) -> None:
            if number < 1:
                raise Misuse("numbers begin at 1")
            self.parts[number] = data

        async def complete(self) -> None:
            first = min(self.parts, default=1)
            for number, data in self.parts.items():
                await super().put_part(number - first + 1, data)
            await super().complete()


@bug("a_cancelled_part_may_be_put_again")
class CompletesPartByPart(MemoryStore):
    """Shows the first parts of an upload if its completion is cancelled.

    The parts are appended to the object one after the other.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return self._Appended(await super().start_upload(key, metadata=metadata), self, key)

    class _Appended(UploadDecorator):
        def __init__(self, inner: Upload, store: MemoryStore, key: str) -> None:
            super().__init__(inner)
            self.store, self.key, self.first = store, key, b""

        async def put_part(self, number: int, data: bytes) -> None:
            await super().put_part(number, data)
            self.first = data if number == 1 else self.first

        async def complete(self) -> None:
            before = self.store.objects.get(self.key)
            self.store.objects[self.key] = self.first
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            with suppress(KeyError):
                del self.store.objects[self.key]
            if before is not None:
                self.store.objects[self.key] = before
            await super().complete()


# Manners


@bug("capabilities_do_not_change")
class LearnsWhatItCan(MemoryStore):
    """Declares no uploads until its first call.

    The capabilities of the server are in the reply to the first request.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=bool(self.objects))


@bug("calls_may_overlap")
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


@bug("calls_may_overlap")
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
