"""Attempts at offloading a ledger, and what they leave: receipts, and leftovers of a crash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from offload.model.entry import Entry

__all__ = ["Attempt", "Leftover", "Receipt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at offloading a ledger. Attempts never share an object, whatever ledger they copy."""

    stream: str
    ledger_id: int
    uid: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What an attempt made durable: the entries that a commit may now append, in order of offsets."""

    attempt: Attempt
    entries: Sequence[Entry]

    @property
    def next_offset(self) -> int:
        """First offset that the attempt did not copy."""
        return self.entries[-1].next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A complete fragment that no root names yet, found by `LedgerOffloader.leftovers`."""

    entry: Entry
    last_chunk_offset: int
    last_chunk_checksum: int
    """CRC-32 of the whole last stored chunk, to be compared with the source's."""
