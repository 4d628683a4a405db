"""Records of messages with topics (decision 46): a head of 20 bytes, the topic, and the rest.

    kind          1   0 no message, 1 AMQP message, 2 MQTT message
    flags         1   QoS in bits 0 and 1, retain in bit 2, dup in bit 3. Zero of an AMQP message
    topic size    2
    origin        8   the offset in the origin. An unsorted record has 0 or anything
    time          8   microseconds since 1970, signed
    topic             UTF-8. Empty if the record has no MQTT topic name
    rest              the AMQP message, or the payload of the MQTT message

Integers are big-endian. A record of another format is shown as kind 0 without a topic, and its rest is all of
it: nothing that a size states is believed before it was compared with the record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.ground.errors import Misuse
from offload.model.record_columns import Integers, RecordBytes

__all__ = [
    "HEAD",
    "TOPIC_SIZE_BYTES_MAX",
    "RecordFlag",
    "RecordKind",
    "TopicRecords",
    "columns_of",
    "encode_record",
]

HEAD: Final = np.dtype(
    [("kind", "u1"), ("flags", "u1"), ("topic_size", ">u2"), ("origin", ">u8"), ("time_us", ">i8")]
)
_HEAD: Final = struct.Struct(">BBHQq")
assert _HEAD.size == HEAD.itemsize == 20

TOPIC_SIZE_BYTES_MAX: Final = 2**16 - 1


class RecordKind(IntEnum):
    """What a record is made of."""

    NOTHING = 0
    AMQP = 1
    MQTT = 2


class RecordFlag(IntFlag):
    """The flags of a record. The two lowest bits are the QoS."""

    QOS = 3
    RETAIN = 4
    DUP = 8


def encode_record(kind: int, flags: int, origin: int, time_us: int, topic: bytes, rest: bytes) -> bytes:
    """Return a record. Raises `Misuse` for a topic that is longer than MQTT allows."""
    if len(topic) > TOPIC_SIZE_BYTES_MAX:
        raise Misuse(f"a topic of {len(topic)} bytes: MQTT allows {TOPIC_SIZE_BYTES_MAX}")
    return b"".join((_HEAD.pack(kind, flags, len(topic), origin, time_us), topic, rest))


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """The parts of records as columns, one row for each record."""

    kinds: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    origins: npt.NDArray[np.uint64]
    times_us: npt.NDArray[np.int64]
    topics: list[bytes]
    rests: RecordBytes


def columns_of(records: RecordBytes) -> TopicRecords:
    """Return the parts of records. No record makes it fail."""
    size = HEAD.itemsize
    is_whole = records.sizes >= size
    # A record that is shorter than a head is read as if the first one, or zeros, were there.
    starts: Integers = np.where(is_whole, records.starts, 0)
    data = records.data if len(records.data) >= size else np.zeros(size, np.uint8)
    heads = data[starts[:, None] + np.arange(size)].reshape(-1).view(HEAD)
    topic_sizes = heads["topic_size"].astype(np.int64)
    is_whole &= (records.sizes >= size + topic_sizes) & (heads["kind"] <= max(RecordKind))
    topic_sizes[~is_whole] = 0
    topics = RecordBytes(records.data, records.starts + size, topic_sizes)
    skipped = np.where(is_whole, size + topic_sizes, 0)
    return TopicRecords(
        kinds=np.where(is_whole, heads["kind"], 0).astype(np.uint8),
        flags=np.where(is_whole, heads["flags"], 0).astype(np.uint8),
        origins=np.where(is_whole, heads["origin"], 0).astype(np.uint64),
        times_us=np.where(is_whole, heads["time_us"], -1).astype(np.int64),
        topics=topics.to_list(),
        rests=RecordBytes(records.data, records.starts + skipped, records.sizes - skipped),
    )
