"""The `mqtt` decoder: records of messages with topics (`topic_record`).

The value is the payload of an MQTT message. The sections are `topic`; `origin`, the offset before the
messages were sorted; `time_us`, when the message came; and `qos`, `retain` and `dup` as MQTT has them. The
key is the topic. A record of another format stays raw, and its topic is empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from offload.contracts.decoder import Decoded, Decoder, RecordSelector
from offload.formats.rows import ValuePool, column_of
from offload.model.record_columns import ByteColumn, HeaderColumn, Integers, RecordBytes
from offload_mqtt.selector import TopicSelector
from offload_mqtt.topic_record import RecordFlag, columns_of
from offload_mqtt.topics import TopicFilter

__all__ = ["MqttDecoder"]


class MqttDecoder(Decoder):
    """A decoder of records of messages with topics."""

    has_timestamps: ClassVar[bool] = True
    has_range_keys: ClassVar[bool] = True

    def columns(self, records: RecordBytes, names: Sequence[str]) -> Mapping[str, ByteColumn | HeaderColumn]:
        """Return columns as `Decoder.columns` says. Topics and payloads need no object for each record."""
        if not {*names} <= {"topic", "key", "body"}:
            return super().columns(records, names)
        found = columns_of(records)
        texts = {topic: _json(_shown(topic)) for topic in {*found.topics}}
        rests = ValuePool(found.rests.data, found.rests.starts, found.rests.sizes)
        return {
            name: column_of([rests], len(records))
            if name == "body"
            else ByteColumn.of([topic or None if name == "key" else texts[topic] for topic in found.topics])
            for name in names
        }

    def bodies(self, records: Sequence[bytes]) -> list[bytes]:
        """Return the payloads."""
        return columns_of(RecordBytes.of(records)).rests.to_list()

    def decode(self, records: Sequence[bytes]) -> list[Decoded]:
        """Return payloads and sections."""
        found = columns_of(RecordBytes.of(records))
        numbers = zip(found.origins.tolist(), found.times_us.tolist(), found.flags.tolist(), strict=True)
        return [
            Decoded(
                rest,
                {
                    "topic": _shown(topic),
                    "origin": origin,
                    "time_us": time_us,
                    "qos": flags & RecordFlag.QOS,
                    "retain": bool(flags & RecordFlag.RETAIN),
                    "dup": bool(flags & RecordFlag.DUP),
                },
            )
            for topic, rest, (origin, time_us, flags) in zip(
                found.topics, found.rests.to_list(), numbers, strict=True
            )
        ]

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        """Return the topic of each record, if it has one."""
        return [topic or None for topic in columns_of(RecordBytes.of(records)).topics]

    def topic_selector(self, filters: Sequence[str]) -> RecordSelector:
        """Return the selection of the records whose topic one of these filters matches."""
        return TopicSelector([TopicFilter.parse(each) for each in filters])

    def range_keys(self, terms: Sequence[bytes]) -> tuple[bytes, Sequence[bytes]]:
        """Return the structures of these topics, and the key of each of them."""
        from offload_mqtt.topic_order import TopicOrder  # it needs pyarrow, and reading does not

        topics = dict.fromkeys(terms)
        order = TopicOrder.of([*topics])
        keys = dict(zip(topics, map(order.key, range(len(topics))), strict=True))
        return order.about, [keys[term] for term in terms]

    def timestamps(self, records: RecordBytes) -> Integers:
        """Return the time at which each message came."""
        times_us = columns_of(records).times_us
        times_us[times_us >= 0] //= 1000
        times_us[times_us < 0] = -1
        return times_us


def _shown(topic: bytes) -> str:
    return topic.decode(errors="backslashreplace")


def _json(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()
