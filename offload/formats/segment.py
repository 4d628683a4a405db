"""The formats of a stream's files: segments, which hold chunks, and indexes, which locate them.

    segment    "OSIL", version 1, then chunks back to back
    index      "OSII", version 1, then one record of 29 bytes per chunk, in the order of the chunks

Invariants that `chunk_table` checks: the first chunk has the offset in the file's name and begins behind the
segment's header; offsets and positions ascend. The index does not have the length of its last chunk. The
chunk's own header has it.

This module reads no file.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.formats.chunk import CHUNK_HEADER, CHUNK_SIZE_BYTES_MAX, ChunkHeader
from offload.formats.layout import Layout, layout
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable, ChunkType

__all__ = [
    "INDEX_HEADER",
    "INDEX_MAGIC",
    "INDEX_RECORD",
    "SEGMENT_HEADER",
    "SEGMENT_MAGIC",
    "VERSION",
    "IndexRecords",
    "check_index_head",
    "check_segment_head",
    "chunk_table",
    "describes",
    "index_records",
    "record_position",
]


VERSION: Final = 1
SEGMENT_MAGIC: Final = b"OSIL"
INDEX_MAGIC: Final = b"OSII"

SEGMENT_HEADER: Final = layout(
    "RabbitMQ segment file header",
    ("magic", "4s", "b'OSIL'"),
    ("version", "I", "1; a reader refuses any other"),
)
assert SEGMENT_HEADER.size_bytes == 8

INDEX_HEADER: Final = layout(
    "RabbitMQ index file header",
    ("magic", "4s", "b'OSII'"),
    ("version", "I", "1; a reader refuses any other"),
)
assert INDEX_HEADER.size_bytes == 8

INDEX_RECORD: Final = layout(
    "RabbitMQ index record",
    ("offset", "Q", "offset of the chunk's first record (the chunk id)"),
    ("timestamp_ms", "q", "the chunk's timestamp, in milliseconds since 1970"),
    ("epoch", "Q", "the leader epoch in which the chunk was written"),
    ("position", "I", "byte of the segment file at which the chunk begins"),
    ("type", "B", "0 user, 1 tracking delta, 2 tracking snapshot"),
)
assert INDEX_RECORD.size_bytes == 29

IndexRecords: TypeAlias = npt.NDArray[np.void]
"""An array of `INDEX_RECORD`, big-endian as in the file."""

_RECORDS_MAX: Final = 2**32 - 1
"""The most records of one chunk: the field in its header has 32 bits."""


def check_segment_head(raw: bytes, *, where: str) -> None:
    """Raise `Corrupt` if `raw` is no segment's header, and `UnsupportedFormat` if its version is unknown."""
    _check_head(raw, SEGMENT_HEADER, SEGMENT_MAGIC, where)


def check_index_head(raw: bytes, *, where: str) -> None:
    """Raise `Corrupt` if `raw` is no index's header, and `UnsupportedFormat` if its version is unknown."""
    _check_head(raw, INDEX_HEADER, INDEX_MAGIC, where)


def index_records(raw: bytes) -> IndexRecords:
    """Return the whole records of an index file, without a copy. A cut record at the end is left out."""
    # The broker may still write the newest index, so it may end within a record. `sealed` refuses that.
    whole = (len(raw) - INDEX_HEADER.size_bytes) // INDEX_RECORD.size_bytes
    if whole < 1:
        return np.empty(0, INDEX_RECORD.dtype)
    return np.frombuffer(raw, INDEX_RECORD.dtype, whole, INDEX_HEADER.size_bytes)


def record_position(row: int) -> int:
    """Return the byte of the index file at which record `row` begins."""
    return INDEX_HEADER.size_bytes + row * INDEX_RECORD.size_bytes


def describes(record: np.void, header: ChunkHeader) -> bool:
    """Return True if an index record describes the chunk with this header."""
    # Without the position: a header does not have it, and the caller read the header there.
    names = ("offset", "timestamp_ms", "epoch", "type")
    return all(int(record[name]) == getattr(header, name) for name in names)


def chunk_table(records: IndexRecords, *, last: ChunkHeader, first_offset: int, where: str) -> ChunkTable:
    """Return the table of the chunks that `records` (at least one) locate; `last` is the last one's header.

    Raises `Corrupt` for the first record that breaks an invariant, at its byte of the index `where`.
    """
    rows: ChunkTable = np.empty(len(records), CHUNK_TABLE)
    for name in ("offset", "timestamp_ms", "position", "type"):
        rows[name] = records[name]
    record_counts = _steps(rows["offset"], last.records)
    sizes = _steps(rows["position"], last.size_bytes)
    rows["size_bytes"] = sizes
    # The column has 32 bits. A count that the mask changes is refused below.
    rows["records"] = record_counts & np.uint64(_RECORDS_MAX)

    first = (int(rows["offset"][0]), int(rows["position"][0]))
    if first != (first_offset, SEGMENT_HEADER.size_bytes):
        raise _disorder(rows, 0, f"offset {first_offset}, byte {SEGMENT_HEADER.size_bytes}", where)
    # A record that occurs twice has a step of zero. A record out of order has a huge one (`_steps`).
    sound = (record_counts >= 1) & (record_counts <= _RECORDS_MAX)
    sound &= (sizes >= CHUNK_HEADER.size_bytes) & (sizes <= CHUNK_SIZE_BYTES_MAX)
    sound &= rows["type"] <= max(ChunkType)
    if not sound.all():
        raise _disorder(rows, int(sound.argmin()), "a known type, and offset and byte before the next", where)
    return rows


def _check_head(raw: bytes, head: Layout, magic: bytes, where: str) -> None:
    if len(raw) < head.size_bytes:
        raise Corrupt("size of the file header", where, expected=head.size_bytes, found=len(raw))
    values = head.unpack(raw)
    # The magic comes first: in a file of another kind, the next bytes are no version.
    if values["magic"] != magic:
        raise Corrupt("magic of the file header", where, expected=magic, found=values["magic"])
    if values["version"] != VERSION:
        raise UnsupportedFormat(
            f"{where} has version {values['version']}; this program reads version {VERSION}"
        )


def _steps(values: npt.NDArray[np.uint64], last: int) -> npt.NDArray[np.uint64]:
    """Return the step from each value to the next, and `last` for the last value.

    The values are unsigned: a step down wraps to a huge number, which the caller refuses as too large.
    """
    steps = np.empty_like(values)
    np.subtract(values[1:], values[:-1], out=steps[:-1])
    steps[-1] = last
    return steps


def _disorder(rows: ChunkTable, row: int, expected: str, where: str) -> Corrupt:
    near = rows[row : row + 2]
    return Corrupt(
        "index record",
        where,
        position=record_position(row),
        expected=expected,
        found=", then ".join(f"type {r['type']}, offset {r['offset']}, byte {r['position']}" for r in near),
    )
