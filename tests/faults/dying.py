"""End a process by SIGKILL before its n-th call to the file system below a folder.

An audit hook of the interpreter reports each call before it is made, so the moments are exact.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

CALLS: Final = {
    "open",
    "os.link",
    "os.listdir",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
}


@contextmanager
def calls_told(folder: str, number: int) -> Iterator[None]:
    """Count calls from now on, also those by a name within an open folder. Kill the process at `number`.

    At the end, print on stderr how many calls were made.
    """
    made = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal made
        if event not in CALLS or not isinstance(arguments[0], str):
            return
        if arguments[0].startswith("/") and not arguments[0].startswith(folder):
            return
        made += 1
        if made == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        yield
    finally:
        print(f"calls: {made}", file=sys.stderr)
