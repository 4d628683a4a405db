"""The output of commands: lines, tables, JSON, and errors as one line each.

Imports no rich: `terminal` does.

Invariants: with `--json`, stdout carries JSON in UTF-8 and nothing else. Notes, progress and errors go to
stderr. Every text can be printed: characters that the encoding lacks, and names that are not text, are
escaped.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from offload.ground.errors import Corrupt, OffloadError

__all__ = [
    "AT_LEAST",
    "AT_MOST",
    "counted",
    "error_line",
    "one_line",
    "print_dropped",
    "print_error",
    "print_json",
    "print_note",
    "print_sentence",
    "print_table",
    "ratio_text",
    "size_text",
    "sizes_text",
    "write_bytes",
]


def escape_what_cannot_be_printed() -> None:
    """Make stdout escape characters that its encoding lacks, as Python's stderr does."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_json(document: object, *, indent: int | None = None) -> None:
    """Write one JSON document to stdout, and flush it."""
    text = json.dumps(document, indent=indent, ensure_ascii=False) + "\n"
    sys.stdout.flush()  # the text layer first: the bytes below go past it
    # A lone surrogate stands for a byte of a path that is not UTF-8. It becomes a JSON escape.
    write_bytes(text.encode("utf-8", "backslashreplace"))


def write_bytes(data: bytes | memoryview[int]) -> None:
    """Write all of `data` to stdout, and flush it.

    One `write` may write less, without an error: Ctrl-C ends a write that waits for a reader of the pipe.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


def print_error(error: OffloadError, *, advice: str = "") -> None:
    """Write the error as one line to stderr: what failed, where, and what to do."""
    sys.stderr.write(f"offload: {error_line(error)}{one_line(advice)}\n")


def print_note(text: str) -> None:
    """Write a line to stderr that is neither a result nor an error."""
    sys.stderr.write(f"note: {one_line(text)}\n")


def print_notes(notes: Iterable[str]) -> None:
    """Write a note for each text."""
    for note in notes:
        print_note(note)


def print_dropped(stream: str, sections: Mapping[str, int]) -> None:
    """Write a note of the sections that a copy of a stream lacks; nothing if it lacks none."""
    if sections:
        names = "; ".join(f"{name} in {counted(count, 'fragment')}" for name, count in sections.items())
        print_note(f"{stream}: dropped sections of other programs: {names}")


def error_line(error: OffloadError) -> str:
    """Return the text of an error on one line, with the stream if it is known."""
    text = str(error)
    if isinstance(error, Corrupt) and error.stream is not None:
        text = f"stream {error.stream!r}: {text}"
    return one_line(text)


def one_line(text: str) -> str:
    """Escape line breaks and other control characters: names from outside may hold any."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def print_objects(what: str, rows: Iterable[tuple[str, str]], *, verbose: bool) -> None:
    """Print objects, each with a reason: one line for each reason, or with `verbose` one for each object.

    `what` is the first word of a line. An object that has a reason for itself is named.
    """
    by_reason: dict[str, list[str]] = {}
    for key, reason in rows:
        by_reason.setdefault(reason, []).append(key)
    for reason, keys in by_reason.items():
        shown = keys if verbose or len(keys) == 1 else [counted(len(keys), "object")]
        for key in shown:
            print(f"{what} {one_line(key)}: {one_line(reason)}")


AT_MOST: Final = "≤ "
AT_LEAST: Final = "≥ "
"""The marks of numbers of a stream whose entries do not count messages (`StreamView.counts_messages`)."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 stream", "2 streams"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def size_text(size_bytes: int) -> str:
    """Return a size for people, such as "3.9 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def ratio_text(size_bytes: int, stored_bytes: int) -> str:
    """Return how many plain bytes a stored byte holds, such as "3.20"."""
    return f"{size_bytes / stored_bytes:.2f}" if stored_bytes else "-"


def sizes_text(size_bytes: int, stored_bytes: int, codec: str = "") -> str:
    """Return both sizes for people, such as "9.6 KiB, stored as 3.0 KiB (zstd, ratio 3.20)"."""
    ratio = f"ratio {ratio_text(size_bytes, stored_bytes)}"
    how = f"{codec}, {ratio}" if codec else ratio
    return f"{size_text(size_bytes)}, stored as {size_text(stored_bytes)} ({how})"


def print_sentence(text: str, command: str = "") -> None:
    """Print a line. On a narrow terminal it breaks between words, and before the command at its end."""
    if not sys.stdout.isatty():
        print(one_line(f"{text} {command}".rstrip()))
        return
    from offload.cli.kit.terminal import show_sentence  # here, for the same reason as below

    show_sentence(one_line(text), one_line(command))


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, drop: Sequence[str] = ()) -> None:
    """Print a table on a terminal; elsewhere the same rows, with tabs between the columns.

    On a narrow terminal, the columns of `drop` may go, the first one first (`kit.columns`).
    """
    if not sys.stdout.isatty():
        for row in (heads, *rows):
            sys.stdout.write("\t".join(one_line(str(cell)) for cell in row) + "\n")
        return
    from offload.cli.kit.terminal import show_table  # here: a program that reads the table needs no rich

    show_table(heads, [[one_line(str(cell)) for cell in row] for row in rows], drop)
