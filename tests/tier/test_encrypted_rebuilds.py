"""Tests of rebuilds of encrypted streams: the history needs no key, and a join of two histories needs it."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
from offload_conformance.ledgers import ledger_of
from offload_keys import open_environment

from offload import ObjectStoreOffloader, StreamReader, StreamWriter
from offload.formats.keys import StreamKeys
from offload.ground.errors import Denied
from offload.model.labels import MasterKey
from offload.model.manifest import Manifest
from offload.native.key_ring import KeyRing
from offload.store.memory import MemoryStore
from offload.upkeep.rebuild.stream import rebuild

KEYS: Final = StreamKeys("orders")
MASTER: Final = MasterKey("tier-2026")


@pytest.fixture(autouse=True)
def _master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFLOAD_KEY_TIER_2026", "bWFzdGVyIGtleSBvZiAzMiBieXRlcyBmb3IgdGVzdHM=")


def tier(store: MemoryStore, *, ring: bool = True, new: MasterKey | None = MASTER) -> ObjectStoreOffloader:
    keys = KeyRing(service=open_environment("keyenv:"), new=new)
    return ObjectStoreOffloader(store, ring=keys if ring else None)


async def written(store: MemoryStore, first: int, stop: int, *, ring: bool = True) -> Manifest:
    """Write a stream in ledgers of ten records. Its writer knows no source epoch."""
    writer = await StreamWriter.claim(tier(store, ring=ring), "orders", first_offset=first)
    await writer.offload([ledger_of(10, first_offset=offset) for offset in range(first, stop, 10)])
    return writer.manifest


def lose_roots(store: MemoryStore) -> None:
    for key in [key for key in store.objects if key.startswith(KEYS.roots)]:
        del store.objects[key]


async def messages(store: MemoryStore) -> int:
    reader = await StreamReader.open(tier(store), "orders")
    return sum([len(batch.bodies) async for batch in reader.messages(0)])


def test_a_rebuild_without_keys_restores_a_history_that_records_no_source_epoch() -> None:
    async def main() -> None:
        store = MemoryStore()
        before = await written(store, 0, 20)
        lose_roots(store)

        report = await rebuild(tier(store, ring=False), "orders")

        assert report.manifest is not None
        assert (report.manifest.incarnation, report.manifest.source_epoch) == (before.incarnation, 0)
        assert await messages(store) == 20

    asyncio.run(main())


@pytest.mark.parametrize("first", [10, 20], ids=["they overlap", "they touch"])
def test_two_encrypted_histories_are_joined_with_their_keys_alone(first: int) -> None:
    async def main() -> None:
        old, store = MemoryStore(), MemoryStore()
        life = (await written(old, 0, 20)).incarnation
        lose_roots(old)
        await written(store, first, 40)
        store.objects |= old.objects

        with pytest.raises(Denied, match="stream 'orders' is encrypted, and no key service was given"):
            await rebuild(tier(store, ring=False), "orders", incarnation=life)
        report = await rebuild(tier(store), "orders", incarnation=life)

        assert report.manifest is not None
        assert report.manifest.incarnation == life
        assert await messages(store) == 40
        tree = tier(store).tree(report.manifest)
        assert {int(flag) async for run in tree.walk() for flag in run["encrypted"]} == {1}

    asyncio.run(main())


def test_an_encrypted_history_is_not_joined_to_another_in_the_clear() -> None:
    async def main() -> None:
        old, store = MemoryStore(), MemoryStore()
        life = (await written(old, 0, 20, ring=False)).incarnation
        lose_roots(old)
        await written(store, 10, 40)
        store.objects |= old.objects
        before = {key for key in store.objects if "/data/" in key}

        with pytest.raises(Denied, match=r"has no key for a copy of what history .* holds encrypted"):
            await rebuild(tier(store, new=None), "orders", incarnation=life)
        assert {key for key in store.objects if "/data/" in key} == before
        await rebuild(tier(store), "orders", incarnation=life)

        assert await messages(store) == 40

    asyncio.run(main())


def test_two_histories_in_the_clear_are_joined_by_a_tier_with_keys() -> None:
    async def main() -> None:
        old, store = MemoryStore(), MemoryStore()
        life = (await written(old, 0, 20, ring=False)).incarnation
        lose_roots(old)
        await written(store, 10, 40, ring=False)
        store.objects |= old.objects

        await rebuild(tier(store, new=None), "orders", incarnation=life)

        assert await messages(store) == 40

    asyncio.run(main())
