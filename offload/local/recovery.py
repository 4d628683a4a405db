"""The part of a stream that a broker would still show after a crash: osiris' recovery, applied in memory.

Osiris repairs its files. This module changes no file: the same rules only decide which chunks are valid.

    1. The stream begins with the first complete pair. Retention deletes an index before its segment, so a
       crash can leave a segment without an index at the head.
    2. An index without a segment at the tail is ignored: the broker makes the index of a new pair first.
    3. The index decides. From the end of the newest index, records are dropped until one locates a chunk
       that is whole and has the right checksum. Chunks behind that one are dropped, sound or not.
    4. A newest pair without a valid chunk is ignored, and the one before it becomes the newest.

In two points this module is stricter than osiris. It may show less than the broker, and never more: a last
chunk must also have its trailer, and must be the one that its index record describes. A chunk that fails
this either becomes whole later, or is reported as damage as soon as another pair follows.

Only names and the newest pair are read. So a snapshot costs the same for a thousand pairs as for one, and can
be taken every few seconds. A sealed pair counts by its names alone. Its table (`sealed`) is checked when it
is needed, and the framework commits the ledgers before a pair with a damaged table.

The broker may be writing. It writes the chunk first and the index record second. This module reads the index
first and the segment's size second, so it finds each record's chunk. Rule 3 drops a half-written chunk.

The files do not show which chunks a majority of replicas holds. A new leader may still rewrite the tail of a
replica.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from offload.formats.segment import index_records
from offload.ground.errors import Corrupt, TryAgain
from offload.local.files import explained, shown_path
from offload.local.newest import Newest, recover_newest
from offload.local.pair import Pair, parse_name, read_index
from offload.local.sealed import SealedPair

__all__ = ["Recovered", "recover"]


TRIES_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The valid part of a stream: sealed pairs, then the newest, unless damage comes before it.

    By their names, each pair begins at the offset at which the one before it ends.
    """

    sealed: Sequence[SealedPair]
    newest: Newest | None
    first_offset: int
    next_offset: int
    epoch: int
    damage: Corrupt | None = None


def recover(folder: Path, *, stream: str) -> Recovered:
    """Apply the rules to a stream folder. Raises `TryAgain` if the broker keeps moving its files."""
    for tries_left in reversed(range(TRIES_MAX)):
        try:
            return _recover_once(folder, stream)
        except TryAgain:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _recover_once(folder: Path, stream: str) -> Recovered:
    # By names alone, so that a snapshot of a long stream opens two files and not thousands.
    names = _Names.of(folder)
    offsets, broken = names.counting()
    pairs = [Pair(folder, offset) for offset in offsets]
    if broken is not None:
        # A listing takes several system calls, in which the broker may roll over or delete a pair. Only a
        # file that is missing from two equal listings is damage.
        if _Names.of(folder) != names:
            raise TryAgain(f"{shown_path(folder)}: files were created or deleted while they were listed")
        return _cut(pairs, Pair(folder, broken), names.missing(Pair(folder, broken)), stream)

    for count, pair in reversed(list(enumerate(pairs))):
        try:
            newest = recover_newest(pair)
        except Corrupt as damage:  # rule 4 ignores only pairs without a valid chunk, not other damage
            return _cut(pairs[:count], pair, damage, stream)
        # None is rule 4: the next turn of the loop tries the pair before it.
        if newest is not None:
            return _whole(pairs[:count], newest)
    # No pair has a valid chunk. There may be no segment at all: the broker makes the index of a new pair
    # first.
    return _empty(min(offsets or names.indexes))


@dataclass(frozen=True, slots=True)
class _Names:
    """A listing of a folder: the offsets of its segments and of its indexes."""

    segments: frozenset[int]
    indexes: frozenset[int]

    @classmethod
    def of(cls, folder: Path) -> _Names:
        with explained("list", folder):
            found = [parsed for name in os.listdir(folder) if (parsed := parse_name(name))]
        # A stream that the broker deleted meanwhile is no damage.
        if not found:
            raise TryAgain(f"{shown_path(folder)} no longer holds a stream")
        return cls(
            frozenset(offset for offset, kind in found if kind == "segment"),
            frozenset(offset for offset, kind in found if kind == "index"),
        )

    def counting(self) -> tuple[list[int], int | None]:
        """Return the valid pairs, by rules 1 and 2, and the incomplete pair that ends them, or None."""
        complete = self.segments & self.indexes
        # Without any complete pair the first lone segment counts: a stream that lost all its indexes is
        # reported as damaged.
        first = min(complete or self.segments, default=0)  # rule 1: lone segments before it do not count
        last = max(self.segments, default=-1)  # rule 2: lone indexes behind it do not count
        offsets = sorted(offset for offset in self.segments | self.indexes if first <= offset <= last)
        broken = next((offset for offset in offsets if offset not in complete), None)
        return [offset for offset in offsets if broken is None or offset < broken], broken

    def missing(self, pair: Pair) -> Corrupt:
        """Return the damage of an incomplete pair: the file that it lacks."""
        absent = pair.segment if pair.offset in self.indexes else pair.index
        return Corrupt("file", shown_path(absent), expected="a segment and its index", found="no such file")


def _cut(sealed: list[Pair], broken: Pair, damage: Corrupt, stream: str) -> Recovered:
    """Return the pairs before a broken one. They end at the offset at which it begins."""
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
    """Return the epoch in a sealed pair's last index record; 0 if the index is broken.

    The pair's table will raise that damage, so nothing rests on the epoch then.
    """
    try:
        records = index_records(read_index(pair))
    except Corrupt:
        return 0
    return int(records["epoch"][-1]) if len(records) else 0
