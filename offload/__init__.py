"""ledger-offload: sealed log data moves to any object store, and reads back as if it had never left.

Embedders begin with `open_tier`, `StreamWriter` and `StreamReader`; authors of backends with
`ObjectStore` or `LedgerOffloader`; authors of sources with `Source`. `Blocking` serves threads.
"""

from offload.blocking import Blocking
from offload.env import Env
from offload.errors import (
    AlreadyExists,
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
    StreamDeleted,
    TryAgain,
    UnsupportedFormat,
)
from offload.formats.manifest import Entry, Manifest
from offload.offloader import Attempt, LedgerOffloader, ReadHandle, Receipt
from offload.plugins import Plugins, hookimpl
from offload.position import AtOffset, AtTime, Place, Position, parse_position
from offload.source import Snapshot, Source, SourceStream
from offload.store.capabilities import Capabilities
from offload.store.port import Body, Listed, ObjectStore, Span, Suffix, Upload
from offload.tier.object_store_offloader import ObjectStoreOffloader, TierOptions
from offload.tier.opening import open_source, open_tier
from offload.tier.reader import Messages, StreamReader
from offload.tier.stream_writer import StreamWriter
from offload.tier.sync import StreamReport, sync
from offload.tier.verify import VerifyReport, verify

__all__ = [
    "AlreadyExists",
    "AtOffset",
    "AtTime",
    "Attempt",
    "Blocking",
    "Body",
    "Capabilities",
    "Conflict",
    "Corrupt",
    "Denied",
    "Diverged",
    "Entry",
    "Env",
    "Fenced",
    "LedgerOffloader",
    "Listed",
    "Manifest",
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
    "Snapshot",
    "Source",
    "SourceStream",
    "Span",
    "StreamDeleted",
    "StreamReader",
    "StreamReport",
    "StreamWriter",
    "Suffix",
    "TierOptions",
    "TryAgain",
    "UnsupportedFormat",
    "Upload",
    "VerifyReport",
    "hookimpl",
    "open_source",
    "open_tier",
    "parse_position",
    "sync",
    "verify",
]
