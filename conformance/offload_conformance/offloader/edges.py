"""The edges of the contract of offloaders: a row for each argument, each second call, each field of a result.

`offload_conformance.edges` says how to read the tables. Offsets and times may be any integers: what nothing
holds is not found, and no number of a query is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final
from uuid import UUID

from offload.ground.errors import (
    Conflict,
    Denied,
    Fenced,
    Misuse,
    NoSpace,
    NotOffloaded,
    OutcomeUnknown,
    StreamDeleted,
    Throttled,
    TryAgain,
    UnsupportedFormat,
)
from offload.model.attempt import Leftover, Receipt
from offload.model.chunk_table import CHUNK_TABLE, WINDOW_SIZE_BYTES
from offload.model.entry import ENTRY_DTYPE, Entry
from offload.model.manifest import CommittedStream, Manifest, Running
from offload.model.part import StreamPart
from offload_conformance.edges import NEGATIVE, NUMBERS, ArgumentKind

# Names at their edges.

TWINS: Final = (
    ("orders", "Orders"),
    ("orders", "orders/eu"),
    ("orders", "orders2"),
    ("orders", "orders."),
    ("orders", " orders "),
    ("a_b", "axb"),
    ("a%b", "a%25b"),
    ("a+b", "a b"),
    ("a*", "ab"),
    ("a?b", "a"),
    ("a#b", "a&b"),
    ("a:b", "a;b"),
    ("a\nb", "a\r\nb"),
    ("a\tb", "a\x0bb"),
    ("a\0b", "a\0c"),
    ("\ufeffa", "a\u200b"),
    ("0", "00"),
    ("1e1", "10"),
    ("-1", "+1"),
    ("null", "None"),
    ("true", "True"),
    ("con", "con.txt"),
    (".", ".."),
    ("~", "~root"),
    ("a';--", "a"),
    ("it's", 'it"s'),
    ("<a>", "&lt;a&gt;"),
    ("{0}", "${a}"),
    ("caf\u00e9", "cafe\u0301"),
    ("ﬁ", "fi"),
    ("ß", "ss"),
    ("İ", "i̇"),
    ("日本語", "日本"),
    ("\uffee", "😀"),
    ("é" * 127 + "a", "é" * 127 + "b"),
    ("x" * 255 + "a", "x" * 255 + "b"),
    ("x" * 1000 + "a", "x" * 1000 + "b"),
    ("/", "//"),
    ("\\", "\\\\"),
)
"""Names of streams that a file system, a pattern, a URL, SQL or a column that cuts takes for one name."""

_OF_TYPES: Final = (
    *(each.name for kind in (Entry, Manifest, Running, Receipt, Leftover) for each in fields(kind)),
    *(*(CHUNK_TABLE.names or ()), *(ENTRY_DTYPE.names or ())),
)
_OF_BACKENDS: Final = (
    *(
        "uid",
        "attempt_uid",
        "attempt_id",
        "ledger",
        "id",
        "_id",
        "rowid",
        "oid",
        "pk",
        "key",
        "name",
        "value",
    ),
    *("data", "body", "raw", "payload", "content", "chunk", "chunks", "blob", "path", "url", "hash"),
    *("metadata", "extra_metadata", "extra", "created", "created_at", "updated_at", "started_ms", "done"),
    *("complete", "committed", "deleted", "finished", "status", "owner", "kind", "size", "count", "format"),
    *("STREAM", "ledgerId", "first-offset", "content-type", "content-length", "crc32c", "etag", "host"),
)
METADATA_NAMES: Final = tuple(dict.fromkeys((*_OF_TYPES, *_OF_BACKENDS)))
"""Names under which an offloader may keep facts of its own. If it merges the two, the caller's text wins."""

SOURCE_ERRORS: Final[tuple[type[Exception], ...]] = (
    *(Denied, NoSpace, NotOffloaded, Conflict, Fenced, StreamDeleted, OutcomeUnknown, Misuse),
    *(UnsupportedFormat, TryAgain, Throttled, PermissionError, FileNotFoundError, TimeoutError),
    *(ConnectionResetError, ValueError, KeyError, RuntimeError, MemoryError, EOFError, NotImplementedError),
)
"""Errors of a source, each made of a text. An offloader may take one of them for an error of its own."""


def neighbours(uid: UUID) -> dict[str, UUID]:
    """Return UUIDs that a key of some bits, a text or another order of bytes takes for this one."""
    raw = uid.bytes
    return {
        "itself": uid,
        **{f"bit {bit}": UUID(int=uid.int ^ 1 << bit) for bit in (0, 31, 32, 52, 63, 64, 65, 95, 96, 127)},
        "another version": UUID(int=uid.int ^ 0xF << 76),
        "another variant": UUID(int=uid.int ^ 3 << 62),
        "little-endian": UUID(bytes_le=raw),
        "backwards": UUID(bytes=raw[::-1]),
        "its halves exchanged": UUID(bytes=raw[8:] + raw[:8]),
    }


# The tables.

_MADE: Final = "the offloader itself makes it"


def _all(kind: type, clause: str) -> dict[str, tuple[str, ...]]:
    """Return the rows of a result that a clause compares by all its fields, as `same.assert_same` does."""
    return {f"{kind.__name__}.{each.name}": (clause,) for each in fields(kind)}


KINDS: Final[Mapping[str, ArgumentKind]] = {
    "stream: str": ArgumentKind(
        asked_by=("contract/streams_are_listed_by_name", "contract/streams_do_not_mix"),
        taken=tuple(dict.fromkeys(name for pair in TWINS for name in pair)),
    ),
    "Attempt.stream: str": ArgumentKind(asked_by=("contract/prepared_before_uploaded",)),
    "Attempt.ledger_id: int": ArgumentKind(
        asked_by=("contract/handles_tell_exact_numbers", "contract/prepared_before_uploaded"),
        taken=tuple(number for number in NUMBERS if number < 2**64),
    ),
    "Attempt.uid: UUID": ArgumentKind(
        asked_by=(
            "contract/numbers_that_nothing_has_find_nothing",
            "contract/attempts_are_disjoint_in_every_bit",
        ),
        refused={NotOffloaded: (UUID(int=0), UUID(int=2**128 - 1))},
    ),
    "offset: int": ArgumentKind(
        asked_by=("contract/numbers_that_nothing_has_find_nothing",), taken=(*NEGATIVE, *NUMBERS)
    ),
    "timestamp_ms: int": ArgumentKind(
        asked_by=("contract/numbers_that_nothing_has_find_nothing",), taken=(*NEGATIVE, *NUMBERS)
    ),
    "only: range | None": ArgumentKind(
        asked_by=(
            "contract/numbers_that_nothing_has_find_nothing",
            "contract/reads_are_verbatim_when_narrowed",
        ),
        taken=tuple(
            range(start, stop) for start in (*NEGATIVE, *NUMBERS) for stop in (0, 1, 6, 2**63, 2**64, 2**70)
        ),
    ),
    "where: str": ArgumentKind(
        asked_by=("contract/views_do_not_move", "contract/deletion_takes_what_was_trimmed")
    ),
    "extra_metadata: Mapping[str, str]": ArgumentKind(
        asked_by=("contract/extra_metadata_is_any_text",), taken=METADATA_NAMES
    ),
    "create: bool": ArgumentKind(asked_by=("contract/opening_is_idempotent",)),
    "change: Change": ArgumentKind(
        asked_by=("contract/commits_apply_every_change", "contract/commits_are_idempotent_for_every_change")
    ),
    "base: Manifest | None": ArgumentKind(
        asked_by=("contract/bases_may_be_old", "contract/commits_apply_every_change")
    ),
    "committer: UUID": ArgumentKind(asked_by=("contract/commits_apply_their_change",)),
    "handle: ReadHandle": ArgumentKind(
        asked_by=("contract/receipts_tell_what_was_copied", "contract/errors_of_the_source_keep_their_class"),
    ),
    "attempt: Attempt": ArgumentKind(asked_by=("contract/attempts_are_of_their_stream",)),
    "manifest: Manifest": ArgumentKind(asked_by=("contract/prepared_before_uploaded",)),
    "manifest: Manifest | None": ArgumentKind(asked_by=("contract/reads_go_by_the_manifest_given",)),
    "known: CommittedStream": ArgumentKind(asked_by=("contract/newer_views_tell_every_change",)),
    "committed: CommittedStream": ArgumentKind(asked_by=("contract/views_find_what_is_committed",)),
    "row: Entries": ArgumentKind(asked_by=("contract/views_do_not_move",)),
    "entry: Entry": ArgumentKind(asked_by=("contract/reads_are_verbatim_at_every_door",)),
    "rows: ChunkTable": ArgumentKind(asked_by=("contract/reads_are_verbatim",)),
    "then: ChunkTable": ArgumentKind(asked_by=("contract/reads_are_verbatim_at_every_door",)),
    "size_bytes: int": ArgumentKind(
        asked_by=(
            "contract/reads_are_verbatim_at_every_door",
            "contract/windows_are_the_same_at_every_call",
        ),
        taken=(1, 1000, 2**16, 1_000_000, WINDOW_SIZE_BYTES, 2**31, 2**32, 2**40),
    ),
    "entry: Entries": ArgumentKind(asked_by=("contract/streams_may_have_many_fragments",)),
    "part: StreamPart": ArgumentKind(asked_by=("contract/parts_may_be_begun_again",)),
    "before: Manifest | None": ArgumentKind(asked_by=("contract/parts_are_listed_in_order",)),
    "after: int": ArgumentKind(
        asked_by=("contract/parts_are_listed_in_order",),
        taken=(*NEGATIVE, *range(14), *(number for number in NUMBERS if number > 1)),
    ),
    "StreamPart.first: str": ArgumentKind(asked_by=("contract/parts_are_of_one_stream",)),
    "StreamPart.number: int": ArgumentKind(asked_by=("contract/parts_are_listed_in_order",)),
    "StreamPart.behind: bytes": ArgumentKind(asked_by=("contract/parts_are_listed_in_order",)),
    **{f"Entry.{each.name}: {each.type}": ArgumentKind(because=_MADE) for each in fields(Entry)},
    **{f"Manifest.{each.name}: {each.type}": ArgumentKind(because=_MADE) for each in fields(Manifest)},
    **{
        f"CommittedStream.{each.name}: {each.type}": ArgumentKind(because=_MADE)
        for each in fields(CommittedStream)
    },
}
"""Each argument of the contract, as its name and type, and each field of a dataclass that is an argument."""

AGAIN: Final[Mapping[str, tuple[str, ...]]] = {
    "Catalogue.open": ("contract/opening_is_idempotent",),
    "LedgerOffloader.open": ("contract/opening_is_idempotent", "contract/openings_may_come_at_once"),
    "Catalogue.aclose": ("contract/closing_is_idempotent",),
    "ReadHandle.aclose": ("contract/handles_are_closed_alone",),
    "Committer.commit_manifest": (
        "contract/commits_are_idempotent_for_every_change",
        "contract/commits_apply_every_change",
    ),
    "LedgerOffloader.offload": ("contract/attempts_are_disjoint", "contract/prepared_before_uploaded"),
    "LedgerOffloader.delete_offloaded": ("contract/deletion_is_idempotent",),
    "StreamView.open": ("contract/handles_are_closed_alone", "contract/reads_are_verbatim_at_every_door"),
    "Committer.begin_part": ("contract/parts_may_be_begun_again",),
}
"""Each method that changes something, and the clauses that call it a second time."""

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    **_all(Manifest, "contract/commits_apply_their_change"),
    **_all(Running, "contract/commits_apply_their_change"),
    **_all(Entry, "contract/receipts_tell_what_was_copied"),
    **_all(Leftover, "contract/leftovers_tell_their_last_chunk"),
    **_all(Receipt, "contract/extra_metadata_is_any_text"),
    **_all(StreamPart, "contract/parts_are_listed_in_order"),
}
"""Each field of a result, and the clauses that compare it with what they expect."""

READS: Final = frozenset(
    {
        *("streams", "view", "newer_view", "parts", "view_of", "walk", "find", "first_since", "names"),
        *("last_with_messages", "last_timestamp_ms", "name_of", "load_manifest", "load_group", "tree"),
        *("read_offloaded", "leftovers", "table", "read", "read_on", "windows", "unknown_sections"),
        "modified_ms",
    }
)
"""The methods that change nothing. A second call is one more call, as in many clauses."""
