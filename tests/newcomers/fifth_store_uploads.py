"""Fifth set, stores: uploads in parts, and bodies of unknown size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from newcomers.fifth_sound import ended
from newcomers.fourth_sound import Client, Wrapped, unsized
from newcomers.proofs import data_of
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore
from newcomers.sound import SharedMemory
from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, Upload
from offload.ground.errors import Misuse, TryAgain


async def _aborted_is_as_before(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"x", metadata={"kind": "old"}))
    upload = await store.start_upload("k", metadata={"kind": "new"})
    await upload.put_part(1, b"y")
    await upload.abort()
    assert await store.metadata_of("k") == {"kind": "old"}


@bug(_aborted_is_as_before)
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


async def _put_again_after_an_error(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await ended(upload.put_part(1, data_of(100)), upload.put_part(1, data_of(100)))
    await upload.put_part(2, b"end")
    await upload.complete()
    assert await store.get("k") == data_of(100) + b"end"


@bug(_put_again_after_an_error)
class PartsAreAppended(Client):
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


# Bodies of unknown size


async def _described_at_any_size(open_: Open) -> None:
    store = open_()
    body = unsized(b"x", bound=10)
    described = Body(size_bytes=10, windows=body.windows, is_bound=True, metadata={"kind": "data"})
    await store.put("k", described)
    assert await store.metadata_of("k") == {"kind": "data"}


@bug(_described_at_any_size)
class BoundBodiesAreBare(SharedMemory):
    """A body of unknown size takes another request, which has no place for metadata.

    Breaks "Names and values that the store keeps with the object". Costs compressed fragments their
    description.
    """

    async def put(self, key: str, body: Body) -> None:
        bare = Body(size_bytes=body.size_bytes, windows=body.windows, is_bound=True)
        await super().put(key, bare if body.is_bound else body)


# Requests beyond a number


async def _many_calls(call: Callable[[Any, int], Any], open_: Open) -> None:
    store = open_()
    for number in range(150):
        await call(store, number)


async def _handles_of_uploads(open_: Open) -> None:
    async def aborted(store: Any, number: int) -> None:
        upload = await store.start_upload(f"k{number}")
        await upload.put_part(1, b"x")
        await upload.abort()

    await _many_calls(aborted, open_)


@bug(_handles_of_uploads)
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
