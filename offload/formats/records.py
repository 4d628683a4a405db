"""The records of a run of chunks as columns: where each value lies, without a Python step for each record.

The length of an entry leads to the next one, so a chunk can only be walked from its beginning. But the
chunks of a run do not depend on each other: they are walked side by side, one entry of each at a time, as
arrays. Few large chunks are walked one after the other instead, which is quicker there.

Invariants: a value's place is given only where all entries of its chunk are simple and fill the data section
exactly; so no length goes unchecked. Every other chunk is taken apart by `entries.messages`, which also says
what is wrong with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.formats.chunk import CHUNK_HEADER, headers_at
from offload.formats.entries import messages
from offload.model.chunk_table import ChunkTable, ChunkType

__all__ = ["RecordRun", "record_runs"]


SIDE_BY_SIDE_MIN: Final = 40
"""With fewer chunks at a time, on the average, one after the other is quicker (measured at 100 bytes a
record)."""

_LENGTH: Final = struct.Struct(">I")
_Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Messages with ascending offsets: the body of the k-th is `data[starts[k] : starts[k] + sizes[k]]`."""

    offsets: npt.NDArray[np.uint64]
    timestamps_ms: _Integers
    starts: _Integers
    sizes: _Integers
    data: bytes

    def __len__(self) -> int:
        return len(self.offsets)

    def between(self, first_offset: int, next_offset: int) -> RecordRun:
        """The messages with these offsets."""
        edges = np.array([first_offset, next_offset], np.uint64)
        return self.rows(*np.searchsorted(self.offsets, edges).tolist())

    def rows(self, start: int, stop: int) -> RecordRun:
        """The messages from the one at `start` to the one before `stop`."""
        return RecordRun(
            self.offsets[start:stop],
            self.timestamps_ms[start:stop],
            self.starts[start:stop],
            self.sizes[start:stop],
            self.data,
        )


def offsets_and_timestamps(rows: ChunkTable) -> tuple[npt.NDArray[np.uint64], _Integers]:
    """Of every message in these chunks: known from the table alone."""
    rows = rows[rows["type"] == ChunkType.USER]
    counts = rows["records"].astype(np.int64)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(rows["offset"], counts) + within.astype(np.uint64), np.repeat(
        rows["timestamp_ms"], counts
    )


def record_runs(data: bytes, rows: ChunkTable, *, where: str) -> Iterator[RecordRun]:
    """The messages of these chunks, in order, in as few runs as may be. Tracking chunks have none.

    `data` holds exactly the stored chunks of `rows`, whose checksums were checked. Where the turn of a
    damaged chunk comes, raises as `entries.messages` does.
    """
    origin = int(rows["position"][0]) if len(rows) else 0
    rows = rows[rows["type"] == ChunkType.USER]
    if not len(rows):
        return
    chunk_starts = rows["position"] - np.uint64(origin)
    starts, stops, entries = _sections(data, chunk_starts)
    counts = np.where(entries == rows["records"], entries, 0)  # fewer entries: there are sub-batches
    at, ends = _walked(data, starts, counts)
    is_simple = (counts > 0) & (ends == stops)
    last_of = np.cumsum(counts)
    edges = [0, *(np.flatnonzero(np.diff(is_simple)) + 1).tolist(), len(rows)]
    for first, last in pairwise(edges):
        if is_simple[first]:
            run = at[int(last_of[first] - counts[first]) : int(last_of[last - 1])]
            yield _simple_run(data, rows[first:last], run)
        else:
            for row, start in zip(rows[first:last], chunk_starts[first:last].tolist(), strict=True):
                chunk = memoryview(data)[start : start + int(row["size_bytes"])]
                yield _run_of_bodies(row, messages(chunk, where=where, position=origin + start))


def _simple_run(data: bytes, rows: ChunkTable, at: _Integers) -> RecordRun:
    return RecordRun(
        *offsets_and_timestamps(rows), at + _LENGTH.size, _lengths(data)[at].astype(np.int64), data
    )


def _run_of_bodies(row: np.void, bodies: list[bytes]) -> RecordRun:
    sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    columns = offsets_and_timestamps(np.array([row]))
    return RecordRun(*columns, np.cumsum(sizes) - sizes, sizes, b"".join(bodies))


def _sections(data: bytes, chunk_starts: npt.NDArray[np.uint64]) -> tuple[_Integers, _Integers, _Integers]:
    """Where each chunk's data section begins and ends, and how many entries it has."""
    headers = headers_at(data, chunk_starts)
    starts = chunk_starts.astype(np.int64) + CHUNK_HEADER.size_bytes + headers["filter_size_bytes"]
    return starts, starts + headers["data_size_bytes"], headers["entries"].astype(np.int64)


def _lengths(data: bytes) -> npt.NDArray[np.uint32]:
    """The number that stands at each byte, as if an entry began there."""
    return np.ndarray((len(data) - _LENGTH.size + 1,), ">u4", data, strides=(1,))


def _walked(data: bytes, starts: _Integers, counts: _Integers) -> tuple[_Integers, _Integers]:
    """Where each entry begins, chunk after chunk, and where each chunk's last one ends.

    A wrong length, or a sub-batch, leads beyond the end of the chunk, whence no way leads back.
    """
    walk = _side_by_side if counts.sum() >= SIDE_BY_SIDE_MIN * counts.max() else _one_by_one
    return walk(data, starts, counts)


def _side_by_side(data: bytes, starts: _Integers, counts: _Integers) -> tuple[_Integers, _Integers]:
    lengths, last = _lengths(data), len(data) - _LENGTH.size
    found = np.empty(int(counts.sum()), np.int64)
    order = np.argsort(-counts, kind="stable")  # those with the most entries first: the others drop out
    at, slots = starts[order], (np.cumsum(counts) - counts)[order]
    left = np.searchsorted(-counts[order], -np.arange(int(counts.max())), side="left").tolist()
    for index, chunks in enumerate(left):
        here = at[:chunks]
        found[slots[:chunks] + index] = here
        at[:chunks] = here + lengths[np.minimum(here, last)] + _LENGTH.size
    ends = np.empty_like(at)
    ends[order] = at
    return found, ends


def _one_by_one(data: bytes, starts: _Integers, counts: _Integers) -> tuple[_Integers, _Integers]:
    length_at, last = _LENGTH.unpack_from, len(data) - _LENGTH.size
    found: list[int] = []
    ends: list[int] = []
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        at = start
        for _ in range(count):
            found.append(at)
            at += _LENGTH.size + length_at(data, min(at, last))[0]
        ends.append(at)
    return np.array(found, np.int64), np.array(ends, np.int64)
