"""Judging a page of a stream's listing: steps 2 and 3 of the sweep, whose rules stand in `upkeep.sweep.tier`.

Invariants: a page was listed before its root is loaded; a verdict that condemns stays true for ever; where
a part of the tree cannot be read, there is no verdict at all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.commit.log import RootLog
from offload.contracts.store import Listed
from offload.formats.keys import StreamKeys
from offload.formats.sighting import ROOT_KIND, SIGHTING_ROW, SightingRows, as_bytes
from offload.model.entry import GROUP_ROOT_VERSION, Entries, EntryKind
from offload.model.manifest import Manifest, StreamState
from offload.model.position import OFFSET_MAX
from offload.model.tree import Tree
from offload.upkeep.pages import ListedPage

ROOTS_KEPT: Final = 16
_U64_MAX: Final = 2**64 - 1


class Why(StrEnum):
    """Why an object stays, or why it goes, in plain words."""

    NAMED = "named"
    RUNNING = "its attempt runs"
    UNDECIDED = "made for a root that is not committed yet"
    RECENT_ROOT = "one of the newest roots"
    ANCHOR = "anchor"
    NOTE = "a sweep's note"
    YOUNG = "an upload that may be under way"
    REBUILDING = "the stream is being rebuilt"
    NO_ROOT = "no root says whether it is named"

    DROPPED = "its attempt was dropped"
    REPLACED = "replaced by a copy"
    TRIMMED = "trimmed"
    DELETED = "the stream was deleted"
    LOST = "a commit that lost made it"
    SUPERSEDED = "superseded root"
    UNFINISHED = "an upload that nobody will finish"


STAYS: Final = frozenset(
    {
        Why.NAMED,
        Why.RUNNING,
        Why.UNDECIDED,
        Why.RECENT_ROOT,
        Why.ANCHOR,
        Why.NOTE,
        Why.YOUNG,
        Why.REBUILDING,
        Why.NO_ROOT,
    }
)


_WHYS: Final = list(Why)


class SweepVerdict(NamedTuple):
    """What a page says of one of its objects. `name` is None for what cannot be condemned."""

    listed: Listed
    why: Why
    name: bytes | None


@dataclass(kw_only=True)
class SweepPage:
    """Steps 2 and 3 for one page of a stream's listing, to be called in this order."""

    log: RootLog
    listing: ListedPage
    """Step 1: what is there."""
    roots_kept: int = ROOTS_KEPT
    strangers: list[str] = field(default_factory=list)
    root: Manifest | None = None
    verdicts: list[SweepVerdict] = field(default_factory=list)
    _unlisted: list[SightingRows] = field(default_factory=list)

    async def load(self) -> None:
        """2. The newest root, which may have been committed since the listing, and never before it."""
        self.root = await self.log.load_newest()

    async def judge(self) -> None:
        """3. Say of each object why it stays or why it goes.

        Raises `Corrupt`, `TryAgain` and the like where the tree cannot be read: then there is no verdict.
        """
        named: dict[int, list[tuple[Listed, bytes]]] = {kind: [] for kind in range(3)}
        verdicts, strangers = [], []
        for row in self.listing.rows:
            name = name_of(self.log.keys, row.key)
            if name is not None:
                named[min(name[0], 1) if name[0] < ROOT_KIND else 2].append((row, name))
            elif row.key == self.log.keys.anchor:
                verdicts.append(SweepVerdict(row, Why.ANCHOR, None))
            elif self.log.keys.parse_sighting(row.key):
                verdicts.append(SweepVerdict(row, Why.NOTE, None))
            else:
                strangers.append(row.key)
        if self.root is None or self.root.state is StreamState.REBUILDING:
            why = Why.NO_ROOT if self.root is None else Why.REBUILDING
            verdicts += [SweepVerdict(row, why, None) for rows in named.values() for row, _ in rows]
        else:
            tree = self.log.tree(self.root)
            verdicts += await self._judge_fragments(tree, named[0])
            verdicts += await _judge_groups(tree, named[1])
            verdicts += [_judge_root(self.root, row, name, self.roots_kept) for row, name in named[2]]
        self.verdicts, self.strangers = verdicts, strangers

    def unlisted(self) -> Iterator[str]:
        """Fragments that the root names within the page and that were not listed: uploaded since, or gone."""
        for rows in self._unlisted:
            yield from (row_key(self.log.keys, row) for row in rows)

    async def _judge_fragments(
        self, tree: Tree, objects: Sequence[tuple[Listed, bytes]]
    ) -> Sequence[SweepVerdict]:
        """Verdicts on fragments that come in order of their offsets, as listings have them."""
        self._unlisted = []
        after, keys = self.listing.after, self.log.keys
        if after > keys.data + ":":  # all fragments were on the pages before
            return []
        before, last = (
            self.log.keys.parse_fragment(key) for key in (self.listing.after, self.listing.rows[-1].key)
        )
        end = OFFSET_MAX if self.listing.is_last or last is None else last[0]
        root, rows = tree.manifest, rows_named([name for _, name in objects])
        starts, named = rows["first_offset"], np.zeros(len(rows), bool)
        replaced = np.zeros(len(rows), bool)
        async with aclosing(tree.walk(before[0] if before else 0)) as runs:
            async for run in runs:
                if run["first_offset"][0] > end:
                    break
                _mark(named, rows, run)
                replaced |= _are_in_copies(starts, run)
                absent = _absent_from(rows, run)
                held = [self.listing.holds(row_key(self.log.keys, row)) for row in absent]
                self._unlisted.append(absent[np.array(held, bool)])
                if run["first_offset"][-1] >= end:
                    break
        attempts = {running.attempt.bytes for running in root.running}
        verdicts = []
        for (row, name), is_named, start, is_in_copy in zip(
            objects, named.tolist(), starts.tolist(), replaced.tolist(), strict=True
        ):
            why = _why_fragment(root, is_named, start, name[-16:] in attempts)
            verdicts.append(
                SweepVerdict(row, Why.REPLACED if is_in_copy and why is Why.DROPPED else why, name)
            )
        return verdicts


def name_of(keys: StreamKeys, key: str) -> bytes | None:
    """A fragment's, group's or root's key as a row of a sighting; None for any other key."""
    if (fragment := keys.parse_fragment(key)) is not None:
        first_offset, attempt = fragment
        return _packed(EntryKind.FRAGMENT, first_offset, 0, attempt.bytes)
    if (group := keys.parse_group(key)) is not None:
        first_offset, version, uid, kind = group
        return _packed(kind, first_offset, version, uid.bytes)
    if (root := keys.parse_root(key)) is not None:
        return _packed(ROOT_KIND, 0, root, bytes(16))
    return None


def row_key(keys: StreamKeys, row: np.void) -> str:
    """The key that this row of a sighting stands for: undoes `name_of`."""
    kind, first_offset, version = (int(row[name]) for name in ("kind", "first_offset", "version"))
    if kind == ROOT_KIND:
        return keys.root(version)
    uid = UUID(bytes=bytes(row["uid"]))
    return keys.group(first_offset, version, uid, kind) if kind else keys.fragment(first_offset, uid)


class Going(NamedTuple):
    """What goes of a page, kept small until every page was judged: 50 bytes an object."""

    rows: SightingRows
    sizes: npt.NDArray[np.uint64]
    whys: npt.NDArray[np.uint8]
    """By their place in `Why`."""

    @classmethod
    def of(cls, verdicts: Sequence[SweepVerdict]) -> Going:
        """Keep these."""
        return cls(
            rows_named([verdict.name or b"" for verdict in verdicts]),
            np.array([verdict.listed.size_bytes for verdict in verdicts], np.uint64),
            np.array([_WHYS.index(verdict.why) for verdict in verdicts], np.uint8),
        )

    def verdicts(self, keys: StreamKeys) -> Iterator[SweepVerdict]:
        """What was kept, without names."""
        for row, size, why in zip(self.rows, self.sizes.tolist(), self.whys.tolist(), strict=True):
            yield SweepVerdict(Listed(row_key(keys, row), size), _WHYS[why], None)


def _packed(kind: int, first_offset: int, version: int, uid: bytes) -> bytes | None:
    if max(first_offset, version) > _U64_MAX:  # 20 digits can say more: then it is not ours
        return None
    return SIGHTING_ROW.struct.pack(kind, first_offset, version, uid)


def rows_named(names: Sequence[bytes]) -> SightingRows:
    """Names as one array."""
    return np.frombuffer(b"".join(names), SIGHTING_ROW.dtype)


def _rows_of(entries: Entries) -> SightingRows:
    """The names of what these entries of a manifest or a group name."""
    rows = np.zeros(len(entries), SIGHTING_ROW.dtype)
    rows["kind"], rows["first_offset"] = entries["kind"], entries["first_offset"]
    rows["version"] = np.where(entries["kind"] > 0, entries[GROUP_ROOT_VERSION], 0)
    rows["uid"] = entries["attempt"]
    return rows


def _are_in_copies(starts: npt.NDArray[np.uint64], entries: Entries) -> npt.NDArray[np.bool_]:
    """Which of these offsets are in a fragment that took the place of others."""
    row = np.searchsorted(entries["first_offset"], starts, side="right") - 1
    one = entries[np.maximum(row, 0)]
    inside = (row >= 0) & (starts < one["first_offset"] + one["records"])
    in_copies: npt.NDArray[np.bool_] = inside & (one["copied"] == 1)
    return in_copies


def _why_fragment(root: Manifest, is_named: bool, first_offset: int, runs: bool) -> Why:
    if is_named:
        return Why.NAMED
    if runs:
        return Why.RUNNING
    if root.state is StreamState.DELETED:
        return Why.DELETED
    return Why.TRIMMED if first_offset < root.first_offset else Why.DROPPED


async def _judge_groups(tree: Tree, objects: Sequence[tuple[Listed, bytes]]) -> list[SweepVerdict]:
    """Verdicts on groups that come in order of their offsets."""
    if not objects:
        return []
    root, rows = tree.manifest, rows_named([name for _, name in objects])
    starts, named = rows["first_offset"], np.zeros(len(rows), bool)
    async for run in _groups_in(tree, int(starts[0]), int(starts[-1])):
        _mark(named, rows, run)
    return [
        SweepVerdict(row, _why_group(root, is_named, start, version), name)
        for (row, name), is_named, start, version in zip(
            objects, named.tolist(), starts.tolist(), rows["version"].tolist(), strict=True
        )
    ]


def _why_group(root: Manifest, is_named: bool, first_offset: int, version: int) -> Why:
    if is_named:
        return Why.NAMED
    if version > root.version:
        return Why.UNDECIDED
    if root.state is StreamState.DELETED:
        return Why.DELETED
    return Why.TRIMMED if first_offset < root.first_offset else Why.LOST


async def _groups_in(tree: Tree, low: int, high: int) -> AsyncIterator[Entries]:
    """The entries of all groups that begin in [low, high], level by level, each run in order of offsets.

    Those within a group that is trimmed in part are among them, wherever they lie: it names them as long as
    it stands, and whoever checks it follows it.
    """
    levels = [tree.manifest.entries]
    while levels:
        entries = levels.pop()
        entries = entries[entries["kind"] > 0]
        begins, ends = entries["first_offset"], entries["first_offset"] + entries["records"]
        entries = entries[(begins <= np.uint64(high)) & (ends > np.uint64(low))]
        if len(entries):
            yield entries
        larger = np.flatnonzero(entries["kind"] > 1)
        levels += [await tree.load(tree.manifest, entries[row : row + 1]) for row in larger]


def _mark(named: npt.NDArray[np.bool_], rows: SightingRows, entries: Entries) -> None:
    """Set `named` where a row is what one of the entries names. Both are in order of offsets."""
    near = _near(rows, entries)
    named[near] |= np.isin(as_bytes(rows[near]), as_bytes(_rows_of(entries)))


def _absent_from(rows: SightingRows, entries: Entries) -> SightingRows:
    """What the entries name and no row is. Both are in order of offsets."""
    own = _rows_of(entries)
    absent: SightingRows = own[~np.isin(as_bytes(own), as_bytes(rows[_near(rows, entries)]))]
    return absent


def _near(rows: SightingRows, entries: Entries) -> slice:
    """The rows of the entries' offsets."""
    starts = rows["first_offset"]
    low = np.searchsorted(starts, entries["first_offset"][0], side="left")
    high = np.searchsorted(starts, entries["first_offset"][-1], side="right")
    return slice(int(low), int(high))


def _judge_root(newest: Manifest, row: Listed, name: bytes, kept: int) -> SweepVerdict:
    version = SIGHTING_ROW.unpack(name)["version"]
    if version >= newest.version:
        return SweepVerdict(row, Why.NAMED, name)
    if newest.state is StreamState.DELETED:
        return SweepVerdict(row, Why.DELETED, name)
    recent = version > newest.version - kept
    return SweepVerdict(row, Why.RECENT_ROOT if recent else Why.SUPERSEDED, name)
