"""Erlang's external term format, as far as a broker's files have it: `term_to_binary` without compression.

Atoms become `str`, binaries `bytes`, tuples `tuple`, lists and strings of small integers `list`, maps a list
of pairs, and numbers `int` or `float`. All other tags raise `Corrupt`, because no message has references.
The format: https://www.erlang.org/doc/apps/erts/erl_ext_dist.html

Invariants: a size is compared with the bytes that are left before anything is allocated for it; a term has at
most `TERMS_MAX` terms in it, and they are nested at most `DEPTH_MAX` deep, so the stack of Python suffices.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NoReturn

from offload.ground.errors import Corrupt

VERSION: Final = 131
DEPTH_MAX: Final = 200
"""A header nested n tables deep is nested 3n deep as a term. Brokers' own terms need less than 12."""

TERMS_MAX: Final = 2**20
"""A message of 512 MiB has some 4,000 fragments, and a frame of properties some 100,000 terms at most."""

_SHORT: Final = struct.Struct(">H").unpack_from
_LONG: Final = struct.Struct(">I").unpack_from
_SIGNED: Final = struct.Struct(">i").unpack_from
_DOUBLE: Final = struct.Struct(">d").unpack_from


def decode_term(raw: bytes, *, where: str) -> Any:
    """Return the term that fills `raw`. Raises `Corrupt` if it is none, or exceeds a bound."""
    if raw[:1] != b"\x83":
        raise Corrupt("version of a term", where, expected=VERSION, found=raw[:1].hex() or "nothing")
    reader = _TermReader(raw, where)
    try:
        value = reader.read(DEPTH_MAX)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise Corrupt("term", where, expected="a whole term", found=error, position=reader.at) from error
    if reader.at != len(raw):
        reader.refuse("end of a term", len(raw), reader.at)
    return value


class _TermReader:
    __slots__ = ("at", "left", "raw", "where")

    def __init__(self, raw: bytes, where: str) -> None:
        self.raw, self.where, self.at, self.left = raw, where, 1, TERMS_MAX

    def refuse(self, what: str, expected: object, found: object) -> NoReturn:
        raise Corrupt(what, self.where, expected=expected, found=found, position=self.at)

    def read(self, depth: int) -> Any:
        raw, at = self.raw, self.at
        tag = raw[at]  # the tags are in the order of their frequency
        if tag == 109:  # BINARY_EXT
            return self._bytes(at + 5, _LONG(raw, at + 1)[0])
        if tag == 97:  # SMALL_INTEGER_EXT
            self.at = at + 2
            return raw[at + 1]
        if tag == 100 or tag == 118:  # ATOM_EXT, ATOM_UTF8_EXT
            text = self._bytes(at + 3, _SHORT(raw, at + 1)[0])
            return text.decode("latin-1" if tag == 100 else "utf-8")
        if tag == 119 or tag == 115:  # SMALL_ATOM_UTF8_EXT, SMALL_ATOM_EXT
            text = self._bytes(at + 2, raw[at + 1])
            return text.decode("latin-1" if tag == 115 else "utf-8")
        if tag == 106:  # NIL_EXT
            self.at = at + 1
            return []
        if tag == 104:  # SMALL_TUPLE_EXT
            return tuple(self._terms(at + 2, raw[at + 1], depth))
        if tag == 108:  # LIST_EXT
            found = self._terms(at + 5, _LONG(raw, at + 1)[0], depth)
            if raw[self.at] != 106:
                self.refuse("tail of a list", "an empty list", raw[self.at])
            self.at += 1
            return found
        if tag == 98:  # INTEGER_EXT
            self.at = at + 5
            return _SIGNED(raw, at + 1)[0]
        if tag == 110:  # SMALL_BIG_EXT
            size = raw[at + 1]
            number = int.from_bytes(self._bytes(at + 3, size), "little")
            return -number if raw[at + 2] else number
        if tag == 70:  # NEW_FLOAT_EXT
            self.at = at + 9
            return _DOUBLE(raw, at + 1)[0]
        if tag == 107:  # STRING_EXT: a list of small integers
            return [*self._bytes(at + 3, _SHORT(raw, at + 1)[0])]
        if tag == 105:  # LARGE_TUPLE_EXT
            return tuple(self._terms(at + 5, _LONG(raw, at + 1)[0], depth))
        if tag == 116:  # MAP_EXT
            flat = self._terms(at + 5, 2 * _LONG(raw, at + 1)[0], depth)
            return [*zip(flat[::2], flat[1::2], strict=True)]
        return self.refuse("tag of a term", "a known one", tag)

    def _terms(self, at: int, count: int, depth: int) -> list[Any]:
        self.left -= count
        # Each term has at least one byte.
        if self.left < 0 or count > len(self.raw) - at:
            self.refuse("number of terms", f"at most {TERMS_MAX}, in {len(self.raw) - at} bytes", count)
        if depth == 0:
            self.refuse("depth of a term", f"at most {DEPTH_MAX}", "more")
        self.at = at
        return [self.read(depth - 1) for _ in range(count)]

    def _bytes(self, at: int, size: int) -> bytes:
        end = at + size
        if end > len(self.raw):
            self.refuse("size of a term", f"at most {len(self.raw) - at}", size)
        self.at = end
        return self.raw[at:end]
