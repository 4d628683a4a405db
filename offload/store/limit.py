"""At most so many requests at once, and none for ever.

A request waits for its turn without its clock running. Past its deadline it is cancelled: a read
then raises `TryAgain`, and so does waiting for the next row of a listing; a mutation raises
`OutcomeUnknown`, because nobody can tell how far the store had come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TypeVar

from offload.errors import OffloadError, OutcomeUnknown, TryAgain
from offload.store.port import Body, Listed, ObjectStore, Span, Suffix, Upload
from offload.store.wrap import StoreDecorator, UploadDecorator

T = TypeVar("T")


class LimitedStore(StoreDecorator):
    """Lets `requests_max` requests in at a time and cancels each after `deadline_seconds`.

    A `put` is one request whatever its size: choose the deadline for the largest object. `aclose`
    is not limited.
    """

    __slots__ = ("_deadline_seconds", "_turns")

    def __init__(
        self, inner: ObjectStore, *, requests_max: int, deadline_seconds: float | None = None
    ) -> None:
        super().__init__(inner)
        self._turns = asyncio.Semaphore(requests_max)
        self._deadline_seconds = deadline_seconds

    async def put(self, key: str, body: Body) -> None:
        """Put when it is our turn."""
        await self.limit(self.inner.put(key, body), f"put of {key!r}", OutcomeUnknown)

    async def create(self, key: str, data: bytes) -> None:
        """Create when it is our turn."""
        await self.limit(self.inner.create(key, data), f"create of {key!r}", OutcomeUnknown)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read when it is our turn."""
        return await self.limit(self.inner.get(key, span), f"get of {key!r}", TryAgain)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List; each row is a request of its own, so that a slow consumer holds up nobody."""
        rows = aiter(self.inner.list(prefix, after=after))
        while (row := await self.limit(_next(rows), f"list of {prefix!r}", TryAgain)) is not None:
            yield row

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete when it is our turn."""
        await self.limit(self.inner.delete(keys), f"delete of {len(keys)} objects", OutcomeUnknown)

    async def start_upload(self, key: str) -> Upload:
        """Begin an upload whose every call waits for its turn."""
        begun = await self.limit(self.inner.start_upload(key), f"upload of {key!r}", OutcomeUnknown)
        return _LimitedUpload(begun, self, key)

    async def limit(self, request: Awaitable[T], what: str, overdue: type[OffloadError]) -> T:
        """Await `request` in its turn; past the deadline cancel it and raise `overdue`."""
        scope = asyncio.timeout(None)
        try:
            async with self._turns, scope:
                if self._deadline_seconds is not None:
                    scope.reschedule(asyncio.get_running_loop().time() + self._deadline_seconds)
                return await request
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise overdue(
                f"{what} at {self.url} took longer than {self._deadline_seconds} s and was given up"
            ) from error
        finally:
            if asyncio.iscoroutine(request):
                request.close()  # it never began, where the turn itself was cancelled


async def _next(rows: AsyncIterator[Listed]) -> Listed | None:
    return await anext(rows, None)


class _LimitedUpload(UploadDecorator):
    __slots__ = ("_key", "_store")

    def __init__(self, inner: Upload, store: LimitedStore, key: str) -> None:
        super().__init__(inner)
        self._store = store
        self._key = key

    async def put_part(self, number: int, data: bytes) -> None:
        request = self.inner.put_part(number, data)
        await self._store.limit(request, f"part {number} of {self._key!r}", OutcomeUnknown)

    async def complete(self) -> None:
        await self._store.limit(self.inner.complete(), f"completion of {self._key!r}", OutcomeUnknown)

    async def abort(self) -> None:
        await self._store.limit(self.inner.abort(), f"abort of {self._key!r}", OutcomeUnknown)
