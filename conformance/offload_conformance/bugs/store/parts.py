"""Bugs of the parts of uploads: their numbers, many of them, none, and those that come after the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, Listed, Upload, check_key
from offload.ground.errors import Misuse, TryAgain
from offload.store.memory import MemoryStore, _MemoryUpload
from offload.store.wrap import UploadDecorator
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.proofs import names as keys
from offload_conformance.bugs.store.shared import BEGUN, SLOTS, Collected


@bug("store/uploads_may_have_many_parts")
class OrdersPartsAsText(MemoryStore):
    """Joins parts in the order of their numbers as text: 10 before 9.

    Parts are named `part-9` and `part-10`, and composed in the order of a listing.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._AsText(self, check_key(key))

    class _AsText(Collected):
        def joined(self) -> bytes:
            return b"".join(self.parts[number] for number in sorted(self.parts, key=str))


@bug("store/uploads_may_have_many_parts")
class JoinsOnePageOfParts(MemoryStore):
    """Joins only the first hundred parts.

    The parts are listed at the end, and only the first page of the listing is read.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._OnePage(self, check_key(key))

    class _OnePage(Collected):
        def joined(self) -> bytes:
            return b"".join(self.parts[number] for number in sorted(self.parts)[:100])


@bug("store/uploads_may_have_many_parts")
class KeepsNumbersInAByte(MemoryStore):
    """Stores part 256 as part 0.

    The number is packed into too few bytes in the name of a block.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Bytes(self, check_key(key))

    class _Bytes(Collected):
        async def put_part(self, number: int, data: bytes) -> None:
            await super().put_part(number % 256, data)


@bug("store/uploads_of_no_part_are_empty_or_refused")
class MakesNothingOfNothing(MemoryStore):
    """Completes an upload without parts, and stores no object.

    A loop over the parts writes the object, and never runs.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Nothing(self, check_key(key))

    class _Nothing(Collected):
        async def complete(self) -> None:
            if self.parts:
                await super().complete()


@bug("store/parts_are_numbered_from_one")
class CountsPartsFromZero(MemoryStore):
    """Accepts a part of number 0, and puts it before the first.

    Numbers are an index into a list; a caller that counts from zero fails only on another store.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._FromZero(self, check_key(key))

    class _FromZero(Collected):
        async def complete(self) -> None:
            self.store.objects[self.key] = self.joined()


@bug("store/a_completed_upload_is_over")
class AbortsWhatIsComplete(MemoryStore):
    """Deletes the object if a completed upload is aborted.

    `abort` in a `finally`, on a store whose abort removes the object under the key.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Removes(self, check_key(key))

    class _Removes(Collected):
        async def abort(self) -> None:
            self.store.objects.pop(self.key, None)


@bug("store/a_completed_upload_is_over")
class CompletesOverNewer(MemoryStore):
    """Stores the parts again if an upload is completed twice, over an object that was put since.

    A request with a late reply is retried, and takes effect after the next write.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Twice(self, check_key(key))

    class _Twice(Collected):
        async def abort(self) -> None:
            return


@bug("store/an_upload_may_be_begun_again")
class GoesOnWithWhatWasLeft(MemoryStore):
    """Uses the parts that an earlier upload of the key left.

    Uploads are resumed by their key, but the first try had other bytes.
    """

    left: dict[tuple[int, str], dict[int, bytes]] = {}

    async def start_upload(self, key: str) -> Upload:
        upload = Collected(self, check_key(key))
        upload.parts = self.left.setdefault((id(self.objects), key), upload.parts)
        return upload


@bug("store/an_upload_may_be_begun_again")
class AbortsByKey(MemoryStore):
    """Restores the object from before the upload when the upload is aborted.

    The undo knows the key and not the upload, and another upload has been completed since.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Undo(await super().start_upload(key), self, key)

    class _Undo(UploadDecorator):
        __slots__ = ("before", "key", "store")

        def __init__(self, inner: Upload, store: MemoryStore, key: str) -> None:
            super().__init__(inner)
            self.store, self.key, self.before = store, key, store.objects.get(key)

        async def abort(self) -> None:
            await super().abort()
            if self.before is None:
                self.store.objects.pop(self.key, None)
            else:
                await self.store.put(self.key, Body.of(self.before))


@bug("store/a_cancelled_part_may_be_put_again")
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


@bug("store/uploads_may_have_many_parts")
class JoinsAThousandParts(MemoryStore):
    """Joins only the first thousand parts.

    It reads one page of ListParts, which has room for the 320 parts that the clause used to have.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._OnePage(self, check_key(key))

    class _OnePage(Collected):
        def joined(self) -> bytes:
            return b"".join(self.parts[number] for number in sorted(self.parts)[:1000])


@bug("store/an_upload_may_be_begun_again")
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


class _Numbered(UploadDecorator):
    """An upload that keeps `bits` of each number."""

    def __init__(self, inner: Upload, bits: int) -> None:
        super().__init__(inner)
        self._bits = bits

    async def put_part(self, number: int, data: bytes) -> None:
        await super().put_part(number % 2**self._bits, data)


@bug("store/parts_are_numbered_from_one")
class NumbersHave32Bits(MemoryStore):
    """Takes part 2**32 + 1 for part 1.

    The number is cut by a mask, or by a language with integers of a fixed size.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return _Numbered(await super().start_upload(key, metadata=metadata), 32)


@bug("store/parts_are_numbered_from_one")
class TakesNegativeParts(MemoryStore):
    """Accepts parts with negative numbers, before the first.

    Only 0 is refused, because somebody counted from there once.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        upload = await super().start_upload(key, metadata=metadata)
        return self._Negative(upload)

    class _Negative(UploadDecorator):
        async def put_part(self, number: int, data: bytes) -> None:
            if number == 0:
                raise Misuse("part 0")
            if number > 0 or not isinstance(self.inner, _MemoryUpload):
                await super().put_part(number, data)
            else:
                self.inner._parts.setdefault(1, data)


@bug("store/a_cancelled_part_may_be_put_again")
class TakesACancellationForATimeout(MemoryStore):
    """Turns the cancellation of a call into `TryAgain`.

    `except BaseException` around a request, or a library that raises its own error when it is cancelled.
    """

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return self._Sturdy(await super().start_upload(key, metadata=metadata))

    class _Sturdy(UploadDecorator):
        async def put_part(self, number: int, data: bytes) -> None:
            try:
                await asyncio.sleep(0)
                await super().put_part(number, data)
                await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                raise TryAgain("the request was interrupted") from error


@bug("store/a_cancelled_part_may_be_put_again")
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


async def shows_empty_page_ends(open_: OpenClient) -> None:
    store = open_()
    upload = await store.start_upload("a")
    for n in range(100):
        await upload.put_part(n + 1, b"1")
    await store.put("b", Body.of(b""))
    assert await keys(store) == ["b"]


@bug("store/uploads_may_have_many_parts", shows_empty_page_ends)
class EmptyPageEnds(SharedMemory):
    """Parts of uploads are stored beside the objects as `<key>/.part.N`. Each page leaves them out, and an
    empty page ends the listing.

    Breaks "Every object". An upload of 100 parts hides what follows.
    """

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        self.kept[upload._id] = upload
        return upload

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        rows = [(row.key, row) async for row in super().list(prefix, after=after)]
        for upload in self._unfinished.values():
            hidden = [(f"{upload.key}/.part.{n:05}", None) for n in upload._parts]
            rows += [row for row in hidden if row[0].startswith(prefix) and row[0] > after]
        rows.sort(key=lambda row: row[0])
        for start in range(0, len(rows), 50):
            page = [row for _, row in rows[start : start + 50] if row is not None]
            if not page:
                return
            for row in page:
                yield row
