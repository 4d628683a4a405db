"""The report of a rebuild: what was found, and what is or would be committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from offload.formats.keys import StreamKeys
from offload.ground.errors import Corrupt
from offload.model.manifest import Manifest, StreamState
from offload.upkeep.rebuild.choice import History, RebuildChoice
from offload.upkeep.rebuild.joining import (
    MissingOffsets,
)

__all__ = ["RebuildReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """The result of a rebuild, or of its dry run."""

    stream: str
    choice: RebuildChoice = field(default_factory=RebuildChoice)
    damages: Sequence[Corrupt] = ()
    manifest: Manifest | None = None
    """The manifest that was committed; None if nothing was."""

    incarnation: UUID | None = None
    """The incarnation of the chosen history; None if the operator must name one."""

    before: Sequence[MissingOffsets] = ()
    behind: Sequence[MissingOffsets] = ()
    """Parts that are copied from the history that the manifest named, to join the two."""

    histories: Sequence[History] = ()
    """The histories to choose from. Empty if one was chosen."""

    standing: Manifest | None = None
    """The newest root that was found."""

    lost_keys: Mapping[UUID, int] = field(default_factory=dict)
    """The keys of the stream that are lost, with the number of chosen fragments that need each."""

    anchor_restored: bool = False
    """Whether the stream's anchor was lost and is restored, or would be without `dry_run`."""

    @property
    def is_complete(self) -> bool:
        """True if the rebuild did all its work, or would without `dry_run`."""
        if self.histories:
            return False
        return self.manifest is not None or (self.incarnation is not None and not self.choice.holes)

    def as_json(self) -> dict[str, object]:
        """Return the document of `offload rebuild --json`."""
        keys = StreamKeys(self.stream)
        first, last = self.range
        return {
            "stream": self.stream,
            "committed": self.manifest is not None and not self.anchor_restored_alone,
            "version": None if self.manifest is None else self.manifest.version,
            "incarnation": None if self.incarnation is None else str(self.incarnation),
            "first_offset": first,
            "next_offset": last,
            "fragments": len(self.choice.chosen),
            "messages": self.choice.messages,
            "holes": [{"first_offset": begin, "next_offset": end} for begin, end in self.choice.holes],
            "left_out": [
                {
                    "object": keys.fragment(each.entry.first_offset, each.entry.attempt),
                    "first_offset": each.entry.first_offset,
                    "next_offset": each.entry.next_offset,
                    "reason": reason,
                }
                for each, reason in self.choice.left_out
            ],
            "copied": [
                {"first_offset": part.first_offset, "next_offset": part.next_offset}
                for part in (*self.before, *self.behind)
            ],
            "incarnations": [_history_json(row, self.standing) for row in self.histories],
            "lost_keys": [{"key": str(uid), "fragments": count} for uid, count in self.lost_keys.items()],
            "anchor_restored": self.anchor_restored,
            "damages": [str(damage) for damage in self.damages],
        }

    @property
    def anchor_restored_alone(self) -> bool:
        """True if the manifest was sound, and only the anchor was lost."""
        return self.manifest is not None and self.manifest is self.standing

    @property
    def range(self) -> tuple[int | None, int | None]:
        """The offsets that the stream has, or would have."""
        if self.manifest is not None:
            return self.manifest.first_offset, self.manifest.next_offset
        begin, end = self.choice.first_offset, self.choice.next_offset
        begin = self.before[0].first_offset if self.before else begin
        return begin, self.behind[-1].next_offset if self.behind else end


def _history_json(row: History, standing: Manifest | None) -> dict[str, object]:
    return {
        "incarnation": str(row.incarnation),
        "first_offset": row.choice.first_offset,
        "next_offset": row.choice.next_offset,
        "messages": row.choice.messages,
        "holes": len(row.choice.holes),
        "first_timestamp_ms": row.first_timestamp_ms,
        "last_timestamp_ms": row.last_timestamp_ms,
        "first_epoch": row.epochs[0],
        "last_epoch": row.epochs[1],
        "in_manifest": names(standing, row),
    }


def names(standing: Manifest | None, row: History) -> bool:
    """Return whether the newest root is of this history, and names its fragments."""
    return (
        standing is not None
        and standing.state is StreamState.LIVE
        and standing.incarnation == row.incarnation
    )
