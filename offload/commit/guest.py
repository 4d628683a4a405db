"""The changes that anyone may make without holding the stream: abort, trim, delete.

Invariant: a guest deletes no object. Its commit only makes objects unused, and the sweep deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np

from offload.commit.applying import existing, in_if, without
from offload.contracts.change import Change, CommitVerdict
from offload.ground.errors import Conflict, Fenced, Misuse, StreamDeleted
from offload.model.entry import NO_ENTRIES, TOTALS
from offload.model.manifest import NOBODY, Manifest, StreamState
from offload.model.tree import Tree

__all__ = ["Abort", "Delete", "Trim", "TrimmedTotals", "entries_before"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Change):
    """Drop running attempts. Their uploads are condemned: no later commit can name them.

    Anyone may do this without holding the stream. If an attempt's author is still alive, its append is
    refused, and nothing breaks.
    """

    attempts: frozenset[UUID]

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        if base is None:
            raise Misuse("a stream that was never committed runs no attempts")
        if base.state is StreamState.DELETED:
            raise StreamDeleted(f"stream {base.stream!r} was deleted", epoch=base.epoch)
        return without(base, self.attempts)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        return in_if(not any(tree.manifest.runs(attempt) for attempt in self.attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimmedTotals:
    """The totals of a prefix of the stream, which a trim subtracts from the manifest's totals."""

    messages: int
    data_size_bytes: int
    stored_size_bytes: int
    fragments: int
    ledgers: int
    """The ledgers that go as a whole. A ledger that keeps a fragment is not counted here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trim(Change):
    """Raise the first offset, and drop every fragment that ends at or below it. Only whole fragments go.

    A guest may do this, without holding the stream. `dropped` has the totals of the fragments in [`since`,
    `first_offset`). They were counted on one manifest, and the change is a `Conflict` unless they still hold:

    - the incarnation is the same, and the stream begins at `since`;
    - the root's entries over these offsets are those that were `counted`. Other entries mean that fragments
      were replaced, or only that they moved into a group;
    - with `is_all`, the stream ends at `first_offset`: a ledger that continues behind it still counts.

    After a `Conflict`, count again on the newest manifest.
    """

    incarnation: UUID
    since: int
    first_offset: int
    dropped: TrimmedTotals
    counted: bytes
    """The result of `entries_before` for the manifest on which `dropped` was counted."""
    is_all: bool = False
    """True if that manifest ended at `first_offset`. The last ledger may have continued since."""
    writer: UUID | None = None
    """The writer that must hold the stream, because it alone knows what may go. None: whoever holds it."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = existing(base)
        if self.writer is not None and base.writer != self.writer:
            raise Fenced(
                f"stream {base.stream!r} has another writer, of epoch {base.epoch}", epoch=base.epoch
            )
        # Another trim has dropped some of the same fragments, or the stream has another life. Without this
        # check, fragments would be subtracted twice, and later trims would be refused.
        if base.incarnation != self.incarnation or base.first_offset != self.since:
            moved = f"begins at offset {base.first_offset} now"
            raise Conflict(f"stream {base.stream!r} {moved}; plan the trim again")
        # The last ledger was counted as gone. If more of it was appended since, it is still there.
        if self.is_all and base.next_offset != self.first_offset:
            moved = f"ends at offset {base.next_offset} now"
            raise Conflict(f"stream {base.stream!r} {moved}; plan the trim again")
        if not self.since < self.first_offset <= base.next_offset:
            raise Misuse(f"offset {self.first_offset} is not between {self.since} and {base.next_offset}")
        # A compaction may have turned the fragments that were counted into fewer, larger ones. The trim would
        # subtract fragments that no longer exist.
        if entries_before(base, self.first_offset) != self.counted:
            what = "fragments were replaced or grouped since the trim was planned"
            raise Conflict(f"stream {base.stream!r}: {what}; plan the trim again")
        # A group that reaches beyond the new first offset stays, and is not rewritten. `first_offset` says
        # which of its fragments are live.
        ends = base.entries["first_offset"] + base.entries["records"]
        entries = base.entries[ends > np.uint64(self.first_offset)]
        return replace(
            base,
            first_offset=self.first_offset,
            entries=entries,
            **{total: getattr(base, total) - getattr(self.dropped, total) for total in (*TOTALS, "ledgers")},
        )

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        manifest = tree.manifest
        # A tombstone begins at its end, so it would pass for a trimmed stream.
        if manifest.state is StreamState.DELETED:
            existing(manifest)
        return in_if(manifest.incarnation == self.incarnation and manifest.first_offset >= self.first_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Change):
    """Replace the stream by a tombstone, which names nothing, runs nothing, and fences every writer.

    Anyone may do this. The deletion is for one incarnation: a stream of the same name that was born since
    stays. With `unused_by`, the stream is deleted only if nobody but these writers and jobs has used it. It
    is a `Conflict` if another writer holds the stream, something was committed, or another's attempt runs.
    """

    incarnation: UUID
    unused_by: frozenset[UUID] = frozenset()

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = existing(base)
        # Checked on each base that the change meets: a rival may begin to use the stream between the caller's
        # look and the commit.
        users = {base.writer, *(running.writer for running in base.running)}
        if self.unused_by and (base.next_offset != base.first_offset or not users <= self.unused_by):
            raise Conflict(f"stream {base.stream!r} is in use, and stays")
        none: dict[str, Any] = dict.fromkeys((*TOTALS, "ledgers", "last_ledger_id"), 0)
        # The tombstone keeps version, epoch and end, and a rebirth counts on from them. If the numbers began
        # again, a writer that had loaded an old root could bring the deleted history back.
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
        # Another incarnation means that ours was deleted before, perhaps by this very change.
        return in_if(manifest.state is StreamState.DELETED or manifest.incarnation != self.incarnation)


def entries_before(manifest: Manifest, offset: int) -> bytes:
    """Return the root's entries that begin before this offset, in their stored form."""
    rows = manifest.entries
    return bytes(rows[rows["first_offset"] < np.uint64(offset)].tobytes())
