"""The valid part of the newest pair, whose tail may be torn by a crash or by a write that is running.

The index decides. Records are dropped from its end until one locates a chunk that is whole and sound. The
segment ends with that chunk, even if bytes follow it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import numpy as np

from offload.formats.checksums import crc32
from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.formats.segment import SEGMENT_HEADER, IndexRecords, chunk_table, describes, index_records
from offload.ground.errors import Corrupt
from offload.local.files import opened, read_at, shown_path
from offload.local.pair import Pair, check_heads, header_at, read_index
from offload.model.chunk_table import ChunkTable

__all__ = ["Newest", "recover_newest"]


_PIECE_SIZE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Newest:
    """A pair that no other follows, up to its last sound chunk."""

    pair: Pair
    rows: ChunkTable
    last: ChunkHeader


def recover_newest(pair: Pair) -> Newest | None:
    """Return the pair up to its last sound chunk; None if it has none.

    Raises `Corrupt` if the kept part breaks the format. The headers of the files are checked only if a chunk
    is kept: a crash may leave an empty pair without them.
    """
    # The index first, the segment's size second. The broker writes the chunk before its index record, so each
    # record that is read here locates a chunk within that size.
    raw = read_index(pair)
    records = index_records(raw)
    with opened(pair.segment) as descriptor:
        kept = _keep(pair, records, descriptor)
        if kept is None:
            return None
        check_heads(pair, raw, descriptor)
    count, last = kept
    rows = chunk_table(records[:count], last=last, first_offset=pair.offset, where=shown_path(pair.index))
    return Newest(pair, rows, last)


def _keep(pair: Pair, records: IndexRecords, segment: int) -> tuple[int, ChunkHeader] | None:
    """Return the number of kept records, and the header of the last one's chunk; None if none is kept."""
    size_bytes = os.fstat(segment).st_size
    # Signed and wider than the field: the sum below must not wrap.
    positions = records["position"].astype(np.int64)
    # A crash may also leave records of zeros. Their position is in the file's header, where no chunk begins.
    within = (positions >= SEGMENT_HEADER.size_bytes) & (positions + CHUNK_HEADER.size_bytes <= size_bytes)
    for row in reversed(np.flatnonzero(within).tolist()):
        header = _sound_chunk(pair, records[row], segment, size_bytes)
        if header is not None:
            return row + 1, header
    return None


def _sound_chunk(pair: Pair, record: np.void, segment: int, size_bytes: int) -> ChunkHeader | None:
    """Return the header of the record's chunk if the record describes it and it is sound; else None."""
    start = int(record["position"])
    try:
        header = header_at(pair, segment, start)
    except Corrupt:
        return None
    # Before the checksum: a header of garbage may claim 4 GiB, and the data would be read in vain.
    if not describes(record, header) or start + header.size_bytes > size_bytes:
        return None
    # If the header lies in two pages, and a power cut took the second one, the sizes and the checksum may be
    # zeros. The checksum of no data is zero too. Each entry has a length of 4 bytes.
    if header.data_size_bytes < 4 * header.entries:
        return None
    return header if _data_checksum(pair, segment, start, header) == header.crc else None


def _data_checksum(pair: Pair, segment: int, start: int, header: ChunkHeader) -> int:
    """Return the CRC-32 of a chunk's data, read piece by piece: a chunk may be as large as its segment."""
    checksum, at, stop = 0, start + header.data_start, start + header.trailer_start
    while piece := read_at(segment, at, min(stop - at, _PIECE_SIZE_BYTES), path=pair.segment):
        checksum = crc32(piece, checksum)
        at += len(piece)
    return checksum
