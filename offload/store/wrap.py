"""The base of a store that stands before another and changes one thing.

Every method forwards, so that a decorator overrides what it is about and nothing is forgotten: a
new method of the port fails here first, because the class would stay abstract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload

__all__ = ["StoreDecorator", "UploadDecorator"]


class StoreDecorator(ObjectStore):
    """Passes every request on to `inner`, and closes it when closed."""

    __slots__ = ("inner",)

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        """The url of the store behind."""
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        """What the store behind can do."""
        return self.inner.capabilities

    async def put(self, key: str, body: Body) -> None:
        """Pass on."""
        await self.inner.put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Pass on."""
        await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Pass on."""
        return await self.inner.get(key, span)

    async def stored_crc32c(self, key: str) -> int | None:
        """Pass on."""
        return await self.inner.stored_crc32c(key)

    async def retained(self, key: str) -> str | None:
        """Pass on."""
        return await self.inner.retained(key)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Pass on."""
        return self.inner.list(prefix, after=after)

    def level(self, prefix: str) -> AsyncIterator[str]:
        """Pass on."""
        return self.inner.level(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """Pass on."""
        await self.inner.delete(keys)

    async def start_upload(self, key: str) -> Upload:
        """Pass on."""
        return await self.inner.start_upload(key)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Pass on."""
        return await self.inner.unfinished_uploads(prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Pass on."""
        await self.inner.abort_upload(upload)

    def note_mended(self) -> None:
        """Pass on that a reply was damaged and a second one was sound (`store.checked`)."""
        if isinstance(self.inner, StoreDecorator):
            self.inner.note_mended()

    async def aclose(self) -> None:
        """Close the store behind."""
        await self.inner.aclose()


class UploadDecorator(Upload):
    """Passes every call on to the upload `inner`."""

    __slots__ = ("inner",)

    def __init__(self, inner: Upload) -> None:
        self.inner = inner

    async def put_part(self, number: int, data: bytes) -> None:
        """Pass on."""
        await self.inner.put_part(number, data)

    async def complete(self) -> None:
        """Pass on."""
        await self.inner.complete()

    async def abort(self) -> None:
        """Pass on."""
        await self.inner.abort()
