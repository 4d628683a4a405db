"""The `amqp` decoder: records as the AMQP 1.0 messages that RabbitMQ's own clients store.

A record that is no AMQP message stays raw, with empty sections: the broker enforces nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from offload.contracts.decoder import Decoded, Decoder
from offload.errors import Corrupt
from offload_rabbitmq.amqp import data_bodies, decode, to_jsonable

ROUTING_KEY: Final = "x-routing-key"
"""The message annotation in which the broker keeps what AMQP 0.9.1 clients publish with."""

NO_SECTIONS: Final[dict[str, Any]] = {"properties": {}, "application_properties": {}, "annotations": {}}


class AmqpDecoder(Decoder):
    """Decodes AMQP 1.0 messages."""

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """See `Decoder.bodies`: the data sections joined; a value's text or bytes, else as JSON."""
        try:
            return data_bodies(records)
        except Corrupt:  # some record is none, or has another kind of body: one by one
            return [_body_bytes(record) for record in records]

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        """See `Decoder.decode`."""
        return [
            # A lone data section, whose length says so, is what nearly every record is.
            Decoded(record[5:], NO_SECTIONS)
            if record[:4] == b"\x00Su\xa0" and len(record) > 4 and record[4] == len(record) - 5
            else _decoded(record)
            for record in records
        ]

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        """The routing key that RabbitMQ notes of a message published to an exchange, else its subject."""
        return [_key(decoded.sections) for decoded in self.decode(records)]

    def headers(self, records: Sequence[bytes]) -> list[list[tuple[str, bytes]]]:
        """The application properties."""
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
