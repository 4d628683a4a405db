"""Mistakes that were reported of other projects: gcsfs 473, leofs 382, a gateway to Azure, bun 43137."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from newcomers import proofs
from newcomers.registry import Open, bug
from newcomers.service import Pending, ServiceStore, ServiceUpload
from offload.contracts.store import Body, Span, Suffix, Unfinished, Upload, check_key
from offload.ground.errors import Misuse, NotFound


async def _levels_are_fresh(open_: Open) -> None:
    store = open_()
    await proofs.fill(store, ["a/1"])
    assert await proofs.level(store) == ["a/"]
    await store.put("b/1", Body.of(b"x"))
    assert await proofs.level(store) == ["a/", "b/"]
    await store.delete(["a/1"])
    assert await proofs.level(store) == ["b/"]
    await open_().create("c/1", b"x")
    assert await proofs.level(store) == ["b/", "c/"]


@bug(_levels_are_fresh)
class LevelsAreKeptUntilALargePut(ServiceStore):
    """A client caches levels. Only large puts clear the cache, because small ones return before that line.

    Breaks "Levels are whole" and "Listing is strong": a new stream is not listed by the process that made it.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.levels: dict[str, list[str]] = {}

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        if body.size_bytes > 5 * 2**20:
            self.levels.clear()

    async def level(self, prefix: str) -> AsyncIterator[str]:
        if prefix not in self.levels:
            self.levels[prefix] = [name async for name in super().level(prefix)]
        for name in self.levels[prefix]:
            yield name


@bug(proofs.reads(10, Span(0, 1)))
class FirstByteIsEverything(ServiceStore):
    """The last byte of a span is sent, and zero means "to the end": a span of the first byte reads
    everything.

    Breaks "Ranges are exact".
    """

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(key, None if span == Span(0, 1) else span)


async def _put_beside_an_upload(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(1, b"upload")
    await open_().put("k", Body.of(b"put"))
    await upload.complete()
    assert await store.get("k") == b"upload"


@bug(_put_beside_an_upload)
class PutsForgetUploadsOfTheKey(ServiceStore):
    """A put discards the parts that wait under its key, as Azure does with blocks.

    Breaks "Make the object visible": the upload of another process cannot be completed, and says `Misuse`.
    """

    async def put(self, key: str, body: Body) -> None:
        await super().put(key, body)
        for name in [name for name, pending in self.service.uploads.items() if pending.key == key]:
            await self.ask(self.service.abort, name)


async def _nothing_at_the_start(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await proofs.raises(NotFound, open_().get("k"))
    await upload.put_part(1, b"x")
    assert await proofs.names(open_()) == []
    await upload.abort()
    assert await proofs.names(open_()) == []


@bug(_nothing_at_the_start)
class UploadsBeginWithAnEmptyObject(ServiceStore):
    """The service creates an empty object with the first part, unless an object exists.

    Breaks "Nothing is visible under its key until `complete` returns": a fragment of no bytes is listed, and
    called damaged.
    """

    async def start_upload(self, key: str) -> Upload:
        return _Beginning(self, check_key(key), await self.ask(self.service.begin, key))


class _Beginning(ServiceUpload):
    async def put_part(self, number: int, data: bytes) -> None:
        await super().put_part(number, data)
        await self.store.ask(self.store.service.create, self.key, b"")


async def _late_part(open_: Open) -> None:
    store = open_()
    upload = await store.start_upload("k")
    await upload.put_part(1, b"x")
    [seen] = await store.unfinished_uploads("k")
    await asyncio.gather(store.abort_upload(seen), upload.put_part(2, b"x"), return_exceptions=True)
    await upload.abort()
    assert await store.unfinished_uploads("k") == []


@bug(_late_part)
class AbortedUploadsStayForgottenOnce(ServiceStore):
    """An abort is sent once for each upload. A part that arrives later restarts the upload, and no second
    abort is sent.

    Breaks "Forget the parts": they are paid for until somebody looks.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.aborted: set[str] = set()

    async def abort_upload(self, upload: Unfinished) -> None:
        self.aborted.add(upload.upload_id)
        await super().abort_upload(upload)

    async def start_upload(self, key: str) -> Upload:
        return _Reviving(self, check_key(key), await self.ask(self.service.begin, key))


class _Reviving(ServiceUpload):
    async def put_part(self, number: int, data: bytes) -> None:
        service = self.store.service

        def store_part() -> None:
            service.uploads.setdefault(self.name, Pending(self.key, time.time_ns() // 1_000_000)).parts[
                number
            ] = data

        if number < 1:
            raise Misuse("numbers begin at 1")
        self.sizes[number] = len(data)
        await self.store.ask(lambda: None)
        await self.store.ask(store_part)

    async def abort(self) -> None:
        if self.name not in self.store.aborted:  # type: ignore[attr-defined]
            self.store.aborted.add(self.name)  # type: ignore[attr-defined]
            await super().abort()
