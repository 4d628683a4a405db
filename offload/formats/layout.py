"""A binary layout as one table: the struct, its size, its NumPy type and its documentation come from it.

Invariants: integers are big-endian, there is no padding, and the order of the fields is the order of the
bytes. Reserved bytes are fields like any other, so that decoders can check that they are zero.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["Layout", "layout"]


_NUMPY_CODES = {"B": "u1", "H": ">u2", "I": ">u4", "Q": ">u8", "b": "i1", "i": ">i4", "q": ">i8"}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, its struct code, and its meaning (a line of docs/format.md)."""

    name: str
    code: str
    meaning: str

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the field."""
        return struct.calcsize(">" + self.code)


@dataclass(frozen=True)
class Layout:
    """A record of fixed size. `title` is the heading of its table in docs/format.md."""

    title: str
    fields: tuple[Field, ...]

    @cached_property
    def struct(self) -> struct.Struct:
        """The compiled struct."""
        return struct.Struct(">" + "".join(field.code for field in self.fields))

    @cached_property
    def size_bytes(self) -> int:
        """The size of one record."""
        return self.struct.size

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """The record as a NumPy type, so that a run of records can be used without decoding."""
        return np.dtype([(field.name, _numpy_code(field)) for field in self.fields])

    def pack(self, **values: Any) -> bytes:
        """Encode one record. Every field must be given."""
        return self.struct.pack(*(values[field.name] for field in self.fields))

    def unpack(self, raw: bytes | bytearray | memoryview, position: int = 0) -> dict[str, Any]:
        """Decode the record that begins at `position`. The caller must have checked that it fits."""
        names = (field.name for field in self.fields)
        return dict(zip(names, self.struct.unpack_from(raw, position), strict=True))

    def offset_of(self, name: str) -> int:
        """Return the position of a field in the record."""
        before = 0
        for field in self.fields:
            if field.name == name:
                return before
            before += field.size_bytes
        raise KeyError(name)

    def table(self) -> str:
        """Return the layout as a Markdown table."""
        rows = [f"### {self.title}", "", "| byte | size | field | meaning |", "|---|---|---|---|"]
        at = 0
        for field in self.fields:
            rows.append(f"| {at} | {field.size_bytes} | `{field.name}` | {field.meaning} |")
            at += field.size_bytes
        return "\n".join([*rows, "", f"Size: {at} bytes."])


def layout(title: str, *fields: tuple[str, str, str]) -> Layout:
    """Return a layout of rows of (name, struct code, meaning)."""
    return Layout(title, tuple(Field(*row) for row in fields))


def _numpy_code(field: Field) -> str:
    if field.code.endswith("s"):
        return f"V{field.size_bytes}"
    return _NUMPY_CODES[field.code]
