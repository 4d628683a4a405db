"""ledger-offload: sealed log data moves to any object store, and reads back as if it had never left.

Embedders begin with `open_tier`, `StreamWriter` and `StreamReader`; authors of backends with
`ObjectStore` or `LedgerOffloader`; authors of sources with `Source`. `Blocking` serves threads.

Public names are imported when they are first used (`offload.late`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.late import late_names

if TYPE_CHECKING:
    from offload.blocking import Blocking
    from offload.catalogue import Catalogue, EntryView, StreamView
    from offload.decoder import Decoded, Decoder
    from offload.env import Env
    from offload.errors import (
        Absent,
        AlreadyExists,
        AnchorLost,
        Conflict,
        Corrupt,
        Denied,
        Diverged,
        Fenced,
        Misuse,
        NoSpace,
        NotFound,
        NotOffloaded,
        OffloadError,
        OutcomeUnknown,
        RootsLost,
        StoreDenied,
        StreamDeleted,
        Throttled,
        TryAgain,
        UnsupportedFormat,
    )
    from offload.formats.chunk_writer import build_chunk
    from offload.formats.manifest import CommittedStream, Entry, Manifest
    from offload.memory_handle import MemoryHandle
    from offload.offloader import Attempt, Committer, LedgerOffloader, Leftover, ReadHandle, Receipt
    from offload.plugins import Backend, Command, DecoderType, Plugins, SourceType, hookimpl
    from offload.position import AtOffset, AtTime, Place, Position, parse_position
    from offload.source import Snapshot, Source, SourceStream
    from offload.store.capabilities import Capabilities
    from offload.store.port import Body, Listed, ObjectStore, Span, Suffix, Upload
    from offload.tier.guest import Job
    from offload.tier.object_store_offloader import ObjectStoreOffloader, TierOptions
    from offload.tier.opening import open_source, open_tier
    from offload.tier.place import TierPlan
    from offload.tier.reader import Messages, StreamReader
    from offload.tier.retention import Retention, TrimReport, delete_stream, trim
    from offload.tier.stream_writer import StreamWriter
    from offload.tier.sweep import Sweeper, sweep
    from offload.tier.sweep_report import SweepReport
    from offload.tier.sync import StreamReport, sync
    from offload.tier.verify import verify
    from offload.tier.verify_report import VerifyLevel, VerifyReport

__all__ = [
    "Absent",
    "AlreadyExists",
    "AnchorLost",
    "AtOffset",
    "AtTime",
    "Attempt",
    "Backend",
    "Blocking",
    "Body",
    "Capabilities",
    "Catalogue",
    "Command",
    "CommittedStream",
    "Committer",
    "Conflict",
    "Corrupt",
    "Decoded",
    "Decoder",
    "DecoderType",
    "Denied",
    "Diverged",
    "Entry",
    "EntryView",
    "Env",
    "Fenced",
    "Job",
    "LedgerOffloader",
    "Leftover",
    "Listed",
    "Manifest",
    "MemoryHandle",
    "Messages",
    "Misuse",
    "NoSpace",
    "NotFound",
    "NotOffloaded",
    "ObjectStore",
    "ObjectStoreOffloader",
    "OffloadError",
    "OutcomeUnknown",
    "Place",
    "Plugins",
    "Position",
    "ReadHandle",
    "Receipt",
    "Retention",
    "RootsLost",
    "Snapshot",
    "Source",
    "SourceStream",
    "SourceType",
    "Span",
    "StoreDenied",
    "StreamDeleted",
    "StreamReader",
    "StreamReport",
    "StreamView",
    "StreamWriter",
    "Suffix",
    "SweepReport",
    "Sweeper",
    "Throttled",
    "TierOptions",
    "TierPlan",
    "TrimReport",
    "TryAgain",
    "UnsupportedFormat",
    "Upload",
    "VerifyLevel",
    "VerifyReport",
    "build_chunk",
    "delete_stream",
    "hookimpl",
    "open_source",
    "open_tier",
    "parse_position",
    "sweep",
    "sync",
    "trim",
    "verify",
]

_HOMES = {
    "Absent": "offload.errors",
    "AlreadyExists": "offload.errors",
    "AnchorLost": "offload.errors",
    "AtOffset": "offload.position",
    "AtTime": "offload.position",
    "Attempt": "offload.offloader",
    "Backend": "offload.plugins",
    "Blocking": "offload.blocking",
    "Body": "offload.store.port",
    "Capabilities": "offload.store.capabilities",
    "Catalogue": "offload.catalogue",
    "Command": "offload.plugins",
    "CommittedStream": "offload.formats.manifest",
    "Committer": "offload.offloader",
    "Conflict": "offload.errors",
    "Corrupt": "offload.errors",
    "Decoded": "offload.decoder",
    "Decoder": "offload.decoder",
    "DecoderType": "offload.plugins",
    "Denied": "offload.errors",
    "Diverged": "offload.errors",
    "Entry": "offload.formats.manifest",
    "EntryView": "offload.catalogue",
    "Env": "offload.env",
    "Fenced": "offload.errors",
    "Job": "offload.tier.guest",
    "LedgerOffloader": "offload.offloader",
    "Leftover": "offload.offloader",
    "Listed": "offload.store.port",
    "Manifest": "offload.formats.manifest",
    "MemoryHandle": "offload.memory_handle",
    "Messages": "offload.tier.reader",
    "Misuse": "offload.errors",
    "NoSpace": "offload.errors",
    "NotFound": "offload.errors",
    "NotOffloaded": "offload.errors",
    "ObjectStore": "offload.store.port",
    "ObjectStoreOffloader": "offload.tier.object_store_offloader",
    "OffloadError": "offload.errors",
    "OutcomeUnknown": "offload.errors",
    "Place": "offload.position",
    "Plugins": "offload.plugins",
    "Position": "offload.position",
    "ReadHandle": "offload.offloader",
    "Receipt": "offload.offloader",
    "Retention": "offload.tier.retention",
    "RootsLost": "offload.errors",
    "Snapshot": "offload.source",
    "Source": "offload.source",
    "SourceStream": "offload.source",
    "SourceType": "offload.plugins",
    "Span": "offload.store.port",
    "StoreDenied": "offload.errors",
    "StreamDeleted": "offload.errors",
    "StreamReader": "offload.tier.reader",
    "StreamReport": "offload.tier.sync",
    "StreamView": "offload.catalogue",
    "StreamWriter": "offload.tier.stream_writer",
    "Suffix": "offload.store.port",
    "SweepReport": "offload.tier.sweep_report",
    "Sweeper": "offload.tier.sweep",
    "Throttled": "offload.errors",
    "TierOptions": "offload.tier.object_store_offloader",
    "TierPlan": "offload.tier.place",
    "TrimReport": "offload.tier.retention",
    "TryAgain": "offload.errors",
    "UnsupportedFormat": "offload.errors",
    "Upload": "offload.store.port",
    "VerifyLevel": "offload.tier.verify_report",
    "VerifyReport": "offload.tier.verify_report",
    "build_chunk": "offload.formats.chunk_writer",
    "delete_stream": "offload.tier.retention",
    "hookimpl": "offload.plugins",
    "open_source": "offload.tier.opening",
    "open_tier": "offload.tier.opening",
    "parse_position": "offload.position",
    "sweep": "offload.tier.sweep",
    "sync": "offload.tier.sync",
    "trim": "offload.tier.retention",
    "verify": "offload.tier.verify",
}
"""Where each public name lives; a test holds it against the imports above."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
