"""A fragment as its own tail describes it, for streams whose roots are lost."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from offload.model.entry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFragment:
    """A fragment that is sound, as far as its own tail can say."""

    entry: Entry
    incarnation: UUID
    epoch: int
    base_version: int
    source_epoch: int = 0
    """The broker's leader epoch that the fragment records; 0 if it records none."""

    @property
    def name(self) -> tuple[int, UUID]:
        """What tells the fragment from all others of its stream."""
        return self.entry.first_offset, self.entry.attempt
