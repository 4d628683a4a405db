"""Reading a broker's files: opened for reading alone, and every failure told as one of ours.

A broker deletes files whenever its retention says so. A file that is gone is therefore no damage: it
raises `TryAgain`, and whoever looks again finds the stream without it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from offload.errors import Corrupt, Denied, OffloadError, TryAgain

READ_SIZE_BYTES_MAX: Final = 2**30
"""The most that is asked of one system call; Linux gives less than 2 GiB."""

# Never waiting for somebody at the other end of a pipe, never handed on to a child process.
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK

_NEXT: Final[dict[int, tuple[type[OffloadError], str]]] = {
    errno.ENOENT: (TryAgain, "the broker removed it meanwhile"),
    errno.ENOTDIR: (TryAgain, "a folder above it was replaced meanwhile"),
    errno.ESTALE: (TryAgain, "the file server replaced it meanwhile"),
    errno.EMFILE: (TryAgain, "this process has too many open files"),
    errno.ENFILE: (TryAgain, "this machine has too many open files"),
    errno.ENOMEM: (TryAgain, "the machine is short of memory"),
    errno.EACCES: (Denied, "grant this program the right to read it"),
    errno.EPERM: (Denied, "grant this program the right to read it"),
}


def shown(path: str | os.PathLike[str]) -> str:
    """The path as text that can always be printed, whatever bytes its names have."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@contextmanager
def explained(doing: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn the operating system's refusal into the framework's."""
    try:
        yield
    except OSError as exc:
        kind, advice = _NEXT.get(exc.errno or 0, (OffloadError, "see the cause"))
        raise kind(f"{doing} {shown(path)}: {exc.strerror or exc}; {advice}") from exc


def open_file(path: Path) -> int:
    """A descriptor of a regular file, opened for reading. Raises `Corrupt` where it is another thing."""
    with explained("open", path):
        descriptor = os.open(path, _READ)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise Corrupt("kind of file", shown(path), expected="a regular file", found=stat.filemode(mode))
    return descriptor


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor for the length of a block."""
    descriptor = open_file(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_at(descriptor: int, position: int, size_bytes: int, *, path: Path) -> bytes:
    """The bytes from `position` on: as many as asked for, or fewer where the file ends before.

    One system call, unless the size is extreme or the file ends early. The caller has compared the size
    with the file's own, or bounded it.
    """
    parts, at, stop = [], position, position + size_bytes
    with explained("read", path):
        while at < stop and (part := os.pread(descriptor, min(stop - at, READ_SIZE_BYTES_MAX), at)):
            parts.append(part)
            at += len(part)
    return b"".join(parts)
