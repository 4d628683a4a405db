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

from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from offload.cli.output import one_line, size_text, stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
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


Show = Callable[[Seen], None]


@contextmanager
def progress(*, json: bool = False) -> Iterator[Show]:
    """A bar that appears with the first `Seen`, and goes with the end of the block."""
    if json or not on_terminal():
        yield lambda seen: None
        return
    # The description holds a stream's name, in which brackets are no markup.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        _Moved(),
        TimeRemainingColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr(), transient=True) as bars:
        yield _Bar(bars).show


def on_terminal() -> bool:
    """Whether a person watches, and no log is shown instead."""
    return (
        stderr().is_terminal
        and sys.stdout.isatty()
        and not logging.getLogger("offload").isEnabledFor(logging.DEBUG)
    )


class _Bar:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        bars.add_task("", total=None, visible=False)  # never shown: it measures the rate in bytes
        bars.add_task("", total=None, visible=False)
        self._what = ""

    def show(self, seen: Seen) -> None:
        moved, task = self._bars.tasks
        if seen.what != self._what:
            self._what = seen.what
            self._bars.reset(task.id, visible=True)
        task.total = seen.total  # `update` takes None for no change
        self._bars.update(moved.id, completed=seen.size_bytes)
        self._bars.update(
            task.id,
            description=one_line(seen.what + seen.note),
            completed=seen.done if seen.total is None else min(seen.done, seen.total),
            size_bytes=seen.size_bytes,
            rate=moved.speed,
        )


class _Moved(ProgressColumn):
    def render(self, task: Task) -> Text:
        """The bytes moved, and the rate once it is known."""
        size_bytes, rate = task.fields.get("size_bytes", 0), task.fields.get("rate")
        return Text(size_text(size_bytes) + ("" if rate is None else f", {size_text(int(rate))}/s"))
