"""Stores that keep the contract in unexpected ways, unlike any of ours.

Each has one peculiarity of some real store. They show the authors of clauses what the contract allows beyond
our own backends.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from offload_conformance.patience import PatientOffloader

from offload.contracts.capabilities import Capabilities
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload, check_key
from offload.ground.errors import Misuse, Throttled, TryAgain
from offload.model.attempt import Attempt, Leftover
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator, UploadDecorator


class Slow(StoreDecorator):
    """A store that yields many times within each call, before and after it acts, so calls end in
    any order.
    """

    def __init__(self, inner: ObjectStore, *, seed: int) -> None:
        super().__init__(inner)
        self.random = random.Random(seed)

    async def wait(self) -> None:
        """Let other tasks run for a random number of turns."""
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
        """Delete one key at a time, in another order."""
        for key in keys:
            check_key(key)
        for key in self.random.sample(keys, len(keys)):
            await super().delete([key])
        await self.wait()

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        await self.wait()
        return SlowUpload(await super().start_upload(key, metadata=metadata), self)


class SlowUpload(UploadDecorator):
    """An upload with the same behaviour as the store."""

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
    """A store that lists a few keys per request, each page as the store is at that moment."""

    page_keys = 1

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        ordered, sorted_at = list[str](), (-1, "")
        while True:
            await asyncio.sleep(0)
            if (now := (len(self.objects), next(reversed(self.objects), ""))) != sorted_at:
                ordered, sorted_at = sorted(self.objects), now  # not for each page: a tier has 10,000 keys
            begin = max(bisect_right(ordered, after), bisect_left(ordered, prefix))
            page = [key for key in ordered[begin : begin + self.page_keys] if key.startswith(prefix)]
            for after in page:
                if (data := self.objects.get(after)) is not None:
                    yield Listed(after, len(data))
            if not page:
                return


class PagesOfTwo(TinyPages):
    """`TinyPages` with two keys a page, so a last page may be full or half full."""

    page_keys = 2


class Austere(MemoryStore):
    """A store without multipart uploads that deletes one key per request and reads ranges in
    3-byte pieces.
    """

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, multipart=False, delete_batch_max=1)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
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
    """A store whose parts have at least half a mebibyte, except the last one."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, part_size_bytes_min=512 * 1024)


class LateListings(MemoryStore):
    """A store that declares late listings: each listing shows the state at the previous one."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, strong_listing=False)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        seen, self.seen = getattr(self, "seen", {}), dict(self.objects)
        await asyncio.sleep(0)
        for key in sorted(key for key in seen if key.startswith(prefix) and key > after):
            yield Listed(key, len(seen[key]))


class WithoutCreate(MemoryStore):
    """A store that overwrites on create, and declares it."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, atomic_create=False)

    async def create(self, key: str, data: bytes) -> None:
        await self.put(key, Body.of(data))


class Refusing(StoreDecorator):
    """A store that sometimes refuses a call before it acts, like a store that wants fewer requests."""

    def __init__(self, inner: ObjectStore, *, seed: int, share: float = 0.1) -> None:
        super().__init__(inner)
        self.random, self.share = random.Random(seed), share

    def admit(self) -> None:
        """Let a request through, or refuse it."""
        if self.random.random() < self.share:
            raise self.random.choice(
                [Throttled("slow down", 0.001), Throttled("slow down"), TryAgain("busy")]
            )

    async def put(self, key: str, body: Body) -> None:
        check_key(key)
        self.admit()
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        check_key(key)
        self.admit()
        await super().create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        self.admit()
        return await super().get(key, span)

    async def stored_crc32c(self, key: str) -> int | None:
        self.admit()
        return await super().stored_crc32c(key)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List in pages of 100 rows. Each page is a request, which may be refused after earlier pages."""
        shown = 0
        async for row in super().list(prefix, after=after):
            if shown % 100 == 0:
                self.admit()
            yield row
            shown += 1

    async def level(self, prefix: str) -> AsyncIterator[str]:
        self.admit()
        async for name in super().level(prefix):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        self.admit()
        await super().delete(keys)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        self.admit()
        return RefusingUpload(await super().start_upload(key, metadata=metadata), self)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        self.admit()
        return await super().unfinished_uploads(prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        self.admit()
        await super().abort_upload(upload)


class RefusingUpload(UploadDecorator):
    """An upload with the same behaviour as the store."""

    def __init__(self, inner: Upload, store: Refusing) -> None:
        super().__init__(inner)
        self.store = store

    async def put_part(self, number: int, data: bytes) -> None:
        self.store.admit()
        await super().put_part(number, data)

    async def complete(self) -> None:
        self.store.admit()
        await super().complete()

    async def abort(self) -> None:
        self.store.admit()
        await super().abort()


class SendsLosersAway(MemoryStore):
    """A store that raises `TryAgain` for a create while another of the same key is running, as S3's 409."""

    under_way: Final[set[tuple[int, str]]] = set()

    async def create(self, key: str, data: bytes) -> None:
        turn = id(self.objects), check_key(key)
        if turn in self.under_way:
            raise TryAgain(f"{key!r} is being created")
        self.under_way.add(turn)
        try:
            await super().create(key, data)
        finally:
            self.under_way.discard(turn)


class ShortKeys(StoreDecorator):
    """A store of short keys without combining marks, which declares both, like a database column."""

    most = 511

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, key_size_bytes_max=self.most, keys_refused="[\u0300-\u036f]")

    def checked(self, key: str) -> str:
        """Return the key if this store takes it."""
        if len(check_key(key).encode()) > self.most:
            raise Misuse(f"{key[:40]!r}… has more than {self.most} bytes")
        if any("\u0300" <= letter <= "\u036f" for letter in key):
            raise Misuse(f"{key!r} has a combining mark")
        return key

    async def put(self, key: str, body: Body) -> None:
        await super().put(self.checked(key), body)

    async def create(self, key: str, data: bytes) -> None:
        await super().create(self.checked(key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        return await super().get(self.checked(key), span)

    async def stored_crc32c(self, key: str) -> int | None:
        return await super().stored_crc32c(self.checked(key))

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        return await super().metadata_of(self.checked(key))

    async def retained(self, key: str) -> str | None:
        return await super().retained(self.checked(key))

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete([self.checked(key) for key in keys])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return await super().start_upload(self.checked(key), metadata=metadata)


class ShorterKeys(ShortKeys):
    """A store of keys up to 300 bytes: too short for the longest names of streams."""

    most = 300


class OwnFolders(MemoryStore):
    """A store with folders of its own, which stay when their last key is deleted, like a file system."""

    folders: Final[dict[int, set[str]]] = {}

    async def level(self, prefix: str) -> AsyncIterator[str]:
        kept = self.folders.setdefault(id(self.objects), set())
        names = {name async for name in super().level(prefix)}
        names |= {each for each in kept if each.startswith(prefix) and "/" not in each[len(prefix) : -1]}
        for name in sorted(names - {prefix}):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        kept = self.folders.setdefault(id(self.objects), set())
        for key in keys:
            parts = check_key(key).split("/")
            kept |= {"/".join(parts[:count]) + "/" for count in range(1, len(parts)) if key in self.objects}
        await super().delete(keys)


class SlowToOpen(StoreDecorator):
    """A store whose clients need half a second before their first answer: a token, TLS, a pool."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._opening: asyncio.Lock | None = asyncio.Lock()

    async def opened(self) -> None:
        """Wait for the token, once."""
        if self._opening is not None:
            async with self._opening:
                if self._opening is not None:
                    await asyncio.sleep(0.5)
                    self._opening = None

    async def put(self, key: str, body: Body) -> None:
        check_key(key)
        await self.opened()
        await super().put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        await self.opened()
        await super().create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        await self.opened()
        return await super().get(key, span)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        await self.opened()
        async for row in super().list(prefix, after=after):
            yield row

    async def delete(self, keys: Sequence[str]) -> None:
        await self.opened()
        await super().delete(keys)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        await self.opened()
        return await super().start_upload(key, metadata=metadata)


class RefusingOffloader(PatientOffloader):
    """An offloader that sometimes refuses a call before it acts, as a database aborts a transaction.

    The base is here only what passes calls on: the offloader behind refuses nothing.
    """

    def __init__(self, store: ObjectStore, *, seed: int) -> None:
        super().__init__(ObjectStoreOffloader(store), count=lambda: None)
        self.random = random.Random(seed)

    def admit(self) -> None:
        """Admit a call, or refuse it."""
        if self.random.random() < 0.1:
            raise TryAgain("another transaction was first")

    async def open(self, *, create: bool = False) -> None:
        self.admit()
        await super().open(create=create)

    async def streams(self) -> list[str]:
        self.admit()
        return await super().streams()

    async def load_manifest(self, stream: str) -> Manifest:
        self.admit()
        return await super().load_manifest(stream)

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        self.admit()
        return await super().commit_manifest(stream, change, base=base, committer=committer)

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        self.admit()
        return await super().read_offloaded(attempt, manifest=manifest, only=only)

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        self.admit()
        return await super().leftovers(manifest)


ODD_STORES: Final[dict[str, Callable[[dict[str, bytes], int], ObjectStore]]] = {
    "slow": lambda objects, number: Slow(MemoryStore(objects=objects), seed=number),
    "throttles": lambda objects, number: Refusing(MemoryStore(objects=objects), seed=number),
    "sends-losers-away": lambda objects, _: SendsLosersAway(objects=objects),
    "short-keys": lambda objects, _: ShortKeys(MemoryStore(objects=objects)),
    "shorter-keys": lambda objects, _: ShorterKeys(MemoryStore(objects=objects)),
    "own-folders": lambda objects, _: OwnFolders(objects=objects),
    "slow-to-open": lambda objects, _: SlowToOpen(MemoryStore(objects=objects)),
    "tiny-pages": lambda objects, _: TinyPages(objects=objects),
    "pages-of-two": lambda objects, _: PagesOfTwo(objects=objects),
    "austere": lambda objects, _: Austere(objects=objects),
    "large-parts": lambda objects, _: LargeParts(objects=objects),
}
"""Correct stores that hold tiers, by name. Each client is made from the objects and its own number."""
