"""AMQP 1.0 messages, which RabbitMQ's own protocols and most stream clients store in records.

A record holds the message's sections back to back. Each is `00`, a descriptor and one value. The broker does
not enforce this: a stream client may store any bytes. So a record that is no AMQP message raises `Corrupt`,
and the caller decides if it is damaged or just raw.

Each section occurs at most once, except data and sequence sections, which may repeat. A body is of one kind.
The sections may be in any order. No bytes may follow them.

`data_bodies` is the fast way to the bodies of many records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from offload.ground.errors import Corrupt
from offload_rabbitmq._amqp_json import to_jsonable
from offload_rabbitmq._amqp_values import Described, Symbol, Timestamp, ValueReader

__all__ = ["AmqpMessage", "Described", "Symbol", "Timestamp", "data_bodies", "decode", "to_jsonable"]

BodyKind = Literal["data", "sequence", "value", "none"]

HEADER_NAMES: Final = ("durable", "priority", "ttl", "first_acquirer", "delivery_count")
PROPERTY_NAMES: Final = (
    "message_id",
    "user_id",
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "absolute_expiry_time",
    "creation_time",
    "group_id",
    "group_sequence",
    "reply_to_group_id",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpMessage:
    """One message by sections. An absent section is empty."""

    body_kind: BodyKind
    body: Any
    """The joined bytes of the data sections; or the list of the sequences; or the value; or None."""
    header: dict[str, Any] = field(default_factory=dict)
    """The fields by `HEADER_NAMES`, without null and absent ones."""
    properties: dict[str, Any] = field(default_factory=dict)
    """The fields by `PROPERTY_NAMES`, without null and absent ones."""
    application_properties: dict[Any, Any] = field(default_factory=dict)
    delivery_annotations: dict[Any, Any] = field(default_factory=dict)
    message_annotations: dict[Any, Any] = field(default_factory=dict)
    footer: dict[Any, Any] = field(default_factory=dict)


def decode(record: bytes, *, where: str = "record") -> AmqpMessage:
    """Return the message in `record`. Raises `Corrupt`, with `where` and a position, if it is no message."""
    reader = ValueReader(record, where=where)
    sections: dict[str, Any] = {}
    bodies: list[Any] = []
    body_kind: BodyKind = "none"
    while reader.at < len(record) or not record:
        start = reader.at
        name = _section_name(reader)
        value = reader.value()
        if name in _BODY_TYPES:
            _may_follow(reader, name, body_kind, start)
            body_kind = cast("BodyKind", name)
            bodies.append(_of_type(reader, value, _BODY_TYPES[name], name, start))
        elif name in sections:
            reader.refuse(f"AMQP {name}", expected="one such section", found="two", position=start)
        elif name in _FIELD_NAMES:
            sections[name] = _named(reader, value, name, start)
        else:
            sections[name] = _of_type(reader, value, dict, name, start)
    return AmqpMessage(body_kind=body_kind, body=_body_of(body_kind, bodies), **sections)


def data_bodies(records: Sequence[bytes], *, where: str = "chunk") -> list[bytes]:
    """Return the body of each record as bytes: its joined data sections, or its string or binary value.

    A message without a body has an empty one. Raises `Corrupt` if a record is no AMQP message or has another
    kind of body, and names the first such record by its index in `records`. The content of sections beside
    one data section is skipped: only `decode` finds errors in it.
    """
    size_by_head = _SIZE_BY_HEAD.get
    try:
        return [
            record[5:] if size_by_head(record[:5]) == len(record) else _data_body(record, where)
            for record in records
        ]
    except Corrupt:  # walk them again for the number of the record, which the fast loop does not count
        for index, record in enumerate(records):
            _data_body(record, f"{where}, record {index}")
        raise


def _data_body(record: bytes, where: str) -> bytes:
    stepped = _stepped_body(record)
    if stepped is not None:
        return stepped
    message = decode(record, where=where)
    match message.body_kind, message.body:
        case "none", _:
            return b""
        case "data" | "value", bytes(body):
            return body
        case "value", str(text):
            return text.encode()
    expected = "data, or a string or binary value"
    raise Corrupt("AMQP body", where, expected=expected, found=f"another {message.body_kind}")


def _stepped_body(record: bytes) -> bytes | None:
    """Return the body of a message with exactly one data section, by stepping from section to section.

    Returns None for any other record, and for one in an unusual encoding.
    """
    body, at, size = None, 0, len(record)
    try:
        while at < size:
            if record[at] != 0 or record[at + 1] != _SMALL_ULONG:
                return None
            section, code = record[at + 2], record[at + 3]
            width = _STEP_WIDTHS[code]
            start = at + 4 + width
            at = start + int.from_bytes(record[at + 4 : start], "big")
            if section == _DATA:
                if body is not None or code not in _BINARIES:
                    return None
                body = record[start:at]
            elif section not in _STEPPED_OVER or code in _BINARIES:
                return None
    except LookupError:  # cut short, or with a constructor that is unusual for a section
        return None
    return body if at == size else None


def _section_name(reader: ValueReader) -> str:
    """Return the name of the section whose descriptor comes next."""
    start = reader.at
    if reader.byte() != 0:
        reader.refuse("AMQP section", expected="0x00", found=f"{reader.raw[start]:#04x}", position=start)
    descriptor = reader.value()
    name = _SECTIONS.get(descriptor) if isinstance(descriptor, int | Symbol) else None
    if name is None:
        expected = "the descriptor of a section"
        reader.refuse("AMQP section", expected=expected, found=repr(descriptor)[:80], position=start)
    return name


def _may_follow(reader: ValueReader, name: str, before: str, start: int) -> None:
    """Refuse a body section of a kind that may not follow one of kind `before`."""
    if before not in ("none", name) or before == "value":
        reader.refuse(
            "AMQP body", expected="a body of one kind", found=f"{before} and {name}", position=start
        )


def _body_of(body_kind: BodyKind, bodies: list[Any]) -> Any:
    if body_kind == "data":
        return b"".join(bodies)
    if body_kind == "value":
        return bodies[0]
    return bodies or None


def _of_type(reader: ValueReader, value: Any, wanted: type, name: str, start: int) -> Any:
    if not isinstance(value, wanted):
        expected, found = wanted.__name__, type(value).__name__
        reader.refuse(f"AMQP {name}", expected=expected, found=found, position=start)
    return value


def _named(reader: ValueReader, value: Any, name: str, start: int) -> dict[str, Any]:
    """Return the fields of a list by their names, without null ones."""
    fields, names = _of_type(reader, value, list, name, start), _FIELD_NAMES[name]
    if len(fields) > len(names):
        expected = f"at most {len(names)} fields"
        reader.refuse(f"AMQP {name}", expected=expected, found=len(fields), position=start)
    return {key: found for key, found in zip(names, fields, strict=False) if found is not None}


_SECTIONS: Final = {
    0x70: "header",
    0x71: "delivery_annotations",
    0x72: "message_annotations",
    0x73: "properties",
    0x74: "application_properties",
    0x75: "data",
    0x76: "sequence",
    0x77: "value",
    0x78: "footer",
    "amqp:header:list": "header",
    "amqp:delivery-annotations:map": "delivery_annotations",
    "amqp:message-annotations:map": "message_annotations",
    "amqp:properties:list": "properties",
    "amqp:application-properties:map": "application_properties",
    "amqp:data:binary": "data",
    "amqp:amqp-sequence:list": "sequence",
    "amqp:amqp-value:*": "value",
    "amqp:footer:map": "footer",
}
"""The names of sections by descriptor: a number or, from a few clients, a symbol."""

_BODY_TYPES: Final[dict[str, type]] = {"data": bytes, "sequence": list, "value": object}
_FIELD_NAMES: Final = {"header": HEADER_NAMES, "properties": PROPERTY_NAMES}

_SIZE_BY_HEAD: Final = {b"\x00\x53\x75\xa0" + bytes((size,)): 5 + size for size in range(256)}
"""The length of a record with one short data section and nothing else, by its first five bytes."""

_SMALL_ULONG: Final = 0x53
_DATA: Final = 0x75
_STEPPED_OVER: Final = frozenset((0x70, 0x71, 0x72, 0x73, 0x74, 0x78))
_BINARIES: Final = frozenset((0xA0, 0xB0))
_STEP_WIDTHS: Final = {0x45: 0, 0xA0: 1, 0xC0: 1, 0xC1: 1, 0xB0: 4, 0xD0: 4, 0xD1: 4}
"""The width of the size before a section's value, by the value's constructor."""
