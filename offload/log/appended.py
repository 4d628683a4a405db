"""Appends of many callers, joined into few chunks.

Calls that wait together share chunks: a chunk ends when the next call would bring it above 1 MiB or above
65,535 records. The records of one call may take several chunks. A larger record has a chunk of its own.

A chunk has one timestamp: the newest of its calls, and never below that of the chunk before it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from offload.formats.entries import RECORD_SIZE_BYTES_MAX
from offload.ground.errors import Misuse

__all__ = ["AppendCall", "NewChunk", "chunks_of"]


CHUNK_RECORDS_MAX: Final = 2**16 - 1
"""The number of entries has 16 bits in a chunk's header."""

CHUNK_SIZE_BYTES: Final = 2**20
"""A chunk ends before the record that would bring its data above this. Readers fetch whole chunks."""

CALL_SIZE_BYTES_MAX: Final = 3 * 2**30
"""A call is written to one segment, whose positions have 32 bits."""

_LENGTH: Final = struct.Struct(">I")


@dataclass(slots=True, eq=False)
class AppendCall:
    """One call of `append` that waits."""

    records: Sequence[bytes]
    size_bytes: int
    timestamp_ms: int
    done: asyncio.Future[int]
    """Gets the offset of the first record."""

    @classmethod
    def of(cls, records: Sequence[bytes], *, timestamp_ms: int, done: asyncio.Future[int]) -> AppendCall:
        """Check the arguments of a call. Raises `Misuse`."""
        # A tuple of its own: a cancelled caller may change its list while the records are written.
        kept = tuple(records)
        if not kept:
            raise Misuse("append at least one record")
        if not all(isinstance(record, bytes) for record in kept):
            raise Misuse("records are bytes")
        sizes = [len(record) for record in kept]
        if (largest := max(sizes)) > RECORD_SIZE_BYTES_MAX:
            raise Misuse(f"a record of {largest} bytes is too long: at most {RECORD_SIZE_BYTES_MAX}")
        size_bytes = sum(sizes) + _LENGTH.size * len(kept)
        if size_bytes > CALL_SIZE_BYTES_MAX:
            raise Misuse(f"{size_bytes} bytes in one call: at most {CALL_SIZE_BYTES_MAX}")
        if not -(2**63) <= timestamp_ms < 2**63:
            raise Misuse(f"the timestamp {timestamp_ms} does not fit 64 bits")
        return cls(kept, size_bytes, timestamp_ms, done)


@dataclass(slots=True)
class NewChunk:
    """A chunk that has no offset yet."""

    parts: list[bytes]
    """The data section, in parts."""
    records: int
    size_bytes: int
    timestamp_ms: int


def chunks_of(calls: Iterable[AppendCall]) -> list[NewChunk]:
    """Return the chunks of calls, in order, each with the newest timestamp of its own calls."""
    chunks: list[NewChunk] = []
    for call in calls:
        for data, records in _pieces(call):
            last = chunks[-1] if chunks else None
            if (
                last is None
                or last.size_bytes + len(data) > CHUNK_SIZE_BYTES
                or last.records + records > CHUNK_RECORDS_MAX
            ):
                chunks.append(NewChunk([data], records, len(data), call.timestamp_ms))
                continue
            last.parts.append(data)
            last.records += records
            last.size_bytes += len(data)
            last.timestamp_ms = max(last.timestamp_ms, call.timestamp_ms)
    return chunks


def _pieces(call: AppendCall) -> Iterator[tuple[bytes, int]]:
    """Yield the records of a call as encoded entries, each piece small enough for a chunk."""
    if call.size_bytes <= CHUNK_SIZE_BYTES and len(call.records) <= CHUNK_RECORDS_MAX:
        yield _encoded(call.records), len(call.records)
        return
    start = size_bytes = 0
    for number, record in enumerate(call.records):
        size = len(record) + _LENGTH.size
        if number > start and (size_bytes + size > CHUNK_SIZE_BYTES or number - start == CHUNK_RECORDS_MAX):
            yield _encoded(call.records[start:number]), number - start
            start, size_bytes = number, 0
        size_bytes += size
    yield _encoded(call.records[start:]), len(call.records) - start


def _encoded(records: Sequence[bytes]) -> bytes:
    """Return simple entries. Does what `encode_entries` does for records that were checked, and faster."""
    parts = [b""] * (2 * len(records))
    parts[::2] = map(_LENGTH.pack, map(len, records))
    parts[1::2] = records
    return b"".join(parts)
