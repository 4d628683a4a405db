"""Events of the core, for listeners: plugins with the `offload_event` hook, and progress bars.

Events are sent after the fact, on the event loop, so a listener must return at once. Each has a short `repr`
for a line of a log. Long values are only in its attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offload.ground.errors import Corrupt, OffloadError

if TYPE_CHECKING:  # plugins import events, and finding plugins must not import NumPy
    from offload.model.entry import Entry
    from offload.model.manifest import Manifest

__all__ = [
    "AppendsHeld",
    "CommitFailed",
    "CommitInDoubt",
    "CopyBegun",
    "DamageFound",
    "Event",
    "FragmentUploaded",
    "LedgerRolled",
    "LedgersOffloaded",
    "LocalLedgerDeleted",
    "ManifestCommitted",
    "PartBegun",
    "RecordsLost",
    "Skipped",
    "StreamPaused",
    "StreamResumed",
    "TookOver",
    "UpkeepFinished",
    "Waiting",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base class of all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentUploaded(Event):
    """A fragment is durable. It is not committed yet."""

    stream: str
    entry: Entry

    def __repr__(self) -> str:
        """Return the fragment's stream, offsets and size, without the rest of the entry."""
        offsets = f"[{self.entry.first_offset}, {self.entry.next_offset})"
        size = self.entry.stored_size_bytes
        return f"FragmentUploaded(stream={self.stream!r}, offsets={offsets}, stored_size_bytes={size})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBegun(Event):
    """A sync begins to copy the offsets [first_offset, next_offset) of a stream."""

    stream: str
    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestCommitted(Event):
    """A change was accepted."""

    manifest: Manifest
    change: str

    def __repr__(self) -> str:
        """Return the stream, the change, and the new version and end, without the manifest's entries."""
        at = f"version={self.manifest.version}, next_offset={self.manifest.next_offset}"
        return f"ManifestCommitted(stream={self.manifest.stream!r}, change={self.change!r}, {at})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFailed(Event):
    """A change was not accepted, or is in doubt. The class of the error says which."""

    stream: str
    change: str
    error: OffloadError
    seconds: float
    """The time from the call to the error, with all tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInDoubt(CommitFailed):
    """Nobody knows whether a change was accepted. The caller reads the root before its next change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageFound(Event):
    """Bytes of a store or of a source break their format."""

    damage: Corrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped(Event):
    """A reader was at `from_offset` of a stream, and continues at `to_offset`.

    The offsets between were trimmed and swept before it could read them. Or, if `part` is set, a part ends
    at `from_offset`, and the next one with data begins at `to_offset`. Behind a fork, `to_offset` may be the
    lower one: the later part has other records under offsets that were read already.
    """

    stream: str
    from_offset: int
    to_offset: int
    part: int | None = None
    """The number of the part that begins at `to_offset`. None: both offsets are of the same part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Event):
    """Requests wait for a store that fails, refuses them, or does not answer.

    Emitted every few seconds until it answers.
    """

    url: str
    error: OffloadError
    """The error of the last of these requests. A `TryAgain` if none has failed, and none was answered yet."""

    waited_seconds: float
    """The time since the first failure after the store's last answer, or since the request was sent."""

    patience_seconds: float
    """The time after which the requests give up and raise their errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPaused(Event):
    """A follower copies nothing more of a stream until a person acts. It tries again every few minutes."""

    stream: str
    error: OffloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResumed(Event):
    """A follower continues a stream that was paused."""

    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartBegun(Event):
    """A stream continues in a new part, because the source does not continue the part before."""

    stream: str
    """The name of the whole stream."""
    part: int
    first_offset: int
    ended_offset: int
    """The end of the part before. The records from here to `first_offset` are lost, if that is higher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsLost(Event):
    """The records [from_offset, to_offset) of a stream are gone from the source, and not on the tier.

    No record is in two events of one process, unless the source had it again in between. A process that
    starts again at a gap, before a record behind it is committed, reports the gap again.
    """

    stream: str
    from_offset: int
    to_offset: int
    records: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TookOver(Event):
    """A follower has claimed a stream, and leads from now on."""

    stream: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepFinished(Event):
    """A job that keeps a tier in order has ended: "retention", "compact", "sweep" or "verify"."""

    job: str
    streams: int
    objects: int
    """Fragments that were trimmed or merged, objects that were deleted, or objects that were verified."""

    size_bytes: int
    """Their size as stored. Of a compaction, that of the new fragments. Of a verify, the bytes it read."""

    seconds: float
    error: OffloadError | None
    """The first error of any stream, or the first damage. The other streams were worked on, unless the store
    denies everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRolled(Event):
    """A managed ledger has sealed its open ledger."""

    stream: str
    ledger_id: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgersOffloaded(Event):
    """A managed ledger has copied sealed ledgers to its tier: the offsets [first_offset, next_offset)."""

    stream: str
    first_offset: int
    next_offset: int
    stored_size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLedgerDeleted(Event):
    """A managed ledger has deleted the local copy of a ledger."""

    stream: str
    ledger_id: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendsHeld(Event):
    """The local log of a managed ledger has passed its bound. Its policy says what appends do.

    Emitted when the bound is passed, and not again before the log was below it.
    """

    stream: str
    size_bytes: int
    size_bytes_max: int
