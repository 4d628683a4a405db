"""Listing a tree of folders as if it were one flat, ordered set of keys.

The order is that of whole keys by their UTF-8 bytes, in which `/` is a byte like any other: `a.b`,
`a/b`, `a0`. So within a folder a folder is sorted as its name with the slash, and all keys below it
follow there. (Strings compare by code points, and these sort as their UTF-8 bytes do.)

Only folders that can hold a wanted key are opened, and only files that are given are asked for
their size. What vanishes during the walk is passed over; links, pipes, hidden names and names that
are not UTF-8 are no objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from offload.store.port import Listed
from offload_posix.folders import open_folder


def walk(root: str, prefix: str, after: str) -> Iterator[Listed]:
    """The objects below `root` whose key begins with `prefix` and is beyond `after`, in order."""
    parts = _folder_of(prefix)
    if parts is not None:
        yield from _below(root, parts, prefix, after)


def level(root: str, prefix: str) -> Iterator[str]:
    """The keys directly below `prefix`, and the folders (they end in `/`) that hold an object, in order."""
    parts = _folder_of(prefix)
    for key, is_folder in [] if parts is None else _entries(root, parts, prefix, ""):
        if not is_folder or next(_below(root, key.split("/")[:-1], key, ""), None) is not None:
            yield key


def _folder_of(prefix: str) -> list[str] | None:
    """The parts of the folder in which keys with this prefix are; None where no key begins so."""
    folder, _, _ = prefix.rpartition("/")
    parts = folder.split("/") if folder else []
    if any(not part or part.startswith(".") for part in parts) or "\0" in prefix:
        return None
    return parts


def _below(root: str, parts: list[str], prefix: str, after: str) -> Iterator[Listed]:
    for key, is_folder in _entries(root, parts, prefix, after):
        if is_folder:
            yield from _below(root, key.split("/")[:-1], prefix, after)
            continue
        with suppress(FileNotFoundError, NotADirectoryError):
            yield Listed(key, os.stat(f"{root}/{key}", follow_symlinks=False).st_size)


def _entries(root: str, parts: list[str], prefix: str, after: str) -> list[tuple[str, bool]]:
    """The wanted keys and folders (their keys end in `/`) directly in one folder, in order."""
    base = "".join(f"{part}/" for part in parts)
    found = []
    try:
        folder = open_folder(root, parts)
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                key = base + entry.name
                if entry.name.startswith(".") or not key.startswith(prefix) or not _is_text(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if key + "/" > after or after.startswith(key + "/"):
                        found.append((key + "/", True))
                elif key > after and entry.is_file(follow_symlinks=False):
                    found.append((key, False))
    finally:
        os.close(folder)
    return sorted(found)


def _is_text(name: str) -> bool:
    """Whether the bytes of a file name were UTF-8; Python smuggles others in as lone surrogates."""
    return name.isascii() or name.encode("utf-8", "replace").decode() == name
