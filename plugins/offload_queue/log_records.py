"""The records of a vhost's log and of its stream on a tier.

    first byte  record                  where     content
    (none)      a flying write          log       nothing: all queues had acknowledged the message
    1           a message               both      `HEAD`, the ids of its queues, headers, body
    2           a control               both      one of `Control` as MessagePack
    3           a message of one queue  tier      its tag, and a message without ids
    4           a reference             tier      its tag, and the tier offset of a message (kind 1)

`HEAD` is kind, priority, number of queues, size of the headers, expiry in milliseconds. Integers are
big-endian. Sizes are checked before anything is taken by them, and a control is decoded by types.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from offload.ground.errors import Corrupt
from offload_queue.backing_queue import MessageProperties

__all__ = ["PLAIN", "MessageTags", "StoreState"]

MessageTags: TypeAlias = npt.NDArray[np.int64]

MESSAGE: Final = 1
CONTROL: Final = 2
TIER_MESSAGE: Final = 3
TIER_REFERENCE: Final = 4

HEAD: Final = struct.Struct(">BBIIQ")
IDS_AT: Final = HEAD.size
TAGGED: Final = struct.Struct(">BQ")
REFERENCE: Final = struct.Struct(">BQQ")
assert (HEAD.size, TAGGED.size, REFERENCE.size) == (18, 9, 17)

PLAIN: Final = MessageProperties()
PLAIN_HEAD: Final = HEAD.pack(MESSAGE, 0, 0, 0, 0)
"""The head of a message on a tier that has no properties."""


class PackedOffsets(msgspec.Struct, array_like=True, frozen=True):
    """Ascending offsets: the first one, and the differences as integers of `width` bytes."""

    first: int
    width: int
    differences: bytes

    @classmethod
    def of(cls, offsets: MessageTags) -> PackedOffsets:
        """Pack at least one offset."""
        differences = np.diff(offsets)
        largest = int(differences.max()) if len(differences) else 0
        width = next(width for width in (1, 2, 4, 8) if largest < 1 << 8 * width)
        return cls(int(offsets[0]), width, differences.astype(f"<u{width}").tobytes())

    def unpack(self) -> MessageTags:
        """Return the offsets. Raises `ValueError` if the bytes are none."""
        if self.width not in (1, 2, 4, 8) or not 0 <= self.first < 2**62:
            raise ValueError(f"{self.first} and {self.width} begin no offsets")
        differences = np.frombuffer(self.differences, f"<u{self.width}").astype(np.int64)
        found = np.empty(len(differences) + 1, np.int64)
        found[0] = self.first
        np.cumsum(differences, out=found[1:])
        found[1:] += self.first
        if len(differences) and (differences.min() <= 0 or found[-1] < self.first):
            raise ValueError("offsets that do not ascend")
        return found


class QueueAcks(msgspec.Struct, array_like=True, frozen=True):
    """Acknowledged messages of one queue: offsets of the log, or of the tier."""

    queue: int
    on_tier: bool
    offsets: PackedOffsets


class Acks(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Acknowledgements of several queues."""

    queues: list[QueueAcks]


class QueueDeclared(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """A new queue."""

    queue: int
    name: str


class QueueDeleted(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """A queue that is gone with all of its messages."""

    queue: int


class RunState(msgspec.Struct, array_like=True, frozen=True):
    """A run of messages of a queue on the tier."""

    offset: int
    count: int
    first: int
    last: int
    size_bytes: int
    acked: bytes
    """A bit for each position. Empty: none is acknowledged."""


class QueueState(msgspec.Struct, array_like=True, frozen=True):
    """A queue, without its messages that are in the log."""

    queue: int
    name: str
    given: int
    runs: list[RunState]


class BatchState(msgspec.Struct, array_like=True, frozen=True):
    """A ledger of the tier: what one commit has appended."""

    first: int
    end: int
    size_bytes: int


class StoreState(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """Everything of a vhost but the messages, at one moment."""

    instance: str
    moved: int
    """Messages below this tag are on the tier, or gone."""
    next_queue: int
    is_clean: bool
    """True in the last record of a log that was closed."""
    queues: list[QueueState]
    batches: list[BatchState]


Control: TypeAlias = Acks | QueueDeclared | QueueDeleted | StoreState
_DECODER: Final = msgspec.msgpack.Decoder(Control)
_ENCODER: Final = msgspec.msgpack.Encoder()


def unpacked(parts: Sequence[PackedOffsets]) -> MessageTags:
    """Return the offsets of all parts in one array, and no more memory than that and one part."""
    found = np.empty(sum(1 + len(part.differences) // max(part.width, 1) for part in parts), np.int64)
    at = 0
    for part in parts:
        offsets = part.unpack()
        found[at : at + len(offsets)] = offsets
        at += len(offsets)
    return found


def head_of(queues: Sequence[int], properties: MessageProperties = PLAIN) -> bytes:
    """Return what is before the body of a message."""
    expires_ms, priority, headers = properties
    ids = np.array(queues, ">u4").tobytes()
    return HEAD.pack(MESSAGE, priority, len(queues), len(headers), expires_ms) + ids + headers


def without_queues(record: bytes) -> bytes:
    """Return a message without the ids of its queues."""
    kind, priority, queues, headers, expires_ms = HEAD.unpack_from(record)
    return HEAD.pack(kind, priority, 0, headers, expires_ms) + record[IDS_AT + 4 * queues :]


def message_of(record: bytes, *, where: str, offset: int) -> tuple[bytes, MessageProperties]:
    """Return body and properties. Raises `Corrupt` if the record is no message."""
    if len(record) >= HEAD.size:
        kind, priority, queues, headers_size, expires_ms = HEAD.unpack_from(record)
        at = IDS_AT + 4 * queues
        body_at = at + headers_size
        if kind == MESSAGE and body_at <= len(record):
            if not (priority or headers_size or expires_ms):
                return record[body_at:], PLAIN
            return record[body_at:], MessageProperties(expires_ms, priority, record[at:body_at])
    raise Corrupt("record of a queue", f"{where}, offset {offset}", expected="a message", found=record[:20])


def queues_of(record: bytes, *, where: str, offset: int) -> MessageTags:
    """Return the ids of the queues of a message."""
    message_of(record, where=where, offset=offset)
    return np.frombuffer(record, ">u4", HEAD.unpack_from(record)[2], IDS_AT).astype(np.int64)


def encode_control(control: Control) -> bytes:
    """Return the record of a control."""
    return bytes([CONTROL]) + _ENCODER.encode(control)


def decode_control(record: bytes, *, where: str, offset: int) -> Control:
    """Return the control in a record. Raises `Corrupt`."""
    try:
        found = _DECODER.decode(memoryview(record)[1:])
        if isinstance(found, Acks):
            for each in found.queues:
                each.offsets.unpack()
    except (msgspec.DecodeError, ValueError) as exc:
        raise Corrupt(
            "control record", f"{where}, offset {offset}", expected="a control", found=str(exc)
        ) from exc
    return found
