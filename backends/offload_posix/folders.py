"""The folders that keys run through: opened without following links, made so that they last.

Below the root no symbolic link is followed, each part is opened from the folder before it; so
nothing here can leave the root, whatever stands in it. The root itself may be a link. A folder
survives a power cut once its parent was synced; whoever made it may not have come so far, so the
first use of a folder for writing syncs its parent in any case.

The same holds for files. A process may die after it gave a file its name and before it synced the folder.
The file is whole and visible then, and a power cut may still take it. Whoever finds it cannot know, and may
commit what rests on it, or let the source's copy go. So a folder is synced before a name in it is listed.
If nothing changed in it since then, it is not synced again: a clean folder costs a flush of the device.

Folders are never removed. One that looks empty may be about to receive a file from another
process, and that writer would have to start over.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY

SETTLED_NS: Final = 3_000_000_000
"""How old a folder's last change must be to tell it from the next one. Linux keeps the time by ticks of up to
10 ms, other file systems by seconds, FAT by two."""

_NO_SYNCS: Final = frozenset(
    {errno.EROFS, errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
)
"""The mount or the file system takes no sync of a folder from this process. It may read all the same."""


def open_folder(root: str, parts: Sequence[str]) -> int:
    """A descriptor of the folder `parts` below `root`, for the caller to close."""
    folder = os.open(root, _FLAGS)
    for part in parts:
        try:
            below = os.open(part, _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def changed_ns(folder: int) -> tuple[int, int]:
    """The times of an open folder that change if a name in it is made, replaced or removed.

    Two, because copying tools set the first of them back.
    """
    status = os.fstat(folder)
    return status.st_mtime_ns, status.st_ctime_ns


class Folders:
    """Makes folders below one root, and remembers which of them will survive a power cut."""

    __slots__ = ("_durable", "_root", "_synced")

    def __init__(self, root: str) -> None:
        self._root = root
        self._durable: set[tuple[str, ...]] = set()
        self._synced: dict[tuple[str, ...], tuple[int, int]] = {}
        """The last change of each folder whose names were made to last, if no later one can look the same."""

    def make_last(self, folder: int, parts: Sequence[str]) -> None:
        """Sync the open folder `parts`, unless it is as it was at the last sync. For names that others made.

        Does nothing on a mount that takes no sync from us. Any other `OSError` means that names may be lost.
        """
        changed = changed_ns(folder)
        if self._synced.get(tuple(parts)) == changed:
            return
        began = time.time_ns()
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in _NO_SYNCS:
                raise
        else:
            if max(changed) < began - SETTLED_NS:
                self._synced[tuple(parts)] = changed

    def open_for_writing(self, parts: Sequence[str]) -> int:
        """As `open_folder`, but every folder that is missing, the root too, is made and made to last."""
        folder = self._open_root()
        for depth in range(len(parts)):
            try:
                below = self._enter(folder, tuple(parts[: depth + 1]))
            finally:
                os.close(folder)
            folder = below
        return folder

    def _open_root(self) -> int:
        if () not in self._durable:
            _make_root(self._root)
            self._durable.add(())
        try:
            return os.open(self._root, _FLAGS)
        except FileNotFoundError:  # removed since: the next write makes it anew
            self._durable.clear()
            raise

    def _enter(self, parent: int, path: tuple[str, ...]) -> int:
        name = path[-1]
        try:
            folder = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=parent)
        except FileNotFoundError:
            self._durable.discard(path)
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
            folder = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=parent)
        if path not in self._durable:
            try:
                os.fsync(parent)
            except OSError:
                os.close(folder)
                raise
            self._durable.add(path)
        return folder


def _make_root(root: str) -> None:
    """Make `root` and what is missing above it, syncing from the top down."""
    missing = []
    path = root
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for path in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(path)
        _sync_path(os.path.dirname(path))
    with suppress(PermissionError):  # a folder above an old root may be passable but not readable
        _sync_path(os.path.dirname(root))


def _sync_path(path: str) -> None:
    folder = os.open(path, _FLAGS)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
