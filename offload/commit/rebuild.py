"""The two commits of a rebuild: the fence, and the manifest that the rebuild chose.

`upkeep.rebuild` reads, chooses and commits (docs/commit-protocol.md, step "rebuild").

Invariant: from the fence on, nobody but this rebuild commits to the stream, until another rebuild or, after
the second commit, a claim takes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from offload.commit.applying import append_entries
from offload.contracts.change import Change, CommitVerdict
from offload.ground.errors import Conflict, Fenced, Misuse
from offload.model.entry import NO_ENTRIES, TOTALS, Entry
from offload.model.manifest import Manifest, StreamState
from offload.model.tree import Tree

__all__ = ["Fence", "Rebuilt"]


JUMP: Final = 2**32
"""The distance from the highest number ever used to the fence. No stalled process creates a root up there."""

NUMBER_MAX: Final = 2**63
"""A limit that no writer's numbers reach. Above it there is room for a fence's number and its epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Change):
    """Create a root far above all others, above any that a stalled process can create.

    Readers and writers wait while it is the newest root. It still names what the root before it named, so a
    rebuild that is killed loses nothing of that, and the next rebuild finds it.
    """

    stream: str
    writer: UUID
    incarnation: UUID
    """The stream's incarnation, used if no root says it."""

    epoch: int
    above: int
    """The highest number that any object mentions."""

    jump: int = JUMP
    """The distance from `above` to the fence, unless the newest root is higher still."""

    instead_of: UUID | None = None
    """The commit id of the sound root, or the tombstone, that the operator replaces."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`. Raises `Conflict` if the newest root is not the one to be replaced."""
        # The data of a live root must survive a rebuild that is killed, so its entries stay. Its attempts
        # end: they may upload what the rebuild has not seen, and nobody may name that afterwards.
        if base is None or base.state is StreamState.DELETED:
            fence = self._naming_nothing()
        else:
            fence = replace(base, writer=self.writer, running=(), state=StreamState.REBUILDING)
        # The commit adds one to the version that a change returns.
        if base is None:
            return replace(fence, version=self.above + self.jump - 1, epoch=self.epoch)
        # The commit id identifies the root, because a number may be created again after roots were lost. A
        # fence of another rebuild may be replaced: it takes the writer from that rebuild, and so ends it.
        if base.state is not StreamState.REBUILDING and base.commit_id != self.instead_of:
            raise Conflict(
                f"stream {base.stream!r} has a manifest that is newer than the rebuild, version "
                f"{base.version}: stop every writer of the stream, and run again"
            )
        return replace(
            fence,
            version=max(self.above + self.jump - 1, base.version),
            epoch=max(self.epoch, base.epoch + 1),
            source_epoch=base.source_epoch,
            commit_id=base.commit_id,
        )

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        return CommitVerdict.IN if tree.manifest.writer == self.writer else CommitVerdict.OUT

    def _naming_nothing(self) -> Manifest:
        return Manifest(
            stream=self.stream,
            version=0,
            incarnation=self.incarnation,
            writer=self.writer,
            epoch=0,
            source_epoch=0,
            committer=self.writer,
            commit_id=UUID(int=0),
            state=StreamState.REBUILDING,
            first_offset=0,
            next_offset=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt(Change):
    """Name the chosen fragments, on the fence of the same rebuild, and make the stream live again."""

    writer: UUID
    incarnation: UUID
    entries: Sequence[Entry]
    source_epoch: int = 0
    """The highest leader epoch of the broker in any of the chosen data."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._fenced(base)
        if base.state is not StreamState.REBUILDING:
            raise Conflict(f"stream {base.stream!r} is no longer being rebuilt")
        # Entries and totals begin at zero: the choice includes what the fence still names, or leaves it out
        # on purpose.
        nothing: dict[str, Any] = dict.fromkeys((*TOTALS, "ledgers", "last_ledger_id"), 0)
        begin = self.entries[0].first_offset
        empty = replace(
            base,
            incarnation=self.incarnation,
            source_epoch=max(base.source_epoch, self.source_epoch),
            state=StreamState.LIVE,
            first_offset=begin,
            next_offset=begin,
            running=(),
            entries=NO_ENTRIES,
            **nothing,
        )
        return append_entries(empty, self.entries)

    async def verdict(self, tree: Tree) -> CommitVerdict:
        """See `Change.verdict`."""
        return (
            CommitVerdict.IN if self._fenced(tree.manifest).state is StreamState.LIVE else CommitVerdict.OUT
        )

    def _fenced(self, base: Manifest | None) -> Manifest:
        """Return `base` if it is this rebuild's. Raises `Fenced` if another author took over."""
        # Not `Fenced`, which no newer manifest can change: a caller that knows none may be the author.
        if base is None:
            raise Misuse("a stream must be fenced before it is rebuilt")
        # The fence of a later rebuild has another writer, so of two rebuilds only the later one commits.
        if base.writer != self.writer:
            raise Fenced("another rebuild of the stream, or a writer, took over; run again")
        return base
