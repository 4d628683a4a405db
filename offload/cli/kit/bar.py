"""The progress bar, drawn by rich."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

from offload.cli.kit.output import one_line, size_text
from offload.cli.kit.progress import CommandProgress, Show
from offload.cli.kit.terminal import stderr


@contextmanager
def bar() -> Iterator[Show]:
    """Show a bar on stderr, from the first `CommandProgress` to the end of the block."""
    # The description holds a stream's name. Brackets in it are not markup.
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


class _Bar:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
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
            description=one_line(seen.what + seen.note),
            completed=seen.done if seen.total is None else min(seen.done, seen.total),
            size_bytes=seen.size_bytes,
            rate=moved.speed,
        )


class _Moved(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return the bytes moved, and the rate once it is known."""
        size_bytes, rate = task.fields.get("size_bytes", 0), task.fields.get("rate")
        return Text(size_text(size_bytes) + ("" if rate is None else f", {size_text(int(rate))}/s"))
