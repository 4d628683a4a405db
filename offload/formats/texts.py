"""Texts of many values at once: integers, timestamps, UUIDs and JSON strings, as pools and columns.

Each function returns what the Python function of its docstring returns for one value after the other.
"""

from __future__ import annotations

from binascii import b2a_base64
from enum import IntEnum
from json.encoder import encode_basestring
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from offload.formats.rows import RowBuilder, ValuePool, column_of
from offload.ground.loops import Loops, compiled_loops
from offload.model.position import iso_of
from offload.model.record_columns import ByteColumn, Integers

__all__ = [
    "TextForm",
    "broken_rows",
    "have_dates",
    "integer_texts",
    "json_strings",
    "odd_rows",
    "timestamp_texts",
    "uuid_texts",
]


class TextForm(IntEnum):
    """How a value is written as text. The numbers are those of `loops.c`."""

    TEXT = 0
    """As JSON has it between quotes."""
    ASCII = 1
    """The same, for bytes that must be ASCII."""
    SIGNED = 2
    UNSIGNED = 3
    TIME_MS = 4
    """As ISO 8601, from milliseconds since 1970."""
    UUID = 5
    RAW = 6
    """As it is. A row with such values has none of `TEXT` and `ASCII`."""
    NONE = 7
    """Not at all."""
    FLOAT = 8
    """As JSON has a finite number."""
    BINARY = 9
    """As an object of JSON with the value in base64."""


_GROUP: Final = 10_000
_DIGITS: Final = np.array([b"%04d" % number for number in range(_GROUP)]).view(np.uint8).reshape(-1, 4)
_POWERS: Final = np.array([10**power for power in range(20)], np.uint64)

_DAY_MS: Final = 86_400_000
_FIRST_MS: Final = -62_135_596_800_000
_END_MS: Final = 253_402_300_800_000
"""The first millisecond of year 1 and of year 10000."""

_DAYS_MAX: Final = 1000
_TIMESTAMP: Final = np.dtype([("date", "V11"), ("minute", "V6"), ("second", "V3"), ("ms", "V4")])
_MINUTES: Final = np.array([b"%02d:%02d:" % divmod(minute, 60) for minute in range(1440)]).view("V6")
_SECONDS: Final = np.array([b"%02d." % second for second in range(60)]).view("V3")
_MS: Final = np.array([b"%03dZ" % ms for ms in range(1000)]).view("V4")

_HEX: Final = np.array([b"%02x" % number for number in range(256)]).view(np.uint8).reshape(-1, 2)
_UUID_PARTS: Final = ((0, 0, 4), (9, 4, 6), (14, 6, 8), (19, 8, 10), (24, 10, 16))
"""Position in the text, and the bytes whose digits are there."""

_QUOTE, _BACKSLASH, _FIRST_PRINTED, _FIRST_BEYOND_ASCII = 0x22, 0x5C, 0x20, 0x80
_PADDING: Final = ord("=")
_NO_ROWS: Final = np.zeros(0, np.int64)


def integer_texts(values: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> ValuePool:
    """Return `str` of each."""
    form = TextForm.UNSIGNED if values.dtype == np.uint64 else TextForm.SIGNED
    found = _by_loop(values, form)
    return _integers_by_numpy(values) if found is None else found


def _integers_by_numpy(values: npt.NDArray[np.int64] | npt.NDArray[np.uint64]) -> ValuePool:
    negative = values < 0
    # The magnitude of the smallest integer has no signed form.
    magnitude = values.astype(np.uint64)
    if negative.any():
        magnitude = np.where(negative, ~magnitude + np.uint64(1), magnitude)
    largest = int(magnitude.max(initial=0))
    sizes = np.ones(len(values), np.int64)
    for power in range(1, len(str(largest))):
        sizes += magnitude >= _POWERS[power]
    groups = (len(str(largest)) + 3) // 4
    width = 4 * groups + 1
    texts = np.empty((len(values), width), np.uint8)
    for group in range(groups, 0, -1):
        if group > 1:
            above = magnitude // np.uint64(_GROUP)
            magnitude, rest = above, magnitude - above * np.uint64(_GROUP)
        else:
            rest = magnitude
        texts[:, 4 * group - 3 : 4 * group + 1] = _DIGITS[rest.astype(np.intp)]
    if negative.any():
        rows = np.flatnonzero(negative)
        texts[rows, width - 1 - sizes[rows]] = ord("-")
        sizes += negative
    return ValuePool(texts.ravel(), np.arange(1, len(values) + 1) * width - sizes, sizes)


def timestamp_texts(values_ms: Integers) -> ValuePool:
    """Return `iso_of` of each."""
    if not len(values_ms):
        return ValuePool(np.zeros(0, np.uint8), _NO_ROWS, _NO_ROWS)
    found = _by_loop(values_ms, TextForm.TIME_MS)
    return _timestamps_by_numpy(values_ms) if found is None else found


def have_dates(values_ms: Integers) -> npt.NDArray[np.bool_]:
    """Return which timestamps are in the years 1 to 9999."""
    return (values_ms >= _FIRST_MS) & (values_ms < _END_MS)


def _by_loop(values: npt.NDArray[Any], form: TextForm) -> ValuePool | None:
    """Return the text of each number; None if there is no loop, or a number has no text in this form."""
    loops = compiled_loops()
    if loops is None:
        return None
    octets, starts = values.astype(f">{values.dtype.kind}8").view(np.uint8), np.arange(len(values)) * 8
    found = loops.transcribe(octets, starts, starts + 8, [(8, False)], [form], [b"", b""])
    return ValuePool.of(ByteColumn(found.edges, found.texts)) if len(found.rows) == len(values) else None


def _timestamps_by_numpy(values_ms: Integers) -> ValuePool:
    # Timestamps of messages repeat: equal ones in a row share a text.
    begins = np.flatnonzero(np.concatenate([[True], values_ms[1:] != values_ms[:-1]]))
    distinct = values_ms[begins]
    runs = np.diff(np.append(begins, len(values_ms)))
    if not have_dates(distinct).all():
        pool = ValuePool.of(ByteColumn.of([iso_of(value).encode() for value in distinct.tolist()]))
    else:
        texts = _dates(distinct)
        size = _TIMESTAMP.itemsize
        pool = ValuePool(texts.view(np.uint8), np.arange(len(distinct)) * size, np.full(len(distinct), size))
    return ValuePool(pool.data, np.repeat(pool.starts, runs), np.repeat(pool.sizes, runs))


def _dates(values_ms: Integers) -> npt.NDArray[np.void]:
    """Return the texts of timestamps in the years 1 to 9999."""
    days = values_ms // _DAY_MS
    of_day = values_ms - days * _DAY_MS
    seconds = of_day // 1000
    minutes = seconds // 60
    texts = np.empty(len(values_ms), _TIMESTAMP)
    first, last = int(days.min()), int(days.max())
    if last - first < len(days) + _DAYS_MAX:  # mostly there are few days, and each is formatted once
        texts["date"] = _days(np.arange(first, last + 1))[days - first]
    else:
        texts["date"] = _days(days)
    texts["minute"] = _MINUTES[minutes]
    texts["second"] = _SECONDS[seconds - minutes * 60]
    texts["ms"] = _MS[of_day - seconds * 1000]
    return texts


def _days(days: Integers) -> npt.NDArray[np.void]:
    dates = days.astype("M8[D]")
    months = dates.astype("M8[M]")
    month = months.astype(np.int64) + 1970 * 12
    texts = np.empty((len(days), 11), np.uint8)
    texts[:] = np.frombuffer(b"0000-00-00T", np.uint8)
    texts[:, 0:4] = _DIGITS[month // 12]
    texts[:, 5:7] = _DIGITS[month % 12 + 1, 2:]
    texts[:, 8:10] = _DIGITS[(dates - months.astype("M8[D]")).astype(np.int64) + 1, 2:]
    found: npt.NDArray[np.void] = texts.view("V11")[:, 0]
    return found


def uuid_texts(values: npt.NDArray[np.uint8]) -> ValuePool:
    """Return `str` of the UUID that each row of 16 bytes is."""
    texts = np.full((len(values), 36), ord("-"), np.uint8)
    digits = _HEX[values].reshape(len(values), 32)
    for place, first, end in _UUID_PARTS:
        texts[:, place : place + 2 * (end - first)] = digits[:, 2 * first : 2 * end]
    return ValuePool(texts.ravel(), np.arange(len(values)) * 36, np.full(len(values), 36))


def json_strings(values: ValuePool) -> ByteColumn:
    """Return `value_text` of each."""
    count = len(values.starts)
    if not count:
        return ByteColumn(np.zeros(1, np.int64), np.zeros(0, np.uint8))
    loops = compiled_loops()
    strings, odd, binary = _quoted_by_numpy(values) if loops is None else _quoted_by_loop(loops, values)
    if not len(odd):
        return strings
    builder = RowBuilder(count)
    builder.add(binary, [b'"', ValuePool.of(_base64(values.of_rows(binary))), b'","encoding":"base64"'])
    escaped = np.setdiff1d(odd, binary, assume_unique=True)
    texts = ByteColumn.of([_json_string(value) for value in _listed(values.of_rows(escaped))])
    builder.add(escaped, [ValuePool.of(texts)])
    plain = np.setdiff1d(np.arange(count), odd, assume_unique=True)
    if len(plain):
        builder.add(plain, [ValuePool.of(strings).of_rows(plain)])
    return builder.column()


def _quoted_by_loop(loops: Loops, values: ValuePool) -> tuple[ByteColumn, Integers, Integers]:
    """Return values as JSON strings, the rows that have another text, and which of these are no UTF-8."""
    edges, quoted, is_broken = loops.quote(values.data, values.starts, values.sizes)
    broken = np.flatnonzero(is_broken)
    return ByteColumn(edges, quoted), broken, broken


def _quoted_by_numpy(values: ValuePool) -> tuple[ByteColumn, Integers, Integers]:
    """As `_quoted_by_loop`."""
    # A separator that JSON would escape is not in the values, if they are plain.
    lines = _lines(values)
    odd = odd_rows(lines, controls=2)
    if not len(odd):
        return _quoted(lines), odd, odd
    sizes = values.sizes.copy()
    sizes[odd] = 0
    lines = _lines(ValuePool(values.data, values.starts, sizes))
    return _quoted(lines), odd, odd[broken_rows(_lines(values.of_rows(odd)))]


def _lines(values: ValuePool) -> ByteColumn:
    return column_of([b"\n", values, b"\n"], len(values.starts))


def odd_rows(column: ByteColumn, *, controls: int = 0) -> Integers:
    """Return the rows that are no UTF-8, or have another number of control characters.

    The rows of `column` must end with ASCII, so that a character cannot begin in one and end in the next.
    """
    data = column.data
    # As signed numbers, control characters and what is beyond ASCII are below all others.
    if np.count_nonzero(data.view(np.int8) < _FIRST_PRINTED) == controls * len(column):
        return _NO_ROWS
    places = np.flatnonzero(data < _FIRST_PRINTED)
    rows = np.searchsorted(column.offsets, places, side="right") - 1
    found = np.flatnonzero(np.bincount(rows, minlength=len(column)) != controls)
    return np.union1d(found, broken_rows(column))


def broken_rows(column: ByteColumn) -> Integers:
    """Return the rows that are no UTF-8. The rows of `column` must end with ASCII, as in `odd_rows`."""
    beyond = np.flatnonzero(column.data >= _FIRST_BEYOND_ASCII)
    raw, edges = column.data.tobytes(), column.offsets
    if not len(beyond) or _is_utf8(raw):
        return _NO_ROWS
    rows = np.unique(np.searchsorted(edges, beyond, side="right") - 1)
    broken = [row for row in rows.tolist() if not _is_utf8(raw[edges[row] : edges[row + 1]])]
    return np.array(broken, np.int64)


def _quoted(lines: ByteColumn) -> ByteColumn:
    r"""Return plain values, each between two `\n`, as JSON strings."""
    raw = bytearray(lines.data)
    if b"\\" in raw:
        raw = raw.replace(b"\\", b"\\\\")
    escaped = np.frombuffer(raw.replace(b'"', b'\\"'), np.uint8)
    separators = np.flatnonzero(escaped == ord("\n"))
    escaped[separators] = _QUOTE
    offsets = np.zeros(len(lines) + 1, np.int64)
    offsets[1:] = separators[1::2] + 1
    return ByteColumn(offsets, escaped)


def _json_string(value: bytes) -> bytes:
    return encode_basestring(value.decode()).encode()


def _base64(values: ValuePool) -> ByteColumn:
    """Return each value in base64, by one call for all: each gets zeros up to a multiple of three bytes."""
    count, missing = len(values.sizes), -values.sizes % 3
    zeros = ValuePool(np.zeros(2, np.uint8), np.zeros(count, np.int64), missing)
    filled = column_of([values, zeros], count)
    texts = np.frombuffer(bytearray(b2a_base64(filled.data.data, newline=False)), np.uint8)
    edges = filled.offsets // 3 * 4
    for zero in (1, 2):  # the characters that come of zeros alone
        texts[edges[1:][missing >= zero] - zero] = _PADDING
    return ByteColumn(edges, texts)


def _listed(pool: ValuePool) -> list[bytes]:
    return [
        pool.data[start : start + size].tobytes()
        for start, size in zip(pool.starts.tolist(), pool.sizes.tolist(), strict=True)
    ]


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
