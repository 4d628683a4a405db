"""Immutable objects by a faster client: obstore sends and fetches bytes outside Python.

A `FastStore` wraps a backend's own store, the *inner* store. Whole puts and reads go through obstore, one
request for each call. All other calls, and every create, go to the inner store. Invariants:

- Obstore sends no request that it cannot express exactly: `open_fast` returns `None` then, and the inner
  store makes all requests.
- If obstore never sent a request (no connection, no credentials, a key that it refuses), the inner store
  makes it instead, and its errors say what is wrong. A mutation that obstore may have sent is never sent
  again.
- A read returns exactly the span that was asked for: obstore refuses a reply about another span, and this
  module one that is shorter than it says.
- Obstore does not retry (`max_retries` is 0). `RetryingStore` retries for all clients.

Obstore reports less than the inner store in two cases, and the inner store takes over:

- It keeps no headers of an error reply. After the server refused a request because there were too many, the
  inner store makes the requests and reads `Retry-After`, until one of them succeeds.
- It does not report the progress of a put. So a put has a time limit that depends on its size. After a put
  that exceeds it, later puts go to the inner store. That one notices if no byte moves, and gives a slow
  network as much time as it needs.

The threads and connections of obstore do not survive a fork: open stores after it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn, Protocol, TypeVar

import obstore
from obstore.exceptions import BaseError, InvalidPathError, NotSupportedError, UnauthenticatedError
from obstore.store import ObjectStore as Objects

from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Body, Buffer, ObjectStore, Span, Suffix, check_key
from offload.errors import NotFound, OffloadError, OutcomeUnknown, Throttled, TryAgain
from offload.store.spans import clip
from offload.store.wrap import StoreDecorator
from offload_cloud.ranges import asked_for

__all__ = ["Fast", "FastStore"]


T = TypeVar("T")

PUT_SIZE_BYTES_MAX: Final = 128 * 2**20
"""The largest object that goes up as one put. The inner store uploads larger ones in parts."""

PUT_BYTES_PER_SECOND_MIN: Final = 2**20
"""A put that is slower than this on average is cancelled, and the inner store makes it again."""

_UNTAKEN: Final = re.compile(r"[\x00-\x1f\x7f]")
"""obstore refuses keys with a control character, and its error does not say that nothing was sent."""

BEYOND_THE_END: Final = 416
FAILURES: Final = (BaseError, OSError, ValueError)
NEVER_SENT: Final = (InvalidPathError, NotSupportedError, UnauthenticatedError)
"""Errors that obstore raises before it sends a request."""

# The errors of obstore have no fields for the status and the causes, so these are read from their texts. A
# text also holds the key, which may contain any of these words: causes are read behind "Debug source" alone.
_STATUS: Final = re.compile(r"status code: (\d{3})[^:\n]*:? ?(.*?)(?:\n\nDebug source:|\Z)", re.DOTALL)
_KIND: Final = re.compile(r"HttpError \{\s*kind: (\w+)")
_SOURCE: Final = re.compile(r"\bsource: (\w+)")
_BEYOND: Final = "StartTooLarge"
"""The server answered a range beyond the end with no bytes instead of a refusal."""

_WHOLE: Final = "NotPartial"
"""The server answered a range with the whole object."""

_UNREAD: Final = "ParseContentRange"
"""The server did not state the object's size, or stated it oddly (MinIO, for the end of an empty object)."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fast:
    """The obstore stores of one bucket, and the attributes and tags of fragments. A backend opens it.

    `writes` has no timeout for reading: obstore would count the time that the body takes to be sent.
    """

    reads: Objects
    writes: Objects
    attributes: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    no_objects: Mapping[str, str] = field(default_factory=dict)
    """Attributes that mark an entry as no object, such as a folder."""


class Explain(Protocol):
    """A function that turns an error reply into the port's error; None hands the request to the inner store.

    It may return None only for a reply that proves that nothing was applied.
    """

    def __call__(self, status: int, body: str, *, what: str, key: str, mutation: bool) -> OffloadError | None:
        """Return the error; `body` is the reply's body, or the beginning of it."""


class FastStore(StoreDecorator):
    """A store whose puts and reads go through obstore. Opened by `open_fast` at the first request."""

    __slots__ = (
        "_check",
        "_explain",
        "_fast",
        "_is_open",
        "_is_slow",
        "_is_throttled",
        "_open_fast",
        "_opening",
        "_stall_seconds",
        "_turns",
    )

    def __init__(
        self,
        inner: ObjectStore,
        *,
        open_fast: Callable[[], Awaitable[Fast | None]],
        explain: Explain,
        stall_seconds: float,
        at_once: int,
        check: Callable[[str], str] = check_key,
    ) -> None:
        """Wrap `inner`. A put may take `stall_seconds`, and the time that its size allows on top."""
        super().__init__(inner)
        self._open_fast, self._explain, self._check = open_fast, explain, check
        self._stall_seconds = stall_seconds
        self._turns = asyncio.Semaphore(at_once)
        self._opening = asyncio.Lock()
        self._fast: Fast | None = None
        self._is_open = self._is_slow = self._is_throttled = False

    def __repr__(self) -> str:
        return f"FastStore({self.inner!r})"

    def __reduce__(self) -> NoReturn:
        """Raise `TypeError`: a store belongs to one event loop, and its pickle would hold credentials."""
        raise TypeError("a store cannot be pickled: send its URL and options, and open it there")

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the inner store, without its checksum: obstore sends none with a put."""
        return replace(self.inner.capabilities, server_checksum=None)

    async def put(self, key: str, body: Body) -> None:
        """Send one PUT without joining the windows. Holds the object in memory."""
        self._check(key)
        fast = None if _UNTAKEN.search(key) else await self._opened()
        if fast is None or self._is_slow or self._is_throttled or body.size_bytes > PUT_SIZE_BYTES_MAX:
            await self._behind(self.inner.put(key, body))
            return
        # All of the body before the request: a body of a wrong size is found while nothing is sent.
        windows = [window async for window in body.windows()]
        body.check_size(sum(map(len, windows)))
        what = f"store {key!r}"
        limit_seconds = self._stall_seconds + body.size_bytes / PUT_BYTES_PER_SECOND_MIN
        try:
            # The turns stand for connections: obstore has no option that limits their number.
            async with self._turns, asyncio.timeout(limit_seconds):
                result = await obstore.put_async(
                    fast.writes,
                    key,
                    windows or b"",
                    attributes=dict(fast.attributes) or None,
                    tags=dict(fast.tags) or None,
                    use_multipart=False,  # else obstore splits a large body into several requests
                )
        except TimeoutError as exc:
            # The server may have the bytes. `RetryingStore` repeats the put, which stores the same bytes, and
            # the inner store makes it then.
            self._is_slow = True
            text = f"{self.url}: cannot {what}: it took longer than {limit_seconds:.0f} s and was cancelled"
            raise OutcomeUnknown(text) from exc
        except FAILURES as exc:
            self._make_sure_unanswered(exc, what, key, mutation=True)
            # The same bytes: the windows of a body can be read again.
            await self.inner.put(key, body)
        else:
            if not result["e_tag"]:  # a web server or a proxy says 200 too, and stores nothing
                raise OutcomeUnknown(f"{self.url}: cannot {what}: the reply is not from an object store")

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Send one GET. The bytes are copied once, into the result."""
        self._check(key)
        fast = None if _UNTAKEN.search(key) else await self._opened()
        if fast is None or self._is_throttled:
            return await self._behind(self.inner.get(key, span))
        clip(span, 0)  # raises `Misuse` for a negative span
        what = f"read {key!r}"
        try:
            async with self._turns:
                result = await obstore.get_async(fast.reads, key, options=_options_of(span))
                # The turn is held until the last byte, because the body still uses the connection.
                data = await result.bytes_async()
        except FAILURES as exc:
            # The port's rule: a span beyond the end is empty, and no error.
            if _status_of(exc)[0] == BEYOND_THE_END or _BEYOND in _sources_of(exc):
                return b""
            self._make_sure_unanswered(exc, what, key, mutation=False)
            return await self.inner.get(key, span)
        if fast.no_objects and fast.no_objects.items() <= dict(result.attributes).items():
            raise NotFound(key, store=self.url)
        if not result.meta["e_tag"]:
            raise TryAgain(f"{self.url}: cannot {what}: the reply is not from an object store")
        start, end = result.range
        if len(data) != end - start:  # the reply says more than it has
            raise TryAgain(
                f"{self.url}: {key!r}: the reply is about bytes {start} to {end} and has {len(data)}"
            )
        # An empty span was requested as one byte, which proves that the object exists (`asked_for`).
        return b"" if span is not None and not span.length else data.to_bytes()

    async def aclose(self) -> None:
        """Drop obstore's stores, which close their connections, and close the inner store."""
        self._fast, self._is_open = None, False
        await self.inner.aclose()

    async def _opened(self) -> Fast | None:
        async with self._opening:
            # `_fast` alone does not say it: None means that obstore cannot be used, and is not tried again.
            if not self._is_open:
                self._fast = await self._open_fast()
                self._is_open = True
        return self._fast

    async def _behind(self, request: Awaitable[T]) -> T:
        """Await a request of the inner store. If it succeeds, the server takes requests again."""
        result = await request
        self._is_throttled = False
        return result

    def _make_sure_unanswered(self, exc: Exception, what: str, key: str, *, mutation: bool) -> None:
        """Return if the inner store may make the same request instead; raise the port's error if not.

        Every branch that returns knows that the server applied nothing: nothing was sent, the reply refused
        it, or the request was a read. Everything else is raised, because a second request could hide that
        the first one was applied.
        """
        status, body = _status_of(exc)
        if status:
            error = self._explain(status, body, what=what, key=key, mutation=mutation)
            self._is_throttled = isinstance(error, Throttled)
            if error is not None:
                raise error from exc
            # Later requests would be refused in the same way, such as puts without a checksum in a bucket
            # with an object lock. So the inner store makes all of them from now on.
            self._step_back(f"HTTP {status}")
            return
        text = str(exc)
        kind = _KIND.search(text)
        if isinstance(exc, NEVER_SENT) or (kind and kind[1] == "Connect"):
            if "InvalidCertificate" in text:
                self._step_back("it does not trust the server's certificate")
            # If no certificate is at fault, the next request may find a connection, so obstore stays in use.
            return  # nothing was sent; the inner store succeeds, or says what is wrong
        if not mutation and _WHOLE in _sources_of(exc):
            self._step_back("the server ignores ranges")
            return
        if not mutation and _UNREAD in _sources_of(exc):
            return  # of this object alone, so obstore stays in use
        if isinstance(exc, FileNotFoundError):
            raise NotFound(key, store=self.url) from exc
        said = " ".join(text.partition("\n\nDebug source:")[0].split())[:400]
        if "error sending request" in said and " http://" in said:  # nothing came back
            said += "; does the server want https:// in `endpoint_url`?"
        # The request may have arrived. For a mutation, only the caller knows if a repeat has the same
        # effect.
        lost = OutcomeUnknown if mutation else TryAgain
        raise lost(f"{self.url}: cannot {what}: {said} ({kind[1] if kind else type(exc).__name__})") from exc

    def _step_back(self, why: str) -> None:
        _log.info("%s: from now on without obstore: %s", self.url, why)
        self._fast = None


def _options_of(span: Span | Suffix | None) -> obstore.GetOptions | None:
    match asked_for(span):
        case Span(start, length):
            return {"range": (start, start + length)}
        case Suffix(length):
            return {"range": {"suffix": length}}
        case _:
            return None


def _status_of(exc: BaseException) -> tuple[int, str]:
    """Return the HTTP status and the body of an error reply, from the error's text; 0 if it names none."""
    found = _STATUS.search(str(exc))
    return (int(found[1]), found[2]) if found else (0, "")


def _sources_of(exc: BaseException) -> set[str]:
    """Return the kinds of errors that obstore names as causes of this one."""
    return set(_SOURCE.findall(str(exc).partition("\n\nDebug source:")[2]))
