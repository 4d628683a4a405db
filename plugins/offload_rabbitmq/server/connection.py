"""One connection of a client: its frames, in the order of their bytes, and what each of them does.

    connected -> authenticating -> tuning -> open -> closing

Each step before `open` has `STEP_SECONDS`, and a frame that does not fit the step ends the connection without
a word, as RabbitMQ does it. After that, a frame that nobody understands is answered by a request to close.

A handler answers at once, or returns a coroutine. Then the bytes behind it wait until it has ended, so that
answers come in the order of requests, and there is one task at most.

Invariants: a frame is refused by its size before its bytes are kept; what waits to be handled has at most
`UNREAD_SIZE_BYTES_MAX` and one frame; nothing of a connection is left when it is lost.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Any, Final, Protocol

from offload.contracts.listener import ListenerCounts, ServedStream, ServedStreams
from offload.ground.env import Env
from offload.ground.errors import Corrupt, NotOffloaded, OffloadError
from offload.model.position import AtEdge
from offload_rabbitmq.server.delivery import ChunkFilterOf, Subscription, explain
from offload_rabbitmq.server.outbox import Outbox
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
from offload_rabbitmq.stream_wire import OffsetKind

STEP_SECONDS: Final = 10.0
FRAME_SIZE_BYTES_MAX: Final = 1024 * 1024
FIRST_FRAME_SIZE_BYTES_MAX: Final = 8192
HEARTBEAT_SECONDS: Final = 60
UNREAD_SIZE_BYTES_MAX: Final = 64 * 1024
REFERENCE_SIZE_BYTES_MAX: Final = 255

SERVER_PROPERTIES: Final = {
    "product": "ledger-offload",
    "version": "3.13.0",  # of the protocol: clients decide by it what they may ask for
    "platform": "Python",
    "information": "Reads archived streams. Nothing can be published here.",
}

NO_LEADER: Final = 0xFFFF

COMMANDS: Final = tuple(
    (int(key), 1, 2 if key is Key.PUBLISH else 1)
    for key in (
        Key.DECLARE_PUBLISHER,  # rstream takes the second one for PUBLISH, wherever it is
        Key.PUBLISH,
        Key.QUERY_PUBLISHER_SEQUENCE,
        Key.DELETE_PUBLISHER,
        Key.SUBSCRIBE,
        Key.CREDIT,
        Key.STORE_OFFSET,
        Key.QUERY_OFFSET,
        Key.UNSUBSCRIBE,
        Key.CREATE,
        Key.DELETE,
        Key.METADATA,
        Key.CLOSE,
        Key.HEARTBEAT,
        Key.ROUTE,
        Key.PARTITIONS,
        Key.STREAM_STATS,
        Key.CREATE_SUPER_STREAM,
        Key.DELETE_SUPER_STREAM,
    )
)
"""The commands that the server knows, with the versions of each, in RabbitMQ's order."""

_log: Final = logging.getLogger(__name__)

Work = Coroutine[Any, Any, None]


class StreamNames(Protocol):
    """Knows which stream of a tier a client means (`server.names`)."""

    async def resolve(self, virtual_host: str, name: str) -> str:
        """Return the name on the tier. Raises `NotOffloaded`, or another error if it cannot be told."""

    async def partitions(self, virtual_host: str, name: str) -> Sequence[str]:
        """Return the streams of a super stream, as clients name them. Raises `NotOffloaded`."""


class Logins(Protocol):
    """Knows who may log in (`server.users`)."""

    mechanisms: Sequence[str]

    async def may_enter(self, mechanism: str, data: bytes | None) -> Code:
        """Return `OK`, or the code of the refusal."""


class StoredOffsets(Protocol):
    """Remembers how far consumers have come (`server.offsets`)."""

    def store(self, stream: str, reference: str, offset: int) -> None:
        """Remember an offset."""

    def query(self, stream: str, reference: str) -> int | None:
        """Return the offset that was stored last. None if there is none."""


@dataclass(slots=True, kw_only=True)
class ServerState:
    """What all connections of a listener share."""

    streams: ServedStreams
    names: StreamNames
    logins: Logins
    offsets: StoredOffsets
    advertised: tuple[str, int]
    """The host and the port that clients dial, as texts of Metadata and of Open."""

    counts: ListenerCounts
    env: Env
    connections: set[ServedConnection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class LoginStep(IntEnum):
    """How far a connection has come."""

    CONNECTED = auto()
    AUTHENTICATING = auto()
    TUNING = auto()
    OPEN = auto()
    CLOSING = auto()


_STEPS: Final[Mapping[Key, Sequence[LoginStep]]] = {
    Key.PEER_PROPERTIES: (LoginStep.CONNECTED,),
    Key.SASL_HANDSHAKE: (LoginStep.AUTHENTICATING,),
    Key.SASL_AUTHENTICATE: (LoginStep.AUTHENTICATING,),
    Key.TUNE: (LoginStep.TUNING,),
    Key.OPEN: (LoginStep.TUNING,),
}
"""The steps of the commands of a login. All others need an open connection."""


class ServedConnection(asyncio.Protocol):
    """A connection. asyncio calls it; it belongs to one event loop."""

    def __init__(self, shared: ServerState, peer: str, plain: socket.socket | None) -> None:
        """`plain` is the socket, if what is sent is not encrypted."""
        self._shared, self._peer, self._plain = shared, peer, plain
        self._step = LoginStep.CONNECTED
        self._unread = bytearray()
        self._frame_size_bytes_max = FIRST_FRAME_SIZE_BYTES_MAX
        self._deliver_version = 1
        self._virtual_host = "/"
        self._subscriptions: dict[int, Subscription] = {}
        self._work: asyncio.Task[None] | None = None
        self._beat: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._heard_at = self._env.monotonic()

    @property
    def _env(self) -> Env:
        return self._shared.env

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._outbox = Outbox(transport, self._plain)
        self._shared.connections.add(self)
        self._shared.counts.accepted += 1
        self._shared.counts.connections += 1
        self._enter(LoginStep.CONNECTED)

    def data_received(self, data: bytes) -> None:
        """Take frames."""
        self._heard_at = self._env.monotonic()
        self._unread += data
        self._take_frames()

    def pause_writing(self) -> None:
        """Send no more chunks: the peer reads more slowly than they come."""
        self._outbox.is_full = True

    def resume_writing(self) -> None:
        """Go on."""
        self._outbox.emptied()
        for each in self._subscriptions.values():
            each.wake()
        self._take_frames()

    def connection_lost(self, exc: Exception | None) -> None:
        """End everything that belongs to the connection."""
        self._step = LoginStep.CLOSING
        self._shared.connections.discard(self)
        self._shared.counts.connections -= 1
        if self._deadline is not None:
            self._deadline.cancel()
        for task in (self._work, self._beat):
            if task is not None:
                task.cancel()
        for number in [*self._subscriptions]:
            self._end_subscription(number)
        self._unread.clear()

    # What the listener calls.

    def say_goodbye(self) -> None:
        """Ask the client to close."""
        if self._step is LoginStep.OPEN:
            self._close(Code.OK, "the server stops")
        else:
            self._transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    # Frames.

    def _take_frames(self) -> None:
        unread = self._unread
        while self._work is None and len(unread) >= 4 and not self._transport.is_closing():
            if self._outbox.is_flooded:
                break
            size_bytes = int.from_bytes(unread[:4], "big")
            if not FRAME_SIZE_BYTES_MIN <= size_bytes <= self._frame_size_bytes_max:
                self._refuse_size()
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

    def _refuse_size(self) -> None:
        if self._step is LoginStep.OPEN:
            self._close(Code.FRAME_TOO_LARGE, "frame too large")
            self._unread.clear()
        else:
            self._hang_up()

    def _take(self, content: bytes) -> None:
        if self._step is LoginStep.CLOSING:
            key = int.from_bytes(content[:2], "big")
            if key & ~RESPONSE == Key.CLOSE:  # also their request, if both sides close at once
                self._hang_up()
            return
        try:
            frame = decode(content, Sender.CLIENT, where=self._peer)
        except Corrupt:
            frame = None
        handler = _HANDLERS.get(frame.key) if isinstance(frame, Frame) else None
        if not isinstance(frame, Frame) or (handler is None and self._step is LoginStep.OPEN):
            if self._step is LoginStep.OPEN:
                self._close(Code.UNKNOWN_FRAME, "unknown frame")
            else:
                self._hang_up()
            return
        if handler is None or self._step not in _STEPS.get(frame.key, (LoginStep.OPEN,)):
            if frame.key is Key.SASL_HANDSHAKE:  # answered out of turn, too
                self._sasl_handshake(frame)
            if frame.key not in (Key.HEARTBEAT, Key.CLOSE):
                self._hang_up()
                return
        assert handler is not None
        work = handler(self, frame)
        if work is not None:
            self._work = asyncio.create_task(self._worked(work, frame))
            self._shared.tasks.add(self._work)
            self._work.add_done_callback(self._shared.tasks.discard)

    async def _worked(self, work: Work, frame: Frame) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 - whatever it is, it ends this connection only
            _log.exception("%s: a request of %s failed", self._peer, frame.key.name)
            self._transport.abort()
        finally:
            self._work = None
        self._take_frames()

    def _answer(self, frame: Frame, code: Code = Code.OK, **fields: Any) -> None:
        correlation = frame["correlation"]
        self._send(encode(frame.key, response=True, correlation=correlation, code=code, **fields))

    def _send(self, data: bytes) -> None:
        self._outbox.send(data)

    def _enter(self, step: LoginStep) -> None:
        self._step = step
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if step is not LoginStep.OPEN and not self._transport.is_closing():
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(STEP_SECONDS, self._transport.abort)

    def _close(self, code: Code, reason: str) -> None:
        """Ask the client to close, and ignore everything else that it sends."""
        for number in [*self._subscriptions]:
            self._end_subscription(number)
        self._send(encode(Key.CLOSE, correlation=1, reason_code=code, reason=reason))
        self._enter(LoginStep.CLOSING)

    def _hang_up(self) -> None:
        """Close the socket when the peer has taken what was sent, or after a while."""
        self._outbox.flush()
        self._enter(LoginStep.CLOSING)
        self._transport.close()

    # The login.

    def _peer_properties(self, frame: Frame) -> None:
        self._answer(frame, properties=SERVER_PROPERTIES)
        self._enter(LoginStep.AUTHENTICATING)

    def _sasl_handshake(self, frame: Frame) -> None:
        self._answer(frame, mechanisms=self._shared.logins.mechanisms)

    async def _sasl_authenticate(self, frame: Frame) -> None:
        code = await self._shared.logins.may_enter(frame["mechanism"], frame["data"])
        self._answer(frame, code)
        if code != Code.OK:
            self._shared.counts.refused += 1
            _log.warning("%s: the login was refused (code %d)", self._peer, code)
            self._hang_up()
            return
        self._enter(LoginStep.TUNING)
        self._send(
            encode(
                Key.TUNE,
                frame_size_bytes_max=FRAME_SIZE_BYTES_MAX,
                heartbeat_seconds=HEARTBEAT_SECONDS,
            )
        )

    def _tune(self, frame: Frame) -> None:
        wanted = frame["frame_size_bytes_max"]
        self._frame_size_bytes_max = min(wanted, FRAME_SIZE_BYTES_MAX) if wanted else FRAME_SIZE_BYTES_MAX
        # Less than a command of the login takes would only end the connection later.
        self._frame_size_bytes_max = max(self._frame_size_bytes_max, FIRST_FRAME_SIZE_BYTES_MAX)
        if self._beat is None and (seconds := frame["heartbeat_seconds"]):
            self._beat = asyncio.create_task(self._keep_alive(seconds))

    def _open(self, frame: Frame) -> None:
        self._virtual_host = frame["virtual_host"]
        host, port = self._shared.advertised
        self._answer(frame, properties={"advertised_host": host, "advertised_port": str(port)})
        self._frame_size_bytes_max = max(self._frame_size_bytes_max, FIRST_FRAME_SIZE_BYTES_MAX)
        self._enter(LoginStep.OPEN)

    async def _keep_alive(self, seconds: int) -> None:
        """Send heartbeats while nothing else is sent, and end a connection whose peer is silent."""
        while True:
            flushes = self._outbox.flushes
            await self._env.sleep(seconds / 2)
            silent_seconds = self._env.monotonic() - self._heard_at
            if silent_seconds > 2 * seconds and self._work is None:
                _log.info("%s has sent nothing for %.0f s", self._peer, silent_seconds)
                self._transport.abort()
                return
            if flushes == self._outbox.flushes and not self._outbox.is_full:
                self._send(encode(Key.HEARTBEAT))

    def _close_request(self, frame: Frame) -> None:
        if frame.is_response:
            return
        self._answer(frame)
        self._hang_up()

    def _ignore(self, frame: Frame) -> None:
        pass

    # Streams.

    def _exchange_versions(self, frame: Frame) -> None:
        asked = {key: most for key, _, most in frame["commands"]}
        self._deliver_version = 2 if asked.get(Key.DELIVER, 1) >= 2 else 1
        self._answer(frame, commands=COMMANDS)

    async def _found(self, name: str) -> str | Code:
        """Return the stream on the tier that a client means, or the code of the refusal."""
        try:
            return await self._shared.names.resolve(self._virtual_host, name)
        except NotOffloaded:
            return Code.NO_STREAM
        except OffloadError as error:
            _log.warning("%s", explain(name, error))
            return Code.STREAM_NOT_AVAILABLE

    async def _opened(self, name: str) -> ServedStream | Code:
        """Return a new reader of the stream that a client means, or the code of the refusal."""
        stream = await self._found(name)
        if not isinstance(stream, str):
            return stream
        try:
            return await self._shared.streams.open(stream)
        except NotOffloaded:
            return Code.NO_STREAM
        except OffloadError as error:
            _log.warning("%s", explain(name, error))
            return Code.STREAM_NOT_AVAILABLE

    async def _metadata(self, frame: Frame) -> None:
        rows = list[tuple[str, int, int, Sequence[int]]]()
        for name in dict.fromkeys(frame["streams"]):
            found = await self._opened(name)
            if isinstance(found, Code):
                rows.append((name, found, NO_LEADER, ()))
            else:
                rows.append((name, Code.OK, 0, ()))
        nodes = [(0, *self._shared.advertised)]
        data = encode(
            Key.METADATA, response=True, correlation=frame["correlation"], nodes=nodes, streams=rows
        )
        self._send(data)

    async def _subscribe(self, frame: Frame) -> None:
        number, name, properties = frame["subscription"], frame["stream"], frame["properties"]
        if number in self._subscriptions:
            return self._answer(frame, Code.SUBSCRIPTION_EXISTS)
        if properties.get("single-active-consumer") == "true":
            return self._answer(frame, Code.PRECONDITION_FAILED)
        if frame["offset"].kind is OffsetKind.NONE:
            return self._close(Code.UNKNOWN_FRAME, "unknown frame")
        reader = await self._opened(name)
        if isinstance(reader, Code):
            return self._answer(frame, reader)
        if self._step is not LoginStep.OPEN:
            return None
        made = self._subscriptions[number] = Subscription(
            number,
            name,
            offset=frame["offset"],
            credit=frame["credit"],
            version=self._deliver_version,
            wanted=ChunkFilterOf(properties),
            outbox=self._outbox,
            counts=self._shared.counts,
            env=self._env,
        )
        self._answer(frame)
        made.start(reader, self._subscription_ended)
        assert made.task is not None
        self._shared.tasks.add(made.task)
        made.task.add_done_callback(self._shared.tasks.discard)
        return None

    def _subscription_ended(self, ended: Subscription, error: Exception | None) -> None:
        """Tell the client that the stream is gone: then all of its subscriptions of this stream are."""
        if error is not None:
            self._shared.counts.damaged += isinstance(error, Corrupt)
            self._shared.counts.problems[ended.name] = explain(ended.name, error)
            _log.error(
                "%s", explain(ended.name, error), exc_info=not isinstance(error, OffloadError) and error
            )
        if self._step is LoginStep.OPEN and self._subscriptions.get(ended.number) is ended:
            for number in [n for n, each in self._subscriptions.items() if each.name == ended.name]:
                self._end_subscription(number)
            self._send(encode(Key.METADATA_UPDATE, code=Code.STREAM_NOT_AVAILABLE, stream=ended.name))

    def _end_subscription(self, number: int) -> None:
        ended = self._subscriptions.pop(number)
        if ended.task is not None:
            ended.task.cancel()

    def _unsubscribe(self, frame: Frame) -> None:
        if frame["subscription"] not in self._subscriptions:
            return self._answer(frame, Code.NO_SUBSCRIPTION)
        self._end_subscription(frame["subscription"])
        return self._answer(frame)

    def _credit(self, frame: Frame) -> None:
        number = frame["subscription"]
        if (found := self._subscriptions.get(number)) is not None:
            found.give_credit(frame["credit"])
            return
        refused = encode(Key.CREDIT, response=True, code=Code.NO_SUBSCRIPTION, subscription=number)
        self._send(refused)

    async def _store_offset(self, frame: Frame) -> None:
        reference, stream = frame["reference"], await self._found(frame["stream"])
        if isinstance(stream, str) and 0 < len(reference.encode()) <= REFERENCE_SIZE_BYTES_MAX:
            self._shared.offsets.store(stream, reference, frame["offset"])

    async def _query_offset(self, frame: Frame) -> None:
        stream = await self._found(frame["stream"])
        if not isinstance(stream, str):
            return self._answer(frame, stream, offset=0)
        offset = self._shared.offsets.query(stream, frame["reference"])
        if offset is None:
            return self._answer(frame, Code.NO_OFFSET, offset=0)
        return self._answer(frame, offset=offset)

    async def _stream_stats(self, frame: Frame) -> None:
        reader = await self._opened(frame["stream"])
        if isinstance(reader, Code):
            return self._answer(frame, reader)
        try:
            first, last, end = [
                (await reader.place_of(edge)).offset for edge in (AtEdge.FIRST, AtEdge.LAST, AtEdge.NEXT)
            ]
        except OffloadError as error:
            is_gone = isinstance(error, NotOffloaded)
            return self._answer(frame, Code.NO_STREAM if is_gone else Code.STREAM_NOT_AVAILABLE)
        if last == end:
            first = last = -1
        stats = [("first_chunk_id", first), ("last_chunk_id", last), ("committed_chunk_id", last)]
        return self._answer(frame, stats=stats)

    async def _partitions(self, frame: Frame) -> None:
        try:
            found = await self._shared.names.partitions(self._virtual_host, frame["super_stream"])
        except NotOffloaded:
            return self._answer(frame, Code.NO_STREAM, streams=())
        except OffloadError:
            return self._answer(frame, Code.STREAM_NOT_AVAILABLE, streams=())
        if frame.key is Key.ROUTE:
            found = [each for each in found if each == f"{frame['super_stream']}-{frame['routing_key']}"]
        return self._answer(frame, streams=found)

    # What is refused.

    def _refuse(self, frame: Frame) -> None:
        self._answer(frame, Code.ACCESS_REFUSED)

    def _no_publisher(self, frame: Frame) -> None:
        self._answer(frame, Code.NO_PUBLISHER)

    def _refuse_messages(self, frame: Frame) -> None:
        errors = [(message[0], Code.NO_PUBLISHER) for message in frame["messages"]]
        self._send(encode(Key.PUBLISH_ERROR, publisher=frame["publisher"], errors=errors))


_HANDLERS: Final[Mapping[Key, Callable[[ServedConnection, Frame], Work | None]]] = {
    Key.DECLARE_PUBLISHER: ServedConnection._refuse,
    Key.PUBLISH: ServedConnection._refuse_messages,
    Key.QUERY_PUBLISHER_SEQUENCE: ServedConnection._refuse,
    Key.DELETE_PUBLISHER: ServedConnection._no_publisher,
    Key.SUBSCRIBE: ServedConnection._subscribe,
    Key.CREDIT: ServedConnection._credit,
    Key.STORE_OFFSET: ServedConnection._store_offset,
    Key.QUERY_OFFSET: ServedConnection._query_offset,
    Key.UNSUBSCRIBE: ServedConnection._unsubscribe,
    Key.CREATE: ServedConnection._refuse,
    Key.DELETE: ServedConnection._refuse,
    Key.METADATA: ServedConnection._metadata,
    Key.PEER_PROPERTIES: ServedConnection._peer_properties,
    Key.SASL_HANDSHAKE: ServedConnection._sasl_handshake,
    Key.SASL_AUTHENTICATE: ServedConnection._sasl_authenticate,
    Key.TUNE: ServedConnection._tune,
    Key.OPEN: ServedConnection._open,
    Key.CLOSE: ServedConnection._close_request,
    Key.HEARTBEAT: ServedConnection._ignore,
    Key.ROUTE: ServedConnection._partitions,
    Key.PARTITIONS: ServedConnection._partitions,
    Key.CONSUMER_UPDATE: ServedConnection._ignore,
    Key.EXCHANGE_COMMAND_VERSIONS: ServedConnection._exchange_versions,
    Key.STREAM_STATS: ServedConnection._stream_stats,
    Key.CREATE_SUPER_STREAM: ServedConnection._refuse,
    Key.DELETE_SUPER_STREAM: ServedConnection._refuse,
}
