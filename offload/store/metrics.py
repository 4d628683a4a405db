"""A store that counts its requests in `StoreMetrics`: how they ended, their times and bytes, and spans.

A request is one call of the port, whether it succeeds or not. Place this store directly before the backend's
store to count the requests that are sent, or before the retries to count the requests that callers make.

A backend may report more about the `get` that it works for: `note_first_byte` when the head of the reply has
arrived, and `note_shared_reply` if no request is sent. Outside of a `get`, both do nothing.

Counting costs 1 to 2 microseconds for a request, and 0.2 for a row of a listing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, TypeVar

from offload.contracts.metrics import StoreMetrics, outcome_of
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
from offload.ground.env import REAL_ENV
from offload.ground.errors import OffloadError
from offload.ground.tracing import is_tracing, span
from offload.store.wrap import StoreDecorator, UploadDecorator

__all__ = ["MeteredStore", "note_first_byte", "note_shared_reply"]

T = TypeVar("T")

# A variable of the context, because a backend is called through other decorators, and has no argument for it.
_read: Final[ContextVar[_Read | None]] = ContextVar("_read", default=None)


def note_first_byte() -> None:
    """Note that the head of a reply has arrived. The last call counts, because a redirect is a reply too."""
    if (read := _read.get()) is not None:
        read.first_byte_at = read.now()


def note_shared_reply() -> None:
    """Note that a `get` takes its bytes from the reply to an earlier one, and sends nothing."""
    if (read := _read.get()) is not None:
        read.is_shared = True


class MeteredStore(StoreDecorator):
    """A store that counts its requests in `metrics`, which stores of one event loop may share."""

    __slots__ = ("clock", "is_traced", "metrics")

    def __init__(
        self,
        inner: ObjectStore,
        metrics: StoreMetrics | None = None,
        *,
        clock: Callable[[], float] = REAL_ENV.monotonic,
        is_traced: bool = False,
    ) -> None:
        """`is_traced`: each request is a span. For one of several metered stores on the way of a request."""
        super().__init__(inner)
        self.metrics = metrics or StoreMetrics()
        self.clock, self.is_traced = clock, is_traced

    async def put(self, key: str, body: Body) -> None:
        """Count the request, and the bytes of each window when it is taken."""

        async def counted() -> AsyncIterator[Buffer]:
            async for window in body.windows():
                self.metrics.moved["put"] += len(window)
                yield window

        with _Request(self, "put", key):
            await self.inner.put(key, replace(body, windows=counted))

    async def create(self, key: str, data: bytes) -> None:
        """Count the request and its bytes."""
        self.metrics.moved["create"] += len(data)
        with _Request(self, "create", key):
            await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Count the request and the bytes of its answer."""
        with _Read(self, "get", key):
            data = await self.inner.get(key, span)
        self.metrics.moved["get"] += len(data)
        return data

    def note_mended(self) -> None:
        """Count the reply, and tell the inner stores, which may count too."""
        self.metrics.replies_mended += 1
        super().note_mended()

    def note_retry(self, operation: str, error: OffloadError) -> None:
        """Count the repeat, and tell the inner stores, which may count too."""
        self.metrics.retries[operation, outcome_of(type(error))] += 1
        super().note_retry(operation, error)

    async def stored_crc32c(self, key: str) -> int | None:
        """Count the request."""
        with _Request(self, "stored_crc32c", key):
            return await self.inner.stored_crc32c(key)

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Count the request."""
        with _Request(self, "metadata_of", key):
            return await self.inner.metadata_of(key)

    async def retained(self, key: str) -> str | None:
        """Count the request."""
        with _Request(self, "retained", key):
            return await self.inner.retained(key)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Count one request, however many pages it has."""
        return self._listing(prefix, self.inner.list(prefix, after=after))

    def level(self, prefix: str) -> AsyncIterator[str]:
        """Count one request, however many pages it has."""
        return self._listing(prefix, self.inner.level(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        """Count one request, however many keys it has."""
        with _Request(self, "delete", keys[0] if keys else ""):
            await self.inner.delete(keys)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Count the request. The upload counts its own requests."""
        with _Request(self, "start_upload", key):
            inner = await begin_upload(self.inner, key, metadata)
        return _MeteredUpload(inner, self, key)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Count one request, however many pages it has."""
        with _Request(self, "list", prefix):
            return await self.inner.unfinished_uploads(prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Count the request."""
        with _Request(self, "abort", upload.key):
            await self.inner.abort_upload(upload)

    def _listing(self, prefix: str, rows: AsyncIterator[T]) -> AsyncIterator[T]:
        # Counted here and not with the first row, so that a listing that nobody asks for rows counts too.
        self.metrics.requests["list"] += 1
        return _watched(_Request(self, "list", prefix), rows, self.clock)


class _MeteredUpload(UploadDecorator):
    __slots__ = ("_key", "_store")

    def __init__(self, inner: Upload, store: MeteredStore, key: str) -> None:
        super().__init__(inner)
        self._store, self._key = store, key

    async def put_part(self, number: int, data: bytes) -> None:
        self._store.metrics.moved["put_part"] += len(data)
        with _Request(self._store, "put_part", self._key):
            await self.inner.put_part(number, data)

    async def complete(self) -> None:
        with _Request(self._store, "complete", self._key):
            await self.inner.complete()

    async def abort(self) -> None:
        with _Request(self._store, "abort", self._key):
            await self.inner.abort()


class _Request:
    """One request, from its beginning to its end. A class, because a generator costs three times as much."""

    __slots__ = ("_began", "_key", "_operation", "_span", "_store")

    def __init__(self, store: MeteredStore, operation: str, key: str) -> None:
        self._store, self._operation, self._key = store, operation, key

    def __enter__(self) -> None:
        self._store.metrics.requests[self._operation] += 1
        self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._span is not None:
            self._span.__exit__(kind, error, trace)
        self._store.metrics.ended(self._operation, outcome_of(kind), self._store.clock() - self._began)

    def begin(self, *, is_parent: bool = True) -> None:
        """Take the time, and begin a span if somebody wants one."""
        self._began = self._store.clock()
        self._span: AbstractContextManager[Any] | None = None
        if self._store.is_traced and is_tracing():
            self._span = span(f"store {self._operation}", is_parent=is_parent, key=self._key)
            self._span.__enter__()

    def leave_out(self, seconds: float) -> None:
        """Take off time that was not the store's."""
        self._began += seconds


class _Read(_Request):
    """One `get`, and what the backend says about its reply."""

    __slots__ = ("_outer", "first_byte_at", "is_shared")

    def __enter__(self) -> None:
        self.first_byte_at: float | None = None
        self.is_shared = False
        self._outer = _read.get()
        _read.set(self)
        super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Set and not reset: a coroutine that nobody awaits any more may be closed in another context.
        _read.set(self._outer)
        super().__exit__(kind, error, trace)
        metrics = self._store.metrics
        metrics.reads_shared += self.is_shared
        if self.first_byte_at is not None:
            metrics.first_bytes.add(self.first_byte_at - self._began)

    def now(self) -> float:
        """Return the time of the store's clock."""
        return self._store.clock()


async def _watched(
    request: _Request, rows: AsyncIterator[T], clock: Callable[[], float]
) -> AsyncGenerator[T, None]:
    """Yield the rows. The time between two rows is the consumer's, and does not count."""
    request.begin(is_parent=False)
    failure: BaseException | None = None
    try:
        try:
            async for row in rows:
                left = clock()
                yield row
                request.leave_out(clock() - left)
        finally:
            if isinstance(rows, AsyncGenerator):  # the port promises no more than an iterator
                await rows.aclose()
    except BaseException as error:
        # A consumer that has seen enough ends the listing well.
        failure = None if isinstance(error, GeneratorExit) else error
        raise
    finally:
        request.__exit__(type(failure) if failure else None, failure, None)
