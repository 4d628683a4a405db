"""Rows of bytes that are all made of the same steps: bytes that are the same in each row, and values.

The compiled loop takes one row after the other. NumPy, where it is not there, takes one step of all rows
after the other.

Invariants: every byte of a row that is found is compared, or belongs to a value. No byte outside `data` is
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from offload.ground.loops import LoopStep, compiled_loops
from offload.model.record_columns import Bytes, Integers

__all__ = ["Pattern", "PatternMatch", "PatternStep", "PatternValue", "windows_at", "words_at"]


@dataclass(frozen=True, slots=True)
class PatternValue:
    """A value of `width` bytes, or one behind its size, which has `width` bytes and is big-endian."""

    width: int
    is_sized: bool = False


PatternStep: TypeAlias = bytes | PatternValue


@dataclass(frozen=True, slots=True)
class PatternMatch:
    """The rows that were found, by their number, and where each value is in each of them."""

    rows: Integers
    places: Sequence[Integers]
    sizes: Sequence[Integers]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A description of rows: the steps that each is made of. A size has 1 or 4 bytes."""

    steps: Sequence[PatternStep]

    @property
    def values(self) -> Sequence[PatternValue]:
        """The steps that are values."""
        return [step for step in self.steps if isinstance(step, PatternValue)]

    @property
    def loop_steps(self) -> Sequence[LoopStep]:
        """The steps, as the compiled loops take them."""
        return [step if isinstance(step, bytes) else (step.width, step.is_sized) for step in self.steps]

    def find(self, data: Bytes, starts: Integers, stops: Integers) -> PatternMatch:
        """Return the rows that are made of the steps, from their start to their stop, and of nothing else."""
        loops = compiled_loops()
        if loops is None:
            return self._side_by_side(data, starts, stops)
        return PatternMatch(*loops.match(data, starts, stops, self.loop_steps))

    def _side_by_side(self, data: Bytes, starts: Integers, stops: Integers) -> PatternMatch:
        rows, at = np.flatnonzero((starts >= 0) & (starts <= stops) & (stops <= len(data))), starts
        at, stops = starts[rows], stops[rows]
        places, sizes = list[Integers](), list[Integers]()
        for step in self.steps:
            if isinstance(step, bytes):
                # A position behind the stop belongs to a row that does not fit in any case.
                fits = windows_at(data, at, len(step)) == np.void(step)
                if not fits.all():
                    rows, at, stops = rows[fits], at[fits], stops[fits]
                    places, sizes = [each[fits] for each in places], [each[fits] for each in sizes]
                at = at + len(step)
                continue
            size = np.full(len(at), step.width)
            if step.is_sized and len(at):
                lengths = words_at(data, f">u{step.width}")
                if not len(lengths):
                    size += len(data)  # leads out of the row
                else:
                    size = lengths[np.minimum(at, len(lengths) - 1)].astype(np.int64)
                at = at + step.width
            places.append(at)
            sizes.append(size)
            at = at + size
        fits = at == stops
        if not fits.all():
            return PatternMatch(rows[fits], [each[fits] for each in places], [each[fits] for each in sizes])
        return PatternMatch(rows, places, sizes)


def words_at(data: Bytes, code: str) -> npt.NDArray[np.uint64]:
    """Return the integer of this type at each byte of `data`. Nothing is copied."""
    size = np.dtype(code).itemsize
    return np.ndarray((max(len(data) - size + 1, 0),), code, data, strides=(1,))


def windows_at(data: Bytes, at: Integers, width: int) -> npt.NDArray[np.void]:
    """Return `width` bytes from each position, or any bytes if they are not in the data."""
    windows = np.ndarray((max(len(data) - width + 1, 0),), f"V{width}", data, strides=(1,))
    if not len(windows) or not len(at):
        return np.zeros(len(at), f"V{width}")
    return windows[at] if int(at.max()) < len(windows) else windows[np.minimum(at, len(windows) - 1)]
