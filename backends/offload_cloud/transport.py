"""The byte transport of one store: exchanges by blocking sockets in a few threads (ADR 27).

Asynchronous code awaits each step of an exchange, and a thread blocks in it. Bodies of any size go between
the socket and the caller's memory, and no byte of them passes through the event loop.

    transport = Transport(limits=..., connections_max=32, context=...)
    async with await transport.ask(request, proxy=None) as reply:      # the request is sent, the head is here
        await reply.readinto(buffer)                                # exactly as many bytes as it holds

Invariants:

- At most `connections_max` exchanges are under way. Each has a connection of its own, and as many threads.
- When a step raises, also because its task was cancelled, no thread uses the caller's memory any more.
- A cancelled step ends its connection, which is never used again. One that is connecting ends by itself.
- Each step has a time limit, besides the one for stalls, so that a server that sends one byte a second fails.
- Nothing is repeated here. `RetryingStore` repeats, for all clients.
- After a fork, the child has no threads and shares its sockets with the parent. It forgets both.

`Transport` knows neither S3 nor its signatures. A backend signs the request with its SDK and reads the reply.

Tests: `tests/cloud/test_transport.py` has one server for each kind of bad reply. All tests of
`tests/cloud/clients.py` run on it as on the other clients.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self, TypeVar

from offload.ground.env import REAL_ENV
from offload.store.metrics import note_first_byte
from offload_cloud.exchange import Connection, Request, Route, TimeLimits
from offload_cloud.exchange_errors import Cause, ExchangeError
from offload_cloud.slow import step_seconds

__all__ = ["Transport", "TransportReply"]

T = TypeVar("T")

IDLE_SECONDS_MAX: Final = 12.0
"""A connection that was idle for longer is closed: servers and firewalls forget it after 15 to 20 seconds."""


class Transport:
    """Exchanges with the servers of one store. It belongs to one event loop."""

    def __init__(
        self,
        *,
        limits: TimeLimits,
        connections_max: int,
        context: Callable[[], ssl.SSLContext],
        now: Callable[[], float] = REAL_ENV.monotonic,
    ) -> None:
        """`context` makes the TLS context. A thread calls it, when the first server needs one."""
        self._limits, self._connections_max, self._make_context = limits, connections_max, context
        self._now = now
        self._turns = asyncio.Semaphore(connections_max)
        self._idle: list[tuple[float, Connection]] = []
        self._context: ssl.SSLContext | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._is_open = True

    async def ask(self, request: Request, *, proxy: str | None) -> TransportReply:
        """Send a request, and return its reply when its head has arrived. Raises `ExchangeError`."""
        self._forget_after_fork()
        self._is_open = True
        await self._turns.acquire()
        connection: Connection | None = None
        try:
            connection = known = await self._connected(Route.of(request.url, proxy))
            head = await self.step(connection, request.size_bytes, lambda: known.send(request))
        except BaseException:
            if connection is not None:
                connection.close()
            self._turns.release()
            raise
        note_first_byte()
        return TransportReply(self, connection, head.status, joined_headers(head.headers))

    async def aclose(self) -> None:
        """Close the idle connections, and let the threads end. Idempotent; a later request opens new ones.

        A connection that is in use is closed when its exchange ends.
        """
        self._forget_after_fork()
        self._is_open = False
        idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    async def step(self, connection: Connection, size_bytes: int, call: Callable[[], T]) -> T:
        """Run a blocking step in a thread. When this returns or raises, the thread has ended the step."""
        seconds = step_seconds(self._limits.stall_seconds, size_bytes)
        work = self._begun(call)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(work)
        except TimeoutError as exc:
            await _ended(connection, work)
            detail = f"{size_bytes} bytes took longer than {seconds:.0f} s"
            raise ExchangeError(Cause.SLOW, connection.route.place, detail) from exc
        except asyncio.CancelledError:
            await _ended(connection, work)
            raise

    def take_back(self, connection: Connection) -> None:
        """Keep a connection after its exchange, or close it, and let another request begin."""
        connection.finish()
        if connection.process != os.getpid():
            connection.close()  # a child's copy of its socket; the turn was one of the parent's
            return
        if self._is_open and connection.is_usable():
            self._idle.append((self._now(), connection))
        else:
            connection.close()
        self._turns.release()

    async def _connected(self, route: Route) -> Connection:
        """Return an idle connection, or a new one."""
        if (found := self._idle_one(route)) is not None:
            return found
        if route.scheme == "https" and self._context is None:
            self._context = await self._begun(self._make_context)
        connection = Connection(route, self._limits, self._context)
        work = self._begun(connection.connect)
        try:
            async with asyncio.timeout(step_seconds(self._limits.connect_seconds, 0)):
                await asyncio.shield(work)
        except (asyncio.CancelledError, TimeoutError) as exc:
            # Not awaited: a name that does not resolve holds its thread, but no memory of the caller.
            connection.cut()
            work.add_done_callback(lambda done: _given_up(connection, done))
            if isinstance(exc, TimeoutError):
                raise ExchangeError(Cause.SLOW_CONNECT, route.place) from exc
            raise
        return connection

    def _idle_one(self, route: Route) -> Connection | None:
        """Take the connection that was used last, and close those that are too old or were hung up."""
        oldest, kept = self._now() - IDLE_SECONDS_MAX, list[tuple[float, Connection]]()
        found: Connection | None = None
        while self._idle:
            since, connection = self._idle.pop()
            if since < oldest:
                connection.close()
            elif found is not None or connection.route != route:
                kept.append((since, connection))
            elif connection.is_usable():
                found = connection
            else:
                connection.close()
        self._idle = kept[::-1]
        return found

    def _begun(self, call: Callable[[], T]) -> asyncio.Future[T]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._connections_max, thread_name_prefix="offload-bytes")
        return asyncio.wrap_future(self._threads.submit(call))

    def _forget_after_fork(self) -> None:
        if self._process == os.getpid():
            return
        # The parent still uses its sockets. Closing the child's copies sends nothing.
        for _, connection in self._idle:
            connection.close()
        self._idle, self._threads, self._process = [], None, os.getpid()
        self._turns = asyncio.Semaphore(self._connections_max)


class TransportReply:
    """The head of a reply, and its body while it arrives. Close it: until then it holds a connection."""

    def __init__(
        self, transport: Transport, connection: Connection, status: int, headers: dict[str, str]
    ) -> None:
        self.status: Final = status
        self.headers: Final = headers
        """The headers, with names in lower case. Values of a repeated header are joined by commas."""

        self._transport = transport
        self._connection: Connection | None = connection
        self._is_in_step = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check_body(self, size_bytes_max: int | None = None) -> int | None:
        """Return the size of the body, None if it is chunked. Raises `ExchangeError` if it is no body."""
        return self._open.check_body(size_bytes_max)

    async def readinto(self, buffer: memoryview) -> None:
        """Receive exactly `len(buffer)` bytes. Until this returns or raises, the buffer is in use."""
        connection = self._open
        await self._step(connection, len(buffer), lambda: connection.readinto(buffer))

    async def read(self) -> bytes:
        """Receive the rest of the body into new memory."""
        connection = self._open
        size_bytes = connection.check_body()
        return await self._step(connection, size_bytes or 0, connection.read)

    def close(self) -> None:
        """Give the connection back. If the body has not ended, the connection is closed. Idempotent.

        A step that is under way ends with an error. It gives the connection back when its thread has ended.
        """
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._is_in_step and connection.process == os.getpid():  # a child would cut its parent's
            connection.cut()
        else:
            self._transport.take_back(connection)

    async def _step(self, connection: Connection, size_bytes: int, call: Callable[[], T]) -> T:
        if connection.holds_body:
            return call()
        self._is_in_step = True
        try:
            return await self._transport.step(connection, size_bytes, call)
        finally:
            self._is_in_step = False
            if self._connection is None:
                self._transport.take_back(connection)

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise ValueError("the reply is closed")
        return self._connection


def joined_headers(found: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return headers by their names in lower case. GCS sends one header for each checksum of an object."""
    values: dict[str, list[str]] = {}
    for name, value in found:
        values.setdefault(name.lower(), []).append(value)
    return {name: ", ".join(several) for name, several in values.items()}


def _given_up(connection: Connection, done: asyncio.Future[None]) -> None:
    done.exception()  # read, so that it is not reported as unnoticed
    connection.close()


async def _ended(connection: Connection, work: Awaitable[object]) -> None:
    """Cut a connection, and wait until its thread has noticed. A cancellation meanwhile changes nothing."""
    connection.cut()
    future = asyncio.ensure_future(work)
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue  # the caller raises one already
    future.exception()  # it is the effect of the cut
