"""Mistakes in puts, creates, deletes and uploads, of the second set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from newcomers.late import windows
from newcomers.proofs import names as keys
from newcomers.proofs import raises
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory, SummedMemory
from offload.contracts.store import Body, Listed, Span, Suffix, Unfinished, Upload, check_key
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, Misuse, NotFound
from offload.store.memory import _MemoryUpload


async def shows_shared_scratch_buffer(open_: Open) -> None:
    store = open_()
    await asyncio.gather(
        store.put("a", windows(b"1" * 9, b"2" * 9)), store.put("b", windows(b"3" * 9, b"4" * 9))
    )
    assert (await store.get("a"), await store.get("b")) == (b"1" * 9 + b"2" * 9, b"3" * 9 + b"4" * 9)


@bug(shows_shared_scratch_buffer)
class SharedScratchBuffer(SharedMemory):
    """Windows are gathered in one buffer per client, allocated once "to save allocations": concurrent puts
    mix.

    Breaks "methods may be called at the same time", "Puts are whole".
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._buffer = bytearray()

    async def put(self, key: str, body: Body) -> None:
        self._buffer.clear()
        async for window in body.windows():
            self._buffer += window
        data = bytes(self._buffer)
        if len(data) != body.size_bytes:
            raise Misuse(f"the body of {key!r} has {len(data)} bytes")
        await super().put(key, Body.of(data))


async def shows_stops_at_announced_size(open_: Open) -> None:
    store, body = open_(), windows(b"12345", b"67")
    await raises(Misuse, store.put("a", Body(size_bytes=5, windows=body.windows)))


@bug(shows_stops_at_announced_size)
class StopsAtAnnouncedSize(SharedMemory):
    """`put` stops reading windows at `size_bytes`, so it cuts a longer body without an error.

    Breaks "`Misuse` is also raised for ... a body whose windows are not `size_bytes` long". As with a
    Content-Length that the HTTP client obeys.
    """

    async def put(self, key: str, body: Body) -> None:
        data = bytearray()
        async for window in body.windows():
            data += window
            if len(data) >= body.size_bytes:
                break
        if len(data) < body.size_bytes:
            raise Misuse("short")
        await super().put(key, Body.of(bytes(data[: body.size_bytes])))


async def shows_same_bytes_created_twice(open_: Open) -> None:
    await open_().create("a", b"same")
    await raises(AlreadyExists, open_().create("a", b"same"))


@bug(shows_same_bytes_created_twice)
class SameBytesCreatedTwice(SharedMemory):
    """`create` succeeds if the key already has the same bytes: "it may be our own retry".

    Breaks "exactly one succeeds", "Raises `AlreadyExists` also where an earlier request of the caller's own
    ... did land".
    """

    async def create(self, key: str, data: bytes) -> None:
        try:
            await super().create(key, data)
        except AlreadyExists:
            if self.objects.get(key) != data:
                raise


async def shows_deleted_stays_taken(open_: Open) -> None:
    store = open_()
    await store.create("a", b"1")
    await store.delete(["a"])
    await store.create("a", b"2")


@bug(shows_deleted_stays_taken)
class DeletedStaysTaken(SharedMemory):
    """Deletion marks a row and leaves it, so the primary key refuses a create of a deleted key for ever.

    Breaks "Store a small object if the key is absent".
    """

    async def create(self, key: str, data: bytes) -> None:
        check_key(key)
        if key in self.kept and key not in self.objects:
            raise AlreadyExists(key)
        await super().create(key, data)

    async def delete(self, keys: Sequence[str]) -> None:
        self.kept.update((key, 1) for key in keys if key in self.objects)
        await super().delete(keys)


async def shows_write_behind(open_: Open) -> None:
    one, two = open_(), open_()
    await one.put("a", Body.of(b"1"))
    assert await keys(two) == ["a"]


@bug(shows_write_behind)
class WriteBehind(SharedMemory):
    """`put` of small objects is buffered in the client, and flushed before its next reading or at `aclose`.

    Breaks "Puts are durable", "Listing is strong": another client does not see what was put. As a buffered
    producer, or NFS with `async`.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._pending = {}

    async def put(self, key: str, body: Body) -> None:
        if body.size_bytes > 4096:
            self._pending.pop(key, None)
            await super().put(key, body)
            return
        check_key(key)
        data = b"".join([w async for w in body.windows()])
        if len(data) != body.size_bytes:
            raise Misuse("size")
        self._pending[key] = data

    def _flush(self) -> None:
        self.objects.update(self._pending)
        self._pending.clear()

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self._flush()
        return await super().get(key, span)

    async def create(self, key: str, data: bytes) -> None:
        self._flush()
        await super().create(key, data)

    async def delete(self, keys: Sequence[str]) -> None:
        self._flush()
        await super().delete(keys)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        self._flush()
        async for row in super().list(prefix, after=after):
            yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        self._flush()
        async for row in super().level(prefix):
            yield row

    async def aclose(self) -> None:
        self._flush()


async def shows_delete_checks_as_it_goes(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(b"1"))
    await raises(Misuse, store.delete(["a", "../b"]))
    assert await keys(store) == ["a"]


@bug(shows_delete_checks_as_it_goes)
class DeleteChecksAsItGoes(SharedMemory):
    """`delete` checks each key just before it removes it, so valid keys before an invalid one are deleted.

    Breaks "A key that is no key raises `Misuse` and touches nothing."
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            await super().delete([key])


async def shows_delete_twice_named(open_: Open) -> None:
    store = open_()
    await store.put("a", Body.of(b"1"))
    await store.delete(["a", "a"])


@bug(shows_delete_twice_named)
class DeleteTwiceNamed(SharedMemory):
    """A key that is named twice in one call is looked up once and popped twice: `KeyError`.

    Breaks "Deleting what is absent succeeds." It checks all keys before it removes the first.
    """

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await asyncio.sleep(0)
        for key in [key for key in keys if key in self.objects]:
            del self.objects[key]


class OwnUpload(SharedMemory):
    UPLOAD = _MemoryUpload

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        self._unfinished[upload._id] = mine = self.UPLOAD(self, key, upload._id)
        return mine


class AppendsParts(_MemoryUpload):
    async def put_part(self, number: int, data: bytes) -> None:
        again = self._parts.get(number, b"")
        await super().put_part(number, data)
        self._parts[number] = again + self._parts[number]

    async def complete(self) -> None:
        try:
            await super().complete()
        except Misuse as exc:
            if "different sizes" not in str(exc):
                raise
            await self._store.put(self.key, Body.of(b"".join(self._parts[n] for n in sorted(self._parts))))
            self._end()


async def shows_repeated_part_doubles(open_: Open) -> None:
    upload = await open_().start_upload("a")
    for _ in range(2):
        await upload.put_part(1, b"1")
    await upload.complete()
    assert await open_().get("a") == b"1"


@bug(shows_repeated_part_doubles)
class RepeatedPartDoubles(OwnUpload):
    """A part that is put again is appended to itself.

    Breaks "each number once or again with the same bytes".

    Parts are temporary files opened with "ab"; a retry after a timeout doubles one.
    """

    UPLOAD = AppendsParts


class DiesOfFailure(_MemoryUpload):
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


async def shows_abort_after_failure(open_: Open) -> None:
    upload = await open_().start_upload("a")
    await upload.put_part(2, b"1")
    await raises(Misuse, upload.complete())
    await upload.abort()


@bug(shows_abort_after_failure)
class AbortAfterFailure(OwnUpload):
    """The server ends an upload if it refuses its completion, and the following abort gets NoSuchUpload.

    Breaks "Idempotent; also right after a failed `complete`."
    """

    UPLOAD = DiesOfFailure


async def shows_upload_started_seconds(open_: Open) -> None:
    store = open_()
    await store.start_upload("a")
    [one] = await store.unfinished_uploads("")
    assert one.started_ms > 10**12


@bug(shows_upload_started_seconds)
class UploadStartedSeconds(SharedMemory):
    """`started_ms` is the seconds of the SDK's `datetime`: each upload seems to be from 1970 and due for a
    sweep.

    Breaks "Milliseconds since 1970, by the store's clock."
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        return [
            Unfinished(each.key, each.upload_id, each.started_ms // 1000)
            for each in await super().unfinished_uploads(prefix)
        ]


class StaysListed(_MemoryUpload):
    async def complete(self) -> None:
        await super().complete()
        self._store._unfinished[self._id] = self


async def shows_completed_stays_listed(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("a")
    await upload.put_part(1, b"1")
    await upload.complete()
    assert not await store.unfinished_uploads("")


@bug(shows_completed_stays_listed)
class CompletedStaysListed(OwnUpload):
    """An upload that was completed stays among the unfinished ones, as its row is only removed by `abort`.

    Breaks `Unfinished`, "neither completed nor aborted". Minio issue 21456 is of the other half.
    """

    UPLOAD = StaysListed


async def shows_composite_checksum(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("a")
    await upload.put_part(1, b"12")
    await upload.put_part(2, b"3")
    await upload.complete()
    assert await store.stored_crc32c("a") in (None, crc32c(b"123"))


@bug(shows_composite_checksum)
class CompositeChecksum(SummedMemory):
    """For an object uploaded in parts the server keeps a CRC of its parts' CRCs, and the client returns it.

    Breaks "Where `stored_crc32c` returns a number, it is the object's CRC-32C." S3's COMPOSITE type.
    """

    async def stored_crc32c(self, key: str) -> int | None:
        check_key(key)
        return self.kept.get(key) or await super().stored_crc32c(key)

    async def put(self, key: str, body: Body) -> None:
        self.kept.pop(key, None)
        await super().put(key, body)

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        store = self

        class Summing(type(upload)):
            async def complete(self) -> None:
                parts = [self._parts[n] for n in sorted(self._parts)]
                await super().complete()
                store.kept[self.key] = crc32c(b"".join(crc32c(part).to_bytes(4) for part in parts))

        self._unfinished[upload._id] = mine = Summing(self, key, upload._id)
        return mine
