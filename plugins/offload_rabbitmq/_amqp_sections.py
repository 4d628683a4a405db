"""The search for the sections of AMQP messages, for all messages of a block side by side.

Most messages of a block have the same sections, in the same encodings. So the sections of one are a pattern
that is compared with all. What fits none of the first patterns is stepped through, a section of all messages
at a time.

Invariant: `plain` is True only for a record whose sections fill it exactly, each at most once and in one of
the usual encodings, with one data section, or one text or binary value, or no body. Their content is not
checked. Every other record is left to `amqp.decode`, which also reports its damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.formats.patterns import Pattern, PatternStep, PatternValue, words_at
from offload.formats.texts import TextForm
from offload.formats.transcripts import Transcriber
from offload.model.record_columns import ByteColumn, Bytes, Integers, RecordBytes

__all__ = ["DATA", "FOUND_SECTIONS", "VALUE", "SectionSpans", "bodies_alike", "section_places"]

Mask: TypeAlias = npt.NDArray[np.bool_]

HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, VALUE, FOOTER = (
    0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x77, 0x78,
)  # fmt: skip
FOUND_SECTIONS: Final = (HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, FOOTER)
"""The sections beside the body."""

_LISTS, _MAPS = (0xC0, 0xD0), (0xC1, 0xD1)
_CODES: Final = (
    dict.fromkeys((HEADER, PROPERTIES), (*_LISTS, 0x45))
    | {
        DATA: (0xA0, 0xB0),
        VALUE: (0xA0, 0xB0, 0xA1, 0xB1),
    }
    | dict.fromkeys((DELIVERY, ANNOTATIONS, APPLICATION, FOOTER), _MAPS)
)
_WIDTHS: Final = {0x45: 0, 0xA0: 1, 0xA1: 1, 0xC0: 1, 0xC1: 1, 0xB0: 4, 0xB1: 4, 0xD0: 4, 0xD1: 4}
_TEXTS: Final = (0xA1, 0xB1)
_HEADS: Final = {
    0x0053_0000 | section << 8 | code: (section, _WIDTHS[code])
    for section, codes in _CODES.items()
    for code in codes
}
"""The four bytes with which a section begins, as an integer: its descriptor, and the width of its size."""

_HEAD_SIZE_BYTES: Final = 4
_PATTERNS_MAX: Final = 4
"""The patterns of a block. Each is tried on what the ones before it left."""

_STEPS_MAX: Final = len(FOUND_SECTIONS) + 1
_HEADS_MAX: Final = 8
"""The most kinds of sections in one step. A record that begins another kind is not plain."""


@dataclass(slots=True)
class SectionSpans:
    """The sections of a block of records. A section that a record does not have begins and ends at 0."""

    plain: Mask
    starts: dict[int, Integers]
    """By section: the position of the section's first byte, in each record."""
    ends: dict[int, Integers]
    codes: dict[int, Bytes]
    """By section: the constructor of its value."""
    bodies: Integers
    """The position of the body's content, of each plain record."""
    body_sizes: Integers
    has_body: Mask
    is_value: Mask
    """The body is a value."""
    is_text: Mask
    """The body is a value that must be UTF-8."""
    are_alike: bool = False
    """All records have the same sections, in the same encodings."""


def section_places(records: RecordBytes) -> SectionSpans:
    """Return where the sections of these records are."""
    count, data = len(records), records.data
    found = SectionSpans(
        np.zeros(count, np.bool_), {}, {}, {}, *np.zeros((2, count), np.int64), *np.zeros((3, count), bool)
    )
    words = words_at(data, ">u4")
    rows = _by_patterns(found, records)
    if rows is not None and not len(rows):
        return found
    at, stops = records.starts, records.starts + records.sizes
    if rows is not None:
        at, stops = at[rows], stops[rows]
    for _ in range(_STEPS_MAX + 1):
        # A section has at least its head. The size behind it is read as four bytes: not at the very end.
        ahead = at + _HEAD_SIZE_BYTES <= stops
        if not ahead.all():
            rows, at, stops = _kept(rows, at, stops, ahead)
        if not len(at):
            break
        heads = words[at]
        stepped = _stepped(found, data, words, rows, at, stops, heads)
        rows, at, stops = stepped
        done = at == stops
        if done.any():
            found.plain[done if rows is None else rows[done]] = True
            rows, at, stops = _kept(rows, at, stops, ~done)
        if not len(at):
            break
    return found


_Head: TypeAlias = tuple[int, int, int]
"""A section, the constructor of its value, and the width of its size."""


def bodies_alike(records: RecordBytes) -> ByteColumn | None:
    """Return the bodies of records that all have the sections of the first one, with one data section.

    None if they have not. Records that are found are plain, and nothing else of them is needed.
    """
    heads = _heads_of(records.at(0)) if len(records) else None
    if heads is None or all(section != DATA for section, _, _ in heads):
        return None
    forms = [TextForm.RAW if section == DATA else TextForm.NONE for section, _, width in heads if width]
    transcriber = Transcriber(Pattern(_steps_of(heads)), forms, [b""] * (len(forms) + 1))
    found = transcriber.find(records.data, records.starts, records.starts + records.sizes)
    return found.column if len(found.rows) == len(records) else None


def _steps_of(heads: Sequence[_Head]) -> list[PatternStep]:
    steps = list[PatternStep]()
    for section, code, width in heads:
        steps.append(bytes((0x00, 0x53, section, code)))
        if width:
            steps.append(PatternValue(width, is_sized=True))
    return steps


def _by_patterns(found: SectionSpans, records: RecordBytes) -> Integers | None:
    """Note the sections of records that are like the first of them. Return the rows that are left."""
    rows: Integers | None = None
    for _ in range(_PATTERNS_MAX):
        if not len(records if rows is None else rows):
            break
        heads = _heads_of(records.at(0 if rows is None else int(rows[0])))
        if heads is None:
            break
        starts = records.starts if rows is None else records.starts[rows]
        stops = starts + (records.sizes if rows is None else records.sizes[rows])
        match = Pattern(_steps_of(heads)).find(records.data, starts, stops)
        is_all = rows is None and len(match.rows) == len(records)
        where = slice(None) if is_all else match.rows if rows is None else rows[match.rows]
        at, values = starts if is_all else starts[match.rows], zip(match.places, match.sizes, strict=True)
        for section, code, width in heads:
            content, sizes = next(values) if width else (at + _HEAD_SIZE_BYTES, np.zeros_like(at))
            _set(found, where, section, code, at, content, sizes)
            at = content + sizes
        found.plain[where] = True
        if is_all:
            found.are_alike = True
            return match.rows[:0]
        rows = np.delete(np.arange(len(records)) if rows is None else rows, match.rows)
    return rows


def _heads_of(record: bytes) -> list[_Head] | None:
    """Return the sections of a record; None if it is not plain."""
    heads, at, seen = list[_Head](), 0, set[int]()
    while at + _HEAD_SIZE_BYTES <= len(record):
        section, width = _HEADS.get(int.from_bytes(record[at : at + _HEAD_SIZE_BYTES], "big"), (0, 0))
        kind = DATA if section == VALUE else section
        if not section or kind in seen:
            return None
        seen.add(kind)
        heads.append((section, record[at + _HEAD_SIZE_BYTES - 1], width))
        at += _HEAD_SIZE_BYTES
        at += width + int.from_bytes(record[at : at + width], "big")
    return heads if heads and at == len(record) else None


def _stepped(
    found: SectionSpans,
    data: Bytes,
    words: npt.NDArray[np.uint64],
    rows: Integers | None,
    at: Integers,
    stops: Integers,
    heads: npt.NDArray[np.uint64],
) -> tuple[Integers | None, Integers, Integers]:
    """Note the section at `at` of each row. Return the rows that are still plain, with their next section."""
    if (heads == heads[0]).all():  # as in most streams
        return _noted(found, data, words, rows, at, stops, int(heads[0]))
    steps = []
    left = np.arange(len(at))
    for _ in range(_HEADS_MAX):
        same = heads[left] == heads[left[0]]
        group = left[same]
        of = group if rows is None else rows[group]
        steps.append(_noted(found, data, words, of, at[group], stops[group], int(heads[group[0]])))
        left = left[~same]
        if not len(left):
            break
    joined = [np.concatenate(each) for each in zip(*steps, strict=True)]
    return joined[0], joined[1], joined[2]


def _noted(
    found: SectionSpans,
    data: Bytes,
    words: npt.NDArray[np.uint64],
    rows: Integers | None,
    at: Integers,
    stops: Integers,
    head: int,
) -> tuple[Integers | None, Integers, Integers]:
    section, width = _HEADS.get(head, (0, 0))
    nothing = np.zeros(0, np.int64)
    if not section:
        return nothing, nothing, nothing
    content = at + _HEAD_SIZE_BYTES + width
    inside = content <= stops
    if not inside.all():
        rows, at, stops = _kept(rows, at, stops, inside)
        content = content[inside]
        if not len(at):
            return nothing, nothing, nothing
    if width == 0:
        sizes = np.zeros(len(at), np.int64)
    elif width == 1:
        sizes = data[at + _HEAD_SIZE_BYTES].astype(np.int64)
    else:
        sizes = words[at + _HEAD_SIZE_BYTES].astype(np.int64)
    ends = content + sizes
    inside = ends <= stops
    where: Integers | slice = slice(None) if rows is None else rows
    if section in (DATA, VALUE):
        inside &= ~found.has_body[where]
    elif section in found.starts:
        inside &= found.ends[section][where] == 0
    if not inside.all():
        rows, at, stops = _kept(rows, at, stops, inside)
        content, sizes, ends = content[inside], sizes[inside], ends[inside]
        where = slice(None) if rows is None else rows
    _set(found, where, section, head & 0xFF, at, content, sizes)
    return rows, ends, stops


def _set(
    found: SectionSpans,
    where: Integers | slice,
    section: int,
    code: int,
    at: Integers,
    content: Integers,
    sizes: Integers,
) -> None:
    """Note a section of some records: where it begins, and its content."""
    if section in (DATA, VALUE):
        found.bodies[where], found.body_sizes[where], found.has_body[where] = content, sizes, True
        found.is_value[where] = section == VALUE
        found.is_text[where] = code in _TEXTS
        return
    if section not in found.starts:
        count = len(found.plain)
        found.starts[section], found.ends[section] = np.zeros((2, count), np.int64)
        found.codes[section] = np.zeros(count, np.uint8)
    found.starts[section][where], found.ends[section][where] = at, content + sizes
    found.codes[section][where] = code


def _kept(
    rows: Integers | None, at: Integers, stops: Integers, keep: Mask
) -> tuple[Integers, Integers, Integers]:
    chosen = np.flatnonzero(keep)
    return (chosen if rows is None else rows[chosen]), at[chosen], stops[chosen]
