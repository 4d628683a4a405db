"""A broker that speaks RabbitMQ's stream protocol, as far as restores and the questions of followers need it.

It was written from the protocol's description and a capture of RabbitMQ, and imports no code under test but
the formats of chunks. So it and the plugin's table check each other. Like RabbitMQ, it drops a message whose
id is not above the highest of its publisher, and confirms it all the same; it takes an offset for a tracking
record now and then; and it delivers a chunk without filter and trailer, while credit is left.

It has one stream that is published to, and any others whose chunks a test gives. A test may let it fail in
many ways: at a command, or after an amount of messages.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.model.chunk_table import ChunkType

DECLARE, PUBLISH, CONFIRM, ERROR, QUERY, SUBSCRIBE, DELIVER, CREDIT = 1, 2, 3, 4, 5, 7, 8, 9
UNSUBSCRIBE, CREATE, METADATA, UPDATE, PROPERTIES, HANDSHAKE, AUTHENTICATE = 12, 13, 15, 16, 17, 18, 19
TUNE, OPEN, CLOSE, BEAT = 20, 21, 22, 23
OF_A_STREAM: Final = frozenset({SUBSCRIBE, METADATA, UNSUBSCRIBE})
OK, NO_STREAM, EXISTS, WRONG_LOGIN, NO_HOST, DENIED, PRECONDITION = 1, 2, 5, 8, 12, 16, 17
RESPONSE: Final = 0x8000
NOWHERE: Final = 0xFFFF


class Hangup(Exception):
    """The connection ends without a word."""


@dataclass
class StreamBroker:
    """The streams and what a test may change about them."""

    stream: str = "copy"
    """The stream that is published to."""

    arguments: dict[str, str] | None = field(default_factory=dict)
    """Those of its declaration; None if it does not exist."""

    streams: dict[str, list[bytes]] = field(default_factory=dict)
    """The chunks of the other streams."""

    committed_offset: int | None = None
    """The end of what is committed of the other streams. None: everything is."""

    user: str = "guest"
    password: str = "guest"
    virtual_host: str = "/"
    advertised: tuple[str, int] = ("a", 1)
    """The address by which the cluster knows this node."""

    leader: int | None = 0
    """The reference of the leader: 0 is this node, 1 another one. None: there is none."""

    tracks_every: int = 3
    """After so many chunks the broker adds a tracking record of its own, which takes an offset."""

    chunk_messages: int = 4
    dies_after: int | None = None
    """After so many more messages were stored, the connection dies, as a kill of the publisher does."""

    moves_after: int | None = None
    """After so many more messages or chunks the leader moves: publishers and subscriptions end."""

    dies_on: int | frozenset[int] | None = None
    """The commands at which a connection dies."""

    stalls_on: int | None = None
    """The command from which on a connection reads nothing more, and stays open."""

    silent_on: frozenset[int] = frozenset()
    """The commands that get no answer."""

    garbles: frozenset[int] = frozenset()
    """The commands that are answered by a response of an unknown key."""

    halves: frozenset[int] = frozenset()
    """The commands whose answer ends in its middle."""

    closes_on: frozenset[int] = frozenset()
    """The commands that the broker answers by closing the connection with a reason."""

    refuses: dict[int, int] = field(default_factory=dict)
    """The codes of commands that it refuses."""

    late_seconds: float = 0.0
    """The time that each answer takes."""

    piece_size_bytes: int | None = None
    """The size of the pieces in which all frames are sent. None: whole frames."""

    frame_size_bytes_max: int = 1 << 20
    """A larger frame ends the connection."""

    heartbeat_seconds: int | None = 60
    """None: the broker never states its limits."""

    forgets: bool = False
    """True: messages are confirmed and not stored."""

    has_alarm: bool = False
    """True: the broker takes no publisher, as RabbitMQ while memory or disk is short."""

    confirms: bool = True
    refuses_id: int | None = None
    stored: list[tuple[int, bytes]] = field(default_factory=list)
    """The offset and the body of each message."""

    sequences: dict[str, int] = field(default_factory=dict)
    begins: set[int] = field(default_factory=set)
    """The offsets at which a chunk begins although the one before is not full."""

    port: int = 0
    next_offset: int = 0
    connections: int = 0
    asked: list[int] = field(default_factory=list)
    """The keys of all commands."""

    heartbeats: list[int] = field(default_factory=list)
    """The heartbeat of each client."""

    _open: list[_Connection] = field(default_factory=list)

    @property
    def bodies(self) -> list[bytes]:
        """The messages in order."""
        return [body for _, body in self.stored]

    @property
    def url(self) -> str:
        """The URL of the stream."""
        return f"{self.address}/{self.stream}"

    @property
    def address(self) -> str:
        """The URL of the broker."""
        return f"rabbitmq-stream://127.0.0.1:{self.port}"

    @property
    def subscriptions(self) -> dict[int, str]:
        """The streams of all subscriptions, by their numbers."""
        return {number: each.stream for one in self._open for number, each in one.subscriptions.items()}

    def hang_up(self) -> None:
        """End all connections."""
        for each in self._open:
            each.writer.close()

    def commit(self, offset: int) -> None:
        """Commit what is below this offset, and deliver it to those who wait."""
        self.committed_offset = offset
        for each in self._open:
            each.deliver()

    def update(self, stream: str) -> None:
        """Tell all clients that a stream is gone, as a broker does that restarts its replica."""
        for each in self._open:
            each.subscriptions.clear()
            each.send(UPDATE, b"\0\6" + string(stream))

    def known_chunks(self, stream: str) -> list[bytes] | None:
        """The committed chunks of a stream. None if it does not exist."""
        if stream == self.stream and self.arguments is not None:
            return self.chunks()
        end = self.committed_offset
        return (
            [
                chunk
                for chunk in self.streams[stream]
                if end is None or ChunkHeader.decode(chunk, where=stream).next_offset <= end
            ]
            if stream in self.streams
            else None
        )

    def publish(self, reference: str, messages: list[tuple[int, bytes]]) -> None:
        """Store messages, as osiris does: repetitions are dropped, and the rest becomes a chunk."""
        for publishing_id, body in [] if self.forgets else messages:
            if self.dies_after is not None:
                if self.dies_after == 0:
                    self.dies_after = None
                    raise Hangup
                self.dies_after -= 1
            if reference and publishing_id <= self.sequences.get(reference, 0):
                continue
            if reference:
                self.sequences[reference] = publishing_id
            self.stored.append((self.next_offset, body))
            self.next_offset += 1
            if len(self.stored) % (self.chunk_messages * self.tracks_every) == 0:
                self.next_offset += 1

    def append(self, bodies: list[bytes]) -> None:
        """Store messages of another publisher in a chunk of their own, as if all before were confirmed."""
        self.begins.add(self.next_offset)
        self.publish("", [(0, body) for body in bodies])

    def log(self) -> list[bytes]:
        """The chunks as a node has them on disk: with its tracking records, and without a hole."""
        found, end = list[bytes](), self.stored[0][0] if self.stored else 0
        for chunk in self.chunks():
            header = ChunkHeader.decode(chunk, where="here")
            if header.offset > end:
                found.append(self._tracking(end))
            found.append(chunk)
            end = header.next_offset
        return found if end == self.next_offset else [*found, self._tracking(end)]

    def _tracking(self, offset: int) -> bytes:
        kind = ChunkType.TRACKING_DELTA
        return build_tracking_chunk([], chunk_type=kind, offset=offset, timestamp_ms=5, epoch=1)

    def chunks(self) -> list[bytes]:
        """The messages as chunks: runs of neighbouring offsets."""
        found, run = [], list[tuple[int, bytes]]()
        for each in [*self.stored, (-1, b"")]:
            is_next = run and each[0] == run[-1][0] + 1 and each[0] not in self.begins
            if run and (not is_next or len(run) == self.chunk_messages):
                bodies = [body for _, body in run]
                found.append(build_chunk(bodies, offset=run[0][0], timestamp_ms=5, epoch=1))
                run = []
            run.append(each)
        return found


@asynccontextmanager
async def running(broker: StreamBroker, tls: ssl.SSLContext | None = None) -> AsyncIterator[StreamBroker]:
    """Let the broker answer on a port of the loopback interface."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker.connections += 1
        connection = _Connection(broker, reader, writer)
        broker._open.append(connection)
        try:
            await connection.serve()
        except (Hangup, EOFError, OSError):
            pass
        finally:
            broker._open.remove(connection)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", broker.port, ssl=tls)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        broker.hang_up()
        await server.wait_closed()


@dataclass
class _Subscription:
    stream: str
    offset: int
    """Chunks that end before this offset are not delivered."""

    credit: int
    at: int = 0


class _Connection:
    def __init__(
        self, broker: StreamBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.broker, self.reader, self.writer = broker, reader, writer
        self.reference = ""
        self.subscriptions: dict[int, _Subscription] = {}

    async def serve(self) -> None:
        while True:
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            if size > self.broker.frame_size_bytes_max:
                raise Hangup
            raw = await self.reader.readexactly(size)
            key, version = struct.unpack(">HH", raw[:4])
            assert version == 1, raw
            if key == self.broker.stalls_on:
                await asyncio.Event().wait()
            self.broker.asked.append(key & 0x7FFF)
            if self.broker.late_seconds:
                await asyncio.sleep(self.broker.late_seconds)
            self.answer(key & 0x7FFF, raw[4:])
            await self.writer.drain()

    def answer(self, key: int, content: bytes) -> None:
        if key == self.broker.dies_on or key in (self.broker.dies_on or ()):
            raise Hangup
        correlation, rest = content[:4], content[4:]
        if key in self.broker.silent_on:
            return None
        if key in self.broker.garbles:
            return self.send(RESPONSE | 99, b"garbage")
        if key in self.broker.closes_on:
            return self.send(CLOSE, bytes(4) + b"\0\x0f" + string("out of\nmemory"))
        match key:
            case 1 | 5 | 7 | 12 | 13 | 15 | 17 | 18 | 19 | 21 | 22:
                self.send(
                    key | RESPONSE, correlation + self.response(key, rest), half=key in self.broker.halves
                )
                self.after(key)
            case 2:
                self.publish(content)
            case 9 if content[0] not in self.subscriptions:
                self.send(CREDIT | RESPONSE, b"\0\4" + content[:1])
            case 9:
                self.subscriptions[content[0]].credit += int.from_bytes(content[1:3], "big")
                self.deliver()
            case 20:
                self.broker.heartbeats.append(int.from_bytes(content[4:8], "big"))
            case 23:
                pass
            case _:
                raise AssertionError(f"an unknown command: {key}")
        return None

    def response(self, key: int, rest: bytes) -> bytes:
        broker, ok = self.broker, b"\0\1"
        exists = broker.arguments is not None
        if key in broker.refuses:
            return broker.refuses[key].to_bytes(2, "big")
        if key == PROPERTIES:
            return ok + pairs({"version": "3.99.1"})
        if key == HANDSHAKE:
            return ok + b"\0\0\0\2" + string("PLAIN") + string("AMQPLAIN")
        if key == AUTHENTICATE:
            login = b"\0".join((b"", broker.user.encode(), broker.password.encode()))
            is_right = rest == string("PLAIN") + len(login).to_bytes(4, "big") + login
            return ok if is_right else WRONG_LOGIN.to_bytes(2, "big")
        if key == OPEN:
            host, port = broker.advertised
            known = {"advertised_host": host, "advertised_port": str(port)}
            is_there = text(rest) == (broker.virtual_host, b"")
            return ok + pairs(known) if is_there else NO_HOST.to_bytes(2, "big")
        if key == METADATA:
            return self.metadata(rest)
        if key == CREATE:
            return self.create(rest)
        if key == SUBSCRIBE:
            return self.subscribe(rest)
        if key == UNSUBSCRIBE:
            return ok if self.subscriptions.pop(rest[0], None) else b"\0\4"
        if not exists and key in (DECLARE, QUERY):
            return b"\0\2" + bytes(8)
        if key == DECLARE:
            self.reference, _ = text(rest[1:])
            return b"\0\x11" if broker.has_alarm else ok
        if key == QUERY:
            reference, _ = text(rest)
            return ok + broker.sequences.get(reference, 0).to_bytes(8, "big")
        return ok

    def metadata(self, rest: bytes) -> bytes:
        broker = self.broker
        named, nothing = text(rest[4:])
        assert (rest[:4], nothing) == (b"\0\0\0\1", b"")
        code, leader = OK, NOWHERE if broker.leader is None else broker.leader
        if broker.known_chunks(named) is None:
            code, leader = NO_STREAM, NOWHERE
        nodes = b""
        for reference, (host, port) in enumerate([broker.advertised, ("b", 2)]):
            nodes += reference.to_bytes(2, "big") + string(host) + port.to_bytes(4, "big")
        about = string(named) + struct.pack(">HHI", code, leader, 0)
        return b"\0\0\0\2" + nodes + b"\0\0\0\1" + about

    def subscribe(self, rest: bytes) -> bytes:
        named, after = text(rest[1:])
        kind, offset = int.from_bytes(after[:2], "big"), 0
        if kind == 4:
            offset = int.from_bytes(after[2:10], "big")
            after = after[8:]
        assert kind in (1, 4), "from the first, or at an offset"
        assert len(after) == 4, "no properties"
        if self.broker.known_chunks(named) is None:
            return NO_STREAM.to_bytes(2, "big")
        assert rest[0] not in self.subscriptions
        self.subscriptions[rest[0]] = _Subscription(named, offset, int.from_bytes(after[2:4], "big"))
        return b"\0\1"

    def create(self, rest: bytes) -> bytes:
        _, after = text(rest)
        asked, count, after = {}, int.from_bytes(after[:4], "big"), after[4:]
        for _ in range(count):
            name, after = text(after)
            asked[name], after = text(after)
        if self.broker.arguments is None:
            self.broker.arguments = asked
            return b"\0\1"
        return b"\0\5" if asked == self.broker.arguments else b"\0\x11"

    def after(self, key: int) -> None:
        if key == AUTHENTICATE and self.broker.heartbeat_seconds is not None:
            self.send(
                TUNE, struct.pack(">II", self.broker.frame_size_bytes_max, self.broker.heartbeat_seconds)
            )
        if key == SUBSCRIBE:
            self.deliver()
        if key == CLOSE:
            raise Hangup

    def publish(self, content: bytes) -> None:
        count, at, messages = int.from_bytes(content[1:5], "big"), 5, []
        for _ in range(count):
            publishing_id, size = struct.unpack(">QI", content[at : at + 12])
            messages.append((publishing_id, content[at + 12 : at + 12 + size]))
            at += 12 + size
        assert at == len(content)
        if self.broker.refuses_id in [publishing_id for publishing_id, _ in messages]:
            refused = (self.broker.refuses_id or 0).to_bytes(8, "big") + b"\0\x12"
            return self.send(ERROR, content[:1] + b"\0\0\0\1" + refused)
        if self.moves():
            return None
        self.broker.publish(self.reference, messages)
        # Two frames, the second half first: the order of confirms is not that of the messages.
        ids = [publishing_id.to_bytes(8, "big") for publishing_id, _ in messages]
        for half in (ids[len(ids) // 2 :], ids[: len(ids) // 2]):
            if half and self.broker.confirms:
                self.send(CONFIRM, content[:1] + len(half).to_bytes(4, "big") + b"".join(half))
        return None

    def deliver(self) -> None:
        for number, each in list(self.subscriptions.items()):
            chunks = self.broker.known_chunks(each.stream) or []
            while each.credit and each.at < len(chunks):
                chunk, each.at = bytearray(chunks[each.at]), each.at + 1
                header = ChunkHeader.decode(chunk, where=each.stream)
                if header.next_offset <= each.offset:
                    continue
                if self.moves():
                    self.subscriptions.clear()
                    return
                # A named publisher's chunk has a trailer, which its header states and no delivery has.
                chunk[40:44] = (17).to_bytes(4, "big")
                each.credit -= 1
                self.send(
                    DELIVER, bytes((number,)) + chunk[:48] + chunk[header.data_start : header.trailer_start]
                )

    def moves(self) -> bool:
        """Tell the client that the leader moved if it is time. The connection stays, and is silent."""
        if self.broker.moves_after == 0:
            self.broker.moves_after = None
            self.send(UPDATE, b"\0\6" + string(self.broker.stream))
            return True
        if self.broker.moves_after is not None:
            self.broker.moves_after -= 1
        return False

    def send(self, key: int, content: bytes, *, half: bool = False) -> None:
        raw = struct.pack(">IHH", 4 + len(content), key, 1) + content
        raw = raw[: len(raw) // 2] if half else raw
        for begin in range(0, len(raw), self.broker.piece_size_bytes or len(raw)):
            self.writer.write(raw[begin : begin + (self.broker.piece_size_bytes or len(raw))])


def string(value: str) -> bytes:
    raw = value.encode()
    return len(raw).to_bytes(2, "big") + raw


def text(raw: bytes) -> tuple[str, bytes]:
    size = int.from_bytes(raw[:2], "big")
    return raw[2 : 2 + size].decode(), raw[2 + size :]


def pairs(values: dict[str, str]) -> bytes:
    items = b"".join(string(name) + string(value) for name, value in values.items())
    return len(values).to_bytes(4, "big") + items


@contextmanager
def beside(broker: StreamBroker) -> Iterator[StreamBroker]:
    """Let the broker answer from a thread, for a command that has an event loop of its own."""
    loop = asyncio.new_event_loop()
    ready, over = threading.Event(), asyncio.Event()

    async def answer() -> None:
        async with running(broker):
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(answer(),))
    thread.start()
    ready.wait()
    try:
        yield broker
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
