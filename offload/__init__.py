"""ledger-offload: copies sealed log data to any object store, and reads it back unchanged.

Authors of a broker start with `ManagedLedgers` and `FolderLog`. Programs that write and read streams start
with `open_tier`, `StreamWriter` and `StreamReader`, authors of backends with `ObjectStore` or
`LedgerOffloader`, authors of sources with `Source`. Programs without an event loop use `Blocking`.

Each public name is imported when it is first used (`offload.ground.late`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload.contracts.capabilities import Capabilities
    from offload.contracts.catalogue import Catalogue, EntryView, StreamView
    from offload.contracts.decoder import Decoded, Decoder
    from offload.contracts.entries import EntryLedger, EntryRun
    from offload.contracts.keys import KeyService
    from offload.contracts.ledger import ReadHandle
    from offload.contracts.log import LedgerLog, LocalLedger
    from offload.contracts.metrics import StoreMetrics
    from offload.contracts.offloader import Committer, LedgerOffloader
    from offload.contracts.opening import OpeningContext, RequestLimits
    from offload.contracts.plugin import Backend, Command, DecoderType, KeyServiceType, SourceType, hookimpl
    from offload.contracts.records import Record, RecordLimits, RecordService
    from offload.contracts.source import Snapshot, Source, SourceStream
    from offload.contracts.store import Body, Listed, ObjectStore, Span, Suffix, Upload
    from offload.copy.sync import StreamReport, sync
    from offload.entries.ledger import EntryLedgerStream
    from offload.follow.dispatcher import Dispatcher
    from offload.follow.follower import Follower
    from offload.follow.rules import FollowRules, FollowState, FollowStatus
    from offload.formats.chunk_writer import build_chunk
    from offload.ground.env import Env
    from offload.ground.errors import (
        Absent,
        AlreadyExists,
        AlreadyRunning,
        AnchorLost,
        BeingRebuilt,
        Conflict,
        Corrupt,
        Denied,
        Diverged,
        Fenced,
        Misuse,
        NoSpace,
        NoSuchKey,
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
    from offload.log.folder_log import Durability, FolderLog
    from offload.log.memory_handle import MemoryHandle
    from offload.log.memory_log import MemoryLog
    from offload.managed.contexts import LedgerContext
    from offload.managed.cursors import LogCursors, StoreCursors
    from offload.managed.ledger import LedgerState, ManagedLedger
    from offload.managed.ledgers import ManagedLedgers
    from offload.managed.policy import LedgerPolicy, WhenFull
    from offload.managed.rules import LedgerPlan
    from offload.model.attempt import Attempt, Leftover, Receipt
    from offload.model.compression import Compression
    from offload.model.entry import Entry
    from offload.model.manifest import CommittedStream, Manifest
    from offload.model.part import StreamPart
    from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position, parse_position
    from offload.native.offloader import ObjectStoreOffloader, TierOptions
    from offload.native.place import TierPlan
    from offload.opening.blocking import Blocking
    from offload.opening.by_url import open, open_source, open_tier  # noqa: A004 - read as `offload.open`
    from offload.opening.plugins import Plugins
    from offload.opening.session import Session
    from offload.read.reader import Messages, StreamReader
    from offload.store.records import RecordStore
    from offload.two_sides.choice import ReadPriority
    from offload.two_sides.tiered import TieredReader
    from offload.upkeep.retention import Retention, TrimReport, delete_stream, trim
    from offload.upkeep.sweep.report import SweepReport
    from offload.upkeep.sweep.tier import Sweeper, sweep
    from offload.upkeep.verify.report import VerifyLevel, VerifyReport
    from offload.upkeep.verify.tier import verify
    from offload.write.job import Job
    from offload.write.writer import StreamWriter

__all__ = [
    "Absent",
    "AlreadyExists",
    "AlreadyRunning",
    "AnchorLost",
    "AtEdge",
    "AtOffset",
    "AtTime",
    "Attempt",
    "Backend",
    "BeingRebuilt",
    "Blocking",
    "Body",
    "Capabilities",
    "Catalogue",
    "Command",
    "CommittedStream",
    "Committer",
    "Compression",
    "Conflict",
    "Corrupt",
    "Decoded",
    "Decoder",
    "DecoderType",
    "Denied",
    "Dispatcher",
    "Diverged",
    "Durability",
    "Entry",
    "EntryLedger",
    "EntryLedgerStream",
    "EntryRun",
    "EntryView",
    "Env",
    "Fenced",
    "FolderLog",
    "FollowRules",
    "FollowState",
    "FollowStatus",
    "Follower",
    "Job",
    "KeyService",
    "KeyServiceType",
    "LedgerContext",
    "LedgerLog",
    "LedgerOffloader",
    "LedgerPlan",
    "LedgerPolicy",
    "LedgerState",
    "Leftover",
    "Listed",
    "LocalLedger",
    "LogCursors",
    "ManagedLedger",
    "ManagedLedgers",
    "Manifest",
    "MemoryHandle",
    "MemoryLog",
    "Messages",
    "Misuse",
    "NoSpace",
    "NoSuchKey",
    "NotFound",
    "NotOffloaded",
    "ObjectStore",
    "ObjectStoreOffloader",
    "OffloadError",
    "OpeningContext",
    "OutcomeUnknown",
    "PartOffset",
    "Plugins",
    "Position",
    "ReadHandle",
    "ReadPriority",
    "Receipt",
    "Record",
    "RecordLimits",
    "RecordService",
    "RecordStore",
    "RequestLimits",
    "Retention",
    "RootsLost",
    "Session",
    "Snapshot",
    "Source",
    "SourceStream",
    "SourceType",
    "Span",
    "StoreCursors",
    "StoreDenied",
    "StoreMetrics",
    "StreamDeleted",
    "StreamPart",
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
    "TieredReader",
    "TrimReport",
    "TryAgain",
    "UnsupportedFormat",
    "Upload",
    "VerifyLevel",
    "VerifyReport",
    "WhenFull",
    "build_chunk",
    "delete_stream",
    "hookimpl",
    "open",
    "open_source",
    "open_tier",
    "parse_position",
    "sweep",
    "sync",
    "trim",
    "verify",
]

_HOMES = {
    "Absent": "offload.ground.errors",
    "AlreadyExists": "offload.ground.errors",
    "AlreadyRunning": "offload.ground.errors",
    "AnchorLost": "offload.ground.errors",
    "BeingRebuilt": "offload.ground.errors",
    "AtEdge": "offload.model.position",
    "AtOffset": "offload.model.position",
    "AtTime": "offload.model.position",
    "Attempt": "offload.model.attempt",
    "Backend": "offload.contracts.plugin",
    "Blocking": "offload.opening.blocking",
    "Body": "offload.contracts.store",
    "Capabilities": "offload.contracts.capabilities",
    "Catalogue": "offload.contracts.catalogue",
    "Command": "offload.contracts.plugin",
    "CommittedStream": "offload.model.manifest",
    "Committer": "offload.contracts.offloader",
    "Compression": "offload.model.compression",
    "Conflict": "offload.ground.errors",
    "Corrupt": "offload.ground.errors",
    "Decoded": "offload.contracts.decoder",
    "Decoder": "offload.contracts.decoder",
    "DecoderType": "offload.contracts.plugin",
    "Denied": "offload.ground.errors",
    "Dispatcher": "offload.follow.dispatcher",
    "Diverged": "offload.ground.errors",
    "Durability": "offload.log.folder_log",
    "Entry": "offload.model.entry",
    "EntryLedger": "offload.contracts.entries",
    "EntryLedgerStream": "offload.entries.ledger",
    "EntryRun": "offload.contracts.entries",
    "EntryView": "offload.contracts.catalogue",
    "Env": "offload.ground.env",
    "Fenced": "offload.ground.errors",
    "FolderLog": "offload.log.folder_log",
    "FollowRules": "offload.follow.rules",
    "FollowState": "offload.follow.rules",
    "FollowStatus": "offload.follow.rules",
    "Follower": "offload.follow.follower",
    "Job": "offload.write.job",
    "KeyService": "offload.contracts.keys",
    "KeyServiceType": "offload.contracts.plugin",
    "LedgerContext": "offload.managed.contexts",
    "LedgerLog": "offload.contracts.log",
    "LedgerOffloader": "offload.contracts.offloader",
    "LedgerPlan": "offload.managed.rules",
    "LedgerPolicy": "offload.managed.policy",
    "LedgerState": "offload.managed.ledger",
    "Leftover": "offload.model.attempt",
    "Listed": "offload.contracts.store",
    "LocalLedger": "offload.contracts.log",
    "LogCursors": "offload.managed.cursors",
    "ManagedLedger": "offload.managed.ledger",
    "ManagedLedgers": "offload.managed.ledgers",
    "Manifest": "offload.model.manifest",
    "MemoryHandle": "offload.log.memory_handle",
    "MemoryLog": "offload.log.memory_log",
    "Messages": "offload.read.reader",
    "Misuse": "offload.ground.errors",
    "NoSpace": "offload.ground.errors",
    "NoSuchKey": "offload.ground.errors",
    "NotFound": "offload.ground.errors",
    "NotOffloaded": "offload.ground.errors",
    "ObjectStore": "offload.contracts.store",
    "ObjectStoreOffloader": "offload.native.offloader",
    "OffloadError": "offload.ground.errors",
    "OpeningContext": "offload.contracts.opening",
    "OutcomeUnknown": "offload.ground.errors",
    "PartOffset": "offload.model.position",
    "Plugins": "offload.opening.plugins",
    "Position": "offload.model.position",
    "ReadHandle": "offload.contracts.ledger",
    "ReadPriority": "offload.two_sides.choice",
    "Receipt": "offload.model.attempt",
    "Record": "offload.contracts.records",
    "RecordLimits": "offload.contracts.records",
    "RecordService": "offload.contracts.records",
    "RecordStore": "offload.store.records",
    "RequestLimits": "offload.contracts.opening",
    "Retention": "offload.upkeep.retention",
    "RootsLost": "offload.ground.errors",
    "Session": "offload.opening.session",
    "Snapshot": "offload.contracts.source",
    "Source": "offload.contracts.source",
    "SourceStream": "offload.contracts.source",
    "SourceType": "offload.contracts.plugin",
    "Span": "offload.contracts.store",
    "StoreCursors": "offload.managed.cursors",
    "StoreDenied": "offload.ground.errors",
    "StoreMetrics": "offload.contracts.metrics",
    "StreamDeleted": "offload.ground.errors",
    "StreamPart": "offload.model.part",
    "StreamReader": "offload.read.reader",
    "StreamReport": "offload.copy.sync",
    "StreamView": "offload.contracts.catalogue",
    "StreamWriter": "offload.write.writer",
    "Suffix": "offload.contracts.store",
    "SweepReport": "offload.upkeep.sweep.report",
    "Sweeper": "offload.upkeep.sweep.tier",
    "Throttled": "offload.ground.errors",
    "TierOptions": "offload.native.offloader",
    "TierPlan": "offload.native.place",
    "TieredReader": "offload.two_sides.tiered",
    "TrimReport": "offload.upkeep.retention",
    "TryAgain": "offload.ground.errors",
    "UnsupportedFormat": "offload.ground.errors",
    "Upload": "offload.contracts.store",
    "VerifyLevel": "offload.upkeep.verify.report",
    "VerifyReport": "offload.upkeep.verify.report",
    "WhenFull": "offload.managed.policy",
    "build_chunk": "offload.formats.chunk_writer",
    "delete_stream": "offload.upkeep.retention",
    "hookimpl": "offload.contracts.plugin",
    "open": "offload.opening.by_url",
    "open_source": "offload.opening.by_url",
    "open_tier": "offload.opening.by_url",
    "parse_position": "offload.model.position",
    "sweep": "offload.upkeep.sweep.tier",
    "sync": "offload.copy.sync",
    "trim": "offload.upkeep.retention",
    "verify": "offload.upkeep.verify.tier",
}
"""The module that defines each public name. A test compares this table with the imports above."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
