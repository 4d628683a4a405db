"""The report of a verify: its level, the last object judged, and the findings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar
from uuid import UUID

from offload.ground.errors import Corrupt, OffloadError, UnsupportedFormat

__all__ = ["VerifyLevel", "VerifyReport"]

T = TypeVar("T")


class VerifyLevel(Enum):
    """The depth of a verify. Each level finds everything that the levels before it find."""

    MANIFEST = "manifest"
    """Check that every named fragment and group is there, with the right size. Read no fragment."""

    CHECKSUM = "checksum"
    """Also compare each fragment's checksum in the manifest with the one that the store keeps, if any."""

    BYTES = "bytes"
    """Read every object whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreferenced:
    """An object that no manifest names, and the reason why it is there."""

    key: str
    attempt: UUID | None
    reason: str

    def as_json(self) -> dict[str, object]:
        """Return a row of the report."""
        attempt = None if self.attempt is None else str(self.attempt)
        return {"object": self.key, "attempt": attempt, "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """An object that this run cannot check. It may be sound.

    A newer program wrote it (`UnsupportedFormat`), or it is a key object that the key service refuses.
    """

    key: str
    stream: str | None
    error: OffloadError

    @property
    def is_newer(self) -> bool:
        """Whether a newer program wrote it."""
        return isinstance(self.error, UnsupportedFormat)

    @property
    def reason(self) -> str:
        """The reason in words."""
        why = "a newer program wrote it" if self.is_newer else "the key service does not open it"
        return f"{why}: {self.error}"

    def as_json(self) -> dict[str, object]:
        """Return a row of the report."""
        return {"stream": self.stream, "object": self.key, "reason": self.reason}


@dataclass(slots=True, kw_only=True)
class VerifyReport:
    """The objects judged and the findings, in order of keys. It grows while a verify runs."""

    level: VerifyLevel = VerifyLevel.BYTES
    streams: int = 0
    objects: int = 0
    """Number of objects that were checked against anything."""
    bytes: int = 0
    """Number of bytes that were read."""
    not_compared: int = 0
    """Fragments for which a stored checksum was wanted, and the store keeps none."""
    not_opened: int = 0
    """Encrypted fragments of which only the stored bytes were checked: no key service opened them."""
    damages: list[Corrupt] = field(default_factory=list)
    unchecked: dict[str, Unchecked] = field(default_factory=dict)
    """The objects that cannot be checked, by their keys. Each is reported once."""
    unreferenced: list[Unreferenced] = field(default_factory=list)
    judged_to: str | None = None
    """The key up to which everything was judged, inclusive. The tier's anchor is judged before all keys."""
    stream: str | None = None
    """The stream of that object, if it is known."""
    offsets: range = range(0)
    """The committed offsets of that stream, if they are known."""
    reached: int = 0
    """The offset up to which the fragments were judged."""

    def add(self, more: VerifyReport) -> None:
        """Add the findings of the next objects."""
        self.streams += more.streams
        self.objects += more.objects
        self.bytes += more.bytes
        self.not_compared += more.not_compared
        self.not_opened += more.not_opened
        self.damages += more.damages
        for key, row in more.unchecked.items():
            self.unchecked.setdefault(key, row)
        self.unreferenced += more.unreferenced

    def add_error(self, error: OffloadError, key: str, stream: str | None) -> None:
        """Report an error of one object: damage, or a version that this program does not know.

        An object of a newer program is sound, as its checksum shows. To call it damage would make people
        restore it from a backup, or raise an alarm, during an upgrade.
        """
        if isinstance(error, Corrupt):
            self.damages.append(error.within(key, stream=stream))
        else:
            self.unchecked.setdefault(key, Unchecked(key=key, stream=stream, error=error))

    def as_json(self) -> dict[str, object]:
        """Return the document of `offload verify --json`."""
        return {
            "level": self.level.value,
            "streams": self.streams,
            "objects": self.objects,
            "bytes": self.bytes,
            "not_compared": self.not_compared,
            "not_opened": self.not_opened,
            "judged_to": self.judged_to,
            "damages": [damage_as_json(damage) for damage in self.damages],
            "unchecked": [row.as_json() for row in self.unchecked.values()],
            "unreferenced": [row.as_json() for row in self.unreferenced],
        }


def damage_as_json(damage: Corrupt) -> dict[str, object]:
    """Return a row of the report's damages."""
    return {
        "stream": damage.stream,
        "object": damage.where,
        "position": damage.position,
        "what": damage.what,
        "expected": str(damage.expected),
        "found": str(damage.found),
    }


def counting(report: VerifyReport, decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
    """Wrap `decode` so that it counts the one object of `report`. The last of repeated replies counts."""

    def counted(raw: bytes) -> T:
        report.objects, report.bytes = 1, len(raw)
        return decode(raw)

    return counted


def explain(report: VerifyReport, key: str, *, reason: str, attempt: UUID | None = None) -> None:
    """Report an object that no manifest names, and the reason why it is there."""
    report.unreferenced.append(Unreferenced(key=key, attempt=attempt, reason=reason))
