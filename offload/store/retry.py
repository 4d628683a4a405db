"""Repeating requests that fail, for as long as a store may need to recover.

A request is repeated only if it has the same effect the second time:

- Reads, listings, deletes and puts are repeated. A listing continues after its last key. The bytes of a put
  are fixed before the first attempt. Deletes and puts are also repeated if their outcome is unknown.
- A `create` is repeated only after `TryAgain`: the store refused it, or did not receive it. If it took effect
  all the same, the repeat raises `AlreadyExists`, and every caller of `create` reads back after that. If its
  outcome is unknown (a timeout, a lost reply), it is not repeated: the commit protocol lists first.
- `complete` is never repeated: the upload may be gone because it was completed.

All requests of one store share their patience, because a store that is down or overloaded fails all of them.

Invariants:

- An answer to any request renews the patience of all.
- When patience is spent, all waiting requests fail at the same moment.
- A waiting request holds no turn of `LimitedStore`.
- A caller hears of a store that answers nothing: no small request waits for longer than `SILENT_SECONDS`
  without an event. A large one may take long because its bytes do.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from offload.contracts.events import Event, Waiting
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
from offload.ground.errors import AlreadyExists, NotFound, OffloadError, OutcomeUnknown, Throttled, TryAgain
from offload.store.wrap import StoreDecorator, UploadDecorator

__all__ = ["RetryPolicy", "RetryingStore"]


T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
_REFUSED: Final = (TryAgain,)
_REFUSED_OR_UNKNOWN: Final = (TryAgain, OutcomeUnknown)
_NEVER: Final[tuple[type[OffloadError], ...]] = ()

NOTICE_SECONDS: Final = 5.0
"""The shortest time between two `Waiting` events of a store."""

SILENT_SECONDS: Final = 5.0
"""A store that has answered nothing for this long is announced, so a person hears of it within 10 s."""

SMALL_SIZE_BYTES: Final = 1024 * 1024
"""A read of at most so many bytes is a small request."""

BLIP_SECONDS: Final = 1.0
"""A wait shorter than this is not announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The bounds and pauses of repeated requests."""

    # Long enough for the restart of a server and for a bucket that throttles: neither may end a sync.
    patience_seconds: float = 120.0
    """The time for which requests may fail, from the first failure after the store's last answer."""

    attempts_max: int = 120
    """The most attempts of one request, some ten minutes. Ends one that fails while others succeed."""

    pause_seconds_first: float = 0.1
    pause_seconds_max: float = 10.0

    def pause_seconds(self, failures: int, chance: float) -> float:
        """Return the pause after `failures` failures in a row: a random part of a bound that doubles.

        `chance` in [0, 1) is that part ("full jitter"). So clients that failed at the same moment come back
        at different times.
        """
        # The exponent is bounded because a large one would overflow a float before `min` could cut it off.
        doubled = self.pause_seconds_first * 2.0 ** min(failures - 1, 32)
        return chance * min(doubled, self.pause_seconds_max)


class RetryingStore(StoreDecorator):
    """A store that repeats failed requests. When patience ends, it raises the last error unchanged."""

    __slots__ = ("_patience",)

    def __init__(
        self,
        inner: ObjectStore,
        *,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = REAL_ENV.monotonic,
        sleep: Callable[[float], Awaitable[None]] = REAL_ENV.sleep,
        random: Callable[[], float] = REAL_ENV.random,
        emit: Callable[[Event], None] | None = None,
    ) -> None:
        """`emit` gets a `Waiting` event every few seconds as long as requests wait."""
        super().__init__(inner)
        self._patience = _Patience(
            inner.url, policy or RetryPolicy(), clock=clock, sleep=sleep, random=random, emit=emit
        )

    async def put(self, key: str, body: Body) -> None:
        """Put the object. After a refusal or an unknown outcome, repeat it from the first byte.

        An error of the body's source is raised at once and unchanged. It costs the store no patience.
        """
        watched = _WatchedBody(body)

        async def put() -> None:
            try:
                await self.inner.put(key, watched.body)
            except _REFUSED_OR_UNKNOWN:
                if watched.error is None:
                    raise
                # The source of the body may raise `TryAgain` too. Taken for the store's, it would spend the
                # patience of every request of this store. `retry` does not repeat after this class.
                raise _BodyFailed from watched.error

        try:
            await self.retry("put", put, on=_REFUSED_OR_UNKNOWN, is_small=False)
        except _BodyFailed as failed:
            # The caller gets the source's own error, with its cause, and never sees the class of this module.
            raise watched.error or failed from None

    async def create(self, key: str, data: bytes) -> None:
        """Create the object.

        Repeats after a refusal only: after `OutcomeUnknown` the caller must read back.
        """
        await self.retry("create", lambda: self.inner.create(key, data))

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Read the object. Repeats after a refusal."""
        is_small = span is None or span.length <= SMALL_SIZE_BYTES
        return await self.retry("get", lambda: self.inner.get(key, span), is_small=is_small)

    async def stored_crc32c(self, key: str) -> int | None:
        """Ask for the checksum. Repeats after a refusal."""
        return await self.retry("stored_crc32c", lambda: self.inner.stored_crc32c(key))

    async def metadata_of(self, key: str) -> Mapping[str, str] | None:
        """Ask for the metadata. Repeats after a refusal."""
        return await self.retry("metadata_of", lambda: self.inner.metadata_of(key))

    async def retained(self, key: str) -> str | None:
        """Ask whether bytes are kept after a deletion. Repeats after a refusal."""
        return await self.retry("retained", lambda: self.inner.retained(key))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects. Repeats after a refusal or an unknown outcome: absent keys count as deleted."""
        await self.retry("delete", lambda: self.inner.delete(keys), on=_REFUSED_OR_UNKNOWN)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """List objects. After a refusal, continue after the last key that was yielded."""
        attempts = self._attempts("list")
        while True:
            try:
                rows = self.inner.list(prefix, after=after)
                with attempts.announced():
                    row = await anext(rows, None)
                while row is not None:
                    # `answered` comes before the yield, during which the consumer may take any time. After
                    # it, this old answer could end a trouble that began meanwhile.
                    after = row.key
                    attempts.answered()
                    yield row
                    row = await anext(rows, None)
            except TryAgain as error:
                if not await attempts.pause(error):
                    raise
            else:
                attempts.answered()  # a listing of nothing is an answer too
                return

    async def level(self, prefix: str) -> AsyncIterator[str]:
        """List one level. After a refusal, begin again and leave out the names that were yielded before."""
        # `level` of the port has no `after`, so a level cannot be continued like a listing.
        attempts, given = self._attempts("list"), set()
        while True:
            try:
                names = self.inner.level(prefix)
                with attempts.announced():
                    name = await anext(names, None)
                while name is not None:
                    # A name that comes again is no progress. If it counted as an answer, a level that always
                    # breaks off at the same place would be repeated for ever.
                    if name not in given:
                        given.add(name)
                        attempts.answered()
                        yield name
                    name = await anext(names, None)
            except TryAgain as error:
                if not await attempts.pause(error):
                    raise
            else:
                attempts.answered()
                return

    async def start_upload(self, key: str, *, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        """Begin an upload.

        Repeats after a refusal, so an earlier attempt may leave an upload that nobody uses.
        """
        # The store can list such an upload (`unfinished_uploads`), and a sweep aborts it later.
        begun = await self.retry("start_upload", lambda: begin_upload(self.inner, key, metadata))
        return _RetryingUpload(begun, self)

    async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
        """List unfinished uploads. Repeats after a refusal."""
        return await self.retry("list", lambda: self.inner.unfinished_uploads(prefix))

    async def abort_upload(self, upload: Unfinished) -> None:
        """Abort an upload. Repeats after a refusal or an unknown outcome."""
        await self.retry("abort", lambda: self.inner.abort_upload(upload), on=_REFUSED_OR_UNKNOWN)

    async def retry(
        self,
        operation: str,
        request: Callable[[], Awaitable[T]],
        *,
        on: tuple[type[OffloadError], ...] = _REFUSED,
        is_small: bool = True,
    ) -> T:
        """Repeat `request` until it returns, raises an error that is not in `on`, or patience ends.

        `operation` is its name in `StoreMetrics`. A request that `is_small` is announced while it has no
        answer.
        """
        attempts = self._attempts(operation)
        while True:
            try:
                with attempts.announced() if is_small else nullcontext():
                    result = await request()
            except (NotFound, AlreadyExists):
                # Only a store that works can say so. As an answer, it renews the patience of all requests.
                attempts.answered()
                raise
            except on as error:
                # The pause is out here, before the limits of `LimitedStore`, so it holds no turn.
                if not await attempts.pause(error):
                    raise
            else:
                attempts.answered()
                return result

    def _attempts(self, operation: str) -> _Attempts:
        return _Attempts(self._patience, partial(self.note_retry, operation))


class _BodyFailed(Exception):
    """The error of a put whose body's source failed, and not the store."""


class _WatchedBody:
    """A body that remembers the error with which its source failed."""

    __slots__ = ("_of", "body", "error")

    def __init__(self, of: Body) -> None:
        self._of = of
        self.body = replace(of, windows=self._windows)
        self.error: OffloadError | None = None

    async def _windows(self) -> AsyncIterator[Buffer]:
        try:
            async for window in self._of.windows():
                yield window
        except OffloadError as error:  # no other error could be taken for the store's refusal
            self.error = error
            raise


class _Patience:
    """The patience that all requests of one store share.

    Trouble begins with the first failure after an answer, and ends with the next answer. When it has lasted
    for `patience_seconds`, waiting requests give up, and each later request gets one attempt, until one of
    them is answered. Trouble also ends if no request failed for that long.
    """

    __slots__ = (
        "_answered_at",
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
        emit: Callable[[Event], None] | None,
    ) -> None:
        self.policy = policy
        self._url, self._clock, self._sleep, self._random, self._emit = url, clock, sleep, random, emit
        self._since: float | None = None
        """The time at which the trouble began. None if there is none."""

        # The times of the newest answer, of the newest failure, and of the newest announcement.
        self._answered_at = self._failed_at = self._noticed_at = -math.inf

    def begin(self) -> None:
        """Note that a request begins now."""
        # If no request is sent, nobody notices that the store works again. An old failure says nothing about
        # the present, so this request gets the whole patience.
        if self._clock() - self._failed_at > self.policy.patience_seconds:
            self._since = None

    def answered(self) -> None:
        """End the trouble: the store answered a request."""
        self._since, self._answered_at = None, self._clock()

    def announce(self, asked_at: float) -> float:
        """Announce that a request of this time has no answer. Return the seconds until the next look.

        Nothing is announced if the store answered another request a short time ago: it is slow, not silent.
        """
        now = self._clock()
        since = max(asked_at, self._answered_at)
        if now - since < SILENT_SECONDS:
            return since + SILENT_SECONDS - now
        if now - self._noticed_at >= NOTICE_SECONDS:
            self._noticed_at = now
            began = since if self._since is None else self._since
            self._waits(TryAgain(f"{self._url}: no answer yet"), now - began)
        return 2 * SILENT_SECONDS

    async def pause(self, error: OffloadError, failures: int) -> bool:
        """Wait and return True if the request may be repeated. Return False if it may not.

        If the store asks for a pause (`Throttled`), the wait is at least as long. If that exceeds the
        patience, nobody waits. The random part is added to it, so that clients that got the same reply do not
        come back at the same moment.
        """
        now = self._failed_at = self._clock()
        # Trouble begins with this failure, not with the beginning of the request: an attempt that hung for
        # longer than the patience is still followed by another one.
        self._since = since = now if self._since is None else self._since
        left = since + self.policy.patience_seconds - now
        asked = (error.pause_seconds if isinstance(error, Throttled) else None) or 0.0
        # The bound of attempts ends a request that always fails while answers to others renew its patience.
        if left <= 0 or asked > left or failures >= self.policy.attempts_max:
            _log.debug("%s: gives up after attempt %d", self._url, failures)
            return False
        # At most until patience ends, so that all waiting requests fail at that moment.
        pause = min(asked + self.policy.pause_seconds(failures, self._random()), left)
        _log.debug("%s: waits %.1f s after attempt %d", self._url, pause, failures)
        self._notice(error, waited=now - since, pause=pause)
        await self._sleep(pause)
        # `_since` is read again: during the sleep, the answer to another request may have ended the trouble.
        return self._since is None or self._clock() < self._since + self.policy.patience_seconds

    def _notice(self, error: OffloadError, *, waited: float, pause: float) -> None:
        # Announced before the pause, which may be long if the store asks for it.
        if waited + pause < BLIP_SECONDS or self._failed_at - self._noticed_at < NOTICE_SECONDS:
            return
        self._noticed_at = self._failed_at
        self._waits(error, waited)

    @property
    def is_heard(self) -> bool:
        """Whether somebody listens to announcements."""
        return self._emit is not None

    def _waits(self, error: OffloadError, waited: float) -> None:
        if self._emit is None:
            return
        self._emit(
            Waiting(
                url=self._url,
                error=error,
                waited_seconds=waited,
                patience_seconds=self.policy.patience_seconds,
            )
        )

    def now(self) -> float:
        """Return the time of the clock."""
        return self._clock()


class _Attempts:
    """The attempts of one request."""

    __slots__ = ("_failures", "_note", "_patience")

    def __init__(self, patience: _Patience, note: Callable[[OffloadError], None]) -> None:
        """`note` is called before each repeat, with the error of the attempt before."""
        patience.begin()
        self._patience, self._note = patience, note
        self._failures = 0

    def answered(self) -> None:
        """Count failures from 0 again: the store answered this request, if only with a row of a listing."""
        self._failures = 0
        self._patience.answered()

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Announce every few seconds that the request inside has no answer, if anybody listens."""
        if not self._patience.is_heard:
            yield
            return
        loop, asked_at = asyncio.get_running_loop(), self._patience.now()
        timer = loop.call_later(SILENT_SECONDS, lambda: look())

        def look() -> None:
            nonlocal timer
            timer = loop.call_later(self._patience.announce(asked_at), look)

        try:
            yield
        finally:
            timer.cancel()

    async def pause(self, error: OffloadError) -> bool:
        """Count a failure, and do as `_Patience.pause`."""
        self._failures += 1
        is_repeated = await self._patience.pause(error, self._failures)
        if is_repeated:
            self._note(error)
        return is_repeated


class _RetryingUpload(UploadDecorator):
    __slots__ = ("_store",)

    def __init__(self, inner: Upload, store: RetryingStore) -> None:
        super().__init__(inner)
        self._store = store

    async def put_part(self, number: int, data: bytes) -> None:
        # The contract allows the same number again with the same bytes, so an unknown outcome does no harm.
        await self._store.retry("put_part", lambda: self.inner.put_part(number, data), on=_REFUSED_OR_UNKNOWN)

    async def complete(self) -> None:
        # It is never repeated. It goes through `retry` because its answer renews the patience.
        await self._store.retry("complete", self.inner.complete, on=_NEVER)

    async def abort(self) -> None:
        await self._store.retry("abort", self.inner.abort)
