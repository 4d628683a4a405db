"""The look at the place of a tier, for streams that wait until somebody mends it (`follow.pauses`).

Only a folder is looked at: the rights and owners of the folder and of the stream's folders, and the free
space of its disk. The space counts in powers of two, because other programs use the disk too, and each change
is a reason to try a stream again.

Invariant: the file system is asked in a thread, so that a disk that does not answer delays only the stream
that waits for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Final

from offload.follow.pauses import LookAtPlace, look_nowhere
from offload.ground.urls import folder_named

__all__ = ["look_at_place"]


SPACE_SIZE_BYTES_MAX: Final = 2**30
"""More room than this is no reason to try again: nothing that is written at once needs it."""


def look_at_place(tier: str) -> LookAtPlace:
    """Return what looks at the place of the tier at a URL. Raises `Misuse` as `folder_named` does."""
    folder = folder_named(tier)
    if folder is None:
        return look_nowhere
    root = folder.absolute()

    async def look(stream: str) -> Hashable:
        return await asyncio.to_thread(_look, root, stream)

    return look


def _look(root: Path, stream: str) -> Hashable:
    try:
        disk = os.statvfs(root)
    except OSError as error:
        return error.errno
    room = min(disk.f_bavail * disk.f_frsize, SPACE_SIZE_BYTES_MAX).bit_length()
    files = min(disk.f_favail, SPACE_SIZE_BYTES_MAX).bit_length()
    of_stream = root / stream
    return room, files, *map(_rights, (root, of_stream, of_stream / "data", of_stream / "metadata"))


def _rights(folder: Path) -> Hashable:
    try:
        found = folder.stat()
    except OSError as error:
        return error.errno
    except ValueError:  # a name that no folder can have
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_uid, found.st_gid
