"""The folders in a key's path: opened without following links, and made durable.

Below the root no symbolic link is followed: each part is opened relative to the folder before it. So no
link in a tier can lead this store out of the root. The root itself may be a link.

A folder survives a power cut once its parent was synced. The process that made the folder may have died
before that. So a store syncs the parent when it first writes into a folder, even if the folder existed.

The same holds for files. A process may die after it gave a file its name and before it synced the folder.
The file is whole and visible then, and a power cut may still remove it. A reader cannot tell, and may
commit a manifest that rests on it, or let the source delete its copy. So a folder is synced before a
name in it is listed. It is not synced again while nothing changes in it: a sync costs a flush of the
device even if there is nothing to write.

A root can disappear under a process that runs for years: a file system is unmounted, or somebody moves the
folder. The path then leads to nothing, or to the empty folder below the mount. What is written there is
lost to every reader of the tier. So a store never leaves the root that it saw first (`check_root`).

Folders are never removed. An empty folder may be about to receive a file from another process, and that
writer would have to start over.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from offload.ground.errors import StoreDenied

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY

SETTLED_NS: Final = 3_000_000_000
"""The age at which a folder's last change has another time than the next change will have. Linux keeps times
in ticks of up to 10 ms, other file systems in seconds, and FAT in steps of two seconds."""

_NO_SYNCS: Final = frozenset(
    {errno.EROFS, errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
)
"""The mount or the file system lets this process sync no folder. It may still be read."""


def open_folder(root: str, parts: Sequence[str]) -> int:
    """Return a descriptor of the folder `parts` below `root`. The caller closes it."""
    folder = os.open(root, _FLAGS)
    for part in parts:
        try:
            below = os.open(part, _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        folder = below
    return folder


def changed_ns(folder: int) -> tuple[int, int]:
    """Return the two times of an open folder that change if a name in it is made, replaced or removed.

    The first alone is not enough: copying tools set it back.
    """
    status = os.fstat(folder)
    return status.st_mtime_ns, status.st_ctime_ns


class Folders:
    """The folders below one root: makes them, and remembers which of them survive a power cut."""

    __slots__ = ("_durable", "_now_ms", "_root", "_root_seen", "_synced")

    def __init__(self, root: str, now_ms: Callable[[], int]) -> None:
        self._root, self._now_ms = root, now_ms
        self._root_seen: tuple[int, int] | None = None
        """The device and the inode of the root. None until it was seen."""
        self._durable: set[tuple[str, ...]] = set()
        self._synced: dict[tuple[str, ...], tuple[int, int]] = {}
        """The last change of each folder that was synced, if no later change can have the same times."""

    def check_root(self) -> None:
        """Raise `StoreDenied` if the root is not the folder that was seen first."""
        was_seen = self._root_seen is not None  # before the look: another thread may make the root meanwhile
        try:
            status = os.stat(self._root)
        except (FileNotFoundError, NotADirectoryError):
            if was_seen:
                raise self._lost_root() from None
        else:
            self._check_identity(status)

    def make_last(self, folder: int, parts: Sequence[str]) -> None:
        """Sync the open folder `parts`, unless nothing changed since its last sync. For names of any process.

        Ignores the error of a mount that lets us sync nothing. Any other `OSError` means that names may be
        lost.
        """
        changed = changed_ns(folder)
        if self._synced.get(tuple(parts)) == changed:
            return
        began_ns = self._now_ms() * 1_000_000
        try:
            os.fsync(folder)
        except OSError as error:
            if error.errno not in _NO_SYNCS:
                raise
        else:
            # A change right after the sync could have the same time as the last one before it, and would
            # then never be synced. So only an old change is remembered, by times read before the sync.
            if max(changed) < began_ns - SETTLED_NS:
                self._synced[tuple(parts)] = changed

    def open_for_writing(self, parts: Sequence[str]) -> int:
        """Open a folder as `open_folder` does. Make missing folders, the root too, and make them durable."""
        folder = self._open_root()
        for depth in range(len(parts)):
            try:
                below = self._enter(folder, tuple(parts[: depth + 1]))
            finally:
                os.close(folder)
            folder = below
        return folder

    def _open_root(self) -> int:
        self.check_root()
        if () not in self._durable:
            _make_root(self._root)
            self._durable.add(())
        folder = os.open(self._root, _FLAGS)
        try:
            # Of the open folder: a file system may have been unmounted since the check.
            self._check_identity(os.fstat(folder))
        except StoreDenied:
            os.close(folder)
            raise
        return folder

    def _check_identity(self, status: os.stat_result) -> None:
        found = status.st_dev, status.st_ino
        if self._root_seen is None:
            self._root_seen = found
        elif self._root_seen != found:
            raise self._lost_root()

    def _lost_root(self) -> StoreDenied:
        return StoreDenied(
            f"{self._root} is not the folder that this process began with: it was unmounted, moved or "
            f"replaced; mount it or move it back, and this process continues at its next try; if this error "
            f"stays, or another folder is right, restart this process"
        )

    def _enter(self, parent: int, path: tuple[str, ...]) -> int:
        name = path[-1]
        try:
            folder = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=parent)
        except FileNotFoundError:
            self._durable.discard(path)
            with suppress(FileExistsError):  # another process made it at the same time
                os.mkdir(name, dir_fd=parent)
            folder = os.open(name, _FLAGS | os.O_NOFOLLOW, dir_fd=parent)
        if path not in self._durable:
            try:
                os.fsync(parent)
            except OSError:
                os.close(folder)
                raise
            self._durable.add(path)  # after the sync: if that fails, the next write tries it again
        return folder


def _make_root(root: str) -> None:
    """Make `root` and the folders that are missing above it, and sync each parent from the top down."""
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
