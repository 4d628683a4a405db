"""The report of a sweep: counts, notes and errors, for programs and for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from offload.ground.errors import OffloadError
from offload.upkeep.sweep.page import Why

__all__ = ["SweepReport"]


STRANGERS_MAX: Final = 1_000
"""How many unknown objects a report names. Those beyond are only counted."""


@dataclass(slots=True)
class Tally:
    """Counts of objects and of their bytes, by the reason why they stay or go."""

    objects: Counter[Why] = field(default_factory=Counter)
    bytes: Counter[Why] = field(default_factory=Counter)

    def add(self, why: Why, size_bytes: int) -> None:
        """Count one object."""
        self.objects[why] += 1
        self.bytes[why] += size_bytes

    def as_json(self) -> dict[str, object]:
        """Return the counts by reason, in a fixed order."""
        return {
            str(why): {"objects": self.objects[why], "bytes": self.bytes[why]}
            for why in Why
            if self.objects[why]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemned:
    """An object that is deleted now, or once the grace is over."""

    key: str
    size_bytes: int
    why: Why
    waits_seconds: float
    """How long it stays still; 0 if it is deleted now."""

    def as_json(self) -> dict[str, object]:
        """Return a row of `offload sweep --dry-run --json`."""
        return {
            "object": self.key,
            "bytes": self.size_bytes,
            "reason": str(self.why),
            "waits_seconds": round(self.waits_seconds, 3),
        }


@dataclass(slots=True, kw_only=True)
class StreamSweep:
    """The result of a sweep for one stream."""

    stream: str
    version: int | None = None
    """The version of the newest root; None if there is no root."""
    state: str = "no root"
    listed: int = 0
    listed_bytes: int = 0
    stays: Tally = field(default_factory=Tally)
    waits: Tally = field(default_factory=Tally)
    deleted: Tally = field(default_factory=Tally)
    """In a dry run: the objects that would be deleted."""
    waits_seconds: float = 0.0
    """The longest time that any object of `waits` still waits."""
    notes: list[str] = field(default_factory=list)
    errors: list[OffloadError] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return a row of `offload sweep --json`."""
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
    """The result of a sweep."""

    grace_seconds: float
    dry_run: bool = False
    streams: list[StreamSweep] = field(default_factory=list)
    strangers: dict[str, str] = field(default_factory=dict)
    """The first `STRANGERS_MAX` keys that are not of this format, each with an explanation."""
    strangers_count: int = 0
    trials_deleted: int = 0
    """Objects of interrupted trials of the store. In a dry run: those that would be deleted."""

    @property
    def errors(self) -> list[OffloadError]:
        """The errors of all streams. After an error before the deletes, nothing of its stream is deleted."""
        return [error for stream in self.streams for error in stream.errors]

    def as_json(self) -> dict[str, Any]:
        """Return the document of `offload sweep --json`."""
        return {
            "dry_run": self.dry_run,
            "grace_seconds": self.grace_seconds,
            "streams": [stream.as_json() for stream in self.streams],
            "strangers": [{"object": key, "reason": reason} for key, reason in self.strangers.items()],
            "strangers_count": self.strangers_count,
            "trials_deleted": self.trials_deleted,
        }

    def stranger(self, key: str, reason: str) -> None:
        """Count an object that is not of this format. A sweep never touches it."""
        self.strangers_count += 1
        if len(self.strangers) < STRANGERS_MAX:
            self.strangers[key] = reason
