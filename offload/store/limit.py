"""At most so many requests at once, at most so fast, and none for ever; up and down apart from each other.

Up is what changes the store (put, create, delete, uploads), down is what reads it. A request waits for
its turn without its clock running. Past its deadline it is cancelled: a read then raises `TryAgain`,
and so does waiting for the next row of a listing; a mutation raises `OutcomeUnknown`, because nobody
can tell how far the store had come. A store that throttles lowers the bound of that direction (`turns`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from offload.contracts.opening import RequestLimits
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload
from offload.errors import OffloadError, OutcomeUnknown, Throttled, TryAgain
from offload.store.rate import Rate
from offload.store.turns import Turns
from offload.store.wrap import StoreDecorator, UploadDecorator

__all__ = ["LimitedStore", "RequestTurns"]


T = TypeVar("T")


class LimitedStore(StoreDecorator):
    """Holds every request to `limits`. `aclose` is not limited."""

    __slots__ = ("_deadline_seconds", "down", "up")

    def __init__(
        self,
        inner: ObjectStore,
        limits: RequestLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        turns: RequestTurns | None = None,
    ) -> None:
        """Stores that are given the same `turns` are bounded together; without, this one is by itself."""
        super().__init__(inner)
        limits = limits or RequestLimits()
        self._deadline_seconds = limits.deadline_seconds
        turns = turns or RequestTurns(limits, clock=clock, sleep=sleep)
        self.up, self.down = turns.up, turns.down

    async def put(self, key: str, body: Body) -> None:
        """Put when it is our turn."""
        await self.up.pay(body.size_bytes)
        await self.limit(self.up, lambda: self.inner.put(key, body), f"put of {key!r}", OutcomeUnknown)

    async def create(self, key: str, data: bytes) -> None:
        """Create when it is our turn."""
        await self.up.pay(len(data))
        await self.limit(self.up, lambda: self.inner.create(key, data), f"create of {key!r}", OutcomeUnknown)

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read when it is our turn."""
        await self.down.pay(0)
        data = await self.limit(self.down, lambda: self.inner.get(key, span), f"get of {key!r}", TryAgain)
        self.down.owe(len(data))
        return data

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask when it is our turn."""
        await self.down.pay(0)
        what = f"checksum of {key!r}"
        return await self.limit(self.down, lambda: self.inner.stored_crc32c(key), what, TryAgain)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List; each row is a request of its own, so that a slow consumer holds up nobody."""
        await self.down.pay(0)
        rows = aiter(self.inner.list(prefix, after=after))
        what = f"list of {prefix!r}"
        while (row := await self.limit(self.down, lambda: _next(rows), what, TryAgain)) is not None:
            yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level; each name is a request of its own, as the rows of a listing are."""
        await self.down.pay(0)
        names = aiter(self.inner.level(prefix))
        what = f"list of {prefix!r}"
        while (name := await self.limit(self.down, lambda: _next(names), what, TryAgain)) is not None:
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete when it is our turn."""
        await self.up.pay(0)
        what = f"delete of {len(keys)} objects"
        await self.limit(self.up, lambda: self.inner.delete(keys), what, OutcomeUnknown)

    async def start_upload(self, key: str) -> Upload:
        """Begin an upload whose every call waits for its turn."""
        await self.up.pay(0)
        what = f"upload of {key!r}"
        begun = await self.limit(self.up, lambda: self.inner.start_upload(key), what, OutcomeUnknown)
        return _LimitedUpload(begun, self, key)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """List them when it is our turn."""
        await self.down.pay(0)
        what = f"list of uploads of {prefix!r}"
        return await self.limit(self.down, lambda: self.inner.unfinished_uploads(prefix), what, TryAgain)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort when it is our turn."""
        await self.up.pay(0)
        what = f"abort of {upload.key!r}"
        await self.limit(self.up, lambda: self.inner.abort_upload(upload), what, OutcomeUnknown)

    async def limit(
        self,
        direction: _Direction,
        request: Callable[[], Awaitable[T]],
        what: str,
        overdue: type[OffloadError],
    ) -> T:
        """Make `request` in its turn; past the deadline cancel it and raise `overdue`."""
        scope = asyncio.timeout(None)
        try:
            async with direction.turns, scope:
                if self._deadline_seconds is not None:
                    scope.reschedule(asyncio.get_running_loop().time() + self._deadline_seconds)
                result = await request()
        except Throttled:
            direction.turns.throttled()
            raise
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise overdue(
                f"{what} at {self.url} took longer than {self._deadline_seconds} s and was given up"
            ) from error
        direction.turns.succeeded()
        return result


class RequestTurns:
    """What is bounded: the turns and the rates of both directions, for one store or for several."""

    __slots__ = ("down", "up")

    def __init__(
        self,
        limits: RequestLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.up = _Direction(
            Turns(limits.up_requests_max, clock),
            requests=Rate(limits.up_requests_per_second_max, clock=clock, sleep=sleep),
            size_bytes=Rate(limits.up_bytes_per_second_max, clock=clock, sleep=sleep),
        )
        self.down = _Direction(
            Turns(limits.down_requests_max, clock),
            requests=Rate(limits.down_requests_per_second_max, clock=clock, sleep=sleep),
            size_bytes=Rate(limits.down_bytes_per_second_max, clock=clock, sleep=sleep),
        )


class _Direction:
    """Up or down: turns, and the rates of requests and bytes."""

    __slots__ = ("_requests", "_size_bytes", "turns")

    def __init__(self, turns: Turns, *, requests: Rate, size_bytes: Rate) -> None:
        self.turns = turns
        self._requests = requests
        self._size_bytes = size_bytes

    async def pay(self, size_bytes: int) -> None:
        """Wait until earlier use is paid for; note one request, and bytes where they are known."""
        await self._requests.take(1)
        await self._size_bytes.take(size_bytes)

    def owe(self, size_bytes: int) -> None:
        """Note bytes that came; the next request waits for them."""
        self._size_bytes.note(size_bytes)


async def _next(rows: AsyncIterator[T]) -> T | None:
    return await anext(rows, None)


class _LimitedUpload(UploadDecorator):
    __slots__ = ("_key", "_store")

    def __init__(self, inner: Upload, store: LimitedStore, key: str) -> None:
        super().__init__(inner)
        self._store = store
        self._key = key

    async def put_part(self, number: int, data: bytes) -> None:
        await self._store.up.pay(len(data))
        await self._limit(lambda: self.inner.put_part(number, data), f"part {number} of {self._key!r}")

    async def complete(self) -> None:
        await self._limit(self.inner.complete, f"completion of {self._key!r}")

    async def abort(self) -> None:
        await self._limit(self.inner.abort, f"abort of {self._key!r}")

    async def _limit(self, request: Callable[[], Awaitable[None]], what: str) -> None:
        await self._store.limit(self._store.up, request, what, OutcomeUnknown)
