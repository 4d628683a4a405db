"""Erlang's external term format, written by our tests, and messages of classic queues in it."""

from __future__ import annotations

import struct
from typing import Any, Final

WIRE: Final = b"\x10\x00\x02"
"""The property `delivery_mode` 2."""

ID: Final = bytes(range(16))


class Atom(str):
    """A text that is written as an atom."""

    __slots__ = ()


def term_of(value: Any) -> bytes:
    """Return what `term_to_binary` of Erlang/OTP 25 writes."""
    return b"\x83" + _inner(value)


def message(
    *fragments: bytes,
    wire: bytes | Atom = WIRE,
    fields: Any = None,
    message_id: bytes = ID,
    keys: tuple[bytes, ...] = (b"key",),
) -> bytes:
    """Return the stored term of a message, with the last fragment of its body first.

    With `fields`, the properties are that tuple. Otherwise they are the bytes `wire`.
    """
    properties = (Atom("none"), wire) if fields is None else (fields, Atom("none"))
    content = (Atom("content"), 60, *properties, Atom("none"), [*fragments])
    exchange = Atom("resource"), b"/", Atom("exchange"), b"ex"
    return term_of((Atom("basic_message"), exchange, [*keys], content, message_id, Atom("true")))


def _inner(value: Any) -> bytes:
    match value:
        case Atom():
            return b"d" + struct.pack(">H", len(value)) + value.encode("latin-1")
        case bytes():
            return b"m" + struct.pack(">I", len(value)) + value
        case int() if 0 <= value < 256:
            return b"a" + bytes([value])
        case int() if -(2**31) <= value < 2**31:
            return b"b" + struct.pack(">i", value)
        case int():
            size = (abs(value).bit_length() + 7) // 8
            return b"n" + bytes([size, value < 0]) + abs(value).to_bytes(size, "little")
        case float():
            return b"F" + struct.pack(">d", value)
        case tuple():
            head = b"h" + bytes([len(value)]) if len(value) < 256 else b"i" + struct.pack(">I", len(value))
            return head + b"".join(map(_inner, value))
        case list() if value:
            return b"l" + struct.pack(">I", len(value)) + b"".join(map(_inner, value)) + b"j"
        case list():
            return b"j"
    raise TypeError(type(value).__name__)
