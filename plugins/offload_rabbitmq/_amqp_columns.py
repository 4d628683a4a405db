"""AMQP messages by columns: each record is parsed once, and most of them side by side.

A block of records goes three ways. Each way takes what the one before it could not:

    templates    Sections that look like those of other messages (`_amqp_templates`).
    memory       A section by itself, by `amqp.decode`. What was found is kept by the bytes of the section.
    the record   The whole record, as `AmqpDecoder` decodes one record.

Invariant: the columns have what the per-message methods of `AmqpDecoder` return, for any bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from offload.contracts.decoder import Decoded
from offload.formats.rows import RowBuilder, RowPiece, ValuePool, column_of
from offload.formats.texts import broken_rows, json_strings
from offload.ground.errors import Corrupt
from offload.model.record_columns import ByteColumn, Bytes, HeaderColumn, Integers, RecordBytes
from offload.model.value_text import value_text
from offload_rabbitmq._amqp_json import to_jsonable
from offload_rabbitmq._amqp_sections import (
    ANNOTATIONS,
    APPLICATION,
    FOUND_SECTIONS,
    PROPERTIES,
    SectionSpans,
    bodies_alike,
    section_places,
)
from offload_rabbitmq._amqp_templates import SectionMatch, Template, as_bytes, compact_json, key_in, learned
from offload_rabbitmq.amqp import decode

__all__ = ["SECTION_COLUMNS", "AmqpColumns"]

SECTION_COLUMNS: Final = {
    "properties": PROPERTIES, "application_properties": APPLICATION, "annotations": ANNOTATIONS,
}  # fmt: skip

BLOCK_ROWS: Final = 16384
"""Records that are parsed side by side. More of them, with their columns, would not stay in the cache."""

TEMPLATES_MAX: Final = 16
"""Templates that are kept for each kind of section. Each is tried on what the ones before it left."""

LEARN_MIN: Final = 32
"""With fewer sections left, no template is learned: each is decoded by itself."""

LEARNED_MAX: Final = 3
"""Templates that are learned for one kind of section from one block."""

SAMPLES: Final = 24
"""Sections of a block from which a template is learned."""

MEMORY_SIZE_BYTES_MAX: Final = 4 * 2**20
"""The most bytes of single sections that are kept. Beyond it all are dropped, so hostile input costs time."""

_KEPT_SIZE_BYTES_MAX: Final = 4096
_ENTRY_SIZE_BYTES: Final = 1000
"""The objects of an entry that is kept, beside its bytes. Estimated."""

_EMPTY_JSON: Final = b"{}"


class _Single(NamedTuple):
    """A section that was decoded by itself."""

    json: bytes
    has_key: bool
    key: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass(slots=True)
class _Sections:
    """The sections of one kind in a block."""

    matches: list[SectionMatch]
    single_rows: list[int]
    singles: list[_Single]
    damaged: list[int]
    """The rows whose section could not be decoded by itself."""


class AmqpColumns:
    """A parser of AMQP records. It keeps templates and sections between calls, within limits."""

    def __init__(
        self,
        decoded: Callable[[bytes], Decoded],
        body_of: Callable[[bytes], bytes],
        rest_of: Callable[[Decoded], tuple[bytes | None, Sequence[tuple[str, bytes]]]],
    ) -> None:
        """The functions decode one record, return its body, and its key and headers."""
        self._decoded, self._body_of, self._rest_of = decoded, body_of, rest_of
        self._templates: dict[int, dict[object, Template]] = {section: {} for section in FOUND_SECTIONS}
        self._kept: dict[bytes, _Single] = {}
        self._kept_size_bytes = 0
        self._are_alike = True
        """The records of the last block have the same sections."""

    def columns(self, records: RecordBytes, names: Sequence[str]) -> dict[str, ByteColumn | HeaderColumn]:
        """Return columns of these records, by name."""
        blocks = [
            self._block(records.between(first, first + BLOCK_ROWS), names)
            for first in range(0, max(len(records), 1), BLOCK_ROWS)
        ]
        if len(blocks) == 1:
            return blocks[0]
        found: dict[str, ByteColumn | HeaderColumn] = {}
        for name in names:
            parts = [block[name] for block in blocks]
            kind: Any = HeaderColumn if name == "headers" else ByteColumn
            found[name] = kind.joined(parts)
        return found

    def _block(self, records: RecordBytes, names: Sequence[str]) -> dict[str, ByteColumn | HeaderColumn]:
        is_body = {*names} == {"body"}
        if is_body and self._are_alike and (bodies := bodies_alike(records)) is not None:
            return {"body": bodies}
        block = _Block(self, records, names)
        self._are_alike = block.are_alike
        return block.columns()

    def sections(self, section: int, data: Bytes, places: SectionSpans, rows: Integers) -> _Sections:
        """Find what these rows have in their sections of one kind."""
        found = _Sections([], [], [], [])
        known = self._templates[section]
        for template in [*reversed(known.values())]:
            if not len(rows):
                return found
            rows = self._matched(found, section, template, data, places, rows)
        for _ in range(LEARNED_MAX):
            if len(rows) < LEARN_MIN:
                break
            new = self._learned(section, data, places, rows)
            if new is None:
                break
            known.pop(new.structure, None)
            known[new.structure] = new
            if len(known) > TEMPLATES_MAX:
                del known[next(iter(known))]
            before = len(rows)
            rows = self._matched(found, section, new, data, places, rows)
            if len(rows) == before:
                break
        starts, ends = places.starts[section][rows], places.ends[section][rows]
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
            single = self._single(section, data[start:end].tobytes())
            if single is None:
                found.damaged.append(row)
            else:
                found.single_rows.append(row)
                found.singles.append(single)
        return found

    def _matched(
        self,
        found: _Sections,
        section: int,
        template: Template,
        data: Bytes,
        places: SectionSpans,
        rows: Integers,
    ) -> Integers:
        """Return the rows that the template does not fit."""
        columns = places.starts[section], places.ends[section], places.codes[section]
        if len(rows) < len(columns[0]):
            columns = columns[0][rows], columns[1][rows], columns[2][rows]
        match = template.match(data, rows, *columns)
        if match is None:
            return rows
        found.matches.append(match)
        known = self._templates[section]
        known[template.structure] = known.pop(template.structure)  # the newest is tried first
        if len(match.rows) == len(rows):
            return rows[:0]
        return np.setdiff1d(rows, match.rows, assume_unique=True)

    def _learned(self, section: int, data: Bytes, places: SectionSpans, rows: Integers) -> Template | None:
        samples = []
        for row in rows[:: max(len(rows) // SAMPLES, 1)].tolist():
            raw = data[places.starts[section][row] : places.ends[section][row]].tobytes()
            if len(raw) > _KEPT_SIZE_BYTES_MAX:
                continue
            try:
                samples.append((raw, decode(raw)))
            except Corrupt:
                continue
        return learned(section, samples, self._templates[section])

    def _single(self, section: int, raw: bytes) -> _Single | None:
        single = self._kept.get(raw)
        if single is None:
            try:
                message = decode(raw)
            except Corrupt:
                return None
            fields = {
                PROPERTIES: message.properties,
                APPLICATION: message.application_properties,
                ANNOTATIONS: message.message_annotations,
            }.get(section, {})
            jsonable = to_jsonable(fields)
            headers = []
            if section == APPLICATION:
                headers = [(name, as_bytes(value)) for name, value in jsonable.items()]
            single = _Single(compact_json(jsonable), *key_in(section, jsonable), headers)
            if len(raw) <= _KEPT_SIZE_BYTES_MAX:
                self._keep(raw, single)
        return single

    def _keep(self, raw: bytes, single: _Single) -> None:
        self._kept_size_bytes += _ENTRY_SIZE_BYTES + 3 * (len(raw) + len(single.json))
        if self._kept_size_bytes > MEMORY_SIZE_BYTES_MAX:
            self._kept, self._kept_size_bytes = {}, 0
            return
        self._kept[raw] = single

    def whole(self, record: bytes) -> Decoded:
        """Decode a record as one message."""
        return self._decoded(record)

    def body_of(self, record: bytes) -> bytes:
        """Return the body of one record."""
        return self._body_of(record)

    def rest_of(self, decoded: Decoded) -> tuple[bytes | None, Sequence[tuple[str, bytes]]]:
        """Return key and headers of one record."""
        return self._rest_of(decoded)


class _Block:
    """The columns of one block."""

    def __init__(self, parser: AmqpColumns, records: RecordBytes, names: Sequence[str]) -> None:
        self._parser, self._records, self._names = parser, records, names
        self._count, self._data = len(records), records.data
        self._places = section_places(records)
        self._raw = self._is_raw()
        """Records that cannot be messages, because they do not begin as one."""

    @property
    def are_alike(self) -> bool:
        """Return True if all records have the same sections."""
        return self._places.are_alike

    def columns(self) -> dict[str, ByteColumn | HeaderColumn]:
        places = self._places
        needs_sections = {*self._names} != {"body"}
        good = places.plain.copy()
        self._found: dict[int, _Sections] = {}
        checked = good if needs_sections else good & (places.is_value | ~places.has_body)
        if checked.any():
            self._check(checked, good)
        slow = np.flatnonzero(~(good | self._raw))
        self._good, self._slow, self._is_good = good, slow, len(slow) == 0 and not self._raw.any()
        self._slow_records = [self._records.at(row) for row in slow.tolist()]
        self._slow_decoded = (
            [self._parser.whole(record) for record in self._slow_records] if needs_sections else []
        )
        self._slow_rest = [self._parser.rest_of(each) for each in self._slow_decoded]
        return {name: self._column(name) for name in self._names}

    def _is_raw(self) -> npt.NDArray[np.bool_]:
        rows = np.flatnonzero(~self._places.plain)
        raw = np.zeros(self._count, np.bool_)
        raw[rows] = self._records.sizes[rows] == 0
        if len(rows) and len(self._data):
            raw[rows] |= self._data[np.minimum(self._records.starts[rows], len(self._data) - 1)] != 0
        return raw

    def _check(self, checked: npt.NDArray[np.bool_], good: npt.NDArray[np.bool_]) -> None:
        """Parse all sections of some rows. Set `good` to False for those that are damaged."""
        places = self._places
        texts = np.flatnonzero(checked & places.is_text)
        if len(texts):
            pool = ValuePool(self._data, places.bodies[texts], places.body_sizes[texts])
            good[texts[broken_rows(column_of([pool, b" "], len(texts)))]] = False
        for section in places.starts:
            has_it = checked if places.are_alike else checked & (places.ends[section] > 0)
            rows = np.flatnonzero(has_it)
            if len(rows):
                found = self._parser.sections(section, self._data, places, rows)
                self._found[section] = found
                good[found.damaged] = False

    def _column(self, name: str) -> ByteColumn | HeaderColumn:
        if name == "headers":
            return self._headers()
        if name == "key":
            return self._keys()
        if name == "body":
            bodies = [self._parser.body_of(record) for record in self._slow_records]
            return self._merged([(None, self._payloads())], bodies)
        if name == "value":
            values = [value_text(each.value).encode() for each in self._slow_decoded]
            payloads = self._payloads()
            fast = None if not len(self._slow) else np.flatnonzero(self._good | self._raw)
            texts = json_strings(payloads if fast is None else payloads.of_rows(fast))
            if fast is None:
                return texts
            builder = RowBuilder(self._count)
            builder.add(fast, [ValuePool.of(texts)])
            builder.add(self._slow, [ValuePool.of(ByteColumn.of(values))])
            return builder.column()
        return self._section_column(name)

    def _payloads(self) -> ValuePool:
        """Return the body of each message, and the other records themselves."""
        places, records = self._places, self._records
        if self._good.all():
            return ValuePool(self._data, places.bodies, places.body_sizes)
        starts = np.where(self._good, places.bodies, records.starts)
        return ValuePool(self._data, starts, np.where(self._good, places.body_sizes, records.sizes))

    def _section_column(self, name: str) -> ByteColumn:
        found = self._found.get(SECTION_COLUMNS[name])
        slow = [compact_json(each.sections[name]) for each in self._slow_decoded]
        if found is None:
            return self._merged([], slow, rest=_EMPTY_JSON)
        groups: list[tuple[Integers | None, RowPiece]] = []
        for match in self._matches(found):
            if len(match.rows) == self._count:
                return match.json
            groups.append((match.rows, ValuePool.of(match.json)))
        rows, singles = self._singles(found)
        if len(rows):
            groups.append((rows, ValuePool.of(ByteColumn.of([single.json for single in singles]))))
        return self._merged(groups, slow, rest=_EMPTY_JSON)

    def _matches(self, found: _Sections) -> Iterable[SectionMatch]:
        """Yield the matches without the rows that are damaged elsewhere."""
        for match in found.matches:
            if self._is_good:
                yield match
                continue
            chosen = self._good[match.rows]
            if chosen.all():
                yield match
            elif chosen.any():
                yield match.of(chosen)

    def _singles(self, found: _Sections) -> tuple[Integers, list[_Single]]:
        kept = [
            (row, single)
            for row, single in zip(found.single_rows, found.singles, strict=True)
            if self._good[row]
        ]
        return np.array([row for row, _ in kept], np.int64), [single for _, single in kept]

    def _merged(
        self, groups: Sequence[tuple[Integers | None, RowPiece]], slow: Sequence[bytes], *, rest: bytes = b""
    ) -> ByteColumn:
        """Return a column of groups, of slow rows, and of `rest` in all others."""
        builder = RowBuilder(self._count)
        left = np.ones(self._count, np.bool_)
        left[self._slow] = False
        for rows, piece in groups:
            if rows is None and len(self._slow):
                rows = np.flatnonzero(left)
                assert isinstance(piece, ValuePool)
                piece = piece.of_rows(rows)
            builder.add(rows, [piece])
            left[slice(None) if rows is None else rows] = False
        if rest and left.any():
            builder.add(np.flatnonzero(left), [rest])
        if len(self._slow):
            builder.add(self._slow, [ValuePool.of(ByteColumn.of(slow))])
        return builder.column()

    def _keys(self) -> ByteColumn:
        open_ = self._good.copy()
        valid = np.zeros(self._count, np.bool_)
        groups: list[tuple[Integers | None, RowPiece]] = []
        # The routing key decides, and the subject if there is none.
        for section in (ANNOTATIONS, PROPERTIES):
            found = self._found.get(section)
            if found is None:
                continue
            for match in self._matches(found):
                template = match.template
                if not template.has_key:
                    continue
                if template.key is not None and len(match.rows) == self._count and open_.all():
                    return column_of([match.piece(template.key)], self._count)
                chosen = open_[match.rows]
                rows = match.rows[chosen]
                open_[rows] = False
                if template.key is None or not len(rows):
                    continue
                piece = match.piece(template.key)
                if isinstance(piece, ValuePool) and len(rows) < len(chosen):
                    piece = piece.of_rows(np.flatnonzero(chosen))
                groups.append((None if len(rows) == self._count else rows, piece))
                valid[rows] = True
            rows, singles = self._singles(found)
            kept = [
                (row, one)
                for row, one in zip(rows.tolist(), singles, strict=True)
                if one.has_key and open_[row]
            ]
            for row, _ in kept:
                open_[row] = False
            with_key = [(row, one.key) for row, one in kept if one.key is not None]
            if with_key:
                at = np.array([row for row, _ in with_key], np.int64)
                groups.append((at, ValuePool.of(ByteColumn.of([key for _, key in with_key]))))
                valid[at] = True
        slow_keys = [key for key, _ in self._slow_rest]
        valid[self._slow] = [key is not None for key in slow_keys]
        column = self._merged(groups, [key or b"" for key in slow_keys])
        return ByteColumn(column.offsets, column.data, None if valid.all() else valid)

    def _headers(self) -> HeaderColumn:
        found = self._found.get(APPLICATION)
        counts = np.zeros(self._count, np.int64)
        counts[self._slow] = [len(headers) for _, headers in self._slow_rest]
        matches = [*self._matches(found)] if found is not None else []
        if len(matches) == 1 and len(matches[0].rows) == self._count:
            return _headers_alike(matches[0])
        rows, singles = self._singles(found) if found is not None else (self._slow[:0], [])
        for match in matches:
            counts[match.rows] = len(match.template.headers)
        counts[rows] = [len(single.headers) for single in singles]
        offsets = np.zeros(self._count + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        names, values = RowBuilder(int(offsets[-1])), RowBuilder(int(offsets[-1]))
        for match in matches:
            for number, (name, slot) in enumerate(match.template.headers):
                at = offsets[match.rows] + number
                names.add(at, [name])
                values.add(at, [match.piece(slot)])
        listed = [(row, one.headers) for row, one in zip(rows.tolist(), singles, strict=True)]
        listed += [
            (row, headers) for row, (_, headers) in zip(self._slow.tolist(), self._slow_rest, strict=True)
        ]
        listed = sorted((row, headers) for row, headers in listed if headers)
        if listed:
            at = np.array(
                [offsets[row] + number for row, headers in listed for number in range(len(headers))], np.int64
            )
            pairs = [pair for _, headers in listed for pair in headers]
            names.add(at, [ValuePool.of(ByteColumn.of([name.encode() for name, _ in pairs]))])
            values.add(at, [ValuePool.of(ByteColumn.of([value for _, value in pairs]))])
        return HeaderColumn(offsets, names.column(), values.column())


def _headers_alike(match: SectionMatch) -> HeaderColumn:
    """Return the headers of rows that all fit one template."""
    rows, headers = len(match.rows), match.template.headers
    pieces = [match.piece(slot) for _, slot in headers]
    sizes = np.empty((rows, len(headers)), np.int64)
    for number, piece in enumerate(pieces):
        sizes[:, number] = len(piece) if isinstance(piece, bytes) else piece.sizes
    values = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(sizes.ravel(), out=values[1:])
    names = np.zeros(sizes.size + 1, np.int64)
    np.cumsum(np.tile([len(name) for name, _ in headers], rows), out=names[1:])
    return HeaderColumn(
        np.arange(rows + 1) * len(headers),
        ByteColumn(names, column_of([name for name, _ in headers], rows).data),
        ByteColumn(values, column_of(pieces, rows).data),
    )
