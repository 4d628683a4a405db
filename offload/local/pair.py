"""A segment and its index on disk, named after the offset of their first chunk in 20 digits.

Memory is bounded: an index is read whole, but only after its size was checked; of a segment, only headers
are read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.formats.segment import SEGMENT_HEADER, check_index_head, check_segment_head
from offload.ground.errors import Corrupt
from offload.local.files import opened, read_at, shown_path

__all__ = ["Pair", "check_heads", "header_at", "parse_name", "read_index"]


INDEX_SIZE_BYTES_MAX: Final = 64 << 20
"""The largest index that is read. osiris begins a new pair at 256,000 chunks, whose index has 7.4 MB."""

_FILE_NAME: Final = re.compile(r"([0-9]{20})\.(segment|index)")


@dataclass(frozen=True, slots=True)
class Pair:
    """A segment and its index. Either file may be absent."""

    folder: Path
    offset: int
    """The offset of the segment's first chunk. The files are named after it."""

    @property
    def segment(self) -> Path:
        """The file that holds the chunks."""
        return self.folder / f"{self.offset:020}.segment"

    @property
    def index(self) -> Path:
        """The file that locates the chunks."""
        return self.folder / f"{self.offset:020}.index"


def parse_name(name: str) -> tuple[int, str] | None:
    """Return the offset and the kind, `segment` or `index`, in a file's name; None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    return None if match is None or int(match[1]) >= 2**64 else (int(match[1]), match[2])


def read_index(pair: Pair) -> bytes:
    """Return the whole index file. Raises `Corrupt` if it is larger than any that a broker writes."""
    with opened(pair.index) as descriptor:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > INDEX_SIZE_BYTES_MAX:
            limit = f"at most {INDEX_SIZE_BYTES_MAX} bytes"
            raise Corrupt("size of the index", shown_path(pair.index), expected=limit, found=size_bytes)
        return read_at(descriptor, 0, size_bytes, path=pair.index)


def check_heads(pair: Pair, index: bytes, segment: int) -> None:
    """Check the file headers of the index, by its bytes, and of the segment, by its descriptor."""
    check_index_head(index, where=shown_path(pair.index))
    head = read_at(segment, 0, SEGMENT_HEADER.size_bytes, path=pair.segment)
    check_segment_head(head, where=shown_path(pair.segment))


def header_at(pair: Pair, segment: int, position: int) -> ChunkHeader:
    """Return the header of the chunk at `position` of the segment. Raises `Corrupt` if there is none."""
    raw = read_at(segment, position, CHUNK_HEADER.size_bytes, path=pair.segment)
    return ChunkHeader.decode(raw, where=shown_path(pair.segment), origin=position)
