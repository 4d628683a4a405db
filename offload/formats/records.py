"""The records of a run of chunks as columns, found without a Python step for each record.

The length of an entry leads to the next entry, so a chunk can only be walked from its beginning. But the
chunks of a run do not depend on each other. The compiled loop walks them one after the other, and copies the
bodies behind each other on the way. Without it they are walked side by side as arrays, one entry of each
chunk at a time, or, if there are few large chunks, one after the other.

Invariant: positions are returned only for chunks whose entries are all simple and fill the data section
exactly. So no length goes unchecked. Every other chunk is parsed by `entries.messages`, which also reports
its damage.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.formats.chunk import CHUNK_HEADER, headers_at
from offload.formats.entries import messages
from offload.ground.loops import ROOM_SIZE_BYTES_MAX, Loops, compiled_loops
from offload.model.chunk_table import ChunkTable, ChunkType

__all__ = ["RecordRun", "record_runs", "runs_of_table"]


SIDE_BY_SIDE_MIN: Final = 40
"""The average number of chunks that are walked at a time.

With fewer, walking them one after the other is faster. Measured with records of 100 bytes.
"""

_LENGTH: Final = struct.Struct(">I")
_Integers: TypeAlias = npt.NDArray[np.int64]
_Bytes: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Messages with ascending offsets: the body of the k-th is `data[starts[k] : starts[k] + sizes[k]]`."""

    offsets: npt.NDArray[np.uint64]
    timestamps_ms: _Integers
    starts: _Integers
    sizes: _Integers
    data: _Bytes
    edges: npt.NDArray[np.int32] | None = None
    """The begin of each body, and the end of the last one, if nothing is between them."""

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def joined(cls, runs: Sequence[RecordRun]) -> RecordRun:
        """Return the messages of several runs as one. Copies their bodies, if there are several."""
        if len(runs) == 1:
            return runs[0]
        spans = [memoryview(run.data)[slice(*run.span)] for run in runs]
        begins = np.cumsum([0, *map(len, spans)])[:-1].tolist()
        starts = [run.starts - run.span[0] + begin for run, begin in zip(runs, begins, strict=True)]
        return cls(
            np.concatenate([run.offsets for run in runs]),
            np.concatenate([run.timestamps_ms for run in runs]),
            np.concatenate(starts),
            np.concatenate([run.sizes for run in runs]),
            b"".join(spans),
        )

    @property
    def span(self) -> tuple[int, int]:
        """The part of `data` in which the bodies are. They are in it in their order."""
        return (int(self.starts[0]), int(self.starts[-1] + self.sizes[-1])) if len(self) else (0, 0)

    def between(self, first_offset: int, next_offset: int) -> RecordRun:
        """Return the messages with these offsets."""
        edges = np.array([first_offset, next_offset], np.uint64)
        return self.rows(*np.searchsorted(self.offsets, edges).tolist())

    def rows(self, start: int, stop: int) -> RecordRun:
        """Return the messages from the one at `start` to the one before `stop`."""
        return RecordRun(
            self.offsets[start:stop],
            self.timestamps_ms[start:stop],
            self.starts[start:stop],
            self.sizes[start:stop],
            self.data,
            None if self.edges is None else self.edges[start : stop + 1],
        )


def offsets_and_timestamps(rows: ChunkTable) -> tuple[npt.NDArray[np.uint64], _Integers]:
    """Return offset and timestamp of every message in these chunks. The table alone has them."""
    rows = rows[rows["type"] == ChunkType.USER]
    counts = rows["records"].astype(np.int64)
    timestamps_ms = np.repeat(rows["timestamp_ms"], counts)
    firsts, ends = rows["offset"], rows["offset"] + rows["records"]
    # Mostly no tracking chunk lies between two of them. Then the offsets count on, which takes a tenth of the
    # time of the general way.
    if len(rows) and (ends[:-1] == firsts[1:]).all():
        offsets = np.arange(len(timestamps_ms), dtype=np.uint64)
        offsets += firsts[0]
        return offsets, timestamps_ms
    within = np.arange(len(timestamps_ms)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(firsts, counts) + within.astype(np.uint64), timestamps_ms


def runs_of_table(rows: ChunkTable, *, rows_max: int) -> Iterator[RecordRun]:
    """Yield the messages of these chunks without bodies, from their table alone: `rows_max` in a run at most.

    A header may claim billions of messages, so `rows_max` bounds the memory.
    """
    rows = rows[rows["type"] == ChunkType.USER]
    reached = np.cumsum(rows["records"], dtype=np.int64)
    first = 0
    while first < len(rows):
        before = int(reached[first - 1]) if first else 0
        stop = int(np.searchsorted(reached, before + rows_max, side="right"))
        if stop > first:
            yield _run_without_bodies(rows[first:stop])
            first = stop
            continue
        # One chunk that has more of them is cut.
        piece = rows[first : first + 1].copy()
        offset, records = int(piece["offset"][0]), int(piece["records"][0])
        for begin in range(0, records, rows_max):
            piece["offset"], piece["records"] = offset + begin, min(rows_max, records - begin)
            yield _run_without_bodies(piece)
        first += 1


def _run_without_bodies(rows: ChunkTable) -> RecordRun:
    offsets, timestamps_ms = offsets_and_timestamps(rows)
    nothing = np.zeros(len(offsets), np.int64)
    return RecordRun(offsets, timestamps_ms, nothing, nothing, b"")


def record_runs(data: _Bytes, rows: ChunkTable, *, where: str) -> Iterator[RecordRun]:
    """Yield the messages of these chunks, in order, in as few runs as possible. Tracking chunks have none.

    `data` holds exactly the stored chunks of `rows`, whose checksums were checked. When a damaged chunk has
    its turn, raises as `entries.messages` does.
    """
    origin = int(rows["position"][0]) if len(rows) else 0
    rows = rows[rows["type"] == ChunkType.USER]
    if not len(rows):
        return
    chunk_starts = rows["position"] - np.uint64(origin)
    starts, stops, entries = _sections(data, chunk_starts)
    counts = np.where(entries == rows["records"], entries, 0)  # fewer entries mean that there are sub-batches
    found, is_whole = _found(data, starts, stops, counts)
    # A chunk whose walk does not end at the end of its data section has a sub-batch or damage.
    is_simple = (counts > 0) & is_whole
    last_of = np.cumsum(counts)
    edges = [0, *(np.flatnonzero(np.diff(is_simple)) + 1).tolist(), len(rows)]
    for first, last in pairwise(edges):
        if is_simple[first]:
            run = slice(int(last_of[first] - counts[first]), int(last_of[last - 1]))
            packed = None if found.edges is None else found.edges[run.start : run.stop + 1]
            columns = offsets_and_timestamps(rows[first:last])
            yield RecordRun(*columns, found.starts[run], found.sizes[run], found.data, packed)
        else:
            for row, start in zip(rows[first:last], chunk_starts[first:last].tolist(), strict=True):
                chunk = memoryview(data)[start : start + int(row["size_bytes"])]
                yield _run_of_bodies(row, messages(chunk, where=where, position=origin + start))


def _run_of_bodies(row: np.void, bodies: list[bytes]) -> RecordRun:
    sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    columns = offsets_and_timestamps(np.array([row]))
    return RecordRun(*columns, np.cumsum(sizes) - sizes, sizes, b"".join(bodies))


def _sections(data: _Bytes, chunk_starts: npt.NDArray[np.uint64]) -> tuple[_Integers, _Integers, _Integers]:
    """Return the start and the end of each chunk's data section, and its number of entries."""
    headers = headers_at(data, chunk_starts)
    starts = chunk_starts.astype(np.int64) + CHUNK_HEADER.size_bytes + headers["filter_size_bytes"]
    return starts, starts + headers["data_size_bytes"], headers["entries"].astype(np.int64)


def _lengths(data: _Bytes) -> npt.NDArray[np.uint32]:
    """Return the u32 at each byte of `data`, as if an entry began there. Nothing is copied."""
    return np.ndarray((len(data) - _LENGTH.size + 1,), ">u4", data, strides=(1,))


@dataclass(frozen=True, slots=True)
class _Found:
    """The bodies of some chunks, as `RecordRun` has them."""

    starts: _Integers
    sizes: _Integers
    data: _Bytes
    edges: npt.NDArray[np.int32] | None = None


def _found(
    data: _Bytes, starts: _Integers, stops: _Integers, counts: _Integers
) -> tuple[_Found, npt.NDArray[np.bool_]]:
    """Return the bodies of all chunks, and which chunks end at their stop. Those of others mean nothing."""
    loops = compiled_loops()
    if loops is not None and len(data) <= ROOM_SIZE_BYTES_MAX:
        return _packed(loops, data, starts, stops, counts)
    walk = _side_by_side if counts.sum() >= SIDE_BY_SIDE_MIN * counts.max() else _one_by_one
    return _walked(walk, data, starts, stops, counts)


def _packed(
    loops: Loops, data: _Bytes, starts: _Integers, stops: _Integers, counts: _Integers
) -> tuple[_Found, npt.NDArray[np.bool_]]:
    edges, bodies, is_whole = loops.unpack(data, starts, stops, counts)
    return _Found(edges[:-1].astype(np.int64), np.diff(edges).astype(np.int64), bodies.data, edges), is_whole


def _walked(
    walk: Callable[[_Bytes, _Integers, _Integers], tuple[_Integers, _Integers, _Integers]],
    data: _Bytes,
    starts: _Integers,
    stops: _Integers,
    counts: _Integers,
) -> tuple[_Found, npt.NDArray[np.bool_]]:
    # After a wrong length or a sub-batch, a chunk's end is not its stop, because positions only grow.
    at, sizes, ends = walk(data, starts, counts)
    return _Found(at, sizes, data), ends == stops


def _side_by_side(
    data: _Bytes, starts: _Integers, counts: _Integers
) -> tuple[_Integers, _Integers, _Integers]:
    lengths, last = _lengths(data), len(data) - _LENGTH.size
    found = np.empty(int(counts.sum()), np.int64)
    # Chunks with the most entries come first. So those that still have entries are always a prefix.
    order = np.argsort(-counts, kind="stable")
    at, slots = starts[order], (np.cumsum(counts) - counts)[order]
    left = np.searchsorted(-counts[order], -np.arange(int(counts.max())), side="left").tolist()
    for index, chunks in enumerate(left):
        here = at[:chunks]
        found[slots[:chunks] + index] = here
        # A walk that a wrong length led astray may be beyond `data`. It reads the last length then, and
        # continues: stopping one chunk would cost a test for all, and its end is wrong in any case.
        at[:chunks] = here + lengths[np.minimum(here, last)] + _LENGTH.size
    ends = np.empty_like(at)
    ends[order] = at
    return _sized(found, ends, counts)


def _one_by_one(data: _Bytes, starts: _Integers, counts: _Integers) -> tuple[_Integers, _Integers, _Integers]:
    length_at, last = _LENGTH.unpack_from, len(data) - _LENGTH.size
    found: list[int] = []
    ends: list[int] = []
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        at = start
        for _ in range(count):
            found.append(at)
            at += _LENGTH.size + length_at(data, min(at, last))[0]
        ends.append(at)
    return _sized(np.array(found, np.int64), np.array(ends, np.int64), counts)


def _sized(at: _Integers, ends: _Integers, counts: _Integers) -> tuple[_Integers, _Integers, _Integers]:
    """Return the start and the size of each body, from the positions of the entries."""
    # An entry ends where the next one of its chunk begins, so no length is read a second time.
    sizes = np.empty_like(at)
    np.subtract(at[1:], at[:-1], out=sizes[:-1])
    filled = counts > 0
    lasts = np.cumsum(counts)[filled] - 1
    sizes[lasts] = ends[filled] - at[lasts]
    sizes -= _LENGTH.size
    return at + _LENGTH.size, sizes, ends
