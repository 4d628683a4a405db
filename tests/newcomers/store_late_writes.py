"""Mistakes in puts, creates, deletes and uploads, of the second set."""

from __future__ import annotations

from collections.abc import Sequence

from newcomers.proofs import names as keys
from newcomers.proofs import raises
from newcomers.registry import Open, bug
from newcomers.sound import SharedMemory
from offload.contracts.store import Body, Upload
from offload.ground.errors import Misuse, NotFound
from offload.store.memory import _MemoryUpload


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


class OwnUpload(SharedMemory):
    UPLOAD = _MemoryUpload

    async def start_upload(self, key: str) -> Upload:
        upload = await super().start_upload(key)
        self._unfinished[upload._id] = mine = self.UPLOAD(self, key, upload._id)
        return mine


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
