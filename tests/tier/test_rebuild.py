"""Tests of rebuilding a manifest from the data alone: the choice, the refusals, and crashes.

The rules are those of docs/commit-protocol.md, step "rebuild", and of `offload.upkeep.rebuild.choice`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_conformance.ledgers import ledger_of

from offload import ObjectStoreOffloader, StreamWriter
from offload.commit.log import Step
from offload.formats.keys import StreamKeys
from offload.ground.errors import Conflict, Fenced, Misuse, NotOffloaded, OffloadError, RootsLost
from offload.model.entry import Entry, entries_of_rows
from offload.model.found import FoundFragment
from offload.model.manifest import Manifest, StreamState
from offload.store.memory import MemoryStore
from offload.upkeep.rebuild.choice import RebuildChoice
from offload.upkeep.rebuild.choice import choose as choose_of
from offload.upkeep.rebuild.report import RebuildReport
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.verify.tier import verify

KEYS = StreamKeys("orders")
OLDER, NEWER = UUID(int=1), UUID(int=2)


def found(
    first: int, stop: int, *, epoch: int = 1, attempt: int = 1, incarnation: UUID = NEWER
) -> FoundFragment:
    entry = Entry(
        first_offset=first,
        records=stop - first,
        messages=stop - first,
        first_timestamp_ms=0,
        last_timestamp_ms=0,
        data_size_bytes=1,
        stored_size_bytes=1,
        ledger_id=0,
        attempt=UUID(int=attempt),
        checksum=0,
    )
    return FoundFragment(entry=entry, incarnation=incarnation, epoch=epoch, base_version=1)


def choose(found: Sequence[FoundFragment], **words: int) -> RebuildChoice:
    return choose_of(found, incarnation=NEWER, **words)


def ranges(chosen: Sequence[FoundFragment]) -> list[tuple[int, int]]:
    return [(each.entry.first_offset, each.entry.next_offset) for each in chosen]


class TestTheChoice:
    def test_a_higher_epoch_wins_even_if_its_chain_is_shorter(self) -> None:
        """Rule 1: the writer of that epoch began there, so nothing longer was committed before it."""
        choice = choose([found(0, 5), found(5, 20), found(5, 7, epoch=2, attempt=2)])

        assert ranges(choice.chosen) == [(0, 5), (5, 7)]
        assert [reason for _, reason in choice.left_out] == ["a rival fragment of these offsets was chosen"]

    def test_the_longest_chain_of_an_epoch_wins(self) -> None:
        """Rule 2: an attempt that was given up, and the one that replaced it."""
        choice = choose([found(0, 7, attempt=1), found(0, 5, attempt=2), found(5, 20, attempt=2)])

        assert ranges(choice.chosen) == [(0, 5), (5, 20)]

    def test_only_the_named_incarnation_counts(self) -> None:
        choice = choose([found(0, 100, incarnation=OLDER), found(0, 5, epoch=2)])

        assert ranges(choice.chosen) == [(0, 5)]
        assert [reason for _, reason in choice.left_out] == ["of another history"]

    def test_a_hole_is_reported_and_not_skipped(self) -> None:
        choice = choose([found(0, 5), found(7, 9), found(12, 13)])

        assert ranges(choice.chosen) == [(0, 5)]
        assert choice.holes == [(5, 7), (9, 12)]

    def test_the_operator_may_set_beginning_and_end(self) -> None:
        all_of_them = [found(0, 5), found(7, 9), found(9, 12), found(14, 15)]

        choice = choose(all_of_them, begin=7, end=12)

        assert ranges(choice.chosen) == [(7, 9), (9, 12)]
        assert not choice.holes

    @given(
        st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4), st.integers(1, 3)), min_size=1),
        st.randoms(),
    )
    def test_the_choice_has_no_hole_and_no_overlap_in_any_order_of_fragments(
        self, rows: list[tuple[int, int, int]], chance: object
    ) -> None:
        fragments = [
            found(first, first + length, epoch=epoch, attempt=number)
            for number, (first, length, epoch) in enumerate(rows)
        ]
        choice = choose(fragments)
        chance.shuffle(fragments)

        spans = ranges(choice.chosen)
        assert spans[0][0] == min(first for first, _, _ in rows)
        assert all(before[1] == after[0] for before, after in pairwise(spans))
        assert choose(fragments).chosen == choice.chosen
        known = len(choice.chosen) + len(choice.left_out)
        behind = [each for each in fragments if each.entry.first_offset >= spans[-1][1]]
        assert known + len(behind) == len(fragments)
        assert bool(choice.holes) == bool(behind)


async def sound_tier(store: MemoryStore, *, ledgers: int = 3) -> Manifest:
    """Return a tier of two writers and several ledgers, with a crash whose fragments nobody adopted."""
    offloader = ObjectStoreOffloader(store)
    writer = await StreamWriter.claim(offloader, "orders")
    handles = [ledger_of(10, first_offset=10 * number) for number in range(ledgers)]
    await writer.offload(handles[:1])
    [attempt] = await writer.prepare([10])
    await offloader.offload(handles[1], attempt, manifest=writer.manifest, extra_metadata={})

    async def never(leftover: object) -> bool:
        return False

    writer = await StreamWriter.claim(offloader, "orders", agree=never)
    await writer.offload(handles[1:])
    return writer.manifest


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def lose_roots(store: MemoryStore) -> None:
    for key in [key for key in store.objects if key.startswith(KEYS.roots)]:
        del store.objects[key]


def run(act: Callable[[MemoryStore], Awaitable[None]], *, lost: bool = True) -> tuple[MemoryStore, Manifest]:
    store = MemoryStore()

    async def main() -> Manifest:
        manifest = await sound_tier(store)
        if lost:
            lose_roots(store)
        await act(store)
        return manifest

    return store, asyncio.run(main())


async def rebuilt(store: MemoryStore, **how: Any) -> RebuildReport:
    return await rebuild(ObjectStoreOffloader(store), "orders", **how)


async def is_live(store: MemoryStore) -> bool:
    try:
        await ObjectStoreOffloader(store).load_manifest("orders")
    except (NotOffloaded, RootsLost):
        return False
    return True


def test_a_rebuild_restores_the_history_if_all_roots_are_lost() -> None:
    reports = []

    async def act(store: MemoryStore) -> None:
        reports.append(await rebuilt(store))
        report = await verify(store)
        assert not report.damages

    _, before = run(act)

    [report] = reports
    assert report.manifest is not None
    assert entries_of_rows(report.manifest.entries) == entries_of_rows(before.entries)
    for total in ("first_offset", "next_offset", "messages", "data_size_bytes", "fragments", "ledgers"):
        assert getattr(report.manifest, total) == getattr(before, total)
    assert report.manifest.incarnation == before.incarnation
    assert report.manifest.epoch > before.epoch
    assert report.manifest.version > 2**32
    assert len(report.choice.left_out) == 1


def test_a_dry_run_writes_nothing() -> None:
    async def act(store: MemoryStore) -> None:
        before = dict(store.objects)
        report = await rebuilt(store, dry_run=True)
        assert report.manifest is None
        assert len(report.choice.chosen) == 3
        assert store.objects == before

    run(act)


def test_a_sound_stream_is_not_rebuilt() -> None:
    async def act(store: MemoryStore) -> None:
        with pytest.raises(Conflict, match="nothing is lost"):
            await rebuilt(store)

    run(act, lost=False)


def test_a_damaged_newest_root_is_left_to_a_person() -> None:
    async def act(store: MemoryStore) -> None:
        newest = max(key for key in store.objects if key.startswith(KEYS.roots))
        store.objects[newest] = flipped(store.objects[newest])
        with pytest.raises(Conflict, match="is not sound"):
            await rebuilt(store)

    run(act, lost=False)


def test_a_hole_is_reported_and_nothing_is_written() -> None:
    async def act(store: MemoryStore) -> None:
        for key in [key for key in store.objects if key.startswith(f"{KEYS.data}{10:020}")]:
            del store.objects[key]
        before = dict(store.objects)

        report = await rebuilt(store)

        assert report.manifest is None
        assert report.choice.holes == [(10, 20)]
        assert store.objects == before

        behind = await rebuilt(store, begin=20)
        assert behind.manifest is not None
        assert (behind.manifest.first_offset, behind.manifest.next_offset) == (20, 30)

    run(act)


def test_the_next_writer_continues_at_an_end_that_was_given() -> None:
    async def act(store: MemoryStore) -> None:
        for key in [key for key in store.objects if key.startswith(f"{KEYS.data}{10:020}")]:
            del store.objects[key]

        report = await rebuilt(store, end=10)

        assert report.manifest is not None
        writer = await StreamWriter.claim(ObjectStoreOffloader(store), "orders")
        await writer.offload([ledger_of(10, first_offset=10), ledger_of(10, first_offset=20)])
        assert (writer.manifest.first_offset, writer.manifest.next_offset) == (0, 30)

    run(act)


@pytest.mark.parametrize("how", [{"begin": 3}, {"end": 3}, {"end": 15}])
def test_an_offset_at_which_nothing_begins_or_ends_is_refused(how: dict[str, int]) -> None:
    async def act(store: MemoryStore) -> None:
        before = dict(store.objects)
        with pytest.raises(Misuse, match="no fragment"):
            await rebuilt(store, **how)
        assert store.objects == before

    run(act)


def test_a_damaged_fragment_is_reported_as_a_hole() -> None:
    async def act(store: MemoryStore) -> None:
        for key in [key for key in store.objects if key.startswith(f"{KEYS.data}{10:020}")]:
            store.objects[key] = flipped(store.objects[key])

        report = await rebuilt(store)

        assert report.manifest is None
        assert len(report.damages) == 2
        assert report.choice.holes == [(10, 20)]

    run(act)


def test_a_stream_without_fragments_cannot_be_rebuilt() -> None:
    async def act(store: MemoryStore) -> None:
        for key in [key for key in store.objects if key.startswith(KEYS.data)]:
            del store.objects[key]
        with pytest.raises(NotOffloaded, match="nothing can be rebuilt"):
            await rebuilt(store)

    run(act)


def test_a_rebuild_restores_a_lost_anchor_too() -> None:
    async def act(store: MemoryStore) -> None:
        del store.objects[KEYS.anchor]
        await rebuilt(store)
        assert (await verify(store)).damages == []

    run(act)


def test_a_writer_that_slept_during_a_rebuild_is_fenced() -> None:
    async def act(store: MemoryStore) -> None:
        sleeper = await StreamWriter.claim(ObjectStoreOffloader(store), "orders")
        [attempt] = await sleeper.prepare([30])
        receipt = await sleeper.offloader.offload(
            ledger_of(10, first_offset=30), attempt, manifest=sleeper.manifest, extra_metadata={}
        )
        lose_roots(store)
        await rebuilt(store, end=30)

        with pytest.raises(Fenced):
            await sleeper.append([receipt])

    run(act, lost=False)


class Stopped(BaseException):
    """The error that ends the process at this step."""


@pytest.mark.parametrize("commit", [0, 1], ids=["fence", "commit"])
@pytest.mark.parametrize("step", list(Step))
def test_the_next_rebuild_finishes_one_that_was_killed_at_any_step(commit: int, step: Step) -> None:
    async def act(store: MemoryStore) -> None:
        seen = 0

        def witness(now: Step) -> None:
            nonlocal seen
            if now is step:
                if seen == commit:
                    raise Stopped
                seen += 1

        try:
            await rebuild(ObjectStoreOffloader(store, witness=witness), "orders")
        except Stopped:
            pass
        else:
            assert step is Step.IN_DOUBT  # the step that an undisturbed rebuild never reaches

        if await is_live(store):
            with pytest.raises(Conflict, match="nothing is lost"):
                await rebuilt(store)
        else:
            assert (await rebuilt(store)).manifest is not None
        newest = await ObjectStoreOffloader(store).load_manifest("orders")
        assert (newest.state, newest.first_offset, newest.next_offset) == (StreamState.LIVE, 0, 30)

    run(act)


def test_readers_and_writers_wait_between_fence_and_commit() -> None:
    async def act(store: MemoryStore) -> None:
        def witness(now: Step) -> None:
            if now is Step.ACCEPTED:
                raise Stopped

        with pytest.raises(Stopped):
            await rebuild(ObjectStoreOffloader(store, witness=witness), "orders")

        with pytest.raises(NotOffloaded, match="being rebuilt"):
            await ObjectStoreOffloader(store).load_manifest("orders")
        with pytest.raises(OffloadError, match="being rebuilt"):
            await StreamWriter.claim(ObjectStoreOffloader(store), "orders")

    run(act)


def test_one_of_two_simultaneous_rebuilds_commits_and_the_other_learns_it() -> None:
    async def act(store: MemoryStore) -> None:
        results = await asyncio.gather(rebuilt(store), rebuilt(store), return_exceptions=True)

        won = [each for each in results if isinstance(each, RebuildReport) and each.manifest]
        assert won
        assert all(isinstance(each, (RebuildReport, Conflict, Fenced)) for each in results)
        newest = await ObjectStoreOffloader(store).load_manifest("orders")
        assert newest.next_offset == 30

    run(act)


def test_an_append_in_progress_is_found_or_is_a_hole() -> None:
    """CE 13, listing before the fence: the second listing shows objects that were stored after the first."""

    async def act(store: MemoryStore) -> None:
        late = await StreamWriter.claim(ObjectStoreOffloader(store), "orders")
        [attempt] = await late.prepare([30])
        lose_roots(store)

        def witness(now: Step) -> None:
            if now is Step.BEFORE_CREATE and not uploads:
                uploads.append(True)
                store.objects.update(uploaded)

        uploads: list[bool] = []
        other = MemoryStore(objects=dict(store.objects))
        await ObjectStoreOffloader(other).offload(
            ledger_of(10, first_offset=30), attempt, manifest=late.manifest, extra_metadata={}
        )
        uploaded = {key: data for key, data in other.objects.items() if key not in store.objects}
        report = await rebuild(ObjectStoreOffloader(store, witness=witness), "orders")

        assert report.manifest is not None
        assert report.manifest.next_offset == 40

    run(act, lost=False)
