"""Small notes beside the files of a log: `note.<name>`, replaced whole.

A note is written under another name, synced, and renamed. A crash leaves the old note or the new one. A file
that still has the other name is removed when the log is opened.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from offload.ground.errors import Corrupt, Misuse
from offload.local.files import explained, opened, read_at, shown_path
from offload.log.disk import Disk

__all__ = ["load_note", "note_files", "save_note"]


_SIZE_BYTES_MAX: Final = 2**20
_NAME: Final = re.compile(r"[a-z-]+")
_PREFIX: Final = "note."
_UNFINISHED: Final = ".new"


def load_note(folder: Path, name: str) -> bytes | None:
    """Return the note; None if there is none. Raises `Corrupt` if it is too long to be one. Blocks."""
    path = _path(folder, name)
    if not path.exists():
        return None
    with opened(path) as descriptor:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > _SIZE_BYTES_MAX:
            limit = f"at most {_SIZE_BYTES_MAX} bytes"
            raise Corrupt("size of a note", shown_path(path), expected=limit, found=size_bytes)
        return read_at(descriptor, 0, size_bytes, path=path)


def save_note(folder: Path, name: str, data: bytes, *, disk: Disk) -> None:
    """Replace the note, durably. Blocks."""
    path = _path(folder, name)
    if len(data) > _SIZE_BYTES_MAX:
        raise Misuse(f"a note of {len(data)} bytes is too long: at most {_SIZE_BYTES_MAX}")
    unfinished = path.with_name(path.name + _UNFINISHED)
    with explained("write", unfinished):
        descriptor = disk.create(unfinished)
        try:
            disk.write(descriptor, 0, [data])
            disk.sync(descriptor)
        finally:
            os.close(descriptor)
        disk.replace(unfinished, path)
    with explained("sync", folder):
        disk.sync_folder(folder)


def note_files(folder: Path, *, unfinished: bool = False) -> list[Path]:
    """Return the files of all notes, or of those that a crash left unfinished. Blocks."""
    with explained("list", folder):
        found = [folder / name for name in os.listdir(folder) if name.startswith(_PREFIX)]
    return [path for path in found if not unfinished or path.name.endswith(_UNFINISHED)]


def _path(folder: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise Misuse(f"{name!r} is no name of a note: use a to z and '-'")
    return folder / f"{_PREFIX}{name}"
