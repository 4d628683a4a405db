"""Deciding how far a snapshot is copied now.

Whole fragments and ledgers that have ended are worth a copy at once. The rest of a ledger that still grows
waits for more, until its oldest record would be late.

Invariants: nothing beyond the limit is copied; a copy ends where a chunk ends; the sound ledgers before a
damaged one are copied first.
"""

from __future__ import annotations

from typing import Final

from offload.contracts.source import Snapshot
from offload.formats.fragment_trailer import CHUNKS_MAX
from offload.ground.errors import Corrupt
from offload.model.chunk_table import cut, rows_from

TURN_SIZE_BYTES: Final = 256 * 2**20
"""The most plain bytes of one turn. Then other streams have theirs."""


async def due(
    snapshot: Snapshot, start: int, *, limit: int, is_late: bool, fragment_size_bytes: int
) -> tuple[int, bool]:
    """Return the offset up to which to copy now, and whether that is all that is due.

    The offset is `start`, or that of a chunk's end, and at most `limit`. Raises `Corrupt` if the table of the
    first ledger is damaged.
    """
    until, size_bytes = start, 0
    for ledger in snapshot.ledgers:
        if ledger.next_offset <= until:
            continue
        try:
            table = await ledger.table()
        except Corrupt:
            # The ledgers before it come first. The next turn begins here, and raises.
            if until == start:
                raise
            return until, False
        rows = rows_from(table, max(until, ledger.first_offset))
        rows = rows[: int((rows["offset"] + rows["records"] <= limit).sum())]
        runs = list(cut(rows, size_bytes=fragment_size_bytes, count_max=CHUNKS_MAX))
        has_ended = ledger is not snapshot.ledgers[-1] and ledger.next_offset <= limit
        # Of a ledger that still grows, only whole fragments are worth it. The rest waits for more.
        for run in runs if is_late or has_ended else runs[:-1]:
            if size_bytes >= TURN_SIZE_BYTES:
                return until, False
            until = int(run[-1]["offset"]) + int(run[-1]["records"])
            size_bytes += int(run["size_bytes"].sum())
        if until < ledger.next_offset:
            break
    return until, True
