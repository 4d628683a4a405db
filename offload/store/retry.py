"""Asking again where the store said `TryAgain`, a bounded number of times and not for ever.

Only what is the same request the second time is repeated: reads, listings (which go on after the
last key they gave), deletes, and puts, whose bytes are fixed before the first try; for these two an
outcome that nobody knows is as good a reason as `TryAgain`. `create` is passed through once: whether
an earlier try landed is for the commit protocol to find out by listing, and a repeat would only turn
its answer into `AlreadyExists`. Where the store asked to be left alone, the error of a `create` is
raised when that time has passed, so that the listing does not come too early. `complete` is not
repeated: its upload may be gone because it succeeded.
"""

from __future__ import annotations

import asyncio
import random as randomness
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from offload.env import backoff_seconds
from offload.errors import OffloadError, OutcomeUnknown, Throttled, TryAgain
from offload.store.port import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload
from offload.store.wrap import StoreDecorator, UploadDecorator

T = TypeVar("T")
_AGAIN_OR_UNKNOWN: Final = (TryAgain, OutcomeUnknown)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently. The n-th pause is d/2 to d long, d doubling up to its maximum."""

    attempts_max: int = 6
    deadline_seconds: float = 60.0
    """No attempt begins later than this after the first one began."""

    pause_seconds_first: float = 0.1
    pause_seconds_max: float = 10.0

    def pause_seconds(self, failures: int, chance: float) -> float:
        """The pause after so many failures; `chance` in [0, 1) decides where between d/2 and d."""
        return backoff_seconds(
            failures - 1, chance, first_seconds=self.pause_seconds_first, max_seconds=self.pause_seconds_max
        )


class RetryingStore(StoreDecorator):
    """Repeats what the module head allows. When patience ends, the last error is raised as it came."""

    __slots__ = ("_clock", "_policy", "_random", "_sleep")

    def __init__(
        self,
        inner: ObjectStore,
        *,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        super().__init__(inner)
        self._policy = policy or RetryPolicy()
        self._clock = clock
        self._sleep = sleep
        self._random = random

    async def put(self, key: str, body: Body) -> None:
        """Put, again from the first byte where told to, or where nobody knows: the bytes are the same."""
        await self.retry(lambda: self.inner.put(key, body), on=_AGAIN_OR_UNKNOWN)

    async def create(self, key: str, data: bytes) -> None:
        """Create, once. Where the store asked for a pause, its error is raised after it."""
        patience = self._patience()
        try:
            await self.inner.create(key, data)
        except Throttled as error:
            await patience.wait_out(error)
            raise

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read, again where told to."""
        return await self.retry(lambda: self.inner.get(key, span))

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask, again where told to."""
        return await self.retry(lambda: self.inner.stored_crc32c(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete, again where told to, or where nobody knows; what is gone already counts as deleted."""
        await self.retry(lambda: self.inner.delete(keys), on=_AGAIN_OR_UNKNOWN)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List, going on after the last key that was given. Progress renews the patience."""
        patience = self._patience()
        while True:
            try:
                async for row in self.inner.list(prefix, after=after):
                    after = row.key
                    yield row
                    patience = self._patience()
            except TryAgain as error:
                if not await patience.pause(error):
                    raise
            else:
                return

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level, from its beginning where told to, without what was given already."""
        patience, given = self._patience(), set()
        while True:
            try:
                async for name in self.inner.level(prefix):
                    if name not in given:
                        given.add(name)
                        yield name
                        patience = self._patience()
            except TryAgain as error:
                if not await patience.pause(error):
                    raise
            else:
                return

    async def start_upload(self, key: str) -> Upload:
        """Begin an upload whose parts are repeated where told to. A begun one may be left behind, unseen."""
        return _RetryingUpload(await self.retry(lambda: self.inner.start_upload(key)), self)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """List them, again where told to."""
        return await self.retry(lambda: self.inner.unfinished_uploads(prefix))

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort, again where told to, or where nobody knows."""
        await self.retry(lambda: self.inner.abort_upload(upload), on=_AGAIN_OR_UNKNOWN)

    async def retry(
        self, request: Callable[[], Awaitable[T]], *, on: tuple[type[OffloadError], ...] = (TryAgain,)
    ) -> T:
        """Make `request` until it answers, or raises anything but errors of `on`, or patience ends."""
        patience = self._patience()
        while True:
            try:
                return await request()
            except on as error:
                if not await patience.pause(error):
                    raise

    def _patience(self) -> _Patience:
        return _Patience(self._policy, self._clock, self._sleep, self._random)


class _Patience:
    """What is left of one request's attempts and time."""

    __slots__ = ("_clock", "_deadline", "_failures", "_policy", "_random", "_sleep")

    def __init__(
        self,
        policy: RetryPolicy,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._failures = 0
        self._deadline = clock() + policy.deadline_seconds

    async def pause(self, error: OffloadError) -> bool:
        """Wait for the next attempt and return True, or return False at once if there is to be none.

        A store that says how long it wants to be left alone is left alone at least so long.
        """
        self._failures += 1
        pause = self._policy.pause_seconds(self._failures, self._random())
        if isinstance(error, Throttled) and error.pause_seconds is not None:
            pause += error.pause_seconds  # on top, so that many who were told the same do not return at once
        if self._failures >= self._policy.attempts_max or self._clock() + pause > self._deadline:
            return False
        await self._sleep(pause)
        return True

    async def wait_out(self, error: Throttled) -> None:
        """Wait as long as the store asked for, unless that is beyond the deadline. Nothing is tried again."""
        pause = error.pause_seconds or 0.0
        if pause and self._clock() + pause <= self._deadline:
            await self._sleep(pause)


class _RetryingUpload(UploadDecorator):
    __slots__ = ("_store",)

    def __init__(self, inner: Upload, store: RetryingStore) -> None:
        super().__init__(inner)
        self._store = store

    async def put_part(self, number: int, data: bytes) -> None:
        await self._store.retry(lambda: self.inner.put_part(number, data))

    async def abort(self) -> None:
        await self._store.retry(self.inner.abort)
