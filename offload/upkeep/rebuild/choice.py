"""Choosing a stream's history from the tails of its fragments, after roots were lost.

Pure functions that choose between fragments that cannot both be true (docs/commit-protocol.md, step
"rebuild"). Only fragments of one incarnation count. From the beginning of the stream, fragment follows
fragment without a hole. If several begin at one offset:

1. The highest epoch wins: its writer began there, so earlier writers committed nothing longer.
2. Among fragments of one epoch, the one from which the chain reaches furthest wins.
3. Then the longer one wins; then the lesser attempt, so that every rebuild makes the same choice.

Invariant: the chosen fragments have no hole and no overlap; nothing is invented. The choice never steps over
a hole: the hole is reported, and the operator says where the stream begins or ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

from offload.model.entry import Entry
from offload.model.found import FoundFragment
from offload.model.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildChoice:
    """The fragments that a rebuild would commit, and those that it would not."""

    chosen: Sequence[FoundFragment] = ()
    left_out: Sequence[tuple[FoundFragment, str]] = ()
    """Each with the reason."""

    holes: Sequence[tuple[int, int]] = ()
    """Ranges of offsets that no fragment holds, between the chosen fragments and those beyond."""

    beyond: Sequence[FoundFragment] = ()
    """Fragments beyond a hole."""

    @property
    def first_offset(self) -> int | None:
        """First offset of the chosen fragments; None if nothing is chosen."""
        return self.chosen[0].entry.first_offset if self.chosen else None

    @property
    def next_offset(self) -> int | None:
        """First offset after the chosen fragments; None if nothing is chosen."""
        return self.chosen[-1].entry.next_offset if self.chosen else None

    @property
    def messages(self) -> int:
        """Number of messages in the chosen fragments."""
        return sum(each.entry.messages for each in self.chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The fragments found of one incarnation, for an operator who chooses between several."""

    incarnation: UUID
    choice: RebuildChoice
    epochs: tuple[int, int]
    """The lowest and the highest epoch of its writers."""

    first_timestamp_ms: int
    last_timestamp_ms: int


def histories(found: Iterable[FoundFragment]) -> list[History]:
    """Return the fragments found, by incarnation, in order of their newest messages."""
    by_incarnation: dict[UUID, list[FoundFragment]] = defaultdict(list)
    for each in found:
        by_incarnation[each.incarnation].append(each)
    rows = [_history(incarnation, own) for incarnation, own in by_incarnation.items()]
    return sorted(rows, key=lambda row: (row.last_timestamp_ms, row.incarnation.bytes))


def _history(incarnation: UUID, found: Sequence[FoundFragment]) -> History:
    epochs = [each.epoch for each in found]
    return History(
        incarnation=incarnation,
        choice=choose(found, incarnation=incarnation),
        epochs=(min(epochs), max(epochs)),
        first_timestamp_ms=min(each.entry.first_timestamp_ms for each in found),
        last_timestamp_ms=max(each.entry.last_timestamp_ms for each in found),
    )


def continuing(
    found: Sequence[FoundFragment], base: Manifest, named: Sequence[Entry] | None
) -> list[FoundFragment]:
    """Return the fragments that can be committed on `base`, a root that was the newest once.

    `named` are the fragments of `base`; None if a group is damaged, so that nobody can list them. If all of
    them are there, no other fragment below the end of `base` counts, because these were committed. If some
    are gone or unknown, others may have taken their place: then every fragment from the beginning of `base`
    on counts.
    """
    names = {(entry.first_offset, entry.attempt) for entry in named or ()}
    if named is not None and names <= {each.name for each in found}:
        # Uploads of attempts that were dropped lie at the same offsets, and may even have a higher epoch.
        return [each for each in found if each.name in names or each.entry.first_offset >= base.next_offset]
    return [each for each in found if each.entry.first_offset >= base.first_offset]


def choose(
    found: Sequence[FoundFragment], *, incarnation: UUID, begin: int | None = None, end: int | None = None
) -> RebuildChoice:
    """Choose the one history of an incarnation.

    `begin` and `end` say where the operator wants it to begin and end. Without them it begins at the least
    offset, and every fragment beyond its end is behind a hole.
    """
    left_out = [(each, "of another history") for each in found if each.incarnation != incarnation]
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
    # A fragment below the end is a rival that lost. One at the end or above was never reached: data that
    # must not be given up in silence.
    reached = chosen[-1].entry.next_offset if chosen else begin or 0
    beyond = [each for each in others if each.entry.first_offset >= reached]
    left_out += [
        (each, "a rival fragment of these offsets was chosen")
        for each in others
        if each.entry.first_offset < reached
    ]
    return RebuildChoice(chosen=chosen, left_out=left_out, holes=_holes(reached, beyond), beyond=beyond)


def _chain(found: Sequence[FoundFragment], begin: int | None) -> list[FoundFragment]:
    """Return the chain from `begin`, or from the least offset, by the rules at the head of this module."""
    starting: dict[int, list[FoundFragment]] = defaultdict(list)
    for each in found:
        starting[each.entry.first_offset].append(each)
    best: dict[int, FoundFragment] = {}
    reach: dict[int, int] = {}
    # From the end backwards: how far a fragment reaches is known only if all that follow it are judged.
    for offset in sorted(starting, reverse=True):
        best[offset] = max(starting[offset], key=lambda each: _rank(each, reach))
        following = best[offset].entry.next_offset
        reach[offset] = reach.get(following, following)
    chain: list[FoundFragment] = []
    at = min(starting, default=0) if begin is None else begin
    while at in best:
        chain.append(best[at])
        at = best[at].entry.next_offset
    return chain


def _rank(found: FoundFragment, reach: dict[int, int]) -> tuple[int, int, int, bytes]:
    entry = found.entry
    inverted = bytes(255 - byte for byte in entry.attempt.bytes)  # `max` then takes the lesser attempt
    return found.epoch, reach.get(entry.next_offset, entry.next_offset), entry.next_offset, inverted


def _holes(reached: int, beyond: Sequence[FoundFragment]) -> list[tuple[int, int]]:
    holes: list[tuple[int, int]] = []
    for each in sorted(beyond, key=lambda each: each.entry.first_offset):
        if each.entry.first_offset > reached:
            holes.append((reached, each.entry.first_offset))
        reached = max(reached, each.entry.next_offset)  # fragments beyond may overlap
    return holes
