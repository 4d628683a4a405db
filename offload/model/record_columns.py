"""Records, and what a decoder finds in them, as columns: one buffer, and where each row is in it.

Invariant of every column: `offsets` has one number more than the column has rows, begins at 0, never falls,
and ends at the length of `data`. So a column is two buffers of Arrow, and NumPy alone can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ByteColumn", "Bytes", "HeaderColumn", "Integers", "RecordBytes"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]

_NOTHING: Final = np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True)
class RecordBytes:
    """Records in one buffer: the k-th is `data[starts[k] : starts[k] + sizes[k]]`."""

    data: Bytes
    starts: Integers
    sizes: Integers

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def of(cls, records: Sequence[bytes]) -> RecordBytes:
        """Return these records, joined."""
        sizes = np.fromiter(map(len, records), np.int64, len(records))
        return cls(np.frombuffer(b"".join(records), np.uint8), np.cumsum(sizes) - sizes, sizes)

    def between(self, start: int, stop: int) -> RecordBytes:
        """Return the records from the one at `start` to the one before `stop`."""
        return RecordBytes(self.data, self.starts[start:stop], self.sizes[start:stop])

    def at(self, row: int) -> bytes:
        """Return a copy of one record."""
        start = int(self.starts[row])
        return self.data[start : start + int(self.sizes[row])].tobytes()

    def to_list(self) -> list[bytes]:
        """Return a copy of each record."""
        if not len(self):
            return []
        # The records are in one piece of the buffer, mostly: it is copied once, and sliced.
        begin, end = int(self.starts.min()), int((self.starts + self.sizes).max())
        raw, starts = self.data[begin:end].tobytes(), (self.starts - begin).tolist()
        return [raw[start : start + size] for start, size in zip(starts, self.sizes.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """A column of bytes or of UTF-8 text: the k-th is `data[offsets[k] : offsets[k + 1]]`."""

    offsets: Integers
    data: Bytes
    valid: npt.NDArray[np.bool_] | None = None
    """False for each row that has no value; None if every row has one. A row without a value has no bytes."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> ByteColumn:
        """Return a column of these values."""
        valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
        filled = [value or b"" for value in values]
        offsets = np.zeros(len(values) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, filled), np.int64, len(filled)), out=offsets[1:])
        data = np.frombuffer(b"".join(filled), np.uint8) if offsets[-1] else _NOTHING
        return cls(offsets, data, None if valid.all() else valid)

    @classmethod
    def joined(cls, columns: Sequence[ByteColumn]) -> ByteColumn:
        """Return the rows of several columns as one column, in order."""
        if len(columns) == 1:
            return columns[0]
        some = any(column.valid is not None for column in columns)
        valid = [
            np.ones(len(each), np.bool_) if each.valid is None else each.valid for each in columns if some
        ]
        return cls(
            _joined_offsets(column.offsets for column in columns),
            np.concatenate([_NOTHING, *(column.data for column in columns)]),
            np.concatenate(valid) if valid else None,
        )

    def to_list(self) -> list[bytes | None]:
        """Return a copy of each value; None for a row without one."""
        raw, edges = self.data.tobytes(), self.offsets.tolist()
        values: list[bytes | None] = [raw[a:b] for a, b in pairwise(edges)]
        if self.valid is None:
            return values
        return [value if is_valid else None for value, is_valid in zip(values, self.valid, strict=True)]


@dataclass(frozen=True, slots=True)
class HeaderColumn:
    """A column of headers: row k has the pairs from `offsets[k]` to the one before `offsets[k + 1]`."""

    offsets: Integers
    names: ByteColumn
    """UTF-8."""
    values: ByteColumn

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def of(cls, rows: Sequence[Sequence[tuple[str, bytes]]]) -> HeaderColumn:
        """Return a column of these headers."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
        names = ByteColumn.of([name.encode() for row in rows for name, _ in row])
        return cls(offsets, names, ByteColumn.of([value for row in rows for _, value in row]))

    @classmethod
    def joined(cls, columns: Sequence[HeaderColumn]) -> HeaderColumn:
        """Return the rows of several columns as one column, in order."""
        return cls(
            _joined_offsets(column.offsets for column in columns),
            ByteColumn.joined([column.names for column in columns]),
            ByteColumn.joined([column.values for column in columns]),
        )

    def to_list(self) -> list[list[tuple[str, bytes]]]:
        """Return the pairs of each row."""
        names = [(name or b"").decode() for name in self.names.to_list()]
        pairs = [*zip(names, [value or b"" for value in self.values.to_list()], strict=True)]
        edges = self.offsets.tolist()
        return [pairs[a:b] for a, b in pairwise(edges)]


def _joined_offsets(columns: Iterable[Integers]) -> Integers:
    found, end = [np.zeros(1, np.int64)], 0
    for offsets in columns:
        found.append(offsets[1:] + end)
        end += int(offsets[-1])
    return np.concatenate(found)
