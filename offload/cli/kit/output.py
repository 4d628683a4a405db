"""What the commands share: lines, tables, and errors as one line each. Imports no rich (`terminal` does).

Invariants: with `--json`, stdout carries JSON in UTF-8 and nothing else; notes, progress and errors go to
stderr. No text fails to be printed: what an encoding lacks is escaped, and so are names that are no text.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Sequence

from offload.errors import Corrupt, OffloadError

__all__ = [
    "counted",
    "error_line",
    "one_line",
    "print_error",
    "print_json",
    "print_note",
    "print_table",
    "size_text",
]


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
    from offload.cli.kit.terminal import show_table  # here, because most tables are read by programs

    show_table(heads, [[one_line(str(cell)) for cell in row] for row in rows])
