"""What happens inside, told to whoever listens: plugins by the `offload_event` hook, progress bars.

Events are told after the fact, on the event loop; a listener must return at once. Each has a short `repr`,
fit for a line of a log: whatever is long is in its attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offload.errors import Corrupt, OffloadError

if TYPE_CHECKING:  # plugins import events, and finding plugins must not import NumPy
    from offload.model.entry import Entry
    from offload.model.manifest import Manifest

__all__ = [
    "CopyBegun",
    "DamageFound",
    "Event",
    "FragmentUploaded",
    "ManifestCommitted",
    "Skipped",
    "Waiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Anything that is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentUploaded(Event):
    """A fragment is durable. It is not committed yet."""

    stream: str
    entry: Entry

    def __repr__(self) -> str:
        """Which fragment it is, without the rest of the entry."""
        offsets = f"[{self.entry.first_offset}, {self.entry.next_offset})"
        size = self.entry.stored_size_bytes
        return f"FragmentUploaded(stream={self.stream!r}, offsets={offsets}, stored_size_bytes={size})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBegun(Event):
    """A sync begins to copy these offsets of a stream; `next_offset` is not included."""

    stream: str
    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestCommitted(Event):
    """A change was accepted."""

    manifest: Manifest
    change: str

    def __repr__(self) -> str:
        """What was committed to which stream, without the manifest's entries."""
        at = f"version={self.manifest.version}, next_offset={self.manifest.next_offset}"
        return f"ManifestCommitted(stream={self.manifest.stream!r}, change={self.change!r}, {at})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageFound(Event):
    """Stored bytes, or a source's, break their format."""

    damage: Corrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(Event):
    """A reader left offsets out: they were trimmed, and swept, before it came to them.

    It was at `from_offset`, and goes on at `to_offset`, where the stream begins now.
    """

    stream: str
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """Requests wait for a store that fails or refuses them. Emitted now and then, until it answers."""

    url: str
    error: OffloadError
    """What the last of these requests met."""

    waited_seconds: float
    """Since the first failure after the store's last answer."""

    patience_seconds: float
    """After so long they give up, and raise what they met."""
