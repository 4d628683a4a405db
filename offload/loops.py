"""The compiled loops of `loops.c`: they unpack entries, match and join rows, and quote text.

A wheel for a platform has them as a shared library, which is loaded when it is first needed. Without it, or
with `OFFLOAD_LOOPS=numpy`, callers take their own way with NumPy, which finds the same.

Invariants: the library reads no byte outside of the buffers that it is given, and writes none outside of the
arrays that are made here, whatever the bytes are. It has no state, so threads and forked processes share it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ROOM_SIZE_BYTES_MAX", "LoopPiece", "LoopStep", "Loops", "compiled_loops", "loops_in_use"]

LIBRARY: Final = Path(__file__).with_name("_loops.so")
"""The library, if this installation has one. The name is the same on all platforms."""

SWITCH: Final = "OFFLOAD_LOOPS"
ROOM_SIZE_BYTES_MAX: Final = 2**31 - 1

_Integers: TypeAlias = npt.NDArray[np.int64]
LoopStep: TypeAlias = bytes | tuple[int, bool]
LoopPiece: TypeAlias = tuple[bytes | memoryview | npt.NDArray[np.uint8], tuple[_Integers, _Integers] | None]


class Loops:
    """The functions of a library. Raises `OSError` or `AttributeError` for a file of another kind."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._unpack = library.offload_unpack
        self._unpack.argtypes = [pointer, number, *[pointer] * 3, number, pointer, pointer, number, pointer]
        self._unpack.restype = None
        self._match = library.offload_match
        self._match.argtypes = [
            pointer,
            number,
            *[pointer] * 2,
            number,
            *[pointer] * 2,
            number,
            *[pointer] * 4,
        ]
        self._match.restype = number
        self._quote = library.offload_quote
        self._quote.argtypes = [pointer, number, *[pointer] * 2, number, *[pointer] * 2, number, pointer]
        self._quote.restype = number
        self._join = library.offload_join
        self._join.argtypes = [*[pointer] * 4, number, pointer, number, pointer, number]
        self._join.restype = number

    def unpack(
        self, data: bytes | memoryview, begins: _Integers, stops: _Integers, counts: _Integers
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """Copy the bodies of `counts` entries of each chunk, which begin and stop at these positions.

        Returns their edges, of which there is one more than bodies; the bodies behind each other; and for
        each chunk whether its entries end at its stop. The bodies of another chunk are empty. `data` has at
        most `ROOM_SIZE_BYTES_MAX` bytes.
        """
        octets, (begins, stops, counts) = _octets(data), _alike(begins, stops, counts)
        edges, values = np.empty(int(counts.sum()) + 1, np.int32), np.empty(len(octets), np.uint8)
        whole = np.empty(len(begins), np.bool_)
        self._unpack(
            octets.ctypes.data,
            len(octets),
            begins.ctypes.data,
            stops.ctypes.data,
            counts.ctypes.data,
            len(begins),
            edges.ctypes.data,
            values.ctypes.data,
            len(values),
            whole.ctypes.data,
        )
        return edges, values[: int(edges[-1])], whole

    def match(
        self, data: npt.NDArray[np.uint8], starts: _Integers, stops: _Integers, steps: Sequence[LoopStep]
    ) -> tuple[_Integers, list[_Integers], list[_Integers]]:
        """Find the rows that are made of these steps, and of nothing else, from their start to their stop.

        A step is bytes, or a value: a number of bytes, and whether that is the number of bytes of its size,
        big-endian, in front of it. Returns the rows, and the place and the size of each value in each.
        """
        octets, (starts, stops) = _octets(data), _alike(starts, stops)
        kinds = _integers([0 if isinstance(step, bytes) else 2 if step[1] else 1 for step in steps])
        widths = _integers([len(step) if isinstance(step, bytes) else step[0] for step in steps])
        values = int(np.count_nonzero(kinds))
        found = np.empty(len(starts), np.int64)
        places, sizes = np.empty((2, values, len(starts)), np.int64)
        count = self._match(
            octets.ctypes.data,
            len(octets),
            starts.ctypes.data,
            stops.ctypes.data,
            len(starts),
            kinds.ctypes.data,
            widths.ctypes.data,
            len(steps),
            b"".join(step for step in steps if isinstance(step, bytes)),
            found.ctypes.data,
            places.ctypes.data,
            sizes.ctypes.data,
        )
        return found[:count], [each[:count] for each in places], [each[:count] for each in sizes]

    def quote(
        self, data: npt.NDArray[np.uint8], starts: _Integers, sizes: _Integers
    ) -> tuple[_Integers, npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """Write values as strings of JSON: between quotes, and quotes and backslashes behind a backslash.

        Returns the edges of the strings, the strings behind each other, and which of them mean nothing,
        because the value has a control character. UTF-8 is not checked. Raises `ValueError` if a value is not
        within `data`, or if all together may need more than `ROOM_SIZE_BYTES_MAX`.
        """
        octets, (starts, sizes) = _octets(data), _alike(starts, sizes)
        edges, odd = np.empty(len(starts) + 1, np.int64), np.empty(len(starts), np.bool_)
        room = 2 * (int(sizes.sum()) + len(starts))
        if not 0 <= room <= ROOM_SIZE_BYTES_MAX:
            raise ValueError(f"{room} bytes of text in one array")
        out = np.empty(room, np.uint8)
        written = self._quote(
            octets.ctypes.data,
            len(octets),
            starts.ctypes.data,
            sizes.ctypes.data,
            len(starts),
            edges.ctypes.data,
            out.ctypes.data,
            len(out),
            odd.ctypes.data,
        )
        if written != len(starts):
            raise ValueError(f"value {written} is not within the data")
        return edges, out[: int(edges[-1])], odd

    def join(self, pieces: Sequence[LoopPiece], places: _Integers, out: npt.NDArray[np.uint8]) -> None:
        """Write rows that are made of these pieces, one behind the other: row k at `places[k]` of `out`.

        A piece is a buffer, and where its part is in each row: starts and sizes, or None for all of it.
        Raises `ValueError` if a piece is not within its buffer, or not within `out`.
        """
        places = _integers(places)
        kept = [
            (_octets(source), *((None, None) if part is None else _alike(places, *part)[1:]))
            for source, part in pieces
        ]
        sources, starts, sizes = (
            np.array([0 if each[at] is None else each[at].ctypes.data for each in kept], np.uintp)
            for at in range(3)
        )
        source_sizes = np.array([len(source) for source, _, _ in kept], np.int64)
        written = self._join(
            sources.ctypes.data,
            source_sizes.ctypes.data,
            starts.ctypes.data,
            sizes.ctypes.data,
            len(kept),
            places.ctypes.data,
            len(places),
            out.ctypes.data,
            len(out),
        )
        if written != len(places):
            raise ValueError(f"a piece of row {written} is not within its buffer")


def compiled_loops() -> Loops | None:
    """Return the compiled loops, or None where NumPy does their work."""
    return _loaded()[0]


def loops_in_use() -> str:
    """Return which loops run in this process, and why, for a person."""
    return _loaded()[1]


@cache
def _loaded() -> tuple[Loops | None, str]:
    if os.environ.get(SWITCH) == "numpy":
        return None, f"NumPy: {SWITCH} asks for it"
    if not LIBRARY.exists():
        return None, "NumPy: this installation has no compiled loops"
    try:
        return Loops(LIBRARY), "compiled"
    except (OSError, AttributeError) as error:
        return None, f"NumPy: {LIBRARY.name} cannot be loaded: {error}"


def _octets(data: bytes | memoryview | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)


def _integers(numbers: Any) -> _Integers:
    return np.ascontiguousarray(numbers, np.int64)


def _alike(*columns: _Integers) -> list[_Integers]:
    """Return columns for a loop, which reads as many numbers of each. Raises `ValueError` if they differ."""
    if len({*map(len, columns)}) > 1:
        raise ValueError(f"columns of different lengths: {[*map(len, columns)]}")
    return [*map(_integers, columns)]
