"""One kept connection to RabbitMQ's stream port, by the client library `rstream`.

It is made when it is first needed. If it breaks, or a request is not answered within `ANSWER_SECONDS`, it is
dropped, and made again when it is next needed: after 1 s at the earliest, and after up to 60 s if the broker
stays away. Until then every request fails at once.

Invariants: an error of the library or of the socket becomes one of the framework's here, and nowhere else. A
connection that left one request without an answer is not used again. No text of an error and no line of a log
has the password.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from rstream import exceptions, schema
from rstream.client import Client

from offload.ground.env import Env
from offload.ground.errors import Denied, NotOffloaded, OffloadError, TryAgain
from offload_rabbitmq.stream_place import BrokerEndpoint

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 2.0
BACKOFF_SECONDS_MAX: Final = 60.0
FRAME_SIZE_BYTES_MAX: Final = 2**20
HEARTBEAT_SECONDS: Final = 60

REFUSALS: Final = (
    exceptions.AuthenticationFailure,
    exceptions.AccessRefused,
    exceptions.SASLAuthenticationFailureLoopback,
    exceptions.SASLError,
    exceptions.SASLMechanismNotSupported,
    exceptions.VirtualHostAccessFailure,
)
PASSING: Final = (exceptions.ServerError, exceptions.ClientError)
"""Answers that say no to one request. The connection is sound."""

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)

# At level debug the library logs every frame, also the one with the password. It logs the errors that it
# raises, with traces, and this module reports them in one line.
logging.getLogger("rstream").setLevel(logging.CRITICAL)


@dataclass(slots=True, kw_only=True)
class KeptConnection:
    """The connection. `error` is None unless the last try to use it failed."""

    endpoint: BrokerEndpoint
    on_deliver: Callable[[schema.Deliver], None]
    on_gone: Callable[[str | None], None]
    """Called with the name of a stream whose subscriptions the broker has ended, and with None for all."""

    env: Env = field(default_factory=Env)
    error: OffloadError | None = None

    _client: Client | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _failures: int = 0
    _again_seconds: float = 0.0
    _is_closed: bool = False
    _closings: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def address(self) -> str | None:
        """The `host:port` by which the cluster knows the node. None if the node does not say it."""
        properties = (self._client.server_properties if self._client else None) or {}
        host, port = properties.get("advertised_host"), properties.get("advertised_port")
        return None if host is None or port is None else f"{host}:{port}"

    async def run(self, request: Callable[[Client], Awaitable[T]], what: str) -> T:
        """Send one request, and return its answer. `what` names it in errors.

        Raises `NotOffloaded` for an unknown stream, `Denied` for a refusal, and `TryAgain` otherwise.
        """
        task = asyncio.current_task()
        assert task is not None
        cancellations, client = task.cancelling(), await self._opened()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await request(client)
        except PASSING as error:
            self._answered()
            raise _refusal(error, f"{self.endpoint.url}: {what}") from error
        except TimeoutError as error:
            raise self._lost(client, f"{what}: no answer within {ANSWER_SECONDS:g} s") from error
        except Exception as error:
            raise self._lost(client, f"{what}: {_named(error)}") from error
        self._answered()
        # The library's `wait_for` loses a cancellation that comes with the answer, in Python 3.11.
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError
        return answer

    def holds(self, client: object) -> bool:
        """Return True if this is the connection in use."""
        return client is not None and client is self._client

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        self._is_closed = True
        if self._client is not None:
            self._drop(self._client)
        await asyncio.gather(*self._closings)

    async def _opened(self) -> Client:
        async with self._lock:
            if self._is_closed:
                raise TryAgain(f"{self.endpoint.url}: this process closed the connection")
            if self._client is not None and self._client.is_connection_alive():
                return self._client
            if self._client is not None:
                self._lost(self._client, "the broker closed the connection")
            if self.error is not None and self.env.monotonic() < self._again_seconds:
                raise self.error.with_traceback(None)  # raised many times, it would collect frames for ever
            return await self._connected()

    async def _connected(self) -> Client:
        at = self.endpoint
        client = Client(
            at.host,
            at.port,
            ssl_context=at.tls,
            frame_max=FRAME_SIZE_BYTES_MAX,
            heartbeat=HEARTBEAT_SECONDS,
            connection_name="ledger-offload",
            connection_closed_handler=lambda info: self._drop(client) if self.holds(client) else None,
        )
        client.add_stream("")  # otherwise the handler above is not called
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.start()
                await client.authenticate(vhost=at.virtual_host, username=at.user, password=at.password)
        except REFUSALS as error:
            denied = Denied(f"{at.url}: user {at.user!r}, virtual host {at.virtual_host!r}: {_named(error)}")
            raise self._failed(client, denied) from error
        except Exception as error:
            raise self._lost(client, f"cannot connect: {_named(error)}") from error
        except asyncio.CancelledError:
            self._drop(client)
            raise
        client.add_handler(schema.MetadataUpdate, self._on_update, name="0")
        client.add_handler(schema.Deliver, self.on_deliver, name="0")
        await client.run_queue_listener_task(0, self.on_deliver)
        self._client = client
        return client

    def _on_update(self, update: schema.MetadataUpdate) -> None:
        self.on_gone(update.metadata_info.stream)

    def _answered(self) -> None:
        # Not when it connects: a broker that only lets in would be told as one that answers, again and again.
        if self.error is not None:
            _log.warning("%s answers again", self.endpoint.url)
        self.error, self._failures = None, 0

    def _lost(self, client: Client, why: str) -> TryAgain:
        """Drop a connection that failed, and return the error."""
        error = TryAgain(f"{self.endpoint.url}: {why}")
        self._failed(client, error)
        return error

    def _failed(self, client: Client, error: OffloadError) -> OffloadError:
        if type(self.error) is not type(error):
            _log.warning("%s; until the broker answers, hold_back applies", error)
        self._drop(client)
        self.error, self._failures = error, self._failures + 1
        pause = self.env.backoff_seconds(self._failures, base_seconds=1.0, max_seconds=BACKOFF_SECONDS_MAX)
        self._again_seconds = self.env.monotonic() + pause
        return error

    def _drop(self, client: Client) -> None:
        if client is self._client:
            self._client = None
            self.on_gone(None)
        closing = asyncio.create_task(_closed(client))
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)


async def _closed(client: Client) -> None:
    """Close a connection. It may be broken in any way, and nothing depends on how it ends."""
    connection = client._conn
    # The library leaves the socket open if the connection is broken, and if its own reader failed.
    for each in (client, connection):
        with suppress(Exception):
            async with asyncio.timeout(CONNECT_SECONDS):
                if each is not None:
                    await each.close()


def _refusal(error: Exception, what: str) -> OffloadError:
    """Return the framework's error for an answer that says no."""
    if isinstance(error, exceptions.StreamDoesNotExist):
        return NotOffloaded(f"{what}: the broker has no such stream")
    return (Denied if isinstance(error, REFUSALS) else TryAgain)(f"{what}: {_named(error)}")


def _named(error: BaseException | Any) -> str:
    """Return the kind of an error and its text. The library's own errors mostly have no text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
