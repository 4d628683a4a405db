"""Every call by which a log changes its folder. A test replaces the object, and fails or stops any of them.

All of them block, and raise `OSError`. None of them makes anything durable but the two syncs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from offload.local.segment_writer import sync_folder

__all__ = ["Disk"]


_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_PARTS_MAX: Final = os.sysconf("SC_IOV_MAX")


class Disk:
    """The real disk."""

    __slots__ = ()

    def create(self, path: Path) -> int:
        """Return a descriptor of an empty file. A file of this name loses its content."""
        return os.open(path, _OPEN | os.O_CREAT | os.O_TRUNC, 0o666)

    def open(self, path: Path) -> int:
        """Return a descriptor of an existing file."""
        return os.open(path, _OPEN)

    def write(self, descriptor: int, position: int, parts: Sequence[bytes]) -> None:
        """Write the parts back to back. After an error, any number of the bytes may be written."""
        if len(parts) > _PARTS_MAX:
            parts = [b"".join(parts)]
        size_bytes = sum(map(len, parts))
        written = os.pwritev(descriptor, parts, position)
        if written < size_bytes:  # more than the kernel takes at once, or the disk is nearly full
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                position += written
                written = os.pwrite(descriptor, rest, position)
                rest = rest[written:]

    def cut(self, descriptor: int, size_bytes: int) -> None:
        """Set the size of a file."""
        os.ftruncate(descriptor, size_bytes)

    def sync(self, descriptor: int) -> None:
        """Make the content of a file durable, and its size."""
        os.fdatasync(descriptor)

    def set_time(self, descriptor: int, time_ms: int) -> None:
        """Set the time of the last change, and make it durable with the whole file."""
        os.utime(descriptor, ns=(time_ms * 1_000_000, time_ms * 1_000_000))
        os.fsync(descriptor)

    def remove(self, path: Path) -> None:
        """Remove a file if it is there."""
        path.unlink(missing_ok=True)

    def replace(self, old: Path, new: Path) -> None:
        """Give a file another name, in place of the file that had it."""
        old.replace(new)

    def sync_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""
        sync_folder(folder)
