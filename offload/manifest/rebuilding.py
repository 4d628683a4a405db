"""A stream's history from what its fragments say of themselves, if roots are lost.

The two commits of a rebuild, and the choice between fragments that cannot both be true
(docs/commit-protocol.md, step "rebuild"). Pure functions: `tier.rebuild` reads and commits.

The choice. Only fragments of one incarnation count. From the beginning of the stream, fragment follows
fragment without a hole. If several begin at one offset:

1. the highest epoch wins: its writer began there, so nothing longer was committed by those before it;
2. among those of one epoch, the one from which the chain reaches furthest;
3. then the longer one; then the lesser attempt, so that every rebuild chooses alike.

Invariant: what is chosen has no hole and no overlap; nothing is invented. A hole is never stepped over: it
is reported, and the operator says where the stream begins or ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from offload.errors import Conflict, Fenced
from offload.formats.manifest import NO_ENTRIES, TOTALS, Entry, Manifest, State
from offload.manifest.changes import Change, Verdict, append_entries
from offload.manifest.tree import Tree

JUMP: Final = 2**32
"""How far above every number ever used the fence is: no sleeper's create comes near it."""

NUMBER_MAX: Final = 2**63
"""No writer counts so far. Below it there is room for a fence's number and its epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A fragment that is sound, as far as its own tail can say."""

    entry: Entry
    incarnation: UUID
    epoch: int
    base_version: int
    source_epoch: int = 0
    """The broker's leader epoch that the fragment records; 0 if it records none."""

    @property
    def name(self) -> tuple[int, UUID]:
        """What tells the fragment from all others of its stream."""
        return self.entry.first_offset, self.entry.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Change):
    """Create a root far above all others, so that no sleeper comes after it. Readers and writers wait.

    It goes on naming what the root before it named. So a rebuild that is killed loses nothing of that, and
    the next one finds it.
    """

    stream: str
    writer: UUID
    incarnation: UUID
    """Of the stream, if there is no root that says it."""

    epoch: int
    above: int
    """The highest number that any object mentions."""

    jump: int = JUMP
    """How far above it the fence is, unless the newest root is higher still."""

    instead_of: UUID | None = None
    """The commit id of the sound root, or the tombstone, that the operator replaces."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`. Raises `Conflict` if the newest root is not the one to be replaced."""
        if base is None or base.state is State.DELETED:
            fence = self._naming_nothing()
        else:
            fence = replace(base, writer=self.writer, running=(), state=State.REBUILDING)
        if base is None:
            return replace(fence, version=self.above + self.jump - 1, epoch=self.epoch)
        if base.state is not State.REBUILDING and base.commit_id != self.instead_of:
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

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`."""
        return Verdict.IN if tree.manifest.writer == self.writer else Verdict.OUT

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
            state=State.REBUILDING,
            first_offset=0,
            next_offset=0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt(Change):
    """Name the chosen fragments, on the fence of the same rebuild, and let the stream live again."""

    writer: UUID
    incarnation: UUID
    entries: Sequence[Entry]
    source_epoch: int = 0
    """The highest leader epoch of the broker that any of the data mentions."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        base = self._fenced(base)
        if base.state is not State.REBUILDING:
            raise Conflict(f"stream {base.stream!r} is not being rebuilt any more")
        nothing: dict[str, Any] = dict.fromkeys((*TOTALS, "ledgers", "last_ledger_id"), 0)
        begin = self.entries[0].first_offset
        empty = replace(
            base,
            incarnation=self.incarnation,
            source_epoch=max(base.source_epoch, self.source_epoch),
            state=State.LIVE,
            first_offset=begin,
            next_offset=begin,
            running=(),
            entries=NO_ENTRIES,
            **nothing,
        )
        return append_entries(empty, self.entries)

    async def verdict(self, tree: Tree) -> Verdict:
        """See `Change.verdict`."""
        return Verdict.IN if self._fenced(tree.manifest).state is State.LIVE else Verdict.OUT

    def _fenced(self, base: Manifest | None) -> Manifest:
        """`base`, if this rebuild's fence is in it. Another rebuild, or a claim after it, ends this one."""
        if base is None or base.writer != self.writer:
            raise Fenced("another rebuild of the stream, or a writer, took over; run again")
        return base


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a rebuild would commit, and what it would not."""

    chosen: Sequence[Found] = ()
    left_out: Sequence[tuple[Found, str]] = ()
    """Each with the reason."""

    holes: Sequence[tuple[int, int]] = ()
    """Offsets that no fragment holds between what is chosen and what lies beyond it."""

    beyond: Sequence[Found] = ()
    """What lies beyond a hole."""

    @property
    def first_offset(self) -> int | None:
        """Where what is chosen begins; None if nothing is."""
        return self.chosen[0].entry.first_offset if self.chosen else None

    @property
    def next_offset(self) -> int | None:
        """Where what is chosen ends; None if nothing is."""
        return self.chosen[-1].entry.next_offset if self.chosen else None

    @property
    def messages(self) -> int:
        """How many messages are in what is chosen."""
        return sum(each.entry.messages for each in self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was found of one incarnation, for an operator who chooses between several."""

    incarnation: UUID
    choice: Choice
    epochs: tuple[int, int]
    """The lowest and the highest epoch of its writers."""

    first_timestamp_ms: int
    last_timestamp_ms: int


def histories(found: Iterable[Found]) -> list[History]:
    """What was found, by incarnation: the one with the newest message last."""
    by_incarnation: dict[UUID, list[Found]] = defaultdict(list)
    for each in found:
        by_incarnation[each.incarnation].append(each)
    rows = [_history(incarnation, own) for incarnation, own in by_incarnation.items()]
    return sorted(rows, key=lambda row: (row.last_timestamp_ms, row.incarnation.bytes))


def _history(incarnation: UUID, found: Sequence[Found]) -> History:
    epochs = [each.epoch for each in found]
    return History(
        incarnation=incarnation,
        choice=choose(found, incarnation=incarnation),
        epochs=(min(epochs), max(epochs)),
        first_timestamp_ms=min(each.entry.first_timestamp_ms for each in found),
        last_timestamp_ms=max(each.entry.last_timestamp_ms for each in found),
    )


def continuing(found: Sequence[Found], base: Manifest, named: Sequence[Entry] | None) -> list[Found]:
    """Those fragments that can be committed, if `base` is not the newest root that there was, but was once.

    `named` are its fragments; None if nobody can say, because a group is damaged. They were committed, so
    nothing else was where they are, unless some of them are gone: then others took their place.
    """
    names = {(entry.first_offset, entry.attempt) for entry in named or ()}
    if named is not None and names <= {each.name for each in found}:
        return [each for each in found if each.name in names or each.entry.first_offset >= base.next_offset]
    return [each for each in found if each.entry.first_offset >= base.first_offset]


def choose(
    found: Sequence[Found], *, incarnation: UUID, begin: int | None = None, end: int | None = None
) -> Choice:
    """Choose the one history of an incarnation.

    `begin` and `end` are the operator's word on where it begins and ends. Without them it begins with the
    least offset, and every fragment beyond its end is behind a hole.
    """
    left_out = [(each, "of another incarnation") for each in found if each.incarnation != incarnation]
    own = [each for each in found if each.incarnation == incarnation]
    if begin is not None:
        left_out += [(e, "before the offset that was given") for e in own if e.entry.first_offset < begin]
        own = [each for each in own if each.entry.first_offset >= begin]
    if end is not None:
        left_out += [(e, "behind the end that was given") for e in own if e.entry.next_offset > end]
        own = [each for each in own if each.entry.next_offset <= end]
    chosen = _chain(own, begin)
    names = {each.name for each in chosen}
    others = [each for each in own if each.name not in names]
    reached = chosen[-1].entry.next_offset if chosen else begin or 0
    beyond = [each for each in others if each.entry.first_offset >= reached]
    left_out += [
        (each, "a rival fragment of these offsets was chosen")
        for each in others
        if each.entry.first_offset < reached
    ]
    return Choice(chosen=chosen, left_out=left_out, holes=_holes(reached, beyond), beyond=beyond)


def _chain(found: Sequence[Found], begin: int | None) -> list[Found]:
    """The chain from `begin`, or from the least offset, by the rules at the head of this module."""
    starting: dict[int, list[Found]] = defaultdict(list)
    for each in found:
        starting[each.entry.first_offset].append(each)
    best: dict[int, Found] = {}
    reach: dict[int, int] = {}
    for offset in sorted(starting, reverse=True):
        best[offset] = max(starting[offset], key=lambda each: _rank(each, reach))
        following = best[offset].entry.next_offset
        reach[offset] = reach.get(following, following)
    chain: list[Found] = []
    at = min(starting, default=0) if begin is None else begin
    while at in best:
        chain.append(best[at])
        at = best[at].entry.next_offset
    return chain


def _rank(found: Found, reach: dict[int, int]) -> tuple[int, int, int, bytes]:
    entry = found.entry
    inverted = bytes(255 - byte for byte in entry.attempt.bytes)
    return found.epoch, reach.get(entry.next_offset, entry.next_offset), entry.next_offset, inverted


def _holes(reached: int, beyond: Sequence[Found]) -> list[tuple[int, int]]:
    holes: list[tuple[int, int]] = []
    for each in sorted(beyond, key=lambda each: each.entry.first_offset):
        if each.entry.first_offset > reached:
            holes.append((reached, each.entry.first_offset))
        reached = max(reached, each.entry.next_offset)
    return holes
