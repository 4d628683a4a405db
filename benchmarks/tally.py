"""A bucket in memory with a million keys, and a decorator that counts the requests that a provider bills.

Requests are those of the backends. A put or a create is one write (up to 128 MiB). A listing is one request
for each page that the caller reaches. A delete is one request for each thousand keys. Azure's listings are
counted separately: pages have 5,000 keys, and a listing after a key begins there only if the rest of that key
has no slash and the key exists (`offload_azure.listing`). Otherwise it begins at the prefix.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import astuple, dataclass, field
from typing import Final, cast

from offload.contracts.store import Body, Listed, Span, Suffix, Unfinished
from offload.ground.errors import NotFound
from offload.store.memory import MemoryStore
from offload.store.spans import clip
from offload.store.wrap import StoreDecorator

PAGE_KEYS: Final = 1000
AZURE_PAGE_KEYS: Final = 5000
DELETE_KEYS: Final = 1000

Make = Callable[[str], Awaitable[bytes | None]]
"""A function that makes the object of a key when it is read; None if there is no such object."""


async def nothing(key: str) -> bytes | None:
    """Make no object."""
    return None


class Bucket(MemoryStore):
    """A `MemoryStore` with its keys in order. Some of its objects are made only when they are read.

    `made` has the keys of those objects, which a listing shows with `made_size_bytes`; `make` makes them.
    """

    __slots__ = ("_dead", "_order", "made", "made_size_bytes", "make")

    def __init__(self) -> None:
        super().__init__()
        self.made: set[str] = set()
        self.made_size_bytes = 0
        self.make: Make = nothing
        self._order: list[str] = []
        self._dead = 0

    def fork(self) -> Bucket:
        """Return another bucket with the same objects."""
        copy = Bucket()
        copy.objects, copy.made, copy._order = dict(self.objects), set(self.made), list(self._order)
        copy.make, copy.made_size_bytes, copy._dead = self.make, self.made_size_bytes, self._dead
        return copy

    def add_made(self, keys: Sequence[str]) -> None:
        """Add keys whose objects are made when they are read."""
        self.made.update(keys)
        self._order = sorted({*self._order, *keys})

    async def put(self, key: str, body: Body) -> None:
        """Store the object, and keep the keys in order."""
        await super().put(key, body)
        self._insert(key)

    async def create(self, key: str, data: bytes) -> None:
        """Create the object, and keep the keys in order."""
        await super().create(key, data)
        self._insert(key)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read the object, or make it."""
        if key in self.objects:
            return await super().get(key, span)
        data = await self.make(key)
        if data is None:
            raise NotFound(key, store=self.url)
        start, end = clip(span, len(data))
        return data[start:end]

    async def stored_crc32c(self, key: str) -> int | None:
        """Return None, as a store without checksums does. Only the request is counted."""
        return None

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List page by page as a bucket does: each page shows the objects of its own moment."""
        after = max(after, prefix[:-1] if prefix else "")
        while True:
            await asyncio.sleep(0)
            start = bisect_right(self._order, after)
            page = self._order[start : start + PAGE_KEYS]
            for key in page:
                if key < prefix:
                    continue
                if not key.startswith(prefix):
                    return
                if (data := self.objects.get(key)) is not None:
                    yield Listed(key, len(data))
                elif key in self.made:
                    yield Listed(key, self.made_size_bytes)
            if len(page) < PAGE_KEYS:
                return
            after = page[-1]

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects."""
        await super().delete(keys)
        self.made.difference_update(keys)
        self._dead += len(keys)
        if self._dead > max(len(self._order) // 20, PAGE_KEYS):  # until then, listings skip their keys
            self._order = [key for key in self._order if self.holds(key)]
            self._dead = 0

    def holds(self, key: str) -> bool:
        """Return True if a listing shows the key."""
        return key in self.objects or key in self.made

    def rows_between(self, prefix: str, after: str) -> int:
        """Return the number of keys with this prefix that are not greater than `after`."""
        return max(bisect_right(self._order, after) - bisect_left(self._order, prefix), 0)

    def _insert(self, key: str) -> None:
        row = bisect_left(self._order, key)
        if row == len(self._order) or self._order[row] != key:
            insort(self._order, key)


@dataclass(slots=True, kw_only=True)
class Tally:
    """The numbers of requests and bytes. Subtract two readings for an interval."""

    writes: int = 0
    """PUT, create, and the requests of a multipart upload."""
    reads: int = 0
    """GET, and HEAD for a stored checksum."""
    lists: int = 0
    """LIST: pages of at most 1,000 keys."""
    azure_lists: int = 0
    """LIST at Azure: pages of at most 5,000 keys, with the pages that it cannot skip before a key."""
    deletes: int = 0
    """DELETE: requests of at most 1,000 keys, as at S3."""
    deleted: int = 0
    """Deleted keys. GCS and Azure need one request for each."""
    fragment_bytes_up: int = 0
    other_bytes_up: int = 0
    bytes_down: int = 0

    def __sub__(self, earlier: Tally) -> Tally:
        names = Tally.__slots__
        values = [a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)]
        return Tally(**dict(zip(names, values, strict=True)))

    def copy(self) -> Tally:
        """Return a reading."""
        return self - Tally()


@dataclass(slots=True)
class _Pages:
    """A counter of the pages of one listing as its rows are read."""

    tally: Tally
    skipped: int
    rows: int = field(default=0)

    def begin(self, *, in_vain: bool) -> None:
        self.tally.lists += 1
        self.tally.azure_lists += 1 + self.skipped // AZURE_PAGE_KEYS + in_vain

    def row(self) -> None:
        if self.rows and self.rows % PAGE_KEYS == 0:
            self.tally.lists += 1
        if (seen := self.rows + self.skipped) and self.rows and seen % AZURE_PAGE_KEYS == 0:
            self.tally.azure_lists += 1
        self.rows += 1


class TallyStore(StoreDecorator):
    """A store that counts its requests in `tally`."""

    __slots__ = ("bucket", "tally")

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.bucket = bucket
        self.tally = Tally()

    async def put(self, key: str, body: Body) -> None:
        """Count one write."""
        self.tally.writes += 1
        if key.endswith(".fragment"):
            self.tally.fragment_bytes_up += body.size_bytes
        else:
            self.tally.other_bytes_up += body.size_bytes
        await self.inner.put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Count one write."""
        self.tally.writes += 1
        self.tally.other_bytes_up += len(data)
        await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Count one read, even if there is no object."""
        self.tally.reads += 1
        data = await self.inner.get(key, span)
        self.tally.bytes_down += len(data)
        return data

    async def stored_crc32c(self, key: str) -> int | None:
        """Count one read: a HEAD."""
        self.tally.reads += 1
        return await self.inner.stored_crc32c(key)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Count one request for each page that the caller reaches."""
        can_start = after.startswith(prefix) and "/" not in after[len(prefix) :]
        starts = can_start and self.bucket.holds(after)
        skipped = 0 if not after or starts else self.bucket.rows_between(prefix, after)
        pages = _Pages(self.tally, skipped)
        pages.begin(in_vain=bool(after) and can_start and not starts)
        listing = cast("AsyncGenerator[Listed, None]", self.inner.list(prefix, after=after))
        async with aclosing(listing) as rows:
            async for row in rows:
                pages.row()
                yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """Count one request for each page of names that the caller reaches."""
        pages = _Pages(self.tally, 0)
        pages.begin(in_vain=False)
        async for name in self.inner.level(prefix):
            pages.row()
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Count one request for each thousand keys."""
        self.tally.deletes += -(-len(keys) // DELETE_KEYS)
        self.tally.deleted += len(keys)
        await self.inner.delete(keys)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Count one page of a listing: a crash leaves few uploads."""
        self.tally.lists += 1  # Azure's backend sends no request for this
        return await self.inner.unfinished_uploads(prefix)
