"""A part of a store as a store of its own: the keys below `<prefix>/`, without the prefix in their names.

The object `<prefix>/` is no object of this store: no key names it. Consoles make it for "Create folder".

Invariant: no call reaches a key outside the prefix. Each key is checked before the prefix is added, and no
valid key has a part `..`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

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
from offload.ground.errors import AlreadyExists, NotFound
from offload.store.wrap import StoreDecorator

__all__ = ["PrefixStore"]


class PrefixStore(StoreDecorator):
    """A store of the objects of `inner` below `<prefix>/`. Errors name keys without the prefix.

    Keys can be shorter than in `inner`, by the length of the prefix, and `capabilities` declare that.
    """

    __slots__ = ("_below",)

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        super().__init__(inner)
        self._below = check_key(prefix) + "/"

    @property
    def prefix(self) -> str:
        """The prefix of all keys, without the slash at its end."""
        return self._below[:-1]

    @property
    def url(self) -> str:
        """The URL of the inner store, with the prefix."""
        outer = self.inner.url
        return f"{outer}{'' if outer.endswith('/') else '/'}{self._below[:-1]}"

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the inner store, with keys shorter by the prefix."""
        return self.inner.capabilities.behind(self._below)

    async def put(self, key: str, body: Body) -> None:
        """Put below the prefix."""
        await self.inner.put(self._full(key), body)

    async def create(self, key: str, data: bytes) -> None:
        """Create below the prefix."""
        with self._naming(key):
            await self.inner.create(self._full(key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Read below the prefix."""
        with self._naming(key):
            return await self.inner.get(self._full(key), span)

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask for a checksum below the prefix."""
        with self._naming(key):
            return await self.inner.stored_crc32c(self._full(key))

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Ask for metadata below the prefix."""
        with self._naming(key):
            return await self.inner.metadata_of(self._full(key))

    async def retained(self, key: str) -> str | None:
        """Ask about an object below the prefix."""
        with self._naming(key):
            return await self.inner.retained(self._full(key))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List the objects below the prefix."""
        cut = len(self._below)
        start = self._below + after if after else ""
        async for row in self.inner.list(self._below + prefix, after=start):
            if row.key != self._below:
                yield Listed(row.key[cut:], row.size_bytes)

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level below the prefix."""
        cut = len(self._below)
        async for name in self.inner.level(self._below + prefix):
            if name != self._below:
                yield name[cut:]

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete below the prefix."""
        await self.inner.delete([self._full(key) for key in keys])

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload below the prefix."""
        return await begin_upload(self.inner, self._full(key), metadata)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Return the unfinished uploads of keys below the prefix."""
        cut, found = len(self._below), await self.inner.unfinished_uploads(self._below + prefix)
        return [replace(upload, key=upload.key[cut:]) for upload in found]

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort an upload of a key below the prefix."""
        await self.inner.abort_upload(replace(upload, key=self._full(upload.key)))

    def placed(self, key: str) -> str:
        """Return the key with the prefix."""
        return self._full(key)

    def _full(self, key: str) -> str:
        return self._below + check_key(key)

    @contextmanager
    def _naming(self, key: str) -> Iterator[None]:
        try:
            yield
        except NotFound as error:
            raise NotFound(key, store=self.url) from error
        except AlreadyExists as error:
            raise AlreadyExists(key) from error
