"""Retention: the oldest fragments of a stream go, and the stream itself, if it is to be deleted.

A trim is one commit by a guest, who does not hold the stream: a higher first offset, and smaller totals.
Groups are not rewritten: of one that is trimmed in part, the root's first offset says what still lives. No
object is deleted here. What the newest root no longer names is the sweep's.

    stopped              left behind                       cured by
    before the commit    nothing                           nothing to cure
    after it             objects that no root names        the sweep

Invariants: what goes is a prefix of whole fragments; the totals taken off are those of live fragments alone,
so a trim that is repeated, or that follows another within a group, takes nothing off twice; the last
fragment goes only where an offset at or beyond the stream's end was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.commit.guest import Delete, Trim, TrimmedTotals, entries_before
from offload.contracts.offloader import LedgerOffloader
from offload.env import Env
from offload.errors import Absent, Conflict, Misuse, StreamDeleted, TryAgain
from offload.model.entry import NO_ENTRIES, TOTALS, Entries, exact_sum, joined_entries
from offload.model.manifest import Manifest
from offload.model.tree import Tree

__all__ = ["Retention", "TrimReport", "delete_stream", "plan_trim", "trim"]


TRIM_TRIALS_MAX: Final = 8
"""How often a trim is planned anew because another one, or a replacement, came between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What of a stream may go. Where several limits are set, the one that drops more counts.

    By age and size the last fragment always stays, however old or large it is.
    """

    age_seconds_max: float | None = None
    """A fragment goes if its greatest timestamp is older, and all fragments before it go."""

    size_bytes_max: int | None = None
    """The oldest fragment goes as long as the chunk bytes of all of them are more."""

    before_offset: int | None = None
    """Every fragment goes that ends at or below this offset; at or beyond the stream's end, all do."""

    def __post_init__(self) -> None:
        for limit in (self.age_seconds_max, self.size_bytes_max, self.before_offset):
            if limit is not None and not 0 <= limit < inf:
                raise Misuse(f"a limit of {limit} is none: limits are numbers from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimReport:
    """What a trim did, or would do."""

    trim: Trim | None
    """What goes; None where nothing does."""

    manifest: Manifest
    """What stays. In a dry run no root says this yet."""

    @property
    def since(self) -> int:
        """Where the stream began before."""
        return self.manifest.first_offset if self.trim is None else self.trim.since

    @property
    def dropped(self) -> TrimmedTotals:
        """The fragments that go, counted."""
        return _NOTHING if self.trim is None else self.trim.dropped


async def trim(
    offloader: LedgerOffloader,
    stream: str,
    retention: Retention,
    *,
    dry_run: bool = False,
    now_ms: int | None = None,
    env: Env | None = None,
) -> TrimReport:
    """Drop what may go of a stream, by one commit. With `dry_run`, only say what would go.

    `now_ms` is the time in milliseconds since 1970 (the wall clock's, where None). Where another trim comes
    between, what may go is decided anew. Raises `NotOffloaded` where there is no such stream,
    `StreamDeleted` where it is deleted meanwhile, and `TryAgain` where others trim all the time.
    """
    env = env or Env()
    now_ms = env.now_ms() if now_ms is None else now_ms
    manifest = await offloader.load_manifest(stream)
    incarnation = manifest.incarnation
    for attempt in range(TRIM_TRIALS_MAX):
        try:
            change = await plan_trim(offloader.tree(manifest), retention, now_ms=now_ms)
            if change is None or dry_run:
                kept = manifest if change is None else change.apply(manifest)
            else:
                kept = await offloader.commit_manifest(stream, change, base=manifest, committer=env.uuid())
        except (Conflict, Absent) as error:
            await env.sleep(env.backoff_seconds(attempt))
            seen, manifest = manifest, await offloader.load_manifest(stream)
            if isinstance(error, Absent) and manifest.version == seen.version:
                raise  # the newest manifest names what is gone
            if manifest.incarnation != incarnation:  # offsets and sizes of another stream were never meant
                again = f"stream {stream!r} was deleted and begun anew"
                raise StreamDeleted(again, epoch=manifest.epoch) from error
        else:
            return TrimReport(trim=change, manifest=kept)
    raise TryAgain(f"stream {stream!r}: others trim it faster than this can be decided; run again")


async def delete_stream(
    offloader: LedgerOffloader, stream: str, *, seen: Manifest | None = None, env: Env | None = None
) -> Manifest | None:
    """Delete a stream for good: a tombstone takes its place, and every writer is fenced.

    `seen` is the manifest on which that was decided: a stream of the same name that was born since stays.
    Returns what was committed before, or None where the stream is deleted already. Its objects go with the
    sweep. Raises `NotOffloaded` where nothing was ever committed, or while the stream is being rebuilt.
    """
    env = env or Env()
    manifest = seen or await load_unless_deleted(offloader, stream)
    if manifest is not None:
        change = Delete(incarnation=manifest.incarnation)
        await offloader.commit_manifest(stream, change, base=manifest, committer=env.uuid())
    return manifest


async def load_unless_deleted(offloader: LedgerOffloader, stream: str) -> Manifest | None:
    """The newest manifest, or None where a tombstone stands in its place. Raises as `load_manifest` does."""
    try:
        return await offloader.load_manifest(stream)
    except StreamDeleted:
        return None


async def plan_trim(tree: Tree, retention: Retention, *, now_ms: int) -> Trim | None:
    """The trim that does what `retention` says to the stream of this tree; None where nothing goes.

    At most three groups are fetched: of each level the one in which the cut may lie. It takes up to three
    more only where that group turns out to go whole, and the next one has to say how it begins.
    """
    manifest = tree.manifest
    search = _Search(tree)
    await search.go_over(manifest.entries, _rules_of(retention, manifest, now_ms))
    kept = joined_entries(*search.kept) if search.kept else NO_ENTRIES
    first_offset = int(kept["first_offset"][0]) if len(kept) else manifest.next_offset
    if first_offset <= manifest.first_offset:
        return None
    stays = {total: exact_sum(kept[total]) for total in (*TOTALS, "ledgers")}
    if len(kept) and not await _begins_a_ledger(tree, kept[:1]):
        stays["ledgers"] += 1  # its beginning goes, and what stays of it still counts
    return Trim(
        incarnation=manifest.incarnation,
        since=manifest.first_offset,
        first_offset=first_offset,
        dropped=TrimmedTotals(
            **{total: getattr(manifest, total) - number for total, number in stays.items()}
        ),
        counted=entries_before(manifest, first_offset),
        is_all=first_offset == manifest.next_offset,
    )


_NOTHING: Final = TrimmedTotals(messages=0, data_size_bytes=0, stored_size_bytes=0, fragments=0, ledgers=0)


@dataclass(frozen=True, slots=True)
class _Level:
    """Some entries of one level, in order, and how many chunk bytes lie behind each."""

    entries: Entries
    behind: Sequence[int]

    def __getitem__(self, rows: slice) -> _Level:
        return _Level(self.entries[rows], self.behind[rows])

    @property
    def ends(self) -> npt.NDArray[np.uint64]:
        """First offset after each."""
        ends: npt.NDArray[np.uint64] = self.entries["first_offset"] + self.entries["records"]
        return ends


@dataclass(frozen=True, slots=True)
class _Rule:
    """One limit. Which entries go whole by it, and of which a part may go; of a fragment no part does."""

    whole: Callable[[_Level], npt.NDArray[np.bool_]]
    partly: Callable[[_Level], npt.NDArray[np.bool_]]

    def passes(self, level: _Level) -> int:
        """How many of the first entries go whole."""
        stays = np.flatnonzero(~self.whole(level))
        return int(stays[0]) if len(stays) else len(level.entries)


def _rules_of(retention: Retention, manifest: Manifest, now_ms: int) -> list[_Rule]:
    rules = []
    if retention.before_offset is not None:
        rules.append(_before(min(retention.before_offset, manifest.next_offset)))
    if retention.size_bytes_max is not None:
        rules.append(_but_the_last(_larger_than(retention.size_bytes_max), manifest))
    if retention.age_seconds_max is not None:
        oldest_ms = now_ms - int(retention.age_seconds_max * 1000)
        rules.append(_but_the_last(_older_than(max(oldest_ms, -(2**63))), manifest))
    return rules


def _before(offset: int) -> _Rule:
    return _Rule(
        whole=lambda level: level.ends <= np.uint64(offset),
        partly=lambda level: level.entries["first_offset"] < np.uint64(offset),
    )


def _older_than(oldest_ms: int) -> _Rule:
    return _Rule(
        whole=lambda level: level.entries["last_timestamp_ms"] < oldest_ms,
        partly=lambda level: level.entries["first_timestamp_ms"] < oldest_ms,
    )


def _larger_than(size_bytes: int) -> _Rule:
    def whole(level: _Level) -> npt.NDArray[np.bool_]:
        """A fragment goes if it and all behind it are too much; a group, if its last one does."""
        own = np.where(level.entries["kind"] == 0, level.entries["data_size_bytes"], 0).tolist()
        return np.array([a + b > size_bytes for a, b in zip(own, level.behind, strict=True)], bool)

    def partly(level: _Level) -> npt.NDArray[np.bool_]:
        own = level.entries["data_size_bytes"].tolist()
        return np.array([a + b > size_bytes for a, b in zip(own, level.behind, strict=True)], bool)

    return _Rule(whole=whole, partly=partly)


def _but_the_last(rule: _Rule, manifest: Manifest) -> _Rule:
    """The same rule, but the entry with the stream's last fragment never goes whole by it."""
    end = np.uint64(manifest.next_offset)
    return _Rule(whole=lambda level: rule.whole(level) & (level.ends < end), partly=rule.partly)


@dataclass(slots=True)
class _Search:
    """A way down the tree to the first fragment that stays."""

    tree: Tree
    kept: list[Entries] = field(default_factory=list)
    """What stays, in order of offsets: all of each of these entries, of any kind."""

    async def go_over(self, entries: Entries, rules: list[_Rule], behind: int = 0) -> list[_Rule]:
        """Keep what stays of `entries`, with so many chunk bytes behind them all.

        Each of the rules lets go of all that is before them. Returns those that let go of all of these too;
        where there are any, nothing of these is kept.
        """
        level = _live(entries, self.tree.manifest, behind)
        row = 0
        while row < len(level.entries):
            passed = [(row + rule.passes(level[row:]), rule) for rule in rules]
            row = max((rows for rows, _ in passed), default=row)
            rules = [rule for rows, rule in passed if rows == row]
            one = level[row : row + 1]
            if row == len(level.entries):
                break
            rules = [rule for rule in rules if one.entries["kind"][0] and rule.partly(one)[0]]
            if not rules:
                self.kept.append(level.entries[row:])
                return []
            below = await self.tree.load(self.tree.manifest, one.entries)
            rules = await self.go_over(below, rules, one.behind[0])
            row += 1
            if not rules:
                self.kept.append(level.entries[row:])
                return []
        return rules


def _live(entries: Entries, manifest: Manifest, behind: int) -> _Level:
    """The entries of which something lives. Of the first a part may be dead."""
    ends = entries["first_offset"] + entries["records"]
    entries = entries[ends > np.uint64(manifest.first_offset)]
    sizes = entries["data_size_bytes"].tolist()
    sums = list(accumulate(reversed(sizes), initial=behind))
    return _Level(entries, sums[-2::-1])


async def _begins_a_ledger(tree: Tree, entry: Entries) -> bool:
    """Whether a ledger begins with the first fragment below `entry`, one row."""
    while 0 < entry["ledgers"][0] < entry["fragments"][0]:
        entry = (await tree.load(tree.manifest, entry))[:1]
    return bool(entry["ledgers"][0])
