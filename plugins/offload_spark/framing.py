"""Arrow batches as stored chunks. `batches` does the reverse.

A chunk has one timestamp and records without a gap, so a chunk ends where the time changes. Invariants: the
records keep their order; each is copied once, into the data of a chunk; Python code runs once for each chunk,
and never for each record.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offload.formats.chunk_writer import seal_chunk
from offload.ground.errors import Misuse

CHUNK_RECORDS_MAX: Final = 4096
CHUNK_SIZE_BYTES_MAX: Final = 1024 * 1024
"""The largest data of a chunk. A larger record gets a chunk of its own."""

LENGTH_SIZE_BYTES: Final = 4
"""The size of the length before each record."""

_Integers = npt.NDArray[np.int64]


@dataclass(kw_only=True)
class Framer:
    """A maker of chunks from one task's rows, batch after batch."""

    stream: str
    timestamp_ms: int
    """The time of rows without a column `timestamp`."""

    next_offset: int | None = None
    """The offset at which the next batch must begin; None before the first batch."""

    def chunks(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Yield the rows as chunks.

        Raises `Misuse` if the offsets are not consecutive, and for a null offset, time or value.
        """
        if not batch.num_rows:
            return
        first_offset = self._continued(_numbers(batch, "offset"))
        times_ms = self._times_ms(batch)
        data, edges = _framed(_required(batch, "value"))
        for start, stop in _cuts(times_ms, edges):
            yield seal_chunk(
                bytes(data[edges[start] : edges[stop]]),
                entries=stop - start,
                records=stop - start,
                offset=first_offset + start,
                timestamp_ms=int(times_ms[start]),
                epoch=0,
            )

    def _continued(self, offsets: _Integers) -> int:
        """Return the first offset. Raises `Misuse` if the offsets have a gap, also to the batch before."""
        first, before = int(offsets[0]), self.next_offset
        expected = first if before is None else before
        wrong = np.flatnonzero(offsets != np.arange(expected, expected + len(offsets)))
        if len(wrong) or first < 0:
            row = int(wrong[0]) if len(wrong) else 0
            raise Misuse(
                f"stream {self.stream!r}: found offset {offsets[row]} instead of {max(expected + row, 0)}; "
                'sort the rows by offset, without a gap: repartitionByRange("offset")'
                '.sortWithinPartitions("offset"), or number them by offload_spark.append'
            )
        self.next_offset = first + len(offsets)
        return first

    def _times_ms(self, batch: pa.RecordBatch) -> _Integers:
        if "timestamp" not in batch.schema.names:
            return np.full(batch.num_rows, self.timestamp_ms, np.int64)
        column = _required(batch, "timestamp").cast(pa.timestamp("us", tz="UTC"))
        return np.asarray(column.cast(pa.int64())) // 1000


def _required(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if column.null_count:
        raise Misuse(f"column {name!r} is null in {column.null_count} of {len(column)} rows")
    return column


def _numbers(batch: pa.RecordBatch, name: str) -> _Integers:
    return np.asarray(_required(batch, name).cast(pa.int64()))


def _framed(values: pa.Array) -> tuple[memoryview, _Integers]:
    """Return the values, each behind its length, back to back; and the edges between them in bytes."""
    values = values.cast(pa.binary())
    count = len(values)
    sizes = np.asarray(pc.binary_length(values)).astype(">u4")
    # An array of lengths as four-byte binaries, so that one Arrow call joins them with the values.
    places = np.arange(0, LENGTH_SIZE_BYTES * (count + 1), LENGTH_SIZE_BYTES, dtype=np.int32)
    lengths = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(places), pa.py_buffer(sizes)])
    joined = pc.binary_join_element_wise(lengths, values, b"")
    edges = np.zeros(count + 1, np.int64)
    np.cumsum(sizes.astype(np.int64) + LENGTH_SIZE_BYTES, out=edges[1:])
    return memoryview(joined.buffers()[2]), edges


def _cuts(times_ms: _Integers, edges: _Integers) -> Iterator[tuple[int, int]]:
    """Yield the first row of each chunk, and the row behind its last one."""
    count, start = len(times_ms), 0
    for until in [*(np.flatnonzero(np.diff(times_ms)) + 1).tolist(), count]:
        while start < until:
            fit = int(np.searchsorted(edges, edges[start] + CHUNK_SIZE_BYTES_MAX, side="right")) - 1
            stop = min(max(fit, start + 1), start + CHUNK_RECORDS_MAX, until)  # one record at least
            yield start, stop
            start = stop
