"""The `pulsar` decoder: records as entries of Pulsar, with all messages of their batches.

A record that is no entry, or whose checksum is wrong, stays raw, and its metadata has an `error`.
docs/pulsar.md shows the rows.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from offload.contracts.decoder import Decoded, Decoder
from offload.ground.errors import Corrupt
from offload.model.record_columns import Integers, RecordBytes
from offload_pulsar.ledger_metadata import message_class
from offload_pulsar.messages import EntryMessage, PulsarEntry

__all__ = ["PulsarDecoder"]


EXPANDED_SIZE_BYTES_MAX: Final = 256 * 2**20
"""The most that one call of `decode` or `bodies` expands. The records behind it keep their stored bytes."""

_MESSAGE_WEIGHT: Final = 1024
"""The bytes as which a message counts, beside its value: its objects in memory."""

_WHERE: Final = "entry"


class PulsarDecoder(Decoder):
    """A decoder of Pulsar's entries."""

    holds_several: ClassVar[bool] = True
    has_timestamps: ClassVar[bool] = True

    def __init__(self) -> None:
        """Raise `Misuse` if the library of the messages is not installed."""
        message_class("messages.EntryMetadata")

    def messages(self, records: Sequence[bytes]) -> Iterator[tuple[int, Decoded]]:
        """Yield every message as `Decoder.messages` says. Memory is bounded by one entry."""
        for number, record in enumerate(records):
            for each in _messages(record):
                yield number, Decoded(each.value, _sections(each))

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        """Return one value for each record: that of its only message, or the list of the batch."""
        return [
            Decoded(messages if _is_batch(found) else found[0].value, {"messages": messages})
            for found, messages in ((found, [_as_json(each) for each in found]) for found in _all(records))
        ]

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the values as bytes. A batch is JSON, and a message without a value is empty."""
        return [
            json.dumps([_as_json(each) for each in found], ensure_ascii=False, separators=(",", ":")).encode()
            if _is_batch(found)
            else found[0].value or b""
            for found in _all(records)
        ]

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        """Return the key of each entry: of its only message, or None for a batch whose keys differ."""
        return [_common_key(_messages(record)) for record in records]

    def timestamps(self, records: RecordBytes) -> Integers:
        """Return the time at which each entry was published. All messages of a batch have one time."""
        return np.fromiter((_published_ms(record) for record in records.to_list()), np.int64, len(records))

    def headers(self, records: Sequence[bytes]) -> list[list[tuple[str, bytes]]]:
        """Return the properties of all messages of each entry, in order."""
        return [
            [(name, value.encode()) for each in found for name, value in each.properties]
            for found in _all(records)
        ]


def _all(records: Sequence[bytes]) -> Iterator[list[EntryMessage]]:
    """Yield the messages of each record, until the records behind are too much for one call."""
    room = EXPANDED_SIZE_BYTES_MAX
    for record in records:
        found = list[EntryMessage]()
        for each in _messages(record):
            room -= _MESSAGE_WEIGHT + len(each.value or b"")
            if room < 0:
                most = EXPANDED_SIZE_BYTES_MAX
                found = [
                    _raw(record, f"too large to expand with the records before it, at most {most} bytes")
                ]
                break
            found.append(each)
        yield found


def _messages(record: bytes) -> Iterator[EntryMessage]:
    try:
        entry = PulsarEntry.decode(record, where=_WHERE)
    except Corrupt as error:
        yield _raw(record, str(error))
    else:
        yield from entry.messages(where=_WHERE)


def _published_ms(record: bytes) -> int:
    try:
        found = PulsarEntry.decode(record, where=_WHERE).publish_ms
    except Corrupt:
        return -1
    return found if found < 2**63 else -1  # a producer may have sent any 64 bits


def _raw(record: bytes, error: str) -> EntryMessage:
    return EntryMessage(value=record, batch_index=None, key=None, properties=(), metadata={"error": error})


def _is_batch(found: list[EntryMessage]) -> bool:
    return found[0].batch_index is not None


def _sections(message: EntryMessage) -> dict[str, Any]:
    return {
        "batch_index": message.batch_index,
        "key": message.key,
        "properties": dict(message.properties),
        "metadata": message.metadata,
    }


def _as_json(message: EntryMessage) -> dict[str, Any]:
    """Return a message as `offload read` prints it, without its offset."""
    value: dict[str, Any] = {"value": None}
    if message.value is not None:
        try:
            value = {"value": message.value.decode()}
        except UnicodeDecodeError:
            value = {"value": base64.b64encode(message.value).decode(), "encoding": "base64"}
    return value | _sections(message)


def _common_key(found: Iterator[EntryMessage]) -> bytes | None:
    first = _key_of(next(found))
    return first if all(_key_of(each) == first for each in found) else None


def _key_of(message: EntryMessage) -> bytes | None:
    if message.key is None:
        return None
    if message.metadata.get("key_is_base64"):
        try:
            return base64.b64decode(message.key, validate=True)
        except binascii.Error:
            return message.key.encode()
    return message.key.encode()
