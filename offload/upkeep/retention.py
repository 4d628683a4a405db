"""Retention: trim the oldest fragments of a stream, or delete the whole stream.

A trim is one commit by a guest, a process that does not hold the stream. The commit raises the first offset
and lowers the totals. Groups are not rewritten: if a group is trimmed in part, the root's first offset shows
which of its fragments are live. No object is deleted here: the sweep deletes what the newest root no longer
names.

    stopped              left behind                       cured by
    before the commit    nothing                           nothing to cure
    after it             objects that no root names        the sweep

Invariants:

- A trim removes a prefix of whole fragments.
- Only live fragments are taken off the totals. So a trim that is repeated, or that follows another one within
  a group, takes nothing off twice.
- A timestamp in the future is no age. Data with one goes by age only if something behind it is old, because
  it was written before that.
- The last fragment is removed only if the caller named an offset at or beyond the stream's end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from math import inf
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.commit.guest import Delete, Trim, TrimmedTotals, entries_before
from offload.contracts.offloader import LedgerOffloader
from offload.ground.env import Env
from offload.ground.errors import Absent, Conflict, Misuse, StreamDeleted, TryAgain
from offload.model.entry import NO_ENTRIES, TOTALS, Entries, Entry, exact_sum, joined_entries
from offload.model.manifest import Manifest
from offload.model.position import iso_of
from offload.model.tree import Tree

__all__ = ["Retention", "TrimReport", "delete_stream", "plan_trim", "trim"]


AHEAD_MS_MAX: Final = 3_600_000
"""How far a timestamp may be in the future before a report names it: clocks differ a little."""

TRIM_TRIALS_MAX: Final = 8
"""How often a trim is planned, if another trim or a compaction commits in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The limits of a trim. If several are set, the strictest applies.

    Age and size never remove the last fragment, however old or large it is.
    """

    age_seconds_max: float | None = None
    """Remove a fragment if its greatest timestamp is older than this, and all fragments before it go."""

    size_bytes_max: int | None = None
    """Remove the oldest fragment as long as the chunk bytes of all fragments exceed this.

    They are counted before compression: a limit means the same history, whatever the codecs of the fragments.
    """

    before_offset: int | None = None
    """Remove every fragment that ends at or below this offset; all of them if it is at or beyond the end."""

    def __post_init__(self) -> None:
        for limit in (self.age_seconds_max, self.size_bytes_max, self.before_offset):
            if limit is not None and not 0 <= limit < inf:
                raise Misuse(f"{limit} cannot be a limit: limits are finite numbers from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimReport:
    """The result of a trim, or of its dry run."""

    trim: Trim | None
    """The change; None if nothing was removed."""

    manifest: Manifest
    """The manifest after the trim. In a dry run it is not committed."""

    ahead: Entry | None = None
    """The first fragment that had a timestamp more than an hour in the future. None if none had, or if the
    age is not limited."""

    @property
    def since(self) -> int:
        """The first offset of the stream before the trim."""
        return self.manifest.first_offset if self.trim is None else self.trim.since

    @property
    def note(self) -> str | None:
        """A line for people about timestamps in the future. None if there are none."""
        if self.ahead is None:
            return None
        return (
            f"stream {self.manifest.stream!r}: the fragment at offset {self.ahead.first_offset} has a "
            f"timestamp in the future, {iso_of(self.ahead.last_timestamp_ms)}: a clock was wrong when it was "
            "written. By age, such data goes with the data behind it"
        )

    @property
    def dropped(self) -> TrimmedTotals:
        """The totals of the fragments that were removed."""
        return _NOTHING if self.trim is None else self.trim.dropped


async def trim(
    offloader: LedgerOffloader,
    stream: str,
    retention: Retention,
    *,
    dry_run: bool = False,
    now_ms: int | None = None,
    seen: Manifest | None = None,
    writer: UUID | None = None,
    env: Env | None = None,
) -> TrimReport:
    """Remove the fragments beyond the limits, by one commit. With `dry_run`, only report what would go.

    `seen` is the manifest on which the caller chose the limits. A stream that began since keeps its data.
    With a `writer`, raises `Fenced` if another one has claimed the stream, and nothing goes.
    `now_ms` is the time in milliseconds since 1970; None means the wall clock. If another trim commits in
    between, the trim is planned again. Raises `NotOffloaded` if there is no such stream, `StreamDeleted` if
    it is deleted meanwhile, and `TryAgain` if others keep changing it faster than the trim can be planned.
    """
    env = env or Env()
    # Once for all trials: a trim that is planned again removes no more than the first plan would have.
    now_ms = env.now_ms() if now_ms is None else now_ms
    manifest = seen or await offloader.load_manifest(stream)
    incarnation = manifest.incarnation
    for attempt in range(TRIM_TRIALS_MAX):
        try:
            tree = offloader.tree(manifest)
            change = await plan_trim(tree, retention, now_ms=now_ms)
            change = None if change is None else replace(change, writer=writer)
            ahead = None if retention.age_seconds_max is None else await first_ahead(tree, now_ms)
            if change is None or dry_run:
                kept = manifest if change is None else change.apply(manifest)
            else:
                kept = await offloader.commit_manifest(stream, change, base=manifest, committer=env.uuid())
        # `Conflict`: another trim or a compaction changed the entries that this one was counted on. `Absent`:
        # a group of the plan was replaced or trimmed by others, and swept.
        except (Conflict, Absent) as error:
            await env.sleep(env.backoff_seconds(attempt))
            seen, manifest = manifest, await offloader.load_manifest(stream)
            if isinstance(error, Absent) and manifest.version == seen.version:
                raise  # the newest manifest names a group that is gone: that is damage
            # The limits were meant for the stream that was there. One that began meanwhile keeps its data.
            if manifest.incarnation != incarnation:
                again = f"stream {stream!r} was deleted and begun again"
                raise StreamDeleted(again, epoch=manifest.epoch) from error
        else:
            return TrimReport(trim=change, manifest=kept, ahead=ahead)
    raise TryAgain(f"stream {stream!r}: it changes faster than a trim can be planned; run again")


async def delete_stream(
    offloader: LedgerOffloader, stream: str, *, seen: Manifest | None = None, env: Env | None = None
) -> Manifest | None:
    """Delete a stream for good: commit a tombstone, which fences every writer. Further parts of it stay.

    `seen` is the manifest on which the caller decided. A stream of the same name that began since stays.
    Returns the manifest before, or None if the stream is deleted already. The sweep deletes its objects.
    Raises `NotOffloaded` if nothing was ever committed, or while the stream is being rebuilt.
    """
    env = env or Env()
    manifest = seen or await load_unless_deleted(offloader, stream)
    if manifest is not None:
        change = Delete(incarnation=manifest.incarnation)
        await offloader.commit_manifest(stream, change, base=manifest, committer=env.uuid())
    return manifest


async def load_unless_deleted(offloader: LedgerOffloader, stream: str) -> Manifest | None:
    """Return the newest manifest; None if the stream was deleted. Otherwise raises as `load_manifest`."""
    try:
        return await offloader.load_manifest(stream)
    except StreamDeleted:
        return None


async def first_ahead(tree: Tree, now_ms: int) -> Entry | None:
    """Return the first fragment with a timestamp more than an hour in the future. Mostly loads nothing."""
    least_ms = now_ms + AHEAD_MS_MAX
    return await tree.first_since(least_ms) if _is_ahead(tree.manifest.entries, least_ms).any() else None


async def plan_trim(
    tree: Tree,
    retention: Retention,
    *,
    now_ms: int,
    keeps_last: bool = True,
    behind_ms: int | None = None,
) -> Trim | None:
    """Return the trim that `retention` asks for on the stream of this tree; None if nothing goes.

    If not `keeps_last`, age and size may remove the last fragment too: a later part has newer data. Its first
    fragment has the timestamp `behind_ms`, if that is given.

    A fragment with a timestamp in the future says nothing about its age: the clock of a producer or of the
    broker was wrong. But it was written before what follows it. So it goes with the next fragment whose
    timestamp is not in the future.

    Fetches at most three groups: of each level the one in which the cut may lie. If such a group turns out to
    go whole, it fetches up to three more, to learn how the next one begins. With an age beside another limit,
    up to three more tell how old the rest is of a group that was trimmed in part.
    """
    manifest = tree.manifest
    search = _Search(tree)
    rules = _rules_of(retention, manifest, now_ms, keeps_last=keeps_last)
    if retention.age_seconds_max is not None and _is_ahead(manifest.entries, now_ms).any():
        aged = await _age_cut(
            tree, _oldest_ms(retention.age_seconds_max, now_ms), now_ms, behind_ms=behind_ms
        )
        rules.append(_but_the_last(_before(aged), manifest) if keeps_last else _before(aged))
    await search.go_over(manifest.entries, rules)
    kept = joined_entries(*search.kept) if search.kept else NO_ENTRIES
    first_offset = int(kept["first_offset"][0]) if len(kept) else manifest.next_offset
    if first_offset <= manifest.first_offset:  # nothing goes: a commit would only cost a version
        return None
    # Counted by what stays: groups that go whole are never fetched, and may be dead in part already.
    stays = {total: exact_sum(kept[total]) for total in (*TOTALS, "ledgers")}
    # An entry counts the ledgers that begin in it. If the cut goes through a ledger, its beginning goes, and
    # the rest of it would not be counted.
    if len(kept) and not await _begins_a_ledger(tree, kept[:1]):
        stays["ledgers"] += 1
    return Trim(
        incarnation=manifest.incarnation,
        since=manifest.first_offset,
        first_offset=first_offset,
        dropped=TrimmedTotals(
            **{total: getattr(manifest, total) - number for total, number in stays.items()}
        ),
        # The commit is refused unless the root still has these entries: other totals would be wrong.
        counted=entries_before(manifest, first_offset),
        is_all=first_offset == manifest.next_offset,
    )


_NOTHING: Final = TrimmedTotals(messages=0, data_size_bytes=0, stored_size_bytes=0, fragments=0, ledgers=0)


@dataclass(frozen=True, slots=True)
class _Level:
    """Entries of one level, in order, and the number of chunk bytes behind each."""

    entries: Entries
    behind: Sequence[int]

    def __getitem__(self, rows: slice) -> _Level:
        return _Level(self.entries[rows], self.behind[rows])

    @property
    def ends(self) -> npt.NDArray[np.uint64]:
        """First offset after each entry."""
        ends: npt.NDArray[np.uint64] = self.entries["first_offset"] + self.entries["records"]
        return ends


@dataclass(frozen=True, slots=True)
class _Rule:
    """One limit: which entries it removes whole, and which it may remove in part. Fragments go whole."""

    whole: Callable[[_Level], npt.NDArray[np.bool_]]
    partly: Callable[[_Level], npt.NDArray[np.bool_]]

    def passes(self, level: _Level) -> int:
        """Return how many of the first entries go whole."""
        stays = np.flatnonzero(~self.whole(level))
        return int(stays[0]) if len(stays) else len(level.entries)


def _rules_of(retention: Retention, manifest: Manifest, now_ms: int, *, keeps_last: bool) -> list[_Rule]:
    rules, bounds = [], []
    if retention.before_offset is not None:
        rules.append(_before(min(retention.before_offset, manifest.next_offset)))  # it must fit a u64
    if retention.size_bytes_max is not None:
        bounds.append(_larger_than(retention.size_bytes_max))
    if retention.age_seconds_max is not None:
        bounds.append(_older_than(_oldest_ms(retention.age_seconds_max, now_ms)))
    return rules + [_but_the_last(rule, manifest) if keeps_last else rule for rule in bounds]


def _oldest_ms(age_seconds: float, now_ms: int) -> int:
    """Return the timestamp below which a fragment is too old."""
    return max(now_ms - int(age_seconds * 1000), -(2**63))  # an i64 in the rows


def _is_ahead(entries: Entries, now_ms: int) -> npt.NDArray[np.bool_]:
    """Return which entries have a timestamp in the future; for a group, which may have."""
    ahead: npt.NDArray[np.bool_] = entries["last_timestamp_ms"] > now_ms
    return ahead


async def _age_cut(tree: Tree, oldest_ms: int, now_ms: int, *, behind_ms: int | None) -> int:
    """Return the first offset that stays by age, where some fragments have timestamps in the future."""
    manifest, search = tree.manifest, _Search(tree)
    old = _older_than(oldest_ms)
    old_or_ahead = _Rule(
        # A group with a greatest timestamp in the future may have young fragments too.
        whole=lambda level: (
            old.whole(level) | (_is_ahead(level.entries, now_ms) & (level.entries["kind"] == 0))
        ),
        partly=lambda level: old.partly(level) | _is_ahead(level.entries, now_ms),
    )
    await search.go_over(manifest.entries, [old_or_ahead])
    young = int(search.kept[0]["first_offset"][0]) if search.kept else manifest.next_offset
    # What is in the future at the end of that is not known to be old, unless something old follows.
    if young == manifest.next_offset and behind_ms is not None and behind_ms < oldest_ms:
        return young
    return await _end_of_known(tree, manifest.entries, young, now_ms)


async def _end_of_known(tree: Tree, entries: Entries, before: int, now_ms: int) -> int:
    """Return the end of the last live fragment below `before` with no timestamp in the future. 0 for none."""
    first_offset = np.uint64(tree.manifest.first_offset)
    ends = entries["first_offset"] + entries["records"]
    rows = np.flatnonzero((entries["first_offset"] < np.uint64(before)) & (ends > first_offset))
    for row in reversed(rows.tolist()):
        one = entries[row : row + 1]
        if not _is_ahead(one, now_ms)[0] and int(ends[row]) <= before:
            return int(ends[row])
        if one["kind"][0]:
            found = await _end_of_known(tree, await tree.load(tree.manifest, one), before, now_ms)
            if found:
                return found
    return 0


def _before(offset: int) -> _Rule:
    return _Rule(
        whole=lambda level: level.ends <= np.uint64(offset),
        partly=lambda level: level.entries["first_offset"] < np.uint64(offset),
    )


def _older_than(oldest_ms: int) -> _Rule:
    return _Rule(
        whole=lambda level: level.entries["last_timestamp_ms"] < oldest_ms,
        # A group's timestamps are the least and the greatest below it, whatever their order.
        partly=lambda level: level.entries["first_timestamp_ms"] < oldest_ms,
    )


def _larger_than(size_bytes: int) -> _Rule:
    def whole(level: _Level) -> npt.NDArray[np.bool_]:
        """A fragment goes if it and all behind it are too large. A group goes if its last fragment does."""
        own = np.where(level.entries["kind"] == 0, level.entries["data_size_bytes"], 0).tolist()
        return np.array([a + b > size_bytes for a, b in zip(own, level.behind, strict=True)], bool)

    def partly(level: _Level) -> npt.NDArray[np.bool_]:
        own = level.entries["data_size_bytes"].tolist()
        return np.array([a + b > size_bytes for a, b in zip(own, level.behind, strict=True)], bool)

    return _Rule(whole=whole, partly=partly)


def _but_the_last(rule: _Rule, manifest: Manifest) -> _Rule:
    """Return the same rule, except that the entry with the stream's last fragment never goes whole."""
    end = np.uint64(manifest.next_offset)
    return _Rule(whole=lambda level: rule.whole(level) & (level.ends < end), partly=rule.partly)


@dataclass(slots=True)
class _Search:
    """A search down the tree for the first fragment that stays."""

    tree: Tree
    kept: list[Entries] = field(default_factory=list)
    """The entries that stay, whole, in order of offsets. They may be of any kind."""

    async def go_over(self, entries: Entries, rules: list[_Rule], behind: int = 0) -> list[_Rule]:
        """Keep what stays of `entries`. `behind` is the number of chunk bytes behind all of them.

        Each of the `rules` removes everything before `entries`. Returns the rules that remove all of
        `entries` too. If there are any, nothing of `entries` is kept.
        """
        level = _live(entries, self.tree.manifest, behind)
        row = 0
        while row < len(level.entries):
            # A rule in doubt about a group may go further than one that is not. So it is asked below.
            if not self._leaves_doubt(level[row : row + 1], rules):
                # The strictest rule counts. A rule that stopped at an earlier entry removes nothing after it.
                passed = [(row + rule.passes(level[row:]), rule) for rule in rules]
                row = max((rows for rows, _ in passed), default=row)
                rules = [rule for rows, rule in passed if rows == row]
                if row == len(level.entries):
                    break
                # Only a group can go in part. It is fetched only if some rule may cut within it.
                group = level[row : row + 1]
                rules = [rule for rule in rules if group.entries["kind"][0] and rule.partly(group)[0]]
                if not rules:
                    self.kept.append(level.entries[row:])
                    return []
            group = level[row : row + 1]
            below = await self.tree.load(self.tree.manifest, group.entries)
            rules = await self.go_over(below, rules, group.behind[0])
            row += 1  # rules that removed all of the group continue with the next entry
            if not rules:
                self.kept.append(level.entries[row:])
                return []
        return rules

    def _leaves_doubt(self, one: _Level, rules: list[_Rule]) -> bool:
        """Return whether `one` is a group that was trimmed in part, and a rule may remove the rest of it.

        The group's greatest timestamp may be that of a fragment which is trimmed already.
        """
        is_cut = one.entries["first_offset"][0] < np.uint64(self.tree.manifest.first_offset)
        if not (is_cut and one.entries["kind"][0]):
            return False
        return any(rule.partly(one)[0] and not rule.whole(one)[0] for rule in rules)


def _live(entries: Entries, manifest: Manifest, behind: int) -> _Level:
    """Return the entries with live data. A part of the first one may be trimmed already."""
    ends = entries["first_offset"] + entries["records"]
    entries = entries[ends > np.uint64(manifest.first_offset)]
    sizes = entries["data_size_bytes"].tolist()  # Python's integers: a sum of u64 could overflow
    sums = list(accumulate(reversed(sizes), initial=behind))
    return _Level(entries, sums[-2::-1])


async def _begins_a_ledger(tree: Tree, entry: Entries) -> bool:
    """Return whether a ledger begins with the first fragment below `entry`, one row."""
    # 0 ledgers: none begins below. As many as fragments: one begins with each. Otherwise look inside.
    while 0 < entry["ledgers"][0] < entry["fragments"][0]:
        entry = (await tree.load(tree.manifest, entry))[:1]
    return bool(entry["ledgers"][0])
