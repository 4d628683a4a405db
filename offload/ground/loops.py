"""The compiled loops of `loops.c`: they unpack entries, match, write and join rows, and quote text.

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
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "ROOM_SIZE_BYTES_MAX",
    "LoopPiece",
    "LoopStep",
    "Loops",
    "Transcribed",
    "compiled_loops",
    "loops_in_use",
]

LIBRARY: Final = Path(__file__).with_name("_loops.so")
"""The library, if this installation has one. The name is the same on all platforms."""

SWITCH: Final = "OFFLOAD_LOOPS"
ROOM_SIZE_BYTES_MAX: Final = 2**31 - 1

_Integers: TypeAlias = npt.NDArray[np.int64]
LoopStep: TypeAlias = bytes | tuple[int, bool]
LoopPiece: TypeAlias = tuple[bytes | memoryview | npt.NDArray[np.uint8], tuple[_Integers, _Integers] | None]

_TEXT, _ASCII, _SIGNED, _UNSIGNED, _TIME, _UUID, _RAW, _NONE = range(8)
_NUMBER_WIDTHS: Final = (1, 2, 4, 8)
_FORM_WIDTHS: Final = {_SIGNED: _NUMBER_WIDTHS, _UNSIGNED: _NUMBER_WIDTHS, _TIME: (8,), _UUID: (16,)}
"""The bytes that the values of each form have. A text is behind its size."""
_FORM_ROOM: Final = {_SIGNED: 20, _UNSIGNED: 20, _TIME: 24, _UUID: 36}
"""The most bytes of the text of a value, but for texts."""
_ESCAPE_ROOM: Final = 6
"""The most bytes of text for a byte that JSON escapes."""


class Transcribed(NamedTuple):
    """The rows that were found and written. All arrays but the last two have a number for each of them."""

    rows: _Integers
    edges: _Integers
    """The starts of the texts of all rows, and the end of the last one."""
    texts: npt.NDArray[np.uint8]
    beyond: npt.NDArray[np.bool_]
    """True for rows with a `TEXT` that has bytes beyond ASCII. Whether these are UTF-8 is not known."""
    places: Sequence[_Integers]
    """The starts of the texts of each value: in `texts`, but for `TEXT` and `ASCII` in the data."""
    sizes: Sequence[_Integers]


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
            pointer, number, *[pointer] * 2, number, *[pointer] * 2, number, *[pointer] * 4,
        ]  # fmt: skip
        self._match.restype = number
        self._transcribe = library.offload_transcribe
        self._transcribe.argtypes = [
            pointer, number, *[pointer] * 2, number, pointer, number, *[pointer] * 2, *[number] * 3,
            *[pointer] * 5, number, pointer,
        ]  # fmt: skip
        self._transcribe.restype = number
        self._quote = library.offload_quote_utf8
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

    def transcribe(
        self,
        data: npt.NDArray[np.uint8],
        starts: _Integers,
        stops: _Integers,
        steps: Sequence[LoopStep],
        forms: Sequence[int],
        texts: Sequence[bytes],
    ) -> Transcribed:
        """Find rows as `match` does, and write each with its values as text, between these texts.

        There is a form for each value, as `TextForm` counts them, and one text more. A row whose value has no
        text in its form is not found. Raises `ValueError` for a size that a form does not have.
        """
        octets, (starts, stops) = _octets(data), _alike(starts, stops)
        found, beyond = np.empty(len(starts), np.int64), np.empty(len(starts) + 1, np.bool_)
        places, sizes = np.empty((2, len(forms) - forms.count(_NONE), len(starts)), np.int64)
        edges, script = np.empty(len(starts) + 1, np.int64), _script(steps, forms, texts)
        fixed = sum(map(len, texts)) + sum(_FORM_ROOM.get(form, 0) for form in forms)
        growth = _ESCAPE_ROOM if _TEXT in forms or _ASCII in forms else 1
        for room in _rooms(starts, stops - starts, len(octets), fixed, growth):
            out = np.empty(room, np.uint8)
            count = self._transcribe(
                octets.ctypes.data,
                len(octets),
                starts.ctypes.data,
                stops.ctypes.data,
                len(starts),
                script.ctypes.data,
                len(steps),
                b"".join(step for step in steps if isinstance(step, bytes)),
                b"".join(texts),
                len(texts[0]),
                fixed,
                growth,
                found.ctypes.data,
                places.ctypes.data,
                sizes.ctypes.data,
                edges.ctypes.data,
                out.ctypes.data,
                room,
                beyond.ctypes.data,
            )
            if count >= 0:
                break
        return Transcribed(
            found[:count],
            edges[: count + 1],
            out[: int(edges[count])],
            beyond[:count],
            [each[:count] for each in places],
            [each[:count] for each in sizes],
        )

    def quote(
        self, data: npt.NDArray[np.uint8], starts: _Integers, sizes: _Integers
    ) -> tuple[_Integers, npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """Write values as strings of JSON.

        Returns the edges of the strings, the strings behind each other, and which values are no UTF-8: these
        have no string. Raises `ValueError` if a value is not within `data`.
        """
        octets, (starts, sizes) = _octets(data), _alike(starts, sizes)
        edges, broken = np.empty(len(starts) + 1, np.int64), np.empty(len(starts), np.bool_)
        for room in _rooms(starts, sizes, len(octets), 2, _ESCAPE_ROOM):
            out = np.empty(room, np.uint8)
            written = self._quote(
                octets.ctypes.data,
                len(octets),
                starts.ctypes.data,
                sizes.ctypes.data,
                len(starts),
                edges.ctypes.data,
                out.ctypes.data,
                room,
                broken.ctypes.data,
            )
            if written == len(starts):
                return edges, out[: int(edges[-1])], broken
        raise ValueError(f"value {written} is not within the data")

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


def _rooms(starts: _Integers, sizes: _Integers, most: int, fixed: int, growth: int) -> tuple[int, int]:
    """Return the bytes that rows of these texts mostly need, and need at most. The data has `most` bytes."""
    is_within = (starts >= 0) & (sizes >= 0) & (starts <= most) & (sizes <= most - starts)
    sizes = sizes if is_within.all() else sizes[is_within]
    total, largest, fixed = int(sizes.sum()), int(sizes.max(initial=0)), fixed * len(starts)
    # The kernel clears new memory. So the first number is little more than what most rows need.
    return fixed + min(total + total // 4 + growth * largest, growth * total), fixed + growth * total


def _script(steps: Sequence[LoopStep], forms: Sequence[int], texts: Sequence[bytes]) -> _Integers:
    """Return the four numbers of each step. Raises `ValueError` for a size that a form does not have."""
    script, values = list[tuple[int, int, int, int]](), zip(forms, texts[1:], strict=True)
    for step in steps:
        if isinstance(step, bytes):
            script.append((0, len(step), 0, 0))
            continue
        (width, is_sized), (form, behind) = step, next(values)
        is_fit = is_sized if form in (_TEXT, _ASCII) else not is_sized and width in _FORM_WIDTHS.get(form, ())
        if not is_fit and form not in (_RAW, _NONE):
            raise ValueError(f"a value of {width} bytes in form {form}")
        script.append((2 if is_sized else 1, width, form, len(behind)))
    return _integers(script)


def _octets(data: bytes | memoryview | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)


def _integers(numbers: Any) -> _Integers:
    return np.ascontiguousarray(numbers, np.int64)


def _alike(*columns: _Integers) -> list[_Integers]:
    """Return columns for a loop, which reads as many numbers of each. Raises `ValueError` if they differ."""
    if len({*map(len, columns)}) > 1:
        raise ValueError(f"columns of different lengths: {[*map(len, columns)]}")
    return [*map(_integers, columns)]
