"""Gaps of streams, as commands show them."""

from __future__ import annotations

from collections.abc import Sequence

from offload.cli.kit.output import counted
from offload.model.gaps import GapKind, StreamGap, lost_records

__all__ = ["gap_as_json", "gaps_text", "records_text"]


def gap_as_json(gap: StreamGap) -> dict[str, object]:
    """Return a gap for programs."""
    return {
        "stream": gap.stream,
        "part": gap.part,
        "from_offset": gap.from_offset,
        "to_offset": gap.to_offset,
        "records": gap.records,
        "kind": gap.kind.value,
    }


def records_text(gap: StreamGap) -> str:
    """Return the number of records that a gap cost: "120", "at most 120" or "not known"."""
    if gap.records is None:
        return "not known"
    return str(gap.records) if gap.kind is GapKind.LOST else f"at most {gap.records}"


def gaps_text(gaps: Sequence[StreamGap]) -> str:
    """Return a summary such as "2 gaps, 120 records lost"."""
    lost = counted(lost_records(gaps), "record")
    beyond = "" if all(gap.kind is GapKind.LOST for gap in gaps) else ", and others of which it is not known"
    return f"{counted(len(gaps), 'gap')}, {lost} lost{beyond}"
