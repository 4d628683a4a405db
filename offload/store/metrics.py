"""Counting what a store is asked and how many bytes go either way.

A request is one call of the port, whether it succeeds or not; bytes are counted as they pass, so
a put that is sent twice counts twice. Stand it directly before the backend to count what is sent,
or in front of the retries to count what was asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from offload.contracts.opening import StoreMetrics
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload
from offload.store.wrap import StoreDecorator, UploadDecorator


class MeteredStore(StoreDecorator):
    """Adds to `metrics`, which several stores may share within one event loop."""

    __slots__ = ("metrics",)

    def __init__(self, inner: ObjectStore, metrics: StoreMetrics | None = None) -> None:
        super().__init__(inner)
        self.metrics = metrics or StoreMetrics()

    async def put(self, key: str, body: Body) -> None:
        """Count the request, and each window as it is taken."""

        async def counted() -> AsyncIterator[bytes]:
            async for window in body.windows():
                self.metrics.bytes_put += len(window)
                yield window

        self.metrics.requests["put"] += 1
        await self.inner.put(key, Body(size_bytes=body.size_bytes, windows=counted))

    async def create(self, key: str, data: bytes) -> None:
        """Count the request and its bytes."""
        self.metrics.requests["create"] += 1
        self.metrics.bytes_put += len(data)
        await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Count the request and the bytes of its answer."""
        self.metrics.requests["get"] += 1
        data = await self.inner.get(key, span)
        self.metrics.bytes_got += len(data)
        return data

    def note_mended(self) -> None:
        """Count the reply, and pass it on to a counter behind."""
        self.metrics.replies_mended += 1
        super().note_mended()

    async def stored_crc32c(self, key: str) -> int | None:
        """Count the request."""
        self.metrics.requests["stored_crc32c"] += 1
        return await self.inner.stored_crc32c(key)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Count one request, whatever the number of pages."""
        self.metrics.requests["list"] += 1
        return self.inner.list(prefix, after=after)

    def level(self, prefix: str) -> AsyncIterator[str]:
        """Count one request, whatever the number of pages."""
        self.metrics.requests["list"] += 1
        return self.inner.level(prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        """Count one request, whatever the number of keys."""
        self.metrics.requests["delete"] += 1
        await self.inner.delete(keys)

    async def start_upload(self, key: str) -> Upload:
        """Count the request; the upload counts its own."""
        self.metrics.requests["start_upload"] += 1
        return _MeteredUpload(await self.inner.start_upload(key), self.metrics)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Count one request, whatever the number of pages."""
        self.metrics.requests["list"] += 1
        return await self.inner.unfinished_uploads(prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Count the request."""
        self.metrics.requests["abort"] += 1
        await self.inner.abort_upload(upload)


class _MeteredUpload(UploadDecorator):
    __slots__ = ("_metrics",)

    def __init__(self, inner: Upload, metrics: StoreMetrics) -> None:
        super().__init__(inner)
        self._metrics = metrics

    async def put_part(self, number: int, data: bytes) -> None:
        self._metrics.requests["put_part"] += 1
        self._metrics.bytes_put += len(data)
        await self.inner.put_part(number, data)

    async def complete(self) -> None:
        self._metrics.requests["complete"] += 1
        await self.inner.complete()

    async def abort(self) -> None:
        self._metrics.requests["abort"] += 1
        await self.inner.abort()
