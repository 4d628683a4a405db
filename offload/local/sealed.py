"""A sealed pair: another pair follows it, so neither of its files changes again.

The name of the following pair gives the end of the last chunk in offsets, and the end of the segment gives it
in bytes. The chunk's own header must agree with both. So index, segment and names confirm each other, and a
pair that lost its end or its successor is detected. The content of the chunks is checked when they are read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.formats.segment import (
    INDEX_RECORD,
    IndexRecords,
    chunk_table,
    describes,
    index_records,
    record_position,
)
from offload.ground.errors import Corrupt
from offload.local.files import opened, shown_path
from offload.local.pair import Pair, check_heads, header_at, read_index
from offload.model.chunk_table import ChunkTable

__all__ = ["SealedPair", "sealed_table"]


@dataclass(frozen=True, slots=True)
class SealedPair:
    """A pair that is known by its names alone. Its files were not read."""

    pair: Pair
    next_offset: int
    """The offset at which the following pair begins."""


def sealed_table(sealed: SealedPair, *, stream: str) -> ChunkTable:
    """Return the table of the pair. Raises `Corrupt` if its parts disagree, `TryAgain` if they are gone."""
    try:
        return _read(sealed.pair, sealed.next_offset)
    except Corrupt as damage:
        raise damage.within(damage.where, stream=stream) from damage


def _read(pair: Pair, next_offset: int) -> ChunkTable:
    # Of the segment, only two headers are read. So a table costs the same for a segment of any size.
    raw = read_index(pair)
    with opened(pair.segment) as segment:
        check_heads(pair, raw, segment)
        records = _whole_records(pair, raw)
        last = _last_header(pair, records, segment)
        size_bytes = os.fstat(segment).st_size
    _check_end(pair, records, last, next_offset=next_offset, size_bytes=size_bytes)
    return chunk_table(records, last=last, first_offset=pair.offset, where=shown_path(pair.index))


def _whole_records(pair: Pair, raw: bytes) -> IndexRecords:
    """Return the records. Raises `Corrupt` unless there is at least one, and no byte behind the last one.

    A cut record is normal in the newest index, which the broker still writes, and damage in a sealed one.
    """
    records = index_records(raw)
    end = record_position(len(records))
    if len(raw) != end or not len(records):
        raise Corrupt(
            "size of the index",
            shown_path(pair.index),
            position=end,
            expected=f"whole records of {INDEX_RECORD.size_bytes} bytes, at least one",
            found=f"{len(records)} and {len(raw) - end} bytes",
        )
    return records


def _last_header(pair: Pair, records: IndexRecords, segment: int) -> ChunkHeader:
    """Return the last chunk's header. Raises `Corrupt` unless its record describes it."""
    size_bytes, start = os.fstat(segment).st_size, int(records["position"][-1])
    # Checked before the read, which would return less than a header.
    if start + CHUNK_HEADER.size_bytes > size_bytes:
        expected = f"a chunk within the {size_bytes} bytes of the segment"
        raise _at_the_end(pair, records, expected, f"one at byte {start}")
    header = header_at(pair, segment, start)
    if not describes(records[-1], header):
        expected = f"that of the chunk at byte {start}, which has offset {header.offset}"
        raise _at_the_end(pair, records, expected, f"one of offset {records['offset'][-1]} that differs")
    return header


def _check_end(
    pair: Pair, records: IndexRecords, last: ChunkHeader, *, next_offset: int, size_bytes: int
) -> None:
    """Raise `Corrupt` unless the last chunk ends at the next pair's offset and at the segment's last byte."""
    # An index that lost its last records still ends with a record that describes its chunk. But that chunk
    # ends before the next pair begins.
    if last.next_offset != next_offset:
        expected = f"a chunk up to offset {next_offset}, where the next segment begins"
        found = f"the chunk at offset {last.offset}, which ends at offset {last.next_offset}"
        raise _at_the_end(pair, records, expected, found)
    start = int(records["position"][-1])
    # A segment that was cut within its last chunk, or has bytes behind it, agrees in offsets, but not in its
    # size.
    if start + last.size_bytes != size_bytes:
        raise Corrupt(
            "last chunk of a sealed segment",
            shown_path(pair.segment),
            position=start,
            expected=f"{last.size_bytes} bytes, as its header says",
            found=f"{size_bytes - start} bytes up to the end of the file",
        )


def _at_the_end(pair: Pair, records: IndexRecords, expected: object, found: object) -> Corrupt:
    at = record_position(len(records) - 1)
    return Corrupt(
        "last record of the index", shown_path(pair.index), position=at, expected=expected, found=found
    )
