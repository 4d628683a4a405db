"""Backends that are correct and unusual pass every clause; one that declares a lack holds no tier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from contract.unusual_stores import (
    Austere,
    LargeParts,
    LateListings,
    PagesOfTwo,
    Slow,
    TinyPages,
    WithoutCreate,
)
from offload_conformance import OffloaderConformance, ProtocolConformance, StoreConformance

from offload.contracts.offloader import LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.errors import Denied
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.native.place import TierPlan
from offload.store.memory import MemoryStore
from offload.streams.writer import StreamWriter


class OneDict:
    """The place of a test: a dict of objects, which several clients share."""

    make: Callable[..., ObjectStore] = MemoryStore

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.clients = 0

    def client(self) -> ObjectStore:
        return type(self).make(objects=self.objects)

    def keys_in_store(self) -> set[str]:
        return set(self.objects)


class Store(OneDict, StoreConformance):
    listing_keys = 1_100

    def open_store(self) -> ObjectStore:
        return self.client()


class Tier(OneDict, OffloaderConformance):
    tiny_chunks = 60
    huge_chunk_size_bytes = 64 * 1024

    def open_offloader(self) -> LedgerOffloader:
        options = TierOptions(fragment_size_bytes=300, uploads_max=2)  # a ledger is several objects
        return ObjectStoreOffloader(self.client(), options=options)


class Protocol(OneDict, ProtocolConformance):
    walk_examples = 4

    def open_store(self) -> ObjectStore:
        return self.client()


class SlowClients(OneDict):
    def client(self) -> ObjectStore:
        """Each with a course of its own, the same in every run."""
        self.clients += 1
        return Slow(super().client(), seed=self.clients)


class TestSlowStore(SlowClients, Store):
    pass


class TestSlowTier(SlowClients, Tier):
    pass


class TestSlowProtocol(SlowClients, Protocol):
    pass


class TestTinyPages(Store):
    make = TinyPages


class TestTinyPagesAsTier(Tier):
    make = PagesOfTwo


class TestPagesOfTwo(Store):
    make = PagesOfTwo


class TestAustereStore(Store):
    make = Austere


class TestAustereTier(Tier):
    make = Austere


class TestAustereProtocol(Protocol):
    make = Austere


class TestPagesOfTwoProtocol(Protocol):
    make = PagesOfTwo


class TestLargeParts(Store):
    make = LargeParts


class TestLateListings(Store):
    """Passes as a store; that it holds no tier is one of the clauses."""

    make = LateListings


class TestWithoutCreate(Store):
    """Passes as a store; that it holds no tier is one of the clauses."""

    make = WithoutCreate


@pytest.mark.parametrize("make", [LateListings, WithoutCreate])
def test_what_declares_a_lack_is_made_no_tier(make: Callable[..., ObjectStore]) -> None:
    objects: dict[str, bytes] = {}

    async def main() -> None:
        async with ObjectStoreOffloader(make(objects=objects)) as offloader:
            with pytest.raises(Denied, match="cannot hold a tier"):
                await StreamWriter.claim(offloader, "orders")

    asyncio.run(main())

    assert objects == {}


@pytest.mark.parametrize("make", [LateListings, WithoutCreate])
def test_what_declares_a_lack_takes_no_commit_of_a_tier_that_is_there(
    make: Callable[..., ObjectStore],
) -> None:
    """A deletion is refused as well: it commits, and an old listing would let it remove what is named."""
    objects: dict[str, bytes] = {}

    async def main() -> dict[str, bytes]:
        async with ObjectStoreOffloader(MemoryStore(objects=objects)) as sound:
            writer = await StreamWriter.claim(sound, "orders")
            [attempt] = await writer.prepare([0])
        before = dict(objects)
        async with ObjectStoreOffloader(make(objects=objects)) as lacking:
            with pytest.raises(Denied, match="cannot hold a tier"):
                await StreamWriter.claim(lacking, "orders", base=writer.manifest)
            with pytest.raises(Denied, match="cannot hold a tier"):
                await lacking.delete_offloaded(attempt)
        return before

    assert asyncio.run(main()) == objects


def test_data_on_a_store_with_late_listings_is_refused_with_a_commit_store_too() -> None:
    """Sweeps and adoption list the data, so another store for the roots is no way out."""

    async def main() -> None:
        data, roots = LateListings(name="data"), MemoryStore(name="roots")
        plan = TierPlan(commit_store="memory://roots")
        async with ObjectStoreOffloader(data, plan=plan, open_store=lambda _: roots) as offloader:
            with pytest.raises(Denied, match="listings may miss"):
                await StreamWriter.claim(offloader, "orders")
        assert data.objects == roots.objects == {}

    asyncio.run(main())
