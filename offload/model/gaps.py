"""The gaps of a stream: offsets between two of its parts that its source had deleted before they were copied.

They are computed from the ends of the parts, which are on the tier. So they are the same for every process,
and none is counted twice.

No number claims more than the ends of the parts show:

    seen                                             the gap is
    the part before has data                         LOST: exact
    the part before was trimmed whole, or a part     AT_MOST: the later part may be trimmed as well, or
    between the two was deleted                      the deleted part held these offsets
    the later part begins below the end of           OTHER_HISTORY: the source's offsets repeat, and nobody
    the part before                                  knows what it held before

A part that follows a restore has the offsets of another stream, so its beginning says nothing.

Invariant: retention trims the oldest parts first, so a part with data has no trimmed part behind it. Somebody
who trims a later part by its own name breaks it: what was trimmed there counts as lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from offload.model.manifest import CommittedStream

__all__ = ["GapKind", "PartEnds", "StreamGap", "gaps_between", "lost_records"]


class GapKind(StrEnum):
    """The certainty of the number of lost records."""

    LOST = "lost"
    AT_MOST = "at-most"
    OTHER_HISTORY = "other-history"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGap:
    """The step from the end of one part to the beginning of the next part that is there."""

    stream: str
    """The name of the whole stream."""
    part: int
    """The number of the part that begins behind the gap."""
    from_offset: int
    to_offset: int
    kind: GapKind

    @property
    def records(self) -> int | None:
        """The number of lost records, or the most that it can be. None if it is not known."""
        return None if self.kind is GapKind.OTHER_HISTORY else self.to_offset - self.from_offset


class PartEnds(NamedTuple):
    """The ends of a part's committed data, and the number of its fragments."""

    first_offset: int
    next_offset: int
    fragments: int

    @classmethod
    def of(cls, committed: CommittedStream) -> PartEnds:
        """Return the ends of this state of a part."""
        return cls(committed.first_offset, committed.next_offset, committed.fragments)


def gaps_between(
    stream: str, parts: Mapping[int, PartEnds | None], behind: Collection[int] = ()
) -> list[StreamGap]:
    """Return the gaps between the parts of a stream, given by their numbers, in order, the deleted ones too.

    None stands for the ends of a part that was deleted or has no commit yet. The parts `behind` follow a
    restore.
    """
    found: list[StreamGap] = []
    live = [(row, part, ends) for row, (part, ends) in enumerate(parts.items()) if ends is not None]
    for (row_before, _, before), (row, part, ends) in pairwise(live):
        if part in behind or ends.first_offset == before.next_offset:
            continue
        is_exact = row == row_before + 1 and before.fragments > 0
        kind = GapKind.LOST if is_exact else GapKind.AT_MOST
        if ends.first_offset < before.next_offset:
            kind = GapKind.OTHER_HISTORY
        found.append(
            StreamGap(
                stream=stream,
                part=part,
                from_offset=before.next_offset,
                to_offset=ends.first_offset,
                kind=kind,
            )
        )
    return found


def lost_records(gaps: Iterable[StreamGap]) -> int:
    """Return the number of records that are lost for certain."""
    return sum(gap.records or 0 for gap in gaps if gap.kind is GapKind.LOST)
