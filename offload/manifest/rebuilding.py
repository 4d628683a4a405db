"""A stream's history from what its fragments say of themselves, where all roots are lost.

The two commits of a rebuild, and the choice between fragments that cannot both be true
(docs/commit-protocol.md, step "rebuild"). Pure functions: `tier.rebuild` reads and commits.

The choice. Only fragments of one incarnation count, that with the highest epoch. From where the stream
begins, fragment follows fragment without a hole. Where several begin at one offset:

1. the highest epoch wins: its writer began there, so nothing longer was committed by those before it;
2. among those of one epoch, the one from which the chain reaches furthest;
3. then the longer one; then the lesser attempt, so that every rebuild chooses alike.

Invariant: what is chosen has no hole and no overlap; nothing is invented. A hole is never stepped over: it
is reported, and whoever knows better says where the stream begins or ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from offload.errors import Conflict, Fenced
from offload.formats.manifest import Entry, Manifest, State
from offload.manifest.changes import Change, append_entries

JUMP: Final = 2**32
"""How far above any number ever used the fence stands: no sleeper's create comes near it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A fragment that holds, as far as its own tail can say."""

    entry: Entry
    incarnation: UUID
    epoch: int
    base_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Change):
    """Put a root that names nothing far above all others: readers wait, and no sleeper comes after it."""

    stream: str
    writer: UUID
    incarnation: UUID
    epoch: int
    above: int
    """The highest number that any object mentions."""

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`. Refused where a root stands that needs no rebuild."""
        if base is not None and base.state is not State.REBUILDING:
            raise Conflict(f"stream {base.stream!r} has a manifest again, version {base.version}")
        return Manifest(
            stream=self.stream,
            version=max(self.above + JUMP - 1, 0 if base is None else base.version),
            incarnation=self.incarnation,
            writer=self.writer,
            epoch=max(self.epoch, 0 if base is None else base.epoch + 1),
            source_epoch=0,
            committer=self.writer,
            commit_id=UUID(int=0) if base is None else base.commit_id,
            state=State.REBUILDING,
            first_offset=0,
            next_offset=0,
        )

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`."""
        return manifest.writer == self.writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt(Change):
    """Name the chosen fragments, on the fence of the same rebuild, and let the stream live again."""

    writer: UUID
    entries: Sequence[Entry]

    def check_author(self, base: Manifest | None) -> None:
        """See `Change.check_author`: another rebuild, or a claim behind it, ends this one."""
        if base is None or base.writer != self.writer:
            raise Fenced("another rebuild of the stream, or a writer, took over; run again")

    def apply(self, base: Manifest | None) -> Manifest:
        """See `Change.apply`."""
        self.check_author(base)
        assert base is not None
        if base.state is not State.REBUILDING:
            raise Conflict(f"stream {base.stream!r} is not being rebuilt any more")
        begin = self.entries[0].first_offset
        empty = replace(base, state=State.LIVE, first_offset=begin, next_offset=begin)
        return append_entries(empty, self.entries)

    def is_in(self, manifest: Manifest, marked: Entry | None = None) -> bool:
        """See `Change.is_in`."""
        return manifest.writer == self.writer and manifest.state is State.LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a rebuild would commit, and what it would not."""

    chosen: Sequence[Found]
    left_out: Sequence[tuple[Found, str]]
    """Each with the reason."""

    holes: Sequence[tuple[int, int]]
    """Offsets that no fragment holds between what is chosen and what lies beyond it."""


def choose(found: Sequence[Found], *, begin: int | None = None, end: int | None = None) -> Choice:
    """Choose the one history. `begin` and `end` are where it begins and ends, by the word of an operator.

    Without them it begins with the least offset, and every fragment beyond its end stands behind a hole.
    """
    incarnation = max(found, key=lambda each: (each.epoch, each.incarnation.bytes)).incarnation
    left_out = [(each, "of an earlier incarnation") for each in found if each.incarnation != incarnation]
    own = [each for each in found if each.incarnation == incarnation]
    if begin is not None:
        left_out += [(e, "before the offset that was given") for e in own if e.entry.first_offset < begin]
        own = [each for each in own if each.entry.first_offset >= begin]
    if end is not None:
        left_out += [(e, "behind the end that was given") for e in own if e.entry.next_offset > end]
        own = [each for each in own if each.entry.next_offset <= end]
    chosen = _chain(own, begin)
    names = {(each.entry.first_offset, each.entry.attempt) for each in chosen}
    others = [each for each in own if (each.entry.first_offset, each.entry.attempt) not in names]
    reached = chosen[-1].entry.next_offset if chosen else begin or 0
    beyond = [each for each in others if each.entry.first_offset >= reached]
    left_out += [
        (each, "a rival fragment of these offsets was chosen")
        for each in others
        if each.entry.first_offset < reached
    ]
    return Choice(chosen=chosen, left_out=left_out, holes=_holes(reached, beyond))


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
