"""Consoles, tables and live lines for people, drawn by rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

__all__ = ["live_line"]


def stderr() -> Console:
    """Return a console on stderr, for notes and progress."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


@contextmanager
def live_line(first: str) -> Iterator[Callable[[str], None]]:
    """Show a line on stderr that the block can change. Shows nothing if stderr is not a terminal."""
    console = stderr()
    if not console.is_terminal:
        yield lambda text: None
        return
    with Status(first, console=console) as live:
        yield live.update


def stdout() -> Console:
    """Return a console on stdout. If stdout is not a terminal, lines are neither cut nor wrapped."""
    return _Stdout(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 400)


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error again. The library would end the process with an exit code of its own."""
        raise


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout. A cell that is too wide is folded."""
    table = Table(box=None, header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head == heads[0] else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    stdout().print(table)
