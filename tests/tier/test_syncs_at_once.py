"""Tests of a sync of many streams, several of which are under way at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from offload_conformance import ledger_of

from offload import ObjectStoreOffloader, Snapshot, Source, SourceStream, StreamReport, sync
from offload.contracts.capabilities import Capabilities
from offload.copy.sync import STREAMS_AT_ONCE
from offload.formats.keys import TIER_ANCHOR
from offload.model.manifest import Manifest
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.store.probe import PROBE

NAMES = [f"stream-{number:02}" for number in range(3 * STREAMS_AT_ONCE)]
PATIENCE_SECONDS = 60.0
"""A sync that waits for what cannot happen fails after this time."""


class Small(SourceStream):
    """A stream of one ledger. `meanwhile` is awaited while its snapshot is taken."""

    name = ""

    def __init__(self, name: str, meanwhile: Callable[[str], Awaitable[None]]) -> None:
        self.name, self._meanwhile = name, meanwhile

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        await self._meanwhile(self.name)
        return Snapshot(ledgers=[ledger_of(10)], first_offset=0, next_offset=10)


class ManySmall(Source):
    """A source of many small streams, which records those that are under way."""

    url, notes = "memory://many", ()

    def __init__(self, meanwhile: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.meanwhile = meanwhile
        self.under_way: set[str] = set()
        self.most = 0

    async def streams(self) -> Sequence[SourceStream]:
        return [Small(name, self._noted) for name in NAMES]

    async def _noted(self, name: str) -> None:
        self.under_way.add(name)
        self.most = max(self.most, len(self.under_way))
        await (self.meanwhile(name) if self.meanwhile else asyncio.sleep(0))
        self.under_way.discard(name)


class Probed(FaultyStore):
    """A store whose server must be probed. It records its creates."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.created: list[str] = []

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, create_is_probed=True)

    async def create(self, key: str, data: bytes) -> None:
        self.created.append(key)
        await super().create(key, data)


def synced(source: Source, store: FaultyStore) -> list[StreamReport]:
    async def main() -> list[StreamReport]:
        async with asyncio.timeout(PATIENCE_SECONDS), ObjectStoreOffloader(store) as offloader:
            return [report async for report in sync(source, offloader)]

    return asyncio.run(main())


def test_streams_are_synced_at_the_same_time_and_only_so_many() -> None:
    source = ManySmall(lambda name: asyncio.sleep(0.01))
    store = FaultyStore(MemoryStore())

    reports = synced(source, store)

    assert source.most == STREAMS_AT_ONCE
    assert [(report.stream, report.error) for report in reports] == [(name, None) for name in NAMES]


def test_a_slow_stream_holds_back_no_other_and_reports_stay_in_order() -> None:
    """The first stream waits for the last."""
    last = asyncio.Event()

    async def meanwhile(name: str) -> None:
        if name == NAMES[0]:
            await last.wait()
        elif name == NAMES[-1]:
            last.set()

    reports = synced(ManySmall(meanwhile), FaultyStore(MemoryStore()))

    assert [report.stream for report in reports] == NAMES


def test_many_streams_make_a_tier_and_probe_its_store_once() -> None:
    store = Probed()
    first = synced(ManySmall(), store)
    made = [key for key in store.created if key == TIER_ANCHOR or key.startswith(PROBE)]
    store.created.clear()

    async def begin_again() -> list[StreamReport]:
        source = ManySmall()
        for name in NAMES:
            await store.delete([row.key async for row in store.list(f"{name}/")])
        async with ObjectStoreOffloader(store) as offloader:
            return [report async for report in sync(source, offloader)]

    second = asyncio.run(begin_again())
    probes = [key for key in store.created if key.startswith(PROBE)]

    assert not any(report.error for report in (*first, *second))
    assert (made.count(TIER_ANCHOR), len(made), len(probes)) == (1, 3, 2)


def test_a_caller_that_stops_early_leaves_no_stream_under_way() -> None:
    async def main() -> int:
        source = ManySmall(lambda name: asyncio.sleep(0.01))
        async with ObjectStoreOffloader(FaultyStore(MemoryStore())) as offloader:
            async with aclosing(sync(source, offloader)) as reports:
                async for report in reports:
                    if report.stream == NAMES[1]:
                        break
            return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
