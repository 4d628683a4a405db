"""One connection of the fault proxy (`servers.proxy`), with a client or with the server.

Whole heads and framed bodies are read from it. Invariant: a body is passed on window by window, so its size
costs no memory, unless `take` is called.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from servers.proxy_messages import CHUNKED, END_OF_HEAD, Framing, status_of
from servers.proxy_tls import Tls

WINDOW_SIZE_BYTES: Final = 256 * 1024
HEAD_SIZE_BYTES_MAX: Final = 64 * 1024
ABANDONED_SECONDS: Final = 0.02
"""The interval at which a stalling connection checks if its client still waits."""

Sink = Callable[[bytes | memoryview], Awaitable[None]]
"""A function that takes a body, piece by piece."""


class Ended(Exception):
    """The error if a connection ended too early."""


class Wire:
    """A connection from which whole heads and framed bodies are read."""

    def __init__(self, connection: socket.socket, tls: Tls | None = None) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.line = None if tls is None else tls.line(connection)
        """The TLS of this connection, if there is TLS."""

        self.read = bytearray()
        """The bytes that were received and not yet used."""

        self.at_end = False

    @property
    def is_quiet(self) -> bool:
        """Return True if the other side has sent nothing unexpected and has not ended."""
        watch = select.poll()
        watch.register(self._connection, select.POLLIN)
        return not self.read and not watch.poll(0)

    async def head(self) -> bytes | None:
        """Read a head with the empty line that ends it. Return None if the connection ended before it."""
        while (end := self.read.find(END_OF_HEAD)) < 0:
            assert len(self.read) <= HEAD_SIZE_BYTES_MAX, "the head of a message is too long"
            try:
                await self._receive()
            except (Ended, ConnectionError):
                return None
        return self.taken(end + len(END_OF_HEAD))

    def taken(self, size_bytes: int) -> bytes:
        """Take the first bytes out of the buffer."""
        data = bytes(self.read[:size_bytes])
        del self.read[:size_bytes]
        return data

    async def copy(self, size_bytes: int, to: Sink) -> None:
        """Pass so many bytes on, with one window of memory."""
        begun = self.taken(min(size_bytes, len(self.read)))
        if begun:
            await to(begun)
        left = size_bytes - len(begun)
        if not left:
            return
        window = memoryview(bytearray(min(left, WINDOW_SIZE_BYTES)))
        while left:
            got = await self._receive_into(window[:left])
            if not got:
                self.at_end = True
                raise Ended
            await to(window[:got])
            left -= got
            await asyncio.sleep(0)  # a socket that is always ready would block all other tasks

    async def forward(self, framing: Framing, to: Sink) -> None:
        """Pass a body on, with the same framing."""
        if isinstance(framing, int):
            await self.copy(framing, to)
        elif framing is CHUNKED:
            while size_bytes := await self._chunk_head(to):
                await self.copy(size_bytes + 2, to)
            while await self._line(to) != b"\r\n":
                pass
        else:
            with suppress(Ended):
                while True:
                    if not self.read:
                        await self._receive()
                    await self.copy(len(self.read), to)

    async def drain(self, framing: Framing) -> None:
        """Read a body and drop it."""

        async def nowhere(data: bytes | memoryview) -> None:
            pass

        await self.forward(framing, nowhere)

    async def take(self, framing: Framing) -> bytes:
        """Read a whole body unchanged, framing included."""
        kept = bytearray()

        async def keep(data: bytes | memoryview) -> None:
            kept.extend(data)

        await self.forward(framing, keep)
        return bytes(kept)

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        if self.line is not None:
            await self.line.send(data)
        else:
            await self._loop.sock_sendall(self._connection, data)

    async def abandoned(self) -> None:
        """Wait until the other side ends the connection, and read nothing meanwhile."""
        watch = select.poll()
        watch.register(self._connection, select.POLLRDHUP)
        while not watch.poll(0):  # noqa: ASYNC110 - no event of the loop tells an end from bytes to read
            await asyncio.sleep(ABANDONED_SECONDS)

    def reset(self) -> None:
        """End the connection with a reset. Bytes on their way are lost."""
        if self._connection.fileno() >= 0:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """End the connection. Idempotent."""
        self._connection.close()

    async def _chunk_head(self, to: Sink) -> int:
        return int((await self._line(to)).partition(b";")[0], 16)

    async def _line(self, to: Sink) -> bytes:
        while (end := self.read.find(b"\r\n")) < 0:
            await self._receive()
        line = self.taken(end + 2)
        await to(line)
        return line

    async def _receive(self) -> None:
        window = memoryview(bytearray(WINDOW_SIZE_BYTES))
        got = await self._receive_into(window)
        if not got:
            self.at_end = True
            raise Ended
        self.read += window[:got]

    async def _receive_into(self, window: memoryview) -> int:
        if self.line is not None:
            return await self.line.receive_into(window)
        return await self._loop.sock_recv_into(self._connection, window)


async def reply_head(server: Wire) -> bytes:
    """Return the head of the final reply."""
    while (head := await server.head()) is not None:
        if status_of(head) // 100 != 1:
            return head
    raise Ended
