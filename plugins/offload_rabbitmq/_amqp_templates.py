"""Templates of sections: what is the same in the sections of many messages, and where their values differ.

Programs write the same fields again and again. So a template is learned from a few sections of a block:
which constructors and map keys follow each other, and which values are the same in all of these. Then all
sections of the block are compared with it, and the ones that fit are written as JSON (`formats.transcripts`).
No section is guessed: every byte of it is compared with the template, or belongs to a value of a known kind,
and its size must fit.

A section with a text that is no UTF-8 does not fit.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.formats.patterns import Pattern, PatternValue
from offload.formats.rows import RowPiece
from offload.formats.texts import TextForm
from offload.formats.transcripts import Transcriber, Transcript
from offload.model.record_columns import ByteColumn, Bytes, Integers
from offload_rabbitmq._amqp_json import to_jsonable
from offload_rabbitmq._amqp_sections import ANNOTATIONS, APPLICATION, PROPERTIES
from offload_rabbitmq.amqp import PROPERTY_NAMES, AmqpMessage

__all__ = ["ROUTING_KEY", "SectionMatch", "Template", "as_bytes", "compact_json", "key_in", "learned"]

ROUTING_KEY: Final = "x-routing-key"
"""The message annotation in which the broker keeps the routing key of AMQP 0.9.1 clients."""

_SUBJECT: Final = "subject"
_DESCRIBED: Final = 0x00
_HEAD_SIZE_BYTES: Final = 4
_TEXTS_SIZE_BYTES_MAX: Final = 4096
"""The most bytes of text that a template has beside its values. Each row that is tried has room for them."""
_SIZES: Final = (0, 1, 2, 4, 8, 16)
"""The bytes of a value whose constructor is 0x4., 0x5., and so on to 0x9."""

_FORMS: Final = (
    dict.fromkeys((0x50, 0x52, 0x53, 0x60, 0x70, 0x80), TextForm.UNSIGNED)
    | dict.fromkeys((0x51, 0x54, 0x55, 0x61, 0x71, 0x81), TextForm.SIGNED)
    | dict.fromkeys((0x72, 0x82), TextForm.FLOAT)
    | dict.fromkeys((0xA1, 0xB1), TextForm.TEXT)
    | dict.fromkeys((0xA3, 0xB3), TextForm.ASCII)
    | dict.fromkeys((0xA0, 0xB0), TextForm.BINARY)
    | {0x83: TextForm.TIME_MS, 0x98: TextForm.UUID}
)
"""The constructors of values that may differ between the sections of a template, and how each is written."""

_TEXTS: Final = (0xA1, 0xB1, 0xA3, 0xB3)
_QUOTED: Final = (*_TEXTS, 0x83, 0x98)

Slot: TypeAlias = bytes | int | None
"""The text of a value: the same in all sections, or that of the field of this number. None is no value."""


def compact_json(value: Any) -> bytes:
    """Return a section as its column has it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def as_bytes(value: Any) -> bytes:
    """Return a value that is ready for JSON as a key or a header: text as UTF-8, everything else as JSON."""
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()


def key_in(section: int, fields: Mapping[str, Any]) -> tuple[bool, bytes | None]:
    """Return True if this section decides about the key, and the key."""
    name = {ANNOTATIONS: ROUTING_KEY, PROPERTIES: _SUBJECT}.get(section)
    if name is None or name not in fields:
        return False, None
    return True, None if fields[name] is None else as_bytes(fields[name])


@dataclass(frozen=True, slots=True)
class SectionMatch:
    """The sections of some rows, which fit one template."""

    rows: Integers
    template: Template
    found: Transcript

    @property
    def json(self) -> ByteColumn:
        """The sections as JSON."""
        return self.found.column

    def piece(self, slot: bytes | int) -> RowPiece:
        """Return the text of a value in each row."""
        return slot if isinstance(slot, bytes) else self.found.values[slot]

    def of(self, chosen: npt.NDArray[np.bool_]) -> SectionMatch:
        """Return the rows that a mask chooses."""
        return SectionMatch(self.rows[chosen], self.template, self.found.of(chosen))


@dataclass(frozen=True, slots=True)
class Template:
    """The common part of the sections of many messages."""

    code: int
    """The constructor of the section's value: a list or a map."""
    structure: tuple[object, ...]
    variable: frozenset[int]
    """Which values differ, by their index among the values."""
    transcriber: Transcriber
    """The content of the section behind its size, and its JSON. Values are fields, by their number."""
    has_key: bool
    key: Slot
    headers: Sequence[tuple[bytes, bytes | int]]

    def match(
        self, data: Bytes, rows: Integers, starts: Integers, ends: Integers, codes: Bytes
    ) -> SectionMatch | None:
        """Return the rows whose sections fit; None if none does. All arguments but `data` are by row."""
        width = 4 if self.code >= 0xD0 else 0 if self.code == 0x45 else 1
        alike = codes == self.code
        if not alike.all():
            rows, starts, ends = rows[alike], starts[alike], ends[alike]
        found = self.transcriber.find(data, starts + (_HEAD_SIZE_BYTES + width), ends)
        if not len(found.rows):
            return None
        return SectionMatch(rows if len(found.rows) == len(rows) else rows[found.rows], self, found)


def learned(
    section: int, samples: Sequence[tuple[bytes, AmqpMessage]], known: Mapping[object, Template]
) -> Template | None:
    """Return a template for most of these sections, which `amqp.decode` has accepted.

    A value that differs in a known template of the same structure may differ here as well.
    """
    found = [(read, message) for raw, message in samples if (read := _read(section, raw)) is not None]
    if not found:
        return None
    structure = Counter(read.structure for read, _ in found).most_common(1)[0][0]
    alike = [(read, message) for read, message in found if read.structure == structure]
    first, message = alike[0]
    before = known.get(structure)
    variable = set(before.variable if before is not None else ())
    for number, value in enumerate(first.values):
        if any(read.values[number] != value for read, _ in alike):
            if value[0] not in _FORMS:
                return None
            variable.add(number)
    template = _template(section, first, message, frozenset(variable))
    is_large = sum(map(len, template.transcriber.texts)) > _TEXTS_SIZE_BYTES_MAX
    return None if is_large else template


@dataclass(frozen=True, slots=True)
class _Read:
    """A section, cut into its values."""

    structure: tuple[object, ...]
    count: bytes
    keys: Sequence[bytes]
    """The encoded keys of a map; nothing for a list."""
    values: Sequence[bytes]
    """The encoded values."""


def _read(section: int, raw: bytes) -> _Read | None:
    """Cut a section that was accepted. Return None if its map has keys that are no plain text."""
    code = raw[3]
    if code == 0x45:
        return _Read((code,), b"", (), ())
    width = 4 if code >= 0xD0 else 1
    at = _HEAD_SIZE_BYTES + width
    count, at = raw[at : at + width], at + width
    parts = []
    while at < len(raw):
        end = _end_of(raw, at)
        parts.append(raw[at:end])
        at = end
    if code in (0xC0, 0xD0):
        return _Read((code, count, *(part[0] for part in parts)), count, (), parts)
    keys, values = parts[::2], parts[1::2]
    if not all(key[0] in _TEXTS for key in keys):
        return None
    return _Read((code, count, *keys, *(value[0] for value in values)), count, keys, values)


def _end_of(raw: bytes, at: int) -> int:
    """Return where a value ends that was accepted, so its sizes are right."""
    code = raw[at]
    if code == _DESCRIBED:
        return _end_of(raw, _end_of(raw, at + 1))
    if code < 0xA0:
        return at + 1 + _SIZES[(code >> 4) - 4]
    width = 4 if code >> 4 in (0xB, 0xD, 0xF) else 1
    return at + 1 + width + int.from_bytes(raw[at + 1 : at + 1 + width], "big")


def _template(section: int, read: _Read, message: AmqpMessage, variable: frozenset[int]) -> Template:
    fields = _fields_of(section, message)
    steps: list[bytes | int] = [read.count]
    numbers: dict[int, int] = {}
    for number, value in enumerate(read.values):
        literal = (read.keys[number] if read.keys else b"") + (value[:1] if number in variable else value)
        steps[-1] = _bytes(steps[-1]) + literal
        if number in variable:
            numbers[number] = len(numbers)
            steps += [value[0], b""]
    if not steps[-1]:
        steps.pop()
    names = [*PROPERTY_NAMES] if section == PROPERTIES else [*fields]
    slots: dict[str, Slot] = {}
    # A section without a column is written as well, because that checks its texts.
    texts = [b""] + [b'"'] * len(numbers)
    if section in (PROPERTIES, ANNOTATIONS, APPLICATION):
        texts = [b"{"]
        jsonable = to_jsonable(fields)
        for number, name in enumerate(names[: len(read.values)]):
            if name not in jsonable:
                continue
            comma = b"," if slots else b""
            texts[-1] += comma + compact_json(name) + b":"
            if number in numbers:
                quote = b'"' if read.values[number][0] in _QUOTED else b""
                texts[-1] += quote
                texts.append(quote)
                slots[name] = numbers[number]
            else:
                texts[-1] += compact_json(jsonable[name])
                slots[name] = None if jsonable[name] is None else as_bytes(jsonable[name])
        texts[-1] += b"}"
    key_name = {ANNOTATIONS: ROUTING_KEY, PROPERTIES: _SUBJECT}.get(section, "")
    return Template(
        code=read.structure[0] if isinstance(read.structure[0], int) else 0,
        structure=read.structure,
        variable=variable,
        transcriber=Transcriber(
            Pattern([step if isinstance(step, bytes) else _value_of(step) for step in steps]),
            [_FORMS[step] for step in steps if isinstance(step, int)],
            texts,
        ),
        has_key=key_name in slots,
        key=slots.get(key_name),
        headers=[(name.encode(), as_bytes(None) if slot is None else slot) for name, slot in slots.items()]
        if section == APPLICATION
        else [],
    )


def _bytes(piece: bytes | int) -> bytes:
    assert isinstance(piece, bytes)
    return piece


def _fields_of(section: int, message: AmqpMessage) -> dict[Any, Any]:
    if section == ANNOTATIONS:
        return message.message_annotations
    return message.properties if section == PROPERTIES else message.application_properties


def _value_of(code: int) -> PatternValue:
    if code >= 0xA0:
        return PatternValue(1 if code < 0xB0 else 4, is_sized=True)
    return PatternValue(_SIZES[(code >> 4) - 4])
