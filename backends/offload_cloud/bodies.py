"""Large bytes on their way out over aiohttp, a slice at a time.

Handed over whole, the event loop copies what the socket does not take at once: as much memory again for
each transfer. Slices wait for the socket instead, and are views. The windows in which a body came are never
joined: that would be one more copy. Botocore looks at bodies too (to sign them, and for their size), and
takes anything that reads and seeks like a file.

aiohttp has no timeout for writing: its clock for reading starts when the body is out. A server that stops
reading would hold a request for ever, so each slice has a time within which the socket must take it.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Final, NoReturn

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

__all__ = ["SlicedBody", "sliced", "watched"]


SLICE_SIZE_BYTES: Final = 64 * 1024
"""Small enough to leave the event loop to others and to tell slow from stuck, large enough to cost little."""

FEW_BYTES: Final = 32 * 1024
"""The event loop takes so many, and a request's head, without waiting for the socket."""


def sliced(windows: Sequence[bytes]) -> bytes | SlicedBody:
    """Some bytes for a request: as they are if they are few."""
    few = sum(map(len, windows)) <= FEW_BYTES
    return b"".join(windows) if few else SlicedBody(windows)


def watched(body: Any, stall_seconds: float | None) -> Any:
    """A request's body, whose sending raises `TimeoutError` when no slice is taken for `stall_seconds`.

    Bytes and `SlicedBody` only; another kind of body is returned as it is.
    """
    if isinstance(body, bytes):
        body = sliced([body])
    if isinstance(body, SlicedBody):
        body.stall_seconds = stall_seconds
    return body


class SlicedBody(Payload):
    """Bytes that a request sends slice by slice, and that others may read like a file."""

    def __init__(self, windows: Sequence[bytes]) -> None:
        super().__init__(windows, content_type="application/octet-stream")
        self._windows = windows
        self._ends = list(accumulate(map(len, windows)))
        self._size = self._ends[-1]
        self._at = 0
        self.stall_seconds: float | None = None
        """How long the socket may take none of a slice; None is for ever."""

    def __len__(self) -> int:
        return self._ends[-1]

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all of it."""
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send no more than `content_length`, which is what the request's head announced."""
        size = len(self) if content_length is None else min(content_length, len(self))
        for view in self._views(0, size):
            for start in range(0, len(view), SLICE_SIZE_BYTES):
                await self._send(writer, view[start : start + SLICE_SIZE_BYTES])

    async def _send(self, writer: AbstractStreamWriter, piece: memoryview) -> None:
        try:
            async with asyncio.timeout(self.stall_seconds):
                await writer.write(piece)
                await writer.drain()
        except TimeoutError:
            # Closed, the connection would live on until the server takes what was written already.
            if writer.transport is not None:
                writer.transport.abort()
            raise

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> NoReturn:
        """Not text."""
        raise TypeError("the bytes of an object are no text")

    def read(self, size: int | None = -1) -> bytes:
        """As of a file."""
        stop = len(self) if size is None or size < 0 else min(self._at + size, len(self))
        piece = b"".join(self._views(self._at, stop))
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of a file."""
        self._at = (0, self._at, len(self))[whence] + offset
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at

    def _views(self, start: int, stop: int) -> Iterator[memoryview]:
        """The bytes from `start` to `stop`, of each window what belongs to them."""
        number = bisect_right(self._ends, start)
        while start < stop:
            window, end = self._windows[number], self._ends[number]
            begin = end - len(window)
            yield memoryview(window)[start - begin : stop - begin]
            start, number = end, number + 1
