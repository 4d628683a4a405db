"""Bugs of reads: wrong ranges, stale bytes, absent objects, and checksums that are not true."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

from offload.contracts.store import Body, Buffer, Listed, Span, Suffix, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import Denied, Misuse, NotFound, TryAgain
from offload.store.memory import MemoryStore
from offload.store.spans import clip
from offload.store.wrap import UploadDecorator
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound import proofs
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.proofs import data_of, fill, raises
from offload_conformance.bugs.sound.service import ServiceStore
from offload_conformance.bugs.sound.views import filled, listed
from offload_conformance.bugs.sound.wrappers import same


@bug("store/ranges_are_exact")
class PadsRanges(MemoryStore):
    """Always returns as many bytes as were requested.

    A buffer of the requested size is filled as far as the object goes, and returned whole.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        return data.ljust(min(span.length, 1000), b"\0") if span else data


@bug("store/ranges_are_exact")
class IncludesTheEnd(MemoryStore):
    """Returns one byte too many.

    `bytes=0-10` are eleven bytes: HTTP's ranges include their end, Python's do not.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.length:
            span = replace(span, length=span.length + 1)
        return await super().get(key, span)


@bug("store/ranges_are_exact")
class ReadsSuffixesFromTheFront(MemoryStore):
    """Returns the first bytes if the last ones are requested.

    Azure has no suffix ranges: `offset=0, length=n` was somebody's substitute.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key, Span(0, span.length) if isinstance(span, Suffix) else span)


@bug("store/ranges_are_exact")
class AllocatesTheRange(MemoryStore):
    """Allocates all requested bytes before it reads.

    `bytearray(length)` and `readinto`: a range of a tebibyte ends the process.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if span is not None and span.length > 1 << 34:
            raise MemoryError(span.length)  # as a machine with limited memory does
        return await super().get(key, span)


@bug("store/ranges_are_exact")
class RefusesWhatLiesBeyond(MemoryStore):
    """Fails if a range begins at or beyond the end.

    The server answers 416, which is translated like any other refusal.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and key in self.objects and span.start >= len(self.objects[key]):
            raise TryAgain("416 Range Not Satisfiable")
        return await super().get(key, span)


@bug("store/ranges_are_exact")
class IgnoresRanges(MemoryStore):
    """Returns the whole object for any requested range.

    A server or proxy may answer 200 to a range, and the client does not check the status.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key)


@bug("store/ranges_are_exact")
class ReturnsItsBuffer(MemoryStore):
    """Returns a `bytearray`.

    A client collects a reply in it; it can still change, and it is not hashable.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return bytearray(await super().get(key, span))  # type: ignore[return-value]  # the bug


@bug("store/hints_change_no_byte")
class ReturnsWhatFollows(MemoryStore):
    """Returns the span and everything that follows it.

    One request for both, and nobody cuts its reply.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.follows:
            span = Span(span.start, span.length + span.follows)
        return await super().get(key, span)


@bug("store/hints_change_no_byte")
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


@bug("store/bytes_that_were_read_never_change")
class ReusesItsBuffer(MemoryStore):
    """Returns a view of memory that the next read fills again.

    Fresh memory is slow, so a client keeps one buffer for all of its replies.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.buffer = bytearray(2**20)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:  # type: ignore[override]  # the bug
        data = await super().get(key, span)
        if len(data) > len(self.buffer):
            return data
        self.buffer[: len(data)] = data
        return memoryview(self.buffer)[: len(data)].toreadonly()


@bug("store/ranges_are_exact")
class RefusesRangesOfNothing(MemoryStore):
    """Fails if a range of an empty object is requested.

    S3 answers 416 to every range of an empty object, also to a suffix.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if span is not None and self.objects.get(key) == b"":
            raise TryAgain("416 Range Not Satisfiable")
        return await super().get(key, span)


@bug("store/ranges_are_never_negative")
class CountsFromTheEnd(MemoryStore):
    """Reads a negative start as Python does.

    `data[start:start + length]` without a look at the numbers.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and min(span.start, span.length) < 0:
            return (await super().get(key))[span.start : span.start + span.length]
        return await super().get(key, span)


@bug("store/absence_is_an_error")
class ReturnsEmpty(MemoryStore):
    """Reads an absent object as an empty one.

    `response.get("Body", b"")`, or an `except` around too much.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(key, span)
        except NotFound:
            return b""


@bug("store/absence_is_an_error")
class LetsTheSdkSpeak(MemoryStore):
    """Raises the error of the library beneath it.

    A `FileNotFoundError`, `KeyError` or `ClientError` that nobody translated.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(key, span)
        except NotFound as absent:
            raise FileNotFoundError(key) from absent


@bug("store/absence_is_an_error")
class DeniesTheAbsent(MemoryStore):
    """Reports an absent object as forbidden.

    S3 answers 403 instead of 404 to a client that may not list the bucket.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        try:
            return await super().get(key, span)
        except NotFound as absent:
            raise Denied(f"{key} may not be read") from absent


@bug("store/reading_an_empty_place_writes_nothing")
class MakesItsPlace(MemoryStore):
    """Stores a marker when it is first read.

    `makedirs(exist_ok=True)` and its like for buckets: a mistyped URL becomes a new, empty place.
    """

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        self.objects.setdefault("placeholder", b"")
        async for row in super().list(prefix, after=after):
            yield row


@bug("store/reads_are_never_stale")
class CachesReads(MemoryStore):
    """Returns cached bytes of an earlier read.

    An HTTP cache on the way: GCS lets caches keep public objects for an hour unless told otherwise.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.read: dict[object, bytes] = getattr(self, "read", {})
        if (key, span) not in self.read:
            self.read[key, span] = await super().get(key, span)
        return self.read[key, span]


@bug("store/reads_are_never_stale")
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


@bug("store/stored_checksums_are_true")
class SumsTheParts(MemoryStore):
    """Keeps a checksum, but not of the object's bytes.

    The checksum of a multipart object is, in S3, one over the checksums of its parts.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        return crc32c(crc32c(await self.get(key)).to_bytes(4, "big"))


@bug("store/stored_checksums_are_of_what_replaced_an_object")
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


@bug("store/ranges_are_exact_at_every_border")
class ReadsOneBuffer(MemoryStore):
    """Returns at most 64 KiB of a range.

    A single `recv` or `read` returns only the bytes that have arrived.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        return data if span is None else data[: 2**16]


@bug("store/ranges_are_exact_at_every_border")
class LosesAByteBetweenBlocks(MemoryStore):
    """Leaves out the byte at 4 MiB if a range includes it.

    A range is fetched in blocks with inclusive ends, and the next block begins one byte too late.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        start, end = clip(span, len(self.objects[key]))
        at = 4 * 2**20 - start
        return data[:at] + data[at + 1 :] if start < 4 * 2**20 < end else data


@bug("store/ranges_are_exact")
class ReadsAllForNothing(MemoryStore):
    """Returns the whole object for an empty range that does not begin at 0.

    `bytes=3-2` is not a valid range, and a server ignores an invalid one.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.start > 0 and span.length == 0:
            span = None
        return await super().get(key, span)


@bug("store/ranges_are_exact")
class CutsTheStart(MemoryStore):
    """Stores the beginning of a range in 32 bits.

    `unsigned int`, or `>>> 0`: a range far beyond the end reads from the beginning.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.start > 0:
            span = Span(span.start & 0xFFFFFFFF, span.length)
        return await super().get(key, span)


@bug("store/stored_checksums_are_true")
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


@bug("store/ranges_are_exact")
class OffsetsHaveASign(MemoryStore):
    """Fails for a span that begins or ends at 2**63 or later.

    A number is packed into an `int64`, or given to a database or a system call.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        match span:
            case Span(start, length):
                start.to_bytes(8, "big", signed=True), length.to_bytes(8, "big", signed=True)
        return await super().get(key, span)


@bug("store/hints_change_no_byte")
class ReadsAheadByPosition(MemoryStore):
    """Keeps what it read ahead by its position alone, and returns it for another key.

    A buffer of one reader, kept by a client that many readers share.
    """

    ahead: tuple[int, bytes] = 0, b""

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Span) and span.length and self.ahead[0] == span.start:
            _, kept = self.ahead
            if len(kept) >= span.length:
                return kept[: span.length]
        read = await super().get(key, span)
        if isinstance(span, Span) and span.follows:
            end = span.start + span.length
            self.ahead = end, await super().get(key, Span(end, span.follows))
        return read


@bug("store/ranges_are_exact_at_every_border")
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


@bug("store/bytes_that_were_read_never_change")
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


@bug("store/stored_checksums_are_true")
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


@bug("store/stored_checksums_are_of_what_replaced_an_object")
class SumsByKeyAndSize(MemoryStore):
    """Remembers checksums by key and size.

    A cache whose key lacks what changes at each write.
    """

    sums: dict[tuple[int, str, int], int] = {}

    async def stored_crc32c(self, key: str) -> int | None:
        data = await self.get(key)
        return self.sums.setdefault((id(self.objects), key, len(data)), crc32c(data))


@bug("store/reads_are_never_stale")
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


@bug("store/reads_are_never_stale")
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


async def shows_last_nothing_is_all(open_: OpenClient) -> None:
    store = open_()
    await store.put("a", Body.of(b"123"))
    assert await store.get("a", Suffix(0)) == b""


@bug("store/ranges_are_exact", shows_last_nothing_is_all)
class LastNothingIsAll(SharedMemory):
    """`Suffix(0)` becomes `data[-0:]`, which is everything.

    Breaks "The last `length` bytes of an object".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if isinstance(span, Suffix) and span.length == 0:
            span = None
        return await super().get(key, span)


async def shows_remembered_size(open_: OpenClient) -> None:
    one, two = open_(), open_()
    await one.put("a", Body.of(b"1"))
    await two.get("a", Span(0, 9))
    await one.put("a", Body.of(b"12"))
    assert await two.get("a", Span(0, 9)) == b"12"


@bug("store/reads_are_never_stale", shows_remembered_size)
class RememberedSize(SharedMemory):
    """A client remembers the size of each object to clip spans. After another client replaces the object, the
    old end still clips them.

    Breaks "clipped at the object's end". s3fs-fuse issue 1852.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._sizes: dict[str, int] = {}

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key)
        size = self._sizes.setdefault(key, len(data))
        if span is None:
            return data
        start, end = clip(span, min(size, len(data)))
        return data[start:end]

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        self._sizes.pop(key, None)

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        for key in keys:
            self._sizes.pop(key, None)


async def _a_folder_is_absent(open_: OpenClient) -> None:
    store = open_()
    await filled(store, ["a/b"])
    await raises(NotFound, store.get("a"))
    await store.delete(["a"])
    assert await listed(store) == ["a/b"]


@bug("store/absence_is_an_error", _a_folder_is_absent)
class FolderIsDenied(SharedMemory):
    """A read of what is a folder raises an error of permission, as Windows has it, and it is passed on.

    Breaks "Reading an absent key raises `NotFound`". Costs a caller that asks whether a key is there: a
    person is told to grant something.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if any(each.startswith(f"{check_key(key)}/") for each in self.objects) and key not in self.objects:
            raise Denied(f"{self.url}: {key!r}: Permission denied")
        return await super().get(key, span)


T = TypeVar("T")


@bug("store/ranges_are_exact", same(lambda store: store.get("k", Suffix(10)), b"", before={"k": b""}))
class SuffixOfNothing(SharedMemory):
    """The server refuses a suffix of an empty object (status 416), and the client takes that for a wrong
    call.

    Breaks "The last `length` bytes of an object, or the whole object if it is shorter". Costs a reader that
    begins at the end of an object: an empty one stops it.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        if isinstance(span, Suffix) and self.objects.get(key) == b"":
            raise Misuse(f"{key!r}: the range cannot be satisfied")
        return data


async def _errors_are_ours(open_: OpenClient) -> None:
    store = open_()
    await fill(store, ["k"])
    for _ in range(200):
        with suppress(TryAgain):
            assert await store.get("k") == b"x"


@bug("store/bytes_that_were_read_never_change", _errors_are_ours)
class ResetIsNotTranslated(ServiceStore):
    """The server closes a connection after 60 requests, and the error of the socket reaches the caller.

    Breaks "Every method may raise `TryAgain`, `OutcomeUnknown` (mutations), `Denied` or `NoSpace`", and no
    other. Costs the retries of the framework, which know only these.
    """

    asked = 0

    async def ask(self, request: Callable[..., T], *arguments: Any) -> T:
        self.asked += 1
        if self.asked % 60 == 0:
            await asyncio.sleep(0)
            raise ConnectionResetError("connection reset by peer")
        return await super().ask(request, *arguments)


class _Manual(ServiceStore):
    """Takes and returns connections by hand."""

    async def take(self) -> None:
        await self.connections.acquire()
        await asyncio.sleep(0)

    def give(self) -> None:
        self.connections.release()


@bug("store/absence_is_an_error", proofs.many_times(lambda store, number: store.get(f"absent/{number}"), 40))
class ConnectionIsKeptWhenAbsent(_Manual):
    """A connection goes back to the pool only with a reply that has a body: sixteen absent keys use up the
    pool.

    Breaks "Reading a key that is not there raises `NotFound`", the seventeenth time: the call waits for ever.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        check_key(key)
        await self.take()
        data = self.service.get(key, span)
        if data is None:
            raise NotFound(key)
        self.give()
        return data


@bug("store/bytes_that_were_read_never_change", proofs.reads(10, Suffix(11)))
class SuffixLongerThanTheObjectIsEmpty(ServiceStore):
    """The service refuses a suffix longer than the object, and the client treats that as beyond the end.

    Breaks "The last `length` bytes of an object, or all of it": a small fragment's tail cannot be found.
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        return b"" if isinstance(span, Suffix) and len(data) < span.length else data


@bug("store/ranges_are_exact_at_every_border", proofs.reads(10, Span(0, 1)))
class FirstByteIsEverything(ServiceStore):
    """The last byte of a span is sent, and zero means "to the end": a span of the first byte reads
    everything.

    Breaks "Ranges are exact".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key, None if span == Span(0, 1) else span)


async def _checksum_of(open_: OpenClient, sizes: Sequence[int] = tuple(range(20))) -> None:
    store = open_()
    for size in sizes:
        await store.put("k", Body.of(data_of(size, size)))
        assert await store.stored_crc32c("k") == crc32c(data_of(size, size)), size
    with suppress(NotFound):
        assert await store.stored_crc32c("absent") is None


@bug("store/stored_checksums_are_of_what_replaced_an_object", _checksum_of)
class ChecksumHasASign(ServiceStore):
    """The checksum is unpacked with a sign (`>i`): half of them are negative.

    Breaks "Where `stored_crc32c` returns a number, it is the object's CRC-32C": sound objects are called
    damaged.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        stored = await super().stored_crc32c(key)
        assert stored is not None
        return stored - 2**32 if stored >= 2**31 else stored
