"""What a broker would still show of a stream after a crash: osiris' recovery, applied in memory.

Where osiris would repair its files, nothing is changed here; the same rules only decide what counts.

    1. The stream begins with the first complete pair. Retention deletes an index before its segment, so a
       crash can leave a segment without one at the head.
    2. An index without a segment at the tail is passed over: a new pair begins with its index.
    3. The index leads. From the end of the newest one, records are dropped until one locates a chunk that
       is whole and whose checksum holds. Chunks behind that one are dropped, sound or not.
    4. A newest pair that keeps no chunk is passed over, and the one before it becomes the newest.

In two things we are stricter than osiris, and may show less, never more: a last chunk must have its
trailer too, and be the one that its index record describes. A chunk that fails this either becomes
whole, or is found as damage as soon as another pair follows.

Only names and the newest pair are looked at, so that looking again every few seconds costs the same for a
thousand pairs as for one. A sealed pair is taken by its name; its table (`sealed`) is checked when it
is asked for, and the framework commits what stands before a pair whose table is damaged.

A broker may be writing. It writes the chunk first and the index record second; so does this read the
index first and look at the segment second, and finds each record's chunk there. What is half written
falls to rule 3.

Not visible in files: which chunks a majority of replicas holds. The tail of a replica may yet be
rewritten under a new leader.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offload.errors import Corrupt, TryAgain
from offload_rabbitmq.files import explained, shown
from offload_rabbitmq.newest import Newest, recover_newest
from offload_rabbitmq.pair import Pair, parse_name, read_index
from offload_rabbitmq.sealed import SealedPair
from offload_rabbitmq.segment import index_records

TRIES_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What counts of a stream: sealed pairs, then the newest, unless damage comes before it.

    They follow each other in offsets, by their names.
    """

    sealed: Sequence[SealedPair]
    newest: Newest | None
    first_offset: int
    next_offset: int
    epoch: int
    damage: Corrupt | None = None


def recover(folder: Path, *, stream: str) -> Recovered:
    """Apply the rules to a stream folder. Raises `TryAgain` where the broker keeps moving its files."""
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            return _recover_once(folder, stream)
        except TryAgain:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _recover_once(folder: Path, stream: str) -> Recovered:
    names = _Names.of(folder)
    offsets, broken = names.counting()
    pairs = [Pair(folder, offset) for offset in offsets]
    if broken is not None:
        if _Names.of(folder) != names:
            raise TryAgain(f"{shown(folder)}: files came and went while they were listed")
        return _cut(pairs, Pair(folder, broken), names.missing(Pair(folder, broken)), stream)

    for count, pair in reversed(list(enumerate(pairs))):
        try:
            newest = recover_newest(pair)
        except Corrupt as damage:
            return _cut(pairs[:count], pair, damage, stream)
        if newest is not None:
            return _whole(pairs[:count], newest)
    return _empty(min(offsets or names.indexes))


@dataclass(frozen=True, slots=True)
class _Names:
    """A listing of a folder: which segments and which indexes it holds, by offset."""

    segments: frozenset[int]
    indexes: frozenset[int]

    @classmethod
    def of(cls, folder: Path) -> _Names:
        with explained("list", folder):
            found = [parsed for name in os.listdir(folder) if (parsed := parse_name(name))]
        if not found:
            raise TryAgain(f"{shown(folder)} holds no stream any more")
        return cls(
            frozenset(offset for offset, kind in found if kind == "segment"),
            frozenset(offset for offset, kind in found if kind == "index"),
        )

    def counting(self) -> tuple[list[int], int | None]:
        """The complete pairs that count, by rules 1 and 2, and the incomplete one that ends them, if any."""
        complete = self.segments & self.indexes
        first = min(complete or self.segments, default=0)
        last = max(self.segments, default=-1)
        offsets = sorted(offset for offset in self.segments | self.indexes if first <= offset <= last)
        broken = next((offset for offset in offsets if offset not in complete), None)
        return [offset for offset in offsets if broken is None or offset < broken], broken

    def missing(self, pair: Pair) -> Corrupt:
        """What to say of an incomplete pair."""
        absent = pair.segment if pair.offset in self.indexes else pair.index
        return Corrupt("file", shown(absent), expected="a segment and its index", found="no such file")


def _cut(sealed: list[Pair], broken: Pair, damage: Corrupt, stream: str) -> Recovered:
    """The pairs before a broken one, which is sealed by nothing and begins where they end."""
    return Recovered(
        sealed=_sealed(sealed, broken.offset),
        newest=None,
        first_offset=sealed[0].offset if sealed else broken.offset,
        next_offset=broken.offset,
        epoch=_last_epoch(sealed[-1]) if sealed else 0,
        damage=damage.within(damage.where, stream=stream),
    )


def _whole(sealed: list[Pair], newest: Newest) -> Recovered:
    return Recovered(
        sealed=_sealed(sealed, newest.pair.offset),
        newest=newest,
        first_offset=(sealed or [newest.pair])[0].offset,
        next_offset=newest.last.next_offset,
        epoch=newest.last.epoch,
    )


def _empty(offset: int) -> Recovered:
    return Recovered(sealed=(), newest=None, first_offset=offset, next_offset=offset, epoch=0)


def _sealed(pairs: list[Pair], next_offset: int) -> list[SealedPair]:
    following = [*(pair.offset for pair in pairs), next_offset][1:]
    return [SealedPair(pair, offset) for pair, offset in zip(pairs, following, strict=True)]


def _last_epoch(pair: Pair) -> int:
    """The epoch in a sealed pair's last index record; 0 where the index is broken, as its table will say."""
    try:
        records = index_records(read_index(pair))
    except Corrupt:
        return 0
    return int(records["epoch"][-1]) if len(records) else 0
