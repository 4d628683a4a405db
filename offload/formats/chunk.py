"""Chunks: runs of consecutive records that are written and checksummed as one.

Their bytes are those of osiris. `ChunkHeader` is the header of one chunk. A `ChunkTable` is a run of chunks,
which `scan` finds. `check_chunks` checks them before they are stored, and `check_stored` when they are read
back. `entries`, `bloom` and `tracking` read the contents of a chunk, and `chunk_writer` builds one.
"""

from offload.formats._chunk_header import (
    CHUNK_HEADER,
    CHUNK_MAGIC,
    CHUNK_SIZE_BYTES_MAX,
    FILTER_SIZE_BYTES_MAX,
    FILTER_SIZE_BYTES_MIN,
    ChunkHeader,
)
from offload.formats._chunk_table import check_chunks, check_stored, headers_at, scan, scan_head

__all__ = [
    "CHUNK_HEADER",
    "CHUNK_MAGIC",
    "CHUNK_SIZE_BYTES_MAX",
    "FILTER_SIZE_BYTES_MAX",
    "FILTER_SIZE_BYTES_MIN",
    "ChunkHeader",
    "check_chunks",
    "check_stored",
    "headers_at",
    "scan",
    "scan_head",
]
