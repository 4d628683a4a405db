"""Tests of ledgers that state the broker's own leader epoch: chunks and the root keep it."""

from __future__ import annotations

import asyncio

from entry_store import EntryStore, bodies, synced

from offload import Fenced, Misuse, ObjectStoreOffloader
from offload.contracts.offloader import LedgerOffloader
from offload.copy.history import last_chunk
from offload.formats.chunk import ChunkHeader
from offload.store.memory import MemoryStore


def store_of(*epochs: int | None) -> EntryStore:
    """Return a store with a ledger of three entries for each epoch. It keeps their offsets."""
    store = EntryStore()
    for rank, epoch in enumerate(epochs):
        store.begin(rank + 1, *[b"%d" % (3 * rank + number) for number in range(3)])
        store.lies[rank + 1] = {"first_offset": 3 * rank, "leader_epoch": epoch}
    return store


async def epochs_of(tier: LedgerOffloader) -> tuple[int, int]:
    """Return the epoch that the root has recorded, and that of the last chunk."""
    manifest = await tier.load_manifest("orders")
    raw = await last_chunk(tier, manifest)
    return manifest.source_epoch, ChunkHeader.decode(raw, where="last chunk").epoch


def test_the_epoch_of_the_broker_is_kept_and_continued() -> None:
    async def scenario() -> None:
        tier = ObjectStoreOffloader(MemoryStore())
        assert (await synced(store_of(7), tier)).error is None
        assert await epochs_of(tier) == (7, 7)
        assert (await synced(store_of(7, 9), tier)).error is None
        assert await epochs_of(tier) == (9, 9)
        assert await bodies(tier) == [b"%d" % number for number in range(6)]

    asyncio.run(scenario())


def test_a_lower_epoch_is_fenced() -> None:
    async def scenario() -> None:
        tier = ObjectStoreOffloader(MemoryStore())
        assert (await synced(store_of(7), tier)).error is None

        assert isinstance((await synced(store_of(7, 6), tier)).error, Fenced)

    asyncio.run(scenario())


def test_ledgers_without_an_epoch_have_the_offset_of_entry_0_as_before() -> None:
    async def scenario() -> None:
        tier = ObjectStoreOffloader(MemoryStore())
        assert (await synced(store_of(None, None), tier)).error is None
        assert await epochs_of(tier) == (3, 3)

    asyncio.run(scenario())


def test_a_tier_that_was_filled_without_epochs_is_continued_with_a_higher_one() -> None:
    async def scenario() -> None:
        tier = ObjectStoreOffloader(MemoryStore())
        assert (await synced(store_of(None), tier)).error is None

        assert (await synced(store_of(5, 5), tier)).error is None
        assert await epochs_of(tier) == (5, 5)

    asyncio.run(scenario())


def test_an_epoch_without_a_first_offset_is_a_misuse() -> None:
    store = store_of(7)
    del store.lies[1]["first_offset"]

    report = asyncio.run(synced(store, ObjectStoreOffloader(MemoryStore())))

    assert isinstance(report.error, Misuse)
