"""Limits of requests: how many at once, how many and how many bytes a second, and how long each may take.

The two directions have separate limits. Up are the requests that change the store (put, create, delete,
uploads), down are those that read it.

- The deadline of a request starts when it gets its turn.
- A request that exceeds its deadline is cancelled. A read then raises `TryAgain`, and so does the wait for a
  row of a listing. A mutation raises `OutcomeUnknown`, because the store may have applied it.
- Metadata that the store does not keep is refused, also if the backend would drop it.
- A store that throttles lowers the bound of that direction (`turns`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from offload.contracts.object_metadata import NO_METADATA, check_metadata
from offload.contracts.opening import RequestLimits
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
from offload.ground.errors import OffloadError, OutcomeUnknown, Throttled, TryAgain
from offload.store.rate import Rate
from offload.store.turns import Turns
from offload.store.wrap import StoreDecorator, UploadDecorator

__all__ = ["LimitedStore", "RequestTurns"]


T = TypeVar("T")


class LimitedStore(StoreDecorator):
    """A store that bounds every request by `limits`. `aclose` is not limited."""

    __slots__ = ("_deadline_seconds", "_is_slow", "down", "up")

    def __init__(
        self,
        inner: ObjectStore,
        limits: RequestLimits | None = None,
        *,
        clock: Callable[[], float] = REAL_ENV.monotonic,
        sleep: Callable[[float], Awaitable[None]] = REAL_ENV.sleep,
        turns: RequestTurns | None = None,
    ) -> None:
        """Stores with the same `turns` are bounded together. Without `turns`, this store has its own."""
        super().__init__(inner)
        limits = limits or RequestLimits()
        self._deadline_seconds = limits.deadline_seconds
        self._is_slow = limits.down_bytes_per_second_max is not None
        turns = turns or RequestTurns(limits, clock=clock, sleep=sleep)
        self.up, self.down = turns.up, turns.down

    async def put(self, key: str, body: Body) -> None:
        """Put the object in turn."""
        # Backends check it too, but one that is older than metadata would store the object without it.
        check_metadata(body.metadata, self.capabilities)
        # Paid before the turn, here and below: a request that waits for its rate holds no turn.
        if not body.is_bound:
            await self.up.pay(body.size_bytes)
            await self.limit(self.up, lambda: self.inner.put(key, body), f"put of {key!r}", OutcomeUnknown)
            return
        # Only the windows show how many bytes they are, so the next request pays for them.
        size_bytes = 0

        async def counted() -> AsyncIterator[Buffer]:
            nonlocal size_bytes
            async for window in body.windows():
                size_bytes += len(window)
                yield window

        await self.up.pay(0)
        sent = replace(body, windows=counted)
        try:
            await self.limit(self.up, lambda: self.inner.put(key, sent), f"put of {key!r}", OutcomeUnknown)
        finally:
            self.up.owe(size_bytes)

    async def create(self, key: str, data: bytes) -> None:
        """Create the object in turn."""
        await self.up.pay(len(data))
        await self.limit(self.up, lambda: self.inner.create(key, data), f"create of {key!r}", OutcomeUnknown)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Read the object in turn."""
        await self.down.pay(0)
        if self._is_slow and isinstance(span, Span):
            # Without the hint: a reply that waits for the rate of the next read would be dropped, and what
            # had arrived of it be fetched twice.
            span = replace(span, follows=0)
        data = await self.limit(self.down, lambda: self.inner.get(key, span), f"get of {key!r}", TryAgain)
        # Noted afterwards, because only the reply shows how many bytes came. The next read waits for them.
        self.down.owe(len(data))
        return data

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask for the checksum in turn."""
        await self.down.pay(0)
        what = f"checksum of {key!r}"
        return await self.limit(self.down, lambda: self.inner.stored_crc32c(key), what, TryAgain)

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Ask for the metadata in turn."""
        await self.down.pay(0)
        what = f"metadata of {key!r}"
        return await self.limit(self.down, lambda: self.inner.metadata_of(key), what, TryAgain)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List objects. Each row takes a turn of its own, so a slow consumer holds none between rows."""
        await self.down.pay(0)
        rows = aiter(self.inner.list(prefix, after=after))
        # A turn for the whole listing would be held while the consumer works, perhaps for hours, and a
        # deadline for the whole listing would cut a long one.
        what = f"list of {prefix!r}"
        while (row := await self.limit(self.down, lambda: _next(rows), what, TryAgain)) is not None:
            yield row

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level. Each name takes a turn of its own, as each row of `list` does."""
        await self.down.pay(0)
        names = aiter(self.inner.level(prefix))
        what = f"list of {prefix!r}"
        while (name := await self.limit(self.down, lambda: _next(names), what, TryAgain)) is not None:
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects in turn."""
        await self.up.pay(0)
        what = f"delete of {len(keys)} objects"
        await self.limit(self.up, lambda: self.inner.delete(keys), what, OutcomeUnknown)

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload in turn. Each of its calls takes a turn too."""
        check_metadata(metadata, self.capabilities)
        await self.up.pay(0)
        what = f"upload of {key!r}"
        begun = await self.limit(
            self.up, lambda: begin_upload(self.inner, key, metadata), what, OutcomeUnknown
        )
        return _LimitedUpload(begun, self, key)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """List unfinished uploads in turn."""
        await self.down.pay(0)
        what = f"list of uploads of {prefix!r}"
        return await self.limit(self.down, lambda: self.inner.unfinished_uploads(prefix), what, TryAgain)

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort an upload in turn."""
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
        """Make `request` in its turn. Past the deadline, cancel it and raise `overdue`."""
        # Without a time at first: the deadline starts when the turn is taken, so a long queue costs no
        # request its deadline.
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
            if not scope.expired():  # the store's own error, and not this deadline
                raise
            raise overdue(
                f"{what} at {self.url} took longer than {self._deadline_seconds} s and was cancelled"
            ) from error
        direction.turns.succeeded()
        return result


class RequestTurns:
    """The turns and the rates of both directions, for one store or for several together."""

    __slots__ = ("down", "up")

    def __init__(
        self,
        limits: RequestLimits,
        *,
        clock: Callable[[], float] = REAL_ENV.monotonic,
        sleep: Callable[[float], Awaitable[None]] = REAL_ENV.sleep,
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
    """One direction, up or down: its turns, and its rates of requests and bytes."""

    __slots__ = ("_requests", "_size_bytes", "turns")

    def __init__(self, turns: Turns, *, requests: Rate, size_bytes: Rate) -> None:
        self.turns = turns
        self._requests = requests
        self._size_bytes = size_bytes

    async def pay(self, size_bytes: int) -> None:
        """Note one request and its bytes, if they are known, and wait until earlier use is paid for."""
        await self._requests.take(1)
        await self._size_bytes.take(size_bytes)

    def owe(self, size_bytes: int) -> None:
        """Note received bytes without waiting. The next request waits for them."""
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
