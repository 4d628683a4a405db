"""A body of unknown size, gathered for a store that must know the size before the first byte.

Invariant: at most `SPOOL_SIZE_BYTES_MAX` bytes of a body are in memory. A larger one is in a temporary file,
which the system deletes when the file is closed, also after a crash.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from tempfile import SpooledTemporaryFile
from typing import Any, Final

from offload.contracts.store import Body, Buffer
from offload.ground.errors import NoSpace
from offload.model.chunk_table import WINDOW_SIZE_BYTES

SPOOL_SIZE_BYTES_MAX: Final = 64 * 2**20
"""More than a compressed fragment of the default size has."""


@asynccontextmanager
async def spooled(body: Body) -> AsyncIterator[Body]:
    """Read `body` once, and yield a body of the same bytes whose size is exact. It can be read again.

    Raises the errors of `body`, `Misuse` if it exceeds its bound, and `NoSpace` if no temporary file can hold
    it.
    """
    lock = threading.Lock()
    with _closing(SpooledTemporaryFile(max_size=SPOOL_SIZE_BYTES_MAX)) as file:
        size = 0
        async for window in body.windows():
            size += len(window)
            body.check_size(size, is_end=False)
            await _written(file.write, window)
        # The last bytes may still be in a buffer. On a full disk, a later read would fail to write them.
        await _written(file.flush)

        def read(at: int) -> bytes:
            # A cancelled put leaves its last read running in a thread, beside the reads of the retry.
            with lock:
                file.seek(at)
                return file.read(WINDOW_SIZE_BYTES)

        async def windows() -> AsyncIterator[bytes]:
            for at in range(0, size, WINDOW_SIZE_BYTES):
                yield await asyncio.to_thread(read, at)

        yield Body(size_bytes=size, windows=windows, crc32c=body.crc32c, metadata=body.metadata)


@contextmanager
def _closing(file: SpooledTemporaryFile[bytes]) -> Iterator[SpooledTemporaryFile[bytes]]:
    try:
        yield file
    finally:
        # On a full disk, closing fails once more to write what is in the buffer, and would hide the error.
        with suppress(OSError):
            file.close()


async def _written(call: Callable[..., Any], *data: Buffer) -> None:
    try:
        await asyncio.to_thread(call, *data)
    except OSError as exc:
        text = (
            f"no temporary file can hold a compressed fragment: {exc.strerror}; set TMPDIR to another folder"
        )
        raise NoSpace(text) from exc
