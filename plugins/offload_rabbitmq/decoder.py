"""The `amqp` decoder: records as the AMQP 1.0 messages that RabbitMQ's own clients store.

A record that is no AMQP message stays raw, with empty sections, because the broker accepts any bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from offload.contracts.decoder import Decoded, Decoder
from offload.errors import Corrupt
from offload_rabbitmq.amqp import data_bodies, decode, to_jsonable

ROUTING_KEY: Final = "x-routing-key"
"""The message annotation in which the broker keeps the routing key of AMQP 0.9.1 clients."""

NO_SECTIONS: Final[dict[str, Any]] = {"properties": {}, "application_properties": {}, "annotations": {}}


class AmqpDecoder(Decoder):
    """A decoder of AMQP 1.0 messages."""

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the bodies as `Decoder.bodies` says: joined data sections, a text or bytes, else JSON."""
        try:
            return data_bodies(records)
        except Corrupt:  # one of them is no message, or has another kind of body: decode each by itself
            return [_body_bytes(record) for record in records]

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        """Return values and sections as `Decoder.decode` says."""
        return [
            # Nearly every record is one data section with a length of one byte, and needs no decoding.
            Decoded(record[5:], NO_SECTIONS)
            if record[:4] == b"\x00Su\xa0" and len(record) > 4 and record[4] == len(record) - 5
            else _decoded(record)
            for record in records
        ]

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        """Return the routing key that RabbitMQ adds to a message for an exchange, else the subject."""
        return [_key(decoded.sections) for decoded in self.decode(records)]

    def headers(self, records: Sequence[bytes]) -> list[list[tuple[str, bytes]]]:
        """Return the application properties."""
        return [
            [(name, _as_bytes(value)) for name, value in decoded.sections["application_properties"].items()]
            for decoded in self.decode(records)
        ]


def _decoded(record: bytes) -> Decoded:
    try:
        message = decode(record)
    except Corrupt:
        return Decoded(record, NO_SECTIONS)
    sections = {
        "properties": to_jsonable(message.properties),
        "application_properties": to_jsonable(message.application_properties),
        "annotations": to_jsonable(message.message_annotations),
    }
    match message.body_kind, message.body:
        case "none", _:
            return Decoded(b"", sections)
        case _, bytes() | str() as body:
            return Decoded(body, sections)
        case _, body:
            return Decoded(to_jsonable(body), sections)


def _body_bytes(record: bytes) -> bytes:
    value = _decoded(record).value
    return value if isinstance(value, bytes) else _as_bytes(value)


def _key(sections: Mapping[str, Any]) -> bytes | None:
    key = sections["annotations"].get(ROUTING_KEY, sections["properties"].get("subject"))
    return None if key is None else _as_bytes(key)


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value, separators=(",", ":")).encode()
