"""Staged files, in `<root>/.staging/`: no reader sees them until they get their final name in one step.

The process that writes a staged file keeps it locked (`flock`). The lock ends with the process. So if the
lock of a staged file is free, its process died, and `sweep` removes the file:

    writer                                    sweeper
    create the file (O_EXCL, a fresh name)    open it
    try to lock it                            try to lock it
    it has no name any more? take another     locked: remove its name

Both may run at once between the writer's first two steps. If the sweeper locks first, the writer notices
before its first byte and takes another name. If the writer locks first, the sweeper leaves the file alone.

If the file system has no locks, leftovers stay, and only take up space. If locks do not reach other
machines (some NFS mounts), a sweep may remove the file of a writer elsewhere: its put or create then fails
with `TryAgain`, and nothing wrong becomes visible.

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
    """Close the inherited descriptors: a forked child must not keep its parent's locks alive."""
    # A lock belongs to the open file, which parent and child share. It would end with the last of them, and
    # the leftovers of a dead parent would stay for as long as a child lives.
    while _held:
        with suppress(OSError):
            os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go_in_child)


class Staged:
    """One staged file. Every method blocks, except the constructor; `discard` ends it in any state."""

    __slots__ = ("_fd", "_folder", "_name")

    def __init__(self) -> None:
        self._folder = -1
        self._fd = -1
        self._name = ""  # empty while the staging folder has no such file

    def open(self, folder: int, names: Callable[[], str]) -> None:
        """Begin an empty file in the open staging `folder`. `discard` closes both."""
        self._folder = folder
        while not self._name:
            name = names()
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
            _held.add(fd)
            self._fd = fd
            # A sweeper may have had the lock between the two calls: it holds it still (False), or it has
            # removed the name already (no link is left). A file without a name cannot be published.
            if _lock(fd) is not False and os.fstat(fd).st_nlink > 0:
                self._name = name
            else:
                self._close()

    def write(self, data: bytes | memoryview, at: int) -> None:
        """Write all of `data` at byte `at`."""
        written = os.pwrite(self._fd, data, at)
        if written < len(data):  # one call may take fewer bytes, and Linux takes 2 GiB at most
            rest = memoryview(data)
            while written < len(data):
                written += os.pwrite(self._fd, rest[written:], at + written)
        _start_writing_back(self._fd, at, len(data))

    def rename(self, folder: int, name: str) -> None:
        """Sync, and replace the file that has this name, if there is one."""
        # Before the name: a power cut could otherwise leave the name without the bytes.
        os.fsync(self._fd)
        os.rename(self._name, name, src_dir_fd=self._folder, dst_dir_fd=folder)
        self._name = ""

    def link(self, folder: int, name: str) -> None:
        """Sync, and take this name if it is free. Raises `FileExistsError` if it is not."""
        os.fsync(self._fd)  # before the name, as in `rename`
        try:
            os.link(self._name, name, src_dir_fd=self._folder, dst_dir_fd=folder, follow_symlinks=False)
        except OSError:
            # A file server may have made the link and lost its answer. A client that repeats the call then
            # gets EEXIST from its own success. Nobody else knows the staged name, so a second link is ours.
            if os.fstat(self._fd).st_nlink != 2:
                raise

    def discard(self) -> None:
        """Remove the staged name, and with it a file that has no other name. Idempotent."""
        if self._name:
            with suppress(OSError):  # a leftover takes up space, until the next sweep removes it
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
    """Let the device begin to write now rather than at the sync. A put takes two thirds of the time then.

    The advice says that the pages are no longer needed. For dirty pages the kernel takes that as "write
    them", and does not wait. It promises nothing, and a file system may ignore it.
    """
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(fd, at, length, os.POSIX_FADV_DONTNEED)


def sweep(folder: int) -> None:
    """Remove the files that dead processes left in the staging `folder`. Never raises: no write needs it."""
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
    """Return True if the lock is ours, False if another process has it, None if there are no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
