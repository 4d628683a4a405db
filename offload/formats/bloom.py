"""The bloom filter of a chunk, which shows whether one of its records may have a filter value.

A filter of B bytes has 8B bits. Bit i is `byte[i // 8] & (0x80 >> i % 8)`. Bit 0 means that the chunk has a
record without a filter value. Each value sets two of the other bits. A chunk in which no record has a value
has no filter. The size of filters may change along a stream, so each chunk is tested with the size of its own
filter.

A filter may match a value that no record has, but it never misses one: check the record's own value
afterwards. The empty value and no value are the same, as in osiris.

The two bits come from Erlang's `phash2` of the value, and of the list with this value only. So the filter
equals that of osiris bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from offload.formats.chunk import FILTER_SIZE_BYTES_MAX, FILTER_SIZE_BYTES_MIN
from offload.ground.errors import Misuse

__all__ = ["filter_bits"]

_GOLDEN: Final = 0x9E3779B9
_32_BITS: Final = 0xFFFFFFFF


def phash2(value: bytes) -> int:
    """Return Erlang's `erlang:phash2/1` of a binary, before it is reduced to a range: 32 bits."""
    whole = len(value) - len(value) % 12
    a, b, c = _GOLDEN, _GOLDEN, 13 * _GOLDEN
    for at in range(0, whole, 12):
        a += int.from_bytes(value[at : at + 4], "little")
        b += int.from_bytes(value[at + 4 : at + 8], "little")
        c += int.from_bytes(value[at + 8 : at + 12], "little")
        a, b, c = _mix(a, b, c)
    rest = value[whole:]
    a += int.from_bytes(rest[:4], "little")
    b += int.from_bytes(rest[4:8], "little")
    c += (int.from_bytes(rest[8:], "little") << 8) + len(value)
    return _mix(a, b, c)[2]


def phash2_in_list(value: bytes) -> int:
    """Return `erlang:phash2/1` of the list with this binary only."""
    return _mix(2 * _GOLDEN + 2, 2 * _GOLDEN, phash2(value))[2]


def filter_bits(value: bytes, size_bytes: int) -> tuple[int, int]:
    """Return the two bits that `value` sets in a filter of `size_bytes`. They may be equal."""
    bits = 8 * size_bytes - 1
    return 1 + phash2(value) % bits, 1 + phash2_in_list(value) % bits


def matches(filter_bytes: bytes, value: bytes | None) -> bool:
    """Return True if a chunk with this filter may have a record with `value`.

    `None` and b"" mean a record without a value. A chunk without a filter (`b""`) has only such records.
    """
    if not filter_bytes:
        return not value
    return all(filter_bytes[bit // 8] & 0x80 >> bit % 8 for bit in _bits(value, len(filter_bytes)))


def build_filter(values: Iterable[bytes | None], size_bytes: int = FILTER_SIZE_BYTES_MIN) -> bytes:
    """Return the filter of a chunk whose records have `values`. `None` and b"" mean no value.

    The filter is empty if no record has a value. Raises `Misuse` for a size that osiris would refuse.
    """
    if not FILTER_SIZE_BYTES_MIN <= size_bytes <= FILTER_SIZE_BYTES_MAX:
        raise Misuse(f"a filter has 16 to 255 bytes, not {size_bytes}")
    distinct = {value or None for value in values}
    if distinct <= {None}:
        return b""
    raw = bytearray(size_bytes)
    for value in distinct:
        for bit in _bits(value, size_bytes):
            raw[bit // 8] |= 0x80 >> bit % 8
    return bytes(raw)


def _bits(value: bytes | None, size_bytes: int) -> tuple[int, ...]:
    return filter_bits(value, size_bytes) if value else (0,)


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    """Return the result of one round of Jenkins' hash of 1996, in 32 bits."""
    for right, left, last in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = (a - b - c & _32_BITS) ^ (c & _32_BITS) >> right
        b = (b - c - a & _32_BITS) ^ a << left & _32_BITS
        c = (c - a - b & _32_BITS) ^ b >> last
    return a, b, c
