"""What a sweep found and did, for programs and for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from offload.errors import OffloadError
from offload.upkeep.sweep.page import Why

__all__ = ["SweepReport"]


STRANGERS_MAX: Final = 1_000
"""How many unknown objects a report names; the others it counts."""


@dataclass(slots=True)
class Tally:
    """Objects and their bytes, by why they stay or go."""

    objects: Counter[Why] = field(default_factory=Counter)
    bytes: Counter[Why] = field(default_factory=Counter)

    def add(self, why: Why, size_bytes: int) -> None:
        """Count one object."""
        self.objects[why] += 1
        self.bytes[why] += size_bytes

    def as_json(self) -> dict[str, object]:
        """By reason, in a fixed order."""
        return {
            str(why): {"objects": self.objects[why], "bytes": self.bytes[why]}
            for why in Why
            if self.objects[why]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemned:
    """An object that goes, now or once the grace is over."""

    key: str
    size_bytes: int
    why: Why
    waits_seconds: float
    """How long still; 0 where it goes now."""

    def as_json(self) -> dict[str, object]:
        """A row of a dry run."""
        return {
            "object": self.key,
            "bytes": self.size_bytes,
            "reason": str(self.why),
            "waits_seconds": round(self.waits_seconds, 3),
        }


@dataclass(slots=True, kw_only=True)
class StreamSweep:
    """What a sweep found and did in one stream."""

    stream: str
    version: int | None = None
    """Of the newest root; None where there is none."""
    state: str = "no root"
    listed: int = 0
    listed_bytes: int = 0
    stays: Tally = field(default_factory=Tally)
    waits: Tally = field(default_factory=Tally)
    deleted: Tally = field(default_factory=Tally)
    """In a dry run: what would be."""
    waits_seconds: float = 0.0
    """How long the last of what waits does so still."""
    notes: list[str] = field(default_factory=list)
    errors: list[OffloadError] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """A row of `offload sweep --json`."""
        return {
            "stream": self.stream,
            "state": self.state,
            "version": self.version,
            "listed": {"objects": self.listed, "bytes": self.listed_bytes},
            "stays": self.stays.as_json(),
            "waits": self.waits.as_json(),
            "waits_seconds": round(self.waits_seconds, 3),
            "deleted": self.deleted.as_json(),
            "notes": self.notes,
            "errors": [str(error) for error in self.errors],
        }


@dataclass(slots=True, kw_only=True)
class SweepReport:
    """What a sweep found and did."""

    grace_seconds: float
    dry_run: bool = False
    streams: list[StreamSweep] = field(default_factory=list)
    strangers: dict[str, str] = field(default_factory=dict)
    """Keys that are not of this format, and what is to be said of them: the first `STRANGERS_MAX`."""
    strangers_count: int = 0
    trials_deleted: int = 0
    """Objects of interrupted trials of the store. In a dry run: those that would be deleted."""

    @property
    def errors(self) -> list[OffloadError]:
        """Of all streams. Nothing was deleted where one arose in finding out."""
        return [error for stream in self.streams for error in stream.errors]

    def as_json(self) -> dict[str, Any]:
        """The document of `offload sweep --json`."""
        return {
            "dry_run": self.dry_run,
            "grace_seconds": self.grace_seconds,
            "streams": [stream.as_json() for stream in self.streams],
            "strangers": [{"object": key, "reason": reason} for key, reason in self.strangers.items()],
            "strangers_count": self.strangers_count,
            "trials_deleted": self.trials_deleted,
        }

    def stranger(self, key: str, reason: str) -> None:
        """An object that nothing here touches."""
        self.strangers_count += 1
        if len(self.strangers) < STRANGERS_MAX:
            self.strangers[key] = reason
