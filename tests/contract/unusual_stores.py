"""Stores that keep the contract in ways that none of ours do: correct, and not what one expects.

Each has one peculiarity that some real store has. Whoever wrote a clause with our own backends in mind finds
here what else the contract allows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from offload.errors import Misuse
from offload.store.capabilities import Capabilities
from offload.store.memory import MemoryStore
from offload.store.port import Body, Listed, ObjectStore, Span, Suffix, Upload, check_key
from offload.store.wrap import StoreDecorator, UploadDecorator


class Slow(StoreDecorator):
    """Gives way many times within each call, before and after it acts: calls end in any order."""

    def __init__(self, inner: ObjectStore, *, seed: int) -> None:
        super().__init__(inner)
        self.random = random.Random(seed)

    async def wait(self) -> None:
        """Let others run, for a number of turns that nobody knows before."""
        for _ in range(self.random.randrange(25)):
            await asyncio.sleep(0)

    async def put(self, key: str, body: Body) -> None:
        await self.wait()
        await super().put(key, body)
        await self.wait()

    async def create(self, key: str, data: bytes) -> None:
        await self.wait()
        try:
            await super().create(key, data)
        finally:
            await self.wait()

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        await self.wait()
        data = await super().get(key, span)
        await self.wait()
        return data

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        await self.wait()
        async for row in super().list(prefix, after=after):
            yield row
            await asyncio.sleep(0)

    async def delete(self, keys: Sequence[str]) -> None:
        """One key at a time, and not in their order."""
        for key in keys:
            check_key(key)
        for key in self.random.sample(keys, len(keys)):
            await super().delete([key])
        await self.wait()

    async def start_upload(self, key: str) -> Upload:
        await self.wait()
        return SlowUpload(await super().start_upload(key), self)


class SlowUpload(UploadDecorator):
    """The same for the calls of an upload."""

    def __init__(self, inner: Upload, store: Slow) -> None:
        super().__init__(inner)
        self.store = store

    async def put_part(self, number: int, data: bytes) -> None:
        await self.store.wait()
        await super().put_part(number, data)

    async def complete(self) -> None:
        await self.store.wait()
        await super().complete()
        await self.store.wait()


class TinyPages(MemoryStore):
    """Lists so many keys at a request, each page as the store is then."""

    page_keys = 1

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        while True:
            await asyncio.sleep(0)
            found = (key for key in self.objects if key.startswith(prefix) and key > after)
            page = sorted(found)[: self.page_keys]
            for after in page:
                if (data := self.objects.get(after)) is not None:
                    yield Listed(after, len(data))
            if not page:
                return


class PagesOfTwo(TinyPages):
    """As `TinyPages`: a last page may be full, or half full."""

    page_keys = 2


class Austere(MemoryStore):
    """Takes no uploads in parts, deletes one key at a request, and gives a range in pieces of three bytes."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False, delete_batch_max=1)

    async def start_upload(self, key: str) -> Upload:
        check_key(key)
        raise Misuse("no uploads in parts here")

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            await super().delete([key])

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        data = await super().get(key, span)
        pieces = []
        for start in range(0, len(data), max(3, len(data) // 50)):
            pieces.append(data[start : start + max(3, len(data) // 50)])
            await asyncio.sleep(0)
        return b"".join(pieces)


class LargeParts(MemoryStore):
    """Takes parts of no less than half a mebibyte, the last one excepted."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, part_size_bytes_min=512 * 1024)


class LateListings(MemoryStore):
    """Lists what was there a while ago, and says so: for its first looks, each shows the state before it."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, strong_listing=False)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        seen, self.seen = getattr(self, "seen", {}), dict(self.objects)
        await asyncio.sleep(0)
        for key in sorted(key for key in seen if key.startswith(prefix) and key > after):
            yield Listed(key, len(seen[key]))


class WithoutCreate(MemoryStore):
    """Overwrites what it is asked to create, and says so."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))
