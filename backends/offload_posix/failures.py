"""From `errno` to the framework's errors: the one place where this backend translates.

Arranged, as the errors are, by what the caller does next. `EIO` has two meanings: bytes that
cannot be read will hardly be readable a moment later, so that is said plainly; bytes that could not
be written are written elsewhere by the next try, from the first one on, so that may be tried again.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from offload.errors import Denied, Misuse, NoSpace, NotFound, OffloadError, TryAgain

ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR})
"""For a read, no regular file stands under the key: nothing, a folder, a link, or below a file."""

_NEXT: Final[dict[int, tuple[type[OffloadError], str]]] = {
    errno.ENOSPC: (NoSpace, "the file system is full: make room"),
    errno.EDQUOT: (NoSpace, "the quota is used up: make room or raise it"),
    errno.EACCES: (Denied, "grant access to it"),
    errno.EPERM: (Denied, "grant access to it"),
    errno.EROFS: (Denied, "the file system is mounted read-only: remount it for writing"),
    errno.EXDEV: (Denied, "another file system is mounted inside the store: take it out"),
    errno.ENAMETOOLONG: (Misuse, "a part of the name is too long for this file system"),
    errno.EINVAL: (Misuse, "this file system takes no such name or operation"),
    errno.EILSEQ: (Misuse, "this file system takes no such name"),
    errno.EFBIG: (Misuse, "this file system takes no file of that size"),
    errno.ENOTDIR: (Misuse, "a part of the name before the last is an object or a link, not a folder"),
    errno.ELOOP: (Misuse, "a part of the name is a symbolic link, which is never followed"),
    errno.EISDIR: (Misuse, "a folder has this name"),
    errno.ENOTEMPTY: (Misuse, "a folder has this name"),
    errno.EMFILE: (TryAgain, "this process has too many open files"),
    errno.ENFILE: (TryAgain, "this machine has too many open files"),
    errno.ENOMEM: (TryAgain, "the machine is short of memory"),
    errno.EAGAIN: (TryAgain, "it is busy"),
    errno.EBUSY: (TryAgain, "it is busy"),
    errno.ETIMEDOUT: (TryAgain, "the file server does not answer"),
    errno.ESTALE: (TryAgain, "the file server replaced it meanwhile"),
    errno.ENOENT: (TryAgain, "somebody removed it, or a folder above it, meanwhile"),
    errno.EIO: (TryAgain, "the device failed: look into the kernel's log"),
}


def failure(error: OSError, doing: str, place: str, *, absent: NotFound | None = None) -> OffloadError:
    """What to raise, `from error`, when `doing` something at `place` failed.

    `absent` is given by reads: it is the answer where there is no object, and it makes `EIO` final.
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
    """Turn any `OSError` of the block into what `failure` makes of it."""
    try:
        yield
    except OSError as error:
        raise failure(error, doing, place, absent=absent) from error
