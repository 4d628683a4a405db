"""Tests of the sweep: named objects stay, all garbage goes, and readers keep what they may still read.

The counterexamples are those of docs/commit-protocol.md, step 8. `Objects` raises at the moment at which
something named is deleted, so a test that ends has shown that nothing was.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from campaign import CAMPAIGN, few
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from osiris_data import DATA
from osiris_writer import append_chunks, simple_chunks, write_stream
from sweep_yard import KEYS, STRANGERS, STREAM, Stalled, Yard, run

from offload import (
    NotOffloaded,
    ObjectStoreOffloader,
    Plugins,
    StreamWriter,
    TierOptions,
    open_source,
    verify,
)
from offload import sync as sync_all
from offload.commit.writer import Resolve
from offload.contracts.capabilities import Capabilities
from offload.contracts.store import Listed, ObjectStore, Unfinished
from offload.formats.anchor import StreamAnchor
from offload.formats.keys import StreamKeys
from offload.formats.root import encode_root
from offload.formats.sighting import SIZE_BYTES_MAX, Sighting
from offload.ground.env import Env
from offload.ground.errors import Denied, Misuse, RootsLost, TryAgain
from offload.model.entry import NO_ENTRIES
from offload.model.manifest import StreamState
from offload.store.faults import Call, Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator
from offload.upkeep.sweep.notes import SIGHTINGS_MAX
from offload.upkeep.sweep.page import ROOTS_KEPT, Why, name_of, rows_named
from offload.upkeep.sweep.report import Condemned, SweepReport
from offload.upkeep.sweep.tier import Sweeper, sweep

HOUR = 3600.0


@pytest.fixture
def yard() -> Yard:
    return Yard()


def once(yard: Yard, *, store: ObjectStore | None = None, **options: Any) -> SweepReport:
    """Run a sweep as the command does."""
    report: SweepReport = run(sweep(store or yard.store, env=yard.env, **{"page_keys_max": 5} | options))
    return report


def sightings(yard: Yard) -> list[str]:
    return sorted(key for key in yard.objects if KEYS.parse_sighting(key))


def stalls(
    begin: Callable[[Yard], tuple[Stalled[SweepReport], Callable[[], None]]], every: int = 1
) -> list[SweepReport]:
    """Stall a sweep before each of its requests in turn, or before one of `every`. Let something happen, and
    let the sweep continue.
    """
    reports = []
    for number in range(0, 10_000, every):
        yard = Yard(factor=2, seed=number)
        sweeping, happen = begin(yard)
        for _ in range(number):
            sweeping.step()
        if sweeping.over:
            assert number > 5
            return reports
        happen()
        reports.append(sweeping.finish())
    raise AssertionError("the sweep never ends")


def at_once(yard: Yard) -> Stalled[SweepReport]:
    return Stalled(yard.sweeper(grace_seconds=0).sweep())


# One test for each counterexample of step 8.


def test_a_fragment_that_is_uploaded_and_committed_during_a_sweep_stays() -> None:
    """CE 10, if the root is read first: the listing shows F, which the older root does not name."""

    def begin(yard: Yard) -> tuple[Stalled[SweepReport], Callable[[], None]]:
        yard.fragments(3)
        return at_once(yard), lambda: yard.fragments(2) and None

    stalls(begin)


def test_a_fragment_that_is_committed_between_verdict_and_delete_stays() -> None:
    """CE 10, "not named and old enough": the sweeper stalls, and the commit happens meanwhile."""

    def begin(yard: Yard) -> tuple[Stalled[SweepReport], Callable[[], None]]:
        yard.fragments(3)
        attempt = yard.prepare()
        yard.upload(attempt)
        yard.upload(attempt)
        yard.seconds += 100 * HOUR
        return at_once(yard), lambda: yard.append(attempt)

    stalls(begin)


def test_a_fragment_of_an_older_epoch_stays_as_long_as_its_attempt_runs() -> None:
    """CE 14, "epoch below the root's": a claim alone condemns nothing, since resolve may adopt."""

    def begin(yard: Yard) -> tuple[Stalled[SweepReport], Callable[[], None]]:
        attempt = yard.prepare()
        yard.upload(attempt)
        yard.claim()
        adopted = yard.appending(attempt).entries
        return at_once(yard), lambda: yard.commit(Resolve(writer=yard.writer, adopted=adopted)) and None

    stalls(begin)


@pytest.mark.parametrize("requests", range(1, 12))
def test_a_group_stays_until_its_root_is_decided(requests: int) -> None:
    """CE 13, a group without a version: the group is stored before the root that will name it."""
    yard = Yard(factor=2)
    yard.fragments(3)
    attempt = yard.prepare()
    yard.upload(attempt)
    committing = Stalled(yard.committing(yard.appending(attempt)))
    for _ in range(requests):
        committing.step()

    report = at_once(yard).finish()
    committing.finish()

    assert report.errors == []
    assert yard.objects.root() is not None


def test_a_trimmed_fragment_of_any_age_stays_for_the_grace_period(yard: Yard) -> None:
    """CE, a grace period by the object's age: a reader loaded its root a tick before the trim."""
    old = yard.fragments(4)
    sweeper = yard.sweeper()
    run(sweeper.sweep())
    yard.seconds += 100 * HOUR
    run(sweeper.sweep())
    yard.trim(2)

    for seconds in (0.0, HOUR - 1):
        yard.seconds += seconds
        report = run(sweeper.sweep())
        assert set(old) <= yard.objects.keys()
    assert report.streams[0].waits.objects[Why.TRIMMED] >= 2
    yard.seconds += 1
    run(sweeper.sweep())

    assert set(old[:2]).isdisjoint(yard.objects)
    assert set(old[2:]) <= yard.objects.keys()


# Condemned objects, and the reasons.


def test_each_verdict_has_its_reason(yard: Yard) -> None:
    yard.fragments(7)
    running, dropped = yard.prepare(), yard.prepare()
    yard.upload(running)
    yard.upload(dropped)
    yard.abort(dropped)
    lost = KEYS.group(5, yard.base.version, UUID(int=5), 1)
    undecided = KEYS.group(5, yard.base.version + 1, UUID(int=6), 2)
    yard.objects[lost] = yard.objects[undecided] = b"a group"
    yard.trim(4)
    yard.objects[undecided.replace(f"{yard.base.version:020d}", f"{yard.base.version + 1:020d}")] = b"group"
    told: list[Condemned] = []

    report = run(yard.sweeper(grace_seconds=0, page_keys_max=1000).sweep(dry_run=True, tell=told.append))

    [row] = report.streams
    assert dict(row.deleted.objects) == {
        Why.TRIMMED: 4 + 1,  # and the group of the first three
        Why.DROPPED: 1,
        Why.LOST: 2,
        Why.SUPERSEDED: yard.base.version - ROOTS_KEPT,
    }
    assert row.stays.objects[Why.RUNNING] == 1
    assert row.stays.objects[Why.UNDECIDED] == 1
    assert row.stays.objects[Why.RECENT_ROOT] == ROOTS_KEPT - 1
    assert row.stays.objects[Why.ANCHOR] == 1
    assert row.listed == sum(t.total() for t in (row.stays.objects, row.deleted.objects)) + 3
    assert {c.key for c in told if c.why is Why.LOST} == {lost, undecided}
    assert all(c.waits_seconds == 0 for c in told)


@pytest.mark.parametrize("kept", [1, 3])
def test_the_requested_number_of_roots_stays(yard: Yard, kept: int) -> None:
    yard.fragments(3)

    run(Sweeper(yard.store, grace_seconds=0, roots_kept=kept, env=yard.env).sweep())

    versions = sorted(version for key in yard.objects if (version := KEYS.parse_root(key)) is not None)
    assert versions == [*range(yard.base.version - kept + 1, yard.base.version + 1)]


def test_a_tombstone_names_nothing_and_stays_with_the_anchor(yard: Yard) -> None:
    yard.fragments(9)
    yard.upload(yard.prepare())
    yard.delete()

    report = at_once(yard).finish()

    assert {key for key in yard.objects if key.startswith(KEYS.prefix)} - {*STRANGERS} == {
        KEYS.anchor,
        KEYS.root(yard.base.version),
    }
    assert report.streams[0].state == "deleted"
    assert set(report.streams[0].deleted.objects) == {Why.DELETED}


def test_a_stream_that_is_begun_again_keeps_only_its_own_objects(yard: Yard) -> None:
    yard.fragments(5)
    yard.delete()
    yard.claim()
    born = yard.fragments(4)

    at_once(yard).finish()

    assert {key for key in yard.objects if KEYS.parse_fragment(key)} - {*STRANGERS} == {*born}
    assert yard.garbage() == set()


def test_nothing_is_condemned_while_a_stream_is_rebuilt(yard: Yard) -> None:
    yard.fragments(5)
    fence = replace(
        yard.base, version=yard.base.version + 2**32, state=StreamState.REBUILDING, entries=NO_ENTRIES,
        running=(), next_offset=0, messages=0, data_size_bytes=0, stored_size_bytes=0, fragments=0, ledgers=0,
    )  # fmt: skip
    yard.objects[KEYS.root(fence.version)] = encode_root(fence)
    before = dict(yard.objects)

    report = at_once(yard).finish()
    once(yard)

    assert yard.objects == before
    assert report.streams[0].stays.objects[Why.REBUILDING] > 5
    assert report.streams[0].state == "rebuilding"


def test_nothing_is_condemned_without_a_root(yard: Yard) -> None:
    """Fragments prove that there was a root, so its absence is an error."""
    yard.fragments(5)
    for key in [key for key in yard.objects if key.startswith(KEYS.roots)]:
        dict.pop(yard.objects, key)
    before = dict(yard.objects)

    reports = at_once(yard).finish(), once(yard)

    assert yard.objects == before
    for report in reports:
        assert [type(error) for error in report.errors] == [RootsLost]
        assert (report.streams[0].version, report.streams[0].state) == (None, "no root")


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.DENY, Fault.FLIP, Fault.CUT])
def test_an_unreadable_group_condemns_nothing(fault: Fault) -> None:
    """No object of that page is deleted, and the error is reported."""
    yard = Yard(factor=2)
    yard.fragments(8)
    dropped = yard.prepare()
    yard.upload(dropped)
    yard.abort(dropped)
    before = {key for key in yard.objects if not KEYS.parse_root(key)}
    store = FaultyStore(yard.store, rules=[Rule(fault, "get", "*group")])

    report = once(yard, store=store, grace_seconds=0, page_keys_max=1000)

    assert len(report.errors) == 1
    assert before <= yard.objects.keys()
    assert report.streams[0].deleted.objects.total() == 0
    once(yard, grace_seconds=0)
    assert yard.garbage() == set()


def test_a_missing_group_is_an_error_and_condemns_nothing() -> None:
    yard = Yard(factor=2)
    yard.fragments(8)
    group = next(key for key in yard.objects if key.endswith(".group"))
    dict.pop(yard.objects, group)
    fragments = {key for key in yard.objects if KEYS.parse_fragment(key)}

    report = once(yard, grace_seconds=0)

    assert report.errors
    assert fragments <= yard.objects.keys()


@few("boundaries of a trim within groups; make test has four of fifteen", 4)
@pytest.mark.parametrize("boundary", range(15))
def test_all_groups_below_a_partly_trimmed_group_stay(boundary: int) -> None:
    """The group names them as long as it exists, and every check follows it."""
    yard = Yard(factor=2)
    yard.fragments(16)
    yard.trim(yard.boundaries()[boundary])
    groups = {key for key in yard.objects.named(dead=True) if not KEYS.parse_fragment(key)}

    at_once(yard).finish()

    assert groups <= yard.objects.keys()
    assert yard.garbage() == set()


def test_a_group_that_was_swept_since_the_root_was_loaded_is_not_an_error() -> None:
    """A trim and another sweep happened meanwhile, so the newest root is loaded again."""

    def begin(yard: Yard) -> tuple[Stalled[SweepReport], Callable[[], None]]:
        yard.fragments(8)

        def trim_and_sweep() -> None:
            yard.trim(yard.boundaries()[-1])
            at_once(yard).finish()

        return at_once(yard), trim_and_sweep

    for report in stalls(begin, 1 if CAMPAIGN else 7):
        assert report.errors == []


def test_an_unknown_object_is_reported_and_stays(yard: Yard) -> None:
    yard.objects["tier.probe.1"] = b"probe"

    report = at_once(yard).finish()

    told = {*STRANGERS, "tier.probe.1", "elsewhere/"} - {"elsewhere/data/file"}
    assert report.strangers.keys() == told
    assert report.strangers_count == len(told)
    assert "a sweep removes it" in report.strangers["tier.probe.1"]


def test_a_sweep_can_be_limited_to_one_stream(yard: Yard) -> None:
    other = StreamKeys("other")
    garbage = other.fragment(0, UUID(int=1))
    yard.objects[other.anchor] = StreamAnchor(stream="other").encode()
    yard.objects[other.root(1)] = yard.objects[KEYS.root(1)]
    yard.objects[garbage] = b"x"

    report = run(yard.sweeper(grace_seconds=0).sweep(STREAM))

    assert [row.stream for row in report.streams] == [STREAM]
    assert garbage in yard.objects
    with pytest.raises(NotOffloaded, match="no stream 'nobody'"):
        run(yard.sweeper().sweep("nobody"))


def test_an_error_of_one_stream_does_not_hide_another(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    yard.objects[StreamKeys("bad").anchor] = b"damaged"
    yard.objects[StreamKeys("broken").root(1)] = b"this is not an anchor"

    report = at_once(yard).finish()

    assert [row.stream for row in report.streams if row.errors] == ["bad", "broken"]
    assert key not in yard.objects


def test_a_place_that_is_not_a_tier_cannot_be_swept(tmp_path: Path) -> None:
    with pytest.raises(NotOffloaded, match="is no tier"):
        run(sweep(MemoryStore()))


# Deleting.


@pytest.mark.parametrize("page_keys_max", [1, 2, 3, 7, 1000])
def test_pages_of_any_size_give_the_same_result(page_keys_max: int) -> None:
    yard = Yard(factor=2)
    yard.fragments(9)
    for _ in range(3):
        dropped = yard.prepare()
        yard.upload(dropped)
        yard.abort(dropped)
    yard.trim(yard.boundaries()[4])

    run(yard.sweeper(grace_seconds=0, page_keys_max=page_keys_max).sweep())

    assert yard.garbage() == set()


def test_a_stream_is_listed_once_and_each_page_before_the_root_that_judges_it() -> None:
    """Pages share a listing, because some stores restart a listing to reach a key. One row of the next page
    is listed early, to find out if there is a next page.
    """
    told: list[str] = []

    class Telling(StoreDecorator):
        async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
            if prefix in (KEYS.prefix, KEYS.roots):
                told.append("begins " if prefix == KEYS.prefix else "root ")
            async for row in self.inner.list(prefix, after=after):
                if prefix == KEYS.prefix:
                    told.append("row ")
                yield row

    yard = Yard(factor=2)
    yard.fragments(9)
    total = sum(key.startswith(KEYS.prefix) for key in yard.objects)

    once(yard, store=Telling(yard.store), page_keys_max=5)

    assert total > 3 * 5
    assert re.fullmatch(r"begins row ((row ){5}(root )+)+(row ){0,4}(root )+", "".join(told)), told
    assert told.count("row ") == total


def test_one_listing_finds_all_streams(yard: Yard) -> None:
    """Some stores restart a listing if it has to continue behind a key that is not an object."""
    store = FaultyStore(yard.store)

    async def act() -> None:
        async with ObjectStoreOffloader(store) as offloader:
            for number in range(30):
                await StreamWriter.claim(offloader, f"stream-{number}")
            store.calls.clear()
            assert len(await offloader.streams()) == 31
            await sweep(offloader)

    asyncio.run(act())  # anchors are read side by side, by tasks

    assert store.calls.count(Call("list", "")) == 2


def test_a_page_loads_each_group_at_most_once() -> None:
    yard = Yard(factor=2)
    yard.fragments(16)
    store = FaultyStore(yard.store)

    once(yard, store=store, page_keys_max=1000)

    groups = [call.key for call in store.calls if call.operation == "get" and "group" in call.key]
    assert groups
    assert len(groups) == len(set(groups))


def test_a_failed_delete_is_reported_and_repeated_by_the_next_sweep(yard: Yard) -> None:
    for _ in range(3):
        dropped = yard.prepare()
        yard.upload(dropped)
        yard.abort(dropped)
    store = FaultyStore(yard.store, rules=[Rule(Fault.DENY, "delete", nth=1)])

    report = once(yard, store=store, grace_seconds=0)
    again = once(yard, store=store, grace_seconds=0)

    assert [type(error) for error in report.errors] == [Denied]
    assert again.errors == []
    assert yard.garbage() == set()


def test_a_sweep_whose_listing_breaks_off_deletes_nothing(yard: Yard) -> None:
    """The rest of the listing might have shown that the newest roots are lost."""

    class BreakingOff(StoreDecorator):
        async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
            rows = 0
            async for row in self.inner.list(prefix, after=after):
                if prefix == KEYS.prefix and rows == 14:  # two pages of five, and a part of the third
                    raise TryAgain("the listing broke off")
                rows += 1
                yield row

    dropped = yard.prepare()
    for _ in range(20):
        yard.upload(dropped)
    yard.abort(dropped)
    before = set(yard.objects)

    report = once(yard, store=BreakingOff(yard.store), grace_seconds=0)

    assert [type(error) for error in report.errors] == [TryAgain]
    assert set(yard.objects) == before


@pytest.mark.parametrize("batch_max", [None, 1, 3, 1000])
def test_no_request_deletes_more_than_the_store_takes(yard: Yard, batch_max: int | None) -> None:
    sizes = []

    class Counting(StoreDecorator):
        @property
        def capabilities(self) -> Capabilities:
            return replace(self.inner.capabilities, delete_batch_max=batch_max)

        async def delete(self, keys: Sequence[str]) -> None:
            sizes.append(len(keys))
            await self.inner.delete(keys)

    dropped = yard.prepare()
    for _ in range(7):
        yard.upload(dropped)
    yard.abort(dropped)

    once(yard, store=Counting(yard.store), grace_seconds=0, page_keys_max=1000)

    assert max(sizes) == min(7, batch_max or 7)
    assert yard.garbage() == set()


def test_a_sighting_of_hostile_size_is_not_read(yard: Yard) -> None:
    yard.fragments(1)
    name = KEYS.sighting(5, UUID(int=5))
    yard.objects[name] = bytes(SIZE_BYTES_MAX + 1)
    store = FaultyStore(yard.store)

    report = once(yard, store=store)

    assert "sighting size" in report.streams[0].notes[0]
    assert ("get", name) not in store.calls
    assert name not in yard.objects


def test_progress_is_reported_after_every_page_and_delete(yard: Yard) -> None:
    yard.fragments(9)
    seen: list[int] = []

    once(yard, grace_seconds=0, progress=lambda report: seen.append(report.streams[0].listed))

    assert seen == sorted(seen)
    assert len(seen) > 2


# Notes that a command leaves for the next.


def test_a_command_deletes_objects_that_an_earlier_one_noted_a_grace_period_ago(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)

    first = once(yard)
    yard.seconds += HOUR - 1
    second = once(yard)
    assert key in yard.objects
    yard.seconds += 1
    third = once(yard)

    assert key not in yard.objects
    assert first.streams[0].waits_seconds == HOUR
    assert second.streams[0].waits_seconds == 1
    assert third.streams[0].deleted.objects[Why.DROPPED] == 1
    assert sightings(yard) == []


def test_a_sighting_names_only_objects_that_no_other_sighting_names(yard: Yard) -> None:
    for _ in range(2):
        dropped = yard.prepare()
        yard.upload(dropped)
        yard.abort(dropped)
        once(yard)
        yard.seconds += HOUR / 2

    found = [Sighting.decode(yard.objects[key], stream=STREAM, where=key) for key in sightings(yard)]

    assert [len(sighting.rows) for sighting in found] == [1, 1]


def test_frequent_commands_keep_few_sightings_and_still_delete_everything(yard: Yard) -> None:
    keys, most = {}, 0
    for _ in range(160):
        dropped = yard.prepare()
        keys[yard.upload(dropped)] = yard.seconds
        yard.abort(dropped)
        once(yard, page_keys_max=1000)
        most = max(most, len(sightings(yard)))
        late = [key for key, seconds in keys.items() if yard.seconds - seconds > 1.2 * HOUR]
        early = [key for key, seconds in keys.items() if yard.seconds - seconds < HOUR]
        assert not [key for key in late if key in yard.objects]
        assert all(key in yard.objects for key in early)
        yard.seconds += 60

    assert 8 < most <= SIGHTINGS_MAX


def test_a_sweep_without_grace_period_writes_no_notes_and_removes_old_ones(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    once(yard)
    assert sightings(yard)

    once(yard, grace_seconds=0)

    assert key not in yard.objects
    assert sightings(yard) == []


def test_a_dry_run_writes_nothing_and_reports_the_objects_to_delete(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    once(yard)
    yard.objects[KEYS.sighting(5, UUID(int=5))] = b"damaged"
    before = dict(yard.objects)
    told: list[Condemned] = []

    once(yard, dry_run=True, tell=told.append)
    assert [(c.key, c.waits_seconds) for c in told] == [(key, HOUR)]
    yard.seconds += HOUR
    told.clear()
    once(yard, dry_run=True, tell=told.append)

    assert [(c.key, c.waits_seconds) for c in told] == [(key, 0)]
    assert yard.objects == before


@pytest.mark.parametrize("damage", [b"", b"OLSG" + bytes(200)])
def test_a_damaged_sighting_is_reported_ignored_and_removed(yard: Yard, damage: bytes) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    once(yard)
    [name] = sightings(yard)
    yard.objects[name] = damage
    yard.seconds += 2 * HOUR

    report = once(yard)

    assert "sighting" in report.streams[0].notes[0]
    assert key in yard.objects
    assert name not in yard.objects
    yard.seconds += HOUR
    once(yard)
    assert key not in yard.objects


def test_a_renamed_sighting_does_not_become_older(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    once(yard)
    [name] = sightings(yard)
    time_ms, uid = KEYS.parse_sighting(name) or (0, UUID(int=0))
    yard.objects[KEYS.sighting(time_ms - 7_200_000, uid)] = dict.pop(yard.objects, name)

    report = once(yard)

    assert key in yard.objects
    assert "sighting name" in report.streams[0].notes[0]


def test_a_clock_that_goes_back_only_delays_deletion(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    yard.seconds += 100 * HOUR
    once(yard)
    yard.seconds -= 50 * HOUR

    report = once(yard)
    assert "from the future" in report.streams[0].notes[0]
    yard.seconds += HOUR
    once(yard)

    assert key not in yard.objects


def test_a_sighting_from_before_a_rebuild_is_void(yard: Yard) -> None:
    """A rebuild may have named condemned objects again, and a reader may use them since."""
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    once(yard)
    yard.manifest = replace(yard.base, version=yard.base.version + 2**32 - 100)
    yard.objects[KEYS.root(yard.base.version)] = encode_root(yard.base)
    yard.seconds += 2 * HOUR

    report = once(yard)

    assert key in yard.objects
    assert "rebuilt" in report.streams[0].notes[0]


def test_a_sighting_can_be_used_again_after_an_incomplete_sweep(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    once(yard)
    yard.seconds += HOUR
    store = FaultyStore(yard.store, rules=[Rule(Fault.FAIL_BEFORE, "delete")])

    assert [type(error) for error in once(yard, store=store).errors] == [TryAgain]
    assert sightings(yard)
    once(yard)

    assert key not in yard.objects


def noted(yard: Yard, *fragments: str, age_seconds: float) -> str:
    """Store a sighting of these fragments, as a sweep of that time would leave it, and return its key."""
    rows = rows_named([name_of(KEYS, key) or b"" for key in sorted(fragments)])
    uid, time_ms = yard.env.uuid(), int(yard.env.now_ms() - age_seconds * 1000)
    sighting = Sighting(stream=STREAM, uid=uid, time_ms=time_ms, version=yard.base.version, rows=rows)
    key = KEYS.sighting(time_ms, uid)
    yard.objects[key] = sighting.encode()
    return key


def test_the_earlier_of_two_simultaneous_notes_counts(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    noted(yard, key, age_seconds=HOUR)
    noted(yard, key, age_seconds=HOUR / 2)

    once(yard)

    assert key not in yard.objects


@pytest.mark.parametrize("standing", [SIGHTINGS_MAX - 1, SIGHTINGS_MAX, SIGHTINGS_MAX + 9])
def test_many_sightings_prevent_new_ones_and_the_oldest_are_used(yard: Yard, standing: int) -> None:
    dropped = yard.prepare()
    first, second = yard.upload(dropped), yard.upload(dropped)
    yard.abort(dropped)
    for number in range(standing):
        noted(yard, first, age_seconds=HOUR - 1 - number)
    yard.seconds += 600

    once(yard)

    assert first not in yard.objects
    assert second in yard.objects
    assert len(sightings(yard)) <= max(SIGHTINGS_MAX, standing - SIGHTINGS_MAX)
    yard.seconds += 2 * HOUR
    for _ in range(4):
        once(yard)
        yard.seconds += 2 * HOUR
    assert yard.garbage() == set()


def test_sixteen_young_sightings_are_enough(yard: Yard) -> None:
    dropped = yard.prepare()
    first, second = yard.upload(dropped), yard.upload(dropped)
    yard.abort(dropped)
    for number in range(SIGHTINGS_MAX):
        noted(yard, first, age_seconds=HOUR - 60 - number)
    before = sightings(yard)

    report = once(yard)

    assert sightings(yard) == before
    assert report.streams[0].waits.objects[Why.DROPPED] == 2
    assert second in yard.objects


# The memory of a sweeper that runs repeatedly.


def test_a_sweeper_forgets_what_it_saw_before_a_rebuild(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    sweeper = yard.sweeper()
    run(sweeper.sweep())
    yard.manifest = replace(yard.base, version=yard.base.version + 2**32 - 100)
    yard.objects[KEYS.root(yard.base.version)] = encode_root(yard.base)
    yard.seconds += 2 * HOUR

    run(sweeper.sweep())
    assert key in yard.objects
    yard.seconds += HOUR
    run(sweeper.sweep())

    assert key not in yard.objects


def test_a_sweeper_remembers_an_incomplete_sweep(yard: Yard) -> None:
    dropped = yard.prepare()
    key = yard.upload(dropped)
    yard.abort(dropped)
    store = FaultyStore(yard.store)
    sweeper = Sweeper(store, env=yard.env, page_keys_max=1000)
    run(sweeper.sweep())
    store.rules.append(Rule(Fault.FAIL_BEFORE, "delete", nth=1))
    yard.seconds += HOUR

    assert run(sweeper.sweep()).errors
    assert key in yard.objects
    run(sweeper.sweep())

    assert key not in yard.objects


# Uploads that a crash interrupted.


def unfinished(store: ObjectStore) -> set[str]:
    return {upload.key for upload in run(store.unfinished_uploads(""))}


def test_uploads_of_dropped_attempts_are_aborted(yard: Yard) -> None:
    runs, dropped = yard.prepare(), yard.prepare()
    keys = [KEYS.fragment(0, runs), KEYS.fragment(0, dropped), "somebody/else"]
    for key in keys:
        run(yard.store.start_upload(key))
    yard.abort(dropped)
    yard.seconds += 30 * 86_400.0
    told: list[Condemned] = []

    once(yard, dry_run=True, tell=told.append)
    assert unfinished(yard.store) == {*keys}
    report = once(yard)

    assert unfinished(yard.store) == {keys[0], keys[2]}
    assert report.streams[0].deleted.objects[Why.UNFINISHED] == 1
    assert [condemned.key for condemned in told] == [keys[1]]


def test_a_young_upload_is_left_alone(yard: Yard) -> None:
    run(yard.store.start_upload(KEYS.fragment(0, UUID(int=1))))

    report = once(yard, uploads_seconds=1e12)

    assert len(unfinished(yard.store)) == 1
    assert report.streams[0].stays.objects[Why.YOUNG] == 1


def test_an_upload_that_begins_while_a_sweep_stalls_is_safe() -> None:
    """Uploads are listed before they are judged, and each begins after its attempt was prepared."""
    stores: list[ObjectStore] = []

    def begin(yard: Yard) -> tuple[Stalled[SweepReport], Callable[[], None]]:
        def prepare_and_upload() -> None:
            run(yard.store.start_upload(KEYS.fragment(0, yard.prepare())))

        stores.append(yard.store)
        run(yard.store.start_upload("somebody/else"))
        return at_once(yard), prepare_and_upload

    reports = stalls(begin)

    assert len(reports) > 5
    assert all(len(unfinished(store)) == 2 for store in stores[:-1])


def test_a_store_that_forbids_listing_uploads_causes_a_note(yard: Yard) -> None:
    class Forbids(StoreDecorator):
        async def unfinished_uploads(self, prefix: str) -> Sequence[Unfinished]:
            raise Denied("the credentials lack s3:ListBucketMultipartUploads")

    report = once(yard, store=Forbids(yard.store))

    assert report.errors == []
    assert "s3:ListBucketMultipartUploads" in report.streams[0].notes[0]


# All of it together.


class History(RuleBasedStateMachine):
    """A random history of one stream, with up to two sweeps that stall anywhere, and late puts."""

    @initialize(factor=st.integers(2, 4), seed=st.integers(0, 99), in_tier=st.booleans())
    def begin(self, factor: int, seed: int, in_tier: bool) -> None:
        self.yard = Yard(factor=factor, seed=seed)
        self.in_tier = in_tier
        self.sweepers = [self.yard.sweeper(page_keys_max=size) for size in (2, 9)]
        self.sweeps: list[Stalled[SweepReport] | None] = [None, None]

    @precondition(lambda self: not self.yard.is_deleted)
    @rule()
    def prepare(self) -> None:
        self.yard.prepare()

    @precondition(lambda self: self.yard.uploaded)
    @rule(which=st.integers(0, 99), records=st.integers(1, 3))
    def upload(self, which: int, records: int) -> None:
        self.yard.upload([*self.yard.uploaded][which % len(self.yard.uploaded)], records=records)

    @rule(which=st.integers(0, 99))
    def append(self, which: int) -> None:
        fit = [attempt for attempt in self.yard.uploaded if self.yard.fits(attempt)]
        if fit:
            self.yard.append(fit[which % len(fit)])

    @precondition(lambda self: not self.yard.is_deleted)
    @rule(count=st.integers(1, 4))
    def append_more(self, count: int) -> None:
        self.yard.fragments(count)

    @rule(which=st.integers(0, 99), requests=st.integers(1, 9))
    def crash_while_appending(self, which: int, requests: int) -> None:
        """Crash during an append. It may leave groups, with or without their root."""
        fit = [attempt for attempt in self.yard.uploaded if self.yard.fits(attempt)]
        if not fit:
            return
        attempt = fit[which % len(fit)]
        entries = list(self.yard.uploaded[attempt])
        committing = Stalled(self.yard.committing(self.yard.appending(attempt)))
        for _ in range(requests):
            committing.step()
        committing.crash()
        self.yard.manifest = self.yard.objects.root()
        if self.yard.base.runs(attempt):
            self.yard.uploaded[attempt] = entries

    @precondition(lambda self: self.yard.uploaded)
    @rule(which=st.integers(0, 99))
    def abort(self, which: int) -> None:
        self.yard.abort([*self.yard.uploaded][which % len(self.yard.uploaded)])

    @rule(which=st.integers(0, 99))
    def trim(self, which: int) -> None:
        if boundaries := self.yard.boundaries():
            self.yard.trim(boundaries[which % len(boundaries)])

    @rule(chance=st.integers(0, 3))
    def delete_or_claim(self, chance: int) -> None:
        if self.yard.is_deleted:
            self.yard.claim()
        elif not chance:
            self.yard.delete()

    @precondition(lambda self: self.yard.ever)
    @rule(which=st.integers(0, 999))
    def a_late_put_lands(self, which: int) -> None:
        self.yard.objects[self.yard.ever[which % len(self.yard.ever)]] = bytes(100)

    @rule(seconds=st.sampled_from([1, 600, 1800, 3600]))
    def time_passes(self, seconds: int) -> None:
        self.yard.seconds += seconds

    @rule(which=st.integers(0, 1), requests=st.integers(1, 25), grace=st.sampled_from([0, 3600]))
    def sweep(self, which: int, requests: int, grace: int) -> None:
        sweeping = self.sweeps[which]
        if sweeping is None:
            yard = self.yard
            sweeping = Stalled(
                sweep(yard.store, env=yard.env, grace_seconds=grace, page_keys_max=4)
                if self.in_tier
                else self.sweepers[which].sweep()
            )
            self.sweeps[which] = sweeping
        for _ in range(requests):
            sweeping.step()
        if sweeping.over:
            self.sweeps[which] = None
            assert sweeping.results[0].errors == []

    @rule(which=st.integers(0, 1))
    def kill_the_sweep(self, which: int) -> None:
        if (sweeping := self.sweeps[which]) is not None:
            sweeping.crash()
            self.sweeps[which] = None
            self.sweepers[which] = self.yard.sweeper(page_keys_max=3)

    @invariant()
    def what_is_named_is_there(self) -> None:
        if hasattr(self, "yard"):
            assert self.yard.objects.named() <= self.yard.objects.keys()

    def teardown(self) -> None:
        """Check that a final sweep deletes all garbage and all notes."""
        if not hasattr(self, "yard"):
            return
        for sweeping in self.sweeps:
            if sweeping is not None:
                sweeping.finish()
        for _ in range(3):
            self.yard.seconds += 2 * HOUR
            if self.in_tier:
                once(self.yard)
            else:
                run(self.sweepers[0].sweep())
        assert self.yard.garbage() == set()


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=500 if CAMPAIGN else 5, stateful_step_count=40, deadline=None)


def test_sweeps_beside_running_syncs_lose_nothing(tmp_path: Path) -> None:
    """Sweeps without a grace period run one after another while a stream is copied in many small
    fragments.
    """
    chunks = [*simple_chunks(400, records=5)]
    write_stream(tmp_path / "orders", chunks[:200], segment_chunks=20)
    objects: dict[str, bytes] = {}
    rounds = requests = 0
    swept = asyncio.Event()

    async def wait_for_a_sweep(operation: str, key: str) -> None:
        """Pause the copying from time to time until one more sweep has ended, at any point of the copy."""
        nonlocal requests
        requests += 1
        if requests % 25 == 0:
            swept.clear()
            await swept.wait()

    async def copy() -> None:
        for more in (chunks[200:300], chunks[300:], []):
            offloader = ObjectStoreOffloader(
                FaultyStore(MemoryStore(objects=objects), before=wait_for_a_sweep),
                options=TierOptions(fragment_size_bytes=200),
            )
            source = open_source(f"rabbitmq://{tmp_path / 'orders'}", plugins=Plugins.find())
            async for report in sync_all(source, offloader):
                assert report.error is None, report.error
            if more:
                append_chunks(tmp_path / "orders", more)

    async def main() -> None:
        nonlocal rounds
        copying = asyncio.create_task(copy())
        while not copying.done():
            await asyncio.sleep(0)
            try:
                report = await sweep(MemoryStore(objects=objects), grace_seconds=0, page_keys_max=10)
            except NotOffloaded:
                continue
            finally:
                swept.set()
            rounds += 1
            assert report.errors == []
        await copying
        checked = await verify(MemoryStore(objects=objects))
        assert (checked.damages, checked.unreferenced) == ([], [])

    asyncio.run(main())
    assert rounds > 10


def test_a_sweep_of_a_real_tier_without_garbage_deletes_nothing(tmp_path: Path) -> None:
    objects: dict[str, bytes] = {}

    async def main() -> SweepReport:
        offloader = ObjectStoreOffloader(MemoryStore(objects=objects))
        async for _ in sync_all(open_source(f"rabbitmq://{DATA}", plugins=Plugins.find()), offloader):
            pass
        before = dict(objects)
        report = await sweep(offloader, grace_seconds=0)
        assert objects == before
        return report

    report = asyncio.run(main())

    assert [row.deleted.objects.total() for row in report.streams] == [0, 0, 0]
    assert report.strangers_count == 0


def test_an_offloader_without_objects_cannot_be_swept() -> None:
    class Archive:
        url = "archive://"

    archive: Any = Archive()
    with pytest.raises(Misuse, match="keeps no objects"):
        run(sweep(archive))


def test_a_store_with_late_listings_is_not_swept(yard: Yard) -> None:
    """An older root would condemn objects that a newer one names."""

    class Late(StoreDecorator):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, strong_listing=False)

    before = dict(yard.objects)

    with pytest.raises(Denied, match="newest root"):
        once(yard, store=Late(yard.store), grace_seconds=0)

    assert dict(yard.objects) == before


def test_a_sweep_removes_objects_of_interrupted_trials_and_of_no_running_one(yard: Yard) -> None:
    now_ms = Env().now_ms()
    old, young = f"tier.probe.{now_ms - 25 * 3_600_000:020}.a", f"tier.check.{now_ms - 3_600_000:020}.a.small"
    yard.objects[old] = yard.objects[young] = b"trial"

    async def swept(*, dry_run: bool) -> SweepReport:
        return await sweep(yard.store, dry_run=dry_run)

    assert asyncio.run(swept(dry_run=True)).trials_deleted == 1
    assert old in yard.objects
    report = asyncio.run(swept(dry_run=False))

    assert (report.trials_deleted, report.errors) == (1, [])
    assert old not in yard.objects
    assert young in yard.objects
    assert young in report.strangers
    assert old not in report.strangers
