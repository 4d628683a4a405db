"""Stores whose uploads go wrong with many parts, with none, or after their end."""

from __future__ import annotations

from functools import partial
from typing import Final

from contract.bugs import Bug, breaks

from offload.contracts.store import Body, Upload, check_key
from offload.errors import Misuse
from offload.store.memory import MemoryStore
from offload.store.wrap import UploadDecorator

PART_BUGS: Final[list[Bug]] = []

bug = partial(breaks, room=PART_BUGS)


class Collected(Upload):
    """An upload that keeps its parts by number, and is never over."""

    def __init__(self, store: MemoryStore, key: str) -> None:
        self.store, self.key, self.parts = store, key, dict[int, bytes]()

    async def put_part(self, number: int, data: bytes) -> None:
        self.parts[number] = data

    async def complete(self) -> None:
        if not self.parts or len(self.parts) != max(self.parts):
            raise Misuse("a part is missing")
        self.store.objects[self.key] = self.joined()

    def joined(self) -> bytes:
        """The object, of its parts in order."""
        return b"".join(self.parts[number] for number in sorted(self.parts))

    async def abort(self) -> None:
        self.parts.clear()


@bug("uploads_may_have_many_parts")
class OrdersPartsAsText(MemoryStore):
    """Joins parts in the order of their numbers as text: 10 before 9.

    Parts named `part-9` and `part-10`, and composed as a listing gives them.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._AsText(self, check_key(key))

    class _AsText(Collected):
        def joined(self) -> bytes:
            return b"".join(self.parts[number] for number in sorted(self.parts, key=str))


@bug("uploads_may_have_many_parts")
class JoinsOnePageOfParts(MemoryStore):
    """Joins the first hundred parts.

    Parts are asked of the server at the end, and only the first page of its answer is read.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._OnePage(self, check_key(key))

    class _OnePage(Collected):
        def joined(self) -> bytes:
            return b"".join(self.parts[number] for number in sorted(self.parts)[:100])


@bug("uploads_may_have_many_parts")
class KeepsNumbersInAByte(MemoryStore):
    """Takes part 256 for part 0.

    A number packed into too few bytes, in a name of a block.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Bytes(self, check_key(key))

    class _Bytes(Collected):
        async def put_part(self, number: int, data: bytes) -> None:
            await super().put_part(number % 256, data)


@bug("uploads_of_no_part_are_empty_or_refused")
class MakesNothingOfNothing(MemoryStore):
    """Completes an upload of no part, and no object is there.

    A loop over the parts which writes the object, and is never entered.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Nothing(self, check_key(key))

    class _Nothing(Collected):
        async def complete(self) -> None:
            if self.parts:
                await super().complete()


@bug("parts_are_numbered_from_one")
class CountsPartsFromZero(MemoryStore):
    """Takes a part of number 0, and puts it before the first.

    Numbers are an index into a list; a caller that counts from zero is found out on another store.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._FromZero(self, check_key(key))

    class _FromZero(Collected):
        async def complete(self) -> None:
            self.store.objects[self.key] = self.joined()


@bug("a_completed_upload_is_over")
class AbortsWhatIsComplete(MemoryStore):
    """Deletes the object where an upload is aborted that was completed.

    `abort` in a `finally`, on a store whose abort removes whatever stands under the key.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Removes(self, check_key(key))

    class _Removes(Collected):
        async def abort(self) -> None:
            self.store.objects.pop(self.key, None)


@bug("a_completed_upload_is_over")
class CompletesOverNewer(MemoryStore):
    """Stores its parts once more where an upload is completed twice, over what was put since.

    A retry of a request whose reply was late: it lands after the next write.
    """

    async def start_upload(self, key: str) -> Upload:
        return self._Twice(self, check_key(key))

    class _Twice(Collected):
        async def abort(self) -> None:
            return


@bug("an_upload_may_be_begun_again")
class GoesOnWithWhatWasLeft(MemoryStore):
    """Takes the parts that an earlier upload of the key left for its own.

    Uploads that are resumed by their key: the first try had other bytes.
    """

    left: dict[tuple[int, str], dict[int, bytes]] = {}

    async def start_upload(self, key: str) -> Upload:
        upload = Collected(self, check_key(key))
        upload.parts = self.left.setdefault((id(self.objects), key), upload.parts)
        return upload


@bug("an_upload_may_be_begun_again")
class AbortsByKey(MemoryStore):
    """Puts back what stood under the key before an upload began, where that is aborted.

    An undo that knows the key and not the upload: another has been completed since.
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
