"""A message of a classic queue: the term `basic_message`, and its AMQP 0-9-1 properties as bytes of the wire.

    {basic_message, {resource, Vhost, exchange, Exchange}, [RoutingKey, ...],
     {content, 60, Properties, PropertiesBin, Protocol, FragmentsRev}, Id, IsPersistent}

The fragments of a body are stored in reverse. The broker stores the properties as the publisher sent them.
If it changed the headers, it stores a tuple `P_basic`, which is encoded here. So pamqp reads both alike.
The sources: `rabbit_common/include/rabbit.hrl` and `rabbit_binary_generator.erl` of RabbitMQ 3.10.

Invariant: properties that the broker stored as bytes stay these bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pamqp.commands import Basic

from offload.ground.errors import Corrupt
from offload_rabbitmq.queues.terms import decode_term

PROPERTIES: Final = (
    *(("content_type", "shortstr"), ("content_encoding", "shortstr"), ("headers", "table")),
    *(("delivery_mode", "unsignedbyte"), ("priority", "unsignedbyte"), ("correlation_id", "shortstr")),
    *(("reply_to", "shortstr"), ("expiration", "shortstr"), ("message_id", "shortstr")),
    *(("timestamp", "timestamp"), ("type", "shortstr"), ("user_id", "shortstr")),
    *(("app_id", "shortstr"), ("cluster_id", "shortstr")),
)
"""Names and types, in the order of the wire and of the fields of `P_basic`, from the highest flag on."""

_PAMQP_NAMES: Final = {"type": "message_type"}

_NUMBERS: Final = {
    "signedint": (b"I", ">i"),
    "unsignedint": (b"i", ">I"),
    "long": (b"l", ">q"),
    "short": (b"s", ">h"),
    "unsignedshort": (b"u", ">H"),
    "byte": (b"b", ">b"),
    "unsignedbyte": (b"B", ">B"),
    "double": (b"d", ">d"),
    "float": (b"f", ">f"),
    "timestamp": (b"T", ">Q"),
}
"""The tag of a header's value on the wire, and its layout, by the broker's name of its type."""

UNREADABLE: Final = (ValueError, OverflowError, OSError, struct.error, IndexError, TypeError, RecursionError)
"""What pamqp raises for properties that it cannot read: a date beyond the year 9999, tables too deep."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message, as the broker would deliver it."""

    vhost: bytes
    exchange: bytes
    keys: list[bytes]
    """The routing key, and those of the headers CC and BCC."""
    properties: bytes
    """Sixteen bits of flags, then the properties that are there, as on the wire."""
    fragments: list[bytes]
    """The body, in pieces, the last one first."""
    message_id: bytes

    @property
    def body(self) -> bytes:
        """The whole body."""
        return self.fragments[0] if len(self.fragments) == 1 else b"".join(reversed(self.fragments))


def read_message(term: bytes, *, where: str) -> StoredMessage:
    """Return the message of a stored term. Raises `Corrupt` if it is no `basic_message` of AMQP 0-9-1."""
    value = decode_term(term, where=where)
    match value:
        case (
            "basic_message",
            ("resource", bytes(vhost), "exchange", bytes(exchange)),
            [bytes(), *_] as keys,
            ("content", 60, fields, wire, _, list(fragments)),
            bytes(message_id),
            _,
        ) if {*map(type, keys), *map(type, fragments)} == {bytes}:
            if not isinstance(wire, bytes):
                wire = _encoded(fields, where)
            return StoredMessage(vhost, exchange, keys, wire, fragments, message_id)
    found = value[0] if isinstance(value, tuple) and value else type(value).__name__
    raise Corrupt("stored term", where, expected="basic_message of RabbitMQ before 3.13", found=found)


def read_properties(wire: bytes, *, where: str) -> dict[str, Any]:
    """Return the properties that are there, by name. Raises `Corrupt` if pamqp cannot read them."""
    found = Basic.Properties()
    flags = int.from_bytes(wire[:2], "big")
    try:
        if len(wire) < 2 or flags & 3:  # the flag of more flags, and one without a meaning
            raise ValueError(f"flags {wire[:2].hex()}")
        found.unmarshal(flags, wire[2:])
    except UNREADABLE as error:
        raise Corrupt("properties", where, expected="those of AMQP 0-9-1", found=error) from error
    return {name: getattr(found, attribute) for name, attribute in _there(flags)}


@lru_cache(1024)
def _there(flags: int) -> list[tuple[str, str]]:
    """Return the names of the properties that are there, each with its name in pamqp."""
    names = [name for number, (name, _) in enumerate(PROPERTIES) if flags & 0x8000 >> number]
    return [(name, _PAMQP_NAMES.get(name, name)) for name in names]


def _encoded(fields: Any, where: str) -> bytes:
    """Return a tuple `P_basic` as the broker would send it."""
    try:
        if fields[0] != "P_basic" or len(fields) != len(PROPERTIES) + 1:
            raise ValueError(f"{fields[0]} of {len(fields)} fields")
        flags, parts = 0, list[bytes]()
        for number, ((_, kind), value) in enumerate(zip(PROPERTIES, fields[1:], strict=True)):
            if value != "undefined":
                flags |= 0x8000 >> number
                parts.append(_value(kind, value)[1])
        return struct.pack(">H", flags) + b"".join(parts)
    except (*UNREADABLE, KeyError) as error:
        raise Corrupt("properties", where, expected="a tuple P_basic", found=error) from error


def _value(kind: str, value: Any) -> tuple[bytes, bytes]:
    """Return the tag of a value, and its bytes behind the tag."""
    if kind in _NUMBERS:
        tag, layout = _NUMBERS[kind]
        return tag, struct.pack(layout, value)
    return _OTHERS[kind](value)


def _sized(layout: str, value: bytes) -> bytes:
    return struct.pack(layout, len(value)) + value


def _pair(name: bytes, kind: str, value: Any) -> bytes:
    return _sized(">B", name) + b"".join(_value(kind, value))


_OTHERS: Final[Mapping[str, Callable[[Any], tuple[bytes, bytes]]]] = {
    "shortstr": lambda value: (b"", _sized(">B", value)),
    "longstr": lambda value: (b"S", _sized(">I", value)),
    "binary": lambda value: (b"x", _sized(">I", value)),
    "bool": lambda value: (b"t", b"\1" if value == "true" else b"\0"),
    "void": lambda value: (b"V", b""),
    "decimal": lambda value: (b"D", struct.pack(">BI", *value)),
    "table": lambda value: (b"F", _sized(">I", b"".join(_pair(*each) for each in value))),
    "array": lambda value: (b"A", _sized(">I", b"".join(b"".join(_value(*each)) for each in value))),
}
