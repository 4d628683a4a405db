"""Tests of the requests of a sync, which asks for an absent anchor once, and tests of its report."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from offload_conformance import ledger_of

from offload import (
    Diverged,
    MemoryHandle,
    ObjectStoreOffloader,
    Snapshot,
    Source,
    SourceStream,
    StreamReport,
    StreamWriter,
    build_chunk,
    sync,
)
from offload.formats.keys import TIER_ANCHOR
from offload.model.manifest import Manifest
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore


class Orders(Source, SourceStream):
    """A source with one stream, `orders`, of four ledgers."""

    url, notes, name = "memory://orders", (), "orders"  # type: ignore[assignment]

    async def streams(self) -> Sequence[SourceStream]:
        return [self]

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        ledgers = [ledger_of(10, first_offset=first) for first in range(0, 40, 10)]
        return Snapshot(ledgers=ledgers, first_offset=0, next_offset=40)


class Bills(Orders):
    """The same source with another stream name."""

    name = "bills"  # type: ignore[assignment]


class Noting(FaultyStore):
    """A store that records the requests for the tier's anchor, and may let a rival act after the first."""

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
    """It then reads the created anchor. Without a tier, only the commit looks for roots."""
    store = Noting({})

    asyncio.run(synced(store))

    assert store.of_anchor == ["get", "create", "get"]
    # The look finds no objects of a tier that has lost its anchor, and the commit none of anybody else.
    assert store.listings[:5] == ["", "", "orders/metadata/root.", "orders/data/", "orders/groups/"]
    assert store.listings.count("orders/data/") == 1


def test_a_new_stream_is_looked_up_twice() -> None:
    """The first look shows that the stream is new, and the second, by the commit, that it still is."""
    store = Noting({})

    async def scenario() -> None:
        async with ObjectStoreOffloader(store) as offloader:
            await offloader.open(create=True)
        store.listings.clear()
        await synced(store)

    asyncio.run(scenario())

    assert store.listings.count("orders/data/") == 2


def test_a_sync_continues_on_a_tier_that_a_rival_made_after_its_look() -> None:
    """The result of the first look is outdated by then, and the commit finds the rival's data."""
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


def test_a_stream_that_a_rival_began_with_other_data_after_the_look_is_not_continued() -> None:
    """The sync compares the histories again after its claim, because it found no stream before it."""
    objects: dict[str, bytes] = {}
    store = Noting(objects)
    theirs = MemoryHandle([build_chunk([b"other"] * 20, offset=0, timestamp_ms=0, epoch=1)])

    async def rival() -> None:
        writer = await StreamWriter.claim(ObjectStoreOffloader(Noting(objects)), "orders")
        await writer.offload([theirs])

    async def main() -> StreamReport:
        async with ObjectStoreOffloader(store) as offloader:
            [report] = [report async for report in sync(Orders(), offloader)]
        return report

    store.rival = rival
    report = asyncio.run(main())

    assert isinstance(report.error, Diverged)
    assert report.manifest is not None
    assert report.manifest.next_offset == theirs.next_offset


def test_each_report_counts_only_its_own_uploads_if_two_streams_are_synced() -> None:
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
