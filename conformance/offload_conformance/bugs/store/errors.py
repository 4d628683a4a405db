"""Bugs of errors: the wrong class, the wrong cause, and text that people cannot read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, ObjectStore, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound
from offload.store.memory import MemoryStore
from offload.store.wrap import UploadDecorator
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound import proofs
from offload_conformance.bugs.sound.memory import SummedMemory
from offload_conformance.bugs.sound.service import ServiceStore


@bug("store/retention_is_told_in_words")
class RetainsWhatIsAbsent(MemoryStore):
    """Reports for every key that versions are kept.

    It returns the setting of the bucket without looking at the object.
    """

    async def retained(self, key: str) -> str | None:
        check_key(key)
        return "the bucket keeps deleted objects as versions"


@bug("store/retention_is_told_in_words")
class RetainsHeaders(MemoryStore):
    """Answers with the headers about versions and locks, line by line.

    The server's text is passed on unchanged, and is printed in the middle of a sentence.
    """

    async def retained(self, key: str) -> str | None:
        await self.get(key)
        return "x-amz-version-id: 3\nx-amz-object-lock-mode: COMPLIANCE"


@bug("store/errors_are_of_their_cause_alone")
class SaysItOnManyLines(MemoryStore):
    """Puts the server's whole answer, with several lines, into its error.

    The text of an SDK's error is the whole reply, and becomes the text of the framework's error.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(key, span)
        except NotFound as error:
            error.args = (f"{error}\n<Error><Code>NoSuchKey</Code></Error>",)
            raise


@bug("store/errors_are_of_their_cause_alone")
class TakesItForOneOfTwo(MemoryStore):
    """Raises an error that is both "exists" and "wrong call".

    The backend's own class inherits from two errors, so that either `except` works; retries follow the first
    that they test for.
    """

    class Taken(AlreadyExists, Misuse):
        """The key is taken, so it cannot be created."""

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists as error:
            raise self.Taken(key) from error


@bug("store/errors_are_of_their_cause_alone")
class IsSpoiledByAnError(MemoryStore):
    """Answers no more requests after a call has failed.

    An exception left a transaction open.
    """

    spoiled = False

    async def create(self, key: str, data: bytes) -> None:
        if self.spoiled:
            raise RuntimeError("the current transaction is aborted")
        self.spoiled = True
        await super().create(key, data)
        self.spoiled = False


@bug("store/a_key_beside_its_folder_is_kept_or_refused")
class MakesRoomForAFolder(MemoryStore):
    """Removes an object to make a folder of its name.

    `rm` before `mkdir -p` was written for the remains of a crash, but it also affects keys.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.objects.pop(key.rpartition("/")[0], None)


@bug("store/a_key_beside_its_folder_is_kept_or_refused")
class RemovesTheFolder(MemoryStore):
    """Removes everything below a key when an object of that name is put.

    In a tree of directories, a rename onto a directory was made to succeed.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        for below in [each for each in self.objects if each.startswith(f"{key}/")]:
            del self.objects[below]


@bug("store/what_is_absent_has_no_checksum")
class RemembersChecksums(MemoryStore):
    """Reports the checksum of a deleted object.

    Deletions do not update a table of checksums beside the objects.
    """

    sums: dict[tuple[int, str], int] = {}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.sums[id(self.objects), key] = crc32c(self.objects[key])

    async def stored_crc32c(self, key: str) -> int | None:
        return self.sums.get((id(self.objects), check_key(key)))


@bug("store/looking_at_nothing_is_no_error")
class MissesTheFolder(MemoryStore):
    """Raises if a folder to list is absent.

    `os.scandir` raises, but an object store answers with an empty page.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        found = [name async for name in super().level(prefix)]
        if prefix and not found:
            raise NotFound(prefix, store=self.url)
        for name in found:
            yield name


@bug("store/looking_at_nothing_is_no_error")
class MissesItsUploads(MemoryStore):
    """Raises if no upload is in progress.

    A server answers 404 to a listing of uploads below an empty prefix.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        if not (found := await super().unfinished_uploads(prefix)):
            raise NotFound(prefix, store=self.url)
        return found


@bug("store/an_unreachable_server_is_no_answer")
class TakesSilenceForAbsence(MemoryStore):
    """Reports that an object is absent if the server cannot be reached.

    `except Exception` around a read: a reader then believes that a stream was never offloaded.
    """

    @classmethod
    def unreachable(cls) -> ObjectStore:
        """Return a client of a server that does not exist."""
        return cls()


@bug("store/what_is_absent_has_no_checksum")
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


@bug("store/errors_are_of_their_cause_alone")
class TakesAnObjectForAFolder(MemoryStore):
    """Raises `Misuse` for a read below an object.

    `ENOTDIR` is a mistake of the caller in a file system, and here it is only absence.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if any(key.startswith(f"{each}/") for each in self.objects):
            raise Misuse(f"{key!r} is below an object")
        return await super().get(key, span)


@bug("store/a_key_beside_its_folder_is_kept_or_refused")
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


async def _nothing_has_no_sum(open_: OpenClient) -> None:
    try:
        found = await open_().stored_crc32c("absent")
    except NotFound:
        return
    assert found is None, found


@bug("store/what_is_absent_has_no_checksum", _nothing_has_no_sum)
class NothingHasASum(SummedMemory):
    """The sum of an absent object is zero, that of no bytes.

    Breaks "For an absent object, returns None or raises `NotFound`". Costs a check that takes an object that
    is gone for an empty one.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        return await super().stored_crc32c(key) if check_key(key) in self.objects else 0


@bug("store/a_key_beside_its_folder_is_kept_or_refused", proofs.levels(["a", "a/1", "b"]))
class LevelHasOneNameForKeyAndFolder(ServiceStore):
    """A level collects names without their slash, so a key hides the folder of the same name.

    Breaks "names each key and each folder": what is below the folder seems not to exist.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        found: dict[str, str] = {}
        async for row in self.list(prefix):
            part, slash, _ = row.key[len(prefix) :].partition("/")
            found.setdefault(prefix + part, slash)
        for name in sorted(name + slash for name, slash in found.items()):
            yield name
