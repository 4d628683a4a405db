"""AMQP 1.0's type system (part 1 of the OASIS standard): one value from bytes to Python.

A value becomes:

    null, boolean, all integers, float, double, string    None, bool, int, float, float, str
    char, binary, uuid                                     str of one character, bytes, UUID
    symbol                                                 Symbol, a str
    timestamp                                              Timestamp, an int: milliseconds since 1970
    decimal32, decimal64, decimal128                       Decimal (the encoding is binary integer decimal)
    list, array                                            list
    map                                                    dict
    described value                                        Described

Input may be hostile. Four limits keep memory in proportion to the record:

    nesting                     at most `DEPTH_MAX` deep
    sizes and counts            compared with the bytes around them before anything is allocated
    array elements of no bytes  in one record together at most as many as it has bytes
    shared descriptors          scalars, and repeated at most `REPEATED_PER_BYTE` times the record's bytes, or
                                `REPEATED_SIZE_BYTES` if that is more: a program that writes the value, as
                                JSON does, repeats them for each element

The standard allows two kinds of maps that are refused here: with keys that are equal in Python (1 and true),
and with keys that cannot be keys of a dict (lists, maps).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn
from uuid import UUID

from offload.ground.errors import Corrupt

DEPTH_MAX: Final = 32

REPEATED_PER_BYTE: Final = 16
"""The limit for bytes of shared descriptors, counted once for each element, per byte of the record.

JSON may write a byte as six, so a record of 16 MiB stays below the 2 GiB of one column.
"""

REPEATED_SIZE_BYTES: Final = 64 * 1024
"""Small records may repeat so many bytes in any case."""

_DESCRIBED: Final = 0x00


class Symbol(str):
    """An AMQP symbol: a name in ASCII."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970, UTC. It is no datetime because any 64-bit number is possible."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor that gives it a special meaning."""

    descriptor: Any
    value: Any


class ValueReader:
    """A reader of consecutive values in `raw`; `at` is the next byte.

    Its methods raise `Corrupt` with `where` and the byte at which the broken value begins.
    """

    __slots__ = ("_depth", "_empty_elements_left", "_repeated_bytes_left", "_stop", "at", "raw", "where")

    def __init__(self, raw: bytes, *, where: str) -> None:
        self.raw = raw
        self.where = where
        self.at = 0
        self._stop = len(raw)
        self._depth = 0
        self._empty_elements_left = len(raw)
        self._repeated_bytes_left = max(REPEATED_PER_BYTE * len(raw), REPEATED_SIZE_BYTES)

    def value(self) -> Any:
        """Return the next value, of any type."""
        start = self.at
        code = self.byte()
        if code != _DESCRIBED:
            return self._constructed(code, start)
        self._enter(start)
        described = Described(self.value(), self.value())
        self._depth -= 1
        return described

    def byte(self) -> int:
        """Return the next byte: a constructor, or part of a descriptor."""
        at = self.at
        if at >= self._stop:
            self.refuse("AMQP value size", expected="a byte more", found="the end", position=at)
        self.at = at + 1
        return self.raw[at]

    def refuse(self, what: str, *, expected: object, found: object, position: int) -> NoReturn:
        """Raise `Corrupt` for the value at `position`."""
        raise Corrupt(what, self.where, position=position, expected=expected, found=found)

    def _bytes(self, size: int) -> bytes:
        start, stop = self.at, self.at + size
        if stop > self._stop:
            expected = f"at most {self._stop - start} bytes"
            self.refuse("AMQP value size", expected=expected, found=size, position=start)
        self.at = stop
        return self.raw[start:stop]

    def _number(self, width: int) -> int:
        return self.byte() if width == 1 else int.from_bytes(self._bytes(width), "big")

    def _constructed(self, code: int, start: int) -> Any:
        scalar = _SCALARS.get(code)
        if scalar is None:
            if code not in _COMPOUND:
                found = f"{code:#04x}"
                self.refuse("AMQP type", expected="a known constructor", found=found, position=start)
            width, made_by = _COMPOUND[code]
            return self._compound(width, made_by, start)
        size, width, made_of = scalar
        raw = self._bytes(self._number(width) if width else size)
        try:
            return made_of(raw)
        except ValueError as exc:
            raise Corrupt(
                "AMQP value", self.where, position=start, expected="a value of its type", found=exc
            ) from exc

    def _compound(self, width: int, made_by: Callable[[ValueReader, int, int], Any], start: int) -> Any:
        """Read a list, map or array. Its elements must fill its size exactly."""
        size = self._number(width)
        stop = self.at + size
        if size < width or stop > self._stop:
            expected = f"{width} to {self._stop - self.at} bytes"
            self.refuse("AMQP compound size", expected=expected, found=size, position=start)
        self._enter(start)
        outer, self._stop = self._stop, stop  # no element may read beyond the end of its list
        value = made_by(self, self._number(width), start)
        if self.at != stop:
            self.refuse("AMQP compound end", expected=stop, found=self.at, position=start)
        self._stop = outer
        self._depth -= 1
        return value

    def _enter(self, start: int) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self.refuse("AMQP nesting", expected=f"at most {DEPTH_MAX}", found="more", position=start)

    def _scalar(self) -> Any:
        start = self.at
        value = self.value()
        if isinstance(value, list | dict | Described):
            found = type(value).__name__
            self.refuse("AMQP descriptor", expected="a scalar", found=found, position=start)
        return value

    def _repeat(self, count: int, size_bytes: int, start: int) -> None:
        """Count the bytes of descriptors that `count` elements share. Raises `Corrupt` beyond the limit."""
        self._repeated_bytes_left -= count * size_bytes
        if self._repeated_bytes_left < 0:
            expected = f"at most {REPEATED_PER_BYTE} times the record's bytes, or 64 KiB"
            self.refuse("AMQP descriptors of elements", expected=expected, found="more", position=start)

    def _list(self, count: int, start: int) -> list[Any]:
        if count > self._stop - self.at:
            expected = f"at most {self._stop - self.at}"
            self.refuse("AMQP element count", expected=expected, found=count, position=start)
        return [self.value() for _ in range(count)]

    def _map(self, count: int, start: int) -> dict[Any, Any]:
        flat = self._list(count, start)
        if count % 2:
            self.refuse("AMQP map", expected="a value for each key", found=count, position=start)
        try:
            pairs = dict(zip(flat[::2], flat[1::2], strict=True))
        except TypeError as exc:
            raise Corrupt("AMQP map key", self.where, position=start, expected="a scalar", found=exc) from exc
        if len(pairs) != count // 2:
            self.refuse("AMQP map keys", expected="distinct keys", found="a repeated one", position=start)
        return pairs

    def _array(self, count: int, start: int) -> list[Any]:
        """Read elements that share one constructor, which may have descriptors."""
        descriptors: list[Any] = []
        constructor = self.at
        code = self.byte()
        while code == _DESCRIBED:
            self._enter(start)  # a descriptor nests the elements as if it were written before each of them
            descriptors.append(self._scalar())
            code = self.byte()
        self._repeat(count, self.at - constructor - 1, start)
        if code in _WITHOUT_BYTES:
            self._empty_elements_left -= count
            possible = self._empty_elements_left >= 0
        else:
            possible = count <= self._stop - self.at
        if not possible:
            expected = "as many as there are bytes"
            self.refuse("AMQP element count", expected=expected, found=count, position=start)
        values = [self._constructed(code, self.at) for _ in range(count)]
        for descriptor in reversed(descriptors):
            values = [Described(descriptor, value) for value in values]
        self._depth -= len(descriptors)
        return values


def _unsigned(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _signed(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _boolean(raw: bytes) -> bool:
    if raw not in (b"\0", b"\1"):
        raise ValueError(f"boolean byte {raw.hex()}")
    return raw == b"\1"


def _character(raw: bytes) -> str:
    return raw.decode("utf-32-be")


def _symbol(raw: bytes) -> Symbol:
    return Symbol(raw.decode("ascii"))


def _decimal(exponent_bits: int, coefficient_bits: int, bias: int, digits: int) -> Callable[[bytes], Decimal]:
    """Return a reader of IEEE 754 decimals whose coefficient is a binary integer.

    The exponent and the coefficient follow the sign. If the two bits behind the sign are both set, the
    exponent begins two bits later, and the coefficient begins with a hidden 100.
    """
    sign_bit = exponent_bits + coefficient_bits

    def read(raw: bytes) -> Decimal:
        bits = int.from_bytes(raw, "big")
        sign = bits >> sign_bit
        if bits >> sign_bit - 4 & 0b1111 == 0b1111:
            special = "NaN" if bits >> sign_bit - 5 & 1 else "Infinity"
            return Decimal(("-" if sign else "") + special)
        hidden = bits >> sign_bit - 2 & 0b11 == 0b11
        width = coefficient_bits - 2 if hidden else coefficient_bits
        exponent = (bits >> width & (1 << exponent_bits) - 1) - bias
        coefficient = bits & (1 << width) - 1 | (0b100 << width if hidden else 0)
        if coefficient >= 10**digits:  # not canonical: by the standard it means zero
            coefficient = 0
        return Decimal((sign, tuple(map(int, str(coefficient))), exponent))

    return read


def _ieee(code: str) -> Callable[[bytes], float]:
    unpack = struct.Struct(code).unpack
    return lambda raw: float(unpack(raw)[0])


# constructor: number of bytes, and the function that converts them
_FIXED: Final[dict[int, tuple[int, Callable[[bytes], Any]]]] = {
    0x40: (0, lambda _: None),
    0x41: (0, lambda _: True),
    0x42: (0, lambda _: False),
    0x43: (0, lambda _: 0),
    0x44: (0, lambda _: 0),
    0x45: (0, lambda _: []),
    0x50: (1, _unsigned),
    0x51: (1, _signed),
    0x52: (1, _unsigned),
    0x53: (1, _unsigned),
    0x54: (1, _signed),
    0x55: (1, _signed),
    0x56: (1, _boolean),
    0x60: (2, _unsigned),
    0x61: (2, _signed),
    0x70: (4, _unsigned),
    0x71: (4, _signed),
    0x72: (4, _ieee(">f")),
    0x73: (4, _character),
    0x74: (4, _decimal(8, 23, 101, 7)),
    0x80: (8, _unsigned),
    0x81: (8, _signed),
    0x82: (8, _ieee(">d")),
    0x83: (8, lambda raw: Timestamp(_signed(raw))),
    0x84: (8, _decimal(10, 53, 398, 16)),
    0x94: (16, _decimal(14, 113, 6176, 34)),
    0x98: (16, lambda raw: UUID(bytes=raw)),
}

# constructor: width of its length, and the function that converts the bytes
_VARIABLE: Final[dict[int, tuple[int, Callable[[bytes], Any]]]] = {
    0xA0: (1, bytes),
    0xA1: (1, bytes.decode),
    0xA3: (1, _symbol),
    0xB0: (4, bytes),
    0xB1: (4, bytes.decode),
    0xB3: (4, _symbol),
}

_SCALARS: Final = {code: (size, 0, made_of) for code, (size, made_of) in _FIXED.items()} | {
    code: (0, width, made_of) for code, (width, made_of) in _VARIABLE.items()
}
"""Both tables as one: number of bytes or 0, width of the length or 0, and the function that converts them."""

_WITHOUT_BYTES: Final = frozenset(code for code, (size, _) in _FIXED.items() if size == 0)

# constructor: width of its size and of its count, and the method that reads its elements
_COMPOUND: Final[dict[int, tuple[int, Callable[[ValueReader, int, int], Any]]]] = {
    0xC0: (1, ValueReader._list),
    0xC1: (1, ValueReader._map),
    0xD0: (4, ValueReader._list),
    0xD1: (4, ValueReader._map),
    0xE0: (1, ValueReader._array),
    0xF0: (4, ValueReader._array),
}
