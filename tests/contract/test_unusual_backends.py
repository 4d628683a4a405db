"""Tests of unusual backends: a correct one passes every clause; one that declares a lack can hold no tier."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from campaign import CAMPAIGN, campaign, few, some
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
from offload.ground.errors import Denied
from offload.native.offloader import ObjectStoreOffloader, TierOptions
from offload.native.place import TierPlan
from offload.store.memory import MemoryStore
from offload.write.writer import StreamWriter

MORE = campaign("more unusual backends, with all clauses")

SHARED = (
    "clauses with other options: small fragments, a commit store and a slow store share them in make test"
)

HALVES = "clauses on unusual stores: a slow store and one of tiny pages share them in make test"

UNUSUAL = "cases of clauses on unusual backends: each clause keeps one of three, and a folder has all"


class OneDict:
    """The place of a test: a dict of objects that several clients share."""

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
    model_examples = 30 if CAMPAIGN else 10

    def open_store(self) -> ObjectStore:
        return self.client()


class Tier(OneDict, OffloaderConformance):
    tiny_chunks = 60
    huge_chunk_size_bytes = 64 * 1024

    def open_offloader(self) -> LedgerOffloader:
        options = TierOptions(fragment_size_bytes=300, uploads_max=2)  # a ledger becomes several objects
        return ObjectStoreOffloader(self.client(), options=options)


class Protocol(OneDict, ProtocolConformance):
    walk_examples = 4

    def open_store(self) -> ObjectStore:
        return self.client()


class SlowClients(OneDict):
    def client(self) -> ObjectStore:
        """Return a new client with its own random choices, which are the same in every run."""
        self.clients += 1
        return Slow(super().client(), seed=self.clients)


@few(UNUSUAL, 3)
@some(HALVES, 2, start=0)
class TestSlowStore(SlowClients, Store):
    pass


@few(UNUSUAL, 3)
@some(SHARED, 3, start=2)
class TestSlowTier(SlowClients, Tier):
    pass


class TestSlowProtocol(SlowClients, Protocol):
    pass


@few(UNUSUAL, 3, start=1)
@some(HALVES, 2, start=1)
class TestTinyPages(Store):
    make = TinyPages


@MORE
class TestTinyPagesAsTier(Tier):
    make = PagesOfTwo


@MORE
class TestPagesOfTwo(Store):
    make = PagesOfTwo


@few(UNUSUAL, 3, start=2)
class TestAustereStore(Store):
    make = Austere


@MORE
class TestAustereTier(Tier):
    make = Austere


@MORE
class TestAustereProtocol(Protocol):
    make = Austere


@MORE
class TestPagesOfTwoProtocol(Protocol):
    make = PagesOfTwo


@MORE
class TestLargeParts(Store):
    make = LargeParts


@MORE
class TestLateListings(Store):
    """Passes as a store; that it holds no tier is one of the clauses."""

    make = LateListings


@MORE
class TestWithoutCreate(Store):
    """Passes as a store; that it holds no tier is one of the clauses."""

    make = WithoutCreate


@pytest.mark.parametrize("make", [LateListings, WithoutCreate])
def test_no_tier_is_made_on_a_store_that_declares_a_lack(make: Callable[..., ObjectStore]) -> None:
    objects: dict[str, bytes] = {}

    async def main() -> None:
        async with ObjectStoreOffloader(make(objects=objects)) as offloader:
            with pytest.raises(Denied, match="cannot hold a tier"):
                await StreamWriter.claim(offloader, "orders")

    asyncio.run(main())

    assert objects == {}


@pytest.mark.parametrize("make", [LateListings, WithoutCreate])
def test_an_existing_tier_on_a_store_that_declares_a_lack_takes_no_commit(
    make: Callable[..., ObjectStore],
) -> None:
    """A deletion is refused as well: it commits, and with an old listing it could remove named objects."""
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


def test_a_data_store_with_late_listings_is_refused_even_with_a_commit_store() -> None:
    """Sweeps and adoption list the data, so a commit store does not help."""

    async def main() -> None:
        data, roots = LateListings(name="data"), MemoryStore(name="roots")
        plan = TierPlan(commit_store="memory://roots")
        async with ObjectStoreOffloader(data, plan=plan, open_store=lambda _: roots) as offloader:
            with pytest.raises(Denied, match="listings may miss"):
                await StreamWriter.claim(offloader, "orders")
        assert data.objects == roots.objects == {}

    asyncio.run(main())
