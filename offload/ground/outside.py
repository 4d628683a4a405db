"""Texts from outside, read within bounds: files that people write, variables, replies of servers.

    read_outside     the bytes of a regular file that is not too large
    text_outside     its text, which is UTF-8
    json_outside     a JSON document
    toml_outside     a TOML document
    number_outside   a whole number

Whoever wrote the text may have been wrong, or hostile. Each function takes memory and time in proportion to
its bound, and raises `Unreadable` for everything else that is wrong. The caller knows what the text is for,
and adds the name of the file, and what to do, as a `Misuse`, `Corrupt` or `Denied`. An `OSError` stays one.

Invariants of a document: it is nested at most `DEPTH_MAX` deep, so any function may recurse over it. Its
whole numbers have at most `DIGITS_MAX` digits, so they can be converted and printed. In JSON, its other
numbers are finite.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from typing import Any, Final, NoReturn

__all__ = [
    "Unreadable",
    "json_outside",
    "number_outside",
    "read_outside",
    "text_outside",
    "toml_outside",
]

TEXT_SIZE_BYTES_MAX: Final = 2**20
"""The size of a text, if the caller has no reason for another bound."""

PIECE_SIZE_BYTES: Final = 64 * 1024
TOML_SIZE_BYTES_MAX: Final = 256 * 1024
DEPTH_MAX: Final = 64
DIGITS_MAX: Final = 40
"""Python converts 4300 digits, in a time that grows with their square. No number here needs 40."""

DOTS_MAX: Final = 100
"""The dots of a line of TOML outside of its strings. The parser's time grows with the square of a key's."""

_QUOTED: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'')
_NO_NUMBER: Final = ("inf", "nan")
"""Words that TOML takes as numbers too. The reader of the value decides about them."""


class Unreadable(ValueError):
    """A text from outside breaks its format or a bound. The message says why, without the text itself."""


def read_outside(path: str | os.PathLike[str], *, size_bytes_max: int = TEXT_SIZE_BYTES_MAX) -> bytes:
    """Return the bytes of a file.

    Raises `OSError`, and `Unreadable` if it is no regular file, or too large.
    """
    try:
        # Opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as exc:  # a NUL, or what the system's encoding lacks
        raise Unreadable(f"this is no path of a file: {exc}") from exc
    raw = bytearray()
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise Unreadable(f"it is no regular file ({stat.filemode(mode)})")
        # In pieces: a read of the whole bound would take its memory for any file.
        while len(raw) <= size_bytes_max and (piece := os.read(descriptor, PIECE_SIZE_BYTES)):
            raw += piece
    finally:
        os.close(descriptor)
    _check_size(len(raw), size_bytes_max)
    return bytes(raw)


def text_outside(path: str | os.PathLike[str], *, size_bytes_max: int = TEXT_SIZE_BYTES_MAX) -> str:
    """Return the text of a file, without a byte order mark, and with the line breaks of Unix.

    Raises as `read_outside`, and `Unreadable` if it is not UTF-8.
    """
    raw = read_outside(path, size_bytes_max=size_bytes_max)
    try:
        # Editors of Windows put the mark first. In a password it would be invisible.
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        raise Unreadable(f"line {line} is not UTF-8: {exc.reason}") from exc
    return text.replace("\r\n", "\n").replace("\r", "\n")


def json_outside(text: bytes | str, *, size_bytes_max: int = TEXT_SIZE_BYTES_MAX) -> Any:
    """Return the value of a JSON document. Raises `Unreadable`."""
    _check_size(len(text), size_bytes_max)
    try:
        found = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_refused)
    except json.JSONDecodeError as exc:
        raise Unreadable(f"line {exc.lineno}, column {exc.colno} is no JSON: {exc.msg}") from exc
    except UnicodeDecodeError as exc:
        raise Unreadable(f"byte {exc.start} is no text: {exc.reason}") from exc
    except RecursionError:
        raise _too_deep() from None
    _check_values(found)
    return found


def toml_outside(text: str) -> dict[str, Any]:
    """Return a TOML document. Raises `Unreadable`."""
    _check_size(len(text), TOML_SIZE_BYTES_MAX)
    for number, line in enumerate(text.split("\n"), start=1):
        if line.count(".") > DOTS_MAX and _QUOTED.sub("", line).count(".") > DOTS_MAX:
            raise Unreadable(f"line {number} has more than {DOTS_MAX} dots outside of its strings")
    try:
        found = tomllib.loads(text, parse_float=_float)
    except tomllib.TOMLDecodeError as exc:
        raise Unreadable(str(exc)) from exc
    except RecursionError:
        raise _too_deep() from None
    except Unreadable:
        raise
    except ValueError:  # the conversion of a number
        raise Unreadable(f"a number has more than {DIGITS_MAX} digits") from None
    _check_values(found)
    return found


def number_outside(text: str) -> int | None:
    """Return the number that a text of at most 40 decimal digits writes; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def _check_size(size: int, size_bytes_max: int) -> None:
    if size > size_bytes_max:
        raise Unreadable(f"it has more than {size_bytes_max} bytes")


def _whole(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise Unreadable(f"a number has {len(text)} digits, which is more than {DIGITS_MAX}")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Unreadable(f"the number {text[:DIGITS_MAX]} is too large")
    return number


def _float(text: str) -> float:
    return float(text) if text.lstrip("+-") in _NO_NUMBER else _finite(text)


def _refused(name: str) -> NoReturn:
    raise Unreadable(f"{name} is no JSON")


def _too_deep() -> Unreadable:
    return Unreadable(f"it is nested more than {DEPTH_MAX} deep")


def _check_values(value: Any) -> None:
    """Raise `Unreadable` if a value is nested too deeply, or has a number that is too long."""
    level: list[Any] = [[value]]
    for _ in range(DEPTH_MAX + 1):
        values = [each for one in level for each in (one.values() if isinstance(one, dict) else one)]
        if any(isinstance(each, int) and each.bit_length() > 128 for each in values):
            raise Unreadable(f"a number has more than {DIGITS_MAX} digits")
        level = [each for each in values if isinstance(each, dict | list)]
        if not level:
            return
    raise _too_deep()
