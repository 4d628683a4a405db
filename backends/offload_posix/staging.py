"""Files under way, in `<root>/.staging/`: written where nobody looks, then given their name in one step.

A staged file is locked (`flock`) for as long as its process lives. So a file there whose lock can be
taken was left by a process that died, and `sweep` removes it:

    writer                                    sweeper
    create the file (O_EXCL, a fresh name)    open it
    try to lock it                            try to lock it
    it has no name any more? take another     locked: remove its name

Whichever locks first, either the sweeper leaves the file or the writer notices before its first
byte. Where the file system knows no locks, leftovers stay, and cost nothing but room. Where locks do
not reach other machines (some NFS mounts), a sweep may take the file of a writer elsewhere: its put
or create then fails with `TryAgain`, and nothing wrong becomes visible.

Invariant: a file gets its final name only after its bytes were synced.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

FOLDER: Final = ".staging"  # begins with a dot, as no part of a key does

_held: set[int] = set()


def _let_go_in_child() -> None:
    """A forked child must not keep its parent's locks alive."""
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


class Staged:
    """One file under way. Made without I/O; every method blocks; `discard` ends it in any state."""

    __slots__ = ("_fd", "_folder", "_name")

    def __init__(self) -> None:
        self._folder = -1
        self._fd = -1
        self._name = ""  # empty while the folder has no such file

    def open(self, folder: int, names: Callable[[], str]) -> None:
        """Begin an empty file in the open staging `folder`, which is closed with it."""
        self._folder = folder
        while not self._name:
            name = names()
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
            _held.add(fd)
            self._fd = fd
            if _lock(fd) is not False and os.fstat(fd).st_nlink > 0:
                self._name = name
            else:
                self._close()

    def write(self, data: bytes, at: int) -> None:
        """Write all of `data` at byte `at`."""
        written = os.pwrite(self._fd, data, at)
        if written < len(data):
            rest = memoryview(data)
            while written < len(data):
                written += os.pwrite(self._fd, rest[written:], at + written)
        _start_writing_back(self._fd, at, len(data))

    def rename(self, folder: int, name: str) -> None:
        """Sync, and take the place of whatever had this name."""
        os.fsync(self._fd)
        os.rename(self._name, name, src_dir_fd=self._folder, dst_dir_fd=folder)
        self._name = ""

    def link(self, folder: int, name: str) -> None:
        """Sync, and take this name if nothing has it; else raise `FileExistsError`."""
        os.fsync(self._fd)
        try:
            os.link(self._name, name, src_dir_fd=self._folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError:
            # A file server may have done it and lost its answer; the count of names tells.
            if os.fstat(self._fd).st_nlink != 2:
                raise

    def discard(self) -> None:
        """Forget the file: what still has its staged name only is gone. Idempotent."""
        if self._name:
            with suppress(OSError):  # a leftover is clutter, and the next sweep takes it
                os.unlink(self._name, dir_fd=self._folder)
            self._name = ""
        self._close()
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _close(self) -> None:
        if self._fd >= 0:
            _held.discard(self._fd)
            os.close(self._fd)
            self._fd = -1


def _start_writing_back(fd: int, at: int, length: int) -> None:
    """Let the device begin now, rather than at the sync: that makes a put half as fast again.

    The advice says that the pages are not needed; for dirty ones the kernel takes that as "write them",
    without waiting. It is no promise of anything, and a file system may not know it.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(fd, at, length, os.POSIX_FADV_DONTNEED)


def sweep(folder: int) -> None:
    """Remove from the staging `folder` what dead processes left. Never fails: no write depends on it."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                _remove_if_abandoned(folder, entry.name)


def _remove_if_abandoned(folder: int, name: str) -> None:
    fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        if _lock(fd):
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool | None:
    """True if the lock is ours, False if another's, None where there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
