"""Reading a part of one file: it is opened, read and closed in one call.

No descriptor is kept for the next read. Opening costs about 6 % of reading a mebibyte from memory, and a
kept descriptor would still show an object after it was replaced or deleted. Large parts are read into memory
of a pool, because fresh memory costs about as much as the reading.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Final

from offload.contracts.store import Buffer, Span, Suffix
from offload.ground.errors import Corrupt, NotFound
from offload.store.buffers import POOLED_SIZE_BYTES_MIN, BufferPool
from offload.store.spans import clip
from offload_posix.folders import open_folder

# Opens no link, and does not wait for a process at the other end of a pipe.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def read(
    root: str, parts: Sequence[str], span: Span | Suffix | None, buffers: BufferPool, *, absent: NotFound
) -> Buffer:
    """Return the bytes of `span` of the file `parts` below `root`. Raises `absent` if it is no regular file.

    Allocates only as many bytes as the file has, however long the span is.
    """
    folder = open_folder(root, parts[:-1])
    try:
        fd = os.open(parts[-1], _FLAGS, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise absent
        start, stop = clip(span, status.st_size)
        where = "/".join((root, *parts))
        if stop - start < POOLED_SIZE_BYTES_MIN:
            return bytes(_read_into(memoryview(bytearray(stop - start)), fd, start, where))
        return _read_into(buffers.take(stop - start), fd, start, where).toreadonly()
    finally:
        os.close(fd)


def _read_into(memory: memoryview, fd: int, start: int, where: str) -> memoryview:
    """Fill `memory` from `start` on, with bytes that the file has. One system call may return fewer."""
    done = 0
    while done < len(memory):
        count = os.preadv(fd, [memory[done:]], start + done)
        if not count:  # objects never shrink: another program cut the file
            size = start + done
            raise Corrupt(
                "size of the file while it is read",
                where,
                expected=start + len(memory),
                found=size,
                position=size,
            )
        done += count
    return memory
