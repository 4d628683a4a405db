"""Mistakes in multipart uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import ServiceStore, ServiceUpload
from offload.contracts.store import Body, Unfinished, Upload, check_key
from offload.ground.errors import Misuse, NotFound


async def _abort_again(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(2, b"x")
    await proofs.raises(Misuse, upload.complete())
    await upload.abort()
    await upload.abort()
    unfinished = await (await _begun(store)).unfinished_uploads("u")
    for _ in range(2):
        for each in unfinished:
            await store.abort_upload(each)


async def _begun(store: Any) -> Any:
    await store.start_upload("u")
    return store


@bug(_abort_again)
class SecondAbortIsNotFound(ServiceStore):
    """The service answers `NotFound` for an upload that no longer exists, and the client raises it.

    Breaks "Forget the parts. Idempotent": the retry of an abort whose reply was lost fails.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Aborting(self, check_key(key), await self.ask(self.service.begin, key))

    async def abort_upload(self, upload: Unfinished) -> None:
        if upload.upload_id not in self.service.uploads:
            raise NotFound(upload.key)
        await super().abort_upload(upload)


class _Aborting(ServiceUpload):
    async def abort(self) -> None:
        if self.name not in self.store.service.uploads:
            raise NotFound(self.key)
        await super().abort()


async def _complete_replaces(open_: Open) -> None:
    store = open_()
    await store.put("k", Body.of(b"old"))
    upload = await store.start_upload("k")
    await upload.put_part(1, b"new")
    await upload.complete()
    assert await store.get("k") == b"new"


@bug(_complete_replaces)
class CompleteLeavesWhatIsThere(ServiceStore):
    """`complete` publishes with create-if-absent. It takes an existing object for its own, with a lost reply.

    Breaks "Make the object visible": the old object stays, and the new one is gone.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Creating(self, check_key(key), await self.ask(self.service.begin, key))


class _Creating(ServiceUpload):
    async def complete(self) -> None:
        if self.key in self.store.service.objects and sorted(self.sizes) == [*range(1, len(self.sizes) + 1)]:
            await self.abort()
        else:
            await super().complete()


async def _age_stays(open_: Open) -> None:
    store = open_()
    await store.start_upload("u")
    [before] = await store.unfinished_uploads("u")
    await asyncio.sleep(0.05)
    [after] = await store.unfinished_uploads("u")
    assert before == after


@bug(_age_stays)
class UploadsBeginWhenTheyAreListed(ServiceStore):
    """An upload's start is the time of the listing, since the service does not report another.

    Breaks "`started_ms`: when it was begun": no upload is ever old enough to be aborted.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        now_ms = int(asyncio.get_running_loop().time() * 1000) + 1_700_000_000_000
        return [
            Unfinished(each.key, each.upload_id, now_ms) for each in await super().unfinished_uploads(prefix)
        ]
