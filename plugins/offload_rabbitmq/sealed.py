"""A sealed pair: one that another follows, so that neither of its files ever changes again.

The name of the pair that follows tells how many records the last chunk has, and the end of the segment
how long it is. Its own header must say the same; so index, segment and names vouch for each other,
and a pair that lost its end, or its successor, is found out. What lies within the chunks is
checked when they are read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from offload.errors import Corrupt
from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.model.chunk_table import ChunkTable
from offload_rabbitmq.files import opened, shown
from offload_rabbitmq.pair import Pair, check_heads, header_at, read_index
from offload_rabbitmq.segment import (
    INDEX_RECORD,
    IndexRecords,
    chunk_table,
    describes,
    index_records,
    record_position,
)


@dataclass(frozen=True, slots=True)
class SealedPair:
    """A pair by its names alone: nothing of it was read."""

    pair: Pair
    next_offset: int
    """Where the pair that follows begins."""


def sealed_table(sealed: SealedPair, *, stream: str) -> ChunkTable:
    """The table of the pair. Raises `Corrupt` where its parts do not fit, `TryAgain` where they are gone."""
    try:
        return _read(sealed.pair, sealed.next_offset)
    except Corrupt as damage:
        raise damage.within(damage.where, stream=stream) from damage


def _read(pair: Pair, next_offset: int) -> ChunkTable:
    raw = read_index(pair)
    with opened(pair.segment) as segment:
        check_heads(pair, raw, segment)
        records = _whole_records(pair, raw)
        last = _last_header(pair, records, segment)
        size_bytes = os.fstat(segment).st_size
    _check_end(pair, records, last, next_offset=next_offset, size_bytes=size_bytes)
    return chunk_table(records, last=last, first_offset=pair.offset, where=shown(pair.index))


def _whole_records(pair: Pair, raw: bytes) -> IndexRecords:
    """The records, at least one, and nothing behind them."""
    records = index_records(raw)
    end = record_position(len(records))
    if len(raw) != end or not len(records):
        raise Corrupt(
            "size of the index",
            shown(pair.index),
            position=end,
            expected=f"whole records of {INDEX_RECORD.size_bytes} bytes, at least one",
            found=f"{len(records)} and {len(raw) - end} bytes",
        )
    return records


def _last_header(pair: Pair, records: IndexRecords, segment: int) -> ChunkHeader:
    """The last chunk's header, which must be the one that its record describes."""
    size_bytes, start = os.fstat(segment).st_size, int(records["position"][-1])
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
    """The last chunk must end where the next pair begins in offsets, and where the segment ends in bytes."""
    if last.next_offset != next_offset:
        expected = f"a chunk up to offset {next_offset}, where the next segment begins"
        found = f"the chunk at offset {last.offset}, which ends at offset {last.next_offset}"
        raise _at_the_end(pair, records, expected, found)
    start = int(records["position"][-1])
    if start + last.size_bytes != size_bytes:
        raise Corrupt(
            "last chunk of a sealed segment",
            shown(pair.segment),
            position=start,
            expected=f"{last.size_bytes} bytes, as its header says",
            found=f"{size_bytes - start} bytes up to the end of the file",
        )


def _at_the_end(pair: Pair, records: IndexRecords, expected: object, found: object) -> Corrupt:
    at = record_position(len(records) - 1)
    return Corrupt("last record of the index", shown(pair.index), position=at, expected=expected, found=found)
