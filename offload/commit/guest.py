"""The changes that anyone may make without holding the stream: abort, trim, delete."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np

from offload.commit.applying import existing, in_if, without
from offload.contracts.change import Change, CommitVerdict
from offload.errors import Conflict, Misuse, StreamDeleted
from offload.model.entry import NO_ENTRIES, TOTALS
from offload.model.manifest import NOBODY, Manifest, StreamState
from offload.model.tree import Tree

__all__ = ["Abort", "Delete", "Trim", "TrimmedTotals", "entries_before"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Change):
    """Drop running attempts. What they uploaded is condemned: no later commit can name it.

    Anyone may do this, also a guest that does not hold the stream: the append of an attempt that
    lives after all is refused, and nothing breaks.
    """

    attempts: frozenset[UUID]

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        if base is None:
            raise Misuse("a stream that was never committed runs no attempts")
        if base.state is StreamState.DELETED:
            raise StreamDeleted(f"stream {base.stream!r} was deleted in epoch {base.epoch}", epoch=base.epoch)
        return without(base, self.attempts)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        return in_if(not any(tree.manifest.runs(attempt) for attempt in self.attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedTotals:
    """The fragments of a prefix, counted: what a trim takes off the totals."""

    messages: int
    data_size_bytes: int
    stored_size_bytes: int
    fragments: int
    ledgers: int
    """Those that are gone whole: one of which a fragment stays still counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim(Change):
    """Raise the first offset: every fragment that ends at or below it is dropped. Whole fragments only.

    A guest may do this, without holding the stream. `dropped` is what the fragments in [`since`,
    `first_offset`) are together; it holds for the incarnation, for as long as `since` is where the stream
    begins, and for as long as the root's entries over these offsets are those that were `counted`: others
    tell that fragments were replaced, or no more than that they moved into a group. With `is_all`, it holds
    for as long as the stream ends at `first_offset`: a ledger that goes on behind it still counts. Otherwise
    `Conflict`: count anew.
    """

    incarnation: UUID
    since: int
    first_offset: int
    dropped: TrimmedTotals
    counted: bytes
    """What `entries_before` said of the manifest that it was counted on."""
    is_all: bool = False
    """Counted on a manifest that ended at `first_offset`: whether the last ledger goes on was not known."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = existing(base)
        if base.incarnation != self.incarnation or base.first_offset != self.since:
            raise Conflict(f"stream {base.stream!r} begins at offset {base.first_offset} now; count anew")
        if self.is_all and base.next_offset != self.first_offset:
            raise Conflict(f"stream {base.stream!r} ends at offset {base.next_offset} now; count anew")
        if not self.since < self.first_offset <= base.next_offset:
            raise Misuse(f"offset {self.first_offset} is not within {self.since} and {base.next_offset}")
        if entries_before(base, self.first_offset) != self.counted:
            raise Conflict(f"stream {base.stream!r}: other entries lead to what goes now; count anew")
        ends = base.entries["first_offset"] + base.entries["records"]
        entries = base.entries[ends > np.uint64(self.first_offset)]
        return replace(
            base,
            first_offset=self.first_offset,
            entries=entries,
            **{total: getattr(base, total) - getattr(self.dropped, total) for total in (*TOTALS, "ledgers")},
        )

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`. A tombstone begins at its end, and would pass for a trimmed stream."""
        manifest = tree.manifest
        if manifest.state is StreamState.DELETED:
            existing(manifest)
        return in_if(manifest.incarnation == self.incarnation and manifest.first_offset >= self.first_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Change):
    """Put a tombstone in the stream's place: it names nothing, runs nothing, and fences every writer.

    Anyone may do this. It is for one incarnation: a stream of the same name that was born since stays.
    With `unused_by`, only a stream is deleted that nobody has used but these writers and jobs: another holds
    it, something was committed, or another's attempt runs, and it is a `Conflict`.
    """

    incarnation: UUID
    unused_by: frozenset[UUID] = frozenset()

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = existing(base)
        users = {base.writer, *(running.writer for running in base.running)}
        if self.unused_by and (base.next_offset != base.first_offset or not users <= self.unused_by):
            raise Conflict(f"stream {base.stream!r} is in use, and stays")
        none: dict[str, Any] = dict.fromkeys((*TOTALS, "ledgers", "last_ledger_id"), 0)
        return replace(
            base,
            state=StreamState.DELETED,
            writer=NOBODY,
            epoch=base.epoch + 1,
            first_offset=base.next_offset,
            running=(),
            entries=NO_ENTRIES,
            **none,
        )

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        manifest = tree.manifest
        return in_if(manifest.state is StreamState.DELETED or manifest.incarnation != self.incarnation)


def entries_before(manifest: Manifest, offset: int) -> bytes:
    """The root's entries, as stored, of all that begins before this offset."""
    rows = manifest.entries
    return bytes(rows[rows["first_offset"] < np.uint64(offset)].tobytes())
