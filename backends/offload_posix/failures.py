"""From `errno` to the framework's errors: the only place where this backend translates.

The table is arranged as the errors are: by what the caller does next. `EIO` has two meanings. Bytes that
cannot be read now will hardly be readable a moment later, so a read raises a final error. Bytes that could
not be written go elsewhere on the device with the next try, which writes all of them again: `TryAgain`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from offload.ground.errors import Denied, Misuse, NoSpace, NotFound, OffloadError, StoreDenied, TryAgain

ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})
"""For a read: there is no regular file under the key. There is nothing, a folder, a link, or the key leads
through a file."""

_NEXT: Final[dict[int, tuple[type[OffloadError], str]]] = {
    # A person must change something.
    errno.ENOSPC: (NoSpace, "the file system is full: make room"),
    errno.EDQUOT: (NoSpace, "the quota is used up: make room or raise it"),
    errno.EACCES: (Denied, "grant access to it"),
    errno.EPERM: (Denied, "grant access to it"),
    errno.EROFS: (StoreDenied, "the file system is mounted read-only: remount it for writing"),
    # Rename and link work within one file system only, and the staging folder is on the root's.
    errno.EXDEV: (Denied, "another file system is mounted inside the store: take it out"),
    # The name or the object can never be stored here.
    errno.ENAMETOOLONG: (Misuse, "a part of the name is too long for this file system"),
    errno.EINVAL: (Misuse, "this file system takes no such name or operation"),
    errno.EILSEQ: (Misuse, "this file system takes no such name"),
    errno.EFBIG: (Misuse, "this file system takes no file of that size"),
    errno.ENOTDIR: (Misuse, "a part of the name before the last is an object or a link, not a folder"),
    errno.ELOOP: (Misuse, "a part of the name is a symbolic link, which is never followed"),
    errno.EISDIR: (Misuse, "a folder has this name"),
    errno.ENOTEMPTY: (Misuse, "a folder has this name"),
    # It may pass, and the same call may succeed then.
    errno.EMFILE: (TryAgain, "this process has too many open files"),
    errno.ENFILE: (TryAgain, "this machine has too many open files"),
    errno.ENOMEM: (TryAgain, "the machine is short of memory"),
    errno.EAGAIN: (TryAgain, "it is busy"),
    errno.EBUSY: (TryAgain, "it is busy"),
    errno.ETIMEDOUT: (TryAgain, "the file server does not answer"),
    errno.ESTALE: (TryAgain, "the file server replaced it meanwhile"),
    # The staged file, or a folder that this store made, is gone. The next try makes both again.
    errno.ENOENT: (TryAgain, "another process removed it, or a folder above it, meanwhile"),
    errno.EIO: (TryAgain, "the device failed: check the kernel's log"),
}


def failure(error: OSError, doing: str, place: str, *, absent: NotFound | None = None) -> OffloadError:
    """Return the error to raise, `from error`, after `doing` something at `place` failed.

    Reads give `absent`: the error to return if there is no object. It also makes `EIO` final.
    """
    number = error.errno or 0
    if absent is not None and number in ABSENT:
        return absent
    kind, advice = _NEXT.get(number, (OffloadError, "see the cause"))
    if absent is not None and number == errno.EIO:
        kind = OffloadError
    return kind(f"{doing} {place}: {error.strerror or error}; {advice}")


@contextmanager
def explained(doing: str, place: str, *, absent: NotFound | None = None) -> Iterator[None]:
    """Raise the error that `failure` returns for any `OSError` of the block."""
    try:
        yield
    except OSError as error:
        raise failure(error, doing, place, absent=absent) from error
