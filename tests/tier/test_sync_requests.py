"""What a sync asks of a store: of an absent anchor, once; of what it knows, nothing. And what it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from offload_conformance import ledger_of

from offload import ObjectStoreOffloader, Snapshot, Source, SourceStream, StreamReport, sync
from offload.formats.keys import TIER_ANCHOR
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore


class Orders(Source, SourceStream):
    """A source with one stream of four ledgers."""

    url, notes, name = "memory://orders", (), "orders"  # type: ignore[assignment]

    async def streams(self) -> Sequence[SourceStream]:
        return [self]

    async def snapshot(self) -> Snapshot:
        ledgers = [ledger_of(10, first_offset=first) for first in range(0, 40, 10)]
        return Snapshot(ledgers=ledgers, first_offset=0, next_offset=40)


class Bills(Orders):
    """The same under another name."""

    name = "bills"  # type: ignore[assignment]


class Noting(FaultyStore):
    """Notes what is asked of the tier's anchor, and may let a rival act behind the first look."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(MemoryStore(objects=objects))
        self.of_anchor: list[str] = []
        self.listings: list[str] = []
        self.rival: Callable[[], Awaitable[None]] | None = None

    async def get(self, key: str, span: Any = None) -> bytes:
        if key == TIER_ANCHOR:
            self.of_anchor.append("get")
        try:
            return await super().get(key, span)
        finally:
            rival, self.rival = self.rival, None
            if rival is not None:
                await rival()

    async def create(self, key: str, data: bytes) -> None:
        if key == TIER_ANCHOR:
            self.of_anchor.append("create")
        await super().create(key, data)

    async def list(self, prefix: str, *, after: str = "") -> Any:
        self.listings.append(prefix)
        async for row in super().list(prefix, after=after):
            yield row


async def synced(store: Noting) -> StreamReport:
    async with ObjectStoreOffloader(store) as offloader:
        [report] = [report async for report in sync(Orders(), offloader)]
    assert report.error is None
    return report


def test_a_first_sync_asks_for_the_absent_anchor_once() -> None:
    """And then reads which anchor was created. No root is looked for where no tier is, but by the commit."""
    store = Noting({})

    asyncio.run(synced(store))

    assert store.of_anchor == ["get", "create", "get"]
    assert store.listings[:4] == ["", "orders/metadata/root.", "orders/data/", "orders/groups/"]
    assert store.listings.count("orders/data/") == 1


def test_a_stream_that_is_new_to_a_tier_is_looked_for_twice() -> None:
    """Once to see that it is new, and once by the commit, which finds out whether it still is."""
    store = Noting({})

    async def scenario() -> None:
        async with ObjectStoreOffloader(store) as offloader:
            await offloader.open(create=True)
        store.listings.clear()
        await synced(store)

    asyncio.run(scenario())

    assert store.listings.count("orders/data/") == 2


def test_a_tier_that_a_rival_makes_and_fills_behind_the_look_is_gone_on_with() -> None:
    """What the first look said is old by then: the commit finds what the rival did."""
    objects: dict[str, bytes] = {}
    store = Noting(objects)
    manifests = []

    async def rival() -> None:
        manifests.append((await synced(Noting(objects))).manifest)

    store.rival = rival
    report = asyncio.run(synced(store))

    [theirs] = manifests
    assert theirs is not None
    assert report.manifest is not None
    assert report.manifest.incarnation == theirs.incarnation
    assert (report.manifest.next_offset, report.manifest.fragments) == (40, theirs.fragments)


def test_each_report_counts_the_uploads_of_its_own_stream_though_two_run_at_once() -> None:
    store = MemoryStore()

    async def scenario() -> list[StreamReport]:
        async def one(source: Source) -> StreamReport:
            [report] = [report async for report in sync(source, offloader)]
            return report

        async with ObjectStoreOffloader(store) as offloader:
            return await asyncio.gather(one(Orders()), one(Bills()))

    for report in asyncio.run(scenario()):
        of_stream = f"{report.stream}/data/"
        fragments = [data for key, data in store.objects.items() if key.startswith(of_stream)]
        assert report.uploaded_bytes == sum(map(len, fragments)) > 0
