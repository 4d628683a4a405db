"""The `amqp` decoder: records as the AMQP 1.0 messages that RabbitMQ's own clients store.

A record that is no AMQP message stays raw, with empty sections, because the broker accepts any bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from offload.contracts.decoder import Decoded, Decoder
from offload.ground.errors import Corrupt
from offload.model.record_columns import ByteColumn, HeaderColumn, Integers, RecordBytes
from offload_rabbitmq._amqp_columns import AmqpColumns
from offload_rabbitmq._amqp_templates import ROUTING_KEY, as_bytes
from offload_rabbitmq.amqp import Timestamp, data_bodies, decode, to_jsonable

RECEIVED_TIME: Final = "x-opt-rabbitmq-received-time"
"""The annotation of RabbitMQ's interceptor `message_interceptors.incoming.set_header_timestamp`."""

NO_SECTIONS: Final[dict[str, Any]] = {"properties": {}, "application_properties": {}, "annotations": {}}


class AmqpDecoder(Decoder):
    """A decoder of AMQP 1.0 messages. It is for one thread at a time."""

    has_timestamps: ClassVar[bool] = True

    def __init__(self) -> None:
        self._columns = AmqpColumns(_decoded, _body_alone, _rest)

    def columns(self, records: RecordBytes, names: Sequence[str]) -> Mapping[str, ByteColumn | HeaderColumn]:
        """Return columns as `Decoder.columns` says. Each record is parsed once."""
        return self._columns.columns(records, names)

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the bodies as `Decoder.bodies` says: joined data sections, a text or bytes, else JSON."""
        try:
            return data_bodies(records)
        except Corrupt:  # one of them is no message, or has another kind of body: decode each by itself
            return [_body_alone(record) for record in records]

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

    def timestamps(self, records: RecordBytes) -> Integers:
        """Return the creation time of each message, else the time at which RabbitMQ notes that it came."""
        return np.fromiter((_time_ms(record) for record in records.to_list()), np.int64, len(records))

    def headers(self, records: Sequence[bytes]) -> list[list[tuple[str, bytes]]]:
        """Return the application properties."""
        return [_headers(decoded.sections) for decoded in self.decode(records)]


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


def _body_alone(record: bytes) -> bytes:
    """Return the body of one record, whatever other records are damaged."""
    try:
        return data_bodies([record])[0]
    except Corrupt:
        value = _decoded(record).value
    return value if isinstance(value, bytes) else as_bytes(value)


def _time_ms(record: bytes) -> int:
    try:
        message = decode(record)
    except Corrupt:
        return -1
    times = message.properties.get("creation_time"), message.message_annotations.get(RECEIVED_TIME)
    return next((int(time) for time in times if isinstance(time, Timestamp) and time >= 0), -1)


def _key(sections: Mapping[str, Any]) -> bytes | None:
    key = sections["annotations"].get(ROUTING_KEY, sections["properties"].get("subject"))
    return None if key is None else as_bytes(key)


def _headers(sections: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    return [(name, as_bytes(value)) for name, value in sections["application_properties"].items()]


def _rest(decoded: Decoded) -> tuple[bytes | None, list[tuple[str, bytes]]]:
    return _key(decoded.sections), _headers(decoded.sections)
