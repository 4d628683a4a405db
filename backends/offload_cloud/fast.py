"""Immutable objects by a faster client: obstore sends and fetches bytes without Python between.

A `FastStore` stands before a backend's own store. Whole puts and reads go through obstore, one request for
one call; everything else, above all every create, goes to the store behind. Invariants:

- What obstore cannot express it does not send: then `open_fast` says `None`, and the store behind does all.
- A request that obstore never sent (no connection, no credentials, a key it does not take) goes to the store
  behind instead, whose errors say what is wrong. A mutation that it may have sent is never sent again.
- What is returned is the span that was asked for: obstore refuses a reply about another one, and we one that
  is shorter than it says.
- Obstore does not retry (`max_retries` is 0): `RetryingStore` does, for all clients alike.

Obstore tells less than the store behind in two cases, which then takes over:

- It keeps no headers of an error reply. After a reply that the server is asked too much, the store behind
  makes the requests, and reads `Retry-After`, until one of them succeeds.
- It does not say how far a put has come. A put has a time that depends on its size. If one takes longer,
  later puts go to the store behind, which notices that no byte moves, and lets a slow network take its time.

obstore has threads and connections of its own, which do not survive a fork: open stores after it.
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
from offload.contracts.store import Body, ObjectStore, Span, Suffix, check_key
from offload.errors import Misuse, NotFound, OffloadError, OutcomeUnknown, Throttled, TryAgain
from offload.store.spans import clip
from offload.store.wrap import StoreDecorator
from offload_cloud.ranges import asked_for

__all__ = ["Fast", "FastStore"]


T = TypeVar("T")

PUT_SIZE_BYTES_MAX: Final = 128 * 2**20
"""Up to here an object is one put. What is larger goes up in the parts of the store behind."""

PUT_BYTES_PER_SECOND_MIN: Final = 2**20
"""A put that is slower than this, on the whole, is given up, and repeated by the store behind."""

_UNTAKEN: Final = re.compile(r"[\x00-\x1f\x7f]")
"""obstore takes no key with a control character, and its error does not say that nothing was sent."""

BEYOND_THE_END: Final = 416
FAILURES: Final = (BaseError, OSError, ValueError)
NEVER_SENT: Final = (InvalidPathError, NotSupportedError, UnauthenticatedError)
_STATUS: Final = re.compile(r"status code: (\d{3})[^:\n]*:? ?(.*?)(?:\n\nDebug source:|\Z)", re.DOTALL)
_KIND: Final = re.compile(r"HttpError \{\s*kind: (\w+)")
_SOURCE: Final = re.compile(r"\bsource: (\w+)")
"""The text of an error also holds the key, which may have any of these words in it."""

_BEYOND: Final = "StartTooLarge"
"""A server answered with nothing where it should have refused."""

_WHOLE: Final = "NotPartial"
"""The server answered a range with the whole object."""

_UNREAD: Final = "ParseContentRange"
"""It did not say how large the object is, or (MinIO, of the end of an empty one) said it oddly."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fast:
    """What a backend opens: obstore's stores for one bucket, and what is written on fragments.

    `writes` has no timeout for reading: obstore would count the time that the bytes take on their way.
    """

    reads: Objects
    writes: Objects
    attributes: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    no_objects: Mapping[str, str] = field(default_factory=dict)
    """Attributes that mark what is no object, such as a folder."""


class Explain(Protocol):
    """Turns an error reply into the port's error; None: the store behind knows the way and takes over."""

    def __call__(self, status: int, body: str, *, what: str, key: str, mutation: bool) -> OffloadError | None:
        """`body` is what the server said, or the beginning of it."""


class FastStore(StoreDecorator):
    """Opens obstore's stores by `open_fast` at the first request, on the event loop that asks."""

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
        """`stall_seconds`: how long a put may take, apart from its size."""
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
        """A store is one event loop's own, and its pickle would hold credentials."""
        raise TypeError("a store cannot be pickled: send its URL and options, and open it there")

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store behind, but for its checksum: obstore does not send that with a put."""
        return replace(self.inner.capabilities, server_checksum=None)

    async def put(self, key: str, body: Body) -> None:
        """One PUT whose windows are not joined. Memory: the object."""
        self._check(key)
        fast = None if _UNTAKEN.search(key) else await self._opened()
        if fast is None or self._is_slow or self._is_throttled or body.size_bytes > PUT_SIZE_BYTES_MAX:
            await self._behind(self.inner.put(key, body))
            return
        windows = [window async for window in body.windows()]
        if sum(map(len, windows)) != body.size_bytes:
            raise Misuse(f"a body of {body.size_bytes} bytes yielded {sum(map(len, windows))}")
        what = f"store {key!r}"
        limit_seconds = self._stall_seconds + body.size_bytes / PUT_BYTES_PER_SECOND_MIN
        try:
            async with self._turns, asyncio.timeout(limit_seconds):
                result = await obstore.put_async(
                    fast.writes,
                    key,
                    windows or b"",
                    attributes=dict(fast.attributes) or None,
                    tags=dict(fast.tags) or None,
                    use_multipart=False,
                )
        except TimeoutError as exc:
            self._is_slow = True
            text = f"{self.url}: cannot {what}: it took longer than {limit_seconds:.0f} s and was given up"
            raise OutcomeUnknown(text) from exc
        except FAILURES as exc:
            self._make_sure_unanswered(exc, what, key, mutation=True)
            await self.inner.put(key, body)
        else:
            if not result["e_tag"]:
                raise OutcomeUnknown(f"{self.url}: cannot {what}: the answer is no object store's")

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        """One GET. The copy into `bytes` is the only one."""
        self._check(key)
        fast = None if _UNTAKEN.search(key) else await self._opened()
        if fast is None or self._is_throttled:
            return await self._behind(self.inner.get(key, span))
        clip(span, 0)  # refuses a negative one
        what = f"read {key!r}"
        try:
            async with self._turns:
                result = await obstore.get_async(fast.reads, key, options=_options_of(span))
                data = await result.bytes_async()
        except FAILURES as exc:
            if _status_of(exc)[0] == BEYOND_THE_END or _BEYOND in _sources_of(exc):
                return b""
            self._make_sure_unanswered(exc, what, key, mutation=False)
            return await self.inner.get(key, span)
        if fast.no_objects and fast.no_objects.items() <= dict(result.attributes).items():
            raise NotFound(key, store=self.url)
        if not result.meta["e_tag"]:
            raise TryAgain(f"{self.url}: cannot {what}: the answer is no object store's")
        start, end = result.range
        if len(data) != end - start:
            raise TryAgain(
                f"{self.url}: {key!r}: the reply is about bytes {start} to {end} and has {len(data)}"
            )
        return b"" if span is not None and not span.length else data.to_bytes()

    async def aclose(self) -> None:
        """Let go of obstore's stores, which close what is theirs; and close the store behind."""
        self._fast, self._is_open = None, False
        await self.inner.aclose()

    async def _opened(self) -> Fast | None:
        async with self._opening:
            if not self._is_open:
                self._fast = await self._open_fast()
                self._is_open = True
        return self._fast

    async def _behind(self, request: Awaitable[T]) -> T:
        """A request of the store behind, whose success says that the server takes requests again."""
        result = await request
        self._is_throttled = False
        return result

    def _make_sure_unanswered(self, exc: Exception, what: str, key: str, *, mutation: bool) -> None:
        """Return where the store behind may be asked the same instead; else raise what `exc` is."""
        status, body = _status_of(exc)
        if status:
            error = self._explain(status, body, what=what, key=key, mutation=mutation)
            self._is_throttled = isinstance(error, Throttled)
            if error is not None:
                raise error from exc
            self._step_back(f"HTTP {status}")
            return
        text = str(exc)
        kind = _KIND.search(text)
        if isinstance(exc, NEVER_SENT) or (kind and kind[1] == "Connect"):
            if "InvalidCertificate" in text:
                self._step_back("it does not trust the server's certificate")
            return  # nothing was sent; the store behind succeeds, or tells why it cannot
        if not mutation and _WHOLE in _sources_of(exc):
            self._step_back("the server ignores ranges")
            return
        if not mutation and _UNREAD in _sources_of(exc):
            return
        if isinstance(exc, FileNotFoundError):
            raise NotFound(key, store=self.url) from exc
        said = " ".join(text.partition("\n\nDebug source:")[0].split())[:400]
        if "error sending request" in said and " http://" in said:  # nothing came back
            said += "; does the server want https:// in `endpoint_url`?"
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
    """The HTTP status of an error reply and its body, from the error's text, where obstore has them."""
    found = _STATUS.search(str(exc))
    return (int(found[1]), found[2]) if found else (0, "")


def _sources_of(exc: BaseException) -> set[str]:
    """The kinds of errors that obstore names as causes of this one."""
    return set(_SOURCE.findall(str(exc).partition("\n\nDebug source:")[2]))
