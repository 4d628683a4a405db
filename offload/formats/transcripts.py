"""Rows of bytes as rows of text: a pattern that is compared with each row, and the text of its values.

The compiled loop takes one row after the other. NumPy takes one step of all rows after the other, where the
loop is not there, and for the forms that it does not write: `FLOAT` and `BINARY`.

Invariants: both find the same rows. Every byte of a row that is found is compared, or belongs to a value, and
its texts are UTF-8.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.formats.patterns import Pattern, PatternMatch, windows_at, words_at
from offload.formats.rows import ValuePool, column_of
from offload.formats.texts import (
    TextForm,
    broken_rows,
    have_dates,
    integer_texts,
    json_strings,
    timestamp_texts,
    uuid_texts,
)
from offload.ground.loops import compiled_loops
from offload.model.record_columns import ByteColumn, Bytes, Integers

__all__ = ["Transcriber", "Transcript"]

_TEXTS: Final = (TextForm.TEXT, TextForm.ASCII)
_BY_NUMPY: Final = (TextForm.FLOAT, TextForm.BINARY)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The rows that were found, by their number; the text of each; and the text of each value in each."""

    rows: Integers
    column: ByteColumn
    values: Sequence[ValuePool]
    """Values of `TEXT` and `ASCII` are without escapes. Those of `NONE` are not here."""

    def of(self, chosen: npt.NDArray[np.bool_]) -> Transcript:
        """Return the rows that a mask chooses."""
        at = np.flatnonzero(chosen)
        column = column_of([ValuePool.of(self.column).of_rows(at)], len(at))
        return Transcript(self.rows[at], column, [value.of_rows(at) for value in self.values])


@dataclass(frozen=True, slots=True)
class Transcriber:
    """A description of rows, and of their text."""

    pattern: Pattern
    forms: Sequence[TextForm]
    """How each value of the pattern is written."""
    texts: Sequence[bytes]
    """The text before the first value, between two of them, and behind the last, as UTF-8. The ones behind a
    value of `TEXT` begin and end with ASCII, so that no character continues in the next row or value."""

    def find(self, data: Bytes, starts: Integers, stops: Integers) -> Transcript:
        """Return the rows that fit the pattern from start to stop, and whose values have a text.

        A `TEXT` that is no UTF-8 has none, nor a time outside of the years 1 to 9999, nor an infinite number.
        """
        loops = compiled_loops()
        if loops is None or any(form in _BY_NUMPY for form in self.forms):
            return self._side_by_side(data, self.pattern.find(data, starts, stops))
        found = loops.transcribe(data, starts, stops, self.pattern.loop_steps, self.forms, self.texts)
        values = [
            ValuePool(data if form in _TEXTS else found.texts, places, sizes)
            for form, places, sizes in zip(self._shown, found.places, found.sizes, strict=True)
        ]
        transcript = Transcript(found.rows, ByteColumn(found.edges, found.texts), values)
        return _without(transcript, broken_rows(transcript.column)) if found.beyond.any() else transcript

    @property
    def _shown(self) -> list[TextForm]:
        return [form for form in self.forms if form is not TextForm.NONE]

    def _side_by_side(self, data: Bytes, match: PatternMatch) -> Transcript:
        count, good = len(match.rows), np.ones(len(match.rows), np.bool_)
        values = [
            _values(data, form, step.width, places, sizes, good)
            for form, step, places, sizes in zip(
                self.forms, self.pattern.values, match.places, match.sizes, strict=True
            )
        ]
        column = self._column(values, count)
        if any(form in _TEXTS for form in self.forms):
            column = self._checked(values, column, good)
        shown = [value for form, value in zip(self.forms, values, strict=True) if form is not TextForm.NONE]
        transcript = Transcript(match.rows, column, shown)
        return transcript if good.all() else transcript.of(good)

    def _checked(
        self, values: Sequence[ValuePool], column: ByteColumn, good: npt.NDArray[np.bool_]
    ) -> ByteColumn:
        """Return the column with escapes. Set `good` to False for rows that are no UTF-8."""
        if not _is_printed_ascii(column):
            good[broken_rows(column)] = False
            for form, value in zip(self.forms, values, strict=True):
                if form is TextForm.ASCII:
                    _judge_ascii(value, good)
        if not self._has_escapes(column):
            return column
        escaped = [
            _escaped(value) if form in _TEXTS else value
            for form, value in zip(self.forms, values, strict=True)
        ]
        return self._column(escaped, len(good))

    def _column(self, values: Sequence[ValuePool], count: int) -> ByteColumn:
        pieces = [piece for pair in zip(self.texts[1:], values, strict=True) for piece in reversed(pair)]
        return column_of([self.texts[0], *pieces], count)

    def _has_escapes(self, column: ByteColumn) -> bool:
        """Return True if a text has a byte that JSON escapes."""
        literals = b"".join(self.texts)
        return bool(np.count_nonzero(column.data < ord(" "))) or any(
            np.count_nonzero(column.data == byte) != literals.count(byte) * len(column) for byte in b'"\\'
        )


def _values(
    data: Bytes, form: TextForm, width: int, starts: Integers, sizes: Integers, good: npt.NDArray[np.bool_]
) -> ValuePool:
    """Return the text of a value in each row. Set `good` to False where it has none."""
    match form:
        case TextForm.TEXT | TextForm.ASCII | TextForm.RAW:
            return ValuePool(data, starts, sizes)
        case TextForm.NONE:
            return ValuePool(data, starts, np.zeros_like(sizes))
        case TextForm.BINARY:
            values = [
                b'{"encoding":"base64","value":"%s"}' % base64.b64encode(data[start : start + size].tobytes())
                for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
            ]
            return ValuePool.of(ByteColumn.of(values))
        case TextForm.UUID:
            raw = windows_at(data, starts, width)
            return uuid_texts(np.frombuffer(raw.tobytes(), np.uint8).reshape(-1, width))
        case TextForm.FLOAT:
            floats = words_at(data, f">f{width}")[starts]
            good &= np.isfinite(floats)
            with np.errstate(invalid="ignore"):  # the cast of a NaN may warn
                numbers = floats.astype(np.float64).tolist()
            return ValuePool.of(ByteColumn.of([repr(number).encode() for number in numbers]))
        case TextForm.TIME_MS:
            times = words_at(data, f">i{width}")[starts].astype(np.int64)
            good &= have_dates(times)
            return timestamp_texts(times)
        case TextForm.SIGNED:
            return integer_texts(words_at(data, f">i{width}")[starts].astype(np.int64))
        case TextForm.UNSIGNED:
            return integer_texts(words_at(data, f">u{width}")[starts].astype(np.uint64))


def _is_printed_ascii(column: ByteColumn) -> bool:
    # As signed numbers, control characters and what is beyond ASCII are below all others.
    return not np.count_nonzero(column.data.view(np.int8) < ord(" "))


def _judge_ascii(values: ValuePool, good: npt.NDArray[np.bool_]) -> None:
    """Set `good` to False for rows whose value is not ASCII alone."""
    column = column_of([values], len(good))
    beyond = np.flatnonzero(column.data >= 0x80)
    good[np.searchsorted(column.offsets, beyond, side="right") - 1] = False


def _escaped(values: ValuePool) -> ValuePool:
    """Return texts as JSON has them between quotes."""
    strings = ValuePool.of(json_strings(values))
    return ValuePool(strings.data, strings.starts + 1, strings.sizes - 2)


def _without(transcript: Transcript, rows: Integers) -> Transcript:
    if not len(rows):
        return transcript
    good = np.ones(len(transcript.rows), np.bool_)
    good[rows] = False
    return transcript.of(good)
