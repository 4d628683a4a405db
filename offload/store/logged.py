"""A log of each request to a store and its outcome: the log that `offload --debug` shows.

Place it directly before the backend's store, so that every attempt is a line. A line has the operation, the
key, sizes, times and the error. It never has the bytes of an object or an option of the backend.

Invariant: a request does the same with and without the log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Final, TypeVar, cast

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
from offload.ground.errors import AlreadyExists, NotFound
from offload.store.wrap import StoreDecorator, UploadDecorator

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


def logged(store: ObjectStore, clock: Callable[[], float] = REAL_ENV.monotonic) -> ObjectStore:
    """Return `store` with a log of its requests if debug messages are enabled now, else `store` itself."""
    return LoggedStore(store, clock) if _log.isEnabledFor(logging.DEBUG) else store


class LoggedStore(StoreDecorator):
    """A store that logs every request when it ends, at level DEBUG."""

    __slots__ = ("_clock",)

    def __init__(self, inner: ObjectStore, clock: Callable[[], float] = REAL_ENV.monotonic) -> None:
        super().__init__(inner)
        self._clock = clock

    async def put(self, key: str, body: Body) -> None:
        """Put the object, and log its size."""
        with _told(self._clock, f"put {key}, {body.size_bytes} bytes"):
            await self.inner.put(key, body)

    async def create(self, key: str, data: bytes) -> None:
        """Create the object, and log its size."""
        with _told(self._clock, f"create {key}, {len(data)} bytes"):
            await self.inner.create(key, data)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Read the object, and log the span and the size of the reply."""
        with _told(self._clock, f"get {key}{_place(span)}") as found:
            data = await self.inner.get(key, span)
            found.append(f"{len(data)} bytes")
        return data

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask for the checksum, and log the request."""
        with _told(self._clock, f"ask for the CRC-32C of {key}"):
            return await self.inner.stored_crc32c(key)

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Ask for the metadata, and log the request."""
        with _told(self._clock, f"ask for the metadata of {key}"):
            return await self.inner.metadata_of(key)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List objects, and log the number of rows that were taken.

        The time includes that of the consumer.
        """
        with _told(self._clock, f"list {prefix!r} after {after!r}") as found:
            async with aclosing(_counted(self.inner.list(prefix, after=after), found)) as rows:
                async for row in rows:
                    yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level, and log the same as for `list`."""
        with _told(self._clock, f"list the level {prefix!r}") as found:
            async with aclosing(_counted(self.inner.level(prefix), found)) as names:
                async for name in names:
                    yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects, and log their keys."""
        with _told(self._clock, f"delete {' '.join(keys)}"):
            await self.inner.delete(keys)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload, and log the request. The upload logs its own requests."""
        with _told(self._clock, f"start upload {key}"):
            return _LoggedUpload(await begin_upload(self.inner, key, metadata), key, self._clock)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """List unfinished uploads, and log the request."""
        with _told(self._clock, f"list unfinished uploads {prefix!r}"):
            return await self.inner.unfinished_uploads(prefix)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort an upload, and log the request."""
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
    """Log the request when it ends: its time, and its result or error."""
    found: list[str] = []
    began = clock()
    try:
        yield found
    except (NotFound, AlreadyExists) as answer:  # their texts only repeat the key
        found.append(type(answer).__name__)
        raise
    except BaseException as error:
        found.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        _log.debug("%s: %s", request, ", ".join([f"{clock() - began:.3f} s", *found]))


async def _counted(rows: AsyncIterator[T], found: list[str]) -> AsyncGenerator[T, None]:
    """Yield the rows. When they end, or the consumer stops, add the number that was taken to `found`."""
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
