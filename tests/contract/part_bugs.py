"""Stores whose uploads go wrong with many parts, with none, or after their end."""

from __future__ import annotations

from functools import partial
from typing import Final

from contract.bugs import Bug, breaks

from offload.contracts.store import Body, Upload, check_key
from offload.ground.errors import Misuse
from offload.store.memory import MemoryStore
from offload.store.wrap import UploadDecorator

PART_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=PART_BUGS)


class Collected(Upload):
    """An upload that keeps its parts by number, and never ends."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self.store, self.key, self.parts = store, key, dict[int, bytes]()

    async def put_part(self, number: int, data: bytes) -> None:
        self.parts[number] = data

    async def complete(self) -> None:
        if not self.parts or len(self.parts) != max(self.parts):
            raise Misuse("a part is missing")
        self.store.objects[self.key] = self.joined()

    def joined(self) -> bytes:
        """Return the object, with its parts in order."""
        return b"".join(self.parts[number] for number in sorted(self.parts))

    async def abort(self) -> None:
        self.parts.clear()


@bug("uploads_may_have_many_parts")
class OrdersPartsAsText(MemoryStore):
    """Joins parts in the order of their numbers as text: 10 before 9.

    Parts are named `part-9` and `part-10`, and composed in the order of a listing.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._AsText(self, check_key(key))

    class _AsText(Collected):
        def joined(self) -> bytes:
            return b"".join(self.parts[number] for number in sorted(self.parts, key=str))


@bug("uploads_may_have_many_parts")
class JoinsOnePageOfParts(MemoryStore):
    """Joins only the first hundred parts.

    The parts are listed at the end, and only the first page of the listing is read.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._OnePage(self, check_key(key))

    class _OnePage(Collected):
        def joined(self) -> bytes:
            return b"".join(self.parts[number] for number in sorted(self.parts)[:100])


@bug("uploads_may_have_many_parts")
class KeepsNumbersInAByte(MemoryStore):
    """Stores part 256 as part 0.

    The number is packed into too few bytes in the name of a block.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Bytes(self, check_key(key))

    class _Bytes(Collected):
        async def put_part(self, number: int, data: bytes) -> None:
            await super().put_part(number % 256, data)


@bug("uploads_of_no_part_are_empty_or_refused")
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


@bug("parts_are_numbered_from_one")
class CountsPartsFromZero(MemoryStore):
    """Accepts a part of number 0, and puts it before the first.

    Numbers are an index into a list; a caller that counts from zero fails only on another store.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._FromZero(self, check_key(key))

    class _FromZero(Collected):
        async def complete(self) -> None:
            self.store.objects[self.key] = self.joined()


@bug("a_completed_upload_is_over")
class AbortsWhatIsComplete(MemoryStore):
    """Deletes the object if a completed upload is aborted.

    `abort` in a `finally`, on a store whose abort removes the object under the key.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Removes(self, check_key(key))

    class _Removes(Collected):
        async def abort(self) -> None:
            self.store.objects.pop(self.key, None)


@bug("a_completed_upload_is_over")
class CompletesOverNewer(MemoryStore):
    """Stores the parts again if an upload is completed twice, over an object that was put since.

    A request with a late reply is retried, and takes effect after the next write.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Twice(self, check_key(key))

    class _Twice(Collected):
        async def abort(self) -> None:
            return


@bug("an_upload_may_be_begun_again")
class GoesOnWithWhatWasLeft(MemoryStore):
    """Uses the parts that an earlier upload of the key left.

    Uploads are resumed by their key, but the first try had other bytes.
    """

    left: dict[tuple[int, str], dict[int, bytes]] = {}

    async def start_upload(self, key: str) -> Upload:
        upload = Collected(self, check_key(key))
        upload.parts = self.left.setdefault((id(self.objects), key), upload.parts)
        return upload


@bug("an_upload_may_be_begun_again")
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
