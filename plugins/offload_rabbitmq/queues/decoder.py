"""The `amqp091` decoder: records of rescued queues as AMQP 0-9-1 messages.

A record of another format stays raw, with empty sections. So does one whose term is no message: its `queue`
has an `error`. Properties that pamqp cannot read are base64, with an `error` beside them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

import numpy as np

from offload.contracts.decoder import Decoded, Decoder
from offload.ground.errors import Corrupt
from offload.model.record_columns import Integers, RecordBytes
from offload_rabbitmq._amqp_json import to_jsonable
from offload_rabbitmq._amqp_templates import as_bytes
from offload_rabbitmq._amqp_values import Timestamp
from offload_rabbitmq.queues.messages import StoredMessage, read_message, read_properties
from offload_rabbitmq.queues.records import QueueRecord, decode_record

NO_SECTIONS: Final[dict[str, Any]] = {"exchange": None, "keys": [], "properties": {}, "queue": {}}
_WHERE: Final = "record"


class Amqp091Decoder(Decoder):
    """A decoder of the messages of classic queues."""

    has_timestamps: ClassVar[bool] = True

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the bodies of the messages."""
        return [record if (found := _message(record)) is None else found.body for record in records]

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        """Return the bodies, with the sections exchange, keys, properties and queue."""
        return [_decoded(record) for record in records]

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        """Return the routing key with which each message was published."""
        return [None if (found := _message(record)) is None else found.keys[0] for record in records]

    def headers(self, records: Sequence[bytes]) -> list[list[tuple[str, bytes]]]:
        """Return the headers of each message."""
        found = [_properties(record).get("headers", {}) for record in records]
        return [[(name, as_bytes(to_jsonable(value))) for name, value in each.items()] for each in found]

    def timestamps(self, records: RecordBytes) -> Integers:
        """Return the property `timestamp` of each message."""
        found = (_properties(record).get("timestamp") for record in records.to_list())
        times = (int(each.timestamp() * 1000) if isinstance(each, datetime) else -1 for each in found)
        return np.fromiter(times, np.int64, len(records))


def _message(record: bytes) -> StoredMessage | None:
    found = decode_record(record)
    try:
        return None if found is None else read_message(found.term, where=_WHERE)
    except Corrupt:
        return None


def _properties(record: bytes) -> dict[str, Any]:
    try:
        return {} if (found := _message(record)) is None else read_properties(found.properties, where=_WHERE)
    except Corrupt:
        return {}


def _decoded(record: bytes) -> Decoded:
    found = decode_record(record)
    if found is None:
        return Decoded(record, NO_SECTIONS)
    place = _place(found)
    try:
        message = read_message(found.term, where=_WHERE)
    except Corrupt as error:
        return Decoded(found.term, NO_SECTIONS | {"queue": place | {"error": str(error)}})
    try:
        properties = to_jsonable(read_properties(message.properties, where=_WHERE))
    except Corrupt as error:
        raw = base64.b64encode(message.properties).decode()
        properties = {"error": str(error), "encoding": "base64", "value": raw}
    sections = {
        "exchange": _text(message.exchange),
        "keys": [_text(each) for each in message.keys],
        "properties": properties,
        "queue": place,
    }
    return Decoded(message.body, sections)


def _place(found: QueueRecord) -> dict[str, Any]:
    expires = to_jsonable(Timestamp(found.expiry_us // 1000)) if found.expiry_us else None
    return {
        "sequence": found.sequence,
        "level": found.level,
        "redelivered": found.is_redelivered,
        "expires": expires,
    }


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
