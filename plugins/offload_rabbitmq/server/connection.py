"""One connection of a client: its frames, in the order of their bytes, and the steps from login to end.

    connected -> authenticating -> tuning -> open -> closing

Each step before `open` has `STEP_SECONDS`, and a frame that does not fit the step ends the connection without
a word, as RabbitMQ does it. After that, a frame that nobody understands is answered by a request to close.

A handler answers at once, or returns a coroutine. Then the bytes behind it wait until it has ended, so that
answers come in the order of requests, and there is one task at most. `server.login` and `server.requests`
have the handlers.

Invariants: a frame is refused by its size before its bytes are kept; what waits to be handled has at most
`UNREAD_SIZE_BYTES_MAX` and one frame; nothing of a connection is left when it is lost.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Container, Coroutine, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any, Final

from offload.ground.errors import Corrupt
from offload_rabbitmq.server.outbox import Outbox
from offload_rabbitmq.server.state import ServerState
from offload_rabbitmq.server.subscriptions import Subscriptions
from offload_rabbitmq.stream_frames import (
    FRAME_SIZE_BYTES_MIN,
    RESPONSE,
    Code,
    Frame,
    Key,
    Sender,
    decode,
    encode,
)

STEP_SECONDS: Final = 10.0
FIRST_FRAME_SIZE_BYTES_MAX: Final = 8192
"""The size of a frame before `open`."""

FRAME_SIZE_BYTES_MAX: Final = 1024 * 1024
"""The size of a frame after it, unless the client wants less."""

UNREAD_SIZE_BYTES_MAX: Final = 64 * 1024

_log: Final = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]


class LoginStep(IntEnum):
    """How far a connection has come."""

    CONNECTED = auto()
    AUTHENTICATING = auto()
    TUNING = auto()
    OPEN = auto()
    CLOSING = auto()


ANY_STEP: Final = tuple(LoginStep)


@dataclass(frozen=True, slots=True)
class StreamCommand:
    """A command that the server knows: its handler, and the steps in which a client may send it."""

    handler: Callable[[ServedConnection, Frame], Work | None]
    steps: Container[LoginStep] = (LoginStep.OPEN,)


class ServedConnection(asyncio.Protocol):
    """A connection. asyncio calls it; it belongs to one event loop."""

    def __init__(
        self,
        shared: ServerState,
        host: str,
        port: int,
        *,
        plain: socket.socket | None,
        commands: Mapping[Key, StreamCommand],
    ) -> None:
        """`host` and `port` are those of the client. `plain` is the socket, if nothing is encrypted."""
        self.shared, self.host, self.peer = shared, host, f"{host}:{port}"
        self._plain, self._commands = plain, commands
        self.step = LoginStep.CONNECTED
        self.agreed_size_bytes_max = FRAME_SIZE_BYTES_MAX
        """The size of a frame of the client once the connection is open."""

        self.deliver_version = 1
        self.virtual_host = "/"
        self._unread = bytearray()
        self._work: asyncio.Task[None] | None = None
        self._beat: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._heard_at = shared.env.monotonic()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._outbox = Outbox(transport, self._plain)
        self.subscriptions = Subscriptions(self.shared, self._outbox)
        # A single byte that waits stops new chunks. TLS takes 0 for a limit that is always reached, and calls
        # `pause_writing` at once if bytes of its own wait.
        transport.set_write_buffer_limits(high=1, low=0)
        self.shared.connections.add(self)
        self.shared.counts.accepted += 1
        self.shared.counts.connections += 1
        self.enter(LoginStep.CONNECTED)

    def data_received(self, data: bytes) -> None:
        """Take frames."""
        self._heard_at = self.shared.env.monotonic()
        self._unread += data
        self._take_frames()

    def pause_writing(self) -> None:
        """Send no more chunks: the peer reads more slowly than they come."""
        self._outbox.is_full = True

    def resume_writing(self) -> None:
        """Go on."""
        self._outbox.emptied()
        self.subscriptions.wake()
        self._take_frames()

    def connection_lost(self, exc: Exception | None) -> None:
        """End everything that belongs to the connection."""
        self.step = LoginStep.CLOSING
        self.shared.connections.discard(self)
        self.shared.counts.connections -= 1
        for each in (self._deadline, self._work, self._beat):
            if each is not None:
                each.cancel()
        self.subscriptions.end_all()
        self._unread.clear()

    # What the listener calls.

    def say_goodbye(self) -> None:
        """Ask the client to close."""
        if self.step is LoginStep.OPEN:
            self.close(Code.OK, "the server stops")
        else:
            self._transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # Frames that come.

    def _take_frames(self) -> None:
        unread = self._unread
        while self._work is None and len(unread) >= 4 and not self._transport.is_closing():
            if self._outbox.is_flooded:
                break
            size_bytes = int.from_bytes(unread[:4], "big")
            is_open = self.step is LoginStep.OPEN
            most = self.agreed_size_bytes_max if is_open else FIRST_FRAME_SIZE_BYTES_MAX
            if not FRAME_SIZE_BYTES_MIN <= size_bytes <= most:
                self._refuse(Code.FRAME_TOO_LARGE, "frame too large")
                unread.clear()
                return
            if len(unread) < 4 + size_bytes:
                break
            content = bytes(memoryview(unread)[4 : 4 + size_bytes])
            del unread[: 4 + size_bytes]
            self._take(content)
        is_busy = self._work is not None or self._outbox.is_flooded
        if is_busy and len(unread) > UNREAD_SIZE_BYTES_MAX:
            self._transport.pause_reading()
        elif not self._transport.is_closing():
            self._transport.resume_reading()

    def _take(self, content: bytes) -> None:
        if self.step is LoginStep.CLOSING:
            key = int.from_bytes(content[:2], "big")
            if key & ~RESPONSE == Key.CLOSE:  # also their request, if both sides close at once
                self.hang_up()
            return
        try:
            frame = decode(content, Sender.CLIENT, where=self.peer)
        except Corrupt:
            frame = None
        command = self._commands.get(frame.key) if isinstance(frame, Frame) else None
        if not isinstance(frame, Frame) or command is None:
            self._refuse(Code.UNKNOWN_FRAME, "unknown frame")
        elif self.step not in command.steps:
            self.hang_up()
        elif (work := command.handler(self, frame)) is not None:
            self._work = asyncio.create_task(self._worked(work, frame))
            self.shared.keep(self._work)

    async def _worked(self, work: Work, frame: Frame) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 - whatever it is, it ends this connection only
            _log.exception("%s: a request of %s failed", self.peer, frame.key.name)
            self._transport.abort()
        finally:
            self._work = None
        self._take_frames()

    def _refuse(self, code: Code, reason: str) -> None:
        if self.step is LoginStep.OPEN:
            self.close(code, reason)
        else:
            self.hang_up()

    # What handlers call.

    def answer(self, frame: Frame, code: Code = Code.OK, **fields: Any) -> None:
        """Answer a request."""
        correlation = frame["correlation"]
        self.send(encode(frame.key, response=True, correlation=correlation, code=code, **fields))

    def send(self, data: bytes) -> None:
        """Send a frame."""
        self._outbox.send(data)

    def enter(self, step: LoginStep) -> None:
        """Go on to a step, and end the connection if it lasts too long."""
        self.step = step
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if step is not LoginStep.OPEN and not self._transport.is_closing():
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(STEP_SECONDS, self._transport.abort)

    def close(self, code: Code, reason: str) -> None:
        """Ask the client to close, and ignore everything else that it sends."""
        self.subscriptions.end_all()
        self.send(encode(Key.CLOSE, correlation=1, reason_code=code, reason=reason))
        self.enter(LoginStep.CLOSING)

    def hang_up(self) -> None:
        """Close the socket when the peer has taken what was sent, or after a while."""
        self._outbox.flush()
        self.enter(LoginStep.CLOSING)
        self._transport.close()

    def keep_alive(self, seconds: int) -> None:
        """Begin to send heartbeats. Only the first call has an effect."""
        if self._beat is None and seconds:
            self._beat = asyncio.create_task(self._keep_alive(seconds))

    async def _keep_alive(self, seconds: int) -> None:
        """Send heartbeats while nothing else is sent, and end a connection whose peer is silent."""
        env = self.shared.env
        while True:
            flushes = self._outbox.flushes
            await env.sleep(seconds / 2)
            silent_seconds = env.monotonic() - self._heard_at
            if silent_seconds > 2 * seconds and self._work is None:
                _log.info("%s has sent nothing for %.0f s", self.peer, silent_seconds)
                self._transport.abort()
                return
            if flushes == self._outbox.flushes and not self._outbox.is_full:
                self.send(encode(Key.HEARTBEAT))
