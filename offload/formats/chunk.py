"""Chunks: runs of consecutive records, written and checksummed as one, byte for byte those of osiris.

`ChunkHeader` is one chunk's own account of itself; a `ChunkTable` is a run of chunks, found by `scan`,
checked on the way in by `check_chunks` and on the way out by `check_stored`. What lies within a chunk
is read by `entries`, `bloom` and `tracking`, and `chunk_writer` builds one.
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
