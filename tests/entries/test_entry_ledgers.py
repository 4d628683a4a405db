"""Tests of streams of ledgers with entries: offsets that stay, ledgers that grow and go, and rivals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from campaign import CAMPAIGN
from entry_store import EntryStore, bodies, synced
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kit.world import Clock

from offload import (
    AtOffset,
    Follower,
    FollowRules,
    Misuse,
    ObjectStoreOffloader,
    ReadPriority,
    Retention,
    StreamReader,
    TieredReader,
    TierOptions,
    TryAgain,
    open_tier,
    trim,
)
from offload.entries.offsets import first_offset_of_ledger
from offload.store.memory import MemoryStore


async def entry_at(tier: ObjectStoreOffloader, ledger_id: int, entry: int) -> bytes:
    """Return one entry, read from the tier by its ledger and its id."""
    offset = entry + await first_offset_of_ledger(await tier.view("orders"), ledger_id)
    reader = await StreamReader.open(tier, "orders")
    async for batch in reader.messages(await reader.offset_of(AtOffset(offset))):
        return batch.bodies[offset - batch.offset]
    raise AssertionError("no message")


class EntryLedgerMachine(RuleBasedStateMachine):
    """A store whose ledgers grow, end and go, beside a plain list of all entries that were copied."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = MemoryStore()
        self.stores = [self.fresh(), self.fresh()]
        self.ledgers = self.stores[0].ledgers
        self.stores[1].ledgers = self.ledgers
        self.copied: list[bytes] = []
        self.begins: dict[int, int] = {}
        self.number = 0

    def fresh(self) -> EntryStore:
        """Return the store as another process sees it."""
        return EntryStore(tier=self.tier())

    def tier(self) -> ObjectStoreOffloader:
        """Return the tier as another process opens it. Its fragments are small."""
        return ObjectStoreOffloader(self.objects, options=TierOptions(fragment_size_bytes=1000))

    @rule(gap=st.integers(1, 3), entries=st.lists(st.binary(max_size=300), max_size=8))
    def begin(self, gap: int, entries: list[bytes]) -> None:
        """Begin a ledger, perhaps an empty one."""
        ledger_id = (self.ledgers[-1].ledger_id if self.ledgers else self.number) + gap
        self.number = ledger_id
        self.stores[0].begin(ledger_id, *entries)

    @precondition(lambda self: self.ledgers)
    @rule(entries=st.lists(st.binary(max_size=300), max_size=8))
    def grow(self, entries: list[bytes]) -> None:
        """Append to the last ledger."""
        if not self.ledgers[-1].is_sealed:
            self.ledgers[-1].add(*entries)

    @rule(process=st.integers(0, 1))
    def sync(self, process: int) -> None:
        """Copy what is new."""
        report = asyncio.run(synced(self.stores[process], self.tier()))
        assert report.error is None, report.error
        for ledger in self.ledgers:
            if ledger.entries:
                begin = self.begins.setdefault(ledger.ledger_id, len(self.copied))
                self.copied[begin : begin + len(ledger.entries)] = ledger.entries

    @precondition(lambda self: len(self.ledgers) > 1)
    @rule()
    def delete(self) -> None:
        """Delete the oldest ledger, if it was copied whole."""
        oldest = self.ledgers[0]
        begin = self.begins.get(oldest.ledger_id, len(self.copied))
        if begin + len(oldest.entries) <= len(self.copied):
            del self.ledgers[0]

    @rule(process=st.integers(0, 1))
    def restart(self, process: int) -> None:
        """Forget what a process remembers."""
        self.stores[process].restart()

    @invariant()
    def offsets_do_not_move(self) -> None:
        """The tier has every copied entry at the offset that it got first."""
        if self.copied:
            assert asyncio.run(bodies(self.tier())) == self.copied

    def teardown(self) -> None:
        """Find an entry of each ledger."""
        for ledger_id, begin in self.begins.items():
            assert asyncio.run(entry_at(self.tier(), ledger_id, 0)) == self.copied[begin]


EntryLedgerMachine.TestCase.settings = settings(
    max_examples=40 if CAMPAIGN else 5, stateful_step_count=20, deadline=None
)
test_offsets_do_not_move_while_ledgers_grow_and_go = EntryLedgerMachine.TestCase


def test_entries_are_copied_to_a_folder_and_found_by_ledger_and_id(tmp_path: Path) -> None:
    store = EntryStore(first_offset=500)
    for ledger_id in (3, 8, 9):
        store.begin(ledger_id, *[b"%d:%d" % (ledger_id, entry) for entry in range(100)])

    async def run() -> None:
        async with open_tier(str(tmp_path / "tier")) as tier:
            assert (await synced(store, tier)).error is None
            assert (await tier.load_manifest("orders")).first_offset == 500
            assert await entry_at(tier, 8, 42) == b"8:42"

    asyncio.run(run())


def test_the_same_ledgers_give_the_same_chunks_in_every_process() -> None:
    """Two tiers are filled by two processes, one of which stopped in between."""
    chunks = []
    for stops in (1, 2):
        store = EntryStore()
        tier = ObjectStoreOffloader(MemoryStore())
        for ledger_id in range(stops):
            store.begin(ledger_id, *[b"x" * 1000] * 1500).seal()
            asyncio.run(synced(store, tier))
        if stops == 1:
            store.begin(1, *[b"x" * 1000] * 1500).seal()
            store.restart()
            asyncio.run(synced(store, tier))

        async def windows(tier: ObjectStoreOffloader = tier) -> bytes:
            reader = await StreamReader.open(tier, "orders")
            return b"".join([bytes(window.data) async for window in reader.windows(0)])

        chunks.append(asyncio.run(windows()))

    assert chunks[0] == chunks[1]


@pytest.mark.parametrize("knows_tier", [False, True])
def test_a_ledger_whose_beginning_was_trimmed_goes_on_if_the_tier_is_known(knows_tier: bool) -> None:
    """A sync makes its tier known to a stream that was given none."""
    tier = ObjectStoreOffloader(MemoryStore(), options=TierOptions(fragment_size_bytes=1000))
    store = EntryStore(tier=tier if knows_tier else None)
    ledger = store.begin(7, *[b"%d" % number * 2**18 for number in range(9)])

    async def run() -> None:
        await synced(store, tier)
        await trim(tier, "orders", Retention(size_bytes_max=1))
        trimmed = await tier.load_manifest("orders")
        assert trimmed.first_offset > 0
        ledger.add(b"more")
        store.restart()
        if not knows_tier:
            with pytest.raises(Misuse, match="pass `tier` to EntryLedgerStream"):
                await (await store.stream("orders")).snapshot(trimmed)
            store.restart()

        report = await synced(store, tier)

        assert report.error is None
        assert await entry_at(tier, 7, 9) == b"more"

    asyncio.run(run())


def test_a_rival_that_appended_meanwhile_stops_no_entry_and_repeats_none() -> None:
    """The rival has a shorter tail, so its last chunk ends within ours."""
    objects = MemoryStore()
    slow, rival = EntryStore(), EntryStore()
    ledger = slow.begin(7, b"a", b"b")
    rival.ledgers = slow.ledgers
    has_raced = False

    async def run() -> None:
        tier = ObjectStoreOffloader(objects)
        await synced(slow, tier)
        ledger.add(b"c", b"d")
        shown = slow.list_ledgers

        async def listed() -> object:
            nonlocal has_raced
            found = await shown()
            if not has_raced:  # only now does the rival copy a part of what was listed
                has_raced = True
                ledgers, ledger.entries = ledger.entries, ledger.entries[:3]
                await synced(rival, ObjectStoreOffloader(objects))
                ledger.entries = ledgers
            return found

        slow.stream_of_this_process._ledgers = listed  # type: ignore[assignment]
        first = await synced(slow, ObjectStoreOffloader(objects))
        again = await synced(slow, ObjectStoreOffloader(objects))

        assert isinstance(first.error, TryAgain)
        assert again.error is None
        assert await bodies(tier) == [b"a", b"b", b"c", b"d"]

    asyncio.run(run())


def test_a_follower_goes_on_behind_ledgers_that_were_deleted() -> None:
    """A process that begins knows no manifest, and loads it before it counts."""
    clock, objects = Clock(), MemoryStore()
    store = EntryStore()
    store.begin(3, *[b"old"] * 5)
    store.begin(5, b"new")

    async def run() -> None:
        tier = ObjectStoreOffloader(objects, env=clock.env())
        await synced(store, tier)
        store.begin(6, b"newer")
        del store.ledgers[0]
        store.restart()
        (stream,) = await store.streams()
        follower = Follower(
            source=stream, offloader=tier, rules=FollowRules(max_lag_seconds=5.0), env=clock.env()
        )
        for _ in range(60):
            clock.now += await follower.step()

        assert follower.status.error is None
        assert await bodies(tier) == [*[b"old"] * 5, b"new", b"newer"]

    asyncio.run(run())


def test_a_reader_of_both_sides_reads_each_entry_once() -> None:
    store = EntryStore()
    store.begin(3, *[b"old"] * 5)
    store.begin(5, b"new")
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        del store.ledgers[0]
        store.ledgers[-1].add(b"only local")
        (stream,) = await store.streams()
        reader = await TieredReader.open(stream, tier, priority=ReadPriority.LOCAL_FIRST)
        found = [body async for batch in reader.messages(0) for body in batch.bodies]
        assert found == [*[b"old"] * 5, b"new", b"only local"]

    asyncio.run(run())


def test_a_snapshot_closes_its_ledgers() -> None:
    store = EntryStore()
    store.begin(3, b"a")

    async def run() -> None:
        async with await store.stream_of_this_process.snapshot():
            assert store.listed[0].closed == 0
        assert store.listed[0].closed
        await store.stream_of_this_process.mark()
        assert store.listed[0].closed

    asyncio.run(run())


def test_a_ledger_that_grows_for_long_keeps_only_its_newest_cuts() -> None:
    store = EntryStore()
    store.begin(3, b"a")
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        for _ in range(5):
            store.ledgers[-1].add(b"more")
            await synced(store, tier)
        assert len(store.stream_of_this_process._cuts) <= 2

    asyncio.run(run())
