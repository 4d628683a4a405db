"""A fragment as its own tail describes it. A rebuild uses it for streams whose roots are lost."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from offload.model.entry import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFragment:
    """A fragment that is sound according to its own tail."""

    entry: Entry
    incarnation: UUID
    epoch: int
    base_version: int
    source_epoch: int = 0
    """The broker's leader epoch that the fragment records. 0 if it records none."""
    stream_key: UUID | None = None
    """The key of the stream that opens the fragment. None if it is not encrypted."""

    @property
    def name(self) -> tuple[int, UUID]:
        """The first offset and the attempt, which no other fragment of the stream has together."""
        return self.entry.first_offset, self.entry.attempt
