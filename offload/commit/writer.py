"""The changes of a stream's writer: claim, prepare, append, resolve.

Invariant: they need the stream's present writer, and name or end only attempts that run for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from offload.commit.applying import announce, append_entries, attempts_for, in_if, verdict_on_entries, without
from offload.contracts.change import Change, CommitVerdict
from offload.errors import Conflict, Fenced, Misuse, StreamDeleted
from offload.model.entry import Entry
from offload.model.manifest import AttemptKind, Manifest, Running, StreamState
from offload.model.tree import Tree

__all__ = ["Append", "Claim", "Prepare", "Resolve"]


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
        if (
            base.state is StreamState.REBUILDING
        ):  # it names nothing yet: made live, a sweep would take all data
            raise Conflict(f"stream {base.stream!r} is being rebuilt; wait until the rebuild is done")
        source_epoch = max(base.source_epoch, self.source_epoch)
        if base.state is StreamState.DELETED:
            born = self._born(version=base.version, epoch=base.epoch + 1, parent=base.commit_id)
            return replace(born, source_epoch=source_epoch)
        return replace(
            base, writer=self.writer, epoch=base.epoch + 1, source_epoch=source_epoch, state=StreamState.LIVE
        )

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        return in_if(tree.manifest.writer == self.writer)

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
class OfWriter(Change):
    """A change that only the stream's present writer may make."""

    writer: UUID

    def own(self, manifest: Manifest) -> set[UUID]:
        """The writer's attempts that run."""
        return attempts_for(manifest, self.writer, AttemptKind.STREAM)

    def _owned(self, base: Manifest | None) -> Manifest:
        if base is None:
            raise Misuse("a stream must be claimed before anything else is committed to it")
        if base.state is StreamState.DELETED:
            raise StreamDeleted(f"stream {base.stream!r} was deleted in epoch {base.epoch}", epoch=base.epoch)
        if base.writer != self.writer:
            raise Fenced(
                f"stream {base.stream!r}: another writer took over (epoch {base.epoch}), so this one stops "
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
        announced = [
            Running(attempt=attempt, ledger_id=ledger_id, epoch=base.epoch, writer=self.writer)
            for attempt, ledger_id in self.attempts
        ]
        return announce(base, announced)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`. All were announced at once: one that runs speaks for those dropped since."""
        own = self.own(self._owned(tree.manifest))
        return in_if(not self.attempts or any(attempt in own for attempt, _ in self.attempts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(OfWriter):
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

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        own = self.own(self._owned(tree.manifest))
        return await verdict_on_entries(tree, self.entries, over=not own & self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve(OfWriter):
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

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        return await verdict_on_entries(tree, self.adopted, over=not self.settled(self._owned(tree.manifest)))

    def settled(self, manifest: Manifest) -> set[UUID]:
        """The attempts that the change drops."""
        return {running.attempt for running in manifest.running if self.settles(running)}

    def settles(self, running: Running) -> bool:
        """Whether this attempt is one of those that the change drops."""
        return running.writer != self.writer and running.kind is AttemptKind.STREAM
