"""The changes of a job: a guest that announces, appends and replaces under attempts of its own.

They need the incarnation that the job began on, and name or end only attempts that run for the job.

**Replacing.** One commit puts copies in the place of committed fragments, for compaction. Readers, writers
and trims rest on what is committed, so a replacement changes as little as can be: the same offsets, the same
records, messages and chunk bytes, of the same ledger. Only how they are cut into objects changes, and with it
the totals `fragments` and `stored_size_bytes`.

    stopped              left behind                                 cured by
    before the commit    copies of attempts that run                 `abort` of the job
    after it             fragments, and groups, that no root names   the sweep

Where the fragments stand in a group, the way down to them is made anew (`commit.grouping.edited`), for groups
never change. Invariants: the base names exactly the fragments that were copied, next to each other in one
run; the copies' attempts run for this job, as copies, begin with the same eight bytes as all that they copy,
and end with the commit; the newest fragment stays.
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
from offload.errors import Conflict, Misuse, StreamDeleted
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

__all__ = ["Announce", "Contribute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfJob(Change):
    """A change by a job: a guest that announces and appends attempts of its own, and never holds the stream.

    It is for one incarnation. A deletion ends the job, whatever is born under the name since.
    """

    job: UUID
    incarnation: UUID

    def own(self, manifest: Manifest, kind: AttemptKind = AttemptKind.JOB) -> set[UUID]:
        """The job's attempts of this kind that run."""
        return attempts_for(manifest, self.job, kind)

    def begun_on(self, base: Manifest | None) -> Manifest:
        """`base`, where it is of the incarnation that the job began on. Raises otherwise."""
        base = existing(base)
        if base.incarnation != self.incarnation:
            raise StreamDeleted(f"stream {base.stream!r} was deleted and begun anew", epoch=base.epoch)
        return base


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce(OfJob):
    """Announce attempts of a job, each a fresh UUID and its ledger, before the first of their uploads.

    A UUID is used once: an attempt that was dropped is condemned for ever. Claims leave these attempts alone.
    Those of kind *copy* are for what takes the place of committed fragments, all others for what is appended.
    """

    attempts: Sequence[tuple[UUID, int]]
    kind: AttemptKind = AttemptKind.JOB
    on_version: int | None = None
    """On no other version than this one, if it is given. Workers of a job that find their attempts missing
    announce them so: one of them does it for all, and the others get `Conflict` and look again."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self.begun_on(base)
        if self.on_version is not None and base.version != self.on_version:
            raise Conflict(f"stream {base.stream!r} is at version {base.version}, beyond {self.on_version}")
        announced = [
            Running(attempt=attempt, ledger_id=ledger_id, epoch=base.epoch, writer=self.job, kind=self.kind)
            for attempt, ledger_id in self.attempts
        ]
        return announce(base, announced)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`. As with `Prepare`, one that runs speaks for those dropped since."""
        own = self.own(self.begun_on(tree.manifest), self.kind)
        return in_if(not self.attempts or any(attempt in own for attempt, _ in self.attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribute(OfJob):
    """Name fragments that a job uploaded, and drop the attempts that are finished with them.

    Only attempts that run as this job's are named or dropped. If another appended first, the entries do not
    continue the stream any more, and that is a `Conflict`.
    """

    entries: Sequence[Entry]
    finished: frozenset[UUID] = frozenset()

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self.begun_on(base)
        own = self.own(base)
        for entry in self.entries:
            if entry.attempt not in own:
                raise Conflict(f"stream {base.stream!r}: attempt {entry.attempt} runs not for job {self.job}")
        return without(append_entries(base, self.entries), own & self.finished)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        own = self.own(self.begun_on(tree.manifest))
        return await verdict_on_entries(tree, self.entries, over=not own & self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(OfJob):
    """Name `new` where `old` is named, and drop the attempts of `new`, all in one commit.

    Raises `Misuse` if the two cannot be the same records. It is a `Conflict` if other fragments than `old`
    hold these offsets, or if somebody aborted the copies.
    """

    old: Sequence[Entry]
    new: Sequence[Entry]

    def __post_init__(self) -> None:
        for entries in (self.old, self.new):
            if not entries or any(one.next_offset != two.first_offset for one, two in pairwise(entries)):
                raise Misuse("what is replaced, and what replaces it, are fragments that touch each other")
        if len(self.new) > len(self.old):
            raise Misuse(f"{len(self.new)} fragments in the place of {len(self.old)}: a group could burst")
        if not all(entry.copied for entry in self.new):
            raise Misuse("only copies, uploaded under attempts of kind copy, take the place of fragments")
        if len({token_of(entry.attempt) for entry in (*self.old, *self.new)}) > 1:
            raise Misuse("copies under another token than what they copy")
        said, found = _content_of(self.old), _content_of(self.new)
        if said != found or len({entry.ledger_id for entry in (*self.old, *self.new)}) > 1:
            raise Misuse(f"copies of one ledger with {found} in the place of {said}")

    @property
    def attempts(self) -> frozenset[UUID]:
        """Those of the copies."""
        return frozenset(entry.attempt for entry in self.new)

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`. `edit` checks that `base` names `old`."""
        base = self.begun_on(base)
        own = self.own(base, AttemptKind.COPY)
        begin, end = self.old[0].first_offset, self.old[-1].next_offset
        if begin < base.first_offset:
            raise Conflict(f"stream {base.stream!r}: offsets below {base.first_offset} were trimmed")
        if end >= base.next_offset:
            raise Conflict(f"stream {base.stream!r} ends at {base.next_offset}: its newest fragment stays")
        for attempt in self.attempts - own:
            raise Conflict(f"stream {base.stream!r}: attempt {attempt} runs not as a copy for job {self.job}")
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
        """`run` with the copies in it. Raises `Conflict` unless `run` names `old`, one behind the other."""
        at = int(np.searchsorted(run["first_offset"], np.uint64(self.old[0].first_offset)))
        end = at + len(self.old)
        if entries_of_rows(run[at:end]) != list(self.old):
            offsets = f"[{self.old[0].first_offset}, {self.old[-1].next_offset})"
            raise Conflict(f"other fragments hold {offsets} now, or not all of them stand in one group")
        rows = rows_of_entries(self.new, after_ledger=None if run["ledgers"][at] else self.new[0].ledger_id)
        return joined_entries(run[:at], rows, run[end:])


def _content_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """What entries tell of the records in their fragments, however those are cut."""
    return {
        "first_offset": entries[0].first_offset,
        "next_offset": entries[-1].next_offset,
        "messages": sum(entry.messages for entry in entries),
        "data_size_bytes": sum(entry.data_size_bytes for entry in entries),
        "first_timestamp_ms": min(entry.first_timestamp_ms for entry in entries),
        "last_timestamp_ms": max(entry.last_timestamp_ms for entry in entries),
    }
