"""The iterator of a replay: the place that it has come to, as a short text that outlives every process.

    m1.<base64url of: CRC-32C, 4 bytes; a MessagePack array of the fields>

The checksum finds a text that was cut or edited by accident. It is no secret: a text that somebody made is
read like any other, within the bounds of its fields, and shows nothing but the stream that it is used with.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Final

import msgspec

from offload.formats.checksums import crc32c
from offload.ground.errors import Misuse, NotOffloaded
from offload_mqtt.topics import TopicFilter

__all__ = ["HistoryTrimmed", "ReplayIterator", "ReplayUnit"]

PREFIX: Final = "m1."
TEXT_SIZE_MAX: Final = 2**20
FILTERS_MAX: Final = 1024
UNBOUNDED: Final = -(2**62)
"""A time before all others."""

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Time = Annotated[int, msgspec.Meta(ge=-(2**62), lt=2**62)]


class HistoryTrimmed(NotOffloaded):
    """What follows the place of an iterator was trimmed. `iterator` is where history begins now."""

    def __init__(self, text: str, iterator: str) -> None:
        super().__init__(text)
        self.iterator = iterator


class ReplayUnit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A run of chunks of one ledger, which can hold topics of one structure.

    Its messages are those from `first_offset` to before `next_offset`, rounded to topics: a topic that begins
    in the run belongs to it to its end, and one that began before it does not. So all messages of a topic in
    a ledger are in one unit, and each is in one only.
    """

    part: _Number
    ledger: _Number
    """The first offset of the ledger. Of a range without an index: that of the range."""
    ledger_end: _Number
    """The first offset behind it, as far as it is committed."""
    structure: _Number
    """0 of a range without an index, which has all topics."""
    first_offset: _Number
    next_offset: _Number


class ReplayIterator(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A place in a replay. All that it selects before this place was delivered.

    Delivered are the offsets below `offset`, and all messages of this part whose origin is below `origin`.
    """

    stream: str
    incarnation: Annotated[str, msgspec.Meta(max_length=32)]
    filters: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=FILTERS_MAX)]
    part: _Number
    offset: _Number
    origin: _Number = 0
    since_us: _Time = UNBOUNDED
    unit: ReplayUnit | None = None

    def __str__(self) -> str:
        body = msgspec.msgpack.encode(self)
        return PREFIX + base64.urlsafe_b64encode(crc32c(body).to_bytes(4, "big") + body).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> ReplayIterator:
        """Return the iterator of a text. Raises `Misuse` if it is none, or was cut or edited."""
        wrong = f"{text[:40]!r} is no iterator of a replay: pass one exactly as it was returned"
        if len(text) > TEXT_SIZE_MAX or not text.startswith(PREFIX):
            raise Misuse(wrong)
        body = text[len(PREFIX) :]
        try:
            raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
            found = msgspec.msgpack.decode(raw[4:], type=cls)
        except (ValueError, binascii.Error, msgspec.MsgspecError) as exc:
            raise Misuse(wrong) from exc
        if str(found) != text:  # that is also a check of the checksum
            raise Misuse(wrong)
        found.parsed()
        return found

    def parsed(self) -> list[TopicFilter]:
        """Return the filters. Raises `Misuse` if one breaks the grammar."""
        return [TopicFilter.parse(each) for each in self.filters]
