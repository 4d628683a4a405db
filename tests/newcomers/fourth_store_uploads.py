"""Fourth set, stores: uploads in parts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from newcomers.fourth_sound import Client, Wrapped
from newcomers.proofs import raises
from newcomers.registry import Open, bug
from newcomers.service import ServiceUpload
from newcomers.sound import SharedMemory
from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.store import Body, Unfinished, Upload, check_key
from offload.ground.errors import Misuse


async def _one_of_two_is_aborted(open_: Open) -> None:
    store = open_()
    one, two = await store.start_upload("k"), await store.start_upload("k")
    await two.put_part(1, b"two")
    [first, _] = await store.unfinished_uploads("k")
    await store.abort_upload(first)
    await two.complete()
    assert await store.get("k") == b"two"
    await one.abort()


@bug(_one_of_two_is_aborted)
class AbortsByKey(SharedMemory):
    """An unfinished upload is aborted by its key, with every other upload of it.

    Breaks "Discard an unfinished upload that any process began": that one alone. Costs a writer at work its
    parts, because somebody else had crashed on the same key.
    """

    async def abort_upload(self, upload: Unfinished) -> None:
        for each in [*self._unfinished.values()]:
            if each.key == upload.key:
                await each.abort()


async def _many_parts(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    for number in range(1, 301):
        await upload.put_part(number, number.to_bytes(2, "big"))
    await upload.complete()
    assert await store.get("k") == b"".join(number.to_bytes(2, "big") for number in range(1, 301))


@bug(_many_parts)
class PartNumbersInAByte(SharedMemory):
    """The number of a part is kept in one byte, and part 257 is part 1 again.

    Breaks "with its parts in the order of their numbers". Costs the first parts of a large object, which the
    last ones replace.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        class Bytes(Wrapped):
            async def put_part(self, number: int, data: bytes) -> None:
                await self.upload.put_part((number - 1) % 256 + 1 if number > 0 else number, data)

        return Bytes(await super().start_upload(key, metadata=metadata))


async def _the_last_part_comes_first(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(3, b"three")
    await upload.put_part(1, b"part one")
    await upload.put_part(2, b"part two")
    await upload.complete()
    assert await store.get("k") == b"part onepart twothree"


@bug(_the_last_part_comes_first)
class PlacedByTheFirstThatCame(SharedMemory):
    """Parts are written into one file at their place, computed from the size of the part that came first.

    Breaks "Parts may be put in any order and at the same time". Costs an object whose last, shorter part came
    first: its parts overlap.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        store = self

        class Placed(Wrapped):
            step = 0
            file = b""

            async def put_part(self, number: int, data: bytes) -> None:
                await self.upload.put_part(number, data)
                self.step = self.step or len(data)
                at = (number - 1) * self.step
                self.file = self.file[:at].ljust(at, b"\0") + data + self.file[at + len(data) :]

            async def complete(self) -> None:
                await self.upload.complete()
                if self.file:
                    await store.put(key, Body.of(self.file, metadata=metadata))

        return Placed(await super().start_upload(key, metadata=metadata))


async def _prefix_within_a_name(open_: Open) -> None:
    store = open_()
    await store.start_upload("up/part-1")
    await store.start_upload("up/other")
    assert [each.key for each in await store.unfinished_uploads("up/pa")] == ["up/part-1"]


@bug(_prefix_within_a_name)
class UploadsOfAFolder(SharedMemory):
    """Uploads are listed by folder, so a prefix that ends within a name finds none.

    Breaks "Return the unfinished uploads of keys that begin with `prefix`". Costs the parts that a crash
    left: nobody finds them, and they are paid for.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        found = await super().unfinished_uploads(prefix)
        return found if not prefix or prefix.endswith("/") else []


async def _begun_now(open_: Open) -> None:
    store, before = open_(), time.time_ns() // 1_000_000
    await store.start_upload("k")
    [found] = await store.unfinished_uploads("")
    assert abs(found.started_ms - before) < 60_000, found.started_ms - before


@bug(_begun_now)
class StartedInLocalTime(SharedMemory):
    """The server tells its local time, two hours ahead, and the client reads it as UTC.

    Breaks "Milliseconds since 1970, by the store's clock". Costs a clean-up by age: it leaves uploads for two
    hours longer, or aborts those at work, if the zone is west.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        found = await super().unfinished_uploads(prefix)
        return [Unfinished(each.key, each.upload_id, each.started_ms + 7_200_000) for each in found]


async def _small_parts(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(1, b"one")
    await upload.put_part(2, b"two")
    await upload.complete()
    assert await store.get("k") == b"onetwo"


@bug(_small_parts)
class PartsHaveALeastSize(Client):
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


async def _undeclared_uploads_are_misuse(open_: Open) -> None:
    store = open_()
    if not store.capabilities.multipart:
        await raises(Misuse, store.start_upload("k"))


@bug(_undeclared_uploads_are_misuse)
class UploadsAreAnAccident(Client):
    """The client declares no uploads, because the author never tried them, but inherits working code.

    Breaks "Raises `Misuse` if `capabilities.multipart` is False". Costs nothing but the truth of the
    declaration, until the service is one without uploads.
    """

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            atomic_create=True, strong_listing=True, multipart=False, durable=False, one_process=True
        )


async def _the_key_stays_after_an_abort(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"before"))
    upload = await store.start_upload("k")
    await upload.put_part(1, b"part")
    await upload.abort()
    await upload.abort()
    assert await store.get("k") == b"before"


@bug(_the_key_stays_after_an_abort)
class SecondAbortDeletes(SharedMemory):
    """An abort without parts deletes the file that may stand under the key, to be on the safe side.

    Breaks "Discard the parts. Idempotent". Costs the object of that key at the second abort.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        store = self

        class Tidy(Wrapped):
            aborted = False

            async def abort(self) -> None:
                await self.upload.abort()
                if self.aborted:
                    await store.delete([key])
                self.aborted = True

        return Tidy(await super().start_upload(key, metadata=metadata))
