"""Run `offload` in a process that SIGKILL ends before its n-th call to the file system below a folder.

    python tests/faults/dying.py FOLDER N trim FOLDER orders --before 10

An audit hook of the interpreter reports each call before it is made, so the moments are exact. The program is
the one that users run. If it ends before its n-th call, it prints on stderr how many calls it made.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import Any, Final

from offload.cli.main import main

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


def die_at(folder: str, number: int) -> None:
    """Count calls from now on, also those by a name within an open folder. Kill the process at `number`."""
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
    atexit.register(lambda: print(f"calls: {made}", file=sys.stderr))


if __name__ == "__main__":
    die_at(sys.argv[1], int(sys.argv[2]))
    sys.argv[1:3] = []
    main()
