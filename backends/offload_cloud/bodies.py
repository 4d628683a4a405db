"""Large bytes on their way out over aiohttp, a slice at a time.

Handed over whole, the event loop copies what the socket does not take at once: as much memory again for
each transfer. Slices wait for the socket instead, and are views. Botocore looks at bodies too (to sign
them, and for their size), and takes anything that reads and seeks like a file.
"""

from __future__ import annotations

from typing import Final, NoReturn

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import Payload

SLICE_SIZE_BYTES: Final = 256 * 1024
"""Small enough to leave the event loop to others, large enough to cost little."""


def sliced(data: bytes) -> bytes | SlicedBody:
    """`data` for a request: as it is where it is small."""
    return data if len(data) <= SLICE_SIZE_BYTES else SlicedBody(data)


class SlicedBody(Payload):
    """Bytes that a request sends slice by slice, and that others may read like a file."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, content_type="application/octet-stream")
        self._data = data
        self._size = len(data)
        self._at = 0

    def __len__(self) -> int:
        return len(self._data)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Send all of it."""
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Send no more than `content_length`, which is what the request's head announced."""
        view = memoryview(self._data)[:content_length]
        for start in range(0, len(view), SLICE_SIZE_BYTES):
            await writer.write(view[start : start + SLICE_SIZE_BYTES])
            await writer.drain()

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> NoReturn:
        """Not text."""
        raise TypeError("the bytes of an object are no text")

    def read(self, size: int | None = -1) -> bytes:
        """As of a file."""
        stop = len(self._data) if size is None or size < 0 else self._at + size
        piece = self._data[self._at : stop]
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of a file."""
        self._at = (0, self._at, len(self._data))[whence] + offset
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at
