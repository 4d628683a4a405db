"""Building chunks: what osiris would have stored, byte for byte, from the parts it is given.

RabbitMQ's chunks reach the tier as its broker wrote them. A broker that has no chunks builds its own here,
and from then on they are the same to every reader. Two ways:

    build_chunk    from messages and sub-batches; what a source calls
    seal_chunk     from a data section that is already encoded; where a caller encodes in bulk

Timestamps, epochs and offsets come in as arguments. What makes chunks a stream is the caller's to
keep: each begins at the `next_offset` of the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offload.errors import Misuse
from offload.formats.bloom import build_filter
from offload.formats.checksums import crc32
from offload.formats.chunk import FILTER_SIZE_BYTES_MIN, ChunkHeader
from offload.formats.entries import SubBatch, encode_entries
from offload.formats.tracking import TrackingBlock, encode_blocks
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
    """One user chunk that holds `entries`: a body for each message, or a `SubBatch` of several.

    The first record gets `offset` and the others those that follow; there are 1 to 65,535 entries.
    `filter_values` gives the filter value of each entry, `None` for one without; where all are, the
    chunk has no filter. `trailer` is tracking blocks (`tracking.encode_blocks`) or nothing.

    An already compressed sub-batch is stored as it is and not opened: whether it holds what it
    claims is the caller's promise. Raises `Misuse` when the parts do not make a chunk.
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


def build_tracking_chunk(
    blocks: Iterable[TrackingBlock], *, chunk_type: ChunkType, offset: int, timestamp_ms: int, epoch: int
) -> bytes:
    """One tracking chunk: a delta or a snapshot. It takes `offset`, and no reader is given it.

    Raises `Misuse` for a user chunk, whose tracking is its trailer, and for what does not fit.
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
    data: bytes,
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
    """The chunk around a data section that is already encoded (`entries.encode_entries`).

    The bulk way: nothing is asked of `data`; that it holds so many entries and records is the
    caller's promise. Raises `Misuse` when the header would break a rule of the format.
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
