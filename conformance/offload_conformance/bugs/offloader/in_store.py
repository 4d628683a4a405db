"""Bugs that show in the objects of the store beneath."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body, ObjectStore
from offload.formats.keys import StreamKeys
from offload.model.attempt import Attempt, Receipt
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import Deduplicating
from offload_conformance.bugs.registry import bug


class KeepingFragments(Deduplicating):
    """A store that deletes no fragment."""

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([key for key in keys if not key.endswith(".fragment")])


@bug("contract/attempts_are_stored_apart")
class StoresEqualBytesOnce(ObjectStoreOffloader):
    """Stores equal bytes of two attempts once, and never removes them.

    Deduplication whose garbage collector was never written.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(KeepingFragments(store))


@bug("contract/refusals_store_nothing")
class NotesBeforeItAsks(ObjectStoreOffloader):
    """Stores a note of an attempt before it checks if the attempt was announced.

    The check comes late, and nobody removes the note of a refused attempt.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **kwargs: Any) -> Receipt:
        await self.data.put(StreamKeys(attempt.stream).data + f"note.{attempt.uid}", Body.of(b""))
        return await super().offload(handle, attempt, **kwargs)


@bug("contract/deletion_leaves_nothing")
class LeavesTheBrokenOff(ObjectStoreOffloader):
    """Deletes the complete objects of an attempt, and not the unfinished ones.

    Temporary objects have names that the deletion does not know.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **kwargs: Any) -> Receipt:
        part = StreamKeys(attempt.stream).data + f"part.{attempt.uid}"
        await self.data.put(part, Body.of(b""))
        receipt = await super().offload(handle, attempt, **kwargs)
        await self.data.delete([part])
        return receipt


@bug("contract/refused_deletions_remove_nothing")
class PrunesBeforeItAsks(ObjectStoreOffloader):
    """Removes old manifests with each deletion, also with one that it then refuses.

    It cleans up first, and checks the call afterwards.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        roots = [row.key async for row in self.data.list(StreamKeys(attempt.stream).roots)]
        await self.data.delete(roots[:-1])
        await super().delete_offloaded(attempt)


@bug("contract/opening_stores_nothing_twice")
class SignsEachOpening(ObjectStoreOffloader):
    """Stores something at each opening.

    Reading leaves a lock file or an owner's mark, which is never removed.
    """

    async def open(self, *, create: bool = False) -> None:
        await super().open(create=create)
        if create:
            await self.data.put(f"tier.opened.{uuid4()}", Body.of(b""))
