"""The state of each ledger of a managed ledger, read off the newest manifest and the log.

Invariant: nothing here is kept anywhere: the manifest says what is on the tier, and the log what is local.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from uuid import UUID

from offload.contracts.log import LedgerLog, LocalLedger
from offload.contracts.offloader import LedgerOffloader
from offload.errors import NotOffloaded
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


@dataclass(slots=True)
class _Gathered:
    """The entries of one ledger, so far."""

    entries: list[Entry]

    def context(self, local: LocalLedger | None, *, tier_url: str) -> LedgerContext:
        first, last = self.entries[0], self.entries[-1]
        end = last.next_offset if local is None else local.next_offset
        return LedgerContext(
            ledger_id=first.ledger_id,
            first_offset=first.first_offset,
            next_offset=end,
            attempts=tuple(dict.fromkeys(entry.attempt for entry in self.entries)),
            is_complete=last.next_offset >= end and (local is None or local.is_sealed),
            is_local=local is not None,
            closed_ms=None if local is None else local.closed_ms,
            first_timestamp_ms=min(entry.first_timestamp_ms for entry in self.entries),
            last_timestamp_ms=max(entry.last_timestamp_ms for entry in self.entries),
            data_size_bytes=sum(entry.data_size_bytes for entry in self.entries),
            stored_size_bytes=sum(entry.stored_size_bytes for entry in self.entries),
            tier_url=tier_url,
        )


async def contexts_of(
    tier: LedgerOffloader, stream: str, log: LedgerLog
) -> AsyncGenerator[LedgerContext, None]:
    """Yield the context of each ledger, in order of offsets. Close it."""
    local = {ledger.ledger_id: ledger for ledger in log.ledgers}
    shown, gathered = -1, _Gathered([])
    try:
        view = await tier.view(stream)
    except NotOffloaded:
        view = None
    if view is not None:
        async with aclosing(view.walk()) as runs:
            async for run in runs:
                for entry in entries_of_rows(run):
                    if gathered.entries and gathered.entries[0].ledger_id != entry.ledger_id:
                        yield gathered.context(local.get(gathered.entries[0].ledger_id), tier_url=tier.url)
                        gathered = _Gathered([])
                    gathered.entries.append(entry)
                    shown = entry.ledger_id
    if gathered.entries:
        yield gathered.context(local.get(shown), tier_url=tier.url)
    for ledger in log.ledgers:
        if ledger.ledger_id > shown and ledger.records:
            yield LedgerContext(
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
                tier_url=tier.url,
            )
