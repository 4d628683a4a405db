"""Stores with errors that mislead, with ranges cut wrongly, or that only a sequence of calls betrays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from contract.bugs import Bug, breaks

from offload.contracts.store import Body, Listed, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound
from offload.store.memory import MemoryStore
from offload.store.spans import clip
from offload.store.wrap import UploadDecorator

ERROR_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=ERROR_BUGS)


@bug("retention_is_told_in_words")
class RetainsWhatIsAbsent(MemoryStore):
    """Reports for every key that versions are kept.

    It returns the setting of the bucket without looking at the object.
    """

    async def retained(self, key: str) -> str | None:
        check_key(key)
        return "the bucket keeps deleted objects as versions"


@bug("retention_is_told_in_words")
class RetainsHeaders(MemoryStore):
    """Answers with the headers about versions and locks, line by line.

    The server's text is passed on unchanged, and is printed in the middle of a sentence.
    """

    async def retained(self, key: str) -> str | None:
        await self.get(key)
        return "x-amz-version-id: 3\nx-amz-object-lock-mode: COMPLIANCE"


@bug("errors_are_of_their_cause_alone")
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


@bug("errors_are_of_their_cause_alone")
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


@bug("errors_are_of_their_cause_alone")
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


@bug("a_key_beside_its_folder_is_kept_or_refused")
class MakesRoomForAFolder(MemoryStore):
    """Removes an object to make a folder of its name.

    `rm` before `mkdir -p` was written for the remains of a crash, but it also affects keys.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.objects.pop(key.rpartition("/")[0], None)


@bug("a_key_beside_its_folder_is_kept_or_refused")
class RemovesTheFolder(MemoryStore):
    """Removes everything below a key when an object of that name is put.

    In a tree of directories, a rename onto a directory was made to succeed.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        for below in [each for each in self.objects if each.startswith(f"{key}/")]:
            del self.objects[below]


@bug("what_is_absent_has_no_checksum")
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


@bug("keys_are_checked")
class LooksUpAnything(MemoryStore):
    """Requests the checksum of any key, valid or not.

    The check of the key was forgotten in this one method.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        return None


@bug("looking_at_nothing_is_no_error")
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


@bug("looking_at_nothing_is_no_error")
class MissesItsUploads(MemoryStore):
    """Raises if no upload is in progress.

    A server answers 404 to a listing of uploads below an empty prefix.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        if not (found := await super().unfinished_uploads(prefix)):
            raise NotFound(prefix, store=self.url)
        return found


# Ranges of large objects


@bug("ranges_are_exact_at_every_border")
class ReadsOneBuffer(MemoryStore):
    """Returns at most 64 KiB of a range.

    A single `recv` or `read` returns only the bytes that have arrived.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        return data if span is None else data[: 2**16]


@bug("ranges_are_exact_at_every_border")
class LosesAByteBetweenBlocks(MemoryStore):
    """Leaves out the byte at 4 MiB if a range includes it.

    A range is fetched in blocks with inclusive ends, and the next block begins one byte too late.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        start, end = clip(span, len(self.objects[key]))
        at = 4 * 2**20 - start
        return data[:at] + data[at + 1 :] if start < 4 * 2**20 < end else data


# Bugs that only a sequence of calls shows


@bug("any_calls_answer_as_a_dictionary_would")
class BeginsAnewBehindTheDeleted(MemoryStore):
    """Lists from the beginning if `after` names a deleted key.

    The next page is found by the last key of the previous one, which is gone.
    """

    gone: set[tuple[int, str]] = set()

    async def delete(self, keys: Sequence[str]) -> None:
        self.gone.update((id(self.objects), key) for key in keys if key in self.objects)
        await super().delete(keys)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        lost = (id(self.objects), after) in self.gone and after not in self.objects
        async for row in super().list(prefix, after="" if lost else after):
            yield row


@bug("listing_is_strong")
class KeepsTheSizeOfACreate(MemoryStore):
    """Lists an object that was created and then put with its first size.

    One of two ways to write does not update an index of sizes.
    """

    sizes: dict[tuple[int, str], int] = {}

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        self.sizes[id(self.objects), key] = len(data)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self.sizes.pop((id(self.objects), key), None)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            size_bytes = self.sizes.get((id(self.objects), row.key), row.size_bytes)
            yield replace(row, size_bytes=size_bytes)


@bug("any_calls_answer_as_a_dictionary_would")
class CreatesOverUploads(MemoryStore):
    """Creates over an object that was uploaded in parts.

    Puts and creates update an index of taken keys, and uploads do not.
    """

    taken: dict[int, set[str]] = {}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.index().add(key)

    async def create(self, key: str, data: bytes) -> None:
        if key not in self.index():
            self.objects.pop(key, None)
        await super().create(key, data)
        self.index().add(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        self.index().difference_update(keys)

    async def start_upload(self, key: str) -> Upload:
        return self._Unseen(await super().start_upload(key), self, key)

    def index(self) -> set[str]:
        """Return the keys that are known to be taken."""
        index = self.taken.setdefault(id(self.objects), set())
        index &= self.objects.keys()  # earlier objects may have had the same id
        return index

    class _Unseen(UploadDecorator):
        __slots__ = ("key", "store")

        def __init__(self, inner: Upload, store: CreatesOverUploads, key: str) -> None:
            super().__init__(inner)
            self.store, self.key = store, key

        async def complete(self) -> None:
            known = self.key in self.store.index()
            await super().complete()
            if not known:
                self.store.index().discard(self.key)
