"""The common part of the key services of clouds: checks, deadlines, retries, and the meanings of errors.

A service has a table of meanings. It maps signs of an error to the class of our error and to advice. Signs
are the code of a reply, its HTTP status, and the names of the exception's classes, the most exact first.

Invariants:

- A label is checked before any request, so none leads elsewhere.
- Requests go to the address of the URL or the environment, over TLS, or to this machine.
- A request has a deadline. It is tried at most `TRIES` times, and only while the service asks for that.
- No error text holds what the service said: it may repeat a request, with its key or its token.
"""

from __future__ import annotations

import asyncio
import ipaddress
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import ClassVar, Final, TypeVar
from urllib.parse import parse_qsl, urlsplit

from offload.contracts.keys import KeyService, check_label
from offload.ground.env import Env
from offload.ground.errors import Denied, Misuse, NoSuchKey, OffloadError, Throttled, TryAgain
from offload_keys.binding import KEY_SIZE_BYTES
from offload_keys.log_filter import hushed

T = TypeVar("T")
Meanings = Mapping[str, tuple[type[OffloadError], str]]

DEADLINE_SECONDS: Final = 10.0
TRIES: Final = 4
WRAPPED_SIZE_BYTES_MAX: Final = 4096

MISSING: Final = NoSuchKey, "there is no such key, or it is about to be destroyed"
OTHER: Final = Denied, "this master key did not wrap this key, or not for this use"
LACKING: Final = Denied, "the credentials lack this permission"
UNKNOWN: Final = Denied, "the service does not accept the credentials"
SLOWER: Final = Throttled, "the service asks for fewer requests"
DOWN: Final = TryAgain, "the service cannot answer now"
CERTIFICATE: Final = Denied, "the TLS certificate of the service is not trusted"

COMMON: Final[Meanings] = {
    "SSLCertVerificationError": CERTIFICATE,
    "ClientConnectorCertificateError": CERTIFICATE,
    "429": SLOWER,
    "5xx": DOWN,
    "TimeoutError": (TryAgain, "the service did not answer in time"),
    "ClientConnectionError": DOWN,
    "ClientPayloadError": DOWN,
    "OSError": DOWN,
}
"""The meanings for every service. A service's own come first, except for those of certificates."""


class RemoteKeys(KeyService):
    """A key service over a network. A subclass opens the client, and makes the requests by `_ask`."""

    __slots__ = ("_is_open", "_lock", "deadline_seconds", "env", "url")

    failures: ClassVar[tuple[type[Exception], ...]]
    """Every class of error that the client raises. `OSError` is one of them, and so is a missed deadline."""

    meanings: ClassVar[Meanings]
    packages: ClassVar[tuple[str, ...]]
    """The packages that may log what they send."""

    def __init__(
        self, url: str, *, env: Env | None = None, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        self.url, self.env, self.deadline_seconds = url, env or Env(), deadline_seconds
        self._is_open, self._lock = False, asyncio.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        """See `KeyService.wrap`."""
        if len(key) != KEY_SIZE_BYTES:
            raise Misuse(f"a key of a stream has {KEY_SIZE_BYTES} bytes, and this one has {len(key)}")
        wrapped = await self._wrap(check_label(label), key, context)
        if not 0 < len(wrapped) <= WRAPPED_SIZE_BYTES_MAX:
            raise Denied(f"{self.url}: the service returned a wrapped key of {len(wrapped)} bytes")
        return wrapped

    async def unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """See `KeyService.unwrap`."""
        check_label(label)
        if not 0 < len(wrapped) <= WRAPPED_SIZE_BYTES_MAX:
            raise Denied(f"{self.url}: no service has wrapped a key of {len(wrapped)} bytes")
        key = await self._unwrap(label, wrapped, context)
        if len(key) != KEY_SIZE_BYTES:
            raise Denied(f"{self.url}: the service returned a key of {len(key)} bytes")
        return key

    async def create(self, label: str) -> None:
        """See `KeyService.create`."""
        await self._create(check_label(label))

    async def destroy(self, label: str) -> float:
        """See `KeyService.destroy`."""
        return max(0.0, await self._destroy(check_label(label)))

    async def aclose(self) -> None:
        """See `KeyService.aclose`."""
        async with self._lock:
            if self._is_open:
                self._is_open = False
                await self._close()

    async def _ask(
        self, permission: str, label: str, call: Callable[[], Awaitable[T]], *, deadlines: int = 1
    ) -> T:
        """Return the answer to a request that needs this permission. `deadlines` makes its deadline longer.

        Raises the error that the table gives for what `call` raised. `call` may be called again.
        """
        for tried in range(1, TRIES + 1):
            try:
                return await self._once(permission, label, call, self.deadline_seconds * deadlines)
            except TryAgain:
                if tried == TRIES:
                    raise
                await self.env.sleep(self.env.backoff_seconds(tried, base_seconds=0.1))
        raise AssertionError("the last try returned or raised")

    async def _once(self, permission: str, label: str, call: Callable[[], Awaitable[T]], seconds: float) -> T:
        try:
            async with asyncio.timeout(seconds):
                with hushed(*self.packages):
                    await self._opened()
                with hushed(*self.packages):  # again: opening the client may have made loggers
                    return await call()
        except OffloadError:
            raise
        except self.failures as exc:
            kind, advice, sign = self._meaning_of(exc)
            text = f"{self.url}: {permission} for the master key {label!r}: {advice} ({sign})"
            raise kind(text) from exc

    async def _opened(self) -> None:
        async with self._lock:
            if not self._is_open:
                await self._open()
                self._is_open = True

    def _meaning_of(self, exc: BaseException) -> tuple[type[OffloadError], str, str]:
        chain = [*_chain(exc)]
        names = [name for each in chain for name in _names(each)]
        for sign in names:
            if COMMON.get(sign) == CERTIFICATE:
                return *CERTIFICATE, sign
        for sign in (*self._signs_of(exc), *names):
            if (found := self.meanings.get(sign) or COMMON.get(sign)) is not None:
                return *found, sign
        return Denied, "the service refuses", type(exc).__name__

    def _signs_of(self, exc: BaseException) -> Iterator[str]:
        """Yield the codes of an error reply, the most exact first."""
        yield from ()

    @abstractmethod
    async def _open(self) -> None:
        """Make the client."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the client."""

    @abstractmethod
    async def _wrap(self, label: str, key: bytes, context: Mapping[str, str]) -> bytes:
        """See `KeyService.wrap`. The label and the key are checked."""

    @abstractmethod
    async def _unwrap(self, label: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """See `KeyService.unwrap`."""

    @abstractmethod
    async def _create(self, label: str) -> None:
        """See `KeyService.create`."""

    @abstractmethod
    async def _destroy(self, label: str) -> float:
        """See `KeyService.destroy`. A negative number counts as zero."""


def parsed(url: str, *names: str) -> tuple[str, dict[str, str]]:
    """Return what follows the scheme of a URL, and its query. Raises `Misuse` for a name not in `names`."""
    place, _, query = url.partition(":")[2].partition("?")
    values = dict(parse_qsl(query, keep_blank_values=True))
    if strange := [name for name in values if name not in names]:
        known = " and ".join(names) or "nothing"
        raise Misuse(f"{url!r}: {strange[0]!r} is unknown; after the question mark it takes {known}")
    return place, values


def checked_address(address: str, url: str) -> str:
    """Return the address of a service. Raises `Misuse` unless it has https, or http and is this machine."""
    parts = urlsplit(address)
    if not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise Misuse(f"{url!r}: an address is https://HOST, perhaps with a port, and holds no login")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(parts.hostname)):
        raise Misuse(f"{url!r}: a key service is reached by https://, or by http:// on this machine alone")
    return address


def statuses(status: int | None) -> Iterator[str]:
    """Yield the signs of an HTTP status: `503`, `5xx`."""
    if status:
        yield str(status)
        yield f"{status // 100}xx"


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _chain(exc: BaseException | None) -> Iterator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__ or exc.__context__


def _names(exc: BaseException) -> list[str]:
    return [each.__name__ for each in type(exc).__mro__]
