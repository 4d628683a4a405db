"""A broker that speaks the few commands of the stream protocol that a restore uses, for one stream.

It was written from the protocol's description and a capture of RabbitMQ, and imports no code under test but
the formats of chunks. Like RabbitMQ, it drops a message whose id is not above the highest of its publisher,
and confirms it all the same; it takes an offset for a tracking record now and then; and it delivers a chunk
without filter and trailer, while credit is left.

`dies_after` lets a connection die after so many more messages were stored, as a kill of the publisher does.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.model.chunk_table import ChunkType

DECLARE, PUBLISH, CONFIRM, ERROR, QUERY, SUBSCRIBE, DELIVER, CREDIT = 1, 2, 3, 4, 5, 7, 8, 9
UPDATE = 16
CREATE, METADATA, PROPERTIES, HANDSHAKE, AUTHENTICATE, TUNE, OPEN, CLOSE, BEAT = (
    13,
    15,
    17,
    18,
    19,
    20,
    21,
    22,
    23,
)


class Hangup(Exception):
    """The connection ends without a word."""


@dataclass
class StreamBroker:
    """The stream and what a test may change about it."""

    stream: str = "copy"
    arguments: dict[str, str] | None = field(default_factory=dict)
    """Those of the declaration; None if the stream does not exist."""

    password: str = "guest"
    tracks_every: int = 3
    """After so many chunks the broker adds a tracking record of its own, which takes an offset."""

    chunk_messages: int = 4
    dies_after: int | None = None
    moves_after: int | None = None
    """After so many more messages or chunks the leader moves: publishers and subscriptions end."""

    dies_on: int | None = None
    """The command at which a connection dies."""

    stalls_on: int | None = None
    """The command from which on a connection reads nothing more, and stays open."""

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
    _chunks: int = 0

    @property
    def bodies(self) -> list[bytes]:
        """The messages in order."""
        return [body for _, body in self.stored]

    @property
    def url(self) -> str:
        """The URL of the stream."""
        return f"rabbitmq-stream://127.0.0.1:{self.port}/{self.stream}"

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
async def running(broker: StreamBroker) -> AsyncIterator[StreamBroker]:
    """Let the broker answer on a port of the loopback interface."""
    open_now: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker.connections += 1
        open_now.add(writer)
        try:
            await _Connection(broker, reader, writer).serve()
        except (Hangup, EOFError, OSError):
            pass
        finally:
            open_now.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        server.close()
        for writer in list(open_now):
            writer.close()
        await server.wait_closed()


class _Connection:
    def __init__(
        self, broker: StreamBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.broker, self.reader, self.writer = broker, reader, writer
        self.reference = ""
        self.credit = self.at = 0
        self.subscribed = False

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
            self.answer(key & 0x7FFF, raw[4:])
            await self.writer.drain()

    def answer(self, key: int, content: bytes) -> None:
        if key == self.broker.dies_on:
            raise Hangup
        correlation, rest = content[:4], content[4:]
        match key:
            case 1 | 5 | 7 | 13 | 15 | 17 | 18 | 19 | 21 | 22:
                self.send(key | 0x8000, correlation + self.response(key, rest))
                self.after(key)
            case 2:
                self.publish(content)
            case 9:
                self.credit += int.from_bytes(content[1:3], "big")
                self.deliver()
            case 20 | 23:
                pass
            case _:
                raise AssertionError(f"an unknown command: {key}")

    def response(self, key: int, rest: bytes) -> bytes:
        broker, ok = self.broker, b"\0\1"
        exists = broker.arguments is not None
        if key in (PROPERTIES, OPEN):
            answered = {"version": "3.99.1"} if key == PROPERTIES else {"advertised_host": "127.0.0.1"}
            if key == OPEN:
                answered["advertised_port"] = str(broker.port)
            return ok + pairs(answered)
        if key == HANDSHAKE:
            return ok + b"\0\0\0\2" + string("PLAIN") + string("AMQPLAIN")
        if key == AUTHENTICATE:
            return ok if rest.endswith(b"\0" + broker.password.encode()) else b"\0\x08"
        if key == METADATA:
            named, _ = text(rest[4:])
            known = exists and named == broker.stream
            node = b"\0\0" + string("127.0.0.1") + broker.port.to_bytes(4, "big")
            code = b"\0\1\0\0" if known else b"\0\2\xff\xff"
            return b"\0\0\0\1" + node + b"\0\0\0\1" + string(named) + code + bytes(4)
        if key == CREATE:
            return self.create(rest)
        if not exists and key in (DECLARE, QUERY, SUBSCRIBE):
            return b"\0\2" + bytes(8)
        if key == DECLARE:
            self.reference, _ = text(rest[1:])
            return b"\0\x11" if broker.has_alarm else ok
        if key == QUERY:
            reference, _ = text(rest)
            return ok + broker.sequences.get(reference, 0).to_bytes(8, "big")
        if key == SUBSCRIBE:
            named, after = text(rest[1:])
            assert (named, after[:2]) == (broker.stream, b"\0\1"), "from the first"
            self.subscribed, self.credit = True, int.from_bytes(after[2:4], "big")
        return ok

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
        chunks = self.broker.chunks()
        while self.subscribed and self.credit and self.at < len(chunks):
            if self.moves():
                self.subscribed = False
                return
            # A chunk of a publisher with a name has a trailer, which its header states and no delivery has.
            chunk = bytearray(chunks[self.at])
            chunk[40:44] = (17).to_bytes(4, "big")
            self.send(DELIVER, b"\1" + bytes(chunk))
            self.at, self.credit = self.at + 1, self.credit - 1

    def moves(self) -> bool:
        """Tell the client that the leader moved if it is time. The connection stays, and is silent."""
        if self.broker.moves_after == 0:
            self.broker.moves_after = None
            self.send(UPDATE, b"\0\6" + string(self.broker.stream))
            return True
        if self.broker.moves_after is not None:
            self.broker.moves_after -= 1
        return False

    def send(self, key: int, content: bytes) -> None:
        self.writer.write(struct.pack(">IHH", 4 + len(content), key, 1) + content)


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
