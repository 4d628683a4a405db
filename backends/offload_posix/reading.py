"""Reading a part of one file: opened, read and closed in one go.

Descriptors are not kept for the next read. Opening costs about 6 % of reading a mebibyte from memory,
and a kept one would go on showing an object that was replaced or deleted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Final

from offload.contracts.store import Span, Suffix
from offload.errors import Corrupt, NotFound
from offload.store.spans import clip
from offload_posix.folders import open_folder

# Never a link, and never waiting for somebody at the other end of a pipe.
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


def read(root: str, parts: Sequence[str], span: Span | Suffix | None, *, absent: NotFound) -> bytes:
    """What `span` names of the file `parts` below `root`; raises `absent` where that is no regular file.

    Allocates what there is to read, however long the span.
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
        return _read_all(fd, start, stop, where="/".join((root, *parts)))
    finally:
        os.close(fd)


def _read_all(fd: int, start: int, stop: int, *, where: str) -> bytes:
    """The bytes from `start` to `stop`, which the file has; one call may come back with fewer."""
    data = os.pread(fd, stop - start, start)
    if len(data) == stop - start:
        return data
    pieces = [data]
    at = start + len(data)
    while at < stop:
        piece = os.pread(fd, stop - at, at)
        if not piece:
            raise Corrupt("size of the file while it is read", where, expected=stop, found=at, position=at)
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)
