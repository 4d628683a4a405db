"""One kept connection to RabbitMQ's stream port.

It is made when it is first needed. If it breaks, or a request is not answered within `ANSWER_SECONDS`, it is
dropped, and made again when it is next needed: after 1 s at the earliest, and after up to 60 s if the broker
stays away. Until then every request fails at once.

Invariants: a connection that left one request without an answer is not used again. One that ends counts as
one failure, however many requests waited for it. No text of an error and no line of a log has the password.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from offload.ground.env import Env
from offload.ground.errors import Denied, NotOffloaded, OffloadError, TryAgain
from offload_rabbitmq.stream_connection import StreamConnection
from offload_rabbitmq.stream_frames import Frame, Key
from offload_rabbitmq.stream_place import BrokerEndpoint

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 2.0
BACKOFF_SECONDS_MAX: Final = 60.0
CHUNK_BYTES_MAX: Final = 4 << 10
"""The bytes of a chunk that are kept. Its header has all that is asked for. A chunk may have a gigabyte."""

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class KeptConnection:
    """The connection. `error` is None unless the last try to use it failed."""

    endpoint: BrokerEndpoint
    on_deliver: Callable[[Frame], None]
    on_gone: Callable[[str | None], None]
    """Called with the name of a stream whose subscriptions the broker has ended, and with None for all."""

    env: Env = field(default_factory=Env)
    error: OffloadError | None = None

    _connection: StreamConnection | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _failures: int = 0
    _again_seconds: float = 0.0
    _is_closed: bool = False
    _closings: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def address(self) -> str | None:
        """The `host:port` by which the cluster knows the node. None if the node does not say it."""
        properties = {} if self._connection is None else self._connection.advertised
        host, port = properties.get("advertised_host"), properties.get("advertised_port")
        return None if host is None or port is None else f"{host}:{port}"

    async def run(self, request: Callable[[StreamConnection], Awaitable[T]]) -> T:
        """Send one request, and return its answer.

        Raises `NotOffloaded` for an unknown stream, `Denied` for a refusal, and `TryAgain` otherwise.
        """
        connection = await self._opened()
        try:
            answer = await request(connection)
        except OffloadError as error:
            if not connection.lost.done():
                self._answered()  # by a refusal of this request
                raise _passed_on(error) from error
            if self.holds(connection):
                self._drop()
                self._failed(_passed_on(error))
            raise TryAgain(str(error)) from error
        self._answered()
        return answer

    def holds(self, connection: StreamConnection) -> bool:
        """Return True if this is the connection in use."""
        return connection is self._connection

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        self._is_closed = True
        async with self._lock:  # a login that goes on meanwhile makes a connection to close
            self._drop()
        await asyncio.gather(*self._closings)

    async def _opened(self) -> StreamConnection:
        async with self._lock:
            if self._is_closed:
                raise TryAgain(f"{self.endpoint.url}: this process closed the connection")
            if self._connection is not None and not self._connection.lost.done():
                return self._connection
            self._drop()
            if self.error is not None and self.env.monotonic() < self._again_seconds:
                raise self.error.with_traceback(None)  # raised many times, it would collect frames for ever
            try:
                self._connection = connection = await StreamConnection.connect(
                    self.endpoint,
                    self.env,
                    name="ledger-offload",
                    connect_seconds=CONNECT_SECONDS,
                    answer_seconds=ANSWER_SECONDS,
                    chunk_bytes_max=CHUNK_BYTES_MAX,
                )
            except OffloadError as error:
                raise self._failed(_passed_on(error)) from error
            connection.receivers[Key.DELIVER] = self.on_deliver
            connection.receivers[Key.METADATA_UPDATE] = lambda update: self.on_gone(update["stream"])
            connection.lost.add_done_callback(
                lambda lost: self.on_gone(None) if self.holds(connection) else None
            )
            return connection

    def _answered(self) -> None:
        # Not when it connects: a broker that only lets in would be told as one that answers, again and again.
        if self.error is not None:
            _log.warning("%s answers again", self.endpoint.url)
        self.error, self._failures = None, 0

    def _failed(self, error: OffloadError) -> OffloadError:
        """Note that the connection cannot be used for a while, and return the error."""
        if type(self.error) is not type(error):
            _log.warning("%s; until the broker answers, hold_back applies", error)
        self.error, self._failures = error, self._failures + 1
        pause = self.env.backoff_seconds(self._failures, base_seconds=1.0, max_seconds=BACKOFF_SECONDS_MAX)
        self._again_seconds = self.env.monotonic() + pause
        return error

    def _drop(self) -> None:
        """Give the connection up, if there is one, and all subscriptions on it."""
        if self._connection is None:
            return
        closing = asyncio.create_task(self._connection.aclose())
        self._connection = None
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)
        self.on_gone(None)


def _passed_on(error: OffloadError) -> OffloadError:
    """Return an error as one of those that a `BrokerView` may raise."""
    return error if isinstance(error, NotOffloaded | Denied | TryAgain) else TryAgain(str(error))
