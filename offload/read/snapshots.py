"""Searches in a snapshot of a source: a chunk, the age of a record, and where a reader of a position begins.

Each costs the tables of the ledgers that it walks, and at most one read.
"""

from __future__ import annotations

from offload.contracts.source import Snapshot
from offload.model.chunk_table import ChunkType, row_from, row_holding
from offload.model.position import AtEdge, AtOffset, AtTime, Position

__all__ = ["attach", "chunk_at", "oldest_ms"]


async def chunk_at(snapshot: Snapshot, offset: int) -> bytes | None:
    """Return the stored chunk that begins at `offset`, unchecked. None if no chunk begins there."""
    for ledger in snapshot.ledgers:
        if ledger.first_offset <= offset < ledger.next_offset:
            table = await ledger.table()
            row = row_from(table, offset)
            rows = table[row : row + 1]
            return bytes(await ledger.read(rows)) if rows["offset"].tolist() == [offset] else None
    return None


async def oldest_ms(snapshot: Snapshot, offset: int) -> int | None:
    """Return when the oldest record at or behind `offset` was written, in milliseconds since 1970.

    It is the timestamp of its chunk, within the times of the files: not before the last write to the
    ledger before it, and not after the last one to its own. None if there is no such record. Raises
    `Corrupt` and `TryAgain` as the ledgers do.
    """
    for number, ledger in enumerate(snapshot.ledgers):
        if offset < ledger.next_offset:
            table = await ledger.table()
            row = row_holding(table, max(offset, ledger.first_offset))
            written_ms = int(table["timestamp_ms"][row])
            earliest = await snapshot.ledgers[number - 1].modified_ms() if number else None
            latest = await ledger.modified_ms()
            written_ms = written_ms if earliest is None else max(written_ms, earliest)
            return written_ms if latest is None else min(written_ms, latest)
    return None


async def attach(snapshot: Snapshot, position: Position) -> int:
    """Return the offset of the chunk at which a reader of this position begins.

    An offset below the first chunk, or a time before all chunks, attaches at the first chunk. An offset
    or time beyond the last chunk attaches at `next_offset`. If several chunks fit a time, it is the first
    one in the whole stream. (osiris itself can miss some chunks if one millisecond spans two segments.)
    """
    match position:
        case AtEdge.FIRST:
            return snapshot.first_offset
        case AtEdge.NEXT:
            return snapshot.next_offset
        case AtEdge.LAST:
            return await _last_with_messages(snapshot)
        case AtOffset(offset):
            return await _holding(snapshot, offset)
        case AtTime(timestamp_ms):
            return await _first_since(snapshot, timestamp_ms)


async def _last_with_messages(snapshot: Snapshot) -> int:
    for ledger in reversed(snapshot.ledgers):
        table = await ledger.table()
        users = table["offset"][table["type"] == ChunkType.USER]
        if len(users):
            return int(users[-1])
    return snapshot.next_offset


async def _holding(snapshot: Snapshot, offset: int) -> int:
    if offset >= snapshot.next_offset:
        return snapshot.next_offset
    for ledger in snapshot.ledgers:
        if offset < ledger.next_offset:
            table = await ledger.table()
            return int(table["offset"][row_holding(table, offset)])
    return snapshot.next_offset


async def _first_since(snapshot: Snapshot, timestamp_ms: int) -> int:
    for ledger in snapshot.ledgers:
        table = await ledger.table()
        late = table["timestamp_ms"] >= timestamp_ms
        if late.any():
            return int(table["offset"][late.argmax()])
    return snapshot.next_offset
