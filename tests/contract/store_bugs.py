"""Stores that each break one clause of the port, the way real ones do.

None of them is far-fetched: each is a shortcut that a real backend took, and the rest of the store works.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
import time
import unicodedata
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, unquote_plus
from uuid import uuid4

from contract.bugs import Bug, breaks

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Buffer, Listed, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Conflict, Denied, Misuse, NotFound, TryAgain
from offload.store.memory import MemoryStore
from offload.store.wrap import UploadDecorator

STORE_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=STORE_BUGS)

PAGE_KEYS = 1000

SLOW_TURNS = 100
"""The time in which other processes make and delete more objects than a sweep keeps."""


# Puts


@bug("puts_are_whole")
class KeepsTheLastWindow(MemoryStore):
    """Stores one window after the other, each over the one before it.

    An SDK's upload call is inside the loop over a body's windows instead of after it.
    """

    async def put(self, key: str, body: Body) -> None:
        async for window in body.windows():
            self.objects[key] = window


@bug("puts_are_whole")
class LosesTheLastByte(MemoryStore):
    """Stores all bytes but the last one.

    An inclusive end taken for an exclusive one when a body is cut for `Content-Range`.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.objects[key] = self.objects[key][:-1]


@bug("puts_replace_whole")
class WritesInPlace(MemoryStore):
    """Leaves the end of a longer object behind a shorter one.

    A file opened with `r+b`, and never truncated.
    """

    async def put(self, key: str, body: Body) -> None:
        old = self.objects.get(key, b"")
        await super().put(key, body)
        self.objects[key] += old[len(self.objects[key]) :]


@bug("a_put_may_be_repeated")
class Appends(MemoryStore):
    """Puts new bytes behind those that are there.

    A file opened with `ab`, or an append blob.
    """

    async def put(self, key: str, body: Body) -> None:
        old = self.objects.get(key, b"")
        await super().put(key, body)
        self.objects[key] = old + self.objects[key]


@bug("puts_are_invisible_until_they_return")
class ShowsPutsUnderWay(MemoryStore):
    """Shows an object while it is being written, window by window.

    A file written under its final name: fsspec's local file system does so by default.
    """

    async def put(self, key: str, body: Body) -> None:
        data = b""
        async for window in body.windows():
            data += window
            self.objects[key] = data
            await asyncio.sleep(0)
        self.objects[key] = data


@bug("puts_are_whole_while_replaced")
class ReplacesInTwoSteps(MemoryStore):
    """Deletes the old object before it writes the new one.

    The way to replace where `rename` refuses what exists, as on Windows, in HDFS and over SFTP.
    """

    async def put(self, key: str, body: Body) -> None:
        self.objects.pop(key, None)
        await asyncio.sleep(0)
        await super().put(key, body)


@bug("a_cancelled_put_leaves_nothing_visible")
class KeepsWhatACancelLeft(MemoryStore):
    """Stores a partial object when it is cancelled.

    A context manager that closes the file, and so commits it, on every way out.
    """

    async def put(self, key: str, body: Body) -> None:
        data = b""
        try:
            async for window in body.windows():
                data += window
        except asyncio.CancelledError:
            self.objects[key] = data
            raise
        await super().put(key, replace(body, windows=Body.of(data).windows))


@bug("a_failing_body_leaves_nothing_visible")
class KeepsWhatAnErrorLeft(MemoryStore):
    """Stores a partial object when the body breaks off.

    A writer is closed in a `finally`; in many SDKs closing completes the object.
    """

    async def put(self, key: str, body: Body) -> None:
        data = b""
        try:
            async for window in body.windows():
                data += window
        except Exception:
            self.objects[key] = data
            raise
        await super().put(key, replace(body, windows=Body.of(data).windows))


@bug("a_body_of_another_size_is_refused")
class TrustsTheSize(MemoryStore):
    """Stores all bytes that the body yields, regardless of the announced size.

    A request of unknown length is sent in chunks, so nobody counts the bytes.
    """

    async def put(self, key: str, body: Body) -> None:
        self.objects[check_key(key)] = b"".join([window async for window in body.windows()])


@bug("bodies_of_unknown_size_are_whole")
class FillsUpToTheBound(MemoryStore):
    """Fills a body that is shorter than its bound with zeros.

    The file is allocated at the announced size, and never truncated.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.objects[key] = self.objects[key].ljust(body.size_bytes, b"\0")


@bug("bodies_of_unknown_size_are_whole")
class WantsTheBound(MemoryStore):
    """Refuses a body that is shorter than its bound.

    The capability is declared, and the check of sizes is still the old one.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, replace(body, is_bound=False))


@bug("bodies_of_unknown_size_are_whole")
class WaitsForTheLastPart(MemoryStore):
    """Loses the bytes behind the last full part of a body that ends before its bound.

    The last part is sent when the announced size is reached, and it never is.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        size_bytes = len(self.objects[key])
        if body.is_bound and body.size_bytes > 8 * 2**20 and size_bytes < body.size_bytes:
            self.objects[key] = self.objects[key][: size_bytes - size_bytes % (8 * 2**20)]


@bug("bodies_of_unknown_size_are_whole")
class SkipsAnEmptyUpload(MemoryStore):
    """Leaves the old object if a body with a large bound turns out to be empty.

    The bound selects an upload in parts, and an upload without parts cannot be completed.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.is_bound and not [window async for window in body.windows()]:
            return
        await super().put(key, body)


@bug("a_body_beyond_its_bound_is_refused")
class CutsAtTheBound(MemoryStore):
    """Stores the first bytes of a body that is longer than its bound.

    A reader that is limited to `Content-Length` ends there, without an error.
    """

    async def put(self, key: str, body: Body) -> None:
        data = b"".join([window async for window in body.windows()])
        await super().put(key, Body.of(data[: body.size_bytes]) if body.is_bound else body)


@bug("a_body_beyond_its_bound_is_refused")
class TakesTheBoundForAHint(MemoryStore):
    """Stores all bytes of a body that is longer than its bound.

    A body of unknown size is sent in chunks, so nobody counts the bytes.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.is_bound:
            body = Body.of(b"".join([window async for window in body.windows()]))
        await super().put(key, body)


@bug("a_body_beyond_its_bound_is_refused")
class CountsTooLate(MemoryStore):
    """Refuses a body that is longer than its bound when the object is stored already.

    The bytes are counted while they are sent, and compared when the request has ended.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.is_bound:
            self.objects[check_key(key)] = b"".join([window async for window in body.windows()])
        await super().put(key, body)


@bug("puts_are_durable")
class WritesBehind(MemoryStore):
    """Answers at once, and keeps new objects back until somebody reads them.

    A write-back cache: a FUSE mount, an NFS client.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.late = {key: self.objects.pop(key)}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.objects.update(getattr(self, "late", {}))
        return await super().get(key, span)


@bug("an_empty_object_is_an_object")
class DropsEmptyObjects(MemoryStore):
    """Does not store an empty object.

    `if data:` before the request, or a multipart upload that has no parts.
    """

    async def put(self, key: str, body: Body) -> None:
        if body.size_bytes:
            await super().put(key, body)


# Creates


@bug("create_is_atomic")
class ChecksThenWrites(MemoryStore):
    """Checks if the key is taken, and writes in a second step.

    `if not await fs.exists(key)`: the default of fsspec's `mode="create"` if a store has nothing better.
    """

    async def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise AlreadyExists(key)
        await asyncio.sleep(0)
        self.objects[key] = data


@bug("create_is_atomic")
class TakesItselfForARival(MemoryStore):
    """Reports that the key is taken, after its own first request took it.

    A client repeats a request by itself, and reports the second reply.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, data)
        raise AlreadyExists(key)


@bug("create_is_atomic_between_threads")
class LocksItsOwnLoop(MemoryStore):
    """Checks and writes atomically only within its own event loop.

    An `asyncio.Lock` in the client: another thread, process or machine does not know of it.
    """

    async def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise AlreadyExists(key)
        time.sleep(0.02)  # noqa: ASYNC251 - lets the others run under any scheduler
        self.objects[key] = data


@bug("create_never_replaces")
class OverwritesOnCreate(MemoryStore):
    """Overwrites an existing object on create.

    A server that does not know `If-None-Match` ignores it and answers 200: several S3 servers did.
    """

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


@bug("create_never_replaces")
class CallsItAConflict(MemoryStore):
    """Raises `Conflict` if the key is taken.

    One table from status codes to errors for all requests, in which 409 and 412 are conflicts.
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists as taken:
            raise Conflict(str(taken)) from taken


@bug("create_refuses_its_own_bytes")
class TakesEqualForItsOwn(MemoryStore):
    """Counts a create as done if the same bytes are stored already.

    This is meant for lost replies, but two writers may send the same bytes.
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists:
            if self.objects.get(key) != data:
                raise


@bug("creates_are_whole")
class FillsWhatItCreated(MemoryStore):
    """Creates an object empty, and fills it afterwards.

    `open(path, "xb")` and then `write`, as a local file of fsspec; a crash in between leaves it empty.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key, b"")
        await asyncio.sleep(0)
        self.objects[key] = bytes(data)


@bug("create_yields_to_a_put")
class CreatesOverEmpty(MemoryStore):
    """Treats an empty object as absent.

    `if existing:` instead of `is not None`, or a placeholder object of size zero that counts as free.
    """

    async def create(self, key: str, data: bytes) -> None:
        if not self.objects.get(key):
            self.objects.pop(key, None)
        await super().create(key, data)


@bug("create_succeeds_after_deletion")
class RemembersTheTaken(MemoryStore):
    """Refuses a key that was ever used before.

    A unique index over rows that are only marked as deleted.
    """

    async def create(self, key: str, data: bytes) -> None:
        self.taken: set[str] = getattr(self, "taken", set())
        if key in self.taken:
            raise AlreadyExists(key)
        await super().create(key, data)
        self.taken.add(key)


# Listings


@bug("listing_is_strong")
class CachesListings(MemoryStore):
    """Caches a listing, because listings are expensive.

    fsspec's `dircache`, on by default in s3fs, gcsfs and adlfs.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        if not hasattr(self, "rows"):
            self.rows = [row async for row in super().list("")]
        for row in self.rows:
            if row.key.startswith(prefix) and row.key > after:
                yield row


@bug("listing_is_strong")
class ListsFromAnIndex(MemoryStore):
    """Lists from its own index, which deletions do not update.

    A second table, or a database beside the bucket, is written in a separate step.
    """

    index: dict[int, dict[str, int]] = {}

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        index = self.index.setdefault(id(self.objects), {})
        index |= {key: len(data) for key, data in self.objects.items()}
        for key in sorted(index):
            if key.startswith(prefix) and key > after:
                yield Listed(key, index[key])


@bug("listing_keeps_its_end")
class LooksAtNamesLater(MemoryStore):
    """Reads the names first, and leaves out objects that have disappeared when it looks at each.

    `os.scandir` and then `os.stat`: ours did, and showed no root at all after a sweep had deleted the ones
    it read.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        for row in [row async for row in super().list(prefix, after=after)]:
            for _ in range(SLOW_TURNS):
                await asyncio.sleep(0)
            if row.key in self.objects:
                yield row


@bug("listing_keeps_its_end")
class ListsInTwoRequests(MemoryStore):
    """Lists the upper half of the keys before the lower half.

    Partitions of an index are queried one after another in no order, or all at once.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        middle = rows[len(rows) // 2].key if rows else ""
        for _ in range(SLOW_TURNS):
            await asyncio.sleep(0)
        async for row in super().list(prefix, after=after):
            if row.key < middle:
                yield row
        for row in rows:
            if row.key >= middle and row.key in self.objects:
                yield row


@bug("listing_is_ordered")
class ListsFolderByFolder(MemoryStore):
    """Sorts as a walk through folders does.

    `os.walk` with sorted names: `a/b` comes before `a.b` then, though `.` is the lesser byte.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        for row in sorted(rows, key=lambda row: row.key.split("/")):
            yield row


@bug("listing_is_ordered_in_every_plane")
class SortsByUtf16(MemoryStore):
    """Sorts as Java and JavaScript sort strings: by UTF-16.

    Azurite does; characters beyond U+FFFF then come before some of those below.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [row async for row in super().list(prefix, after=after)]
        for row in sorted(rows, key=lambda row: row.key.encode("utf-16-be")):
            yield row


@bug("listing_is_ordered")
class ListsAsTheyCame(MemoryStore):
    """Lists in no order at all.

    A query without `ORDER BY`, a hash table, `os.scandir`.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        for key in [key for key in self.objects if key.startswith(prefix) and key > after]:
            yield Listed(key, len(self.objects[key]))


@bug("listing_is_ordered")
class ListsNoSizes(MemoryStore):
    """Lists every object with size zero.

    A listing without metadata, which some SDKs make the cheaper default.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        async for row in super().list(prefix, after=after):
            yield Listed(row.key, 0)


@bug("listing_begins_after")
class BeginsAtAfter(MemoryStore):
    """Lists the key `after` as well.

    GCS's `startOffset` includes the key that it names, S3's `StartAfter` does not.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        if after in self.objects and after.startswith(prefix):
            yield Listed(after, len(self.objects[after]))
        async for row in super().list(prefix, after=after):
            yield row


@bug("listing_takes_any_prefix")
class TakesPrefixesForFolders(MemoryStore):
    """Ends every prefix with a slash.

    File systems list folders, and every layer that plays one on a bucket appends the slash.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        folder = f"{prefix.rstrip('/')}/" if prefix else ""
        async for row in super().list(folder, after=after):
            yield row


@bug("listing_reads_prefixes_as_they_are")
class TakesPrefixesForPatterns(MemoryStore):
    """Lists by a pattern, in which `_` and `%` match other characters.

    `WHERE key LIKE ? || '%'` in a store over a database, or `glob` over files.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        pattern = re.compile(re.escape(prefix).replace("_", ".").replace("%", ".*"))
        async for row in super().list("", after=after):
            if pattern.match(row.key):
                yield row


@bug("listing_finds_nothing_under_what_begins_no_key")
class NormalizesPrefixes(MemoryStore):
    """Normalizes a prefix with dots as a path.

    `os.path.join` and `normpath` are applied to a caller's text, which can lead out of the folder.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        meant = posixpath.normpath(f"/{prefix}").lstrip("/") if "." in prefix else prefix
        async for row in super().list(meant, after=after):
            yield row


@bug("listing_goes_on_page_after_page")
class ForgetsPageTwo(MemoryStore):
    """Lists only the first page.

    There is one request, and `IsTruncated` is ignored; every test with fewer objects passes.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        listed = 0
        async for row in super().list(prefix, after=after):
            if (listed := listed + 1) > PAGE_KEYS:
                return
            yield row


@bug("listing_goes_on_page_after_page")
class RepeatsTheLastOfAPage(MemoryStore):
    """Begins each page with the last key of the one before it.

    The marker is the last key seen, but the server's next page includes the marker.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        listed = 0
        async for row in super().list(prefix, after=after):
            yield row
            if (listed := listed + 1) % PAGE_KEYS == 0:
                yield row


@bug("listing_may_be_left_early")
class KeepsTheCursor(MemoryStore):
    """Begins a listing behind the page at which the last one was left.

    The continuation token is kept in the client instead of in the listing.
    """

    token = ""

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        while True:
            rows = [row async for row in super().list(prefix, after=max(after, self.token))][:5]
            if not rows:
                self.token = ""
                return
            self.token = rows[-1].key
            for row in rows:
                yield row


@bug("levels_are_whole")
class NamesFoldersOften(MemoryStore):
    """Lists a folder once for each key below it.

    A level is made from a listing, by cutting each key at its next slash.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        async for row in super().list(prefix):
            part, slash, _ = row.key[len(prefix) :].partition("/")
            yield prefix + part + slash


@bug("a_level_goes_on_page_after_page")
class ForgetsFoldersOfPageTwo(MemoryStore):
    """Names the keys of every page, and the folders of the first one.

    S3's replies have `CommonPrefixes` in a separate list, and the loop over pages reads only `Contents`.
    """

    async def level(self, prefix: str) -> AsyncIterator[str]:
        named = 0
        async for name in super().level(prefix):
            if (named := named + 1) <= PAGE_KEYS or not name.endswith("/"):
                yield name


# Reads


@bug("ranges_are_exact")
class PadsRanges(MemoryStore):
    """Always returns as many bytes as were requested.

    A buffer of the requested size is filled as far as the object goes, and returned whole.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        return data.ljust(min(span.length, 1000), b"\0") if span else data


@bug("ranges_are_exact")
class IncludesTheEnd(MemoryStore):
    """Returns one byte too many.

    `bytes=0-10` are eleven bytes: HTTP's ranges include their end, Python's do not.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.length:
            span = replace(span, length=span.length + 1)
        return await super().get(key, span)


@bug("ranges_are_exact")
class ReadsSuffixesFromTheFront(MemoryStore):
    """Returns the first bytes if the last ones are requested.

    Azure has no suffix ranges: `offset=0, length=n` was somebody's substitute.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key, Span(0, span.length) if isinstance(span, Suffix) else span)


@bug("ranges_are_exact")
class AllocatesTheRange(MemoryStore):
    """Allocates all requested bytes before it reads.

    `bytearray(length)` and `readinto`: a range of a tebibyte ends the process.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if span is not None and span.length > 1 << 34:
            raise MemoryError(span.length)  # as a machine with limited memory does
        return await super().get(key, span)


@bug("ranges_are_exact")
class RefusesWhatLiesBeyond(MemoryStore):
    """Fails if a range begins at or beyond the end.

    The server answers 416, which is translated like any other refusal.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and key in self.objects and span.start >= len(self.objects[key]):
            raise TryAgain("416 Range Not Satisfiable")
        return await super().get(key, span)


@bug("ranges_are_exact")
class IgnoresRanges(MemoryStore):
    """Returns the whole object for any requested range.

    A server or proxy may answer 200 to a range, and the client does not check the status.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key)


@bug("ranges_are_exact")
class ReturnsItsBuffer(MemoryStore):
    """Returns a `bytearray`.

    A client collects a reply in it; it can still change, and it is not hashable.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return bytearray(await super().get(key, span))  # type: ignore[return-value]


@bug("hints_change_no_byte")
class ReturnsWhatFollows(MemoryStore):
    """Returns the span and everything that follows it.

    One request for both, and nobody cuts its reply.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.follows:
            span = Span(span.start, span.length + span.follows)
        return await super().get(key, span)


@bug("hints_change_no_byte")
class ReadsOn(MemoryStore):
    """Returns the next bytes of an open reply, wherever the read begins.

    The reply is looked up by its key, and where it has got to is not compared.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.replies: dict[str, int] = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span):
            at = self.replies.pop(key, span.start)
            if span.follows:
                self.replies[key] = at + span.length
            span = Span(at, span.length)
        return await super().get(key, span)


@bug("bytes_that_were_read_never_change")
class ReusesItsBuffer(MemoryStore):
    """Returns a view of memory that the next read fills again.

    Fresh memory is slow, so a client keeps one buffer for all of its replies.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer = bytearray(2**20)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:  # type: ignore[override]
        data = await super().get(key, span)
        if len(data) > len(self.buffer):
            return data
        self.buffer[: len(data)] = data
        return memoryview(self.buffer)[: len(data)].toreadonly()


@bug("ranges_are_exact")
class RefusesRangesOfNothing(MemoryStore):
    """Fails if a range of an empty object is requested.

    S3 answers 416 to every range of an empty object, also to a suffix.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if span is not None and self.objects.get(key) == b"":
            raise TryAgain("416 Range Not Satisfiable")
        return await super().get(key, span)


@bug("ranges_are_never_negative")
class CountsFromTheEnd(MemoryStore):
    """Reads a negative start as Python does.

    `data[start:start + length]` without a look at the numbers.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and min(span.start, span.length) < 0:
            return (await super().get(key))[span.start : span.start + span.length]
        return await super().get(key, span)


@bug("absence_is_an_error")
class ReturnsEmpty(MemoryStore):
    """Reads an absent object as an empty one.

    `response.get("Body", b"")`, or an `except` around too much.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(key, span)
        except NotFound:
            return b""


@bug("absence_is_an_error")
class LetsTheSdkSpeak(MemoryStore):
    """Raises the error of the library beneath it.

    A `FileNotFoundError`, `KeyError` or `ClientError` that nobody translated.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(key, span)
        except NotFound as absent:
            raise FileNotFoundError(key) from absent


@bug("absence_is_an_error")
class DeniesTheAbsent(MemoryStore):
    """Reports an absent object as forbidden.

    S3 answers 403 instead of 404 to a client that may not list the bucket.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(key, span)
        except NotFound as absent:
            raise Denied(f"{key} may not be read") from absent


@bug("reading_an_empty_place_writes_nothing")
class MakesItsPlace(MemoryStore):
    """Stores a marker when it is first read.

    `makedirs(exist_ok=True)` and its like for buckets: a mistyped URL becomes a new, empty place.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        self.objects.setdefault("placeholder", b"")
        async for row in super().list(prefix, after=after):
            yield row


@bug("reads_are_never_stale")
class CachesReads(MemoryStore):
    """Returns cached bytes of an earlier read.

    An HTTP cache on the way: GCS lets caches keep public objects for an hour unless told otherwise.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.read: dict[object, bytes] = getattr(self, "read", {})
        if (key, span) not in self.read:
            self.read[key, span] = await super().get(key, span)
        return self.read[key, span]


@bug("reads_are_never_stale")
class CachesAbsence(MemoryStore):
    """Remembers that an object was absent.

    In S3 before December 2020, a read of a key before its write made it absent for a while.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.absent: set[str] = getattr(self, "absent", set())
        if key in self.absent:
            raise NotFound(key)
        try:
            return await super().get(key, span)
        except NotFound:
            self.absent.add(key)
            raise


@bug("stored_checksums_are_true")
class SumsTheParts(MemoryStore):
    """Keeps a checksum, but not of the object's bytes.

    The checksum of a multipart object is, in S3, one over the checksums of its parts.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        return crc32c(crc32c(await self.get(key)).to_bytes(4, "big"))


@bug("stored_checksums_are_of_what_replaced_an_object")
class KeepsOldChecksums(MemoryStore):
    """Keeps the checksum of the first object under the key.

    A checksum in user metadata or in a column of its own, which a later put does not touch.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self.sums: dict[str, int] = getattr(self, "sums", {})
        self.sums.setdefault(key, crc32c(self.objects[key]))

    async def stored_crc32c(self, key: str) -> int | None:
        return getattr(self, "sums", {}).get(key)


# Deletions


@bug("deletion_is_idempotent")
class MissesTheDeleted(MemoryStore):
    """Reports that there was nothing to delete.

    `os.remove` and GCS raise for an absent object; S3 does not.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key not in self.objects:
                raise NotFound(key)
        await super().delete(keys)


@bug("deletion_is_idempotent")
class DeletesTheFolder(MemoryStore):
    """Deletes everything below a key as well.

    `fs.rm(key, recursive=True)`, or a delete by prefix.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(
            [each for each in self.objects for key in keys if f"{each}/".startswith(f"{key}/")]
        )


@bug("deletion_takes_any_number_of_keys")
class DeletesOneBatch(MemoryStore):
    """Deletes only as many keys as fit into one request.

    S3's `DeleteObjects` takes 1,000 keys, Azure's batch 256.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys[:PAGE_KEYS])


@bug("deletion_is_done_when_it_returns")
class SwallowsDeleteErrors(MemoryStore):
    """Ignores the errors of a batch deletion.

    `DeleteObjects` answers 200 and lists `Errors` in the body; characters that break its XML are one reason.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([key for key in keys if not set(key) & set("&<>")])


# Keys


@bug("keys_are_checked")
class ChecksOnlyPuts(MemoryStore):
    """Takes any key for an upload in parts.

    Only the methods that were written first have the check.
    """

    async def start_upload(self, key: str) -> Upload:
        return await super().start_upload("key")


@bug("keys_are_checked")
class LeavesTheRoot(MemoryStore):
    """Normalizes a key with dots as a path.

    `root / key` over a file system: `../x` is outside the store.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(posixpath.normpath(key) if ".." in key else key, body)


@bug("keys_are_taken_as_they_are")
class DecodesTwice(MemoryStore):
    """Decodes a key once more than it was encoded.

    `encoding-type=url` in a listing, decoded by the SDK and then again; `a%2Fb` becomes `a/b`.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(unquote(key), body)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(unquote(key), span)


@bug("keys_are_taken_as_they_are")
class ReadsPlusAsSpace(MemoryStore):
    """Takes `+` for a space.

    `unquote_plus` is applied to a path, but its rule is for forms only.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(unquote_plus(key) if "+" in key else key, body)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(unquote_plus(key) if "+" in key else key, span)


@bug("keys_that_look_alike_differ")
class FoldsCase(MemoryStore):
    """Does not distinguish upper and lower case.

    The file systems of Windows and macOS; a database column with a collation.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key.casefold(), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key.casefold(), span)


@bug("keys_that_look_alike_differ")
class NormalizesUnicode(MemoryStore):
    """Does not distinguish the Unicode forms of a letter.

    HFS+ does, and several gateways that pass through a file system.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(unicodedata.normalize("NFC", key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(unicodedata.normalize("NFC", key), span)


@bug("keys_may_be_long")
class CutsLongKeys(MemoryStore):
    """Keeps the first 255 characters of a key.

    `VARCHAR(255)` on a server that cuts instead of refusing; the limit of a file's name for the whole key.
    """

    async def create(self, key: str, data: bytes) -> None:
        await super().create(key[:255].rstrip("/"), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key[:255].rstrip("/"), span)


# Uploads


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


@bug("uploads_are_whole")
class JoinsPartsAsTheyCame(MemoryStore):
    """Joins the parts in order of arrival.

    Each finished part is appended to the list for the last request.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Parts(self, check_key(key))


@bug("uploads_take_a_part_again")
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


@bug("uploads_may_be_short")
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


@bug("uploads_replace_whole")
class UploadsInPlace(MemoryStore):
    """Removes the object before its upload is complete.

    The parts are written directly into the file of that name.
    """

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        if key in self.objects:
            self.objects[key] = b""
        return upload


@bug("an_aborted_upload_leaves_nothing")
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


@bug("uploads_lack_no_part")
class JoinsWhatIsThere(MemoryStore):
    """Completes an upload with a missing part.

    The stored parts are listed and joined: S3 does not require consecutive numbers.
    Our own backends for S3 and Azure did this before the clause was written.
    """

    async def start_upload(self, key: str) -> Upload:
        return KeepsBothParts._Sorted(self, check_key(key))


@bug("uploads_of_one_key_do_not_mix")
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


@bug("unfinished_uploads_can_be_forgotten")
class TellsAndForgetsNothing(MemoryStore):
    """Lists unfinished uploads, and does not abort them.

    The optional method was forgotten, and the port's default does nothing.
    """

    async def abort_upload(self, upload: Unfinished) -> None:
        return


@bug("uploads_are_as_declared")
class HidesUploads(MemoryStore):
    """Declares that it has no multipart uploads, and accepts them.

    The declaration was copied from another backend and never checked.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False)


@bug("uploads_are_as_declared")
class PromisesUploads(MemoryStore):
    """Declares multipart uploads, and refuses them.

    The declaration was written first, and the method never.
    """

    async def start_upload(self, key: str) -> Upload:
        check_key(key)
        raise Misuse("uploads in parts: not yet")


# Manners


@bug("capabilities_do_not_change")
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


@bug("closing_is_idempotent")
class ClosesOnce(MemoryStore):
    """Fails when it is closed for the second time.

    `self._session = None` after closing, and no look at it before.
    """

    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise RuntimeError("the session is closed")
        self.closed = True


@bug("closing_leaves_other_clients_alone")
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


@bug("the_url_names_the_place")
class NamesItself(MemoryStore):
    """Has another url for each client.

    The `repr` of a session in it, or a temporary token.
    """

    def __init__(self, *, objects: dict[str, bytes]) -> None:
        super().__init__(objects=objects, name=str(uuid4()))


@bug("the_url_carries_no_credentials")
class TellsThePassword(MemoryStore):
    """Shows the password in its url.

    The user's URL is returned unchanged, and gets into every log.
    """

    @property
    def url(self) -> str:
        return "memory://user:hunter2@place"


@bug("calls_may_overlap")
class KeepsTheReplyInItself(MemoryStore):
    """Keeps the key of a request in the client until the reply is there.

    A client was written for one thread, and all concurrent calls share its attributes.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.asked = key
        await asyncio.sleep(0)
        return await super().get(self.asked, span)


@bug("calls_do_not_hold_up_the_loop")
class BlocksTheLoop(MemoryStore):
    """Waits for the store on the event loop's own thread.

    boto3, requests or sqlite3 called from an `async def`.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        time.sleep(0.3)  # noqa: ASYNC251 - this is the bug
        return await super().get(key, span)
