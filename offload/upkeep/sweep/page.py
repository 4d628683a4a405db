"""The judgement of one page of a stream's listing: steps 2 and 3 of the sweep (`upkeep.sweep.tier`).

Invariants: a page is listed before its root is loaded; a verdict that condemns stays true for ever; if a part
of the tree cannot be read, there is no verdict on any object of the page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.commit.log import RootLog
from offload.contracts.store import Listed
from offload.formats.keys import IndexName, NoteName, StreamKeys
from offload.formats.sighting import KEY_KIND, ROOT_KIND, SIGHTING_ROW, SightingRows, as_bytes
from offload.ground.errors import Corrupt, NotFound, UnsupportedFormat
from offload.index.rules import WhyUnused, judged
from offload.model.entry import Entries, EntryKind
from offload.model.manifest import Manifest, StreamState
from offload.model.position import OFFSET_MAX
from offload.model.tree import Tree
from offload.native.anchors import read_anchor
from offload.native.key_objects import decode_key_object
from offload.native.shared_note import NOTES_KEPT, read_note
from offload.upkeep.pages import ListedPage

ROOTS_KEPT: Final = 16
"""How many of the newest roots stay, for people and for loaders that are slow."""

_U64_MAX: Final = 2**64 - 1


class Why(StrEnum):
    """The reason why an object stays or is deleted, in plain words."""

    NAMED = "named"
    RUNNING = "its attempt runs"
    UNDECIDED = "made for a root that is not committed yet"
    RECENT_ROOT = "one of the newest roots"
    ANCHOR = "anchor"
    NOTE = "a sweep's note"
    YOUNG = "an upload that may be under way"
    REBUILDING = "the stream is being rebuilt"
    NO_ROOT = "no root says whether it is named"
    KEY = "a key of the stream"
    OWN_KEY = "its own master key still exists; `offload shred` destroys both"
    NEWER_KEY = "written by a newer version of this program"
    INDEX = "an index"
    SHARED_NOTE = "a shared note"

    DROPPED = "its attempt was dropped"
    REPLACED = "replaced by a copy"
    TRIMMED = "trimmed"
    DELETED = "the stream was deleted"
    LOST = "a commit that lost made it"
    SUPERSEDED = "superseded root"
    UNFINISHED = "an upload that nobody will finish"
    ENDED_KEY = "a key of a deleted life of the stream"
    OLD_INDEX = WhyUnused.OLD.value
    TRIMMED_INDEX = WhyUnused.TRIMMED.value
    INNER_INDEX = WhyUnused.WITHIN.value
    ENDED_NOTE = "a shared note of a deleted life of the stream"
    OLD_NOTE = "an earlier value of a shared note"


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
        Why.KEY,
        Why.OWN_KEY,
        Why.NEWER_KEY,
        Why.INDEX,
        Why.SHARED_NOTE,
    }
)


_WHYS: Final = list(Why)


class SweepVerdict(NamedTuple):
    """The verdict on one object of a page. `name` is None for an object that cannot be condemned."""

    listed: Listed
    why: Why
    name: bytes | None


@dataclass(kw_only=True)
class SweepPage:
    """Steps 2 and 3 for one page of a stream's listing. Call `load`, then `judge`."""

    log: RootLog
    listing: ListedPage
    """The result of step 1."""
    roots_kept: int = ROOTS_KEPT
    strangers: list[str] = field(default_factory=list)
    """Keys of this page that are not of this format."""
    root: Manifest | None = None
    verdicts: list[SweepVerdict] = field(default_factory=list)
    unused: list[SweepVerdict] = field(default_factory=list)
    """Index objects and notes that nobody uses. They have no grace: who misses one lists again."""
    bases: list[tuple[int, str]] = field(default_factory=list)
    """The `base_version` of each sound key object and note of another life, with its key."""
    _unlisted: list[SightingRows] = field(default_factory=list)

    async def load(self) -> None:
        """2. Load the newest root. It may have been committed after the listing."""
        self.root = await self.log.load_newest()

    async def judge(self) -> None:
        """3. Decide for each object why it stays or why it goes.

        Raises `Corrupt`, `TryAgain` and the like if the tree cannot be read. Then there is no verdict.
        """
        # Each kind apart: fragments and groups are compared with the tree in their own order.
        named: dict[int, list[tuple[Listed, bytes]]] = {
            kind: [] for kind in (EntryKind.FRAGMENT, EntryKind.GROUP, ROOT_KIND, KEY_KIND)
        }
        verdicts, strangers = list[SweepVerdict](), list[str]()
        indexes, notes = list[Listed](), list[Listed]()
        for row in self.listing.rows:
            name = name_of(self.log.keys, row.key)
            if name is not None:
                is_group = EntryKind.FRAGMENT < name[0] < ROOT_KIND
                named[EntryKind.GROUP if is_group else name[0]].append((row, name))
            elif row.key == self.log.keys.anchor:
                verdicts.append(SweepVerdict(row, Why.ANCHOR, None))
            elif self.log.keys.parse_sighting(row.key):
                verdicts.append(SweepVerdict(row, Why.NOTE, None))
            elif self.log.keys.parse_index(row.key):
                indexes.append(row)
            elif self.log.keys.parse_note(row.key):
                notes.append(row)
            else:
                strangers.append(row.key)
        # Without a root nothing was ever committed, and the first commit may be on its way. During a rebuild
        # the fence still names what the old root named, and not yet what the rebuild will.
        if self.root is None or self.root.state is StreamState.REBUILDING:
            why = Why.NO_ROOT if self.root is None else Why.REBUILDING
            verdicts += [SweepVerdict(row, why, None) for rows in named.values() for row, _ in rows]
            verdicts += [SweepVerdict(row, why, None) for row in (*indexes, *notes)]
        else:
            self.bases, self.unused = [], []  # a second judgement, by a newer root, begins again
            tree = self.log.tree(self.root)
            verdicts += await self._judge_fragments(tree, named[EntryKind.FRAGMENT])
            verdicts += await _judge_groups(tree, named[EntryKind.GROUP])
            verdicts += [_judge_root(self.root, row, name, self.roots_kept) for row, name in named[ROOT_KIND]]
            verdicts += await self._judge_keys(self.root, named[KEY_KIND])
            verdicts += self._judge_indexes(self.root, indexes)
            verdicts += await self._judge_notes(self.root, notes)
        # Set only here: a tree that could not be read leaves no verdict behind.
        self.verdicts, self.strangers = verdicts, strangers

    def unlisted(self) -> Iterator[str]:
        """Yield the fragments that the root names within the page and that were not listed.

        Each was committed since the listing, or it is gone.
        """
        for rows in self._unlisted:
            yield from (row_key(self.log.keys, row) for row in rows)

    async def _judge_fragments(
        self, tree: Tree, objects: Sequence[tuple[Listed, bytes]]
    ) -> Sequence[SweepVerdict]:
        """Return verdicts on fragments, which come in order of their offsets, as listings have them."""
        self._unlisted = []  # a second judgement, by a newer root, begins again
        after, keys = self.listing.after, self.log.keys
        # Otherwise each later page would walk the whole tree in vain.
        if after > keys.data + ":":  # behind every digit: all fragments were on the pages before
            return []
        before, last = (
            self.log.keys.parse_data(key) for key in (self.listing.after, self.listing.rows[-1].key)
        )
        # A last key that is no fragment's usually lies behind the data: walk to the end then.
        end = OFFSET_MAX if self.listing.is_last or last is None else last[0]
        root, rows = tree.manifest, rows_named([name for _, name in objects])
        starts, named = rows["first_offset"], np.zeros(len(rows), bool)
        replaced = np.zeros(len(rows), bool)
        # A companion has the verdict of its fragment, which may be on another page, or gone.
        fragments = rows.copy()
        fragments["version"] = 0
        listed = rows[rows["version"] == 0]
        # From the offset of the key before the page: fragments of several attempts may begin at one offset.
        async with aclosing(tree.walk(before[0] if before else 0)) as runs:
            async for run in runs:
                # Objects behind the page are not its concern: the next page is judged by a root of its own.
                if run["first_offset"][0] > end:
                    break
                _mark(named, fragments, run)
                replaced |= _are_in_copies(starts, run)
                absent = _absent_from(listed, run)
                # Several fragments may begin at one offset, and the page may end between them: only names
                # that would lie within the page are missed here.
                held = [self.listing.holds(row_key(self.log.keys, row)) for row in absent]
                self._unlisted.append(absent[np.array(held, bool)])
                if run["first_offset"][-1] >= end:  # the next run may be a group to fetch, for nothing
                    break
        attempts = {running.attempt.bytes for running in root.running}  # a name ends with its attempt
        verdicts = []
        for (row, name), is_named, start, is_in_copy in zip(
            objects, named.tolist(), starts.tolist(), replaced.tolist(), strict=True
        ):
            why = _why_fragment(root, is_named, start, name[-16:] in attempts)
            # Replaced or dropped makes a difference for people only: neither attempt runs.
            verdicts.append(
                SweepVerdict(row, Why.REPLACED if is_in_copy and why is Why.DROPPED else why, name)
            )
        return verdicts

    def _judge_indexes(self, root: Manifest, objects: Sequence[Listed]) -> list[SweepVerdict]:
        """Return verdicts on the index objects that stay. The others are `unused` afterwards."""
        names = {row: name for row in objects if (name := self.log.keys.parse_index(row.key)) is not None}
        whys = dict[IndexName, WhyUnused]()
        # Those on another page may cover one of this page. It stays until a larger page shows that.
        for folder in {name.folder for name in names.values()}:
            here = [name for name in names.values() if name.folder == folder]
            whys |= judged(here, root, is_live=root.state is StreamState.LIVE).unused
        for row, name in names.items():
            if name in whys:
                self.unused.append(SweepVerdict(row, Why(whys[name].value), None))
        return [SweepVerdict(row, Why.INDEX, None) for row, name in names.items() if name not in whys]

    async def _judge_keys(
        self, root: Manifest, objects: Sequence[tuple[Listed, bytes]]
    ) -> list[SweepVerdict]:
        """Return verdicts on key objects. Those of the present life stay, and only the others are read."""
        return [SweepVerdict(row, await self._why_key(root, row.key), name) for row, name in objects]

    async def _why_key(self, root: Manifest, key: str) -> Why:
        # A key is made on a committed root of its life, and this root was loaded after the key was listed. So
        # the life of this root is that of the key, or a later one. If roots were lost, `bases` shows it.
        parsed = self.log.keys.parse_key_object(key)
        if root.state is StreamState.LIVE and parsed is not None and parsed[0] == root.incarnation:
            return Why.KEY
        decode = partial(decode_key_object, keys=self.log.keys, where=key)
        try:
            found = await read_anchor(self.log.store, key, decode)
        except (Corrupt, NotFound):  # its name says that its life ended, and its content tells nobody more
            return Why.ENDED_KEY
        except UnsupportedFormat:
            return Why.NEWER_KEY
        self.bases.append((found.base_version, key))
        # Without the object, nobody would know the label of the master key that `offload shred` destroys.
        return Why.OWN_KEY if found.own else Why.ENDED_KEY

    async def _judge_notes(self, root: Manifest, objects: Sequence[Listed]) -> list[SweepVerdict]:
        """Return verdicts on the shared notes that stay. The others are `unused` afterwards."""
        names = {row: name for row in objects if (name := self.log.keys.parse_note(row.key)) is not None}
        newest = dict[tuple[str, UUID], int]()
        for folder, life, number in names.values():
            newest[folder, life] = max(newest.get((folder, life), 0), number)
        stays = list[SweepVerdict]()
        for row, name in names.items():
            why = Why.SHARED_NOTE
            # A note is made on a committed root of its life, as a key is. The same reasons hold as there.
            if root.state is not StreamState.LIVE or name.incarnation != root.incarnation:
                why = await self._why_ended_note(row, name)
            elif name.number <= newest[name.folder, name.incarnation] - NOTES_KEPT:
                why = Why.OLD_NOTE
            (stays if why in STAYS else self.unused).append(SweepVerdict(row, why, None))
        return stays

    async def _why_ended_note(self, row: Listed, name: NoteName) -> Why:
        try:
            found = await read_note(self.log.store, self.log.stream, name)
            self.bases.append((found.base_version, row.key))
        except (Corrupt, NotFound):
            pass
        except UnsupportedFormat:
            return Why.NEWER_KEY
        return Why.ENDED_NOTE


def name_of(keys: StreamKeys, key: str) -> bytes | None:
    """Return the key of an object that can be condemned as a row of a sighting; None for any other key."""
    if (fragment := keys.parse_fragment(key)) is not None:
        first_offset, attempt = fragment
        return _packed(EntryKind.FRAGMENT, first_offset, 0, attempt.bytes)
    if (companion := keys.parse_companion(key)) is not None:
        first_offset, attempt, word = companion
        return _packed(EntryKind.FRAGMENT, first_offset, _number_of(word), attempt.bytes)
    if (group := keys.parse_group(key)) is not None:
        first_offset, version, uid, kind = group
        return _packed(kind, first_offset, version, uid.bytes)
    if (root := keys.parse_root(key)) is not None:
        return _packed(ROOT_KIND, 0, root, bytes(16))
    if (key_object := keys.parse_key_object(key)) is not None:
        # Without its incarnation: no two lives have a key of the same UUID.
        _, key_uid, generation = key_object
        return _packed(KEY_KIND, int(key.endswith(".copy")), generation, key_uid.bytes)
    return None


def row_key(keys: StreamKeys, row: np.void) -> str:
    """Return the key that a row of a sighting stands for. Undoes `name_of`, except for key objects."""
    kind, first_offset, version = (int(row[name]) for name in ("kind", "first_offset", "version"))
    if kind == ROOT_KIND:
        return keys.root(version)
    uid = UUID(bytes=bytes(row["uid"]))
    if kind:
        return keys.group(first_offset, version, uid, kind)
    if version:
        return keys.companion(first_offset, uid, version.to_bytes(8, "big").rstrip(b"\0").decode())
    return keys.fragment(first_offset, uid)


def _number_of(word: str) -> int:
    """Return a companion's name as the number that stands for it in a sighting."""
    return int.from_bytes(word.encode().ljust(8, b"\0"), "big")


class Going(NamedTuple):
    """The objects of a page that are due, kept in 50 bytes each until every page was judged."""

    rows: SightingRows
    sizes: npt.NDArray[np.uint64]
    whys: npt.NDArray[np.uint8]
    """The index of each reason in `Why`."""
    key_objects: dict[bytes, str]
    """The keys of key objects by their rows, which lack the incarnation. A stream has few of them."""

    @classmethod
    def of(cls, verdicts: Sequence[SweepVerdict]) -> Going:
        """Return these verdicts in small form."""
        return cls(
            rows_named([verdict.name or b"" for verdict in verdicts]),
            np.array([verdict.listed.size_bytes for verdict in verdicts], np.uint64),
            np.array([_WHYS.index(verdict.why) for verdict in verdicts], np.uint8),
            {
                verdict.name: verdict.listed.key
                for verdict in verdicts
                if verdict.name is not None and verdict.name[0] == KEY_KIND
            },
        )

    def verdicts(self, keys: StreamKeys) -> Iterator[SweepVerdict]:
        """Yield the verdicts again, without their names."""
        for row, size, why in zip(self.rows, self.sizes.tolist(), self.whys.tolist(), strict=True):
            key = self.key_objects.get(row.tobytes()) or row_key(keys, row)
            yield SweepVerdict(Listed(key, size), _WHYS[why], None)


def _packed(kind: int, first_offset: int, version: int, uid: bytes) -> bytes | None:
    if max(first_offset, version) > _U64_MAX:  # 20 digits can exceed a u64: such a key is not ours
        return None
    return SIGHTING_ROW.struct.pack(kind, first_offset, version, uid)


def rows_named(names: Sequence[bytes]) -> SightingRows:
    """Return names as one array."""
    return np.frombuffer(b"".join(names), SIGHTING_ROW.dtype)


def _rows_of(entries: Entries) -> SightingRows:
    """Return the names of the objects that these entries of a manifest or a group name."""
    rows = np.zeros(len(entries), SIGHTING_ROW.dtype)
    rows["kind"], rows["first_offset"] = entries["kind"], entries["first_offset"]
    rows["version"] = entries["root_version"]
    rows["uid"] = entries["attempt"]
    return rows


def _are_in_copies(starts: npt.NDArray[np.uint64], entries: Entries) -> npt.NDArray[np.bool_]:
    """Mark the offsets that lie within a fragment that replaced others."""
    row = np.searchsorted(entries["first_offset"], starts, side="right") - 1
    one = entries[np.maximum(row, 0)]  # row -1 lies before all entries: `inside` excludes it
    inside = (row >= 0) & (starts < one["first_offset"] + one["records"])
    in_copies: npt.NDArray[np.bool_] = inside & (one["copied"] == 1)
    return in_copies


def _why_fragment(root: Manifest, is_named: bool, first_offset: int, runs: bool) -> Why:
    if is_named:
        return Why.NAMED
    if runs:  # its writer may append it at any moment
        return Why.RUNNING
    if root.state is StreamState.DELETED:
        return Why.DELETED
    return Why.TRIMMED if first_offset < root.first_offset else Why.DROPPED


async def _judge_groups(tree: Tree, objects: Sequence[tuple[Listed, bytes]]) -> list[SweepVerdict]:
    """Return verdicts on groups, which come in order of their offsets."""
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
    if version > root.version:  # a writer stores its groups before the root that names them
        return Why.UNDECIDED
    # From here on the version of the group is decided. No commit of that version follows, so no commit
    # can name the group.
    if root.state is StreamState.DELETED:
        return Why.DELETED
    return Why.TRIMMED if first_offset < root.first_offset else Why.LOST


async def _groups_in(tree: Tree, low: int, high: int) -> AsyncIterator[Entries]:
    """Yield the entries of all groups that begin in [low, high], level by level.

    Each run is in order of offsets. The groups within a group that is trimmed in part are included, on both
    sides of the cut. The larger group names them as long as it exists, and a check of it follows every name.
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
    """Set `named` for each row that one of the entries names. Both are in order of offsets."""
    near = _near(rows, entries)
    named[near] |= np.isin(as_bytes(rows[near]), as_bytes(_rows_of(entries)))


def _absent_from(rows: SightingRows, entries: Entries) -> SightingRows:
    """Return the names that the entries have and `rows` lack. Both are in order of offsets."""
    own = _rows_of(entries)
    absent: SightingRows = own[~np.isin(as_bytes(own), as_bytes(rows[_near(rows, entries)]))]
    return absent


def _near(rows: SightingRows, entries: Entries) -> slice:
    """Return the rows that begin between the first and the last entry."""
    starts = rows["first_offset"]
    low = np.searchsorted(starts, entries["first_offset"][0], side="left")
    high = np.searchsorted(starts, entries["first_offset"][-1], side="right")
    return slice(int(low), int(high))


def _judge_root(newest: Manifest, row: Listed, name: bytes, kept: int) -> SweepVerdict:
    version = SIGHTING_ROW.unpack(name)["version"]
    if version >= newest.version:  # a root above the newest shows that roots were lost since the listing
        return SweepVerdict(row, Why.NAMED, name)
    if newest.state is StreamState.DELETED:  # only the tombstone stays: there is no history to look at
        return SweepVerdict(row, Why.DELETED, name)
    recent = version > newest.version - kept
    return SweepVerdict(row, Why.RECENT_ROOT if recent else Why.SUPERSEDED, name)
