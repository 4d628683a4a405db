"""Commands on a terminal, in the process of the test."""

from __future__ import annotations

import os
import pty
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

import pytest

from offload.cli.app import run

TERMINAL: Final = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}


def on_terminal(*arguments: object, env: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Run a command in this process, with a terminal for stdout and stderr. Return code and output."""
    ours, theirs = pty.openpty()
    with (
        pytest.MonkeyPatch.context() as patch,
        ThreadPoolExecutor(1) as reader,
        open(theirs, "w", encoding="utf-8") as terminal,
    ):
        patch.delenv("NO_COLOR", raising=False)
        for name, value in {**TERMINAL, **(env or {})}.items():
            patch.setenv(name, value)
        shown = reader.submit(all_of, ours)
        with redirect_stdout(terminal), redirect_stderr(terminal):
            code = run([str(argument) for argument in arguments])
        terminal.close()  # ends what the reader reads
        return code, shown.result(timeout=60)


def all_of(ours: int) -> bytes:
    """Return all that a terminal shows until its other end is closed, and close it."""
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the error on Linux when the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    return shown
