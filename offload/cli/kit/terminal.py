"""Consoles, tables and live lines for people, drawn by rich."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, JustifyMethod
from rich.status import Status
from rich.table import Table
from rich.text import Text

from offload.cli.kit.columns import GAP, fit, fit_sentence

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


def show_sentence(text: str, command: str = "") -> None:
    """Print a sentence on stdout, in lines that fit its width. A command at its end is not broken."""
    print(fit_sentence(text, stdout().width, command))


def show_table(heads: Sequence[str], rows: Sequence[Sequence[str]], drop: Sequence[str]) -> None:
    """Print a table on stdout. If it is too wide, it is fitted as `kit.columns` says."""
    console = stdout()
    fitted = fit(heads, rows, width=console.width, drop=drop)
    table = Table(box=None, header_style="bold", padding=(0, GAP, 0, 0), pad_edge=False)
    for number, (head, is_whole) in enumerate(zip(fitted.heads, fitted.is_whole, strict=True)):
        justify: JustifyMethod = "right" if number and is_whole else "left"
        table.add_column(Text(head), justify=justify, overflow="fold", no_wrap=is_whole)
    for row in fitted.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    if fitted.not_shown:
        show_sentence(f"not shown in {console.width} columns: {', '.join(fitted.not_shown)}")
