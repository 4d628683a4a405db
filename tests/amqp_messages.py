"""AMQP messages for tests: an encoder that knows nothing of the decoder, and the records of real streams."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import osiris_data
from hypothesis import strategies as st
from offload_rabbitmq.amqp import Described, Symbol, Timestamp

from offload.formats.entries import messages

DATA, SEQUENCE, VALUE = b"\0\x53\x75", b"\0\x53\x76", b"\0\x53\x77"
PROPERTIES = b"\0\x53\x73"


def records(stream: str) -> list[bytes]:
    user = (chunk for chunk in osiris_data.chunks(stream) if chunk[1] == 0)
    return [record for chunk in user for record in messages(chunk, where=stream)]


def sized(code: int, raw: bytes) -> bytes:
    """Encode a variable-width value: with `code` if it is short, with `code + 0x10` if it is long."""
    if len(raw) < 256:
        return bytes((code, len(raw))) + raw
    return bytes((code + 0x10,)) + struct.pack(">I", len(raw)) + raw


def compound(code: int, items: list[bytes]) -> bytes:
    body = b"".join(items)
    if len(body) < 255 and len(items) < 256:
        return bytes((code, len(body) + 1, len(items))) + body
    return bytes((code + 0x10,)) + struct.pack(">II", len(body) + 4, len(items)) + body


def encoded(value: Any) -> bytes:
    """Encode the values that the round trips below draw, independently of the code under test."""
    match value:
        case None:
            return b"\x40"
        case bool():
            return b"\x41" if value else b"\x42"
        case Timestamp():
            return b"\x83" + struct.pack(">q", value)
        case int():
            return b"\x81" + struct.pack(">q", value)
        case float():
            return b"\x82" + struct.pack(">d", value)
        case Symbol():
            return sized(0xA3, value.encode())
        case str():
            return sized(0xA1, value.encode())
        case bytes():
            return sized(0xA0, value)
        case UUID():
            return b"\x98" + value.bytes
        case list():
            return compound(0xC0, [encoded(item) for item in value])
        case dict():
            return compound(0xC1, [encoded(part) for pair in value.items() for part in pair])
        case Described():
            return b"\0" + encoded(value.descriptor) + encoded(value.value)
    raise TypeError(value)


SCALARS = (
    st.none()
    | st.integers(2, 2**63 - 1)
    | st.floats(allow_nan=False).filter(lambda number: number not in (0.0, 1.0))
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.uuids()
    | st.text(st.characters(codec="ascii")).map(Symbol)
    | st.integers(-(2**63), 1).map(Timestamp)
)
VALUES = st.recursive(
    SCALARS | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.builds(Described, SCALARS, inner)
    ),
    max_leaves=12,
)
