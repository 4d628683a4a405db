"""The TLS side of the fault proxy (`servers.proxy`) towards its clients.

    with proxied(endpoint, plan, Tls(made, trusted=made.path)) as proxy:
        ...                         # proxy.url begins with https://
        proxy.tls.present(renewed)  # the certificate of all connections from now on

The proxy still speaks plain HTTP with the server. OpenSSL works on buffers in memory here, and not on the
socket, so a fault can end a connection within a record.

Invariants: records are sent in the order in which they were encrypted; a connection ends without
close_notify, as that of a killed server does, unless `notify` was called.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from certificates import Certificate, served

WINDOW_SIZE_BYTES: Final = 256 * 1024


class Tls:
    """The certificate of a proxy. It may be changed at any time, from any thread."""

    def __init__(self, made: Certificate, *, trusted: Path) -> None:
        self.trusted = trusted
        """The file of authorities that a client needs, for its option `verify`."""

        self._context = served(made)

    def present(self, made: Certificate) -> None:
        """Present another certificate on all connections from now on. Open connections stay as they are."""
        self._context = served(made)

    def line(self, connection: socket.socket) -> SecuredLine:
        """Return the TLS of a new connection, which has not shaken hands."""
        return SecuredLine(connection, self._context)


class SecuredLine:
    """One connection as the server of its TLS. Several tasks may send, and one receives."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        """Take a connected, non-blocking socket, which the caller closes."""
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._sending = asyncio.Lock()

    async def shake(self, *, is_cut: bool = False) -> None:
        """Shake hands. Raises `ConnectionError` if the client refuses, or if `is_cut`, half-way.

        A cut sends the first half of the server's first message, which is within a record.
        """
        while True:
            is_over = self._advance()
            if is_cut and self._outgoing.pending:
                flight = self._outgoing.read()
                await self._loop.sock_sendall(self._connection, flight[: len(flight) // 2])
                raise ConnectionAbortedError("the handshake was cut on purpose")
            await self._flush()
            if is_over:
                return
            await self._fill()

    async def receive_into(self, window: bytearray | memoryview) -> int:
        """Receive at least one byte. Return their number, and 0 at the end, with and without close_notify."""
        while True:
            try:
                with _translated():
                    return self._tls.read(len(window), window)  # type: ignore[call-overload, no-any-return]
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return 0
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of it."""
        view = memoryview(data)
        for start in range(0, len(view), WINDOW_SIZE_BYTES):
            self._encrypt(view[start : start + WINDOW_SIZE_BYTES])
            await self._flush()

    async def send_cut(self, data: bytes) -> None:
        """Send all but the end of the last record, which nobody can decrypt then."""
        self._encrypt(memoryview(data))
        async with self._sending:
            records = self._outgoing.read()
            await self._loop.sock_sendall(self._connection, records[:-1])

    async def notify(self) -> None:
        """Say that the connection ends here, by close_notify."""
        with suppress(ssl.SSLError):  # it waits for the client's close_notify, after it encrypted ours
            self._tls.unwrap()
        await self._flush()

    def _advance(self) -> bool:
        """Take a step of the handshake. Return True if it was the last one."""
        try:
            with _translated():
                self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLEOFError as exc:
            raise ConnectionAbortedError("the client left the handshake") from exc
        return True

    def _encrypt(self, view: memoryview) -> None:
        while view:
            with _translated():
                view = view[self._tls.write(view) :]

    async def _flush(self) -> None:
        async with self._sending:
            if self._outgoing.pending:
                await self._loop.sock_sendall(self._connection, self._outgoing.read())

    async def _fill(self) -> None:
        data = await self._loop.sock_recv(self._connection, WINDOW_SIZE_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()


@contextmanager
def _translated() -> Iterator[None]:
    """Turn a refusal by either side, such as a certificate that is not trusted, into a `ConnectionError`."""
    try:
        yield
    except (ssl.SSLWantReadError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        raise
    except ssl.SSLError as exc:
        raise ConnectionAbortedError(f"TLS: {exc}") from exc
