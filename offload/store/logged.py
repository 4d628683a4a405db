"""Logging each request to a store, and what came of it: the log that `offload --debug` shows.

Stand it directly before the backend, so that every attempt is a line. A line holds the operation, the key,
sizes, times and the error: never the bytes of an object, and no option of the backend. Invariant: a request
does the same with and without the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, TypeVar, cast

from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload
from offload.errors import AlreadyExists, NotFound
from offload.store.wrap import StoreDecorator, UploadDecorator

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


def logged(store: ObjectStore, clock: Callable[[], float] = time.monotonic) -> ObjectStore:
    """`store`, which logs its requests if anybody listens to debug messages now."""
    return LoggedStore(store, clock) if _log.isEnabledFor(logging.DEBUG) else store


class LoggedStore(StoreDecorator):
    """Logs every request when it ends, at level DEBUG."""

    __slots__ = ("_clock",)

    def __init__(self, inner: ObjectStore, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner)
        self._clock = clock

    async def put(self, key: str, body: Body) -> None:
        """Log the size."""
        with _told(self._clock, f"put {key}, {body.size_bytes} bytes"):
            await self.inner.put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Log the size."""
        with _told(self._clock, f"create {key}, {len(data)} bytes"):
            await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Log the span, and the size of the reply."""
        with _told(self._clock, f"get {key}{_place(span)}") as found:
            data = await self.inner.get(key, span)
            found.append(f"{len(data)} bytes")
        return data

    async def stored_crc32c(self, key: str) -> int | None:
        """Log it."""
        with _told(self._clock, f"ask for the CRC-32C of {key}"):
            return await self.inner.stored_crc32c(key)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Log how many rows were taken. The time includes that of whoever takes them."""
        with _told(self._clock, f"list {prefix!r} after {after!r}") as found:
            async with aclosing(_counted(self.inner.list(prefix, after=after), found)) as rows:
                async for row in rows:
                    yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """As `list`."""
        with _told(self._clock, f"list the level {prefix!r}") as found:
            async with aclosing(_counted(self.inner.level(prefix), found)) as names:
                async for name in names:
                    yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Log the keys."""
        with _told(self._clock, f"delete {' '.join(keys)}"):
            await self.inner.delete(keys)

    async def start_upload(self, key: str) -> Upload:
        """Log it; the upload logs its own requests."""
        with _told(self._clock, f"start upload {key}"):
            return _LoggedUpload(await self.inner.start_upload(key), key, self._clock)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """Log it."""
        with _told(self._clock, f"list unfinished uploads {prefix!r}"):
            return await self.inner.unfinished_uploads(prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Log it."""
        with _told(self._clock, f"abort upload {upload.key}"):
            await self.inner.abort_upload(upload)


class _LoggedUpload(UploadDecorator):
    __slots__ = ("_clock", "_key")

    def __init__(self, inner: Upload, key: str, clock: Callable[[], float]) -> None:
        super().__init__(inner)
        self._key, self._clock = key, clock

    async def put_part(self, number: int, data: bytes) -> None:
        with _told(self._clock, f"put part {number} of {self._key}, {len(data)} bytes"):
            await self.inner.put_part(number, data)

    async def complete(self) -> None:
        with _told(self._clock, f"complete {self._key}"):
            await self.inner.complete()

    async def abort(self) -> None:
        with _told(self._clock, f"abort {self._key}"):
            await self.inner.abort()


@contextmanager
def _told(clock: Callable[[], float], request: str) -> Iterator[list[str]]:
    """Log the request when it ends: its time, and what was found or raised."""
    found: list[str] = []
    began = clock()
    try:
        yield found
    except (NotFound, AlreadyExists) as answer:
        found.append(type(answer).__name__)
        raise
    except BaseException as error:
        found.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        _log.debug("%s: %s", request, ", ".join([f"{clock() - began:.3f} s", *found]))


async def _counted(rows: AsyncIterator[T], found: list[str]) -> AsyncGenerator[T, None]:
    """The rows; and how many were taken, once they end or nobody wants more."""
    count = 0
    try:
        async with aclosing(cast("AsyncGenerator[T, None]", rows)):
            async for row in rows:
                count += 1
                yield row
    finally:
        found.append(f"rows: {count}")


def _place(span: Span | Suffix | None) -> str:
    match span:
        case Span(start, length):
            return f" [{start}, {start + length})"
        case Suffix(length):
            return f" [-{length}:]"
    return ""
