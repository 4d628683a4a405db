"""Tests of the tree against a flat list: after any appends, collapses and trims both give the same
answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest
from campaign import CAMPAIGN, few
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.commit.applying import append_entries
from offload.commit.grouping import FACTOR, collapse, edited
from offload.commit.groups import GroupCache, fetch_group
from offload.commit.guest import Trim, TrimmedTotals, entries_before
from offload.contracts.change import Edit
from offload.copy.copier import LEDGERS_AT_ONCE
from offload.formats.group import GROUP_HEADER
from offload.formats.root import ENTRY, ROOT_HEADER, RUNNING, decode_root, encode_root
from offload.model.entry import (
    TOTALS,
    Entries,
    Entry,
    EntryKind,
    entries_of_rows,
    exact_sum,
    joined_entries,
    rows_of_entries,
)
from offload.model.manifest import Manifest, Running
from offload.model.tree import Tree
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.write.writer import COMMIT_ENTRIES

COUNTED: Final = (*TOTALS, "ledgers")
LEVELS: Final = len(EntryKind) - 1
"""The number of objects between a root and its deepest fragments."""


def ledgers_of(fragments: Sequence[Entry]) -> int:
    """Return the number of ledgers of these fragments."""
    return bool(fragments) + sum(a.ledger_id != b.ledger_id for a, b in pairwise(fragments))


def totals_of(fragments: Sequence[Entry]) -> dict[str, int]:
    """Return the totals that a root has for these fragments."""
    return {
        "messages": sum(each.messages for each in fragments),
        "data_size_bytes": sum(each.data_size_bytes for each in fragments),
        "stored_size_bytes": sum(each.stored_size_bytes for each in fragments),
        "fragments": len(fragments),
        "ledgers": ledgers_of(fragments),
    }


@dataclass
class Stream:
    """One stream in two forms: its live fragments in a list, and a manifest over groups in a dict."""

    factor: int
    first_offset: int = 0
    live: list[Entry] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    uids: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        self.store = MemoryStore(objects=self.objects)
        self.manifest = Manifest(
            stream="orders",
            version=1,
            incarnation=UUID(int=1),
            writer=UUID(int=2),
            epoch=1,
            source_epoch=0,
            committer=UUID(int=2),
            commit_id=UUID(int=3),
            first_offset=self.first_offset,
            next_offset=self.first_offset,
        )

    @property
    def tree(self) -> Tree:
        """Return the tree, with its groups cached."""
        cache = GroupCache()
        return Tree(self.manifest, lambda manifest, entry: cache.load(self.store, manifest, entry))

    @property
    def covered(self) -> range:
        """Return the range of live offsets."""
        return range(self.manifest.first_offset, self.manifest.next_offset)

    def append(self, fragments: Sequence[Entry]) -> None:
        """Commit these fragments at the end, however long a run becomes."""
        self.live += fragments
        self.commit(append_entries(self.manifest, fragments))

    def trim(self, fragments: int) -> None:
        """Commit a trim of so many of the oldest fragments, counted in the list."""
        gone, self.live = self.live[:fragments], self.live[fragments:]
        before, after = totals_of([*gone, *self.live]), totals_of(self.live)
        change = Trim(
            incarnation=self.manifest.incarnation,
            since=self.manifest.first_offset,
            first_offset=gone[-1].next_offset,
            dropped=TrimmedTotals(**{total: before[total] - after[total] for total in COUNTED}),
            counted=entries_before(self.manifest, gone[-1].next_offset),
        )
        self.commit(change.apply(self.manifest))

    def merge(self, number: int) -> None:
        """Commit a merge of a fragment with the next one, if both are of one ledger and in one run."""
        where = number % len(self.live)

        def edit(run: Entries) -> Entries:
            at = run["first_offset"].tolist().index(self.live[where].first_offset)
            pair = entries_of_rows(run[at : at + 2])
            if len({entry.ledger_id for entry in pair}) < len(pair):
                self.live[where : where + 2] = [merged(pair, UUID(int=2**64 + next(self.uids)))]
                before = None if run["ledgers"][at] else pair[0].ledger_id
                return joined_entries(
                    run[:at],
                    rows_of_entries(self.live[where : where + 1], after_ledger=before),
                    run[at + 2 :],
                )
            return run

        version, offset = self.manifest.version + 1, self.live[where].first_offset
        uuid = lambda: UUID(int=next(self.uids))  # noqa: E731 - as for `collapse`
        entries, groups = asyncio.run(edited(self.tree, Edit(offset, edit), version=version, uuid=uuid))
        for group, raw in groups:
            assert group.key not in self.objects
            assert (group.version, group.encode()) == (version, raw)
            self.objects[group.key] = raw
        self.commit(replace(self.manifest, entries=entries, **totals_of(self.live)))

    def collapse(self) -> None:
        """Commit the move of long runs into groups, and store these groups."""
        version = self.manifest.version + 1
        collapsed, groups = collapse(
            self.manifest, factor=self.factor, version=version, uuid=lambda: UUID(int=next(self.uids))
        )
        for name in self.manifest.__dataclass_fields__.keys() - {"entries"}:
            assert getattr(collapsed, name) == getattr(self.manifest, name), name
        for group, raw in groups:
            assert group.key not in self.objects
            assert len(group.entries) == self.factor
            assert (group.version, group.encode()) == (version, raw)
            self.objects[group.key] = raw
        self.commit(collapsed)
        runs = np.bincount(self.manifest.entries["kind"], minlength=len(EntryKind))
        assert (runs[: EntryKind.MEGA_GROUP] < self.factor).all()

    def commit(self, changed: Manifest) -> None:
        """Commit the next root: check it against the invariants and the list, and decode it from
        its bytes.
        """
        self.manifest = changed = replace(changed, version=self.manifest.version + 1)
        changed.check("here")
        again = decode_root(encode_root(changed), where="here")
        assert encode_root(again) == encode_root(changed)
        kinds = changed.entries["kind"].tolist()
        assert kinds == sorted(kinds, reverse=True)
        assert {total: getattr(changed, total) for total in COUNTED} == totals_of(self.live)

    def check(self) -> None:
        """Assert that the tree answers every question as the list does."""
        asyncio.run(self._check())

    async def _check(self) -> None:
        tree, live = self.tree, self.live
        stride = len(self.covered) // 30 + 1
        for offset in (0, *self.covered[::stride], *self.covered[-1:], self.manifest.next_offset):
            assert await walked(tree, offset) == [each for each in live if each.next_offset > offset]
        held = [each for each in live for _ in range(each.records)]
        assert [await tree.find(offset) for offset in self.covered] == held
        assert await tree.find(self.manifest.first_offset - 1) is None
        assert await tree.find(self.manifest.next_offset) is None
        assert await tree.last() == (live[-1] if live else None)
        with_messages = [each for each in live if each.messages]
        assert await tree.last_with_messages() == (with_messages[-1] if with_messages else None)
        assert await tree.last_timestamp_ms() == max((each.last_timestamp_ms for each in live), default=None)
        for moment in moments_of(live):
            since = [each for each in live if each.last_timestamp_ms >= moment]
            assert await tree.first_since(moment) == (since[0] if since else None)
        for each in live:
            assert await tree.names(each.first_offset, each.attempt)
            assert not await tree.names(each.first_offset, UUID(int=0))


def merged(entries: Sequence[Entry], attempt: UUID) -> Entry:
    """Return a copy of these fragments."""
    sums = ("records", "messages", "data_size_bytes", "stored_size_bytes")
    return replace(
        entries[0],
        attempt=attempt,
        copied=1,
        first_timestamp_ms=min(entry.first_timestamp_ms for entry in entries),
        last_timestamp_ms=max(entry.last_timestamp_ms for entry in entries),
        **{name: sum(getattr(entry, name) for entry in entries) for name in sums},
    )


def moments_of(fragments: Sequence[Entry]) -> set[int]:
    """Return every moment at which the answer to `first_since` may change."""
    lasts = {each.last_timestamp_ms for each in fragments}
    return {-(2**63), 2**63 - 1} | lasts | {last + 1 for last in lasts}


async def walked(tree: Tree, offset: int) -> list[Entry]:
    """Return the fragments that a walk yields from this offset on."""
    found: list[Entry] = []
    async for run in tree.walk(offset):
        assert len(run)
        found += entries_of_rows(run)
    return found


class Clock:
    """A maker of consecutive fragments. Their timestamps sometimes go back a little."""

    def __init__(self, offset: int, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.offset, self.draw = offset, draw
        self.now_ms, self.ledger_id, self.number = -20, 0, 0

    def fragments(self, amount: int) -> list[Entry]:
        return [self.fragment() for _ in range(amount)]

    def fragment(self) -> Entry:
        # One draw for each fragment keeps small examples readable and large ones cheap.
        chance = self.draw(st.integers(0, 2**16 - 1))
        records, back_ms, lasts_ms, messages = (
            chance % 3 + 1,
            chance // 3 % 8,
            chance // 24 % 6,
            chance % 7 - 2,
        )
        self.now_ms += 4
        self.number += 1
        self.ledger_id += chance // 144 % 3 == 0
        self.offset += records
        return Entry(
            first_offset=self.offset - records,
            records=records,
            messages=min(max(messages, 0), records),
            first_timestamp_ms=self.now_ms - back_ms,
            last_timestamp_ms=self.now_ms - back_ms + lasts_ms,
            data_size_bytes=chance,
            stored_size_bytes=chance + 100,
            ledger_id=self.ledger_id,
            attempt=UUID(int=self.number),
            checksum=chance,
        )


factors = st.integers(2, 4)
first_offsets = st.sampled_from([0, 7, 2**32 - 5, 2**63 - 5])
steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 30)),
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("trim"), st.integers(1, 40)),
    st.tuples(st.just("merge"), st.integers(0, 40)),
    st.tuples(st.just("collapse"), st.just(0)),
)


@settings(deadline=None, max_examples=2_000 if CAMPAIGN else 10)
@given(factors, first_offsets, st.lists(steps, min_size=1, max_size=12), st.data())
def test_the_tree_answers_as_the_list_does(
    factor: int, first_offset: int, todo: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Appends have any length, groups are made at random, fragments are merged anywhere, and prefixes are
    dropped wherever a fragment ends, also again and again within a group of any kind.
    """
    stream, clock = Stream(factor, first_offset), Clock(first_offset, data.draw)
    for step, amount in todo:
        if step == "append":
            stream.append(clock.fragments(amount))
        elif step == "collapse":
            stream.collapse()
        elif stream.live and step == "merge":
            stream.merge(amount)
        elif stream.live:
            stream.trim(min(amount, len(stream.live)))
    stream.collapse()

    stream.check()


def alike(amount: int, *, per_ledger: int = 1, first_number: int = 0) -> list[Entry]:
    """Return fragments of one record each, at one moment each."""
    return [
        Entry(
            first_offset=number,
            records=1,
            messages=1,
            first_timestamp_ms=number,
            last_timestamp_ms=number,
            data_size_bytes=100,
            stored_size_bytes=300,
            ledger_id=number // per_ledger,
            attempt=UUID(int=number + 1),
            checksum=number % 2**32,
        )
        for number in range(first_number, first_number + amount)
    ]


def grown(amount: int, *, factor: int = 3, per_ledger: int = 1) -> Stream:
    """Return a stream of so many fragments, each appended and collapsed separately."""
    stream = Stream(factor)
    for each in alike(amount, per_ledger=per_ledger):
        stream.append([each])
        stream.collapse()
    return stream


@few("sizes of ledgers and groups of a tree; make test has three of eight", 3)
@pytest.mark.parametrize("per_ledger", [1, 2, 5, 100])
@pytest.mark.parametrize("factor", [2, 3])
def test_a_stream_can_be_trimmed_to_its_end_and_grow_again(factor: int, per_ledger: int) -> None:
    """Trims remove one fragment after the other, from mega-group, kilo-group, group and root. Ledgers that
    lie across the borders of groups are counted once.
    """
    stream = grown(factor**3 + factor**2 + factor + 1, factor=factor, per_ledger=per_ledger)
    assert stream.manifest.entries["kind"].tolist() == [3, 2, 1, 0]

    while stream.live:
        stream.trim(1)
        stream.check()
    end = stream.manifest.next_offset
    for each in alike(factor**2, per_ledger=per_ledger, first_number=end):
        stream.append([each])
        stream.collapse()

    stream.check()
    assert stream.manifest.ledgers == ledgers_of(stream.live)


def test_a_trimmed_group_moves_unchanged_into_the_next_kind() -> None:
    """Its entry still describes the whole object; the root's totals count only live data."""
    stream = grown(9 - 3)
    stream.trim(2)
    stream.append(alike(3, first_number=6))

    stream.collapse()

    [kilo] = stream.manifest.entries
    assert (kilo["kind"], kilo["first_offset"], kilo["fragments"]) == (EntryKind.KILO_GROUP, 0, 9)
    assert (stream.manifest.first_offset, stream.manifest.fragments) == (2, 7)
    stream.check()


def test_many_fragments_at_once_fill_several_groups_of_every_kind() -> None:
    stream = Stream(2)
    stream.append(alike(2**3 * 3 + 2**2 + 2 + 1))

    stream.collapse()

    assert stream.manifest.entries["kind"].tolist() == [3, 3, 3, 2, 1, 0]
    stream.check()


def test_a_short_run_does_not_collapse() -> None:
    stream = Stream(1024)
    stream.append(alike(1023))

    assert collapse(stream.manifest, factor=1024, version=9, uuid=UUID) == (stream.manifest, [])


def test_a_group_never_changes_and_keeps_its_name() -> None:
    """Groups are permanent: later commits add objects, and change none."""
    stream, seen = Stream(2), dict[str, bytes]()
    for each in alike(20):
        stream.append([each])
        stream.collapse()
        assert seen.items() <= stream.objects.items()
        seen = dict(stream.objects)

    assert len(seen) == 10 + 5 + 2


class Counted:
    """A loader of groups without a cache, which counts its requests."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.requests = stream, 0

    async def load(self, manifest: Manifest, entry: Entries) -> Entries:
        self.requests += 1
        return (await fetch_group(self.stream.store, manifest, entry)).entries


def requests_of(stream: Stream, question: Callable[[Tree], Awaitable[Any]]) -> int:
    """Return how many groups are loaded for an answer without a cache."""
    counted = Counted(stream)

    async def ask() -> None:
        await question(Tree(stream.manifest, counted.load))

    asyncio.run(ask())
    return counted.requests


def depth_of(stream: Stream, offset: int) -> int:
    """Return the number of objects between the root and the fragment of this offset: the kind of the root's
    row.
    """
    for row in stream.manifest.entries:
        if row["first_offset"] <= offset < row["first_offset"] + row["records"]:
            return int(row["kind"])
    raise AssertionError(offset)


@pytest.mark.parametrize("trimmed", [0, 1, 5, 14, 28])
def test_a_lookup_costs_one_request_per_level(trimmed: int) -> None:
    stream = grown(27 + 9 + 3 + 1)
    if trimmed:
        stream.trim(trimmed)

    for offset in stream.covered:
        assert (
            requests_of(stream, lambda tree, at=offset: tree.find(at)) == depth_of(stream, offset) <= LEVELS
        )
        assert requests_of(stream, lambda tree, at=offset: tree.names(at, UUID(int=1))) <= LEVELS
    assert requests_of(stream, lambda tree: tree.find(trimmed - 1)) == 0
    assert requests_of(stream, Tree.last) == 0
    assert requests_of(stream, Tree.last_with_messages) == 0


@pytest.mark.parametrize("trimmed", [0, 1, 5, 14, 28])
def test_a_moment_costs_one_request_per_level(trimmed: int) -> None:
    stream = grown(27 + 9 + 3 + 1)
    if trimmed:
        stream.trim(trimmed)

    for moment in range(-1, 42):
        assert requests_of(stream, lambda tree, at=moment: tree.first_since(at)) <= LEVELS


def test_a_moment_that_only_trimmed_fragments_reach_is_found_after_them() -> None:
    """The clock was far ahead for a while. Those fragments are trimmed, but the entries of their groups still
    count them. So the search may have to go down twice: six requests, or three if the first groups are
    cached.
    """
    stream = Stream(2)
    late = [replace(each, last_timestamp_ms=1000) for each in alike(5)]
    stream.append([*late, *alike(11, first_number=5)])
    stream.collapse()
    stream.trim(5)

    stream.check()
    assert stream.manifest.entries["kind"].tolist() == [EntryKind.MEGA_GROUP] * 2
    assert requests_of(stream, lambda tree: tree.first_since(1000)) == LEVELS
    assert requests_of(stream, lambda tree: tree.first_since(15)) == 2 * LEVELS
    assert max(requests_of(stream, lambda tree, at=at: tree.first_since(at)) for at in range(17)) == 6
    assert _requests_with_a_cache(stream, [1000, 15]) == [LEVELS, LEVELS]


def _requests_with_a_cache(stream: Stream, moments: Sequence[int]) -> list[int]:
    """Return how many groups are loaded for each of these moments, one after the other, with a cache."""
    store, cache = FaultyStore(stream.store), GroupCache()
    tree = Tree(stream.manifest, lambda manifest, entry: cache.load(store, manifest, entry))

    async def ask() -> list[int]:
        requests = [0]
        for moment in moments:
            await tree.first_since(moment)
            requests.append(len(store.calls))
        return [after - before for before, after in pairwise(requests)]

    return asyncio.run(ask())


def test_trimmed_messages_are_not_the_newest() -> None:
    """The live fragments have no messages; the entries of the groups still count some."""
    stream = Stream(2)
    stream.append([*alike(5), *(replace(each, messages=0) for each in alike(10, first_number=5))])
    stream.collapse()
    stream.trim(5)

    stream.check()
    assert requests_of(stream, Tree.last_with_messages) <= LEVELS


def test_the_newest_moment_costs_nothing_unless_a_trimmed_group_claims_it() -> None:
    stream = Stream(2)
    late = [replace(each, last_timestamp_ms=1000) for each in alike(5)]
    stream.append([*late, *alike(10, first_number=5)])
    stream.collapse()
    assert requests_of(stream, Tree.last_timestamp_ms) == 0

    stream.trim(4)
    assert asyncio.run(stream.tree.last_timestamp_ms()) == 1000
    stream.trim(1)

    assert asyncio.run(stream.tree.last_timestamp_ms()) == 14
    assert requests_of(stream, Tree.last_timestamp_ms) == LEVELS


def test_a_walk_loads_each_group_once_and_none_before_its_offset() -> None:
    stream = grown(27 + 9 + 3 + 1)

    assert requests_of(stream, lambda tree: walked(tree, 0)) == len(stream.objects) == 13 + 4 + 1
    assert requests_of(stream, lambda tree: walked(tree, 26)) == 3 + 4 + 1
    assert requests_of(stream, lambda tree: walked(tree, 39)) == 0


def test_a_closed_walk_sends_no_more_requests() -> None:
    stream = grown(27)
    counted = Counted(stream)

    async def take_one() -> Entries:
        runs = Tree(stream.manifest, counted.load).walk(0)
        first = await anext(runs)
        await runs.aclose()
        return first

    assert entries_of_rows(asyncio.run(take_one())) == alike(3)
    assert counted.requests == 3


@pytest.mark.parametrize("offset", [2**64 - 1, 2**64, 2**200])
@pytest.mark.parametrize("fragments", [0, 40])
def test_no_fragment_is_found_beyond_every_possible_offset(fragments: int, offset: int) -> None:
    stream = grown(fragments)

    assert asyncio.run(walked(stream.tree, offset)) == []
    assert asyncio.run(stream.tree.find(offset)) is None
    assert not asyncio.run(stream.tree.names(offset, UUID(int=1)))
    assert requests_of(stream, lambda tree: walked(tree, offset)) == 0


@pytest.mark.parametrize("moment", [-(2**63) - 1, -(2**200), 2**63, 2**200])
def test_any_moment_before_or_after_all_timestamps_is_answered(moment: int) -> None:
    """Timestamps have 64 bits, and a caller may ask for a greater time."""
    stream = grown(40)

    first = asyncio.run(stream.tree.first_since(moment))

    assert first == (stream.live[0] if moment < 0 else None)


def test_nothing_is_found_in_an_empty_stream() -> None:
    stream = Stream(2)

    stream.check()
    assert stream.tree.manifest.fragments == 0


def long_stream(*runs: int) -> Manifest:
    """Return a root of so many mega-groups, kilo-groups, groups and fragments, with a name of
    `NAME_SIZE_BYTES` and `RUNNING_COUNT` attempts.
    """
    rows, at = [], 0
    for kind, amount in zip(reversed(EntryKind), runs, strict=True):
        size = FACTOR**kind
        for _ in range(amount):
            row = dict.fromkeys((each.name for each in ENTRY.fields), size)
            row |= {"first_offset": at, "records": size, "attempt": bytes(16), "kind": kind}
            row |= dict.fromkeys(("copied", "codec", "encrypted"), 0)
            row |= {"root_version": size if kind else 0, "reserved": bytes(4)}
            rows.append(ENTRY.pack(**row))
            at += size
    entries = np.frombuffer(b"".join(rows), ENTRY.dtype)
    attempt = Running(attempt=UUID(int=1), ledger_id=0, epoch=1, writer=UUID(int=2))
    return replace(
        Stream(FACTOR).manifest,
        stream="x" * NAME_SIZE_BYTES,
        next_offset=at,
        running=(attempt,) * RUNNING_COUNT,
        entries=entries,
        last_ledger_id=1,
        **{total: exact_sum(entries[total]) for total in COUNTED},
    )


NAME_SIZE_BYTES: Final = 200
RUNNING_COUNT: Final = LEDGERS_AT_ONCE
KIB: Final = 1024


def written_by_a_commit(base: Manifest, fragments: int = 1) -> tuple[int, int]:
    """Return how many bytes are stored when so many fragments are appended, and how many groups are made."""
    changed, groups = collapse(
        append_entries(base, alike(fragments, first_number=base.next_offset)),
        factor=FACTOR,
        version=2,
        uuid=lambda: UUID(int=9),
    )
    changed.check("here")
    return len(encode_root(changed)) + sum(len(raw) for _, raw in groups), len(groups)


def bound(entries: int, groups: int) -> int:
    """Return the size of a commit, as docs/adr/0012-manifest-tree.md derives it: each entry once, the rest of
    a root, and for each group its head, its checksum and the entry that names it.
    """
    root = ROOT_HEADER.size_bytes + NAME_SIZE_BYTES + RUNNING_COUNT * RUNNING.size_bytes + 4
    return root + entries * ENTRY.size_bytes + groups * (GROUP_HEADER.size_bytes + 4 + ENTRY.size_bytes)


ROOTS: Final = [
    (0, 0, 0, 0), (0, 0, 0, 1023), (0, 0, 1023, 1023), (0, 23, 1023, 1023), (0, 1023, 1023, 1023),
    (0, 1023, 1022, 900), (0, 1023, 1023, 0), (7, 1023, 1023, 1023),
]  # fmt: skip


@pytest.mark.parametrize("fragments", [1, 2, COMMIT_ENTRIES, 1024, 3000])
@pytest.mark.parametrize("runs", ROOTS)
def test_a_commit_writes_each_entry_once_and_a_little_for_each_group(
    runs: tuple[int, ...], fragments: int
) -> None:
    """So its size follows from the number of entries; collapsing early or late does not change it."""
    size_bytes, groups = written_by_a_commit(long_stream(*runs), fragments)

    assert size_bytes == bound(sum(runs) + fragments, groups)
    assert groups <= fragments // FACTOR + 3


@pytest.mark.parametrize("amount", [1, COMMIT_ENTRIES])
def test_a_commit_of_our_writer_stays_below_256_kib_up_to_so_many_kilo_groups(amount: int) -> None:
    """The limit is 292 million fragments (17.4 PiB) one by one, and 25 million (1.5 PiB) in any commits."""
    most = {1: 278, COMMIT_ENTRIES: 23}[amount]

    sizes = [written_by_a_commit(long_stream(0, most + more, 1023, 1023), amount)[0] for more in (0, 1)]

    assert sizes == {1: [262_088, 262_200], COMMIT_ENTRIES: [262_088, 262_200]}[amount]
    assert sizes[0] <= 256 * KIB < sizes[1]


@pytest.mark.parametrize(
    ("kilo_groups", "sizes"),
    [
        (0, (230_952, 259_512)),
        (15, (232_632, 261_192)),
        (23, (233_528, 262_088)),
        (278, (262_088, 290_648)),
        (1023, (345_728, 374_288)),
    ],
)
def test_the_table_of_the_decision_is_right(kilo_groups: int, sizes: tuple[int, int]) -> None:
    base = long_stream(0, kilo_groups, 1023, 1023)

    assert tuple(written_by_a_commit(base, amount)[0] for amount in (1, COMMIT_ENTRIES)) == sizes


def test_one_more_kilo_group_fits_if_the_runs_below_are_not_full() -> None:
    assert written_by_a_commit(long_stream(0, 279, 1023, 1022)) == (261_688, 0)
    assert written_by_a_commit(long_stream(0, 279, 1022, 1023)) == (261_888, 1)
    assert 279 * FACTOR**2 == 292_552_704
    assert 24 * FACTOR**2 == 25_165_824


def test_the_largest_commit_is_known_up_to_the_first_mega_group() -> None:
    """Each mega-group then adds 112 bytes. By then a root alone is above 256 KiB. Collapsing it within its
    commit does not help, because each entry is written either in a group or in the root.
    """
    full = long_stream(0, 1023, 1023, 1023)

    assert written_by_a_commit(full) == (345_728, 3)
    assert written_by_a_commit(full, COMMIT_ENTRIES) == (374_288, 3)
    assert written_by_a_commit(long_stream(1, 1023, 1023, 1023), COMMIT_ENTRIES) == (374_400, 3)
    assert len(encode_root(full)) > 256 * KIB


def test_no_commit_exceeds_256_kib_with_690_entries_to_a_group() -> None:
    """A limit for streams of any size would need such groups (docs/adr/0012-manifest-tree.md, rejected)."""
    assert bound(3 * (690 - 1) + COMMIT_ENTRIES, 3) <= 256 * KIB < bound(3 * (691 - 1) + COMMIT_ENTRIES, 3)
