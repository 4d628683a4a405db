"""Building chunks: from its parts, a chunk with the same bytes as osiris would store.

RabbitMQ's chunks reach the tier as its broker wrote them. The source of a broker without chunks builds them
here, and readers see no difference. There are two functions:

    build_chunk    builds a chunk from messages and sub-batches, for sources
    seal_chunk     builds a chunk around an encoded data section, for callers that encode in bulk

Timestamps, epochs and offsets are arguments. The caller must make the chunks a stream: each begins at the
`next_offset` of the chunk before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from offload.formats.bloom import build_filter
from offload.formats.checksums import crc32
from offload.formats.chunk import FILTER_SIZE_BYTES_MIN, ChunkHeader
from offload.formats.entries import SubBatch, encode_entries
from offload.formats.tracking import TrackingBlock, encode_blocks
from offload.ground.errors import Misuse
from offload.model.chunk_table import ChunkType

__all__ = ["build_chunk", "build_tracking_chunk", "seal_chunk"]


def build_chunk(
    entries: Sequence[bytes | SubBatch],
    *,
    offset: int,
    timestamp_ms: int,
    epoch: int,
    filter_values: Iterable[bytes | None] | None = None,
    filter_size_bytes: int = FILTER_SIZE_BYTES_MIN,
    trailer: bytes = b"",
) -> bytes:
    """Return one user chunk of `entries`: a body for each message, or a `SubBatch` of several messages.

    The first record gets `offset`, and the others the following offsets. There are 1 to 65,535 entries.
    `filter_values` has the filter value of each entry, or `None` for an entry without one. If all are `None`,
    the chunk has no filter. `trailer` is tracking blocks (`tracking.encode_blocks`) or empty.

    A sub-batch is stored as it is and not opened: the caller promises that its content is as its header says.
    Raises `Misuse` if the parts do not make a valid chunk.
    """
    sub_batches = [entry for entry in entries if isinstance(entry, SubBatch)]
    filter_bytes = b""
    if filter_values is not None:
        values = list(filter_values)
        if len(values) != len(entries):
            raise Misuse(f"{len(values)} filter values for {len(entries)} entries")
        filter_bytes = build_filter(values, filter_size_bytes)
    return seal_chunk(
        encode_entries(entries),
        entries=len(entries),
        records=len(entries) + sum(batch.records - 1 for batch in sub_batches),
        offset=offset,
        timestamp_ms=timestamp_ms,
        epoch=epoch,
        filter_bytes=filter_bytes,
        trailer=trailer,
    )


def checked_records(records: Any) -> tuple[bytes, ...]:
    """Return the records of a caller. Raises `Misuse` unless they are bytes, and at least one."""
    # One bytes object is a sequence too, of numbers. A generator can be consumed only once.
    kept = () if isinstance(records, bytes | str) else tuple(records)
    if not kept or not all(isinstance(record, bytes) for record in kept):
        raise Misuse("append a list of at least one record; each record is bytes")
    return kept


def build_tracking_chunk(
    blocks: Iterable[TrackingBlock], *, chunk_type: ChunkType, offset: int, timestamp_ms: int, epoch: int
) -> bytes:
    """Return one tracking chunk: a delta or a snapshot. It takes `offset`, and is never delivered to readers.

    Raises `Misuse` for a user chunk, whose tracking blocks are its trailer, and for values that do not fit.
    """
    if chunk_type is ChunkType.USER:
        raise Misuse("a user chunk has its tracking blocks in its trailer")
    return seal_chunk(
        encode_entries((encode_blocks(blocks, chunk_type=chunk_type),)),
        chunk_type=chunk_type,
        entries=1,
        records=1,
        offset=offset,
        timestamp_ms=timestamp_ms,
        epoch=epoch,
    )


def seal_chunk(
    data: bytes | memoryview,
    *,
    entries: int,
    records: int,
    offset: int,
    timestamp_ms: int,
    epoch: int,
    chunk_type: ChunkType = ChunkType.USER,
    filter_bytes: bytes = b"",
    trailer: bytes = b"",
) -> bytes:
    """Return the chunk around a data section that is already encoded (`entries.encode_entries`).

    This is the bulk way: `data` is not checked. The caller promises that it has so many entries and records.
    Raises `Misuse` if the header would break a rule of the format.
    """
    header = ChunkHeader(
        type=chunk_type,
        entries=entries,
        records=records,
        timestamp_ms=timestamp_ms,
        epoch=epoch,
        offset=offset,
        crc=crc32(data),
        data_size_bytes=len(data),
        trailer_size_bytes=len(trailer),
        filter_size_bytes=len(filter_bytes),
    )
    return b"".join((header.encode(), filter_bytes, data, trailer))
