"""An imitation of RabbitMQ's stream port, which answers as a test says. It is written from the protocol.

It knows the requests that a consumer sends, delivers committed chunks only, and counts what it was asked. A
`fault` makes it fail in one way.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from offload.formats.chunk import ChunkHeader

RESPONSE: Final = 0x8000
HEADER_SIZE_BYTES: Final = 48
OK, NO_STREAM, REFUSED, NO_HOST, DENIED = 1, 2, 8, 12, 16
SUBSCRIBE, DELIVER, UNSUBSCRIBE, METADATA, UPDATE = 7, 8, 12, 15, 16
ADVERTISED: Final = ("advertised_host", "a", "advertised_port", "1")
PROPERTIES, MECHANISMS, AUTHENTICATE, TUNE, OPEN, CLOSE, HEARTBEAT = 17, 18, 19, 20, 21, 22, 23


class PortFault(StrEnum):
    """The ways in which it fails."""

    MUTE = "accepts the connection and says nothing"
    MUTE_WHEN_ASKED = "answers no request for a stream"
    HANGS_UP = "closes the connection at a request for a stream"
    GARBAGE = "answers a request for a stream with garbage"
    FORBIDS = "lets this user read no stream"
    LIES = "delivers a chunk with another offset"


@dataclass
class StreamPort:
    """The port of a node. `streams` has the chunks of each stream."""

    streams: dict[str, list[bytes]] = field(default_factory=dict)
    committed_offset: int = 0
    user: str = "guest"
    password: str = "guest"
    virtual_host: str = "/"
    leader: int | None = 0
    """The reference of the leader: 0 is this node, 1 another one. None: there is none."""

    fault: PortFault | None = None
    port: int = 0
    connections: int = 0
    subscriptions: dict[int, str] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    """The keys of all requests."""

    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @asynccontextmanager
    async def serve(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[StreamPort]:
        """Answer on a free port of loopback until the end of the block."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.hang_up()
            await server.wait_closed()

    def hang_up(self) -> None:
        """Close all connections."""
        for each in self._open:
            each.close()

    def commit(self, offset: int) -> None:
        """Commit what is below this offset, and deliver it to those who wait."""
        self.committed_offset = offset

    def update(self, stream: str) -> None:
        """Tell all clients that a stream is gone, as a broker does that restarts its replica."""
        self.subscriptions.clear()
        for writer in self._open:
            writer.write(frame(UPDATE, struct.pack(">H", 6) + text(stream)))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                request = await reader.readexactly(size)
                key = int.from_bytes(request[:2]) & ~RESPONSE
                self.asked.append(key)
                for answer in self._answers(key, request[4:], writer):
                    writer.write(answer)
                    await writer.drain()
        writer.close()
        self._open.discard(writer)

    def _answers(self, key: int, body: bytes, writer: asyncio.StreamWriter) -> Iterator[bytes]:
        """Yield the frames that answer a request."""
        if self.fault is PortFault.MUTE or key in (TUNE, HEARTBEAT):
            return
        if key in (SUBSCRIBE, METADATA, UNSUBSCRIBE):
            yield from self._for_stream(key, body, writer)
            return
        correlation = body[:4]
        answers = {
            PROPERTIES: (OK, struct.pack(">I", 0)),
            MECHANISMS: (OK, struct.pack(">I", 1) + text("PLAIN")),
            AUTHENTICATE: (self._login(body), b""),
            OPEN: (OK, struct.pack(">I", len(ADVERTISED) // 2) + b"".join(map(text, ADVERTISED))),
            CLOSE: (OK, b""),
        }
        code, rest = answers[key]
        if key == OPEN and text(self.virtual_host) != body[4:]:
            code, rest = NO_HOST, struct.pack(">I", 0)
        yield frame(RESPONSE | key, correlation + struct.pack(">H", code) + rest)
        if key == AUTHENTICATE and code == OK:
            yield frame(TUNE, struct.pack(">II", 2**20, 60))

    def _login(self, body: bytes) -> int:
        login = b"\0".join((b"", self.user.encode(), self.password.encode()))
        return OK if body.endswith(struct.pack(">I", len(login)) + login) else REFUSED

    def _for_stream(self, key: int, body: bytes, writer: asyncio.StreamWriter) -> Iterator[bytes]:
        match self.fault:
            case PortFault.MUTE_WHEN_ASKED:
                return
            case PortFault.HANGS_UP:
                raise ConnectionResetError
            case PortFault.GARBAGE:
                yield frame(RESPONSE | 99, b"garbage")
                return
        if key == METADATA:
            yield self._metadata(body)
        elif key == UNSUBSCRIBE:
            self.subscriptions.pop(body[4], None)
            yield frame(RESPONSE | UNSUBSCRIBE, body[:4] + struct.pack(">H", OK))
        else:
            yield from self._subscribed(body, writer)

    def _metadata(self, body: bytes) -> bytes:
        name = body[10:].decode()
        code = OK if name in self.streams else NO_STREAM
        leader = 0xFFFF if self.leader is None or code != OK else self.leader
        nodes = (
            struct.pack(">IH", 2, 0) + text("a") + struct.pack(">IH", 1, 1) + text("b") + struct.pack(">I", 2)
        )
        about = struct.pack(">I", 1) + text(name) + struct.pack(">HHI", code, leader, 0)
        return frame(RESPONSE | METADATA, body[:4] + nodes + about)

    def _subscribed(self, body: bytes, writer: asyncio.StreamWriter) -> Iterator[bytes]:
        number, size = body[4], int.from_bytes(body[5:7])
        name, rest = body[7 : 7 + size].decode(), body[7 + size :]
        kind, offset, credit = struct.unpack(">HQH", rest[:12])
        assert (kind, credit) == (4, 1), "a question is about one offset, with credit for one chunk"
        code = DENIED if self.fault is PortFault.FORBIDS else OK if name in self.streams else NO_STREAM
        yield frame(RESPONSE | SUBSCRIBE, body[:4] + struct.pack(">H", code))
        if code == OK:
            self.subscriptions[number] = name
            asyncio.get_running_loop().create_task(self._deliver(number, name, offset, writer))

    async def _deliver(self, number: int, name: str, offset: int, writer: asyncio.StreamWriter) -> None:
        """Deliver the chunk that holds the offset, as soon as it is committed."""
        while self.subscriptions.get(number) == name and not writer.is_closing():
            for chunk in self.streams[name]:
                header = ChunkHeader.decode(chunk, where=name)
                if offset < header.next_offset <= self.committed_offset:
                    if self.fault is PortFault.LIES:
                        chunk = chunk[:24] + struct.pack(">Q", header.offset + 1000) + chunk[32:]
                    writer.write(frame(DELIVER, bytes([number]) + delivered(chunk, header)))
                    return
            await asyncio.sleep(0.005)


@contextmanager
def in_a_thread(port: StreamPort) -> Iterator[StreamPort]:
    """Serve from another thread, for a command that runs in this one."""
    begun, ended = threading.Event(), threading.Event()

    async def main() -> None:
        async with port.serve():
            begun.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    begun.wait(10)
    try:
        yield port
    finally:
        ended.set()
        thread.join()


def delivered(chunk: bytes, header: ChunkHeader) -> bytes:
    """Return the part of a chunk that a consumer gets: the header and the entries."""
    return chunk[:HEADER_SIZE_BYTES] + chunk[header.data_start : header.trailer_start]


def node(reference: int, host: str, port: int) -> bytes:
    """Return a node of the cluster."""
    return struct.pack(">H", reference) + text(host) + struct.pack(">I", port)


def frame(key: int, body: bytes) -> bytes:
    """Return a frame of version 1."""
    return struct.pack(">IHH", len(body) + 4, key, 1) + body


def text(value: str) -> bytes:
    """Return a string as the protocol has it."""
    return struct.pack(">H", len(value)) + value.encode()
