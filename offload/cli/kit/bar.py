"""The progress bar, drawn by rich. It has one line, whatever the width: `kit.columns` has the rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
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
from rich.table import Column
from rich.text import Text

from offload.cli.kit.columns import fit_words
from offload.cli.kit.output import one_line, size_text
from offload.cli.kit.progress import CommandProgress, Show
from offload.cli.kit.terminal import stderr

BAR_WIDTH_MIN: Final = 4
PERCENT_WIDTH: Final = len("100%")
TIME_WIDTH: Final = len("0:00:00")
WIDTH_FOR_ELAPSED: Final = 100
"""A narrower terminal does not show how long the command has run."""


@contextmanager
def bar() -> Iterator[Show]:
    """Show a bar on stderr, from the first `CommandProgress` to the end of the block."""
    console = stderr()
    with _progress(console) as bars:
        yield _Bar(bars, console.width).show


def _progress(console: Console) -> Progress:
    # The description holds a stream's name. Brackets in it are not markup.
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(table_column=_whole()),
        _Moved(table_column=_whole()),
        TimeRemainingColumn(table_column=_whole()),
    ]
    if console.width >= WIDTH_FOR_ELAPSED:
        columns.append(TimeElapsedColumn(table_column=_whole()))
    return Progress(*columns, console=console, transient=True)


def _whole() -> Column:
    """Return a column whose text never breaks: the bar becomes shorter instead."""
    return Column(no_wrap=True)


class _Bar:
    def __init__(self, bars: Progress, width: int) -> None:
        self._bars, self._width = bars, width
        # Two tasks: the first is never shown and measures the rate in bytes, over all streams. The second
        # shows the stream at hand, and begins again with each.
        bars.add_task("", total=None, visible=False)
        bars.add_task("", total=None, visible=False)
        self._what = ""

    def show(self, seen: CommandProgress) -> None:
        moved, task = self._bars.tasks
        if seen.what != self._what:
            self._what = seen.what
            self._bars.reset(task.id, visible=True)
        task.total = seen.total  # `update` takes None for no change
        self._bars.update(moved.id, completed=seen.size_bytes)
        self._bars.update(
            task.id,
            description=fit_words(one_line(seen.what + seen.note), self._room(seen, moved.speed)),
            completed=seen.done if seen.total is None else min(seen.done, seen.total),
            size_bytes=seen.size_bytes,
            rate=moved.speed,
        )

    def _room(self, seen: CommandProgress, rate: float | None) -> int:
        """Return the width that the other columns leave to the description."""
        times = 2 if self._width >= WIDTH_FOR_ELAPSED else 1
        others = [
            BAR_WIDTH_MIN,
            PERCENT_WIDTH,
            len(_moved_text(seen.size_bytes, rate)),
            *[TIME_WIDTH] * times,
        ]
        return self._width - sum(others) - len(others)


class _Moved(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return the bytes moved, and the rate once it is known."""
        return Text(_moved_text(task.fields.get("size_bytes", 0), task.fields.get("rate")))


def _moved_text(size_bytes: int, rate: float | None) -> str:
    return size_text(size_bytes) + ("" if rate is None else f", {size_text(int(rate))}/s")
