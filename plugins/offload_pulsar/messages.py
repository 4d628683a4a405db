"""The messages in an entry, as Pulsar's producers and brokers frame them.

```text
entry      broker part | checksum part | size (4 bytes) | EntryMetadata | payload
broker     0E 02 | size (4 bytes) | BrokerMetadata           only with a broker that adds it
checksum   0E 01 | CRC-32C (4 bytes) of the rest             only by clients that send one: all of today
batch      the plain payload: size (4 bytes) | SingleMetadata | payload of the message | size | ...
```

A payload is compressed first, and encrypted then. An encrypted payload is left as it is, because only the
consumers have the keys. Nothing here trusts a size: memory is bounded by the bytes of the entry and by
`PLAIN_SIZE_BYTES_MAX`, and messages are made one by one. Integers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from offload.contracts.store import Buffer
from offload.formats.checksums import crc32c
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload_pulsar.ledger_metadata import MESSAGE_SIZE_BYTES_MAX, parsed_message
from offload_pulsar.payloads import CompressionName, plain_payload

__all__ = ["CHECKSUM_OF_ENTRY", "EntryMessage", "PulsarEntry", "is_checked"]


BROKER_MAGIC: Final = bytes.fromhex("0e02")
CHECKSUM_MAGIC: Final = bytes.fromhex("0e01")
CHECKSUM_OF_ENTRY: Final = "checksum of the entry"
"""What `Corrupt` names if the checksum is wrong."""

_SIZE: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryMessage:
    """One message of an entry."""

    value: bytes | None
    """The payload. None for a message without a value. As it was stored, if it could not be read."""

    batch_index: int | None
    """Its number in the batch, from 0. None if the entry is no batch."""

    key: str | None
    properties: tuple[tuple[str, str], ...]
    metadata: dict[str, Any]
    """What else is known of the message, ready for JSON. Only what was present, and perhaps an `error`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PulsarEntry:
    """An entry whose checksum, if it has one, was right."""

    metadata: Any
    """The `EntryMetadata`."""

    broker: Any | None
    """The `BrokerMetadata`, or None."""

    has_checksum: bool
    payload: Buffer
    """As it is stored: perhaps compressed, and perhaps encrypted."""

    @classmethod
    def decode(cls, raw: Buffer, *, where: str) -> PulsarEntry:
        """Read the parts of an entry. Raises `Corrupt` for other bytes, and for a wrong checksum."""
        view, at, broker = memoryview(raw), 0, None
        if view[:2] == BROKER_MAGIC:
            packed, at = _sized(view, 2, where)
            broker = parsed_message(
                "messages.BrokerMetadata", bytes(packed), where, 6, MESSAGE_SIZE_BYTES_MAX
            )
        has_checksum = _has_checksum(view, at, where, 0)
        at += 6 if has_checksum else 0
        packed, end = _sized(view, at, where)
        metadata = parsed_message(
            "messages.EntryMetadata", bytes(packed), where, at + 4, MESSAGE_SIZE_BYTES_MAX
        )
        return cls(metadata=metadata, broker=broker, has_checksum=has_checksum, payload=view[end:])

    @property
    def is_batch(self) -> bool:
        """True if the payload frames several messages, or one."""
        return bool(self.metadata.HasField("num_messages_in_batch"))

    @property
    def is_encrypted(self) -> bool:
        """True if the payload is encrypted."""
        return len(self.metadata.encryption_keys) > 0

    @property
    def publish_ms(self) -> int:
        """The time when the producer sent the entry."""
        return int(self.metadata.publish_time)

    def messages(self, *, where: str) -> Iterator[EntryMessage]:
        """Yield the messages, one by one. It never raises for a payload.

        A payload that cannot be read, or the rest of a batch, is the value of a last message with an `error`.
        """
        common = self._common()
        if self.is_encrypted:
            yield self._single(bytes(self.payload), common)
            return
        try:
            meta = self.metadata
            plain = plain_payload(self.payload, meta.compression, meta.uncompressed_size, where=where)
        except (Corrupt, UnsupportedFormat) as error:
            yield self._single(bytes(self.payload), {**common, "error": str(error)})
            return
        if self.is_batch:
            yield from self._batch(plain, common, where)
        else:
            yield self._single(plain, common)

    def _single(self, value: bytes, metadata: dict[str, Any]) -> EntryMessage:
        meta = self.metadata
        has_none = meta.null_value and not value
        return EntryMessage(
            value=None if has_none else value,
            batch_index=None,
            key=_key(meta),
            properties=_pairs(meta.properties),
            metadata={**metadata, **_own(meta)},
        )

    def _batch(self, plain: bytes, common: dict[str, Any], where: str) -> Iterator[EntryMessage]:
        count, at, index = self.metadata.num_messages_in_batch, 0, 0
        try:
            while index < count:
                packed, begin = _sized(memoryview(plain), at, where)
                single = parsed_message(
                    "messages.SingleMetadata", bytes(packed), where, at + 4, MESSAGE_SIZE_BYTES_MAX
                )
                size, rest = single.payload_size, len(plain) - begin
                if not 0 <= size <= rest:
                    most = f"0 to {rest}"
                    raise Corrupt("size of a message", where, expected=most, found=size, position=at)
                yield self._of_batch(single, plain[begin : begin + size], index, common)
                at, index = begin + size, index + 1
            if at < len(plain) or count <= 0:
                found = f"{len(plain) - at} more bytes"
                raise Corrupt("messages of a batch", where, expected=count, found=found, position=at)
        except Corrupt as error:
            yield EntryMessage(
                value=plain[at:],
                batch_index=index,
                key=None,
                properties=(),
                metadata={**common, "error": str(error)},
            )

    def _of_batch(self, single: Any, value: bytes, index: int, common: dict[str, Any]) -> EntryMessage:
        metadata = common if single.HasField("sequence_id") else {**common, "sequence_id": self._sequence_id}
        own = _own(single)
        if single.compacted_out:
            own["compacted_out"] = True
        return EntryMessage(
            value=None if single.null_value and not value else value,
            batch_index=index,
            key=_key(single),
            properties=_pairs(single.properties),
            metadata={**metadata, **own},
        )

    @property
    def _sequence_id(self) -> int:
        return int(self.metadata.sequence_id)

    def _common(self) -> dict[str, Any]:
        """Return what holds for all messages of the entry."""
        meta, found = self.metadata, dict[str, Any]()
        if self.broker is not None:
            for name, field in (("broker_timestamp", "broker_timestamp"), ("broker_index", "index")):
                if self.broker.HasField(field):
                    found[name] = getattr(self.broker, field)
        found["producer"] = text_of(meta.producer_name)
        found["publish_time"] = self.publish_ms
        if not self.has_checksum:
            found["checksum"] = False
        if meta.compression:
            known = 0 < meta.compression < len(CompressionName)
            found["compression"] = CompressionName[meta.compression] if known else meta.compression
        if self.is_batch:
            found["batch_size"] = meta.num_messages_in_batch
        if meta.HasField("deliver_at_time"):
            found["deliver_at"] = meta.deliver_at_time
        for name in ("replicated_from", "marker_type"):
            if meta.HasField(name):
                value = getattr(meta, name)
                found[name] = text_of(value) if isinstance(value, bytes) else value
        if meta.replicate_to:
            found["replicate_to"] = [text_of(each) for each in meta.replicate_to]
        if meta.HasField("schema_version"):
            found["schema_version"] = meta.schema_version.hex()
        if meta.HasField("txnid_most_bits"):
            found["transaction"] = [meta.txnid_most_bits, meta.txnid_least_bits]
        if meta.HasField("chunk_id"):
            found["chunk"] = {
                "id": meta.chunk_id,
                "uuid": text_of(meta.uuid),
                "size": meta.total_chunk_msg_size,
                "chunks": meta.num_chunks_from_msg,
            }
        if self.is_encrypted:
            names = [text_of(each.key) for each in meta.encryption_keys]
            found["encryption"] = {"algorithm": text_of(meta.encryption_algo), "keys": names}
        return found


def is_checked(entry: Buffer, *, where: str, position: int = 0) -> bool:
    """Return True if an entry has a checksum of its own, and False if it has none.

    Raises `Corrupt` for a wrong one. Nothing else of the entry is looked at. `position` is that of the entry
    in its object.
    """
    view, at = memoryview(entry), 0
    if view[:2] == BROKER_MAGIC and len(view) >= 6:
        at = 6 + int.from_bytes(view[2:6], "big")
    return _has_checksum(view, at, where, position)


def _has_checksum(view: memoryview, at: int, where: str, position: int) -> bool:
    if view[at : at + 2] != CHECKSUM_MAGIC:
        return False
    found, stored = crc32c(view[at + 6 :]), int.from_bytes(view[at + 2 : at + 6], "big")
    if found != stored:
        byte = position + at + 2
        raise Corrupt(CHECKSUM_OF_ENTRY, where, expected=stored, found=found, position=byte)
    return True


def text_of(raw: bytes) -> str:
    """Return the text of a field. Bytes that are no UTF-8 become escapes of a backslash and their value."""
    return raw.decode("utf-8", "backslashreplace")


def _own(meta: Any) -> dict[str, Any]:
    """Return the fields that a message of a batch has for itself, and a single one for its entry."""
    found = dict[str, Any]()
    for name in ("sequence_id", "event_time"):
        if meta.HasField(name):
            found[name] = getattr(meta, name)
    if meta.partition_key_b64_encoded:
        found["key_is_base64"] = True
    if meta.HasField("ordering_key"):
        found["ordering_key"] = meta.ordering_key.hex()
    return found


def _key(meta: Any) -> str | None:
    has_none = meta.null_partition_key or not meta.HasField("partition_key")
    return None if has_none else text_of(meta.partition_key)


def _pairs(properties: Any) -> tuple[tuple[str, str], ...]:
    return tuple((text_of(each.key), text_of(each.value)) for each in properties)


def _sized(view: memoryview, at: int, where: str) -> tuple[memoryview, int]:
    """Return the bytes behind a size at `at`, and where they end. Raises `Corrupt` if they are cut off."""
    if at + _SIZE.size > len(view):
        raise Corrupt("size of metadata", where, expected="4 bytes", found=len(view) - at, position=at)
    begin = at + _SIZE.size
    (size,) = _SIZE.unpack_from(view, at)
    if size > len(view) - begin:
        rest = f"at most {len(view) - begin}"
        raise Corrupt("size of metadata", where, expected=rest, found=size, position=at)
    return view[begin : begin + size], begin + size
