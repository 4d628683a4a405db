"""Scratch folders, deleted when their owner leaves them, at the latest when the next one is made.

A killed process removes nothing, and a server may have stored gigabytes. So each folder has a lock beside
it, which its owner holds while it runs. The next process that makes a folder removes those with a free lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PREFIX: Final = "offload-server-"
LOCK: Final = ".lock"


@contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """Yield a new, empty folder in `$TMPDIR`."""
    _remove_what_was_abandoned()
    held, path = tempfile.mkstemp(prefix=f"{PREFIX}{name}-", suffix=LOCK)
    lock = Path(path)
    folder = lock.with_suffix("")
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.unlink(missing_ok=True)
        os.close(held)


def _remove_what_was_abandoned() -> None:
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*{LOCK}"):
        try:
            with lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink(missing_ok=True)
        except OSError:
            continue  # its owner still runs, or is another user
