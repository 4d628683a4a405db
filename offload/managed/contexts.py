"""The state of each ledger of a managed ledger, read off the newest manifest and the log.

Invariant: nothing here is kept anywhere: the manifest says what is on the tier, and the log what is local.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from offload.contracts.log import LedgerLog, LocalLedger
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import NotOffloaded
from offload.model.entry import Entry, entries_of_rows

__all__ = ["LedgerContext", "contexts_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerContext:
    """Where one ledger is."""

    ledger_id: int
    first_offset: int
    """The first offset that is left of it."""
    next_offset: int
    attempts: tuple[UUID, ...]
    """The attempts that copied it: usually one. A compaction makes others. Empty: it is not on the tier."""
    is_complete: bool
    """True if the tier has all of it."""
    is_local: bool
    """True if the log has it."""
    closed_ms: int | None
    """When it was sealed. None if it is open, or not in the log any more."""
    first_timestamp_ms: int | None
    last_timestamp_ms: int | None
    """The timestamps of its chunks on the tier."""
    data_size_bytes: int
    stored_size_bytes: int
    """Its bytes on the tier: of its chunks, and of its objects."""
    tier_url: str
    """The tier that has it."""


async def contexts_of(
    tier: LedgerOffloader, stream: str, log: LedgerLog
) -> AsyncGenerator[LedgerContext, None]:
    """Yield the context of each ledger, in order of offsets. Close it."""
    left = deque(ledger for ledger in log.ledgers if ledger.records)
    async with aclosing(_on_tier(tier, stream)) as ledgers:
        async for entries in ledgers:
            # A crash after a trim leaves local copies of what the tier does not have any more.
            while left and left[0].next_offset <= entries[0].first_offset:
                yield _local_only(left.popleft(), tier_url=tier.url)
            is_local = bool(left) and left[0].ledger_id == entries[0].ledger_id
            yield _offloaded(entries, left.popleft() if is_local else None, tier_url=tier.url)
    for ledger in left:
        yield _local_only(ledger, tier_url=tier.url)


async def _on_tier(tier: LedgerOffloader, stream: str) -> AsyncGenerator[list[Entry], None]:
    """Yield the entries of each ledger on the tier. Close it."""
    gathered: list[Entry] = []
    try:
        view = await tier.view(stream)
    except NotOffloaded:
        return
    async with aclosing(view.walk()) as runs:
        async for run in runs:
            for entry in entries_of_rows(run):
                if gathered and gathered[0].ledger_id != entry.ledger_id:
                    yield gathered
                    gathered = []
                gathered.append(entry)
    if gathered:
        yield gathered


def _offloaded(entries: list[Entry], local: LocalLedger | None, *, tier_url: str) -> LedgerContext:
    end = entries[-1].next_offset
    return LedgerContext(
        ledger_id=entries[0].ledger_id,
        first_offset=entries[0].first_offset,
        next_offset=end if local is None else local.next_offset,
        attempts=tuple(dict.fromkeys(entry.attempt for entry in entries)),
        is_complete=local is None or (local.is_sealed and end >= local.next_offset),
        is_local=local is not None,
        closed_ms=None if local is None else local.closed_ms,
        first_timestamp_ms=min(entry.first_timestamp_ms for entry in entries),
        last_timestamp_ms=max(entry.last_timestamp_ms for entry in entries),
        data_size_bytes=sum(entry.data_size_bytes for entry in entries),
        stored_size_bytes=sum(entry.stored_size_bytes for entry in entries),
        tier_url=tier_url,
    )


def _local_only(ledger: LocalLedger, *, tier_url: str) -> LedgerContext:
    return LedgerContext(
        ledger_id=ledger.ledger_id,
        first_offset=ledger.first_offset,
        next_offset=ledger.next_offset,
        attempts=(),
        is_complete=False,
        is_local=True,
        closed_ms=ledger.closed_ms,
        first_timestamp_ms=None,
        last_timestamp_ms=None,
        data_size_bytes=0,
        stored_size_bytes=0,
        tier_url=tier_url,
    )
