"""Which side a reader of a disk and a tier reads next: a function of what the sides have.

Invariants: a side is read only for offsets that it has; a side that comes later in the order is read only up
to where an earlier one has data again; an offset is skipped only if no side has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Final

from offload.ground.errors import OffloadError

__all__ = ["ReadPriority"]


class ReadSide(Enum):
    """The two places where a message may be."""

    LOCAL = "local"
    TIER = "tier"


class ReadPriority(StrEnum):
    """From where a message is read that is on the source's disk, on the tier, or on both."""

    LOCAL_FIRST = "local-first"
    """From the source if it has the message, else from the tier."""
    TIER_FIRST = "tier-first"
    """From the tier if it has the message, else from the source."""
    LOCAL_ONLY = "local-only"
    """From the source. The tier is not asked."""
    TIER_ONLY = "tier-only"
    """From the tier. The source is not asked."""

    @property
    def sides(self) -> tuple[ReadSide, ...]:
        """The sides that may be read, the preferred one first."""
        return _ORDER[self]


_ORDER: Final = {
    ReadPriority.LOCAL_FIRST: (ReadSide.LOCAL, ReadSide.TIER),
    ReadPriority.TIER_FIRST: (ReadSide.TIER, ReadSide.LOCAL),
    ReadPriority.LOCAL_ONLY: (ReadSide.LOCAL,),
    ReadPriority.TIER_ONLY: (ReadSide.TIER,),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Offsets [begin, end) that a side has, and that cannot be read from it."""

    begin: int
    end: int
    error: OffloadError


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets [first, end) that a side has."""

    first: int
    end: int
    failure: Failure | None = None

    def from_(self, offset: int) -> int | None:
        """Return the first readable offset from `offset` on, or None if there is none."""
        begin = max(self.first, offset)
        if self.failure is not None and self.failure.begin <= begin < self.failure.end:
            begin = self.failure.end
        return begin if begin < self.end else None

    def until(self, offset: int) -> int:
        """Return the end of the run of readable offsets that `offset` belongs to."""
        if self.failure is not None and offset < self.failure.begin < self.end:
            return self.failure.begin
        return self.end

    def failed_at(self, offset: int) -> OffloadError | None:
        """Return the error of this offset, if the side has it and cannot read it."""
        failure = self.failure
        return failure.error if failure is not None and failure.begin <= offset < failure.end else None

    def without(self, failure: Failure | None) -> Extent:
        """Return the extent, of which this cannot be read."""
        return replace(self, failure=failure)


NOTHING: Final = Extent(0, 0)


@dataclass(frozen=True, slots=True)
class Read:
    """Read this side, up to an offset at which the choice may be another."""

    side: ReadSide
    until: int


@dataclass(frozen=True, slots=True)
class SkipTo:
    """No side has the offset: continue at this one, the first that a side has or will have."""

    offset: int


def next_step(extents: Sequence[tuple[ReadSide, Extent]], offset: int) -> Read | SkipTo | None:
    """Return what a reader at `offset` does next, or None if no side has anything from there on.

    `extents` are what the sides have, the preferred side first.
    """
    begins = [extent.from_(offset) for _, extent in extents]
    for rank, (side, extent) in enumerate(extents):
        if begins[rank] == offset:
            better = [begin for begin in begins[:rank] if begin is not None]
            return Read(side, min([extent.until(offset), *better]))
    later = [begin for begin in begins if begin is not None]
    if later:
        return SkipTo(min(later))
    # A side that was emptied has an end all the same. Later records begin there.
    ended = max((extent.end for _, extent in extents), default=offset)
    return SkipTo(ended) if ended > offset else None
