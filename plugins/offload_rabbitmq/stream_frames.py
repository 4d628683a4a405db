"""The frames of RabbitMQ's stream protocol, for both sides: one table encodes and decodes every command.

    frame      size u32 | key u16, top bit 1 in a response | version u16 | the fields of its row in `TABLE`

**A client** encodes requests and decodes what the server sends:

    data = encode(Key.QUERY_OFFSET, correlation=7, reference="app", stream="orders")
    frame = decode(content, Sender.SERVER, where=address)     # content: the frame without its size
    frame.key, frame.is_response, frame["offset"]

**A server** decodes with `Sender.CLIENT` and answers, with the correlation of the request:

    data = encode(Key.QUERY_OFFSET, response=True, correlation=frame["correlation"], code=Code.OK, offset=41)

- Read the 4 bytes of the size first, and compare it with the largest frame that you accept. Then read so
  many bytes, and decode them.
- `decode` returns an `UnknownFrame` for a key or a version that the table does not have from this side. It
  raises `Corrupt` if the content does not fit the row. RabbitMQ answers both, on an open connection, with a
  request of its own: `Key.CLOSE` with `Code.UNKNOWN_FRAME` and the reason `unknown frame`.
- A response with another code than `OK` may end after the code. Leave out fields to let it end there. Fields
  that a frame leaves out are read as zero or empty. RabbitMQ sends `offset=0` with a refused `QUERY_OFFSET`,
  and an empty list with a refused `PARTITIONS` or `ROUTE`.
- `DELIVER` has the header and the entries of a chunk as its last field. A server need not copy them:
  `head_of(Key.DELIVER)` packs the bytes of a frame before its last field, and the chunk is sent behind them.
- A request and a one-way command have no byte behind their fields. Bytes behind those of a response are
  passed over, because a newer broker may add a field.

This module does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final

from offload.ground.errors import Misuse
from offload_rabbitmq.stream_wire import (
    BYTES_AT_END,
    BYTES_OR_NONE,
    I64,
    MESSAGE,
    OFFSET,
    PAIRS,
    PAIRS_AT_END,
    REST,
    TEXT,
    TEXT_OR_NONE,
    U8,
    U16,
    U32,
    U64,
    Array,
    FieldType,
    FrameCursor,
    Number,
)

RESPONSE: Final = 0x8000
SIZE: Final = struct.Struct(">I")
_HEAD: Final = struct.Struct(">IHH")
_KEY_AND_VERSION: Final = struct.Struct(">HH")
FRAME_SIZE_BYTES_MIN: Final = 4
"""The size of a frame without fields: a heartbeat."""


class Sender(StrEnum):
    """The side of a connection that sends a frame."""

    CLIENT = "client"
    SERVER = "server"


class Key(IntEnum):
    """The commands."""

    DECLARE_PUBLISHER = 1
    PUBLISH = 2
    PUBLISH_CONFIRM = 3
    PUBLISH_ERROR = 4
    QUERY_PUBLISHER_SEQUENCE = 5
    DELETE_PUBLISHER = 6
    SUBSCRIBE = 7
    DELIVER = 8
    CREDIT = 9
    STORE_OFFSET = 10
    QUERY_OFFSET = 11
    UNSUBSCRIBE = 12
    CREATE = 13
    DELETE = 14
    METADATA = 15
    METADATA_UPDATE = 16
    PEER_PROPERTIES = 17
    SASL_HANDSHAKE = 18
    SASL_AUTHENTICATE = 19
    TUNE = 20
    OPEN = 21
    CLOSE = 22
    HEARTBEAT = 23
    ROUTE = 24
    PARTITIONS = 25
    CONSUMER_UPDATE = 26
    EXCHANGE_COMMAND_VERSIONS = 27
    STREAM_STATS = 28
    CREATE_SUPER_STREAM = 29
    DELETE_SUPER_STREAM = 30
    RESOLVE_OFFSET_SPEC = 31


class Code(IntEnum):
    """The codes of responses."""

    OK = 1
    NO_STREAM = 2
    SUBSCRIPTION_EXISTS = 3
    NO_SUBSCRIPTION = 4
    STREAM_EXISTS = 5
    STREAM_NOT_AVAILABLE = 6
    NO_MECHANISM = 7
    AUTHENTICATION_FAILED = 8
    SASL_ERROR = 9
    SASL_CHALLENGE = 10
    ONLY_LOOPBACK = 11
    NO_VIRTUAL_HOST = 12
    UNKNOWN_FRAME = 13
    FRAME_TOO_LARGE = 14
    INTERNAL_ERROR = 15
    ACCESS_REFUSED = 16
    PRECONDITION_FAILED = 17
    NO_PUBLISHER = 18
    NO_OFFSET = 19
    CANNOT_CHANGE_MECHANISM = 20
    CANNOT_CHANGE_USER = 21


@dataclass(frozen=True, slots=True)
class FrameRow:
    """A row of the table: a frame, the sides that send it, and its fields in the order of their bytes."""

    key: Key
    sent_by: tuple[Sender, ...]
    fields: Mapping[str, FieldType[Any]]
    version: int = 1
    is_response: bool = False

    @property
    def stated_key(self) -> int:
        """The key in the bytes of the frame."""
        return self.key | RESPONSE if self.is_response else self.key

    def may_end_before(self, kind: FieldType[Any], fields: Mapping[str, Any]) -> bool:
        """Return True if a frame with the fields that come before may end here."""
        return kind.may_end or (self.is_response and fields.get("code", Code.OK) != Code.OK)


@dataclass(slots=True)
class Frame:
    """A frame that was decoded. `frame["name"]` is a field."""

    key: Key
    version: int
    is_response: bool
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Return a field."""
        return self.fields[name]


@dataclass(frozen=True, slots=True)
class UnknownFrame:
    """A frame of a key or a version that this side does not send, as far as the table knows."""

    key: int
    """The key in the bytes of the frame: the top bit is set in a response."""

    version: int


CLIENT: Final = (Sender.CLIENT,)
SERVER: Final = (Sender.SERVER,)
BOTH: Final = (Sender.CLIENT, Sender.SERVER)
CORRELATION: Final[Mapping[str, FieldType[Any]]] = {"correlation": U32}
RESULT: Final[Mapping[str, FieldType[Any]]] = {"correlation": U32, "code": U16}


def _asked(
    key: Key,
    /,
    *answer: tuple[str, FieldType[Any]],
    by: tuple[Sender, ...] = CLIENT,
    **fields: FieldType[Any],
) -> tuple[FrameRow, FrameRow]:
    """Return the rows of a request with these fields, and of its response with the fields of `answer`."""
    return (
        FrameRow(key, by, {**CORRELATION, **fields}),
        FrameRow(key, BOTH if by is BOTH else _other(by), {**RESULT, **dict(answer)}, is_response=True),
    )


def _told(key: Key, by: tuple[Sender, ...], /, version: int = 1, **fields: FieldType[Any]) -> FrameRow:
    """Return the row of a command that has no response."""
    return FrameRow(key, by, fields, version)


def _other(by: tuple[Sender, ...]) -> tuple[Sender, ...]:
    return SERVER if by is CLIENT else CLIENT


_NAMES: Final = Array(name=TEXT)

TABLE: Final = (
    *_asked(Key.DECLARE_PUBLISHER, publisher=U8, reference=TEXT, stream=TEXT),
    _told(Key.PUBLISH, CLIENT, publisher=U8, messages=Array(id=U64, message=MESSAGE)),
    _told(Key.PUBLISH, CLIENT, 2, publisher=U8, messages=Array(id=U64, filter=TEXT_OR_NONE, message=MESSAGE)),
    _told(Key.PUBLISH_CONFIRM, SERVER, publisher=U8, ids=Array(id=U64)),
    _told(Key.PUBLISH_ERROR, SERVER, publisher=U8, errors=Array(id=U64, code=U16)),
    *_asked(Key.QUERY_PUBLISHER_SEQUENCE, ("sequence", U64), reference=TEXT, stream=TEXT),
    *_asked(Key.DELETE_PUBLISHER, publisher=U8),
    *_asked(Key.SUBSCRIBE, subscription=U8, stream=TEXT, offset=OFFSET, credit=U16, properties=PAIRS_AT_END),
    _told(Key.DELIVER, SERVER, subscription=U8, chunk=REST),
    _told(Key.DELIVER, SERVER, 2, subscription=U8, committed_chunk=U64, chunk=REST),
    _told(Key.CREDIT, CLIENT, subscription=U8, credit=U16),
    FrameRow(Key.CREDIT, SERVER, {"code": U16, "subscription": U8}, is_response=True),  # only of a refusal
    _told(Key.STORE_OFFSET, CLIENT, reference=TEXT, stream=TEXT, offset=U64),
    *_asked(Key.QUERY_OFFSET, ("offset", U64), reference=TEXT, stream=TEXT),
    *_asked(Key.UNSUBSCRIBE, subscription=U8),
    *_asked(Key.CREATE, stream=TEXT, arguments=PAIRS),
    *_asked(Key.DELETE, stream=TEXT),
    FrameRow(Key.METADATA, CLIENT, {**CORRELATION, "streams": _NAMES}),
    FrameRow(
        Key.METADATA,
        SERVER,
        {
            **CORRELATION,
            "nodes": Array(reference=U16, host=TEXT, port=U32),
            "streams": Array(name=TEXT, code=U16, leader=U16, replicas=Array(reference=U16)),
        },
        is_response=True,
    ),
    _told(Key.METADATA_UPDATE, SERVER, code=U16, stream=TEXT),
    *_asked(Key.PEER_PROPERTIES, ("properties", PAIRS), properties=PAIRS),
    *_asked(Key.SASL_HANDSHAKE, ("mechanisms", _NAMES)),
    *_asked(Key.SASL_AUTHENTICATE, ("data", BYTES_AT_END), mechanism=TEXT, data=BYTES_OR_NONE),
    _told(Key.TUNE, BOTH, frame_size_bytes_max=U32, heartbeat_seconds=U32),
    *_asked(Key.OPEN, ("properties", PAIRS), virtual_host=TEXT),
    *_asked(Key.CLOSE, by=BOTH, reason_code=U16, reason=TEXT),
    _told(Key.HEARTBEAT, BOTH),
    *_asked(Key.ROUTE, ("streams", _NAMES), routing_key=TEXT, super_stream=TEXT),
    *_asked(Key.PARTITIONS, ("streams", _NAMES), super_stream=TEXT),
    *_asked(Key.CONSUMER_UPDATE, ("offset", OFFSET), by=SERVER, subscription=U8, active=U8),
    *_asked(
        Key.EXCHANGE_COMMAND_VERSIONS,
        ("commands", Array(key=U16, version_min=U16, version_max=U16)),
        commands=Array(key=U16, version_min=U16, version_max=U16),
    ),
    *_asked(Key.STREAM_STATS, ("stats", Array(name=TEXT, value=I64)), stream=TEXT),
    *_asked(Key.CREATE_SUPER_STREAM, name=TEXT, partitions=_NAMES, binding_keys=_NAMES, arguments=PAIRS),
    *_asked(Key.DELETE_SUPER_STREAM, name=TEXT),
    *_asked(Key.RESOLVE_OFFSET_SPEC, ("offset", OFFSET), stream=TEXT, offset=OFFSET, properties=PAIRS_AT_END),
)

_BY_NAME: Final = {(row.key, row.is_response, row.version): row for row in TABLE}
_BY_BYTES: Final = {
    **{(sender, row.stated_key, row.version): row for row in TABLE for sender in row.sent_by},
    # RabbitMQ 3.10.8 clears the top bit of two responses. The clients of Java and Go set that of Tune.
    (Sender.SERVER, Key.ROUTE, 1): _BY_NAME[Key.ROUTE, True, 1],
    (Sender.SERVER, Key.PARTITIONS, 1): _BY_NAME[Key.PARTITIONS, True, 1],
    (Sender.CLIENT, Key.TUNE | RESPONSE, 1): _BY_NAME[Key.TUNE, False, 1],
}


def encode(key: Key, /, *, version: int = 1, response: bool = False, **fields: Any) -> bytes:
    """Return a whole frame.

    Raises `Misuse` for a value that its field cannot have. Every field of the row must be given, but for
    those with which a frame may end.
    """
    row, out = _BY_NAME[key, response, version], list[bytes]()
    assert fields.keys() <= row.fields.keys(), f"{key.name} has no fields {fields.keys() - row.fields.keys()}"
    try:
        for name, kind in row.fields.items():
            if name not in fields and row.may_end_before(kind, fields):
                break
            kind.write(fields[name], out)
        size_bytes = FRAME_SIZE_BYTES_MIN + sum(map(len, out))
        return _HEAD.pack(size_bytes, row.stated_key, version) + b"".join(out)
    except struct.error as exc:
        raise Misuse(f"a number does not fit into a frame of {key.name}: {exc}") from exc


def decode(content: bytes, sent_by: Sender, *, where: str) -> Frame | UnknownFrame:
    """Return the frame with this content, which is a frame without its size. `where` names the peer.

    Raises `Corrupt` if the content does not fit the frame's row.
    """
    cursor, end, fields = FrameCursor(content, where), len(content), dict[str, Any]()
    key, version = cursor.unpack(_KEY_AND_VERSION)
    row = _BY_BYTES.get((sent_by, key, version))
    if row is None:
        return UnknownFrame(key, version)
    for name, kind in row.fields.items():
        is_absent = cursor.at == end and row.may_end_before(kind, fields)
        fields[name] = kind.absent() if is_absent else kind.read(cursor)
    if cursor.left and not row.is_response:
        raise cursor.broken(f"the end of {row.key.name}", f"{cursor.left} more bytes")
    return Frame(row.key, version, row.is_response, fields)


def head_of(key: Key, version: int = 1) -> struct.Struct:
    """Return the layout of a command's bytes before its last field: size, key, version, and numbers.

    For a caller who sends many frames, and the last field from where it is. The size counts all bytes of the
    frame but its own four.
    """
    *numbers, _ = _BY_NAME[key, False, version].fields.values()
    codes = "".join(each.code for each in numbers if isinstance(each, Number))
    assert len(codes) == len(numbers), "only numbers come before the last field"
    return struct.Struct(_HEAD.format + codes)
