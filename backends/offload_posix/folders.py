"""The folders that keys run through: opened without following links, made so that they last.

Below the root no symbolic link is followed, each part is opened from the folder before it; so
nothing here can leave the root, whatever stands in it. The root itself may be a link. A folder
survives a power cut once its parent was synced; whoever made it may not have come so far, so the
first use of a folder for writing syncs its parent in any case.

Folders are never removed. One that looks empty may be about to receive a file from another
process, and that writer would have to start over.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY


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


class Folders:
    """Makes folders below one root, and remembers which of them will survive a power cut."""

    __slots__ = ("_durable", "_root")

    def __init__(self, root: str) -> None:
        self._root = root
        self._durable: set[tuple[str, ...]] = set()

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
