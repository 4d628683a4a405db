"""A writer of stream folders like osiris: it makes segments and indexes from chunks, in one pass.

Chunks come from an iterator and are written at once, so a stream may be larger than memory. No file is
synced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from osiris_data import INDEX_HEAD, INDEX_RECORD, SEGMENT_HEAD

from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_writer import build_chunk

TIMESTAMP_MS = 1_700_000_000_000


def write_stream(
    folder: Path,
    chunks: Iterable[bytes],
    *,
    segment_size_bytes: int = 500_000_000,
    segment_chunks: int = 256_000,
) -> int:
    """Write consecutive `chunks` into a new or empty `folder`, and return the next offset.

    As in osiris, a new pair begins before a chunk if the segment already has the given size or count.
    """
    folder.mkdir(parents=True, exist_ok=True)
    position = count = next_offset = 0
    with ExitStack() as files:
        for chunk in chunks:
            header = ChunkHeader.decode(chunk, where="a chunk to be written")
            if not count or position >= segment_size_bytes or count >= segment_chunks:
                files.close()
                segment, index = (files.enter_context(file) for file in _new_pair(folder, header.offset))
                position, count = len(SEGMENT_HEAD), 0
            segment.write(chunk)
            index.write(record_of(header, position))
            position, count, next_offset = position + len(chunk), count + 1, header.next_offset
    return next_offset


def append_chunks(folder: Path, chunks: Iterable[bytes]) -> None:
    """Append to the newest pair of `folder`, as a running broker does."""
    newest = max(folder.glob("*.segment"))
    with newest.open("ab") as segment, newest.with_suffix(".index").open("ab") as index:
        for chunk in chunks:
            index.write(record_of(ChunkHeader.decode(chunk, where="a chunk to be appended"), segment.tell()))
            segment.write(chunk)


def record_of(header: ChunkHeader, position: int) -> bytes:
    """Return the index record of the chunk that begins at `position`."""
    return INDEX_RECORD.pack(header.offset, header.timestamp_ms, header.epoch, position, header.type)


def simple_chunks(
    count: int, *, first_offset: int = 0, records: int = 3, timestamps_ms: Iterable[int] | None = None
) -> Iterator[bytes]:
    """Yield chunks of small messages, by default a quarter of a second apart."""
    steps = range(TIMESTAMP_MS, TIMESTAMP_MS + 250 * count, 250)
    for number, timestamp_ms in zip(range(count), timestamps_ms or steps, strict=True):
        offset = first_offset + number * records
        bodies = [b"message %d" % (offset + i) for i in range(records)]
        yield build_chunk(bodies, offset=offset, timestamp_ms=timestamp_ms, epoch=1)


def _new_pair(folder: Path, offset: int) -> tuple[BinaryIO, BinaryIO]:
    index = (folder / f"{offset:020}.index").open("xb")
    index.write(INDEX_HEAD)
    segment = (folder / f"{offset:020}.segment").open("xb")
    segment.write(SEGMENT_HEAD)
    return segment, index
