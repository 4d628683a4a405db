"""What counts of the newest pair: its tail may be torn, by a crash or by a write under way.

The index leads. Records are dropped from its end until one locates a chunk that is whole and sound; the
segment ends with that chunk, whatever stands behind it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import numpy as np

from offload.errors import Corrupt
from offload.formats.checksums import crc32
from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.model.chunk_table import ChunkTable
from offload_rabbitmq.files import opened, read_at, shown
from offload_rabbitmq.pair import Pair, check_heads, header_at, read_index
from offload_rabbitmq.segment import SEGMENT_HEADER, IndexRecords, chunk_table, describes, index_records

_PIECE_SIZE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Newest:
    """A pair that nothing follows, up to its last sound chunk."""

    pair: Pair
    rows: ChunkTable
    last: ChunkHeader


def recover_newest(pair: Pair) -> Newest | None:
    """The pair up to its last sound chunk; None where it has none.

    Headers of the files count only where a chunk does: of a pair that a crash left empty, they may be
    missing too. Raises `Corrupt` where what is kept breaks the format.
    """
    raw = read_index(pair)  # before the segment's size is taken: the broker writes the chunk first
    records = index_records(raw)
    with opened(pair.segment) as descriptor:
        kept = _keep(pair, records, descriptor)
        if kept is None:
            return None
        check_heads(pair, raw, descriptor)
    count, last = kept
    rows = chunk_table(records[:count], last=last, first_offset=pair.offset, where=shown(pair.index))
    return Newest(pair, rows, last)


def _keep(pair: Pair, records: IndexRecords, segment: int) -> tuple[int, ChunkHeader] | None:
    """How many records are kept, and the header of the last one's chunk; None where none is kept.

    A record of zeros, which a crash leaves too, locates no chunk: its position is in the file's header.
    """
    size_bytes = os.fstat(segment).st_size
    positions = records["position"].astype(np.int64)
    within = (positions >= SEGMENT_HEADER.size_bytes) & (positions + CHUNK_HEADER.size_bytes <= size_bytes)
    for row in reversed(np.flatnonzero(within).tolist()):
        header = _sound_chunk(pair, records[row], segment, size_bytes)
        if header is not None:
            return row + 1, header
    return None


def _sound_chunk(pair: Pair, record: np.void, segment: int, size_bytes: int) -> ChunkHeader | None:
    """The header of the record's chunk, if it is the one described, whole, and its checksum holds."""
    start = int(record["position"])
    try:
        header = header_at(pair, segment, start)
    except Corrupt:
        return None
    if not describes(record, header) or start + header.size_bytes > size_bytes:
        return None
    return header if _data_checksum(pair, segment, start, header) == header.crc else None


def _data_checksum(pair: Pair, segment: int, start: int, header: ChunkHeader) -> int:
    """CRC-32 of a chunk's data section, taken piece by piece: a chunk may be as large as its segment."""
    checksum, at, stop = 0, start + header.data_start, start + header.trailer_start
    while piece := read_at(segment, at, min(stop - at, _PIECE_SIZE_BYTES), path=pair.segment):
        checksum = crc32(piece, checksum)
        at += len(piece)
    return checksum
