"""The types of fields in the frames of RabbitMQ's stream protocol: how each one is read and written.

Integers are big-endian. A string has its length in 16 bits before it, counted in bytes of UTF-8. Bytes have
theirs in 32 bits, and so have arrays the count of their items. The length -1 is null.

The peer may be wrong or hostile. Nothing is made from a length before the bytes are there, and every item of
an array has bytes. So a frame takes time and memory in proportion to the bytes that have arrived. This module
does no I/O.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from offload.ground.errors import Corrupt, Misuse

T = TypeVar("T")


class FrameCursor:
    """A place in the bytes of a frame. `where` names the peer in errors."""

    __slots__ = ("at", "raw", "where")

    def __init__(self, raw: bytes, where: str, at: int = 0) -> None:
        self.raw, self.where, self.at = raw, where, at

    @property
    def left(self) -> int:
        """The number of bytes behind this place."""
        return len(self.raw) - self.at

    def take(self, size_bytes: int) -> bytes:
        """Return the next bytes. Raises `Corrupt` if the frame has fewer."""
        end = self.at + size_bytes
        if not self.at <= end <= len(self.raw):
            raise self.broken(f"{size_bytes} more bytes", self.left)
        self.at, begin = end, self.at
        return self.raw[begin:end]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the next numbers. Raises `Corrupt` if the frame is too short."""
        try:
            found = layout.unpack_from(self.raw, self.at)
        except struct.error:
            raise self.broken(f"{layout.size} more bytes", self.left) from None
        self.at += layout.size
        return found

    def broken(self, expected: object, found: object) -> Corrupt:
        """Return the error for a field at this place."""
        return Corrupt("frame", self.where, expected=expected, found=found, position=self.at)


class FieldType(ABC, Generic[T]):
    """A type of fields."""

    absent: Callable[[], T]
    """Makes the value of a field that a frame leaves out."""

    may_end: bool = False
    """True if a frame may end before this field."""

    @abstractmethod
    def read(self, frame: FrameCursor) -> T:
        """Read the next value. Raises `Corrupt`."""

    @abstractmethod
    def write(self, value: T, out: list[bytes]) -> None:
        """Append the bytes of a value. Raises `Misuse`, and `struct.error` for a number that is too large."""


class Number(FieldType[int]):
    """An integer. `code` is that of `struct`."""

    absent = int

    def __init__(self, code: str) -> None:
        self.code, self.layout = code, struct.Struct(f">{code}")

    def read(self, frame: FrameCursor) -> int:
        """See `FieldType.read`."""
        return frame.unpack(self.layout)[0]  # type: ignore[no-any-return]

    def write(self, value: int, out: list[bytes]) -> None:
        """See `FieldType.write`."""
        out.append(self.layout.pack(value))


U8: Final = Number("B")
U16: Final = Number("H")
U32: Final = Number("I")
U64: Final = Number("Q")
I64: Final = Number("q")
_LENGTH_16: Final = struct.Struct(">h")
_LENGTH_32: Final = struct.Struct(">i")


class _Text(FieldType[str]):
    """A string. Null is read as the empty one, and bytes that are no UTF-8 as their escapes."""

    absent = str

    def read(self, frame: FrameCursor) -> str:
        [size_bytes] = frame.unpack(_LENGTH_16)
        return "" if size_bytes == -1 else frame.take(size_bytes).decode("utf-8", "backslashreplace")

    def write(self, value: str, out: list[bytes]) -> None:
        try:
            raw = value.encode()
        except UnicodeEncodeError as exc:
            raise Misuse(f"{value[:40]!r} cannot be written in UTF-8") from exc
        if len(raw) >= 2**15:
            raise Misuse(
                f"{value[:40]!r}... has {len(raw)} bytes, and a string of a frame at most {2**15 - 1}"
            )
        out += _LENGTH_16.pack(len(raw)), raw


class _TextOrNone(FieldType[str | None]):
    """A string that may be null."""

    absent = type(None)

    def read(self, frame: FrameCursor) -> str | None:
        is_null = frame.raw.startswith(b"\xff\xff", frame.at)
        found = TEXT.read(frame)
        return None if is_null else found

    def write(self, value: str | None, out: list[bytes]) -> None:
        if value is None:
            out.append(_LENGTH_16.pack(-1))
        else:
            TEXT.write(value, out)


class _BytesOrNone(FieldType[bytes | None]):
    """Bytes that may be null."""

    absent = type(None)

    def __init__(self, *, may_end: bool = False) -> None:
        self.may_end = may_end

    def read(self, frame: FrameCursor) -> bytes | None:
        [size_bytes] = frame.unpack(_LENGTH_32)
        return None if size_bytes == -1 else frame.take(size_bytes)

    def write(self, value: bytes | None, out: list[bytes]) -> None:
        if value is None:
            out.append(_LENGTH_32.pack(-1))
        else:
            out += _LENGTH_32.pack(len(value)), value


class SubEntry(NamedTuple):
    """A sub-batch as it is published. `kind` is its first byte, with the codec."""

    kind: int
    records: int
    uncompressed_size_bytes: int
    data: bytes


class _Message(FieldType[bytes | SubEntry]):
    """A published message. The top bit of its first byte is set in a sub-batch."""

    absent = bytes
    _SUB_ENTRY: Final = struct.Struct(">BHII")

    def read(self, frame: FrameCursor) -> bytes | SubEntry:
        if frame.left and frame.raw[frame.at] & 0x80:
            kind, records, uncompressed_size_bytes, size_bytes = frame.unpack(self._SUB_ENTRY)
            return SubEntry(kind, records, uncompressed_size_bytes, frame.take(size_bytes))
        return frame.take(U32.read(frame))

    def write(self, value: bytes | SubEntry, out: list[bytes]) -> None:
        if isinstance(value, SubEntry):
            out += self._SUB_ENTRY.pack(*value[:3], len(value.data)), value.data
        else:
            out += _LENGTH_32.pack(len(value)), value


class OffsetKind(IntEnum):
    """The way in which an `OffsetSpec` names a place."""

    NONE = 0
    FIRST = 1
    LAST = 2
    NEXT = 3
    OFFSET = 4
    TIMESTAMP = 5


class OffsetSpec(NamedTuple):
    """A place in a stream. `value` counts for an offset, and for a timestamp in milliseconds."""

    kind: OffsetKind
    value: int = 0


class _Offset(FieldType[OffsetSpec]):
    """A place in a stream: its kind, and the value of those that have one."""

    absent = partial(OffsetSpec, OffsetKind.NONE)
    _VALUES: Final[Mapping[int, Number]] = {OffsetKind.OFFSET: U64, OffsetKind.TIMESTAMP: I64}

    def read(self, frame: FrameCursor) -> OffsetSpec:
        kind = U16.read(frame)
        if kind > OffsetKind.TIMESTAMP:
            raise frame.broken("a kind of offset", kind)
        value = self._VALUES.get(kind)
        return OffsetSpec(OffsetKind(kind), 0 if value is None else value.read(frame))

    def write(self, value: OffsetSpec, out: list[bytes]) -> None:
        U16.write(value.kind, out)
        if value.kind in self._VALUES:
            self._VALUES[value.kind].write(value.value, out)


class _Pairs(FieldType[Mapping[str, str]]):
    """A map of strings. If a name comes twice, the later value counts."""

    absent = dict

    def __init__(self, *, may_end: bool = False) -> None:
        self.may_end = may_end

    def read(self, frame: FrameCursor) -> Mapping[str, str]:
        return {TEXT.read(frame): TEXT.read(frame) for _ in range(U32.read(frame))}

    def write(self, value: Mapping[str, str], out: list[bytes]) -> None:
        out.append(_LENGTH_32.pack(len(value)))
        for pair in value.items():
            for each in pair:
                TEXT.write(each, out)


class Array(FieldType[Sequence[Any]]):
    """A list of items. An item of several fields is a tuple, and an item of one field is its value."""

    absent = list

    def __init__(self, **fields: FieldType[Any]) -> None:
        self.fields, self._kinds = fields, tuple(fields.values())
        numbers = [each.code for each in self._kinds if isinstance(each, Number)]
        self._numbers = struct.Struct(">" + "".join(numbers)) if len(numbers) == len(self._kinds) else None

    def read(self, frame: FrameCursor) -> Sequence[Any]:
        """See `FieldType.read`."""
        count = U32.read(frame)
        if self._numbers is not None:  # thousands of confirmed ids are read in one call
            found: Iterable[Any] = self._numbers.iter_unpack(frame.take(count * self._numbers.size))
        else:
            found = (tuple(each.read(frame) for each in self._kinds) for _ in range(count))
        return list(found) if len(self._kinds) > 1 else [each for (each,) in found]

    def write(self, value: Sequence[Any], out: list[bytes]) -> None:
        """See `FieldType.write`."""
        out.append(_LENGTH_32.pack(len(value)))
        for item in value:
            for each, part in zip(self._kinds, item if len(self._kinds) > 1 else (item,), strict=True):
                each.write(part, out)


class _Rest(FieldType[memoryview]):
    """All that is left of the frame, as a view of it."""

    def absent(self) -> memoryview:
        return memoryview(b"")

    def read(self, frame: FrameCursor) -> memoryview:
        begin, frame.at = frame.at, len(frame.raw)
        return memoryview(frame.raw)[begin:]

    def write(self, value: bytes | memoryview, out: list[bytes]) -> None:
        out.append(bytes(value))


TEXT: Final = _Text()
TEXT_OR_NONE: Final = _TextOrNone()
BYTES_OR_NONE: Final = _BytesOrNone()
BYTES_AT_END: Final = _BytesOrNone(may_end=True)
MESSAGE: Final = _Message()
OFFSET: Final = _Offset()
PAIRS: Final = _Pairs()
PAIRS_AT_END: Final = _Pairs(may_end=True)
REST: Final = _Rest()
