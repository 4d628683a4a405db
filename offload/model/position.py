"""Positions in a stream, as a person or a consumer names them: a SPEC of the command line.

| text | position |
|---|---|
| `first` | the first record |
| `last` | the last chunk that holds messages |
| `next` | after the last record |
| a number | that offset |
| ISO 8601, or `@` and milliseconds since 1970 | the first chunk with that timestamp or a later one |
| `-90s`, `-5m`, `-1h`, `-7d` | the same, so long before now |
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum
from operator import index
from typing import Final

from offload.ground.errors import Misuse

__all__ = [
    "OFFSET_MAX",
    "AtEdge",
    "AtOffset",
    "AtTime",
    "PartOffset",
    "Position",
    "as_position",
    "parse_position",
    "position_text",
]


OFFSET_MAX: Final = 2**64 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECONDS: Final = re.compile(r"@(-?[0-9]{1,19})")
_BACK: Final = re.compile(r"-([0-9]{1,9})([smhd])")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class AtEdge(Enum):
    """The positions that have a name."""

    FIRST = "first"
    LAST = "last"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class AtOffset:
    """The position of the record with this offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The position of the first chunk with this timestamp or a later one, in milliseconds since 1970."""

    timestamp_ms: int


Position = AtEdge | AtOffset | AtTime


@dataclass(frozen=True, slots=True)
class PartOffset:
    """A place in a stream with parts: an offset of the part with this number. The first part is number 1.

    It is exact, also behind a fork, where two parts hold the same offset.
    """

    part: int
    offset: int


def check_start(start: object) -> None:
    """Raise `Misuse` unless this is a `Position`, a `PartOffset`, or a number that can be an offset."""
    offset = start.offset if isinstance(start, AtOffset | PartOffset) else start
    if not _is_offset(offset) and not isinstance(start, AtEdge | AtTime):
        raise Misuse(f"{start!r} is not a position: use AtEdge.FIRST, AtTime, or an offset from 0 on")


def check_position(position: object) -> None:
    """Raise `Misuse` unless this is a `Position`."""
    is_at = isinstance(position, AtOffset) and _is_offset(position.offset)
    if not is_at and not isinstance(position, AtEdge | AtTime):
        raise Misuse(f"{position!r} is not a position: use AtEdge.FIRST, AtTime, or AtOffset from 0 on")


def check_place(start: object) -> None:
    """Raise `Misuse` unless this is a `PartOffset`, or a number that can be an offset."""
    if not _is_offset(start.offset if isinstance(start, PartOffset) else start):
        raise Misuse(
            f"{start!r} is no offset from 0 on, and no PartOffset: `place_of` has that of a position"
        )


def _is_offset(offset: object) -> bool:
    return isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= OFFSET_MAX


def parse_position(text: str, *, now_ms: int | None = None) -> Position:
    """Parse a SPEC. Raises `Misuse` if it has none of the forms above.

    `now_ms` is the time in milliseconds since 1970 from which relative times count back. Without it, they
    are refused.
    """
    if text in {place.value for place in AtEdge}:
        return AtEdge(text)
    # At most 100 digits: Python refuses to convert very long numbers, with a `ValueError`.
    if re.fullmatch("[0-9]{1,100}", text):
        if int(text) > OFFSET_MAX:
            raise Misuse(f"{text!r} is not an offset: the greatest is {OFFSET_MAX}")
        return AtOffset(int(text))
    if (match := _MILLISECONDS.fullmatch(text)) and -(2**63) <= int(match[1]) < 2**63:
        return AtTime(int(match[1]))
    if now_ms is not None and (match := _BACK.fullmatch(text)):
        return AtTime(now_ms - int(match[1]) * _UNITS_MS[match[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        forms = "first, last, next, an offset, an ISO 8601 time, @ and milliseconds, or -1h"
        raise Misuse(f"{text[:80]!r} is not a position: use {forms}") from exc
    return _at(moment)


def as_position(value: object, *, now_ms: int) -> Position | PartOffset:
    """Return the position that a value of a program means: a number, a moment, a day, a SPEC, or a position.

    A `datetime` without a zone is in UTC, as in a SPEC, and a `date` is its first moment. Raises `Misuse` for
    anything else.
    """
    if isinstance(value, str):
        return parse_position(value, now_ms=now_ms)
    if isinstance(value, date) and value == value:  # pandas has a moment that is none
        return _at(value if isinstance(value, datetime) else datetime.combine(value, time()))
    if not isinstance(value, bool):
        with suppress(TypeError):
            value = index(value)  # type: ignore[arg-type]  # also a number of NumPy
    if _is_offset(value):
        assert isinstance(value, int)
        return AtOffset(value)
    if isinstance(value, AtEdge | AtOffset | AtTime | PartOffset):
        check_start(value)
        return value
    forms = "an offset from 0 on, a datetime or date, or a text such as 'last' or '-1h'"
    raise Misuse(f"{value!r} is not a position: use {forms}")


def position_text(position: Position | PartOffset) -> str:
    """Return a position as a person writes it: a SPEC, with the part behind it if there is one."""
    match position:
        case AtEdge():
            return position.value
        case AtOffset():
            return str(position.offset)
        case AtTime():
            return iso_of(position.timestamp_ms)
        case PartOffset():
            return f"{position.offset} of part {position.part}"


def _at(moment: datetime) -> AtTime:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # Rounded up to a whole millisecond: a chunk of the millisecond below is earlier than this moment.
    return AtTime(-((_EPOCH - moment) // timedelta(milliseconds=1)))


def iso_of(timestamp_ms: int) -> str:
    """Return a timestamp as ISO 8601 in UTC with milliseconds.

    Outside the years 1 to 9999: `@` and milliseconds.
    """
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return f"@{timestamp_ms}"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
