"""The bloom filter of a chunk, which tells whether one of its records may carry a filter value.

A filter of B bytes is 8B bits, of which bit i is `byte[i // 8] & (0x80 >> i % 8)`. Bit 0 says that a
record without a filter value is present; each value sets two of the others. A chunk in which no
record has a value has no filter at all, whatever its size would have been. The size may change along a
stream, so each chunk is asked with its own. A filter may say yes in vain, never no: check the record's
own value afterwards. The empty value and none are the same, as they are to osiris.

The two bits come from Erlang's `phash2` of the value, and of the list that holds the value alone: this is
osiris' filter bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from offload.errors import Misuse
from offload.formats.chunk import FILTER_SIZE_BYTES_MAX, FILTER_SIZE_BYTES_MIN

_GOLDEN: Final = 0x9E3779B9
_32_BITS: Final = 0xFFFFFFFF


def phash2(value: bytes) -> int:
    """Erlang's `erlang:phash2/1` of a binary, before it is reduced to a range: 32 bits."""
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
    """`erlang:phash2/1` of the list that holds this binary alone."""
    return _mix(2 * _GOLDEN + 2, 2 * _GOLDEN, phash2(value))[2]


def filter_bits(value: bytes, size_bytes: int) -> tuple[int, int]:
    """The two bits that `value` sets in a filter of `size_bytes`; they may coincide."""
    bits = 8 * size_bytes - 1
    return 1 + phash2(value) % bits, 1 + phash2_in_list(value) % bits


def matches(filter_bytes: bytes, value: bytes | None) -> bool:
    """Whether the chunk with this filter may hold a record with `value`; with none, for `None` or b"".

    A chunk without filter (`b""`) holds records without a value only.
    """
    if not filter_bytes:
        return not value
    return all(filter_bytes[bit // 8] & 0x80 >> bit % 8 for bit in _bits(value, len(filter_bytes)))


def build_filter(values: Iterable[bytes | None], size_bytes: int = FILTER_SIZE_BYTES_MIN) -> bytes:
    """The filter of a chunk whose records have `values`, `None` or b"" standing for a record without one.

    It is empty when no record has one. Raises `Misuse` for a size that osiris would refuse.
    """
    if not FILTER_SIZE_BYTES_MIN <= size_bytes <= FILTER_SIZE_BYTES_MAX:
        raise Misuse(f"a filter of {size_bytes} bytes; 16 to 255 are possible")
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
    """One round of Jenkins' hash of 1996, in 32 bits."""
    for right, left, last in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = (a - b - c & _32_BITS) ^ (c & _32_BITS) >> right
        b = (b - c - a & _32_BITS) ^ a << left & _32_BITS
        c = (c - a - b & _32_BITS) ^ b >> last
    return a, b, c
