"""A live line with a bar: the share that is done, the rate, and the time that is left.

The line appears on a terminal only. Nothing is shown if stdout or stderr is not a terminal, with `--json`, or
with `--debug`, whose log would tear the line. The bar costs no request: totals are what a command knows
anyway, mostly the offsets of the stream at hand. Bytes give only the rate, because their total is not known
beforehand.
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
    """The progress of a command."""

    what: str
    """The activity and the stream, such as "verifying orders". A new text begins a new bar."""

    done: int
    total: int | None
    """In the unit of `done`, which the command chooses; None if the total is not known."""

    size_bytes: int
    """The bytes that the whole command has moved so far."""

    note: str = ""
    """Text that is shown behind `what`."""


Show = Callable[[CommandProgress], None]


@contextmanager
def progress(*, json: bool = False) -> Iterator[Show]:
    """Show a bar, from the first `CommandProgress` to the end of the block."""
    if json or not on_terminal():
        yield lambda seen: None
        return
    from offload.cli.kit.bar import bar  # here, because a scheduler's sync needs no rich

    with bar() as show:
        yield show


def on_terminal() -> bool:
    """Return whether a bar can be shown: stdout and stderr are terminals, and no log is written to them."""
    if not sys.stdout.isatty() or logging.getLogger("offload").isEnabledFor(logging.DEBUG):
        return False
    from offload.cli.kit.terminal import stderr  # here, for the same reason

    return stderr().is_terminal
