"""Tests of ledgers whose oldest entries were deleted: `EntryLedger.first_entry`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from campaign import CAMPAIGN
from entry_store import EntryStore, Ledger, bodies, synced
from hypothesis import given, settings
from hypothesis import strategies as st

from offload import Corrupt, Diverged, Misuse, ObjectStoreOffloader, ReadPriority, StreamReader, TieredReader
from offload.ground.errors import Divergence
from offload.store.memory import MemoryStore

ENTRIES = [b"%d" % number for number in range(10)]


def store_of(*entries: bytes, first_entry: int = 0, ledger_id: int = 0) -> EntryStore:
    """Return a store that keeps offsets. Its ledger begins at the offset of its id."""
    store = EntryStore(lies={ledger_id: {"first_offset": ledger_id}})
    store.begin(ledger_id, *entries).first_entry = first_entry
    return store


def test_a_copy_begins_at_the_first_entry_under_its_own_offset() -> None:
    store, tier = store_of(*ENTRIES, first_entry=4, ledger_id=100), ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        assert (await synced(store, tier)).error is None
        assert (await StreamReader.open(tier, "orders")).manifest.first_offset == 104
        assert await bodies(tier) == ENTRIES[4:]

    asyncio.run(run())


def test_ledgers_without_a_readable_entry_are_left_out() -> None:
    store, tier = store_of(*ENTRIES, first_entry=10), ObjectStoreOffloader(MemoryStore())
    store.lies[10] = {"first_offset": 10}
    store.begin(10, b"a", b"b").first_entry = 1

    async def run() -> None:
        assert (await synced(store, tier)).error is None
        assert (await tier.load_manifest("orders")).first_offset == 11
        assert await bodies(tier) == [b"b"]

    asyncio.run(run())


def test_entries_that_were_deleted_before_they_were_copied_are_a_gap() -> None:
    store, tier = store_of(*ENTRIES[:3]), ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        store.ledgers[0].add(*ENTRIES[3:]).first_entry = 5

        report = await synced(store, tier)

        assert isinstance(report.error, Diverged)
        assert report.error.kind is Divergence.GAP
        assert "the source begins at offset 5, but offset 3 is the next to be copied" in str(report.error)

    asyncio.run(run())


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("first_entry", [1, 4, 5])
def test_a_source_that_begins_within_the_last_chunk_of_the_tier_is_continued(
    first_entry: int, is_restarted: bool
) -> None:
    """The tier has entries 0 to 4 in one chunk."""
    store, tier = store_of(*ENTRIES[:5]), ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        store.ledgers[0].add(*ENTRIES[5:]).first_entry = first_entry
        if is_restarted:
            store.restart()

        assert (await synced(store, tier)).error is None
        assert await bodies(tier) == ENTRIES

        (stream,) = await store.streams()
        reader = await TieredReader.open(stream, tier, priority=ReadPriority.LOCAL_FIRST)
        found = [(batch.offset, body) async for batch in reader.messages(0) for body in batch.bodies]
        assert [body for _, body in found] == ENTRIES

    asyncio.run(run())


@pytest.mark.parametrize("changed", [3, 4])
def test_records_that_both_have_are_compared_if_the_source_begins_within_a_chunk(changed: int) -> None:
    store, tier = store_of(*ENTRIES[:5]), ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        await synced(store, tier)
        ledger = store.ledgers[0].add(*ENTRIES[5:])
        ledger.first_entry, ledger.entries[changed] = 3, b"x"
        store.restart()

        report = await synced(store, tier)

        assert isinstance(report.error, Diverged)
        assert report.error.kind is Divergence.FORK
        assert "ledger 0 has other entries from 3 on" in str(report.error)
        reader = await TieredReader.open(store.stream_of_this_process, tier)
        with pytest.raises(Diverged, match="ledger 0 has other entries"):
            [batch async for batch in reader.messages(4)]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("first_entries", "lies", "kind", "text"),
    [
        ((3, 0), {0: {"first_entry": 2}}, Corrupt, "first entry.*expected 3 or more, as before.*found 2"),
        ((0, 0), {0: {"first_entry": 11}}, Corrupt, "first entry.*expected 0 to 10.*found 11"),
        ((9, 1), {}, Corrupt, "first entry.*expected 0, as ledger 0 has entries.*found 1"),
        ((1, 0), {0: {"first_offset": None}}, Misuse, "a ledger with a first_entry has a first_offset, too"),
    ],
)
def test_a_first_entry_that_cannot_be_is_refused(
    first_entries: tuple[int, int], lies: dict[int, Any], kind: type[Exception], text: str
) -> None:
    store, tier = store_of(*ENTRIES, first_entry=first_entries[0]), ObjectStoreOffloader(MemoryStore())

    async def run() -> None:
        async with await store.stream_of_this_process.snapshot():
            pass
        store.lies[10] = {"first_offset": 10}
        store.begin(10, b"a", b"b").first_entry = first_entries[1]
        for ledger_id, lie in lies.items():
            store.lies[ledger_id] |= lie

        report = await synced(store, tier)

        with pytest.raises(kind, match=text):
            raise report.error or AssertionError("no error")

    asyncio.run(run())


@settings(max_examples=200 if CAMPAIGN else 25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12), st.booleans(), st.booleans()), max_size=12))
def test_no_entry_moves_while_entries_are_appended_copied_and_deleted(
    steps: list[tuple[int, int, bool, bool]],
) -> None:
    """A step appends, copies, perhaps begins a ledger or a process, and deletes entries that were copied."""
    store, tier, written, gone = store_of(), ObjectStoreOffloader(MemoryStore()), list[bytes](), 0

    async def run() -> None:
        nonlocal gone
        for appended, deleted, begins, restarts in steps:
            if begins and store.ledgers[-1].entries:
                store.lies[len(written)] = {"first_offset": len(written)}
                store.begin(len(written))
            added = [b"entry %d" % (len(written) + number) for number in range(appended)]
            store.ledgers[-1].add(*added)
            written.extend(added)
            if restarts:
                store.restart()
            report = await synced(store, tier)
            assert report.error is None, report.error
            assert not written or await bodies(tier) == written
            gone = min(gone + deleted, len(written))
            for ledger in store.ledgers:
                ledger.first_entry = _cut(ledger, gone)

    asyncio.run(run())


def _cut(ledger: Ledger, gone: int) -> int:
    return min(max(gone - ledger.ledger_id, 0), len(ledger.entries))
