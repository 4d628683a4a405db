"""The changes of a job: a guest that announces, appends and replaces under attempts of its own.

They need the incarnation that the job began on, and name or end only attempts that run for the job.

**Replacing.** One commit puts copies in the place of committed fragments, for compaction. Readers, writers
and trims rely on committed data, so a replacement changes as little as possible: the offsets, records,
messages, chunk bytes and the ledger stay the same. Only the cut into objects changes, and with it the
totals `fragments` and `stored_size_bytes`.

    stopped              left behind                                 cured by
    before the commit    copies of attempts that run                 `abort` of the job
    after it             fragments, and groups, that no root names   the sweep

Groups never change, so if the fragments are in a group, new groups replace those on the path to them
(`commit.grouping.edited`).

Invariants: the base names exactly the fragments that were copied, next to each other in one run; the copies'
attempts run for this job, as copies, and end with the commit; their UUIDs begin with the same eight bytes
as the UUIDs of the attempts that they copy; the newest fragment stays, unless it is repaired.
Rejected: deleting the old objects here, since readers may hold them (docs/adr/0015-replacing-fragments.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import numpy as np

from offload.commit.applying import (
    announce,
    append_entries,
    attempts_for,
    existing,
    in_if,
    verdict_on_entries,
    without,
)
from offload.contracts.change import Change, CommitVerdict, Edit
from offload.ground.errors import Conflict, Misuse, StreamDeleted
from offload.model.entry import (
    Entries,
    Entry,
    entries_of_rows,
    joined_entries,
    rows_of_entries,
)
from offload.model.manifest import AttemptKind, Manifest, Running
from offload.model.tokens import token_of
from offload.model.tree import Tree

__all__ = ["Announce", "Contribute", "Replace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfJob(Change):
    """A change by a job: a guest that announces and appends attempts of its own, and never holds the stream.

    It is for one incarnation. A deletion ends the job, even if a stream of the same name is born later.
    """

    job: UUID
    incarnation: UUID

    def own(self, manifest: Manifest, kind: AttemptKind = AttemptKind.JOB) -> set[UUID]:
        """Return the job's attempts of this kind that run."""
        return attempts_for(manifest, self.job, kind)

    def begun_on(self, base: Manifest | None) -> Manifest:
        """Return `base` if it is live and of the incarnation that the job began on.

        Raises `StreamDeleted` if it is of another incarnation, and otherwise as `existing` does.
        """
        base = existing(base)
        # The same offsets hold other records in another life of the stream. A task that outlives its job must
        # not append to the stream that somebody began under the same name.
        if base.incarnation != self.incarnation:
            raise StreamDeleted(f"stream {base.stream!r} was deleted and begun again", epoch=base.epoch)
        return base


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce(OfJob):
    """Announce attempts of a job, each a fresh UUID and its ledger, before the first of their uploads.

    A UUID is used once: an attempt that was dropped is condemned for ever. Claims leave these attempts alone.
    Attempts of kind *copy* are for fragments that replace committed ones, all others for appended fragments.
    """

    attempts: Sequence[tuple[UUID, int]]
    kind: AttemptKind = AttemptKind.JOB
    on_version: int | None = None
    """The only version on which the change may be applied, if given. Workers of a job use it when they find
    their attempts missing: one of them announces for all, and the others get `Conflict` and look again."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self.begun_on(base)
        # Several workers may find their attempts missing at once. The first commit announces for all of them,
        # and the others meet a newer version here: they look again, and find their attempts running.
        if self.on_version is not None and base.version != self.on_version:
            raise Conflict(f"stream {base.stream!r} is at version {base.version}, beyond {self.on_version}")
        announced = [
            Running(attempt=attempt, ledger_id=ledger_id, epoch=base.epoch, writer=self.job, kind=self.kind)
            for attempt, ledger_id in self.attempts
        ]
        return announce(base, announced)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        # All were announced by one commit. Some may have been dropped since, so one that runs proves it.
        own = self.own(self.begun_on(tree.manifest), self.kind)
        return in_if(not self.attempts or any(attempt in own for attempt, _ in self.attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribute(OfJob):
    """Name fragments that a job uploaded, and drop the attempts that are finished with them.

    Only attempts that run as this job's are named or dropped. If another author appended first, the entries
    no longer continue the stream, and the change is a `Conflict`.
    """

    entries: Sequence[Entry]
    finished: frozenset[UUID] = frozenset()

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self.begun_on(base)
        own = self.own(base)
        # Objects of an attempt that does not run may be condemned: a sweep may have judged them already and
        # delete them after this commit. `own` leaves out copies too, whose offsets are committed already.
        for entry in self.entries:
            if entry.attempt not in own:
                raise Conflict(
                    f"stream {base.stream!r}: attempt {entry.attempt} does not run for job {self.job}"
                )
        return without(append_entries(base, self.entries), own & self.finished)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        own = self.own(self.begun_on(tree.manifest))
        return await verdict_on_entries(tree, self.entries, over=not own & self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(OfJob):
    """Name `new` in the place of `old`, and drop the attempts of `new`, all in one commit.

    Raises `Misuse` if the two cannot be the same records. The change is a `Conflict` if other fragments than
    `old` hold these offsets, or if somebody aborted the copies.
    """

    old: Sequence[Entry]
    new: Sequence[Entry]
    may_be_newest: bool = False
    """True for a repair: a damaged fragment cannot stay, also if it is the newest."""

    def __post_init__(self) -> None:
        for entries in (self.old, self.new):
            if not entries or any(one.next_offset != two.first_offset for one, two in pairwise(entries)):
                raise Misuse("a replacement needs old and new fragments, each without holes between them")
        # A group that is edited has a fixed maximum size, and its new fragments take the old ones' rows.
        if len(self.new) > len(self.old):
            more = f"{len(self.new)} fragments in the place of {len(self.old)}"
            raise Misuse(f"{more}: the group would exceed its maximum size")
        # A writer whose append is in doubt may find a copy at its offset, and must see that it is a copy.
        if not all(entry.copied for entry in self.new):
            raise Misuse("only copies, uploaded under attempts of kind copy, may replace fragments")
        # A repeated batch is recognized by its token. If the copy lost it, the batch would be appended twice.
        if len({token_of(entry.attempt) for entry in (*self.old, *self.new)}) > 1:
            raise Misuse("the copies are under another token than the fragments that they copy")
        # An entry names one ledger, and totals count ledgers, so a copy must not join two of them.
        said, found = _content_of(self.old), _content_of(self.new)
        if said != found or len({entry.ledger_id for entry in (*self.old, *self.new)}) > 1:
            raise Misuse(f"the copies are of other records, or of several ledgers: {found}, not {said}")

    @property
    def attempts(self) -> frozenset[UUID]:
        """The attempts of the copies."""
        return frozenset(entry.attempt for entry in self.new)

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`. `edit` checks that `base` names `old`."""
        base = self.begun_on(base)
        own = self.own(base, AttemptKind.COPY)
        begin, end = self.old[0].first_offset, self.old[-1].next_offset
        # A group that was trimmed in part still names the dead fragments below the first offset. A copy of
        # them would overlap the stream's beginning.
        if begin < base.first_offset:
            raise Conflict(f"stream {base.stream!r}: offsets below {base.first_offset} were trimmed")
        # If the newest fragment could be replaced, each append could be followed by another copy of it. Also,
        # a writer in doubt looks for its last fragment: while that stays, most doubts can be decided.
        if end >= base.next_offset and not self.may_be_newest:
            raise Conflict(f"stream {base.stream!r} ends at {base.next_offset}: its newest fragment stays")
        # If the attempts do not run, a sweep may have condemned the copies, and delete them after the commit.
        for attempt in self.attempts - own:
            what = f"attempt {attempt} does not run as a copy for job {self.job}"
            raise Conflict(f"stream {base.stream!r}: {what}")
        size_bytes = sum(e.stored_size_bytes for e in self.new) - sum(e.stored_size_bytes for e in self.old)
        return replace(
            without(base, self.attempts),
            stored_size_bytes=base.stored_size_bytes + size_bytes,
            fragments=base.fragments + len(self.new) - len(self.old),
        )

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        own = self.own(self.begun_on(tree.manifest), AttemptKind.COPY)
        return await verdict_on_entries(tree, self.new, over=not own & self.attempts)

    @property
    def edit(self) -> Edit:
        """See `Change.edit`."""
        return Edit(self.old[0].first_offset, self.replaced)

    def replaced(self, run: Entries) -> Entries:
        """Return `run` with the copies in it. Raises `Conflict` unless `run` names `old` without a gap."""
        # Whole entries are compared, not only offsets. Otherwise, after a rival compaction, fragments that
        # are gone already would be subtracted from the totals again.
        at = int(np.searchsorted(run["first_offset"], np.uint64(self.old[0].first_offset)))
        end = at + len(self.old)
        if entries_of_rows(run[at:end]) != list(self.old):
            offsets = f"[{self.old[0].first_offset}, {self.old[-1].next_offset})"
            raise Conflict(f"other fragments hold {offsets} now, or they are not all in one group")
        # The first copy counts as the beginning of its ledger exactly if the first old fragment did.
        rows = rows_of_entries(self.new, after_ledger=None if run["ledgers"][at] else self.new[0].ledger_id)
        return joined_entries(run[:at], rows, run[end:])


def _content_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return what entries say of their records, apart from the cut into fragments."""
    return {
        "first_offset": entries[0].first_offset,
        "next_offset": entries[-1].next_offset,
        "messages": sum(entry.messages for entry in entries),
        "data_size_bytes": sum(entry.data_size_bytes for entry in entries),
        "first_timestamp_ms": min(entry.first_timestamp_ms for entry in entries),
        "last_timestamp_ms": max(entry.last_timestamp_ms for entry in entries),
    }
