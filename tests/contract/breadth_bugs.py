"""Stores that work with few and small objects, ordinary keys and one call at a time, and no further."""

from __future__ import annotations

import asyncio
import gzip
import unicodedata
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Final
from urllib.parse import unquote

from contract.bugs import Bug, breaks
from contract.part_bugs import Collected

from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound, TryAgain
from offload.store.memory import MemoryStore
from offload.store.spans import clip
from offload.store.wrap import UploadDecorator

BREADTH_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=BREADTH_BUGS)

MIB: Final = 2**20
PIECE_SIZE_BYTES: Final = 4 * MIB
SLOTS: Final = 16


@bug("puts_are_whole")
class KeepsSixteenMebibytes(MemoryStore):
    """Cuts an object at 16 MiB.

    `MEDIUMBLOB` on a server that cuts values instead of refusing them, or a document of MongoDB.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.objects[key] = self.objects[key][: 16 * MIB]


@bug("creates_may_be_as_large_as_declared")
class CreatesSmallObjectsOnly(MemoryStore):
    """Refuses to create more than 256 KiB, and declares no limit.

    A value of DynamoDB has at most 400 KB, one of etcd 1.5 MB; the commit of a long stream fails years later.
    """

    async def create(self, key: str, data: bytes) -> None:
        if len(data) > 256 * 1024:
            raise Misuse(f"{key!r}: the item is too large")
        await super().create(key, data)


@bug("creates_may_be_as_large_as_declared")
class DeclaresTooLittle(MemoryStore):
    """Declares a limit for creates, and accepts larger ones.

    The limit belongs to another version of the server.
    """

    capabilities = replace(MemoryStore().capabilities, create_size_bytes_max=2 * MIB)  # type: ignore[assignment]


@bug("creates_may_be_as_large_as_declared")
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


@bug("contents_are_kept_as_they_are")
class UnpacksWhatLooksPacked(MemoryStore):
    """Returns a compressed object uncompressed.

    `Content-Encoding: gzip` is guessed from the name, and the HTTP client decompresses the reply.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        if key.endswith(".gz") and data[:2] == b"\x1f\x8b":
            with suppress(OSError, EOFError):
                data = gzip.decompress(data)
        start, end = clip(span, len(data))
        return data[start:end]


@bug("puts_are_whole_while_replaced")
class ReadsInPieces(MemoryStore):
    """Reads a large object with several requests, each of the object at that moment.

    It downloads parallel ranges without `If-Match`; smaller objects need one request.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        start, end = clip(span, len(await super().get(key)))
        spans = (Span(at, min(PIECE_SIZE_BYTES, end - at)) for at in range(start, end, PIECE_SIZE_BYTES))
        return b"".join([await MemoryStore.get(self, key, each) for each in spans])


@bug("create_never_undoes_a_put")
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


@bug("calls_may_overlap")
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


class _Slots(MemoryStore):
    """A client with as many connections as `SLOTS`."""

    free = SLOTS

    def take(self) -> None:
        """Take a connection."""
        if not self.free:
            raise TryAgain("no connection is free")
        self.free -= 1


@bug("a_cancelled_call_hinders_no_other")
class LosesConnections(_Slots):
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


@bug("a_cancelled_call_hinders_no_other")
class ReadsTheLastReply(MemoryStore):
    """Gives the reply of a cancelled call to the next call.

    redis-py did this, on connections that were returned to the pool before their reply arrived.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        replies: list[bytes] = self.__dict__.setdefault("replies", [])
        replies.append(await super().get(key, span))
        await asyncio.sleep(0)
        return replies.pop(0)


@bug("a_cancelled_part_may_be_put_again")
class LosesTheTurnsOfParts(MemoryStore):
    """Limits simultaneous parts, and never frees the slot of a cancelled one.

    The semaphore is used without `async with`.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Turns(await super().start_upload(key))

    class _Turns(UploadDecorator):
        turns = SLOTS

        async def put_part(self, number: int, data: bytes) -> None:
            if not self.turns:
                raise TryAgain("too many parts at once")
            self.turns -= 1
            await asyncio.sleep(0)
            await super().put_part(number, data)
            self.turns += 1


@bug("listing_may_be_left_early")
class KeepsCursorsOpen(_Slots):
    """Keeps the cursor of a listing that was not read to its end.

    The cursor is closed after the loop, which a caller that stops early never reaches.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        self.take()
        async for row in super().list(prefix, after=after):
            yield row
        self.free += 1


@bug("listing_goes_on_while_keys_change")
class PagesByNumber(MemoryStore):
    """Requests the next page by the number of rows so far.

    `LIMIT 1000 OFFSET 1000`: deletions before that position move the rows up, and as many rows are missing.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        shown = 0
        while page := [row async for row in MemoryStore.list(self, prefix, after=after)][
            shown : shown + 1000
        ]:
            for row in page:
                yield row
            shown += len(page)


@bug("listing_goes_on_page_after_page")
class StopsAfterTenPages(MemoryStore):
    """Lists at most ten thousand keys.

    The largest window of Elasticsearch, or a loop over pages with a limit against endless loops.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        shown = 0
        async for row in super().list(prefix, after=after):
            if (shown := shown + 1) > 10_000:
                return
            yield row


@bug("listing_goes_on_page_after_page")
class UnquotesTokens(MemoryStore):
    """Requests the next page behind a key in which `%2B` has become `+`.

    The token of a page is a key in a query, and its escapes are decoded once too often.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        while page := [row async for row in MemoryStore.list(self, prefix, after=after)][:1000]:
            for row in page:
                yield row
            if len(page) < 1000:
                return
            after = unquote(page[-1].key)


@bug("listing_goes_on_page_after_page")
class ForgetsSizesBehindAPage(MemoryStore):
    """Lists every row after the first thousand with a size of 0.

    The first page and the next pages are read by different code, and one requests only keys.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        shown = 0
        async for row in super().list(prefix, after=after):
            shown += 1
            yield row if shown <= 1000 else Listed(row.key, 0)


@bug("a_level_goes_on_page_after_page")
class DropsTheLastOfAFullPage(MemoryStore):
    """Lists 999 of a thousand names.

    It requests one name more than it returns, to see if another page follows; the last page has no extra
    name.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        names = [name async for name in super().level(prefix)]
        for name in names[:-1] if len(names) % 1000 == 0 else names:
            yield name


class _Renames(MemoryStore):
    """Replaces a key by another one, in every call."""

    @staticmethod
    def name(key: str) -> str:
        """Return the replacement of a key."""
        return key

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.name(check_key(key)), body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(self.name(check_key(key)), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(self.name(check_key(key)), span)
        except NotFound as error:
            raise NotFound(key) from error

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([self.name(check_key(key)) for key in keys])


@bug("keys_are_taken_as_they_are")
class CutsAtTheHash(_Renames):
    """Cuts a key at its `#`.

    A URL is built as text without `quote`, so the rest is a URL fragment, which is never sent.
    """

    @staticmethod
    def name(key: str) -> str:
        return key.partition("#")[0] or key


@bug("keys_are_taken_as_they_are")
class MendsLineEnds(_Renames):
    """Changes `\\r` to `\\n`.

    XML does this unless it is written as `&#13;`, in listings and in DeleteObjects.
    """

    @staticmethod
    def name(key: str) -> str:
        return key.replace("\r\n", "\n").replace("\r", "\n")


@bug("keys_are_taken_as_they_are")
class DeletesByPattern(MemoryStore):
    """Treats a key with `*` as a pattern when it deletes.

    `glob`, or Redis' `KEYS`, is applied to a key of the caller.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await super().delete(
            [each for each in self.objects for key in keys if fnmatchcase(each, key) or each == key]
        )


@bug("keys_that_look_alike_differ")
class FoldsByCompatibility(_Renames):
    """Does not distinguish letters that are equal under NFKC.

    Identifiers of several databases and search engines work like this; `ﬁ` and `fi` are then one key.
    """

    @staticmethod
    def name(key: str) -> str:
        return unicodedata.normalize("NFKC", key) if unicodedata.is_normalized("NFC", key) else key


@bug("keys_that_look_alike_differ")
class DropsBlanksAtTheEnd(_Renames):
    """Removes blanks at the end of a key.

    `CHAR` columns, and comparisons with `PAD SPACE`, which is the default in MySQL.
    """

    @staticmethod
    def name(key: str) -> str:
        return key.rstrip(" ")


@bug("ranges_are_exact")
class ReadsAllForNothing(MemoryStore):
    """Returns the whole object for an empty range that does not begin at 0.

    `bytes=3-2` is not a valid range, and a server ignores an invalid one.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.start > 0 and span.length == 0:
            span = None
        return await super().get(key, span)


@bug("uploads_may_have_many_parts")
class JoinsAThousandParts(MemoryStore):
    """Joins only the first thousand parts.

    It reads one page of ListParts, which has room for the 320 parts that the clause used to have.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._OnePage(self, check_key(key))

    class _OnePage(Collected):
        def joined(self) -> bytes:
            return b"".join(self.parts[number] for number in sorted(self.parts)[:1000])


@bug("ranges_are_exact")
class CutsTheStart(MemoryStore):
    """Stores the beginning of a range in 32 bits.

    `unsigned int`, or `>>> 0`: a range far beyond the end reads from the beginning.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.start > 0:
            span = Span(span.start & 0xFFFFFFFF, span.length)
        return await super().get(key, span)


@bug("stored_checksums_are_true")
class TellsTheSumOfAPart(MemoryStore):
    """Reports the checksum of the last part of an upload as that of the object.

    Servers keep one for each part, and report a checksum of checksums, or the last one.
    """

    sums: dict[tuple[int, str], int] = {}

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        upload_of = self._Summing(upload)
        upload_of.sums, upload_of.key = self.sums, (id(self.objects), key)
        return upload_of

    async def stored_crc32c(self, key: str) -> int | None:
        return self.sums.get((id(self.objects), check_key(key)))

    class _Summing(UploadDecorator):
        async def put_part(self, number: int, data: bytes) -> None:
            await super().put_part(number, data)
            self.sums[self.key] = crc32c(data)


@bug("keys_may_be_long")
class NamesPartsBehindTheKey(MemoryStore):
    """Refuses an upload if its key leaves no room for the checksum of a part after it.

    Parts are separate objects, named `KEY.SHA512`, until they are composed.
    """

    async def start_upload(self, key: str) -> Upload:
        check_key(f"{check_key(key)}.{'0' * 128}")
        return await super().start_upload(key)


BEGUN: Final[dict[int, list[Collected]]] = {}


@bug("an_upload_may_be_begun_again")
class AbortsAllOfAKey(MemoryStore):
    """Deletes the parts of every upload of a key if one of them is aborted.

    Parts are stored below the key, and an abort removes that folder.
    """

    async def start_upload(self, key: str) -> Upload:
        upload = self._OfAKey(self, check_key(key))
        BEGUN.setdefault(id(self.objects), []).append(upload)
        return upload

    class _OfAKey(Collected):
        async def abort(self) -> None:
            for upload in BEGUN[id(self.store.objects)]:
                if upload.key == self.key:
                    upload.parts.clear()


@bug("unfinished_uploads_are_all_told")
class TellsOfTen(MemoryStore):
    """Lists only the first ten unfinished uploads.

    The server's default page has ten rows, and nobody checks if there is another page.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        return [*await super().unfinished_uploads(prefix)][:10]


@bug("unfinished_uploads_are_all_told")
class TellsByPattern(MemoryStore):
    """Matches any character to `_` in a prefix of unfinished uploads.

    `LIKE prefix || '%'`: a sweep of one folder aborts the uploads of another.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        pattern = prefix.replace("_", "?") + "*"
        return [each for each in await super().unfinished_uploads("") if fnmatchcase(each.key, pattern)]


@bug("parts_beside_an_abort_are_forgotten")
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


@bug("unfinished_uploads_tell_when_they_began")
class TellsSeconds(MemoryStore):
    """Reports the beginning of an upload in seconds.

    `timestamp()` without `* 1000`: for a sweep a new upload is from 1970, and it aborts the upload.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        told = await super().unfinished_uploads(prefix)
        return [replace(each, started_ms=each.started_ms // 1000) for each in told]


@bug("an_unreachable_server_is_no_answer")
class TakesSilenceForAbsence(MemoryStore):
    """Reports that an object is absent if the server cannot be reached.

    `except Exception` around a read: a reader then believes that a stream was never offloaded.
    """

    @classmethod
    def unreachable(cls) -> ObjectStore:
        """Return a client of a server that does not exist."""
        return cls()
