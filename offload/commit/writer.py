"""The changes of a stream's writer: claim, prepare, append, resolve.

Invariant: all but a claim need the stream's present writer. `Append` names and ends only attempts that run
for this writer, `Resolve` only those that run for earlier ones. Neither touches a job's attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from offload.commit.applying import announce, append_entries, attempts_for, in_if, verdict_on_entries, without
from offload.contracts.change import Change, CommitVerdict
from offload.ground.errors import Conflict, Fenced, Misuse, StreamDeleted
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest, Running, StreamState
from offload.model.tree import Tree

__all__ = ["Append", "Claim", "Prepare", "Resolve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Change):
    """Take the stream for `writer`, under a higher epoch.

    `first_offset` is used if the stream is born, or born again after a deletion. `source_epoch` is the
    broker's own leader epoch, or 0 if it has none. A leader epoch below the recorded one is refused with
    `Fenced`. A stream that is being rebuilt is refused with `Conflict`, and so is every base but
    `expected_version`, if that is given: of several processes that want to take over, one does.
    """

    stream: str
    writer: UUID
    """Unique to this claim."""

    first_offset: int
    source_epoch: int = 0
    expected_version: int | None = None
    """The version of the newest root that the caller knows; 0 if it knows none."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        found = 0 if base is None else base.version
        if self.expected_version not in (None, found):
            raise Conflict(f"stream {self.stream!r}: somebody committed meanwhile, so this claim is late")
        if base is None:
            return self._born(version=0, epoch=1, parent=UUID(int=0))
        # A leader that the broker deposed may still run, with a log that the new leader has cut. 0 comes from
        # sources without leader epochs, and says nothing.
        if self.source_epoch < base.source_epoch and self.source_epoch:
            raise Fenced(
                f"stream {self.stream!r}: the source's leader epoch {self.source_epoch} is behind "
                f"{base.source_epoch}, which committed already",
                epoch=base.epoch,
            )
        # The fence of a rebuild may name nothing yet. If a claim made it live, a sweep would delete all data.
        if base.state is StreamState.REBUILDING:
            raise Conflict(f"stream {base.stream!r} is being rebuilt; wait until the rebuild is done")
        source_epoch = max(base.source_epoch, self.source_epoch)
        # A rebirth counts on from the tombstone. So what an old life uploads late is below everything of the
        # new one, and a root number is never used for two lives.
        if base.state is StreamState.DELETED:
            born = self._born(version=base.version, epoch=base.epoch + 1, parent=base.commit_id)
            return replace(born, source_epoch=source_epoch)
        return replace(
            base, writer=self.writer, epoch=base.epoch + 1, source_epoch=source_epoch, state=StreamState.LIVE
        )

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        # The UUID, not the epoch: two processes may claim under the same epoch of the broker.
        return in_if(tree.manifest.writer == self.writer)

    def _born(self, *, version: int, epoch: int, parent: UUID) -> Manifest:
        """Return the manifest of a newborn stream."""
        # A claim that stalls may give birth twice: it creates the stream, somebody deletes it, and the claim
        # finds the tombstone when it looks. An incarnation made of the claim alone would be the dead one, and
        # readers and jobs of the old stream would take the new one for theirs. The version below the birth
        # tells the two apart, and the same claim on the same base still makes the same incarnation.
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
class OfWriter(Change):
    """A change that only the stream's present writer may make."""

    writer: UUID

    def own(self, manifest: Manifest) -> set[UUID]:
        """Return the writer's attempts that run."""
        return attempts_for(manifest, self.writer, AttemptKind.STREAM)

    def _running(self, base: Manifest, attempts: Sequence[tuple[UUID, int]]) -> list[Running]:
        """Return these attempts, each with its ledger, as attempts that run for this writer."""
        return [
            Running(attempt=attempt, ledger_id=ledger_id, epoch=base.epoch, writer=self.writer)
            for attempt, ledger_id in attempts
        ]

    def _owned(self, base: Manifest | None) -> Manifest:
        if base is None:
            raise Misuse("a stream must be claimed before anything else is committed to it")
        # A tombstone has no writer, so this check comes before the fence, which would report a rival.
        if base.state is StreamState.DELETED:
            raise StreamDeleted(f"stream {base.stream!r} was deleted", epoch=base.epoch)
        if base.writer != self.writer:
            raise Fenced(
                f"stream {base.stream!r}: another writer took over, so this one stops "
                "for good. Let one writer run at a time; to write again, run again",
                epoch=base.epoch,
            )
        return base


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare(OfWriter):
    """Announce attempts, each a fresh UUID and its ledger, before the first of their uploads.

    A UUID is used once: an attempt that was dropped is condemned for ever.
    """

    attempts: Sequence[tuple[UUID, int]]

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._owned(base)
        return announce(base, self._running(base, self.attempts))

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        # All were announced by one commit. Some may have been dropped since, so one that runs proves it. To
        # announce the others again would revive condemned attempts.
        own = self.own(self._owned(tree.manifest))
        return in_if(not self.attempts or any(attempt in own for attempt, _ in self.attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(OfWriter):
    """Name fragments that the writer uploaded, and drop the attempts that are finished with them.

    Only attempts that run for this writer are named or dropped. `announced` are the writer's next attempts,
    as in `Prepare`.
    """

    entries: Sequence[Entry]
    finished: frozenset[UUID] = frozenset()
    announced: Sequence[tuple[UUID, int]] = ()

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._owned(base)
        own = self.own(base)
        # An attempt that does not run is condemned: a sweep may have judged its objects already, and delete
        # them after this commit has named them. So a retry on a newer base checks this again.
        for entry in self.entries:
            if entry.attempt not in own:
                raise Conflict(
                    f"stream {base.stream!r}: attempt {entry.attempt} does not run for this writer"
                )
        appended = without(append_entries(base, self.entries), own & self.finished)
        return announce(appended, self._running(base, self.announced))

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        own = self.own(self._owned(tree.manifest))
        return await verdict_on_entries(tree, self.entries, over=not own & self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve(OfWriter):
    """Settle what earlier writers left: adopt these fragments, and condemn all their attempts for ever.

    Attempts of jobs and the writer's own attempts keep running. None of their fragments is adopted.
    """

    adopted: Sequence[Entry]

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._owned(base)
        settled = self.settled(base)
        # The writer listed the fragments before this commit. If an attempt has stopped running since, a sweep
        # may have condemned its fragments. A job still appends its own, so they must not be named for it.
        for entry in self.adopted:
            if entry.attempt not in settled:
                raise Conflict(
                    f"stream {base.stream!r}: attempt {entry.attempt} does not run for an earlier writer"
                )
        # All attempts end, also those that left nothing: what a stalled process uploads later stays unnamed.
        return without(append_entries(base, self.adopted), settled)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        return await verdict_on_entries(tree, self.adopted, over=not self.settled(self._owned(tree.manifest)))

    def settled(self, manifest: Manifest) -> set[UUID]:
        """Return the attempts that the change drops."""
        return {running.attempt for running in manifest.running if self.settles(running)}

    def settles(self, running: Running) -> bool:
        """Return whether the change drops this attempt."""
        return running.writer != self.writer and running.kind is AttemptKind.STREAM
