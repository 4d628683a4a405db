"""Bugs of uploads in parts: what is stored, what an abort leaves, and which unfinished ones are listed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import count
from typing import Any

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound, TryAgain
from offload.store.memory import MemoryStore, _MemoryUpload
from offload.store.wrap import UploadDecorator
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound import proofs
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.proofs import data_of, raises
from offload_conformance.bugs.sound.service import ServiceStore, ServiceUpload
from offload_conformance.bugs.sound.views import ended
from offload_conformance.bugs.sound.wrappers import Wrapped
from offload_conformance.bugs.store.shared import BEGUN, LIMIT, MIB, Collected, Shared


class _Parts(Upload):
    """An upload that keeps its parts in a list, in order of arrival."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self.store, self.key, self.parts = store, key, list[tuple[int, bytes]]()

    async def put_part(self, number: int, data: bytes) -> None:
        self.parts.append((number, data))

    async def complete(self) -> None:
        self.store.objects[self.key] = b"".join(data for _, data in self.parts)

    async def abort(self) -> None:
        self.parts.clear()


@bug("store/uploads_are_whole")
class JoinsPartsAsTheyCame(MemoryStore):
    """Joins the parts in order of arrival.

    Each finished part is appended to the list for the last request.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Parts(self, check_key(key))


@bug("store/uploads_take_a_part_again")
class KeepsBothParts(MemoryStore):
    """Keeps both copies of a part that is put again.

    A list of parts is sorted at the end, but a dict by number is needed.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Sorted(self, check_key(key))

    class _Sorted(_Parts):
        async def complete(self) -> None:
            self.parts.sort(key=lambda part: part[0])
            await super().complete()


@bug("store/uploads_may_be_short")
class TakesTheFirstForTheSize(MemoryStore):
    """Assumes that the part that arrives first has the size of all but the last.

    This works if parts arrive in order, but the shorter last part can overtake.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Sized(await super().start_upload(key))

    class _Sized(UploadDecorator):
        size_bytes = 0

        async def put_part(self, number: int, data: bytes) -> None:
            self.size_bytes = self.size_bytes or len(data)
            if len(data) > self.size_bytes:
                raise Misuse(f"part {number} is larger than {self.size_bytes} bytes")
            await super().put_part(number, data)


@bug("store/uploads_replace_whole")
class UploadsInPlace(MemoryStore):
    """Removes the object before its upload is complete.

    The parts are written directly into the file of that name.
    """

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        if key in self.objects:
            self.objects[key] = b""
        return upload


@bug("store/an_aborted_upload_leaves_nothing")
class LeavesParts(MemoryStore):
    """Stores parts as objects of their own, and an abort forgets them there.

    Multipart uploads are imitated on a store that has none: parts are objects, which are then composed.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Objects(await super().start_upload(key), self, key)

    class _Objects(UploadDecorator):
        __slots__ = ("key", "store")

        def __init__(self, inner: Upload, store: MemoryStore, key: str) -> None:
            super().__init__(inner)
            self.store, self.key = store, key

        async def put_part(self, number: int, data: bytes) -> None:
            await super().put_part(number, data)
            self.store.objects[f"{self.key}.part{number}"] = data

        async def complete(self) -> None:
            await super().complete()
            for key in [key for key in self.store.objects if key.startswith(f"{self.key}.part")]:
                del self.store.objects[key]


@bug("store/uploads_lack_no_part")
class JoinsWhatIsThere(MemoryStore):
    """Completes an upload with a missing part.

    The stored parts are listed and joined: S3 does not require consecutive numbers.
    Our own backends for S3 and Azure did this before the clause was written.
    """

    async def start_upload(self, key: str) -> Upload:
        return KeepsBothParts._Sorted(self, check_key(key))


@bug("store/uploads_of_one_key_do_not_mix")
class KeepsPartsByKey(MemoryStore):
    """Keeps the parts of all uploads of a key together.

    Azure's uncommitted blocks belong to the blob, not to an upload: equal block ids overwrite each other.
    """

    parts: dict[tuple[int, str], dict[int, bytes]] = {}

    async def start_upload(self, key: str) -> Upload:
        shared = self.parts.setdefault((id(self.objects), check_key(key)), {})
        return self._Shared(self, key, shared)

    class _Shared(_Parts):
        def __init__(self, store: MemoryStore, key: str, shared: dict[int, bytes]) -> None:
            super().__init__(store, key)
            self.shared = shared

        async def put_part(self, number: int, data: bytes) -> None:
            self.shared[number] = data

        async def complete(self) -> None:
            self.parts = sorted(self.shared.items())
            await super().complete()


@bug("store/unfinished_uploads_can_be_forgotten")
class TellsAndForgetsNothing(MemoryStore):
    """Lists unfinished uploads, and does not abort them.

    The optional method was forgotten, and the port's default does nothing.
    """

    async def abort_upload(self, upload: Unfinished) -> None:
        return


@bug("store/uploads_are_as_declared")
class HidesUploads(MemoryStore):
    """Declares that it has no multipart uploads, and accepts them.

    The declaration was copied from another backend and never checked.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)


@bug("store/uploads_are_as_declared")
class PromisesUploads(MemoryStore):
    """Declares multipart uploads, and refuses them.

    The declaration was written first, and the method never.
    """

    async def start_upload(self, key: str) -> Upload:
        check_key(key)
        raise Misuse("uploads in parts: not yet")


@bug("store/unfinished_uploads_are_all_told")
class TellsOfTen(MemoryStore):
    """Lists only the first ten unfinished uploads.

    The server's default page has ten rows, and nobody checks if there is another page.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        return [*await super().unfinished_uploads(prefix)][:10]


@bug("store/unfinished_uploads_are_all_told")
class TellsByPattern(MemoryStore):
    """Matches any character to `_` in a prefix of unfinished uploads.

    `LIKE prefix || '%'`: a sweep of one folder aborts the uploads of another.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        pattern = prefix.replace("_", "?") + "*"
        return [each for each in await super().unfinished_uploads("") if fnmatchcase(each.key, pattern)]


@bug("store/parts_beside_an_abort_are_forgotten")
class RevivesUploads(MemoryStore):
    """Accepts a part of an aborted upload, which begins it again without the earlier parts.

    Parts go to a folder that is made if it is missing, and the abort removed it.
    """

    async def start_upload(self, key: str) -> Upload:
        upload = self._Reviving(self, check_key(key))
        BEGUN.setdefault(id(self.objects), []).append(upload)
        return upload

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        begun = enumerate(BEGUN.get(id(self.objects), []))
        return [
            Unfinished(each.key, str(number), 0)
            for number, each in begun
            if each.parts and each.key.startswith(prefix)
        ]

    async def abort_upload(self, upload: Unfinished) -> None:
        BEGUN[id(self.objects)][int(upload.upload_id)].parts.clear()

    class _Reviving(Collected):
        async def complete(self) -> None:
            self.store.objects[self.key] = self.joined()


@bug("store/unfinished_uploads_tell_when_they_began")
class TellsSeconds(MemoryStore):
    """Reports the beginning of an upload in seconds.

    `timestamp()` without `* 1000`: for a sweep a new upload is from 1970, and it aborts the upload.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        told = await super().unfinished_uploads(prefix)
        return [replace(each, started_ms=each.started_ms // 1000) for each in told]


@bug("store/uploads_are_as_declared")
class TakesLargerParts(MemoryStore):
    """Declares the largest size of a part, and takes larger ones.

    The limit is that of the service, and an emulator or a proxy does not know it.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, part_size_bytes_max=LIMIT)


@bug("store/uploads_replace_whole")
class DescribesAtTheBeginning(MemoryStore):
    """Gives the metadata of an upload to the present object when the upload begins.

    Metadata is in a table of its own, by key, and only the bytes wait for the end.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        if metadata and key in self.objects:
            await self.put(key, Body.of(bytes(self.objects[key]), metadata=metadata))
        return await super().start_upload(key, metadata=metadata)


@bug("store/unfinished_uploads_tell_when_they_began")
class TellsLocalTime(MemoryStore):
    """Reports the beginning of an upload in local time.

    A time without a zone is read by a function that takes it for local time.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        off_ms = time.localtime().tm_gmtoff * 1000
        found = await super().unfinished_uploads(prefix)
        return [replace(each, started_ms=each.started_ms + off_ms) for each in found]


class _Cut(UploadDecorator):
    """An upload that keeps the first 4 MiB of each part."""

    async def put_part(self, number: int, data: bytes) -> None:
        await super().put_part(number, data[: 4 * MIB])


@bug("store/uploads_may_be_short")
class CutsLargeParts(MemoryStore):
    """Stores the first 4 MiB of each part.

    A buffer of a fixed size between the client and the service, and only small parts were tried.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return _Cut(await super().start_upload(key, metadata=metadata))


@bug("store/an_aborted_upload_leaves_nothing")
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


@bug("store/uploads_of_one_key_do_not_mix")
class AbortsAllThatAreListed(_Shared):
    """Aborts every unfinished upload of a key if one of them is aborted by what lists it.

    The request names the key, and the id of the upload is left out.
    """

    async def abort_upload(self, upload: Unfinished) -> None:
        for each in [*await super().unfinished_uploads(upload.key)]:
            await super().abort_upload(each)


@bug("store/unfinished_uploads_are_all_told")
class ListsUploadsOfFolders(_Shared):
    """Lists no unfinished uploads for a prefix that ends within a name.

    Uploads are kept by folder, and the prefix is taken for one.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        whole = not prefix or prefix.endswith("/")
        return await super().unfinished_uploads(prefix) if whole else []


@bug("store/uploads_lack_no_part")
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


@bug("store/uploads_replace_whole")
class ReservesTheKeyOfAnUpload(Shared):
    """Refuses a create of a key that an unfinished upload will have.

    The row of the object is inserted when its upload begins.
    """

    async def create(self, key: str, data: bytes) -> None:
        if any(each.key == key for each in self._unfinished.values()):
            raise AlreadyExists(key)
        await super().create(key, data)


@bug("store/uploads_replace_whole")
class DropsUploadsOfDeletedKeys(Shared):
    """Aborts the unfinished uploads of a key when its object is deleted.

    All rows of the key are deleted, in each table.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for upload in [*self._unfinished.values()]:
            if upload.key in keys:
                await upload.abort()


@bug("store/an_aborted_upload_leaves_nothing")
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


@bug("store/an_aborted_upload_leaves_nothing")
class NumbersUploadsInEachClient(Shared):
    """Takes the first upload of one client for the first upload of another.

    Each client counts its own uploads, and the number is the id.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        upload = await super().start_upload(key, metadata=metadata)
        name = str(next(self.__dict__.setdefault("ids", count(1))))
        return self._unfinished.setdefault(name, upload)  # type: ignore[arg-type]  # the bug


@bug("store/unfinished_uploads_can_be_forgotten")
class DeletesWhatWasCompleted(Shared):
    """Deletes the object if an upload that is aborted was completed in the meantime.

    The abort removes everything of the key, to be sure.
    """

    async def abort_upload(self, upload: Unfinished) -> None:
        if upload.upload_id not in self._unfinished:
            await self.delete([upload.key])
        await super().abort_upload(upload)


@bug("store/uploads_are_whole")
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


class OwnUpload(SharedMemory):
    """A store whose uploads are of the class `UPLOAD`."""

    UPLOAD = _MemoryUpload

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        upload = await super().start_upload(key, metadata=metadata)
        self._unfinished[upload._id] = mine = self.UPLOAD(self, key, upload._id, metadata)
        return mine


class DiesOfFailure(_MemoryUpload):
    """An upload that ends with a failed completion."""

    async def complete(self) -> None:
        try:
            await super().complete()
        except Misuse:
            self._failed = True
            raise

    async def abort(self) -> None:
        if getattr(self, "_failed", False):
            raise NotFound(self.key, store="NoSuchUpload")
        await super().abort()

    __slots__ = ("_failed",)


async def shows_abort_after_failure(open_: OpenClient) -> None:
    upload = await open_().start_upload("a")
    await upload.put_part(2, b"1")
    await raises(Misuse, upload.complete())
    await upload.abort()


@bug("store/uploads_lack_no_part", shows_abort_after_failure)
class AbortAfterFailure(OwnUpload):
    """The server ends an upload if it refuses its completion, and the following abort gets NoSuchUpload.

    Breaks "Idempotent; also right after a failed `complete`."
    """

    UPLOAD = DiesOfFailure


async def _all_are_aborted(open_: OpenClient) -> None:
    store = open_()
    for number in range(6):
        await store.start_upload(f"k{number}")
    for each in await store.unfinished_uploads(""):
        await store.abort_upload(each)
    assert list(await store.unfinished_uploads("")) == []


@bug("store/unfinished_uploads_are_all_told", _all_are_aborted)
class UploadsOfTheMoment(ServiceStore):
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


async def _aborted_is_as_before(open_: OpenClient) -> None:
    store = open_()
    await store.put("k", Body.of(b"x", metadata={"kind": "old"}))
    upload = await store.start_upload("k", metadata={"kind": "new"})
    await upload.put_part(1, b"y")
    await upload.abort()
    assert await store.metadata_of("k") == {"kind": "old"}


@bug("store/uploads_replace_whole", _aborted_is_as_before)
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


async def _put_again_after_an_error(open_: OpenClient) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await ended(upload.put_part(1, data_of(100)), upload.put_part(1, data_of(100)))
    await upload.put_part(2, b"end")
    await upload.complete()
    assert await store.get("k") == data_of(100) + b"end"


@bug("store/uploads_take_a_part_again", _put_again_after_an_error)
class PartsAreAppended(ServiceStore):
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


async def _many_calls(call: Callable[[Any, int], Any], open_: OpenClient) -> None:
    store = open_()
    for number in range(150):
        await call(store, number)


async def _handles_of_uploads(open_: OpenClient) -> None:
    async def aborted(store: Any, number: int) -> None:
        upload = await store.start_upload(f"k{number}")
        await upload.put_part(1, b"x")
        await upload.abort()

    await _many_calls(aborted, open_)


@bug("store/unfinished_uploads_are_all_told", _handles_of_uploads)
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


async def _small_parts(open_: OpenClient) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(1, b"one")
    await upload.put_part(2, b"two")
    await upload.complete()
    assert await store.get("k") == b"onetwo"


@bug("store/uploads_are_whole", _small_parts)
class PartsHaveALeastSize(ServiceStore):
    """The service takes no parts below 64 KiB but the last, and the client does not declare it.

    Breaks "A number is a limit that the store really has": `part_size_bytes_min` is 1. Costs an upload that
    fails at its end.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        check_metadata(metadata, self.capabilities)

        class Strict(ServiceUpload):
            async def complete(self) -> None:
                if any(size < 64 * 1024 for size in [*self.sizes.values()][:-1]):
                    raise Misuse(f"{self.key!r}: a part is too small")
                await super().complete()

        return Strict(self, key, await self.ask(self.service.begin, check_key(key)))


async def _nothing_at_the_start(open_: OpenClient) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await proofs.raises(NotFound, open_().get("k"))
    await upload.put_part(1, b"x")
    assert await proofs.names(open_()) == []
    await upload.abort()
    assert await proofs.names(open_()) == []


@bug("store/an_aborted_upload_leaves_nothing", _nothing_at_the_start)
class UploadsBeginWithAnEmptyObject(ServiceStore):
    """The service creates an empty object with the first part, unless an object exists.

    Breaks "Nothing is visible under its key until `complete` returns": a fragment of no bytes is listed, and
    called damaged.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Beginning(self, check_key(key), await self.ask(self.service.begin, key))


class _Beginning(ServiceUpload):
    async def put_part(self, number: int, data: bytes) -> None:
        await super().put_part(number, data)
        await self.store.ask(self.store.service.create, self.key, b"")


class OverTooEarly(_MemoryUpload):
    """An upload that counts as ended after a failed completion."""

    async def complete(self) -> None:
        try:
            await super().complete()
        except Misuse:
            self._over = True
            raise

    async def abort(self) -> None:
        if not self._over:
            await super().abort()


async def shows_failed_is_over(open_: OpenClient) -> None:
    store = open_()
    upload = await store.start_upload("a")
    await upload.put_part(2, b"12")
    await raises(Misuse, upload.complete())
    await upload.abort()
    assert await store.unfinished_uploads("") == []


@bug("store/uploads_lack_no_part", shows_failed_is_over)
class FailedIsOver(OwnUpload):
    """An upload whose `complete` failed counts as ended, so its abort sends no request.

    Breaks "Idempotent; also right after a failed `complete`": its parts stay, and are paid for.
    """

    UPLOAD = OverTooEarly


async def _abort_again(open_: OpenClient) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(2, b"x")
    await proofs.raises(Misuse, upload.complete())
    await upload.abort()
    await upload.abort()
    unfinished = await (await _begun(store)).unfinished_uploads("u")
    for _ in range(2):
        for each in unfinished:
            await store.abort_upload(each)


async def _begun(store: Any) -> Any:
    await store.start_upload("u")
    return store


@bug("store/an_aborted_upload_leaves_nothing", _abort_again)
class SecondAbortIsNotFound(ServiceStore):
    """The service answers `NotFound` for an upload that no longer exists, and the client raises it.

    Breaks "Forget the parts. Idempotent": the retry of an abort whose reply was lost fails.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Aborting(self, check_key(key), await self.ask(self.service.begin, key))

    async def abort_upload(self, upload: Unfinished) -> None:
        if upload.upload_id not in self.service.uploads:
            raise NotFound(upload.key)
        await super().abort_upload(upload)


class _Aborting(ServiceUpload):
    async def abort(self) -> None:
        if self.name not in self.store.service.uploads:
            raise NotFound(self.key)
        await super().abort()


async def _complete_replaces(open_: OpenClient) -> None:
    store = open_()
    await store.put("k", Body.of(b"old"))
    upload = await store.start_upload("k")
    await upload.put_part(1, b"new")
    await upload.complete()
    assert await store.get("k") == b"new"


@bug("store/uploads_of_one_key_do_not_mix", _complete_replaces)
class CompleteLeavesWhatIsThere(ServiceStore):
    """`complete` publishes with create-if-absent. It takes an existing object for its own, with a lost reply.

    Breaks "Make the object visible": the old object stays, and the new one is gone.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Creating(self, check_key(key), await self.ask(self.service.begin, key))


class _Creating(ServiceUpload):
    async def complete(self) -> None:
        if self.key in self.store.service.objects and sorted(self.sizes) == [*range(1, len(self.sizes) + 1)]:
            await self.abort()
        else:
            await super().complete()


async def _age_stays(open_: OpenClient) -> None:
    store = open_()
    await store.start_upload("u")
    [before] = await store.unfinished_uploads("u")
    await asyncio.sleep(0.05)
    [after] = await store.unfinished_uploads("u")
    assert before == after


@bug("store/unfinished_uploads_tell_when_they_began", _age_stays)
class UploadsBeginWhenTheyAreListed(ServiceStore):
    """An upload's start is the time of the listing, since the service does not report another.

    Breaks "`started_ms`: when it was begun": no upload is ever old enough to be aborted.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        now_ms = int(asyncio.get_running_loop().time() * 1000) + 1_700_000_000_000
        return [
            Unfinished(each.key, each.upload_id, now_ms) for each in await super().unfinished_uploads(prefix)
        ]
