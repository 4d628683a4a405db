"""Rows of text or bytes put together from pieces, without a Python step for each row.

A row is a sequence of pieces: bytes that are the same in every row, or the k-th value of a pool. All rows of
one call have the same sequence. The sizes of values differ.

The compiled loop copies piece after piece. NumPy, where it is not there, has no copy of values of different
sizes. Two ways to copy values of one width make up for it:

    over-long    Every value is copied as if it had the size of the largest. The bytes that are too many lie
                 where the next pieces of the same row are written afterwards. That takes rows that are long
                 enough behind the value.
    overlapping  A value of 16 to 31 bytes is its first and its last 16 bytes. So values are grouped by powers
                 of two.

Invariant: no byte outside `data` of a pool is read, and none outside a row is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.ground.loops import LoopPiece, compiled_loops
from offload.model.record_columns import ByteColumn, Bytes, Integers

__all__ = ["RowBuilder", "RowPiece", "ValuePool", "column_of"]


OVER_LONG_MAX: Final = 512
"""The largest value that is copied in the over-long way: the copies are as large for every row."""

STEP_SIZE_BYTES: Final = 256 * 1024
"""The bytes that are copied at a time in the over-long way. A larger copy would not stay in the cache."""

ONE_BY_ONE_MIN: Final = 8192
"""Values of this size are copied one by one: the bytes then take longer than the Python step."""


@dataclass(frozen=True, slots=True)
class ValuePool:
    """Values in a buffer: the k-th is `data[starts[k] : starts[k] + sizes[k]]`."""

    data: Bytes
    starts: Integers
    sizes: Integers

    @classmethod
    def of(cls, column: ByteColumn) -> ValuePool:
        """Return the values of a column."""
        return cls(column.data, column.offsets[:-1], np.diff(column.offsets))

    def of_rows(self, rows: Integers | slice) -> ValuePool:
        """Return the values of these rows."""
        return ValuePool(self.data, self.starts[rows], self.sizes[rows])


RowPiece: TypeAlias = bytes | ValuePool


class RowBuilder:
    """A column that is made of groups of rows. Rows that are in no group are empty."""

    def __init__(self, count: int) -> None:
        self._sizes = np.zeros(count, np.int64)
        self._groups: list[tuple[Integers | None, Sequence[RowPiece]]] = []

    def add(self, rows: Integers | None, pieces: Sequence[RowPiece]) -> None:
        """Make these rows of these pieces. `rows` are ascending and in no other group; None is all rows."""
        sizes: Any = sum((len(piece) if isinstance(piece, bytes) else piece.sizes) for piece in pieces)
        if rows is None:
            self._sizes[:] = sizes
        else:
            self._sizes[rows] = sizes
        self._groups.append((rows, pieces))

    def column(self) -> ByteColumn:
        """Return the column."""
        offsets = np.zeros(len(self._sizes) + 1, np.int64)
        np.cumsum(self._sizes, out=offsets[1:])
        size = int(offsets[-1])
        if len(self._sizes) and len(self._groups) == 1 and self._groups[0][0] is None:
            fixed = [piece for piece in self._groups[0][1] if isinstance(piece, bytes)]
            if len(fixed) == len(self._groups[0][1]):  # the same in every row
                return ByteColumn(offsets, np.frombuffer(b"".join(fixed) * len(self._sizes), np.uint8))
        out = np.empty(size + OVER_LONG_MAX, np.uint8)
        is_first, loops = True, compiled_loops()
        for rows, pieces in self._groups:
            starts, ends = (offsets[:-1], offsets[1:]) if rows is None else (offsets[rows], offsets[rows + 1])
            if loops is not None:
                loops.join([_loop_piece(piece) for piece in pieces], starts, out)
            elif len(starts):
                places = _places(pieces, starts)
                # The last value mostly has too little behind it to be copied over-long. So it goes first.
                pools = [number for number, piece in enumerate(pieces) if isinstance(piece, ValuePool)]
                done = pools[-1] if pools else -1
                if pools and not _copied_first(pieces[done], out, places[done], starts, is_first=is_first):
                    done = -1
                _write(pieces, out, places, ends, done=done)
                is_first = is_first and rows is None
        return ByteColumn(offsets, out[:size])


def column_of(pieces: Sequence[RowPiece], count: int) -> ByteColumn:
    """Return a column of `count` rows that are all made of these pieces."""
    builder = RowBuilder(count)
    builder.add(None, pieces)
    return builder.column()


def _loop_piece(piece: RowPiece) -> LoopPiece:
    return (piece, None) if isinstance(piece, bytes) else (piece.data, (piece.starts, piece.sizes))


def _places(pieces: Sequence[RowPiece], starts: Integers) -> list[Integers]:
    """Return where each piece begins, in rows that begin at `starts`."""
    places, at = [], starts
    for piece in pieces:
        places.append(at)
        at = at + (len(piece) if isinstance(piece, bytes) else piece.sizes)
    return places


def _write(
    pieces: Sequence[RowPiece], out: Bytes, places: Sequence[Integers], ends: Integers, *, done: int
) -> None:
    """Write the pieces of rows, beside the one of number `done`, which is there already."""
    for number, (piece, place) in enumerate(zip(pieces, places, strict=True)):
        if isinstance(piece, bytes):
            if piece:
                _windows(out, len(piece))[place] = np.void(piece)
        elif number != done:
            _copy(piece, out, place, places[done] if number < done else ends)


def _windows(data: Bytes, width: int) -> npt.NDArray[np.void]:
    """Return the `width` bytes at each position of `data`. Nothing is copied."""
    return np.ndarray((max(len(data) - width + 1, 0),), f"V{width}", data, strides=(1,))


def _copied_first(pool: RowPiece, out: Bytes, at: Integers, starts: Integers, *, is_first: bool) -> bool:
    """Write values over-long, before the rest of their rows. Return False if they do not fit."""
    assert isinstance(pool, ValuePool)
    largest = int(pool.sizes.max())
    if not 0 < largest <= OVER_LONG_MAX:
        return False
    if is_first:
        # NumPy copies 16 and 32 bytes faster than most sizes.
        wide = next((width for width in (16, 32) if width >= largest), largest)
        if wide <= len(pool.data):
            largest = wide
        # Rows are written in their order, so what is too much of one is written over by the rows behind it.
        _copy_over_long(pool, out, at, largest)
        return True
    # In a later group, the bytes that are too many must be before the value, in the same row.
    places, sources = at + (pool.sizes - largest), pool.starts + (pool.sizes - largest)
    if (places < starts).any() or int(sources.min()) < 0:
        return False
    _windows(out, largest)[places] = _windows(pool.data, largest)[sources]
    return True


def _copy(pool: ValuePool, out: Bytes, at: Integers, until: Integers) -> None:
    """Write the k-th value at `at[k]`. Bytes from there to `until[k]` may be written over."""
    largest = int(pool.sizes.max())
    if 0 < largest <= OVER_LONG_MAX and (at + largest <= until).all():
        _copy_over_long(pool, out, at, largest)
        return
    power = 1
    while power <= largest:
        if power >= ONE_BY_ONE_MIN:
            _copy_one_by_one(pool, out, at, np.flatnonzero(pool.sizes >= power))
            return
        rows = np.flatnonzero((pool.sizes >= power) & (pool.sizes < 2 * power))
        if len(rows):
            source, target = _windows(pool.data, power), _windows(out, power)
            starts, places, behind = pool.starts[rows], at[rows], pool.sizes[rows] - power
            target[places] = source[starts]
            if behind.any():
                target[places + behind] = source[starts + behind]
        power *= 2


def _copy_over_long(pool: ValuePool, out: Bytes, at: Integers, largest: int) -> None:
    sources, limit = pool.starts, len(pool.data) - largest
    if int(sources.max()) <= limit:
        source, target = _windows(pool.data, largest), _windows(out, largest)
        step = max(STEP_SIZE_BYTES // largest, 1)
        for first in range(0, len(sources), step):
            target[at[first : first + step]] = source[sources[first : first + step]]
        return
    # The last values of a buffer have too little behind them.
    fits = sources <= limit
    _windows(out, largest)[at[fits]] = _windows(pool.data, largest)[sources[fits]]
    _copy_one_by_one(pool, out, at, np.flatnonzero(~fits & (pool.sizes > 0)))


def _copy_one_by_one(pool: ValuePool, out: Bytes, at: Integers, rows: Integers) -> None:
    for start, size, place in zip(
        pool.starts[rows].tolist(), pool.sizes[rows].tolist(), at[rows].tolist(), strict=True
    ):
        out[place : place + size] = pool.data[start : start + size]
