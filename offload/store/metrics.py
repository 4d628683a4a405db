"""Counters of a store's requests and of the bytes in both directions, with times and spans for those who ask.

A request is one call of the port, whether it succeeds or not. Bytes are counted as they pass, so a put that
is sent twice counts twice. Place it directly before the backend's store to count the requests that are sent,
or before the retries to count the requests that callers make.

Without `StoreMetrics.observe` and without OpenTelemetry a request costs one increment more than without this
store.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, TypeVar, cast

from offload.contracts.opening import StoreMetrics
from offload.contracts.store import Body, Buffer, Listed, ObjectStore, Span, Suffix, Unfinished, Upload
from offload.errors import OffloadError
from offload.store.wrap import StoreDecorator, UploadDecorator
from offload.tracing import is_tracing, span

T = TypeVar("T")

OK: Final = "ok"


class MeteredStore(StoreDecorator):
    """A store that counts its requests in `metrics`, which stores of one event loop may share."""

    __slots__ = ("clock", "is_traced", "metrics")

    def __init__(
        self,
        inner: ObjectStore,
        metrics: StoreMetrics | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_traced: bool = False,
    ) -> None:
        """`is_traced`: each request is a span. For one of several metered stores on the way of a request."""
        super().__init__(inner)
        self.metrics = metrics or StoreMetrics()
        self.clock, self.is_traced = clock, is_traced

    async def put(self, key: str, body: Body) -> None:
        """Count the request, and the bytes of each window when it is taken."""

        async def counted() -> AsyncIterator[bytes]:
            async for window in body.windows():
                self.metrics.bytes_put += len(window)
                yield window

        with _Request(self, "put", key):
            await self.inner.put(key, replace(body, windows=counted))

    async def create(self, key: str, data: bytes) -> None:
        """Count the request and its bytes."""
        self.metrics.bytes_put += len(data)
        with _Request(self, "create", key):
            await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Count the request and the bytes of its answer."""
        with _Request(self, "get", key):
            data = await self.inner.get(key, span)
        self.metrics.bytes_got += len(data)
        return data

    def note_mended(self) -> None:
        """Count the reply, and tell the inner stores, which may count too."""
        self.metrics.replies_mended += 1
        super().note_mended()

    async def stored_crc32c(self, key: str) -> int | None:
        """Count the request."""
        with _Request(self, "stored_crc32c", key):
            return await self.inner.stored_crc32c(key)

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

    async def start_upload(self, key: str) -> Upload:
        """Count the request. The upload counts its own requests."""
        with _Request(self, "start_upload", key):
            inner = await self.inner.start_upload(key)
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
        is_watched = self.metrics.observe is not None or (self.is_traced and is_tracing())
        return _watched(_Request(self, "list", prefix), rows, self.clock) if is_watched else rows


class _MeteredUpload(UploadDecorator):
    __slots__ = ("_key", "_store")

    def __init__(self, inner: Upload, store: MeteredStore, key: str) -> None:
        super().__init__(inner)
        self._store, self._key = store, key

    async def put_part(self, number: int, data: bytes) -> None:
        self._store.metrics.bytes_put += len(data)
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
        if (observe := self._store.metrics.observe) is not None:
            observe(self._operation, outcome_of(kind), self._store.clock() - self._began)

    def begin(self, *, is_parent: bool = True) -> None:
        """Take the time, and begin a span if somebody wants one."""
        self._began = self._store.clock() if self._store.metrics.observe is not None else 0.0
        self._span: AbstractContextManager[Any] | None = None
        if self._store.is_traced and is_tracing():
            self._span = span(f"store {self._operation}", is_parent=is_parent, key=self._key)
            self._span.__enter__()

    def leave_out(self, seconds: float) -> None:
        """Take off time that was not the store's."""
        self._began += seconds


async def _watched(
    request: _Request, rows: AsyncIterator[T], clock: Callable[[], float]
) -> AsyncGenerator[T, None]:
    """Yield the rows. The time between two rows is the consumer's, and does not count."""
    request.begin(is_parent=False)
    failure: BaseException | None = None
    try:
        async with aclosing(cast("AsyncGenerator[T, None]", rows)):
            async for row in rows:
                left = clock()
                yield row
                request.leave_out(clock() - left)
    except BaseException as error:
        # A consumer that has seen enough ends the listing well.
        failure = None if isinstance(error, GeneratorExit) else error
        raise
    finally:
        request.__exit__(type(failure) if failure else None, failure, None)


def outcome_of(kind: type[BaseException] | None) -> str:
    """Return the name of an outcome: that of the error in snake case, without errors of other projects."""
    if kind is None:
        return OK
    if not issubclass(kind, OffloadError):
        return "cancelled" if issubclass(kind, asyncio.CancelledError) else "other"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
