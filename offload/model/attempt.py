"""Attempts at offloading a ledger, their receipts, and the fragments that a crash leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from offload.model.entry import Entry

__all__ = ["Attempt", "Leftover", "Receipt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at offloading a ledger. Attempts never share an object, even if they copy one ledger."""

    stream: str
    ledger_id: int
    uid: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The durable result of an attempt: the entries that a commit may now append, in order of offsets."""

    attempt: Attempt
    entries: Sequence[Entry]
    dropped_sections: Mapping[str, int] = field(default_factory=dict)
    """The sections that a copy left out: `ReadHandle.unknown_sections` of the copied fragments."""

    @property
    def next_offset(self) -> int:
        """The first offset that the attempt did not copy."""
        return self.entries[-1].next_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A complete fragment that no root names yet, found by `LedgerOffloader.leftovers`."""

    entry: Entry
    last_chunk_offset: int
    last_chunk_checksum: int
    """The CRC-32 of the whole last stored chunk. It is compared with that of the source's chunk."""
