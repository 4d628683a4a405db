"""A raw client of RabbitMQ's stream protocol, written from the protocol, without the code under test."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Final, Self

PROPERTIES, HANDSHAKE, AUTHENTICATE, TUNE, OPEN, CLOSE, BEAT, VERSIONS = 17, 18, 19, 20, 21, 22, 23, 27
SUBSCRIBE, DELIVER, CREDIT, STORE, QUERY, UNSUBSCRIBE, METADATA, UPDATE = 7, 8, 9, 10, 11, 12, 15, 16
ROUTE, PARTITIONS, STATS = 24, 25, 28
RESPONSE: Final = 0x8000
FIRST, LAST, NEXT = b"\0\1", b"\0\2", b"\0\3"


def at_offset(offset: int) -> bytes:
    """Return the specification of an offset."""
    return struct.pack(">HQ", 4, offset)


def at_time(timestamp_ms: int) -> bytes:
    """Return the specification of a time."""
    return struct.pack(">Hq", 5, timestamp_ms)


def text(value: str) -> bytes:
    """Return a string."""
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


def pairs(values: dict[str, str]) -> bytes:
    """Return a map."""
    return struct.pack(">I", len(values)) + b"".join(text(k) + text(v) for k, v in values.items())


def frame(key: int, content: bytes, version: int = 1) -> bytes:
    """Return a frame."""
    return struct.pack(">IHH", 4 + len(content), key, version) + content


class RawClient:
    """One connection. Frames that nobody has asked for are kept in `others`."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self.others: list[bytes] = []
        self._correlation = 0

    @classmethod
    def opened(
        cls,
        port: int,
        *,
        versions: list[tuple[int, int, int]] | None = None,
        heartbeat: int = 0,
        login: bytes = b"\0guest\0guest",
        host: str = "/",
        tls: ssl.SSLContext | None = None,
        frame_max: int | None = None,
    ) -> Self:
        """Connect, log in and open a virtual host."""
        client = cls(port, tls)
        client.ask(PROPERTIES, pairs({"product": "raw"}))
        client.ask(HANDSHAKE, b"")
        assert client.ask(AUTHENTICATE, text("PLAIN") + struct.pack(">I", len(login)) + login)[:2] == b"\0\1"
        tune = client.take(TUNE)
        most = tune[:4] if frame_max is None else struct.pack(">I", frame_max)
        client.send(TUNE, most + struct.pack(">I", heartbeat))
        client.opened_with = client.ask(OPEN, text(host))
        if versions is not None:
            listed = struct.pack(">I", len(versions)) + b"".join(struct.pack(">HHH", *v) for v in versions)
            client.ask(VERSIONS, listed)
        return client

    opened_with = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, key: int, content: bytes, version: int = 1) -> None:
        """Send a command."""
        self.socket.sendall(frame(key, content, version))

    def ask(self, key: int, content: bytes) -> bytes:
        """Send a request, and return its response from the code on."""
        self._correlation += 1
        correlation = struct.pack(">I", self._correlation)
        self.send(key, correlation + content)
        while True:
            raw = self.receive()
            found = struct.unpack_from(">H", raw)[0]
            if found in (key | RESPONSE, key) and raw[4:8] == correlation:
                return raw[8:]
            self.others.append(raw)

    def take(self, key: int) -> bytes:
        """Return the content of the next command with this key, behind key and version."""
        for number, raw in enumerate(self.others):
            if struct.unpack_from(">H", raw)[0] == key:
                return self.others.pop(number)[4:]
        while True:
            raw = self.receive()
            if struct.unpack_from(">H", raw)[0] == key:
                return raw[4:]
            self.others.append(raw)

    def receive(self) -> bytes:
        """Return the next frame without its size. Raises `EOFError` at the end."""
        return self.exactly(struct.unpack(">I", self.exactly(4))[0])

    def exactly(self, size_bytes: int) -> bytes:
        """Receive so many bytes."""
        data = bytearray()
        while len(data) < size_bytes:
            more = self.socket.recv(size_bytes - len(data))
            if not more:
                raise EOFError(f"the connection ended behind {bytes(data[:40])!r}")
            data += more
        return bytes(data)

    def is_ended(self) -> bool:
        """Return whether the server closes the connection, and sends nothing before."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def subscribe(
        self, stream: str, spec: bytes, *, credit: int = 100, number: int = 0, **properties: str
    ) -> int:
        """Subscribe, and return the code."""
        dotted = {name.replace("filter_", "filter."): value for name, value in properties.items()}
        named = {name.replace("_", "-"): value for name, value in dotted.items()}
        content = bytes([number]) + text(stream) + spec + struct.pack(">H", credit)
        content += pairs(named) if named else b""
        return int.from_bytes(self.ask(SUBSCRIBE, content)[:2], "big")

    def give(self, credit: int, number: int = 0) -> None:
        """Give credit."""
        self.send(CREDIT, struct.pack(">BH", number, credit))

    def delivered(self, count: int) -> list[bytes]:
        """Return the next frames of Deliver, behind key and version."""
        return [self.take(DELIVER) for _ in range(count)]

    def is_quiet(self, seconds: float = 0.3) -> bool:
        """Return whether nothing comes for so long."""
        if self.others:
            return False
        self.socket.settimeout(seconds)
        try:
            return not self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(20)


def first_offsets(frames: list[bytes]) -> list[int]:
    """Return the ids of the delivered chunks, of frames of version 1."""
    return [struct.unpack_from(">Q", raw, 1 + 24)[0] for raw in frames]
