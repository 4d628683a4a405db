"""Keys spread over sixteen folders by a hash of their first part: `orders/x` becomes `7/orders/x`.

Some stores split a bucket by ranges of keys and put neighbouring keys on one machine. Without this module all
streams of a tier are neighbours.

- All keys with the same first part are in the same folder, so a listing below it is one listing.
- A listing over several first parts lists all sixteen folders and merges them.
- A key of one part, such as a tier's anchor, stays as it is. Such keys all begin with `lone`. Other keys of
  one part are not listed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from offload.contracts.capabilities import Capabilities
from offload.contracts.object_metadata import NO_METADATA
from offload.contracts.store import (
    Body,
    Buffer,
    Listed,
    ObjectStore,
    Span,
    Suffix,
    Unfinished,
    Upload,
    begin_upload,
    check_key,
)
from offload.formats.checksums import crc32c
from offload.ground.errors import AlreadyExists, NotFound
from offload.store.merge import merged
from offload.store.wrap import StoreDecorator

FOLDERS: Final = "0123456789abcdef"


def folder_of(part: str) -> str:
    """Return the folder of all keys with this first part."""
    return FOLDERS[crc32c(part.encode()) & 15]


class HashedStore(StoreDecorator):
    """A store with the keys of its callers, which keeps its objects in the folders of `inner`."""

    __slots__ = ("_lone",)

    def __init__(self, inner: ObjectStore, *, lone: str) -> None:
        super().__init__(inner)
        self._lone = lone

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the inner store, with shorter keys: the folder takes two bytes."""
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

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Read from the key's folder."""
        try:
            return await self.inner.get(_placed(key), span)
        except NotFound as error:
            raise NotFound(key, store=self.url) from error

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask for the checksum of the object in the key's folder."""
        try:
            return await self.inner.stored_crc32c(_placed(key))
        except NotFound as error:
            raise NotFound(key, store=self.url) from error

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Ask for the metadata of the object in the key's folder."""
        try:
            return await self.inner.metadata_of(_placed(key))
        except NotFound as error:
            raise NotFound(key, store=self.url) from error

    async def retained(self, key: str) -> str | None:
        """Ask about the object in the key's folder."""
        try:
            return await self.inner.retained(_placed(key))
        except NotFound as error:
            raise NotFound(key, store=self.url) from error

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List one folder if the prefix has a whole first part. Otherwise merge up to seventeen."""
        part, slash, _ = prefix.partition("/")
        folders = [folder_of(part)] if slash else [*FOLDERS]
        listings = [self._folder(folder, prefix, after) for folder in folders]
        if (lone := self._lone_prefix(prefix)) is not None:
            listings.append(self._alone(lone, after))
        async for row in merged(listings):
            yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one folder if the prefix has a whole first part. Otherwise gather those of all folders."""
        part, slash, _ = prefix.partition("/")
        if slash:
            async for name in self.inner.level(f"{folder_of(part)}/{prefix}"):
                yield name[2:]
            return
        found = [row.key async for row in self._alone(self._lone, "")]
        for folder in FOLDERS:
            below = [name[2:] async for name in self.inner.level(f"{folder}/")]
            # A name in another folder than that of its hash is somebody else's: `get` would not find it.
            found += [name for name in below if name.endswith("/") and folder_of(name[:-1]) == folder]
        for name in sorted(found):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete from the keys' folders."""
        await self.inner.delete([_placed(key) for key in keys])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload in the key's folder."""
        return await begin_upload(self.inner, _placed(key), metadata)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """List those of one folder if the prefix has a whole first part, else those of all, and lone ones."""
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
        """Abort an upload in its key's folder."""
        await self.inner.abort_upload(replace(upload, key=_placed(upload.key)))

    def placed(self, key: str) -> str:
        """Return the key in its folder."""
        return _placed(key)

    def _lone_prefix(self, prefix: str) -> str | None:
        """Return the prefix by which to list the keys of one part under `prefix`. None if none can exist."""
        if "/" in prefix or not (self._lone.startswith(prefix) or prefix.startswith(self._lone)):
            return None
        return max(prefix, self._lone, key=len)

    async def _folder(self, folder: str, prefix: str, after: str) -> AsyncIterator[Listed]:
        start = f"{folder}/{after}" if after else ""
        async for row in self.inner.list(f"{folder}/{prefix}", after=start):
            key = row.key[2:]
            # An object in another folder than that of its hash is somebody else's: `get` would not find it.
            if _placed(key) == row.key:
                yield Listed(key, row.size_bytes)

    async def _alone(self, prefix: str, after: str) -> AsyncIterator[Listed]:
        async for row in self.inner.list(prefix, after=after):
            if "/" not in row.key:  # a longer key is in the listing of its folder, if it is ours
                yield row


def _placed(key: str) -> str:
    part, slash, _ = check_key(key).partition("/")
    return f"{folder_of(part)}/{key}" if slash else key
