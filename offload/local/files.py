"""A broker's files: opened read-only to be read, every failure raised as an error of the framework.

A broker deletes files by its retention at any time. So a missing file is no damage: it raises `TryAgain`,
and the next snapshot shows the stream without it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from offload.ground.errors import Corrupt, Denied, NoSpace, OffloadError, TryAgain

__all__ = ["explained", "open_file", "opened", "read_at", "read_into", "shown_path"]


READ_SIZE_BYTES_MAX: Final = 2**30
"""The largest read in one system call. Linux returns less than 2 GiB."""

# Opening does not wait for a process at the other end of a pipe, and no child process inherits the file.
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_NEXT: Final[dict[int, tuple[type[OffloadError], str]]] = {
    errno.ENOENT: (TryAgain, "the broker removed it meanwhile"),
    errno.ENOTDIR: (TryAgain, "a folder above it was replaced meanwhile"),
    errno.ESTALE: (TryAgain, "the file server replaced it meanwhile"),
    errno.EMFILE: (TryAgain, "this process has too many open files"),
    errno.ENFILE: (TryAgain, "this machine has too many open files"),
    errno.ENOMEM: (TryAgain, "the machine is short of memory"),
    errno.EACCES: (Denied, "grant this program the right to do this"),
    errno.EPERM: (Denied, "grant this program the right to do this"),
    errno.EROFS: (Denied, "grant this program the right to do this"),
    errno.ENOSPC: (NoSpace, "free space there, and run the same command again"),
    errno.EDQUOT: (NoSpace, "raise the quota, and run the same command again"),
}


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return the path as text that can always be printed, whatever bytes its names have."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@contextmanager
def explained(doing: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise the framework's errors for those of the operating system."""
    try:
        yield
    except OSError as exc:
        kind, advice = _NEXT.get(exc.errno or 0, (OffloadError, "see the cause"))
        raise kind(f"{doing} {shown_path(path)}: {exc.strerror or exc}; {advice}") from exc


def open_file(path: Path) -> int:
    """Return a descriptor of a regular file, opened read-only. Raises `Corrupt` if it is no regular file."""
    with explained("open", path):
        descriptor = os.open(path, _READ)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise Corrupt("kind of file", shown_path(path), expected="a regular file", found=stat.filemode(mode))
    return descriptor


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Yield a descriptor, and close it at the end of the block."""
    descriptor = open_file(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_at(descriptor: int, position: int, size_bytes: int, *, path: Path) -> bytes:
    """Return the bytes from `position` on: as many as asked for, or fewer if the file ends before.

    Makes one system call, unless the size is extreme or the file ends early. The caller bounds the size, or
    compares it with that of the file.
    """
    parts, at, stop = [], position, position + size_bytes
    with explained("read", path):
        while at < stop and (part := os.pread(descriptor, min(stop - at, READ_SIZE_BYTES_MAX), at)):
            parts.append(part)
            at += len(part)
    return b"".join(parts)


def read_into(memory: memoryview, descriptor: int, position: int, *, path: Path) -> int:
    """Fill `memory` with the bytes from `position` on. Return how many: fewer if the file ends before.

    Makes system calls as `read_at` does.
    """
    filled = 0
    with explained("read", path):
        while filled < len(memory):
            wanted = memory[filled : filled + READ_SIZE_BYTES_MAX]
            if not (count := os.preadv(descriptor, [wanted], position + filled)):
                break
            filled += count
    return filled
