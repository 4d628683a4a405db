"""Writing chunks as a stream's segments and indexes, cut where a broker could have cut them.

After a restart, osiris learns what its producers and consumers had stored from the newest segment alone. So a
segment must begin with a snapshot of that, if any chunk before it tracked something:

    before a chunk                          a new pair begins
    that is a tracking snapshot             always: a broker writes one at the beginning of a segment only
    while the pair has the wanted size      if no chunk of the pair tracks anything

Invariants: a pair is synced before the next one begins, so all pairs but the newest are whole after a crash;
chunks are written as they are, except for epochs above `epoch_max`.

The epoch is in a chunk's header, which no checksum covers, and in the index record.
"""

from __future__ import annotations

import os
import struct
from io import FileIO
from pathlib import Path
from typing import Final

from offload.formats.chunk import CHUNK_HEADER
from offload.formats.segment import (
    INDEX_HEADER,
    INDEX_MAGIC,
    INDEX_RECORD,
    SEGMENT_HEADER,
    SEGMENT_MAGIC,
    VERSION,
)
from offload.ground.errors import Misuse
from offload.local.files import explained
from offload.local.pair import Pair
from offload.model.chunk_table import ChunkTable, ChunkType

__all__ = ["SEGMENT_SIZE_BYTES_MAX", "SegmentWriter", "has_filters", "sync_folder"]


SEGMENT_CHUNKS_MAX: Final = 256_000
SEGMENT_SIZE_BYTES_MAX: Final = 2**32
"""An index record has 32 bits for a position."""

_EPOCH: Final = struct.Struct(">Q")
_EPOCH_AT: Final = CHUNK_HEADER.offset_of("epoch")
_TRAILER: Final = struct.Struct(">I")
_TRAILER_AT: Final = CHUNK_HEADER.offset_of("trailer_size_bytes")
_FILTER_AT: Final = CHUNK_HEADER.offset_of("filter_size_bytes")


class SegmentWriter:
    """Writes chunks that follow each other into new pairs of a folder. Every method blocks."""

    def __init__(self, folder: Path, *, segment_size_bytes: int, epoch_max: int | None) -> None:
        self._folder, self._size_wanted, self._epoch_max = folder, segment_size_bytes, epoch_max
        self._files: tuple[FileIO, FileIO] | None = None
        self._position = self._chunks = 0
        self._tracks = False
        self.last_header = b""
        """The header of the last chunk that was written."""

    def write(self, rows: ChunkTable, data: bytes | memoryview) -> None:
        """Write whole chunks. `data` begins with the first of `rows`, and has nothing but them."""
        view = self._with_epochs(rows, data)
        base = int(rows["position"][0])
        segment: list[memoryview] = []
        index: list[bytes] = []
        columns = ("offset", "timestamp_ms", "position", "size_bytes", "type")
        for offset, timestamp_ms, position, size, kind in zip(
            *(rows[name].tolist() for name in columns), strict=True
        ):
            chunk = view[position - base : position - base + size]
            if self._files is None or self._begins_a_pair(kind):
                self._append(segment, index)
                segment, index = [], []
                self.seal()
                self._begin(offset)
            if self._position + size > SEGMENT_SIZE_BYTES_MAX:
                raise Misuse(
                    f"the segment with offset {offset} would exceed 4 GiB: choose a smaller "
                    "segment-size-bytes"
                )
            index.append(
                INDEX_RECORD.pack(
                    offset=offset,
                    timestamp_ms=timestamp_ms,
                    epoch=_EPOCH.unpack_from(chunk, _EPOCH_AT)[0],
                    position=self._position,
                    type=kind,
                )
            )
            segment.append(chunk)
            self._position, self._chunks = self._position + size, self._chunks + 1
            self._tracks |= kind != ChunkType.USER or _TRAILER.unpack_from(chunk, _TRAILER_AT)[0] > 0
            self.last_header = bytes(chunk[: CHUNK_HEADER.size_bytes])
        self._append(segment, index)

    def seal(self) -> None:
        """Sync and close the newest pair."""
        if self._files is None:
            return
        for file in self._files:
            with explained("write", file.name):
                os.fsync(file.fileno())
        self.close()
        sync_folder(self._folder)

    def close(self) -> None:
        """Close the files of the newest pair. Idempotent."""
        for file in self._files or ():
            file.close()
        self._files = None

    def _begins_a_pair(self, kind: int) -> bool:
        if kind == ChunkType.TRACKING_SNAPSHOT:
            return True
        is_full = self._position >= self._size_wanted or self._chunks >= SEGMENT_CHUNKS_MAX
        return is_full and not self._tracks

    def _begin(self, offset: int) -> None:
        pair = Pair(self._folder, offset)
        with explained("create", pair.segment):
            index, segment = FileIO(pair.index, "xb"), FileIO(pair.segment, "xb")
        self._files = segment, index
        self._position, self._chunks, self._tracks = SEGMENT_HEADER.size_bytes, 0, False
        _write(index, INDEX_HEADER.pack(magic=INDEX_MAGIC, version=VERSION))
        _write(segment, SEGMENT_HEADER.pack(magic=SEGMENT_MAGIC, version=VERSION))

    def _append(self, chunks: list[memoryview], records: list[bytes]) -> None:
        if self._files is not None and chunks:
            segment, index = self._files
            _write(segment, b"".join(chunks))
            _write(index, b"".join(records))

    def _with_epochs(self, rows: ChunkTable, data: bytes | memoryview) -> memoryview:
        """Return the chunks with their epochs lowered to `epoch_max`."""
        if self._epoch_max is None:
            return memoryview(data)
        changed = bytearray(data)
        for position in (rows["position"] - rows["position"][0]).tolist():
            (epoch,) = _EPOCH.unpack_from(changed, position + _EPOCH_AT)
            _EPOCH.pack_into(changed, position + _EPOCH_AT, min(epoch, self._epoch_max))
        return memoryview(changed)


def has_filters(rows: ChunkTable, data: bytes | memoryview) -> bool:
    """Return whether a chunk has a bloom filter. The arguments are those of `SegmentWriter.write`."""
    return any(data[at + _FILTER_AT] for at in (rows["position"] - rows["position"][0]).tolist())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    with explained("sync", folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    with explained("write", file.name):
        while rest:
            rest = rest[file.write(rest) :]
