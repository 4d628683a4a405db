"""Records as the output of `offload read`: a block of them in one piece, without a Python step for each.

Each record becomes one line of JSON, its body and a line end, or its length and its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import numpy as np

from offload.contracts.decoder import Decoder
from offload.formats.rows import RowPiece, ValuePool, column_of
from offload.formats.texts import integer_texts, json_strings, timestamp_texts
from offload.model.position import iso_of
from offload.model.record_columns import ByteColumn, Bytes, RecordBytes
from offload.model.value_text import value_text
from offload.read.batches import PartRun

__all__ = ["Format", "Render", "message_lines", "renderer"]


class Format(StrEnum):
    """The format in which messages are printed."""

    JSONL = "jsonl"
    BODY = "body"
    RAW = "raw"


Render = Callable[[PartRun], Bytes]


def renderer(
    format: Format,  # noqa: A002 - the name of the option
    decoder: Decoder | None,
    stream: str | None = None,
) -> Render:
    """Return the function that formats records, each of which is one message.

    With a `stream`, a line of JSON begins with its name.
    """
    match format:
        case Format.RAW:
            return _raw
        case Format.BODY:
            return lambda printed: _bodies(printed, decoder)
        case Format.JSONL:
            sections = [*decoder.decode([b""])[0].sections] if decoder is not None else []
            return lambda printed: _jsonl(printed, decoder, sections, _head(stream))


def message_lines(
    format: Format,  # noqa: A002 - as above
    decoder: Decoder | None,
    stream: str | None = None,
) -> Callable[[PartRun], Iterator[bytes]] | None:
    """Return the function that formats messages one by one, if a record may hold several of them.

    One by one, because a record may hold many more bytes than it has itself.
    """
    if decoder is None or not decoder.holds_several or format is Format.RAW:
        return None
    messages = decoder.messages
    if format is Format.BODY:
        return lambda printed: (
            _body(decoded.value) + b"\n" for _, decoded in messages(_records(printed).to_list())
        )
    head = _head(stream)
    return lambda printed: (
        head + _line(printed, number, decoded.value, decoded.sections)
        for number, decoded in messages(_records(printed).to_list())
    )


def _body(value: Any) -> bytes:
    """Return a value as `Decoder.bodies` does. No value is empty."""
    if isinstance(value, bytes):
        return value
    return b"" if value is None else value.encode() if isinstance(value, str) else value_text(value).encode()


def _line(printed: PartRun, number: int, value: Any, sections: Any) -> bytes:
    offset, timestamp_ms = int(printed.run.offsets[number]), int(printed.run.timestamps_ms[number])
    middle = f'{_part(printed)},"timestamp":"{iso_of(timestamp_ms)}","value":'
    tail = "".join(f',"{name}":{value_text(section)}' for name, section in sections.items())
    return f"{offset}{middle}{value_text(value)}{tail}}}\n".encode()


def _head(stream: str | None) -> bytes:
    return b'{"offset":' if stream is None else f'{{"stream":{value_text(stream)},"offset":'.encode()


def _part(printed: PartRun) -> str:
    # Part 1 is not printed: most streams have no other.
    return "" if printed.part == 1 else f',"part":{printed.part}'


def _raw(printed: PartRun) -> Bytes:
    records = _records(printed)
    count = len(records)
    lengths = records.sizes.astype(">u4").view(np.uint8)
    heads = ValuePool(lengths, np.arange(count) * 4, np.full(count, 4))
    return column_of([heads, _values(records)], count).data


def _bodies(printed: PartRun, decoder: Decoder | None) -> Bytes:
    records = _records(printed)
    bodies = _values(records)
    if decoder is not None:
        bodies = _pool(decoder.columns(records, ["body"])["body"])
    return column_of([bodies, b"\n"], len(records)).data


def _jsonl(printed: PartRun, decoder: Decoder | None, sections: list[str], head: bytes) -> Bytes:
    records, run = _records(printed), printed.run
    if decoder is None:
        values, tails = json_strings(_values(records)), list[RowPiece]()
    else:
        found = decoder.columns(records, ["value", *sections])
        column = found["value"]
        assert isinstance(column, ByteColumn)
        values = column
        tails = [piece for name in sections for piece in (f',"{name}":'.encode(), _pool(found[name]))]
    pieces: list[RowPiece] = [
        head,
        integer_texts(run.offsets),
        f'{_part(printed)},"timestamp":"'.encode(),
        timestamp_texts(run.timestamps_ms),
        b'","value":',
        ValuePool.of(values),
        *tails,
        b"}\n",
    ]
    return column_of(pieces, len(records)).data


def _records(printed: PartRun) -> RecordBytes:
    return RecordBytes(np.frombuffer(printed.run.data, np.uint8), printed.run.starts, printed.run.sizes)


def _values(records: RecordBytes) -> ValuePool:
    return ValuePool(records.data, records.starts, records.sizes)


def _pool(column: object) -> ValuePool:
    assert isinstance(column, ByteColumn)
    return ValuePool.of(column)
