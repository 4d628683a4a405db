"""The changes that a commit can make to a manifest.

Each change answers two questions about a manifest. `apply` says what the manifest becomes, or why the
change does not fit. `verdict` says whether the change is in already. This decides a commit whose reply was
lost: by content, never by the reply (docs/commit-protocol.md, step 1).

A commit that names fragments is in if its last entry is named, since all of them were committed at once. A
later trim may have dropped that entry, and a compaction may have put a copy in its place
(`manifest.replacing`). The manifest can then no longer show whether the change was in.

Invariant: `apply` raises, or returns a manifest that keeps every invariant of `formats.manifest`.
This module also decides who may commit. A writer's changes need the stream's present writer, and name or end
only attempts that run for it. A job's changes need the incarnation that the job began on, and name or end
only attempts that run for the job. Anyone may abort, trim and delete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any
from uuid import UUID, uuid5

import numpy as np

from offload.errors import Conflict, Fenced, Misuse, StreamDeleted
from offload.formats.manifest import (
    NO_ENTRIES,
    NOBODY,
    TOTALS,
    AttemptKind,
    Entry,
    Manifest,
    Running,
    State,
    encode_entries,
    exact_sum,
    joined,
)
from offload.manifest.tokens import token_of
from offload.manifest.tree import Edit, Tree


class Verdict(Enum):
    """Whether a change was committed, as far as one manifest shows it."""

    IN = auto()
    OUT = auto()
    UNKNOWN = auto()
    """The manifest shows it no longer: what the change named was trimmed, or copied into another fragment."""


class Change(ABC):
    """One change of a manifest."""

    __slots__ = ()

    @abstractmethod
    def apply(self, base: Manifest | None) -> Manifest:
        """Return `base` with the change in it; version and commit ids are still those of `base`.

        Raises `Fenced`, `StreamDeleted` or `Conflict` if the precondition does not hold, and `Misuse` if
        nobody but the caller can have caused that.
        """

    @abstractmethod
    async def verdict(self, tree: Tree) -> Verdict:
        """Return whether the manifest of `tree` holds the change.

        Raises `Fenced` or `StreamDeleted` if its author may not commit on this manifest: a writer that was
        fenced stops, even if its last commit landed. Any other error leaves the verdict open.
        """

    @property
    def edit(self) -> Edit | None:
        """The fragments that the change replaces where they are, if it does that.

        `apply` leaves the entries of such a change as they are.
        """
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Change):
    """Take the stream: from now on it is `writer`'s, under a higher epoch.

    `first_offset` is used if the stream is born, or born again after a deletion. `source_epoch` is the
    broker's own leader epoch, if it has one. One that is lower than recorded is refused with `Fenced`, and a
    stream that is being rebuilt with `Conflict`.
    """

    stream: str
    writer: UUID
    """Unique to this claim."""

    first_offset: int
    source_epoch: int = 0

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        if base is None:
            return self._born(version=0, epoch=1, parent=UUID(int=0))
        if self.source_epoch < base.source_epoch and self.source_epoch:
            raise Fenced(
                f"stream {self.stream!r}: the source's leader epoch {self.source_epoch} is behind "
                f"{base.source_epoch}, which committed already",
                epoch=base.epoch,
            )
        if base.state is State.REBUILDING:  # it names nothing yet: made live, a sweep would take all data
            raise Conflict(f"stream {base.stream!r} is being rebuilt; wait until the rebuild is done")
        source_epoch = max(base.source_epoch, self.source_epoch)
        if base.state is State.DELETED:
            born = self._born(version=base.version, epoch=base.epoch + 1, parent=base.commit_id)
            return replace(born, source_epoch=source_epoch)
        return replace(
            base, writer=self.writer, epoch=base.epoch + 1, source_epoch=source_epoch, state=State.LIVE
        )

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`."""
        return _in_if(tree.manifest.writer == self.writer)

    def _born(self, *, version: int, epoch: int, parent: UUID) -> Manifest:
        """A newborn stream. A claim that stalls may give birth twice, on two tombstones.

        So the incarnation is made of the claim and of the version below the birth: the same claim on the same
        base repeats it, and no incarnation that died comes back.
        """
        return Manifest(
            stream=self.stream,
            version=version,
            incarnation=uuid5(self.writer, f"incarnation on version {version}"),
            writer=self.writer,
            epoch=epoch,
            source_epoch=self.source_epoch,
            committer=self.writer,
            commit_id=parent,
            first_offset=self.first_offset,
            next_offset=self.first_offset,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfWriter(Change):
    """A change that only the stream's present writer may make."""

    writer: UUID

    def own(self, manifest: Manifest) -> set[UUID]:
        """The writer's attempts that run."""
        return attempts_for(manifest, self.writer, AttemptKind.STREAM)

    def _owned(self, base: Manifest | None) -> Manifest:
        if base is None:
            raise Misuse("a stream must be claimed before anything else is committed to it")
        if base.state is State.DELETED:
            raise StreamDeleted(f"stream {base.stream!r} was deleted in epoch {base.epoch}", epoch=base.epoch)
        if base.writer != self.writer:
            raise Fenced(
                f"stream {base.stream!r}: another writer took over (epoch {base.epoch}), so this one stops "
                "for good. Let one writer run at a time; to write again, run again",
                epoch=base.epoch,
            )
        return base


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(_OfWriter):
    """Announce attempts, each a fresh UUID and its ledger, before the first of their uploads.

    A UUID is used once: an attempt that was dropped is condemned for ever.
    """

    attempts: Sequence[tuple[UUID, int]]

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._owned(base)
        announced = [
            Running(attempt=attempt, ledger_id=ledger_id, epoch=base.epoch, writer=self.writer)
            for attempt, ledger_id in self.attempts
        ]
        return announce(base, announced)

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`. All were announced at once: one that runs speaks for those dropped since."""
        own = self.own(self._owned(tree.manifest))
        return _in_if(not self.attempts or any(attempt in own for attempt, _ in self.attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(_OfWriter):
    """Name fragments that the writer uploaded, and drop the attempts that are finished with them.

    Only attempts that run for this writer are named or dropped.
    """

    entries: Sequence[Entry]
    finished: frozenset[UUID] = frozenset()

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._owned(base)
        own = self.own(base)
        for entry in self.entries:
            if entry.attempt not in own:
                raise Conflict(
                    f"stream {base.stream!r}: attempt {entry.attempt} does not run for this writer"
                )
        return without(append_entries(base, self.entries), own & self.finished)

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`."""
        own = self.own(self._owned(tree.manifest))
        return await named(tree, self.entries, over=not own & self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve(_OfWriter):
    """Settle what earlier writers left: adopt these fragments, and condemn all their attempts for ever.

    Attempts of jobs stay, and so do the writer's own. Nothing of either is adopted.
    """

    adopted: Sequence[Entry]

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._owned(base)
        settled = self.settled(base)
        for entry in self.adopted:
            if entry.attempt not in settled:
                raise Conflict(
                    f"stream {base.stream!r}: attempt {entry.attempt} does not run for an earlier writer"
                )
        return without(append_entries(base, self.adopted), settled)

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`."""
        return await named(tree, self.adopted, over=not self.settled(self._owned(tree.manifest)))

    def settled(self, manifest: Manifest) -> set[UUID]:
        """The attempts that the change drops."""
        return {running.attempt for running in manifest.running if self.settles(running)}

    def settles(self, running: Running) -> bool:
        """Whether this attempt is one of those that the change drops."""
        return running.writer != self.writer and running.kind is AttemptKind.STREAM


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

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`. As with `Prepare`, one that runs speaks for those dropped since."""
        own = self.own(self.begun_on(tree.manifest), self.kind)
        return _in_if(not self.attempts or any(attempt in own for attempt, _ in self.attempts))


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

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`."""
        own = self.own(self.begun_on(tree.manifest))
        return await named(tree, self.entries, over=not own & self.finished)


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
        if base.state is State.DELETED:
            raise StreamDeleted(f"stream {base.stream!r} was deleted in epoch {base.epoch}", epoch=base.epoch)
        return without(base, self.attempts)

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`."""
        return _in_if(not any(tree.manifest.runs(attempt) for attempt in self.attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
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
    dropped: Dropped
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

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`. A tombstone begins at its end, and would pass for a trimmed stream."""
        manifest = tree.manifest
        if manifest.state is State.DELETED:
            existing(manifest)
        return _in_if(manifest.incarnation == self.incarnation and manifest.first_offset >= self.first_offset)


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
            state=State.DELETED,
            writer=NOBODY,
            epoch=base.epoch + 1,
            first_offset=base.next_offset,
            running=(),
            entries=NO_ENTRIES,
            **none,
        )

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`."""
        manifest = tree.manifest
        return _in_if(manifest.state is State.DELETED or manifest.incarnation != self.incarnation)


def existing(base: Manifest | None) -> Manifest:
    """`base`, where it is a stream's that lives. Raises otherwise."""
    if base is None:
        raise Misuse("a stream must be claimed before anything else is committed to it")
    if base.state is State.DELETED:
        raise StreamDeleted(f"stream {base.stream!r} was deleted in epoch {base.epoch}", epoch=base.epoch)
    if base.state is State.REBUILDING:
        raise Conflict(f"stream {base.stream!r} is being rebuilt; wait until the rebuild is done")
    return base


def entries_before(manifest: Manifest, offset: int) -> bytes:
    """The root's entries, as stored, of all that begins before this offset."""
    rows = manifest.entries
    return bytes(rows[rows["first_offset"] < np.uint64(offset)].tobytes())


def attempts_for(manifest: Manifest, owner: UUID, kind: AttemptKind) -> set[UUID]:
    """The attempts of this kind that run for a writer or a job."""
    return {each.attempt for each in manifest.running if (each.kind, each.writer) == (kind, owner)}


def announce(base: Manifest, announced: Sequence[Running]) -> Manifest:
    """`base` with these attempts running too. Raises `Conflict` if one runs already, for another."""
    runs = {running.attempt for running in base.running}
    for running in announced:
        if running.attempt in runs:
            raise Conflict(f"stream {base.stream!r}: attempt {running.attempt} runs already, for another")
    return replace(base, running=(*base.running, *announced))


def without(base: Manifest, attempts: Collection[UUID]) -> Manifest:
    """`base` with these attempts running no more."""
    return replace(base, running=tuple(r for r in base.running if r.attempt not in attempts))


async def named(tree: Tree, entries: Sequence[Entry], *, over: bool) -> Verdict:
    """The verdict on a commit that names `entries`; `over` says that no attempt runs that it would end.

    The commit is not in while such an attempt runs. Once it is over, the last entry speaks for all, if there
    is one. A copy keeps the token of what it copies: one with another token was not made of this entry.
    """
    if not entries or not over:
        return _in_if(over)
    last = entries[-1]
    found = await tree.find(last.first_offset)
    if is_same(found, last):
        return Verdict.IN
    is_trimmed = last.first_offset < tree.manifest.first_offset
    is_copied = found is not None and found.copied and token_of(found.attempt) == token_of(last.attempt)
    return Verdict.UNKNOWN if is_trimmed or is_copied else Verdict.OUT


def _in_if(is_in: bool) -> Verdict:
    return Verdict.IN if is_in else Verdict.OUT


def is_same(found: Entry | None, entry: Entry) -> bool:
    """Whether the fragment found at an offset is the one of this entry."""
    return found is not None and (found.first_offset, found.attempt) == (entry.first_offset, entry.attempt)


def append_entries(base: Manifest, entries: Sequence[Entry]) -> Manifest:
    """`base` with these entries behind its own.

    Raises `Conflict` if they begin below its end, for then another writer appended first; and `Misuse` if
    they begin beyond it or do not touch each other, for no other writer can cause or fill such a gap.
    """
    if not entries:
        return base
    expected = base.next_offset
    if entries[0].first_offset < expected:
        where = f"offset {entries[0].first_offset} does not continue {expected}"
        raise Conflict(f"stream {base.stream!r}: {where}: another writer appended first")
    for entry in entries:
        if entry.first_offset != expected:
            where = f"offset {entry.first_offset} does not continue {expected}"
            raise Misuse(f"stream {base.stream!r}: {where}: the appended fragments must touch")
        expected = entry.next_offset
    rows = encode_entries(entries, after_ledger=base.last_ledger_id if base.fragments else None)
    return replace(
        base,
        next_offset=entries[-1].next_offset,
        **{total: getattr(base, total) + exact_sum(rows[total]) for total in (*TOTALS, "ledgers")},
        last_ledger_id=entries[-1].ledger_id,
        entries=joined(base.entries, rows),
    )
