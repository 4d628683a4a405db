"""Asking again, for as long as the store may need to recover.

Only a request that is the same the second time is repeated: reads, listings (which continue after the last
key that they gave), deletes, and puts, whose bytes are fixed before the first attempt. Puts and deletes are
also repeated if nobody knows their outcome.

A `create` is repeated only after `TryAgain`: the store refused it, or never heard of it. If it took effect
all the same, the repeat raises `AlreadyExists`, and every caller of `create` reads back after that. If
nobody knows its outcome (a timeout, a lost reply), it is not repeated: the commit protocol lists first.
`complete` is never repeated: its upload may be gone because it succeeded.

All requests of one store share their patience, because a store that is down or overloaded is so for all of
them. Invariants: an answer to any request renews the patience of all; once it is spent, all waiting
requests fail at the same moment; a waiting request holds no turn of `LimitedStore`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random as randomness
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from offload.contracts.events import Event, Waiting
from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Unfinished, Upload
from offload.errors import AlreadyExists, NotFound, OffloadError, OutcomeUnknown, Throttled, TryAgain
from offload.store.wrap import StoreDecorator, UploadDecorator

__all__ = ["RetryPolicy", "RetryingStore"]


T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
_REFUSED: Final = (TryAgain,)
_REFUSED_OR_UNKNOWN: Final = (TryAgain, OutcomeUnknown)
_NEVER: Final[tuple[type[OffloadError], ...]] = ()

NOTICE_SECONDS: Final = 5.0
"""`Waiting` is emitted at most this often."""

BLIP_SECONDS: Final = 1.0
"""A shorter wait is not worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patiently a store is asked again."""

    patience_seconds: float = 120.0
    """How long requests may go on failing, from the first failure after the store's last answer."""

    attempts_max: int = 120
    """Of one request: some ten minutes. Ends one that always fails while the store answers all others."""

    pause_seconds_first: float = 0.1
    pause_seconds_max: float = 10.0

    def pause_seconds(self, failures: int, chance: float) -> float:
        """The pause after so many failures in a row: a random part of a bound that doubles ("full jitter").

        `chance` in [0, 1) is that part. Any part, so that clients that failed together come back apart.
        """
        doubled = self.pause_seconds_first * 2.0 ** min(failures - 1, 32)
        return chance * min(doubled, self.pause_seconds_max)


class RetryingStore(StoreDecorator):
    """Repeats what the module head allows. When patience ends, the last error is raised as it came."""

    __slots__ = ("_patience",)

    def __init__(
        self,
        inner: ObjectStore,
        *,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
        emit: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """`emit` hears of `Waiting`, now and then, as long as requests wait."""
        super().__init__(inner)
        self._patience = _Patience(
            inner.url, policy or RetryPolicy(), clock=clock, sleep=sleep, random=random, emit=emit
        )

    async def put(self, key: str, body: Body) -> None:
        """Put, again from the first byte if refused or if nobody knows: the bytes are the same.

        An error of the body is raised at once, as it came: the store is well, and its patience stays whole.
        """
        watched = _WatchedBody(body)

        async def put() -> None:
            try:
                await self.inner.put(key, watched.body)
            except _REFUSED_OR_UNKNOWN:
                if watched.error is None:
                    raise
                raise _BodyFailed from watched.error

        try:
            await self.retry(put, on=_REFUSED_OR_UNKNOWN)
        except _BodyFailed as failed:
            raise watched.error or failed from None

    async def create(self, key: str, data: bytes) -> None:
        """Create, again if refused. `OutcomeUnknown` is raised at once: read back before you repeat it."""
        await self.retry(lambda: self.inner.create(key, data))

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """Read, again if refused."""
        return await self.retry(lambda: self.inner.get(key, span))

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask, again if refused."""
        return await self.retry(lambda: self.inner.stored_crc32c(key))

    async def retained(self, key: str) -> str | None:
        """Ask, again if refused."""
        return await self.retry(lambda: self.inner.retained(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete, again if refused or if nobody knows; a key that is gone counts as deleted."""
        await self.retry(lambda: self.inner.delete(keys), on=_REFUSED_OR_UNKNOWN)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List, continuing after the last key that was given."""
        attempts = self._patience.attempts()
        while True:
            try:
                async for row in self.inner.list(prefix, after=after):
                    after = row.key
                    attempts.answered()
                    yield row
            except TryAgain as error:
                if not await attempts.pause(error):
                    raise
            else:
                attempts.answered()
                return

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level, from its beginning if it breaks off, without the names that were given already."""
        attempts, given = self._patience.attempts(), set()
        while True:
            try:
                async for name in self.inner.level(prefix):
                    if name not in given:  # one that comes again is no progress
                        given.add(name)
                        attempts.answered()
                        yield name
            except TryAgain as error:
                if not await attempts.pause(error):
                    raise
            else:
                attempts.answered()
                return

    async def start_upload(self, key: str) -> Upload:
        """Begin an upload whose parts are repeated if refused. A begun one may be left behind, unseen."""
        return _RetryingUpload(await self.retry(lambda: self.inner.start_upload(key)), self)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """List them, again if refused."""
        return await self.retry(lambda: self.inner.unfinished_uploads(prefix))

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort, again if refused or if nobody knows."""
        await self.retry(lambda: self.inner.abort_upload(upload), on=_REFUSED_OR_UNKNOWN)

    async def retry(
        self, request: Callable[[], Awaitable[T]], *, on: tuple[type[OffloadError], ...] = _REFUSED
    ) -> T:
        """Make `request` until it answers, raises anything but errors of `on`, or patience ends."""
        attempts = self._patience.attempts()
        while True:
            try:
                result = await request()
            except (NotFound, AlreadyExists):
                attempts.answered()
                raise
            except on as error:
                if not await attempts.pause(error):
                    raise
            else:
                attempts.answered()
                return result


class _BodyFailed(Exception):
    """The source of a body failed, and not the store."""


class _WatchedBody:
    """A body that remembers the error with which its source failed."""

    __slots__ = ("_of", "body", "error")

    def __init__(self, of: Body) -> None:
        self._of = of
        self.body = Body(size_bytes=of.size_bytes, windows=self._windows)
        self.error: OffloadError | None = None

    async def _windows(self) -> AsyncIterator[bytes]:
        try:
            async for window in self._of.windows():
                yield window
        except OffloadError as error:
            self.error = error
            raise


class _Patience:
    """How long the requests of one store wait for it, together.

    Trouble begins with the first failure after an answer, and the next answer ends it. When it has lasted
    for `patience_seconds`, waiting requests give up, and each later request gets one attempt, until one of
    them is answered. Trouble of which nobody heard for that long is over too: it says nothing about today.
    """

    __slots__ = (
        "_clock",
        "_emit",
        "_failed_at",
        "_noticed_at",
        "_random",
        "_since",
        "_sleep",
        "_url",
        "policy",
    )

    def __init__(
        self,
        url: str,
        policy: RetryPolicy,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
        emit: Callable[[Event], None],
    ) -> None:
        self.policy = policy
        self._url, self._clock, self._sleep, self._random, self._emit = url, clock, sleep, random, emit
        self._since: float | None = None
        """When the trouble began; None while there is none."""

        self._failed_at = self._noticed_at = -math.inf

    def attempts(self) -> _Attempts:
        """Those of a request that begins now."""
        if self._clock() - self._failed_at > self.policy.patience_seconds:
            self._since = None
        return _Attempts(self)

    def answered(self) -> None:
        """The store answered some request: whatever trouble there was is over."""
        self._since = None

    async def pause(self, error: OffloadError, failures: int) -> bool:
        """Wait for the next attempt and return True, or return False if there is to be none.

        A store that says how long it wants to be left alone (`Throttled`) is left alone for at least so long.
        If that is longer than patience lasts, nobody waits. The random part comes on top, so that many who
        were told the same do not return at once.
        """
        now = self._failed_at = self._clock()
        self._since = since = now if self._since is None else self._since
        left = since + self.policy.patience_seconds - now
        asked = (error.pause_seconds if isinstance(error, Throttled) else None) or 0.0
        if left <= 0 or asked > left or failures >= self.policy.attempts_max:
            _log.debug("%s: gives up after attempt %d", self._url, failures)
            return False
        pause = min(asked + self.policy.pause_seconds(failures, self._random()), left)
        _log.debug("%s: waits %.1f s after attempt %d", self._url, pause, failures)
        self._notice(error, waited=now - since, pause=pause)
        await self._sleep(pause)
        return self._since is None or self._clock() < self._since + self.policy.patience_seconds

    def _notice(self, error: OffloadError, *, waited: float, pause: float) -> None:
        if waited + pause < BLIP_SECONDS or self._failed_at - self._noticed_at < NOTICE_SECONDS:
            return
        self._noticed_at = self._failed_at
        self._emit(
            Waiting(
                url=self._url,
                error=error,
                waited_seconds=waited,
                patience_seconds=self.policy.patience_seconds,
            )
        )


class _Attempts:
    """The attempts of one request."""

    __slots__ = ("_failures", "_patience")

    def __init__(self, patience: _Patience) -> None:
        self._patience = patience
        self._failures = 0

    def answered(self) -> None:
        """The store answered: what follows may fail as often again."""
        self._failures = 0
        self._patience.answered()

    async def pause(self, error: OffloadError) -> bool:
        """As `_Patience.pause`."""
        self._failures += 1
        return await self._patience.pause(error, self._failures)


class _RetryingUpload(UploadDecorator):
    __slots__ = ("_store",)

    def __init__(self, inner: Upload, store: RetryingStore) -> None:
        super().__init__(inner)
        self._store = store

    async def put_part(self, number: int, data: bytes) -> None:
        await self._store.retry(lambda: self.inner.put_part(number, data), on=_REFUSED_OR_UNKNOWN)

    async def complete(self) -> None:
        await self._store.retry(self.inner.complete, on=_NEVER)

    async def abort(self) -> None:
        await self._store.retry(self.inner.abort)
