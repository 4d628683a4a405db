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


@bug(proofs.uploads([10] * 12))
class PartsAreSortedAsText(ServiceStore):
    """The numbers of parts are sorted as text: part 10 comes before part 2.

    Breaks "its parts in order of their numbers", from ten parts on.
    """

    async def start_upload(self, key: str) -> Upload:
        return _TextOrder(self, check_key(key), await self.ask(self.service.begin, key))


class _TextOrder(ServiceUpload):
    async def complete(self) -> None:
        numbers = sorted(self.sizes)
        if numbers != [*range(1, len(numbers) + 1)] or not numbers:
            raise Misuse("a part is missing")
        await self.store.ask(self.store.service.complete, self.name, sorted(numbers, key=str))


@bug(proofs.uploads([10] * 1005 + [3]))
class PartsBeyondAThousandAreLost(ServiceStore):
    """`complete` asks the service for the parts, but reads only the first page of a thousand.

    Breaks "Make the object visible, whole": a large object ends after a thousand parts.
    """

    async def start_upload(self, key: str) -> Upload:
        return _FirstPage(self, check_key(key), await self.ask(self.service.begin, key))


class _FirstPage(ServiceUpload):
    async def complete(self) -> None:
        for number in [number for number in self.sizes if number > 1000]:
            del self.sizes[number]
        await super().complete()


@bug(proofs.uploads([10, 10, 10], again=2))
class RepeatedPartIsAnotherOne(ServiceStore):
    """A part that is sent again, after a lost reply, is joined twice.

    Breaks "each number once or again with the same bytes".
    """

    async def start_upload(self, key: str) -> Upload:
        return _Appending(self, check_key(key), await self.ask(self.service.begin, key))


class _Appending(ServiceUpload):
    def __init__(self, store: ServiceStore, key: str, name: str) -> None:
        super().__init__(store, key, name)
        self.sent: list[int] = []

    async def put_part(self, number: int, data: bytes) -> None:
        await super().put_part(number, data)
        self.sent.append(number)

    async def complete(self) -> None:
        if {*self.sent} != {*range(1, len({*self.sent}) + 1)}:
            raise Misuse("a part is missing")
        await self.store.ask(self.store.service.complete, self.name, sorted(self.sent))


@bug(proofs.uploads([10, 10, 4], order=[3, 1, 2]))
class SizeOfTheFirstPartToComeIsCommon(ServiceStore):
    """The position of a part is computed from the size of the part that came first. That one can be the
    smaller last part.

    Breaks "parts may be put in any order": parts overlap in the object.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Placing(self, check_key(key), await self.ask(self.service.begin, key))


class _Placing(ServiceUpload):
    common = 0

    async def put_part(self, number: int, data: bytes) -> None:
        await super().put_part(number, data)
        self.common = self.common or len(data)

    async def complete(self) -> None:
        parts = self.store.service.parts(self.name)
        if {*parts} != {*range(1, len(parts) + 1)} or not parts:
            raise Misuse("a part is missing")
        whole = bytearray()
        for number, data in sorted(parts.items()):
            at = (number - 1) * self.common
            whole[at : at + len(data)] = data
        await self.store.ask(self.store.service.put, self.key, bytes(whole))
        await self.abort()


async def _two_uploads_of_a_key(open_: Open) -> None:
    store = open_()
    one, two = await store.start_upload("k"), await store.start_upload("k")
    await one.put_part(1, b"one-")
    await one.put_part(2, b"more")
    await two.put_part(1, b"two-")
    await two.complete()
    assert await store.get("k") == b"two-"
    await one.complete()
    assert await store.get("k") == b"one-more"


@bug(_two_uploads_of_a_key)
class UploadsOfAKeyShareParts(ServiceStore):
    """An upload is identified by its key, so a second one of the same key continues with the parts of the
    first.

    Breaks "Make the object visible, whole, its parts in order": a retry mixes with what it repeats.
    """

    async def start_upload(self, key: str) -> Upload:
        check_key(key)
        for name, pending in self.service.uploads.items():
            if pending.key == key:
                return _Joined(self, key, name)
        return _Joined(self, key, await self.ask(self.service.begin, key))


class _Joined(ServiceUpload):
    async def complete(self) -> None:
        self.sizes = {number: len(data) for number, data in self.store.service.parts(self.name).items()}
        await super().complete()


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


async def _many_unfinished(open_: Open) -> None:
    store = open_()
    for number in range(150):
        await store.start_upload(f"u/{number % 3}")
    assert len(await store.unfinished_uploads("u/")) == 150


@bug(_many_unfinished)
class FirstPageOfUnfinishedUploads(ServiceStore):
    """Only the first hundred unfinished uploads are listed.

    Breaks "The unfinished uploads of keys that begin with `prefix`": the others cost money for ever.
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        return (await super().unfinished_uploads(prefix))[:100]


async def _unfinished_of_a_prefix(open_: Open) -> None:
    store = open_()
    await store.start_upload("u/1")
    await store.start_upload("up")
    for prefix, count in (("u", 2), ("u/", 1), ("", 2), ("up", 1), ("v", 0)):
        assert len(await store.unfinished_uploads(prefix)) == count, prefix


@bug(_unfinished_of_a_prefix)
class UnfinishedUploadsOfAFolderOnly(ServiceStore):
    """The prefix of unfinished uploads is taken for a folder: `u` means `u/`.

    Breaks "The unfinished uploads of keys that begin with `prefix`".
    """

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        folder = prefix if not prefix or prefix.endswith("/") else prefix + "/"
        return [
            each
            for each in await super().unfinished_uploads("")
            if each.key.startswith(folder) or each.key == prefix
        ]


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
