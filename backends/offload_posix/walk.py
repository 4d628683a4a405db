"""Listing a tree of folders as one flat, ordered set of keys.

Whole keys are ordered by their UTF-8 bytes, and `/` is a byte like any other: `a.b`, `a/b`, `a0`. So a
folder is sorted by its name with the slash, and all keys below it follow at that point. (Python compares
strings by code points, which gives the same order as their UTF-8 bytes.)

The walk opens only folders that can hold a wanted key, and asks for the size only of files that it lists.
Links, pipes, hidden names and names that are not UTF-8 are no objects.

The names of one folder must be those of one moment. But a folder is read in several calls, and the sizes
of its files later still. Meanwhile another process may create one file and then remove another. The walk
did not read the first, and the second is gone. A listing that shows neither is wrong about the end of a
stream's roots (docs/commit-protocol.md, "What listings show"). So a folder is read again:

    if it changed while it was read    until a reading meets no change, or has every name of the reading
                                       before it: new files alone hide nothing
    if a file that was read is gone    from the last key that was listed

A folder that this process may not read is an error that names it, if keys below it are wanted. `level` names
it without a look inside, so that it stops nobody who reads other folders. The `lost+found` of a file system
that is mounted at the root holds no object of this store, and is passed over if it cannot be read.

Invariant: `trust` is called with each folder before a file in it is listed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from offload.contracts.store import Listed
from offload.ground.errors import Denied, TryAgain
from offload_posix.failures import failure
from offload_posix.folders import changed_ns, open_folder

LOST_AND_FOUND: Final = "lost+found"
READS_MAX: Final = 64
"""The number of readings in a row without progress after which a listing fails."""

Trust = Callable[[int, Sequence[str]], None]
"""Called with an open folder and its parts, after its names were read."""


def walk(root: str, prefix: str, after: str, trust: Trust) -> Iterator[Listed]:
    """Yield the objects below `root` whose key begins with `prefix` and is greater than `after`, in order.

    Raises `TryAgain` if files vanish faster than a folder can be read.
    """
    parts = _folder_of(prefix)
    if parts is not None:
        yield from _below(root, parts, prefix, after, trust)


def level(root: str, prefix: str) -> Iterator[str]:
    """Yield the keys directly below `prefix`, and the folders that hold an object (with a `/`), in order."""
    parts = _folder_of(prefix)
    for key, is_folder in [] if parts is None else _entries(root, parts, prefix, "", _nobody):
        if not is_folder or _may_hold_an_object(root, key):
            yield key


def _may_hold_an_object(root: str, key: str) -> bool:
    """Return False for a folder without an object, perhaps left of objects that were deleted."""
    try:
        return next(_below(root, key.split("/")[:-1], key, "", _nobody), None) is not None
    except Denied:
        return True


def _nobody(_folder: int, _parts: Sequence[str]) -> None:
    """Sync nothing: no decision rests on the names of a level."""


def _folder_of(prefix: str) -> list[str] | None:
    """Return the parts of the folder that holds keys with this prefix; None if no key can have it."""
    folder, _, _ = prefix.rpartition("/")
    parts = folder.split("/") if folder else []
    if any(not part or part.startswith(".") for part in parts) or "\0" in prefix:
        return None
    return parts


def _below(root: str, parts: list[str], prefix: str, after: str, trust: Trust) -> Iterator[Listed]:
    done = ""  # the last entry that was listed or walked
    reads = 0
    while reads < READS_MAX:
        reads += 1
        for key, is_folder in _entries(root, parts, prefix, after, trust):
            if key <= done:
                continue
            if is_folder:
                yield from _below(root, key.split("/")[:-1], prefix, after, trust)
            else:
                size_bytes = _size_bytes(f"{root}/{key}")
                if size_bytes is None:
                    break  # gone: the file that took its place may have a name that was not read
                yield Listed(key, size_bytes)
            done, reads = key, 0
        else:
            return
    raise _unsteady(root, parts)


def _size_bytes(path: str) -> int | None:
    """Return the size of a file, or None if it is gone."""
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _entries(root: str, parts: list[str], prefix: str, after: str, trust: Trust) -> list[tuple[str, bool]]:
    """Return the wanted keys and folders (their keys end in `/`) directly in one folder, in order."""
    before = None
    for _ in range(READS_MAX):
        try:
            folder = open_folder(root, parts)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:
            if parts == [LOST_AND_FOUND]:
                return []
            raise failure(error, "listing", "/".join((root, *parts))) from error
        try:
            changed = changed_ns(folder)
            found = _read(folder, "".join(f"{part}/" for part in parts), prefix, after)
            if changed_ns(folder) == changed or (before is not None and before.issubset(found)):
                # Synced only now: a sync before the reading would not cover names that came in between.
                if not all(is_folder for _, is_folder in found):
                    trust(folder, parts)
                return sorted(found)
        finally:
            os.close(folder)
        before = frozenset(found)
    raise _unsteady(root, parts)


def _read(folder: int, base: str, prefix: str, after: str) -> list[tuple[str, bool]]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            key = base + entry.name
            if entry.name.startswith(".") or not key.startswith(prefix) or not _is_text(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                # `after` may be inside this folder: keys below it can be greater, although its name is not.
                if key + "/" > after or after.startswith(key + "/"):
                    found.append((key + "/", True))
            elif key > after and entry.is_file(follow_symlinks=False):
                found.append((key, False))
    return found


def _unsteady(root: str, parts: list[str]) -> TryAgain:
    place = "/".join((root, *parts))
    return TryAgain(f"listing {place}: its files are removed faster than it can be read; run again")


def _is_text(name: str) -> bool:
    """Return True if the bytes of a file name were UTF-8. Python turns other bytes into lone surrogates."""
    return name.isascii() or name.encode("utf-8", "replace").decode() == name
