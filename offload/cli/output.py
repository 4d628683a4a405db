"""What the commands share: consoles, lines, tables, and errors as one line each.

Invariants: with `--json`, stdout carries JSON in UTF-8 and nothing else; notes, progress and errors go to
stderr. No text fails to be printed: what an encoding lacks is escaped, and so are names that are no text.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from offload.errors import Corrupt, OffloadError


def stderr() -> Console:
    """A console on stderr, for notes and progress."""
    return Console(stderr=True, soft_wrap=True, highlight=False)


@contextmanager
def live_line(first: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that changes, where that is a terminal; silence elsewhere."""
    console = stderr()
    if not console.is_terminal:
        yield lambda text: None
        return
    with Status(first, console=console) as live:
        yield live.update


def stdout() -> Console:
    """A console on stdout, for people. Where no terminal is, lines are not cut or wrapped."""
    return _Stdout(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 400)


class _Stdout(Console):
    def on_broken_pipe(self) -> None:
        """Raise the error on, where the library would end the process with an exit code of its own."""
        raise


def escape_what_cannot_be_printed() -> None:
    """Have stdout do what Python has stderr do, whatever the encoding is."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(document: object, *, indent: int | None = None) -> None:
    """One JSON document on stdout, and out of the buffer."""
    text = json.dumps(document, indent=indent, ensure_ascii=False) + "\n"
    sys.stdout.flush()
    # Lone surrogates, which stand for bytes of paths that are no UTF-8, become escapes as JSON has them.
    write_bytes(text.encode("utf-8", "backslashreplace"))


def write_bytes(data: bytes) -> None:
    """Write all of `data` to stdout, and out of the buffer.

    One call may write less: Ctrl-C ends a write that waits for the reader of a full pipe, without an error.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


def print_error(error: OffloadError, *, advice: str = "") -> None:
    """The error as one line on stderr: what, where, what to do."""
    sys.stderr.write(f"offload: {error_line(error)}{one_line(advice)}\n")


def print_note(text: str) -> None:
    """A line for people that is neither result nor error."""
    sys.stderr.write(f"note: {one_line(text)}\n")


def error_line(error: OffloadError) -> str:
    """What went wrong, with the stream where it is known, and what to do about it."""
    text = str(error)
    if isinstance(error, Corrupt) and error.stream is not None:
        text = f"stream {error.stream!r}: {text}"
    return one_line(text)


def one_line(text: str) -> str:
    """Text without line breaks or other control characters: names from outside may hold any."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A count with its noun: "1 stream", "2 streams"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def size_text(size_bytes: int) -> str:
    """A size for people."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal; elsewhere the same rows, separated by tabs."""
    if not sys.stdout.isatty():
        for row in (heads, *rows):
            sys.stdout.write("\t".join(one_line(str(cell)) for cell in row) + "\n")
        return
    table = Table(box=None, header_style="bold")
    for head in heads:
        table.add_column(head, justify="left" if head == heads[0] else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(str(cell))) for cell in row))
    stdout().print(table)
