"""What a verify says: how closely it looked, up to where, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from offload.errors import Corrupt

__all__ = ["VerifyLevel", "VerifyReport"]


class VerifyLevel(Enum):
    """How closely to look. Each finds what those before it find."""

    MANIFEST = "manifest"
    """Every fragment and group that is named is there with its size. No fragment is read."""

    CHECKSUM = "checksum"
    """And the store keeps of each fragment the checksum that the manifest states, where it keeps any."""

    BYTES = "bytes"
    """Every object is read whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreferenced:
    """An object that no manifest names, and why it is there."""

    key: str
    attempt: UUID | None
    reason: str

    def as_json(self) -> dict[str, object]:
        """A row of the report."""
        attempt = None if self.attempt is None else str(self.attempt)
        return {"object": self.key, "attempt": attempt, "reason": self.reason}


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """What was looked at and what was found, in order of keys. It grows while a verify runs."""

    level: VerifyLevel = VerifyLevel.BYTES
    streams: int = 0
    objects: int = 0
    """How many were held against anything."""
    bytes: int = 0
    """How many were read."""
    not_compared: int = 0
    """Fragments of which a checksum was asked for, and the store keeps none."""
    damages: list[Corrupt] = field(default_factory=list)
    unreferenced: list[Unreferenced] = field(default_factory=list)
    judged_to: str | None = None
    """The key up to which everything was judged, itself included. The tier's anchor comes before all."""
    stream: str | None = None
    """The stream of that object, if it is known."""
    offsets: range = range(0)
    """What is committed of that stream, if that is known."""
    reached: int = 0
    """How far into these offsets the fragments were judged."""

    def add(self, more: VerifyReport) -> None:
        """Add what was found behind all that this report is about."""
        self.streams += more.streams
        self.objects += more.objects
        self.bytes += more.bytes
        self.not_compared += more.not_compared
        self.damages += more.damages
        self.unreferenced += more.unreferenced

    def as_json(self) -> dict[str, object]:
        """The document of `offload verify --json`."""
        return {
            "level": self.level.value,
            "streams": self.streams,
            "objects": self.objects,
            "bytes": self.bytes,
            "not_compared": self.not_compared,
            "judged_to": self.judged_to,
            "damages": [damage_as_json(damage) for damage in self.damages],
            "unreferenced": [row.as_json() for row in self.unreferenced],
        }


def damage_as_json(damage: Corrupt) -> dict[str, object]:
    """A row of the report's damages."""
    return {
        "stream": damage.stream,
        "object": damage.where,
        "position": damage.position,
        "what": damage.what,
        "expected": str(damage.expected),
        "found": str(damage.found),
    }
