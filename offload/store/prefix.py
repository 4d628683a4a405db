"""A part of a store that looks like a whole one: keys below `<prefix>/`, named without it.

Nothing escapes: a key is checked before the prefix is set before it, and no key has a part `..`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload, check_key
from offload.errors import AlreadyExists, NotFound
from offload.store.wrap import StoreDecorator

__all__ = ["PrefixStore"]


class PrefixStore(StoreDecorator):
    """The objects of `inner` whose keys begin with `<prefix>/`. Errors name keys as the caller does.

    The prefix takes its share of a key's bytes, as `capabilities` declare.
    """

    __slots__ = ("_below",)

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        super().__init__(inner)
        self._below = check_key(prefix) + "/"

    @property
    def prefix(self) -> str:
        """What stands before all keys, without the slash at its end."""
        return self._below[:-1]

    @property
    def url(self) -> str:
        """The url of the store behind, and the prefix."""
        outer = self.inner.url
        return f"{outer}{'' if outer.endswith('/') else '/'}{self._below[:-1]}"

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store behind, but for the length of keys."""
        return self.inner.capabilities.behind(self._below)

    async def put(self, key: str, body: Body) -> None:
        """Put below the prefix."""
        await self.inner.put(self._full(key), body)

    async def create(self, key: str, data: bytes) -> None:
        """Create below the prefix."""
        with self._naming(key):
            await self.inner.create(self._full(key), data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read below the prefix."""
        with self._naming(key):
            return await self.inner.get(self._full(key), span)

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask below the prefix."""
        with self._naming(key):
            return await self.inner.stored_crc32c(self._full(key))

    async def retained(self, key: str) -> str | None:
        """Ask below the prefix."""
        with self._naming(key):
            return await self.inner.retained(self._full(key))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List what is below the prefix."""
        cut = len(self._below)
        start = self._below + after if after else ""
        async for row in self.inner.list(self._below + prefix, after=start):
            yield Listed(row.key[cut:], row.size_bytes)

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """What is directly below, below the prefix."""
        cut = len(self._below)
        async for name in self.inner.level(self._below + prefix):
            yield name[cut:]

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete below the prefix."""
        await self.inner.delete([self._full(key) for key in keys])

    async def start_upload(self, key: str) -> Upload:
        """Begin an upload below the prefix."""
        return await self.inner.start_upload(self._full(key))

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Those of keys below the prefix."""
        cut, found = len(self._below), await self.inner.unfinished_uploads(self._below + prefix)
        return [replace(upload, key=upload.key[cut:]) for upload in found]

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort one below the prefix."""
        await self.inner.abort_upload(replace(upload, key=self._full(upload.key)))

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
