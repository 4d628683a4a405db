"""The body of a request as the SDK of S3 wants it: like a file, though its windows are never joined.

The SDK reads a body for its size, and to sign it. The transport sends the windows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from offload.contracts.store import Buffer

__all__ = ["WindowsBody"]


class WindowsBody:
    """A body of windows in memory that may be read like a file."""

    def __init__(self, windows: Sequence[Buffer]) -> None:
        self.windows: Final = windows
        self._ends = list(accumulate(map(len, windows)))
        self._at = 0

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

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
            window, end = self.windows[number], self._ends[number]
            begin = end - len(window)
            yield memoryview(window)[start - begin : stop - begin]
            start, number = end, number + 1
