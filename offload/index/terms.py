"""Terms: the bytes by which an index finds records, and the SPEC that says where they are in a record.

    DECODER:PATH[,PATH]     such as `amqp:properties.message_id` or `rocketmq:keys`

    PATH            has these terms
    key             the record's key
    SECTION         a section of the decoder
    SECTION.FIELD   a field of a section that is an object. All behind the first dot is its name
    body.FIELD      a field of a body that is a JSON object

With `ranges=` before it, a SPEC has one PATH, and is that of an index of ranges (`index.ranges`).

A text is its UTF-8 bytes as a term. A number or a boolean is its JSON text, as the document has it: `1.0` and
`1` differ. A list has one term for each element. Absent, null and empty values, objects and lists in lists
have none. If a record holds several messages, it has the terms of each, as `Decoder.messages` returns them.

JSON is what `json.loads` reads: of equal fields the last one counts. A document that it cannot read, or that
is nested deeper than Python's limit of recursion, has no terms, and a text with half a surrogate pair has
none. `msgspec` finds the fields of nearly every document, and `json` reads what it refuses. `pyarrow.json`
would need all values of a field to have one type, and changes numbers.

Invariant: the same bytes have the same terms in every process, under one `TERM_RULES_VERSION`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from types import NoneType
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from offload.contracts.decoder import Decoded, Decoder
from offload.formats.keys import RANGES
from offload.formats.rows import ValuePool, column_of
from offload.ground.errors import Misuse
from offload.model.record_columns import ByteColumn, Integers, RecordBytes

__all__ = ["TERM_RULES_VERSION", "Spec", "Terms", "hashes"]

TERM_RULES_VERSION: Final = 1
"""It changes if a record can have other terms than before. Indexes of other versions are not used."""

SPEC_SIZE_BYTES_MAX: Final = 200
"""The key of an index object has the SPEC, escaped."""

_SPEC: Final = re.compile(rf"((?:{RANGES})?)([A-Za-z0-9_.-]+):([^\x00-\x1f\x22\x5c\x7f\ud800-\udfff]+)")
_PATH: Final = re.compile(r"(?!body$|key\.)[^.]+(?:\..+)?")
_KEY, _BODY = "key", "body"
_BLOCK_SIZE_BYTES: Final = 16 * 2**20
"""Messages are kept until they have so many bytes of JSON, and are then searched by columns."""

_JSON: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
_IS_SCALAR: Final = np.isin(np.arange(256), [*b"-0123456789tf"])
"""Which bytes begin a number or a boolean."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of some records, in no order."""

    rows: npt.NDArray[np.uint32]
    """The number of each term's record among these records."""
    values: ByteColumn


@dataclass(frozen=True, slots=True)
class Spec:
    """Where the terms of a stream's records are. Its text has each path once, in order."""

    decoder: str
    """The name of a decoder that a plugin declares."""
    paths: tuple[str, ...]
    is_of_ranges: bool = False
    """True for an index of ranges."""

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Return the SPEC that a person wrote. Raises `Misuse` if it has another form."""
        found = _SPEC.fullmatch(text) if len(text) <= SPEC_SIZE_BYTES_MAX else None
        paths = found[3].split(",", maxsplit=0 if found[1] else -1) if found else []
        if not found or len(text.encode()) > SPEC_SIZE_BYTES_MAX or not all(map(_PATH.fullmatch, paths)):
            expected = "expected DECODER:PATH[,PATH], such as amqp:properties.message_id"
            raise Misuse(f"{text[:SPEC_SIZE_BYTES_MAX]!r} is no SPEC of an index: {expected}")
        return cls(found[2], tuple(sorted({*paths})), bool(found[1]))

    def __str__(self) -> str:
        return f"{RANGES if self.is_of_ranges else ''}{self.decoder}:{','.join(self.paths)}"

    def terms(self, decoder: Decoder, records: RecordBytes) -> Terms:
        """Return the terms of these records, of which there are fewer than 2^32.

        Raises `Misuse` if `decoder` has no such section.
        """
        self.check(decoder)
        places = [path.partition(".")[::2] for path in self.paths]
        rows, values = [np.zeros(0, np.uint32)], [ByteColumn.of([])]
        for numbers, columns in _blocks(decoder, records, [*dict.fromkeys(head for head, _ in places)]):
            for head, field in places:
                column = columns[head]
                for found, terms in [_filled(column)] if head == _KEY else _in_documents(column, field):
                    rows.append(numbers[found])
                    values.append(terms)
        return Terms(np.concatenate(rows), ByteColumn.joined(values))

    def check(self, decoder: Decoder) -> None:
        """Raise `Misuse` if `decoder` has no such section, or no keys for an index of ranges."""
        if self.is_of_ranges and not decoder.has_range_keys:
            raise Misuse(f"{self}: decoder {self.decoder} has no keys of ranges")
        _, sample = next(iter(decoder.messages([b""])))
        unknown = {path.partition(".")[0] for path in self.paths} - {*sample.sections, _KEY, _BODY}
        if unknown:
            known = ", ".join(dict.fromkeys([_KEY, *sample.sections, "body.FIELD"]))
            raise Misuse(f"{self}: decoder {self.decoder} has no {min(unknown)!r}. It has {known}")


def hashes(values: ByteColumn) -> npt.NDArray[np.uint64]:
    """Return XXH64 of each value, with seed 0."""
    listed: list[Any] = values.to_list()
    return np.fromiter(map(xxhash.xxh64_intdigest, listed), np.uint64, len(listed))


def _blocks(
    decoder: Decoder, records: RecordBytes, heads: Sequence[str]
) -> Iterator[tuple[npt.NDArray[np.uint32], Mapping[str, Any]]]:
    """Yield columns of records, or of messages, with the number of the record of each row."""
    if not decoder.holds_several:
        yield np.arange(len(records), dtype=np.uint32), decoder.columns(records, heads)
        return
    numbers, rows, size = list[int](), list[list[bytes]](), 0
    for number, message in chain(decoder.messages(records.to_list()), [(-1, None)]):
        if rows and (message is None or size > _BLOCK_SIZE_BYTES):
            columns = map(ByteColumn.of, zip(*rows, strict=True))
            yield np.array(numbers, np.uint32), dict(zip(heads, columns, strict=True))
            numbers, rows, size = [], [], 0
        if message is not None:
            numbers.append(number)
            rows.append([_of_message(message, head) for head in heads])
            size += sum(map(len, rows[-1]))


def _of_message(message: Decoded, head: str) -> bytes:
    """Return what `Decoder.columns` would have of a message. A key that is None is empty."""
    value = message.value if head == _BODY else message.sections.get(head)
    if head not in (_KEY, _BODY) or not isinstance(value, (bytes, str, NoneType)):
        return json.dumps(value, ensure_ascii=False).encode()
    return value.encode() if isinstance(value, str) else value or b""


def _filled(column: ByteColumn) -> tuple[Integers, ByteColumn]:
    """Return the rows of a column that are not empty, and their values."""
    is_filled = np.diff(column.offsets) > 0
    return np.flatnonzero(is_filled), ByteColumn(column.offsets[np.append(True, is_filled)], column.data)


def _in_documents(column: ByteColumn, field: str) -> Iterator[tuple[Integers, ByteColumn]]:
    """Yield the terms of JSON documents, or of a field of each: rows, and as many terms."""
    decode, raw, edges = _decoder(field).decode, column.data.tobytes(), column.offsets.tolist()
    is_ascii, texts, odd = raw.isascii(), list[Any](), dict[int, list[bytes]]()
    for row, (start, end) in enumerate(pairwise(edges)):
        document = raw[start:end]
        try:
            if not is_ascii:  # msgspec accepts any bytes in texts
                document.decode()
            found = decode(document)
            texts.append(found.value if field else found)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            texts.append(b"")
            odd[row] = _listed(_read(document, field))
    sizes, joined = np.fromiter(map(len, texts), np.int64, len(texts)), b"".join([*texts, b" "])
    data, ends = np.frombuffer(joined, np.uint8), np.cumsum(sizes)
    first = data[ends - sizes]  # the blank, or the byte of another value, if there is none: see `sizes`
    is_text, is_odd = first == ord('"'), first == ord("[")
    if b"\\" in joined:
        escaped = np.unique(np.searchsorted(ends, np.flatnonzero(data == ord("\\")), side="right"))
        is_odd[escaped] |= is_text[escaped]
    plain = np.flatnonzero((sizes > 2 * is_text) & (is_text | _IS_SCALAR[first]) & ~is_odd)
    quotes = is_text[plain].astype(np.int64)
    pool = ValuePool(data, (ends - sizes)[plain] + quotes, sizes[plain] - 2 * quotes)
    yield plain, column_of([pool], len(plain))
    is_odd &= sizes > 0
    odd |= {row: _listed(_read(bytes(texts[row]))) for row in np.flatnonzero(is_odd).tolist()}
    rows = np.array([row for row, terms in odd.items() for _ in terms], np.int64)
    yield rows, ByteColumn.of([term for terms in odd.values() for term in terms])


@lru_cache(maxsize=64)
def _decoder(field: str) -> msgspec.json.Decoder[Any]:
    """Return a decoder of JSON that keeps the text of a field, or of the whole document."""
    if not field:
        return msgspec.json.Decoder(msgspec.Raw)
    member = "value", msgspec.Raw, msgspec.Raw()
    return msgspec.json.Decoder(msgspec.defstruct("Document", [member], rename={"value": field}, gc=False))


def _read(document: bytes, field: str = "") -> Any:
    """Return the value of a document or of its field: a number as text, and None if it cannot be read."""
    try:
        value = _JSON.decode(document.decode())
    except (ValueError, RecursionError):
        return None
    if not field:
        return value
    return value.get(field) if isinstance(value, dict) else None


def _listed(value: Any) -> list[bytes]:
    """Return the terms of a value as `_read` returns it."""
    found = list[bytes]()
    for each in value if isinstance(value, list) else [value]:
        text = {True: "true", False: "false"}[each] if isinstance(each, bool) else each
        if isinstance(text, str) and text:
            with suppress(UnicodeEncodeError):  # half a surrogate pair
                found.append(text.encode())
    return found
