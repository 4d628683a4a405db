"""Frames of RabbitMQ's stream protocol: the few commands that a restore sends and receives, as bytes.

    frame      size u32 | key u16, top bit 1 in a response | version u16 = 1 | content
    request    the content begins with a correlation id u32
    response   correlation id u32 | code u16 | content

Integers are big-endian. A string has its length in 16 bits before it, counted in bytes of UTF-8. This module
does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from offload.ground.errors import Corrupt, Denied, Misuse, NotOffloaded, OffloadError, TryAgain

RESPONSE: Final = 0x8000
SIZE: Final = struct.Struct(">I")
SIZE_BYTES_MAX: Final = 2**31 - 1
OK: Final = 1

_HEAD: Final = struct.Struct(">IHH")
_PUBLISH: Final = struct.Struct(">IHHBI")
_MESSAGE: Final = struct.Struct(">QI")
_VERSION: Final = 1

PUBLISH_HEAD_SIZE_BYTES: Final = _PUBLISH.size
MESSAGE_HEAD_SIZE_BYTES: Final = _MESSAGE.size


class Key(IntEnum):
    """The commands that are used here."""

    DECLARE_PUBLISHER = 1
    PUBLISH = 2
    PUBLISH_CONFIRM = 3
    PUBLISH_ERROR = 4
    QUERY_PUBLISHER_SEQUENCE = 5
    SUBSCRIBE = 7
    DELIVER = 8
    CREDIT = 9
    CREATE = 13
    METADATA = 15
    METADATA_UPDATE = 16
    PEER_PROPERTIES = 17
    SASL_HANDSHAKE = 18
    SASL_AUTHENTICATE = 19
    TUNE = 20
    OPEN = 21
    CLOSE = 22
    HEARTBEAT = 23


STREAM_EXISTS: Final = 5
PRECONDITION_FAILED: Final = 17

_REFUSALS: Final[dict[int, tuple[type[OffloadError], str]]] = {
    2: (NotOffloaded, "it has no such stream"),
    STREAM_EXISTS: (OffloadError, "the stream exists"),
    6: (TryAgain, "the stream has no leader now"),
    7: (Denied, "it does not offer a login by name and password"),
    8: (Denied, "the user or the password is wrong"),
    9: (Denied, "the login failed"),
    11: (Denied, "this user may log in only from the broker's own machine"),
    12: (Denied, "the user may not use this virtual host, or there is no such host"),
    13: (OffloadError, "it does not know the command"),
    14: (Misuse, "a message is larger than its frames: raise stream.frame_max in its configuration"),
    15: (TryAgain, "an internal error"),
    16: (Denied, "the user may not do this: grant the permissions configure, write and read"),
    PRECONDITION_FAILED: (Misuse, "the arguments contradict those of the existing stream"),
    18: (TryAgain, "it no longer knows the publisher, because the stream's leader moved"),
}
"""The codes of a refusal: the error class, and the reason as a clause."""


def refusal(code: int, doing: str, where: str) -> OffloadError:
    """Return the error for a response code."""
    kind, reason = _REFUSALS.get(code, (OffloadError, "an unknown reason"))
    return kind(f"{where} refused to {doing}: {reason} (code {code})")


def frame(key: int, content: bytes) -> bytes:
    """Return a whole frame."""
    return _HEAD.pack(4 + len(content), key, _VERSION) + content


def string(text: str) -> bytes:
    """Return a string field. Raises `Misuse` if the text is too long."""
    raw = text.encode()
    if len(raw) >= 2**15:
        raise Misuse(f"{text[:40]!r}... is too long for the broker")
    return len(raw).to_bytes(2, "big") + raw


def long_bytes(data: bytes) -> bytes:
    """Return a field of bytes, whose length has 32 bits."""
    return SIZE.pack(len(data)) + data


def string_map(pairs: Mapping[str, str]) -> bytes:
    """Return a map of strings."""
    items = b"".join(string(name) + string(value) for name, value in pairs.items())
    return SIZE.pack(len(pairs)) + items


def publish_frame(publisher: int, first_id: int, bodies: Sequence[bytes]) -> bytes:
    """Return the frame that publishes `bodies` under ascending ids, from `first_id` on."""
    pack = _MESSAGE.pack
    parts = [b""]
    for publishing_id, body in enumerate(bodies, start=first_id):
        parts += pack(publishing_id, len(body)), body
    size_bytes = _PUBLISH.size - SIZE.size + len(bodies) * _MESSAGE.size + sum(map(len, bodies))
    parts[0] = _PUBLISH.pack(size_bytes, Key.PUBLISH, _VERSION, publisher, len(bodies))
    return b"".join(parts)


@dataclass(slots=True)
class Fields:
    """A cursor over the content of a frame. Every method raises `Corrupt` if the content is too short."""

    content: bytes
    where: str
    at: int = 0

    def number(self, size_bytes: int) -> int:
        """Return the next unsigned integer of this size."""
        return int.from_bytes(self.take(size_bytes), "big")

    def take(self, size_bytes: int) -> bytes:
        """Return the next bytes."""
        taken = self.content[self.at : self.at + size_bytes]
        if len(taken) < size_bytes:
            found = len(self.content)
            expected = f"at least {self.at + size_bytes} bytes"
            raise Corrupt("frame of the broker", self.where, expected=expected, found=found)
        self.at += size_bytes
        return taken

    def string(self) -> str:
        """Return the next string. Null is the empty string."""
        size_bytes = self.number(2)
        return "" if size_bytes == 0xFFFF else self.take(size_bytes).decode("utf-8", "backslashreplace")

    def string_map(self) -> dict[str, str]:
        """Return the next map of strings."""
        return {self.string(): self.string() for _ in range(self.number(4))}


def moved(content: bytes, stream: str, where: str) -> TryAgain | None:
    """Return the error for the content of a `METADATA_UPDATE` if it is about `stream`, else None.

    The broker has then ended all publishers and subscriptions of the stream without another word.
    """
    fields = Fields(content, where)
    fields.take(2)
    if fields.string() != stream:
        return None
    return TryAgain(f"{where}: the leader of stream {stream!r} moved, or the stream was deleted")


@dataclass(frozen=True, slots=True)
class Leader:
    """The address of a node, as the broker tells it to clients."""

    host: str
    port: int


def leader_of(content: bytes, stream: str, where: str) -> Leader:
    """Return the leader of `stream` from the content of a response to `METADATA`."""
    fields = Fields(content, where)
    nodes = {}
    for _ in range(fields.number(4)):
        reference = fields.number(2)
        nodes[reference] = Leader(fields.string(), fields.number(4))
    for _ in range(fields.number(4)):
        name, code, reference = fields.string(), fields.number(2), fields.number(2)
        fields.take(2 * fields.number(4))
        if name != stream:
            continue
        if code != OK:
            raise refusal(code, f"use stream {stream!r}", where)
        if reference not in nodes:
            raise TryAgain(f"{where}: stream {stream!r} has no leader now")
        return nodes[reference]
    raise Corrupt("metadata of the broker", where, expected=f"stream {stream!r}", found="other streams")
