"""Tests of retention against a flat list: deleted and remaining fragments, totals, and cost.

The fragments are entries alone, without objects: retention never looks at those. The factor of the tier is
small, so that a few dozen of them fill groups of every kind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from uuid import UUID

import pytest
from campaign import CAMPAIGN, few
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from offload import Conflict, Env, Misuse, NotOffloaded, ObjectStoreOffloader, StreamDeleted, TryAgain
from offload.commit.guest import Abort, Trim
from offload.commit.log import RootLog
from offload.commit.writer import Append, Claim, Prepare
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.formats.root import decode_root, encode_root
from offload.ground.errors import Absent, Corrupt, Fenced
from offload.model.entry import TOTALS, Entry, entries_of_rows
from offload.model.manifest import Manifest, StreamState
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore
from offload.upkeep.retention import (
    TRIM_TRIALS_MAX,
    Retention,
    TrimReport,
    delete_stream,
    load_unless_deleted,
    plan_trim,
    trim,
)

STREAM = "orders"
NOW_MS = 1_000_000
"""The time from which all ages are counted."""


async def no_pause(seconds: float) -> None:
    """Return without waiting."""


ENV = Env(sleep=no_pause)


@dataclass(frozen=True, slots=True)
class Fragment:
    """A planned fragment, with the fields that retention uses."""

    records: int = 10
    size_bytes: int = 100
    age_seconds: int = 0
    """The age of its last timestamp."""

    begins_ledger: bool = True


class Stream:
    """One stream of a tier of this factor, and the flat list of fragments that it should have."""

    def __init__(self, factor: int, *, first_offset: int = 0) -> None:
        self.objects: dict[str, bytes] = {TIER_ANCHOR: TierAnchor(branching_factor=factor).encode()}
        self.store = FaultyStore(MemoryStore(objects=self.objects))
        self.offloader = ObjectStoreOffloader(self.store, env=ENV)
        self.first_offset = self.next_offset = first_offset
        self.live: list[Entry] = []
        self.manifest: Manifest
        self._ledger_id = 0

    async def begin(self) -> None:
        claim = Claim(stream=STREAM, writer=UUID(int=1), first_offset=self.first_offset)
        self.manifest = await self.offloader.commit_manifest(STREAM, claim, base=None, committer=claim.writer)

    async def append(self, fragments: Sequence[Fragment]) -> None:
        """Commit them one by one, as a writer does that has not seen any trim."""
        for fragment in fragments:
            self._ledger_id += fragment.begins_ledger
            attempt = ENV.uuid()
            last_ms = NOW_MS - fragment.age_seconds * 1000
            entry = Entry(
                first_offset=self.next_offset,
                records=fragment.records,
                messages=fragment.records - 1,
                first_timestamp_ms=last_ms - 500,
                last_timestamp_ms=last_ms,
                data_size_bytes=fragment.size_bytes,
                stored_size_bytes=fragment.size_bytes + 50,
                ledger_id=self._ledger_id,
                attempt=attempt,
                checksum=7,
            )
            me = self.manifest.writer
            for change in (
                Prepare(writer=me, attempts=[(attempt, self._ledger_id)]),
                Append(writer=me, entries=[entry], finished=frozenset({attempt})),
            ):
                self.manifest = await self.offloader.commit_manifest(
                    STREAM, change, base=self.manifest, committer=me
                )
            self.live.append(entry)
            self.next_offset = entry.next_offset

    async def trim(self, retention: Retention, *, dry_run: bool = False) -> TrimReport:
        """Trim the stream, and trim the list by the definition."""
        report = await trim(self.offloader, STREAM, retention, now_ms=NOW_MS, env=ENV, dry_run=dry_run)
        if not dry_run:
            gone = goes(self.live, retention)
            self.first_offset = self.live[gone - 1].next_offset if gone else self.first_offset
            self.live = self.live[gone:]
        return report

    async def assert_is_the_list(self) -> None:
        """Assert that the newest manifest and its tree agree with the list in everything."""
        manifest = await self.offloader.load_manifest(STREAM)
        assert (manifest.first_offset, manifest.next_offset) == (self.first_offset, self.next_offset)
        assert totals_of(manifest) == totals(self.live)
        assert await walked(self.offloader, manifest) == self.live
        for entry in self.live[:1] + self.live[-1:]:
            found = await self.offloader.tree(manifest).find(entry.first_offset)
            assert found == entry
        assert await self.offloader.tree(manifest).find(self.first_offset - 1) is None

    def keys(self, ending: str) -> list[str]:
        return sorted(key for key in self.objects if key.endswith(ending))

    @property
    def groups(self) -> set[str]:
        """Return the suffixes of the keys of all groups, which show their kinds."""
        return {key.rpartition(".")[2] for key in self.objects} - {"anchor", "manifest"}

    def requests(self, operation: str) -> list[str]:
        return [call.key for call in self.store.calls if call.operation == operation]


def goes(live: Sequence[Entry], retention: Retention) -> int:
    """Return how many of the first fragments are trimmed, by the definition alone."""
    gone = 0
    if retention.before_offset is not None:
        gone = sum(entry.next_offset <= retention.before_offset for entry in live)
    if retention.size_bytes_max is not None:
        by_size, left = 0, sum(entry.data_size_bytes for entry in live)
        while by_size < len(live) - 1 and left > retention.size_bytes_max:
            left -= live[by_size].data_size_bytes
            by_size += 1
        gone = max(gone, by_size)
    if retention.age_seconds_max is not None:
        by_age, oldest_ms = 0, NOW_MS - int(retention.age_seconds_max * 1000)
        for number, entry in enumerate(live, 1):
            is_ahead = entry.last_timestamp_ms > NOW_MS
            if not is_ahead and entry.last_timestamp_ms >= oldest_ms:
                break
            # What is in the future goes if something old follows it.
            by_age = by_age if is_ahead else number
        gone = max(gone, min(by_age, len(live) - 1))
    return gone


def totals(live: Sequence[Entry]) -> dict[str, int]:
    return {
        "messages": sum(entry.messages for entry in live),
        "data_size_bytes": sum(entry.data_size_bytes for entry in live),
        "stored_size_bytes": sum(entry.stored_size_bytes for entry in live),
        "fragments": len(live),
        "ledgers": len([*groupby(live, key=lambda entry: entry.ledger_id)]),
    }


def totals_of(manifest: Manifest) -> dict[str, int]:
    return {total: getattr(manifest, total) for total in (*TOTALS, "ledgers")}


async def walked(offloader: ObjectStoreOffloader, manifest: Manifest) -> list[Entry]:
    async with aclosing(offloader.tree(manifest).walk()) as runs:
        return [entry async for run in runs for entry in entries_of_rows(run)]


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        return await main()

    return asyncio.run(whole())


def on(stream: Stream, fragments: Sequence[Fragment], then: Callable[[], Awaitable[None]]) -> None:
    """Begin the stream with these fragments, run `then`, and compare the stream with the list."""

    async def main() -> None:
        await stream.begin()
        await stream.append(fragments)
        await stream.assert_is_the_list()
        stream.store.calls.clear()
        await then()
        await stream.assert_is_the_list()

    run(main)


fragments = st.builds(
    Fragment,
    records=st.integers(1, 5),
    size_bytes=st.sampled_from([10, 10, 10, 25, 1000]),
    age_seconds=st.integers(0, 9) | st.just(-1),
    begins_ledger=st.booleans(),
)
retentions = st.builds(
    Retention,
    age_seconds_max=st.none() | st.integers(0, 10),
    size_bytes_max=st.none() | st.integers(0, 1500),
    before_offset=st.none() | st.integers(0, 150),
)
steps = st.lists(st.lists(fragments, max_size=15) | retentions, min_size=1, max_size=10)


def small(*ages: int) -> list[Fragment]:
    """Return fragments of one record and 10 bytes, of these ages."""
    return [Fragment(records=1, size_bytes=10, age_seconds=age) for age in ages]


@settings(deadline=None, max_examples=1_000 if CAMPAIGN else 6)
@given(factor=st.integers(2, 4), first_offset=st.sampled_from([0, 7]), grown=st.lists(fragments), steps=steps)
# The size limit removes the rest of a group that was trimmed in part. A dead fragment of it is young.
@example(
    factor=2,
    first_offset=0,
    grown=small(*[0] * 11, 1),
    steps=[
        Retention(size_bytes_max=0),
        small(1, 1, 0),
        Retention(age_seconds_max=0, size_bytes_max=20),
    ],
)
def test_any_trims_leave_the_same_as_a_flat_list(
    factor: int, first_offset: int, grown: list[Fragment], steps: list[list[Fragment] | Retention]
) -> None:
    """Trims have any limits and alternate with appends. Totals stay exact, and no object is put twice."""
    stream = Stream(factor, first_offset=first_offset)

    async def then() -> None:
        for step in steps:
            if isinstance(step, list):
                await stream.append(step)
                continue
            manifest = await stream.offloader.load_manifest(STREAM)
            before, entries_before = totals(stream.live), stream.live
            fetched = await fetched_by_a_plan(stream, manifest, step)
            event(f"groups fetched: {fetched}")
            report = await stream.trim(step)
            await stream.assert_is_the_list()
            after = totals(stream.live)
            counted = {total: getattr(report.dropped, total) for total in after}
            assert counted == {total: before[total] - after[total] for total in after}
            by_age, by_size = step.age_seconds_max is not None, step.size_bytes_max is not None
            is_ahead = any(entry.last_timestamp_ms > NOW_MS for entry in entries_before)
            assert is_ahead or fetched <= (3, 6, 9)[by_age + by_size]

    on(stream, grown, then)

    assert max(Counter(stream.requests("put")).values(), default=0) <= 1
    assert stream.requests("delete") == []


async def fetched_by_a_plan(stream: Stream, manifest: Manifest, retention: Retention) -> int:
    """Return how many groups planning loads without a cache."""
    log = RootLog(store=stream.store, stream=STREAM, env=ENV)
    count = len(stream.requests("get"))
    await plan_trim(log.tree(manifest), retention, now_ms=NOW_MS)
    return len(stream.requests("get")) - count


def test_groups_of_every_kind_are_trimmed_a_fragment_at_a_time() -> None:
    stream = Stream(2)

    async def then() -> None:
        assert stream.groups == {"group", "kgroup", "mgroup"}
        while len(stream.live) > 1:
            await stream.trim(Retention(before_offset=stream.live[0].next_offset))
            await stream.assert_is_the_list()

    on(stream, [Fragment(begins_ledger=n % 3 == 0) for n in range(20)], then)


class TestWhatGoes:
    @few("limits of a retention; make test has a quarter of the cases", 4)
    @pytest.mark.parametrize(
        ("retention", "stay"),
        [
            (Retention(before_offset=0), 6),
            (Retention(before_offset=9), 6),
            (Retention(before_offset=10), 5),
            (Retention(before_offset=19), 5),
            (Retention(before_offset=59), 1),
            (Retention(before_offset=60), 0),
            (Retention(before_offset=2**64), 0),
            (Retention(size_bytes_max=600), 6),
            (Retention(size_bytes_max=599), 5),
            (Retention(size_bytes_max=500), 5),
            (Retention(size_bytes_max=101), 1),
            (Retention(size_bytes_max=0), 1),
            (Retention(age_seconds_max=60), 6),
            (Retention(age_seconds_max=59.999), 5),
            (Retention(age_seconds_max=10), 1),
            (Retention(age_seconds_max=0), 1),
            (Retention(age_seconds_max=2.0**70), 6),
            (Retention(age_seconds_max=40, size_bytes_max=500), 4),
            (Retention(age_seconds_max=50, size_bytes_max=200), 2),
            (Retention(age_seconds_max=0, size_bytes_max=0, before_offset=60), 0),
            (Retention(), 6),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("factor", [2, 1024])
    def test_a_trim_removes_whole_fragments_from_the_beginning(
        self, factor: int, retention: Retention, stay: int
    ) -> None:
        """There are six fragments of 10 records and 100 bytes, 60 to 10 seconds old."""
        stream = Stream(factor)

        async def then() -> None:
            report = await stream.trim(retention)
            assert report.manifest.fragments == len(stream.live) == stay
            assert report.manifest.first_offset == 60 - 10 * stay

        on(stream, [Fragment(age_seconds=age) for age in range(60, 0, -10)], then)

    def test_the_first_fragment_that_is_young_enough_ends_a_trim_by_age(self) -> None:
        """Clocks of writers may go back, so a younger fragment keeps the older ones behind it."""
        stream = Stream(1024)

        async def then() -> None:
            await stream.trim(Retention(age_seconds_max=10))
            assert stream.first_offset == 20

        on(stream, [Fragment(age_seconds=age) for age in (50, 40, 5, 40, 3)], then)

    def test_an_exhausted_limit_does_not_continue_where_another_does(self) -> None:
        """The size limit cuts within the second group. The age limit ended in the first, at a
        young fragment.
        """
        stream = Stream(4)

        async def then() -> None:
            await stream.trim(Retention(age_seconds_max=10, size_bytes_max=400))
            assert stream.first_offset == 50

        on(stream, [Fragment(age_seconds=age) for age in (40, 1, 40, 40, 40, 40, 40, 40, 1)], then)

    @pytest.mark.parametrize(
        ("ages", "gone"),
        [
            ((50, -9999, 40, 3), 3),  # the clock was wrong for a moment
            ((50, -9999, 5, 3), 1),  # it may be as young as what follows it
            ((50, -9999, -9999), 1),  # nothing says yet how old they are
            ((-9999, -9999, -9999), 0),
            ((-9999, 40, -9999, 40, 40, -9999, 40, 40, 1), 8),
        ],
    )
    def test_data_with_a_timestamp_in_the_future_goes_with_the_old_data_behind_it(
        self, ages: tuple[int, ...], gone: int
    ) -> None:
        stream = Stream(2)

        async def then() -> None:
            report = await stream.trim(Retention(age_seconds_max=10))

            assert report.dropped.fragments == gone
            assert report.note is not None
            first = 10 * ages.index(-9999)
            assert (
                f"the fragment at offset {first} has a timestamp in the future, 1970-01-01T03:" in report.note
            )

        on(stream, [Fragment(age_seconds=age) for age in ages], then)

    def test_a_clock_that_is_a_little_ahead_is_not_worth_a_note(self) -> None:
        stream = Stream(2)

        async def then() -> None:
            assert (await stream.trim(Retention(age_seconds_max=10))).note is None

        on(stream, [Fragment(age_seconds=age) for age in (50, -3600, 40, 3)], then)

    def test_a_dead_fragment_does_not_keep_its_group_by_its_age(self) -> None:
        """The youngest fragment of the first group was trimmed by its offset. The live ones are old."""
        stream = Stream(4)

        async def then() -> None:
            await stream.trim(Retention(before_offset=10))
            await stream.trim(Retention(age_seconds_max=10))
            assert stream.first_offset == 60

        on(stream, [Fragment(age_seconds=age) for age in (1, 40, 40, 40, 40, 40, 1, 1)], then)

    def test_a_dead_fragment_does_not_end_a_trim_by_age_where_another_limit_goes_on(self) -> None:
        """The offset removes the whole group of the dead one, and the age limit the next fragments too."""
        stream = Stream(4)

        async def then() -> None:
            await stream.trim(Retention(before_offset=10))
            await stream.trim(Retention(age_seconds_max=10, before_offset=50))
            assert stream.first_offset == 70

        on(stream, [Fragment(age_seconds=age) for age in (1, 40, 40, 40, 40, 40, 40, 1, 1)], then)

    def test_nothing_is_trimmed_of_an_empty_stream(self) -> None:
        stream = Stream(2)

        async def then() -> None:
            report = await stream.trim(Retention(age_seconds_max=0, size_bytes_max=0, before_offset=99))
            assert report.trim is None

        on(stream, [], then)

    @pytest.mark.parametrize("limit", [-1, float("nan"), float("inf")])
    def test_a_limit_that_is_negative_or_not_finite_is_refused(self, limit: float) -> None:
        with pytest.raises(Misuse, match="cannot be a limit"):
            Retention(age_seconds_max=limit)


class TestLedgers:
    def test_a_ledger_with_a_remaining_fragment_still_counts(self) -> None:
        stream = Stream(1024)

        async def then() -> None:
            report = await stream.trim(Retention(before_offset=20))
            assert (report.dropped.fragments, report.dropped.ledgers) == (2, 0)
            report = await stream.trim(Retention(before_offset=30))
            assert (report.dropped.fragments, report.dropped.ledgers) == (1, 1)

        on(stream, [Fragment(begins_ledger=n % 3 == 0) for n in range(5)], then)

    def test_a_ledger_that_continues_in_the_next_group_still_counts(self) -> None:
        """One ledger spans two groups of two fragments, and the first group is trimmed whole."""
        stream = Stream(2)

        async def then() -> None:
            report = await stream.trim(Retention(before_offset=20))
            assert (report.dropped.fragments, report.dropped.ledgers) == (2, 0)

        on(stream, [Fragment(begins_ledger=n == 0) for n in range(4)], then)


class TestCosts:
    @pytest.mark.parametrize(
        ("retention", "begins_ledger", "fetched"),
        [
            (Retention(before_offset=0), [True, True], 0),
            (
                Retention(before_offset=80),
                [True, True],
                0,
            ),  # whole groups are trimmed, and every fragment begins a ledger
            (Retention(before_offset=80), [False, False], 0),  # no ledger begins behind the first fragment
            (Retention(before_offset=80), [True, False], 3),  # the first fragment shows if a ledger begins
            (Retention(before_offset=90), [True, True], 3),
            (Retention(before_offset=160), [True, True], 0),
            (Retention(size_bytes_max=1600), [True, True], 0),
            (Retention(size_bytes_max=750), [True, True], 3),
            (Retention(age_seconds_max=2000), [True, True], 0),
        ],
    )
    def test_no_unnecessary_group_is_fetched(
        self, retention: Retention, begins_ledger: list[bool], fetched: int
    ) -> None:
        """There are sixteen fragments in two mega-groups of eight."""
        stream = Stream(2)

        async def then() -> None:
            stream.manifest = await stream.offloader.load_manifest(STREAM)
            assert await fetched_by_a_plan(stream, stream.manifest, retention) == fetched

        on(stream, [Fragment(begins_ledger=begin) for begin in begins_ledger * 8], then)

    def test_a_trim_creates_one_root_and_puts_and_deletes_nothing(self) -> None:
        stream = Stream(2)

        async def then() -> None:
            await stream.offloader.load_manifest(STREAM)
            objects = dict(stream.objects)
            stream.store.calls.clear()
            await stream.trim(Retention(before_offset=50))
            new = stream.objects.keys() - objects.keys()
            assert [*new] == stream.requests("create") == [max(stream.keys(".manifest"))]
            assert stream.requests("put") == stream.requests("delete") == []
            assert objects.items() <= stream.objects.items()

        on(stream, [Fragment() for _ in range(9)], then)

    @pytest.mark.parametrize("retention", [Retention(before_offset=50), Retention(size_bytes_max=350)])
    def test_a_repeated_trim_changes_nothing(self, retention: Retention) -> None:
        stream = Stream(2)

        async def then() -> None:
            await stream.trim(retention)
            objects = dict(stream.objects)
            report = await stream.trim(retention)
            assert (report.trim, report.dropped.fragments) == (None, 0)
            assert stream.objects == objects

        on(stream, [Fragment() for _ in range(9)], then)

    def test_a_dry_run_reports_the_trim_and_writes_nothing(self) -> None:
        stream = Stream(2)

        async def then() -> None:
            await stream.offloader.load_manifest(STREAM)
            objects = dict(stream.objects)
            said = await stream.trim(Retention(before_offset=50), dry_run=True)
            assert stream.objects == objects
            done = await stream.trim(Retention(before_offset=50))
            assert said.trim == done.trim
            assert totals_of(said.manifest) == totals_of(done.manifest)

        on(stream, [Fragment() for _ in range(9)], then)


class TestOthers:
    """Tests of rivals: a guest trims, so others commit before it, beside it and after it."""

    def meeting(self, rival: Callable[[Stream], Awaitable[Any]], retention: Retention) -> Stream:
        """Trim with a rival that commits after the plan is made and before the trim's first root
        is created.
        """
        stream = Stream(2)

        async def then() -> None:
            await stream.offloader.load_manifest(STREAM)
            met = False

            async def before(operation: str, key: str) -> None:
                nonlocal met
                if operation == "create" and "/root." in key and not met:
                    met = True
                    await rival(stream)

            stream.store.before = before
            await stream.trim(retention)
            assert met

        on(stream, [Fragment() for _ in range(9)], then)
        return stream

    def test_appends_that_are_committed_meanwhile_stay(self) -> None:
        async def rival(stream: Stream) -> None:
            await stream.append([Fragment()] * 3)

        stream = self.meeting(rival, Retention(before_offset=50))

        assert (stream.first_offset, stream.next_offset) == (50, 120)

    @pytest.mark.parametrize("offset", [10, 30, 50])
    def test_a_rival_trim_subtracts_nothing_twice(self, offset: int) -> None:
        async def rival(stream: Stream) -> None:
            other = ObjectStoreOffloader(stream.store.inner, env=ENV)
            await trim(other, STREAM, Retention(before_offset=offset), now_ms=NOW_MS, env=ENV)

        stream = self.meeting(rival, Retention(before_offset=50))

        assert stream.first_offset == 50

    def test_a_rival_trim_that_removed_more_is_enough(self) -> None:
        async def rival(stream: Stream) -> None:
            other = ObjectStoreOffloader(stream.store.inner, env=ENV)
            await trim(other, STREAM, Retention(before_offset=70), now_ms=NOW_MS, env=ENV)
            stream.live, stream.first_offset = stream.live[7:], 70

        stream = self.meeting(rival, Retention(before_offset=50))

        assert stream.first_offset == 70

    def test_a_rival_deletion_ends_the_trim(self) -> None:
        async def rival(stream: Stream) -> None:
            await delete_stream(ObjectStoreOffloader(stream.store.inner, env=ENV), STREAM, env=ENV)

        with pytest.raises(StreamDeleted):
            self.meeting(rival, Retention(before_offset=50))

    def test_a_stream_that_was_begun_again_meanwhile_loses_nothing(self) -> None:
        """Its offsets are not the ones that the caller meant."""
        stream = Stream(2)

        async def then() -> None:
            await stream.offloader.load_manifest(STREAM)
            other = Stream(2)
            other.offloader = ObjectStoreOffloader(stream.store.inner, env=ENV)

            async def before(operation: str, key: str) -> None:
                if operation == "create" and "/root." in key:
                    stream.store.before = _nothing
                    await delete_stream(other.offloader, STREAM, env=ENV)
                    await other.begin()
                    await other.append([Fragment() for _ in range(9)])

            stream.store.before = before
            with pytest.raises(StreamDeleted):
                await trim(stream.offloader, STREAM, Retention(before_offset=50), now_ms=NOW_MS, env=ENV)
            await other.assert_is_the_list()
            stream.live, stream.first_offset, stream.next_offset = other.live, 0, 90

        on(stream, [Fragment() for _ in range(9)], then)

    def test_a_trim_gives_up_if_others_trim_all_the_time(self) -> None:
        stream = Stream(2)

        async def then() -> None:
            cut = 0

            async def before(operation: str, key: str) -> None:
                nonlocal cut
                if operation == "create" and "/root." in key:
                    cut += 10
                    other = ObjectStoreOffloader(stream.store.inner, env=ENV)
                    await trim(other, STREAM, Retention(before_offset=cut), now_ms=NOW_MS, env=ENV)

            stream.store.before = before
            with pytest.raises(TryAgain, match="run again"):
                await trim(stream.offloader, STREAM, Retention(before_offset=200), now_ms=NOW_MS, env=ENV)
            assert cut == 10 * TRIM_TRIALS_MAX
            stream.store.before = _nothing
            stream.live, stream.first_offset = stream.live[TRIM_TRIALS_MAX:], cut

        on(stream, [Fragment() for _ in range(21)], then)

    @pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.FAIL_BEFORE, Fault.DELAY])
    def test_a_lost_reply_subtracts_nothing_twice(self, fault: Fault) -> None:
        stream = Stream(2)

        async def then() -> None:
            await stream.offloader.load_manifest(STREAM)
            stream.store.rules = [Rule(fault, "create", "*/root.*", nth=1)]
            await stream.trim(Retention(before_offset=50))
            await stream.store.land()
            await stream.assert_is_the_list()

        on(stream, [Fragment() for _ in range(9)], then)

    def test_a_group_that_was_swept_meanwhile_is_not_damage(self) -> None:
        """Another trim dropped it just before this one loads it."""
        stream = Stream(2)

        async def then() -> None:
            await stream.offloader.load_manifest(STREAM)
            stream.offloader = ObjectStoreOffloader(
                stream.store, env=ENV
            )  # which has no groups in its cache yet

            async def before(operation: str, key: str) -> None:
                if operation == "get" and key.endswith("group"):
                    stream.store.before = _nothing
                    other = ObjectStoreOffloader(stream.store.inner, env=ENV)
                    await trim(other, STREAM, Retention(before_offset=80), now_ms=NOW_MS, env=ENV)
                    del stream.objects[key]

            stream.store.before = before
            report = await trim(stream.offloader, STREAM, Retention(before_offset=50), now_ms=NOW_MS, env=ENV)
            assert report.trim is None
            stream.live, stream.first_offset = stream.live[8:], 80

        on(stream, [Fragment() for _ in range(9)], then)

    def test_a_missing_group_that_is_still_named_is_damage(self) -> None:
        stream = Stream(2)

        async def main() -> None:
            await stream.begin()
            await stream.append([Fragment() for _ in range(9)])
            [key] = stream.keys(".mgroup")
            del stream.objects[key]
            offloader = ObjectStoreOffloader(stream.store, env=ENV)
            with pytest.raises(Corrupt, match="absent") as caught:
                await trim(offloader, STREAM, Retention(before_offset=50), now_ms=NOW_MS, env=ENV)
            assert isinstance(caught.value, Absent)
            assert caught.value.where == key

        run(main)


async def _nothing(operation: str, key: str) -> None:
    """Do nothing."""


class TestDelete:
    def test_a_deletion_leaves_a_tombstone_and_every_object(self) -> None:
        stream = Stream(2)

        async def main() -> None:
            await stream.begin()
            await stream.append([Fragment() for _ in range(9)])
            objects = dict(stream.objects)
            gone = await delete_stream(stream.offloader, STREAM, env=ENV)
            assert gone is not None
            assert totals_of(gone) == totals(stream.live)
            assert objects.items() <= stream.objects.items()
            assert len(stream.objects) == len(objects) + 1
            with pytest.raises(NotOffloaded):
                await stream.offloader.load_manifest(STREAM)
            with pytest.raises(StreamDeleted):
                await stream.append([Fragment()])

        run(main)

    def test_a_repeated_deletion_does_nothing(self) -> None:
        stream = Stream(2)

        async def main() -> None:
            await stream.begin()
            await delete_stream(stream.offloader, STREAM, env=ENV)
            objects = dict(stream.objects)
            assert await delete_stream(stream.offloader, STREAM, env=ENV) is None
            assert await load_unless_deleted(stream.offloader, STREAM) is None
            assert stream.objects == objects

        run(main)

    def test_the_error_for_a_stream_that_cannot_be_loaded_gives_the_reason(self) -> None:
        """A deleted stream can be begun again by a sync, one being rebuilt needs patience, or the
        name is wrong.
        """
        deleted, rebuilding, never = Stream(2), Stream(2), Stream(2)

        async def main() -> None:
            with pytest.raises(NotOffloaded, match="has no stream 'orders'") as unknown:
                await never.offloader.load_manifest(STREAM)
            await rebuilding.begin()
            root = replace(rebuilding.manifest, version=2, state=StreamState.REBUILDING)
            rebuilding.objects[StreamKeys(STREAM).root(2)] = encode_root(root)
            with pytest.raises(NotOffloaded, match="is being rebuilt; wait") as unfinished:
                await rebuilding.offloader.load_manifest(STREAM)
            await deleted.begin()
            epoch = deleted.manifest.epoch
            await delete_stream(deleted.offloader, STREAM, env=ENV)
            with pytest.raises(StreamDeleted, match="was deleted; a sync begins it again") as gone:
                await deleted.offloader.load_manifest(STREAM)

            assert gone.value.epoch == epoch + 1
            assert not {type(unknown.value), type(unfinished.value)} & {StreamDeleted}

        run(main)

    def test_a_deleted_stream_is_both_not_offloaded_and_fenced(self) -> None:
        """A reader expects `NotOffloaded`, a writer `Fenced`."""
        assert issubclass(StreamDeleted, NotOffloaded)
        assert issubclass(StreamDeleted, Fenced)
        assert issubclass(StreamDeleted, LookupError)

    def test_a_stream_that_was_never_begun_cannot_be_deleted(self) -> None:
        async def main() -> None:
            with pytest.raises(NotOffloaded):
                await delete_stream(Stream(2).offloader, STREAM, env=ENV)

        run(main)

    def test_a_stream_that_is_being_rebuilt_is_never_reported_as_deleted(self) -> None:
        stream = Stream(2)

        async def main() -> None:
            await stream.begin()
            rebuilding = replace(stream.manifest, version=2, state=StreamState.REBUILDING)
            stream.objects[StreamKeys(STREAM).root(2)] = encode_root(rebuilding)
            with pytest.raises(NotOffloaded, match="rebuilt"):
                await delete_stream(stream.offloader, STREAM, env=ENV)

        run(main)

    def test_a_stream_that_was_begun_since_stays(self) -> None:
        """The caller decided about the old stream, not about its successor."""
        stream = Stream(2)

        async def then() -> None:
            seen = stream.manifest
            await delete_stream(stream.offloader, STREAM, env=ENV)
            await stream.begin()
            stream.live, stream.first_offset, stream.next_offset = [], 0, 0
            await stream.append([Fragment(), Fragment()])

            await delete_stream(stream.offloader, STREAM, seen=seen, env=ENV)

        on(stream, [Fragment() for _ in range(9)], then)

    def test_deleting_a_partly_trimmed_stream_leaves_zero_totals(self) -> None:
        stream = Stream(2)

        async def main() -> None:
            await stream.begin()
            await stream.append([Fragment() for _ in range(9)])
            await stream.trim(Retention(before_offset=30))
            await delete_stream(stream.offloader, STREAM, env=ENV)
            tombstone = decode_root(stream.objects[max(stream.keys(".manifest"))], where="tombstone")
            assert (tombstone.state, set(totals_of(tombstone).values())) == (StreamState.DELETED, {0})

        run(main)


def test_a_rival_abort_does_not_disturb_a_deletion() -> None:
    """An abort that is committed meanwhile does not change the decision."""
    stream = Stream(2)

    async def then() -> None:
        base = stream.manifest
        change = await plan_trim(stream.offloader.tree(base), Retention(before_offset=50), now_ms=NOW_MS)
        assert isinstance(change, Trim)
        await stream.offloader.commit_manifest(
            STREAM, Abort(attempts=frozenset({UUID(int=5)})), base=base, committer=UUID(int=6)
        )
        await stream.offloader.commit_manifest(STREAM, change, base=base, committer=UUID(int=7))
        stream.live, stream.first_offset = stream.live[5:], 50
        again = replace(change, since=10, first_offset=60)
        with pytest.raises(Conflict):
            await stream.offloader.commit_manifest(STREAM, again, base=base, committer=UUID(int=7))

    on(stream, [Fragment() for _ in range(9)], then)
