"""Frames on their way to a peer: gathered, written at once, and copied only if the peer is slow.

Frames are collected until they have `FLUSH_SIZE_BYTES`, or until the event loop comes around. Then one call
of the system writes all of them. What a socket does not take at once goes to the transport, as a copy: the
views of chunks would keep blocks of the cache in memory.

Invariants: frames leave in the order of `send`, and whole; the transport alone waits for the socket, so no
socket is closed while it is registered with the event loop.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

FLUSH_SIZE_BYTES: Final = 64 * 1024
JOINED_SIZE_BYTES_MAX: Final = 4096
"""A smaller piece is cheaper to copy than to hand to the system by itself."""

PIECES_MAX: Final = 512
"""The system takes 1,024 pieces in a call."""

WAITING_SIZE_BYTES_MAX: Final = 256 * 1024
"""The size of answers that may wait behind a slow peer before its requests are read no more."""

FramePiece = bytes | memoryview


class Outbox:
    """The frames that go to one peer. `socket` is None if they are encrypted first."""

    def __init__(self, transport: asyncio.Transport, plain: socket.socket | None) -> None:
        self._transport, self._socket = transport, plain
        self._pieces: list[FramePiece] = []
        self._size_bytes = 0
        self._is_scheduled = False
        self.is_full = False
        """True while the peer has not taken everything. The transport says so to the connection."""

        self._waiting_size_bytes = 0
        self.flushes = 0
        """How often something was written, to see whether anything was."""

    @property
    def is_flooded(self) -> bool:
        """True if the peer should ask for nothing more before it has read."""
        return self._waiting_size_bytes > WAITING_SIZE_BYTES_MAX

    def send(self, *pieces: FramePiece) -> bool:
        """Send a frame. Return True if that wrote to the socket, so that others should have their turn."""
        for piece in pieces:
            self._size_bytes += len(piece)
        self._pieces += pieces
        if self._size_bytes >= FLUSH_SIZE_BYTES or len(self._pieces) >= PIECES_MAX:
            self.flush()
            return True
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._come_around)
        return False

    def flush(self) -> None:
        """Write everything that was sent."""
        pieces, self._pieces, size_bytes, self._size_bytes = self._pieces, [], self._size_bytes, 0
        if not pieces or self._transport.is_closing():
            return
        self.flushes += 1
        sent = 0
        if self._socket is not None and not self.is_full:
            try:
                sent = self._socket.sendmsg(_joined(pieces))
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self._transport.abort()
                return
        if sent == size_bytes:
            return
        if self.is_full:
            self._waiting_size_bytes += size_bytes
        self._transport.write(_behind(pieces, sent))

    def emptied(self) -> None:
        """Note that the peer has taken everything."""
        self.is_full, self._waiting_size_bytes = False, 0

    def _come_around(self) -> None:
        self._is_scheduled = False
        self.flush()


def _joined(pieces: list[FramePiece]) -> list[FramePiece]:
    """Return the pieces with neighbours joined that are small."""
    joined: list[FramePiece] = []
    small: list[FramePiece] = []
    for piece in pieces:
        if len(piece) <= JOINED_SIZE_BYTES_MAX:
            small.append(piece)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(piece)
    if small:
        joined.append(b"".join(small))
    return joined


def _behind(pieces: list[FramePiece], sent: int) -> bytes:
    """Return a copy of what comes behind the first bytes."""
    for number, piece in enumerate(pieces):
        if sent < len(piece):
            return b"".join([memoryview(piece)[sent:], *pieces[number + 1 :]])
        sent -= len(piece)
    return b""
