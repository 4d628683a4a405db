"""Arrow batches made of stored chunks, one column at a time.

Spark's tasks and `ArrowStream` make their batches here.

Invariants: every batch has exactly the schema that was asked for; values are copied once, from the window
to the batch; a batch respects the limits of rows and of value bytes, unless one value is larger. Python code
runs for each record only if a column of the decoder is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offload.contracts.decoder import Decoder
from offload.formats.records import RecordRun
from offload.ground.errors import Misuse
from offload.model.part import part_name
from offload.model.record_columns import ByteColumn, HeaderColumn, RecordBytes

__all__ = ["HEADERS", "BatchMaker"]


LONG_MAX: Final = 2**63 - 1
PER_MS: Final = {"ms": 1, "us": 1000}
"""The units of timestamp columns, as parts of a millisecond. A time that such a column cannot hold, in either
direction, is clipped. All times fit a column of milliseconds."""

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The type of the column `headers`, as Spark's reader of Kafka has it."""

_WITHOUT_DECODER: Final = frozenset({"stream", "part", "ledger", "offset", "timestamp", "value"})

DECODED_ROWS_MAX: Final = 16384
"""The most rows of a batch with columns of a decoder. They stay in the cache from the bytes to the batch."""

SPAN_SIZE_BYTES_MAX: Final = 2**31 - 1
"""The most bytes that the 32-bit offsets of a `binary` array can address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMaker:
    """A maker of the batches of one read. It has no state."""

    schema: pa.Schema
    """Any of the columns that `_Made` knows. Timestamps are in milliseconds or microseconds."""

    decoder: Decoder | None
    rows_max: int
    size_bytes_max: int

    def batches(self, run: RecordRun, *, stream: str, part: int, ledger_id: int) -> Iterator[pa.RecordBatch]:
        """Yield a run of one part of a stream as batches.

        Raises `Misuse` for a ledger or an offset beyond 63 bits.
        """
        if len(run) and max(ledger_id, int(run.offsets[-1])) > LONG_MAX:
            beyond = f"offset {run.offsets[-1]} or ledger {ledger_id} is too large for a 64-bit column"
            raise Misuse(f"stream {part_name(stream, part)!r}: {beyond}")
        for rows in self._cut(run):
            made = _Made(rows, stream, part, ledger_id, self._decoded(rows))
            arrays = [made.column(field.name, field.type) for field in self.schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    @property
    def _names(self) -> list[str]:
        """The columns of the decoder that the schema has."""
        if self.decoder is None:
            return []
        return [name for name in self.schema.names if name not in _WITHOUT_DECODER]

    def _decoded(self, run: RecordRun) -> Mapping[str, ByteColumn | HeaderColumn]:
        """Return the columns of the decoder. One call makes them all."""
        if self.decoder is None or not (names := self._names):
            return {}
        records = RecordBytes(np.frombuffer(run.data, np.uint8), run.starts, run.sizes)
        return self.decoder.columns(records, names)

    def _cut(self, run: RecordRun) -> Iterator[RecordRun]:
        reached = np.cumsum(run.sizes)
        rows_max = min(self.rows_max, DECODED_ROWS_MAX) if self._names else self.rows_max
        first = 0
        while first < len(run):
            before = int(reached[first - 1]) if first else 0
            fit = int(np.searchsorted(reached, before + self.size_bytes_max, side="right"))
            stop = min(max(fit, first + 1), first + rows_max)
            yield run.rows(first, stop)
            first = stop


class _Made:
    """The columns of one batch."""

    def __init__(
        self,
        run: RecordRun,
        stream: str,
        part: int,
        ledger_id: int,
        decoded: Mapping[str, ByteColumn | HeaderColumn],
    ) -> None:
        self._run, self._decoded = run, decoded
        self._stream, self._part, self._ledger_id = stream, part, ledger_id

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return the column of this name as this type."""
        # No table of functions: they would refer to this object, and the cycle would keep the window's memory
        # until the garbage collector comes by.
        match name:
            case "stream":
                return pa.repeat(pa.scalar(self._stream, kind), len(self._run))
            case "part":
                return pa.repeat(pa.scalar(self._part, kind), len(self._run))
            case "ledger":
                return pa.repeat(pa.scalar(self._ledger_id, kind), len(self._run))
            case "offset":
                return _numbers(self._run.offsets.view(np.int64), kind)
            case "timestamp":
                return self._timestamps(kind)
            case "value":
                return self._values()
        found = self._decoded.get(name)
        if found is None:  # the column `key`: without a decoder, a record has none
            return pa.nulls(len(self._run), kind)
        return _headers(found, kind) if isinstance(found, HeaderColumn) else _array(found, kind)

    def _timestamps(self, kind: pa.TimestampType) -> pa.Array:
        times, per_ms = self._run.timestamps_ms, PER_MS[kind.unit]
        if per_ms > 1:
            times = np.clip(times, -((LONG_MAX + 1) // per_ms), LONG_MAX // per_ms) * per_ms
        return _numbers(times, kind)

    def _values(self) -> pa.Array:
        """Return the values without a Python step for each.

        The compiled loop has copied the values already, and the batches of a window share them. Without it,
        the window alternates between values and the bytes between them. An array of all these pieces shares
        the window's bytes; taking every second piece copies the values once.
        """
        run, count = self._run, len(self._run)
        if run.edges is not None:
            buffers = [None, pa.py_buffer(run.edges), pa.py_buffer(run.data)]
            return pa.Array.from_buffers(pa.binary(), count, buffers)
        begin, end = int(run.starts[0]), int(run.starts[-1] + run.sizes[-1])
        if end - begin > SPAN_SIZE_BYTES_MAX:
            return pa.array(self._records(), pa.binary())
        edges = np.empty(2 * count, np.int32)
        edges[0::2] = run.starts - begin
        edges[1::2] = edges[0::2] + run.sizes
        bytes_ = pa.py_buffer(memoryview(run.data)[begin:end])
        pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(edges), bytes_])
        return pieces.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))

    def _records(self) -> list[bytes]:
        # Decoders look parts of records up, so records are bytes, and no views.
        data, starts = bytes(self._run.data), self._run.starts.tolist()
        return [
            data[start : start + size] for start, size in zip(starts, self._run.sizes.tolist(), strict=True)
        ]


def _array(column: ByteColumn, kind: pa.DataType) -> pa.Array:
    """Return a column as an array that shares its bytes."""
    buffers = [_validity(column.valid), pa.py_buffer(_offsets(column.offsets)), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(column), buffers)


def _numbers(numbers: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Return 64-bit numbers as an array that shares their memory."""
    assert kind.bit_width == 64
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def _headers(column: HeaderColumn, kind: pa.ListType) -> pa.Array:
    names, values = (kind.value_type.field(number).type for number in range(2))
    pairs = pa.StructArray.from_arrays(
        [_array(column.names, names), _array(column.values, values)],
        fields=[kind.value_type.field(number) for number in range(2)],
    )
    buffers = [None, pa.py_buffer(_offsets(column.offsets))]
    return pa.Array.from_buffers(kind, len(column), buffers, children=[pairs])


def _offsets(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    if int(offsets[-1]) > SPAN_SIZE_BYTES_MAX:
        raise Misuse(f"a column of one batch has {offsets[-1]} bytes, more than 2 GiB: read fewer rows")
    return offsets.astype(np.int32)


def _validity(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
