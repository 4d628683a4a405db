"""The base class of decorators: stores that forward to another store and change one thing.

Every method forwards its call, so a decorator overrides only the methods that it changes. A new abstract
method of the port fails here first, because this class would stay abstract without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

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
)
from offload.ground.errors import OffloadError

__all__ = ["StoreDecorator", "UploadDecorator"]


class StoreDecorator(ObjectStore):
    """A store that forwards every request to `inner`, and closes `inner` when it is closed."""

    __slots__ = ("inner",)

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        """The URL of the inner store."""
        return self.inner.url

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the inner store."""
        return self.inner.capabilities

    async def put(self, key: str, body: Body) -> None:
        """Forward to `inner`."""
        await self.inner.put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Forward to `inner`."""
        await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Forward to `inner`."""
        return await self.inner.get(key, span)

    async def stored_crc32c(self, key: str) -> int | None:
        """Forward to `inner`."""
        return await self.inner.stored_crc32c(key)

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Forward to `inner`."""
        return await self.inner.metadata_of(key)

    async def retained(self, key: str) -> str | None:
        """Forward to `inner`."""
        return await self.inner.retained(key)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Forward to `inner`."""
        return self.inner.list(prefix, after=after)

    def level(self, prefix: str) -> AsyncIterator[str]:
        """Forward to `inner`."""
        return self.inner.level(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """Forward to `inner`."""
        await self.inner.delete(keys)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Forward to `inner`."""
        return await begin_upload(self.inner, key, metadata)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Forward to `inner`."""
        return await self.inner.unfinished_uploads(prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Forward to `inner`."""
        await self.inner.abort_upload(upload)

    def placed(self, key: str) -> str:
        """Return the name that an object of data with this key has in `inner`."""
        return key

    def note_mended(self) -> None:
        """Report to the inner store that a reply was damaged and a second one was sound (`store.checked`)."""
        if isinstance(self.inner, StoreDecorator):
            self.inner.note_mended()

    def note_retry(self, operation: str, error: OffloadError) -> None:
        """Report to the inner store that a request is repeated after `error` (`store.retry`)."""
        if isinstance(self.inner, StoreDecorator):
            self.inner.note_retry(operation, error)

    async def aclose(self) -> None:
        """Close the inner store."""
        await self.inner.aclose()


class UploadDecorator(Upload):
    """An upload that forwards every call to the upload `inner`."""

    __slots__ = ("inner",)

    def __init__(self, inner: Upload) -> None:
        self.inner = inner

    async def put_part(self, number: int, data: bytes) -> None:
        """Forward to `inner`."""
        await self.inner.put_part(number, data)

    async def complete(self) -> None:
        """Forward to `inner`."""
        await self.inner.complete()

    async def abort(self) -> None:
        """Forward to `inner`."""
        await self.inner.abort()
