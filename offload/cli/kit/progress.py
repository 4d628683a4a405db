"""A live line with a bar: how much is done of how much, at which rate, and how long the rest takes.

On a terminal only. Nothing is shown if stdout or stderr is none, with `--json`, or with `--debug`, whose log
would tear the line. Nothing is asked for its sake: totals are what a command knows anyway, mostly the offsets
of the stream at hand. Bytes give the rate alone, because nobody knows them beforehand.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["CommandProgress", "Show", "progress"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandProgress:
    """How far a command has come."""

    what: str
    """What it does to which stream. Another one begins a new bar."""

    done: int
    total: int | None
    """In the unit of `done`, whatever it is; None if it is not known."""

    size_bytes: int
    """The bytes that were moved so far by the whole command."""

    note: str = ""
    """What else there is to say, behind `what`."""


Show = Callable[[CommandProgress], None]


@contextmanager
def progress(*, json: bool = False) -> Iterator[Show]:
    """A bar that appears with the first `CommandProgress`, and goes with the end of the block."""
    if json or not on_terminal():
        yield lambda seen: None
        return
    from offload.cli.kit.bar import bar  # here, because a scheduler's sync needs no rich

    with bar() as show:
        yield show


def on_terminal() -> bool:
    """Whether a person watches, and no log is shown instead."""
    if not sys.stdout.isatty() or logging.getLogger("offload").isEnabledFor(logging.DEBUG):
        return False
    from offload.cli.kit.terminal import stderr  # as above

    return stderr().is_terminal
