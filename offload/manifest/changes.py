"""The changes that a commit can make to a manifest, as pure functions of the manifest they meet.

Each change says how it is applied, which precondition it has, and how a manifest shows that it is
in already. That last question decides a commit whose reply was lost: by content, never by the
reply (docs/commit-protocol.md, step 1). Where the answer is a fragment, it may stand in a group by then:
a change says at which offset to look (`mark`), and is shown the fragment that is named there. A copy there
may stand in the place of what the change named (`manifest.replacing`): then perhaps nothing tells any more.

Invariant: `apply` raises, or returns a manifest that keeps every invariant of `formats.manifest`.
Who may commit is decided here too: a writer's changes are refused unless it holds the stream, a job's
unless the stream is of the incarnation that the job began on. Abort, trim and delete are anyone's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np

from offload.errors import Conflict, Fenced, Misuse, OutcomeUnknown, StreamDeleted
from offload.formats.manifest import (
    NO_ENTRIES,
    NOBODY,
    TOTALS,
    AttemptKind,
    Entries,
    Entry,
    Manifest,
    Running,
    State,
    encode_entries,
    exact_sum,
    joined,
)
from offload.manifest.tokens import token_of


class Change(ABC):
    """One change of a manifest."""

    __slots__ = ()

    @abstractmethod
    def apply(self, base: Manifest | None) -> Manifest:
        """The manifest with the change in it; version and commit ids are still those of `base`.

        Raises `Fenced`, `StreamDeleted` or `Conflict` if the precondition does not hold, `Misuse` if nobody
        but the caller can have caused that, and `OutcomeUnknown` if `base` cannot show any more whether the
        change was in.
        """

    @abstractmethod
    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """Whether `manifest` shows that the change was committed.

        `marked` is the fragment that its tree names at `mark`; None where it names none there. Raises
        `OutcomeUnknown` where a copy stands there, and nothing tells whether it is of what the change named.
        """

    @property
    def edits(self) -> int | None:
        """The first offset of the fragments in whose place the change puts others, if it does that."""
        return None

    def edit(self, run: Entries) -> Entries:
        """`run` after the change: the fragments that stand together, in a root or a group, around `edits`.

        Of such a change `apply` leaves the entries as they are. Raises `Conflict` as it does.
        """
        return run

    @property
    def mark(self) -> int | None:
        """The first offset of a fragment that is named if and only if the change is in, if there is such."""
        return None

    def check_author(self, base: Manifest | None) -> None:
        """Raise `Fenced` or `StreamDeleted` where the change's author may not commit on `base`.

        Asked before `is_in`: a writer that was fenced stops, even if its last commit landed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Change):
    """Take the stream: from now on it is `writer`'s, under a higher epoch.

    `first_offset` and `incarnation` are used where the stream is born, or born again after a
    deletion. `source_epoch` is the broker's own leader epoch, where it has one; a lower one than
    recorded is refused with `Fenced`. A stream that is being rebuilt is refused with `Conflict`, and one to
    which this very claim gave birth, and which was deleted since, with `StreamDeleted`: claim anew.
    """

    stream: str
    writer: UUID
    incarnation: UUID
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
            if base.incarnation == self.incarnation:  # ours by birth: an incarnation dies once
                deleted = f"stream {self.stream!r} was claimed, and deleted in epoch {base.epoch}"
                raise StreamDeleted(deleted, epoch=base.epoch)
            born = self._born(version=base.version, epoch=base.epoch + 1, parent=base.commit_id)
            return replace(born, source_epoch=source_epoch)
        return replace(
            base, writer=self.writer, epoch=base.epoch + 1, source_epoch=source_epoch, state=State.LIVE
        )

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`."""
        return manifest.writer == self.writer

    def _born(self, *, version: int, epoch: int, parent: UUID) -> Manifest:
        return Manifest(
            stream=self.stream,
            version=version,
            incarnation=self.incarnation,
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

    def check_author(self, base: Manifest | None) -> None:
        """See `Change.check_author`."""
        self._owned(base)

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
        announced = tuple(
            Running(attempt=attempt, ledger_id=ledger_id, epoch=base.epoch, writer=self.writer)
            for attempt, ledger_id in self.attempts
        )
        return replace(base, running=base.running + announced)

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`. All were announced at once, so one that runs speaks for those dropped since."""
        return not self.attempts or any(manifest.runs(attempt) for attempt, _ in self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(_OfWriter):
    """Name fragments that were uploaded, and drop the attempts that are finished with them."""

    entries: Sequence[Entry]
    finished: frozenset[UUID] = frozenset()

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._owned(base)
        for entry in self.entries:
            if not base.runs(entry.attempt):
                raise Conflict(f"stream {base.stream!r}: attempt {entry.attempt} does not run any more")
        appended = append_entries(base, self.entries)
        return replace(appended, running=tuple(r for r in base.running if r.attempt not in self.finished))

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`. All entries were committed at once, so the last one speaks for all."""
        if not self.entries:
            return not any(manifest.runs(attempt) for attempt in self.finished)
        last = self.entries[-1]
        over = not any(manifest.runs(attempt) for attempt in self.finished)
        trimmed = manifest.first_offset >= last.next_offset and bool(self.finished)
        return is_named(marked, last, over=over) or (trimmed and over)

    @property
    def mark(self) -> int | None:
        """See `Change.mark`."""
        return self.entries[-1].first_offset if self.entries else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve(_OfWriter):
    """Settle what earlier writers left: adopt these fragments, and condemn all their attempts for ever.

    Attempts of jobs stay, and so do the writer's own.
    """

    adopted: Sequence[Entry]

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._owned(base)
        for entry in self.adopted:
            if not base.runs(entry.attempt):
                raise Conflict(f"stream {base.stream!r}: attempt {entry.attempt} does not run any more")
        appended = append_entries(base, self.adopted)
        return replace(appended, running=tuple(r for r in base.running if not self.settles(r)))

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`."""
        last = self.adopted[-1] if self.adopted else None
        over = not any(self.settles(running) for running in manifest.running)
        reached = last is None or is_named(marked, last, over=over)
        return over and (reached or (last is not None and manifest.first_offset >= last.next_offset))

    @property
    def mark(self) -> int | None:
        """See `Change.mark`."""
        return self.adopted[-1].first_offset if self.adopted else None

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

    def check_author(self, base: Manifest | None) -> None:
        """See `Change.check_author`."""
        self.begun_on(base)

    def own(self, manifest: Manifest, kind: AttemptKind = AttemptKind.JOB) -> set[UUID]:
        """The job's attempts of this kind that run; none in another incarnation."""
        if manifest.incarnation != self.incarnation:
            return set()
        return {each.attempt for each in manifest.running if (each.kind, each.writer) == (kind, self.job)}

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

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self.begun_on(base)
        for attempt, _ in self.attempts:
            if base.runs(attempt):
                raise Conflict(f"stream {base.stream!r}: attempt {attempt} runs already, for another")
        announced = tuple(
            Running(attempt=attempt, ledger_id=ledger_id, epoch=base.epoch, writer=self.job, kind=self.kind)
            for attempt, ledger_id in self.attempts
        )
        return replace(base, running=base.running + announced)

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`. As with `Prepare`, one that runs speaks for those dropped since."""
        own = self.own(manifest, self.kind)
        return not self.attempts or any(attempt in own for attempt, _ in self.attempts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribute(OfJob):
    """Name fragments that a job uploaded, and drop the attempts that are finished with them.

    Only attempts that run as this job's are named or dropped. Where another came first, so that the entries
    do not continue the stream any more, that is a `Conflict`. Where a trim has passed the entries and the
    finished attempts are over, nothing tells whether they were in: `OutcomeUnknown`, for unlike a writer's
    they need not be what another would have appended there. The same holds where a copy stands there, of
    attempts that begin as its own do.
    """

    entries: Sequence[Entry]
    finished: frozenset[UUID] = frozenset()

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self.begun_on(base)
        own = self.own(base)
        passed = self.entries and base.first_offset >= self.entries[-1].next_offset
        if passed and not own & self.finished:
            raise OutcomeUnknown(
                f"stream {base.stream!r}: offsets below {base.first_offset} were trimmed, "
                f"and nothing tells whether job {self.job} had appended there"
            )
        for entry in self.entries:
            if entry.attempt not in own:
                raise Conflict(f"stream {base.stream!r}: attempt {entry.attempt} runs not for job {self.job}")
        appended = append_entries(base, self.entries)
        ended = own & self.finished
        return replace(appended, running=tuple(r for r in base.running if r.attempt not in ended))

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`. All entries were committed at once, so the last one speaks for all."""
        if not self.entries:
            return not self.own(manifest) & self.finished
        over = not self.own(manifest) & self.finished
        return manifest.incarnation == self.incarnation and is_named(marked, self.entries[-1], over=over)

    @property
    def mark(self) -> int | None:
        """See `Change.mark`."""
        return self.entries[-1].first_offset if self.entries else None


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
        return replace(base, running=tuple(r for r in base.running if r.attempt not in self.attempts))

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`."""
        return not any(manifest.runs(attempt) for attempt in self.attempts)


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

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`."""
        return manifest.incarnation == self.incarnation and manifest.first_offset >= self.first_offset

    def check_author(self, base: Manifest | None) -> None:
        """See `Change.check_author`. A tombstone begins at its end, and would pass for a trimmed stream."""
        if base is not None and base.state is State.DELETED:
            existing(base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(Change):
    """Put a tombstone in the stream's place: it names nothing, runs nothing, and fences every writer.

    Anyone may do this. It is for one incarnation: a stream of the same name that was born since stays.
    With `unused_by`, only a stream is deleted that this writer began and nobody has used: another holds it,
    something was committed, or an attempt runs, and it is a `Conflict`.
    """

    incarnation: UUID
    unused_by: UUID | None = None

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = existing(base)
        if self.unused_by is not None and (
            base.writer != self.unused_by or base.next_offset != base.first_offset or base.running
        ):
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

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`."""
        return manifest.state is State.DELETED or manifest.incarnation != self.incarnation


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


def is_named(marked: Entry | None, entry: Entry, *, over: bool) -> bool:
    """Whether the fragment found at an offset shows that this entry was committed.

    Where a copy of the same token stands there, and the attempts are `over` that would have ended with the
    entry, it may be of this entry or of what another named there: `OutcomeUnknown`.
    """
    if is_same(marked, entry):
        return True
    if over and marked is not None and marked.copied and token_of(marked.attempt) == token_of(entry.attempt):
        raise OutcomeUnknown(
            f"offset {entry.first_offset} is in a copy by now, and nothing tells whether it was "
            f"attempt {entry.attempt} that had named it: look at what stands there"
        )
    return False


def is_same(marked: Entry | None, entry: Entry) -> bool:
    """Whether the fragment found at an offset is the one of this entry."""
    return marked is not None and (marked.first_offset, marked.attempt) == (entry.first_offset, entry.attempt)


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
