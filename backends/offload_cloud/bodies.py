"""Large request bodies over aiohttp, sent slice by slice.

If a body is handed over whole, the event loop copies the bytes that the socket does not take at once, so
each transfer needs its memory twice. Slices are views, and each waits for the socket. The windows of a
body are never joined: that would be one more copy. Botocore reads bodies too, to sign them and for their
size; it accepts any object that reads and seeks like a file.

aiohttp has no timeout for writing: its timeout for reading starts when the body is sent. A server that
stops reading would hold a request for ever. So the socket must take each slice within a time limit.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NoReturn

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

from offload.contracts.store import Buffer

__all__ = ["SlicedBody", "sliced", "watched"]


SLICE_SIZE_BYTES: Final = 64 * 1024
"""Small, so that other tasks run in between and a slow socket differs from a stuck one; large, so that the
slices cost little."""

FEW_BYTES: Final = 32 * 1024
"""The event loop takes this many bytes, and a request's head, without waiting for the socket."""


def sliced(windows: Sequence[Buffer]) -> bytes | SlicedBody:
    """Return a request's body of these windows: joined bytes if they are few, else a `SlicedBody`."""
    few = sum(map(len, windows)) <= FEW_BYTES
    return b"".join(windows) if few else SlicedBody(windows)


def watched(body: Any, stall_seconds: float | None) -> Any:
    """Return `body`; sending it raises `TimeoutError` if the socket takes no slice for `stall_seconds`.

    Only for bytes and `SlicedBody`. A body of another kind is returned unchanged.
    """
    if isinstance(body, bytes):
        body = sliced([body])
    if isinstance(body, SlicedBody):
        body.stall_seconds = stall_seconds
    return body


class SlicedBody(Payload):
    """A body that a request sends slice by slice, and that others may read like a file."""

    def __init__(self, windows: Sequence[Buffer]) -> None:
        super().__init__(windows, content_type="application/octet-stream")
        self._windows = windows
        self._ends = list(accumulate(map(len, windows)))
        self._size = self._ends[-1]
        self._at = 0
        self.stall_seconds: float | None = None
        """How long the socket may take no byte of a slice. None: for ever."""

    @property
    def windows(self) -> Sequence[Buffer]:
        """The windows, in order."""
        return self._windows

    def __len__(self) -> int:
        return self._ends[-1]

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send the whole body."""
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send at most `content_length` bytes, as the request's head announced."""
        size = len(self) if content_length is None else min(content_length, len(self))
        transport = writer.transport  # kept, for the library forgets it when it closes the connection
        try:
            for view in self._views(0, size):
                for start in range(0, len(view), SLICE_SIZE_BYTES):
                    await self._send(writer, view[start : start + SLICE_SIZE_BYTES])
            if transport is not None:
                await self._flush(writer, transport)
        except BaseException:
            # Also if the server answers before the end, and the request's task is cancelled. `close` would
            # wait until the server takes the bytes that are already in the buffer.
            if transport is not None:
                transport.abort()
            raise

    async def _send(self, writer: AbstractStreamWriter, piece: memoryview) -> None:
        async with asyncio.timeout(self.stall_seconds):
            await writer.write(piece)
            await writer.drain()

    async def _flush(self, writer: AbstractStreamWriter, transport: asyncio.WriteTransport) -> None:
        """Wait until the socket has taken all bytes. By default up to 64 KiB may be left in the buffer."""
        transport.set_write_buffer_limits(0)
        async with asyncio.timeout(self.stall_seconds):
            await writer.drain()
        transport.set_write_buffer_limits()

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> NoReturn:
        """Raise `TypeError`: the bytes of an object are no text."""
        raise TypeError("the bytes of an object are no text")

    def read(self, size: int | None = -1) -> bytes:
        """Read as from a file."""
        stop = len(self) if size is None or size < 0 else min(self._at + size, len(self))
        piece = b"".join(self._views(self._at, stop))
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        """Seek as in a file."""
        self._at = (0, self._at, len(self))[whence] + offset
        return self._at

    def tell(self) -> int:
        """Return the position as a file does."""
        return self._at

    def _views(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes from `start` to `stop` as views of the windows that hold them."""
        number = bisect_right(self._ends, start)
        while start < stop:
            window, end = self._windows[number], self._ends[number]
            begin = end - len(window)
            yield memoryview(window)[start - begin : stop - begin]
            start, number = end, number + 1
