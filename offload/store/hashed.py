"""Keys spread over sixteen folders, by a hash of their first part: `orders/x` becomes `7/orders/x`.

Stores that split a bucket by ranges of keys put neighbours on one machine; without this, all streams
of a tier are neighbours. One first part stays in one folder, so listings below it stay one listing;
a listing that reaches over first parts asks all sixteen folders and merges. Keys of one part, such as
anchors of tiers, stay where they are, and are listed only under `lone`, which they all begin with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Final

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload, check_key
from offload.errors import AlreadyExists, NotFound
from offload.formats.checksums import crc32c
from offload.store.merge import merged
from offload.store.wrap import StoreDecorator

FOLDERS: Final = "0123456789abcdef"


def folder_of(part: str) -> str:
    """The folder of all keys with this first part."""
    return FOLDERS[crc32c(part.encode()) & 15]


class HashedStore(StoreDecorator):
    """Looks like `inner`, and keeps objects in it as the head of this module says."""

    __slots__ = ("_lone",)

    def __init__(self, inner: ObjectStore, *, lone: str) -> None:
        super().__init__(inner)
        self._lone = lone

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store behind, but for the length of keys."""
        return self.inner.capabilities.behind("0/")

    async def put(self, key: str, body: Body) -> None:
        """Put into the key's folder."""
        await self.inner.put(_placed(key), body)

    async def create(self, key: str, data: bytes) -> None:
        """Create in the key's folder."""
        try:
            await self.inner.create(_placed(key), data)
        except AlreadyExists as error:
            raise AlreadyExists(key) from error

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read from the key's folder."""
        try:
            return await self.inner.get(_placed(key), span)
        except NotFound as error:
            raise NotFound(key, store=self.url) from error

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask in the key's folder."""
        try:
            return await self.inner.stored_crc32c(_placed(key))
        except NotFound as error:
            raise NotFound(key, store=self.url) from error

    async def retained(self, key: str) -> str | None:
        """Ask in the key's folder."""
        try:
            return await self.inner.retained(_placed(key))
        except NotFound as error:
            raise NotFound(key, store=self.url) from error

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """One listing where the prefix holds a whole first part, else seventeen, merged."""
        part, slash, _ = prefix.partition("/")
        folders = [folder_of(part)] if slash else [*FOLDERS]
        listings = [self._folder(folder, prefix, after) for folder in folders]
        if (lone := self._lone_prefix(prefix)) is not None:
            listings.append(self._alone(lone, after))
        async for row in merged(listings):
            yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """One level where the prefix holds a whole first part, else those of all folders, gathered."""
        part, slash, _ = prefix.partition("/")
        if slash:
            async for name in self.inner.level(f"{folder_of(part)}/{prefix}"):
                yield name[2:]
            return
        found = [row.key async for row in self._alone(self._lone, "")]
        for folder in FOLDERS:
            below = [name[2:] async for name in self.inner.level(f"{folder}/")]
            found += [name for name in below if name.endswith("/") and folder_of(name[:-1]) == folder]
        for name in sorted(found):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete from the keys' folders."""
        await self.inner.delete([_placed(key) for key in keys])

    async def start_upload(self, key: str) -> Upload:
        """Begin an upload in the key's folder."""
        return await self.inner.start_upload(_placed(key))

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Those in one folder where the prefix holds a whole first part, else in all, and lone ones."""
        part, slash, _ = prefix.partition("/")
        found = [
            replace(upload, key=upload.key[2:])
            for folder in ([folder_of(part)] if slash else FOLDERS)
            for upload in await self.inner.unfinished_uploads(f"{folder}/{prefix}")
        ]
        found = [upload for upload in found if "/" in upload.key]
        if (lone := self._lone_prefix(prefix)) is not None:
            alone = await self.inner.unfinished_uploads(lone)
            found += [upload for upload in alone if "/" not in upload.key]
        return found

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort one in its key's folder."""
        await self.inner.abort_upload(replace(upload, key=_placed(upload.key)))

    def _lone_prefix(self, prefix: str) -> str | None:
        """What the keys of one part begin with that have this prefix; None if there can be none."""
        if "/" in prefix or not (self._lone.startswith(prefix) or prefix.startswith(self._lone)):
            return None
        return max(prefix, self._lone, key=len)

    async def _folder(self, folder: str, prefix: str, after: str) -> AsyncIterator[Listed]:
        start = f"{folder}/{after}" if after else ""
        async for row in self.inner.list(f"{folder}/{prefix}", after=start):
            key = row.key[2:]
            if _placed(key) == row.key:  # else somebody else's
                yield Listed(key, row.size_bytes)

    async def _alone(self, prefix: str, after: str) -> AsyncIterator[Listed]:
        async for row in self.inner.list(prefix, after=after):
            if "/" not in row.key:
                yield row


def _placed(key: str) -> str:
    part, slash, _ = check_key(key).partition("/")
    return f"{folder_of(part)}/{key}" if slash else key
