"""Tests of a tier's stream as the source of a copy, without Spark: cut at fragments, pinned, checked."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_conformance import ledger_of

from offload import ObjectStoreOffloader, StreamWriter
from offload.contracts.ledger import ReadHandle
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR
from offload.formats.root import decode_root, encode_root
from offload.ground.errors import Absent, TryAgain
from offload.model.manifest import Manifest
from offload.native.offloader import TierOptions
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.upkeep.copy.runs import TierRun, snapshot_of
from offload.upkeep.retention import Retention, trim
from offload.upkeep.sweep.tier import sweep

LEDGERS = (ledger_of(6), ledger_of(7, first_offset=6))
ENDS = {4, 6, 8, 12, 13}
"""The ends of groups and ledgers. A run ends there too, however small it is."""

CHUNKS = [chunk for ledger in LEDGERS for chunk in ledger.chunks]
"""The chunks, each with one record and in a fragment of its own."""


async def tier() -> tuple[ObjectStoreOffloader, Manifest]:
    """Return a tier with groups of four entries: three groups, and a fragment in the root."""
    store = FaultyStore(MemoryStore(objects={TIER_ANCHOR: TierAnchor(branching_factor=4).encode()}))
    offloader = ObjectStoreOffloader(store, options=TierOptions(fragment_size_bytes=1))
    writer = await StreamWriter.claim(offloader, "orders")
    for ledger in LEDGERS:
        await writer.offload([ledger])
    assert writer.manifest.has_groups
    return offloader, writer.manifest


async def content(handle: ReadHandle) -> bytes:
    return await handle.read(await handle.table())


@settings(max_examples=50 if CAMPAIGN else 8, deadline=None)
@given(since=st.integers(0, 14), size_bytes=st.integers(1, 5 * len(CHUNKS[0])))
def test_runs_begin_at_the_requested_fragment(since: int, size_bytes: int) -> None:
    async def main() -> None:
        offloader, manifest = await tier()

        snapshot = await snapshot_of(offloader, manifest, since=since, run_size_bytes=size_bytes)

        runs = [run for run in snapshot.ledgers if isinstance(run, TierRun)]
        assert [await content(run) for run in runs] == [
            b"".join(CHUNKS[run.first_offset : run.next_offset]) for run in runs
        ]
        assert all(one.next_offset == other.first_offset for one, other in pairwise(runs))
        assert [run.first_offset for run in runs[:1]] == [since] * (since < 13)
        assert [run.next_offset for run in runs[-1:]] == [13] * (since < 13)
        assert (snapshot.first_offset, snapshot.next_offset) == (0, 13)
        for run in runs:
            assert run.size_bytes - len(CHUNKS[run.next_offset - 1]) < size_bytes
            assert run.size_bytes >= size_bytes or run.next_offset in ENDS
            assert run.ledger_id == (0 if run.next_offset <= 6 else 6)

    asyncio.run(main())


def test_a_task_requests_only_its_own_fragments() -> None:
    async def main() -> None:
        offloader, manifest = await tier()
        snapshot = await snapshot_of(offloader, manifest, run_size_bytes=300)
        handed = [encode_root(run.manifest) for run in snapshot.ledgers if isinstance(run, TierRun)]
        store = offloader.store
        asked: list[str] = []

        class Noting(FaultyStore):
            async def get(self, key: str, span: object = None) -> bytes:
                asked.append(key)
                return await super().get(key, span)  # type: ignore[arg-type]

        task = ObjectStoreOffloader(Noting(store))
        await task.open()
        asked.clear()
        found = []
        for raw in handed:
            part = decode_root(raw, where="a test")
            found.append(await content(TierRun(task, part, part.entries)))

        assert b"".join(found) == b"".join(CHUNKS)
        assert {key.rpartition(".")[2] for key in asked} == {"fragment"}
        assert max(map(len, handed)) < 1500

    asyncio.run(main())


def test_trimmed_data_is_reported_and_missing_data_is_damage() -> None:
    async def main() -> None:
        offloader, manifest = await tier()
        snapshot = await snapshot_of(offloader, manifest, run_size_bytes=1)
        first, missing, *_, last = snapshot.ledgers
        await trim(offloader, "orders", Retention(before_offset=1))
        await sweep(offloader, grace_seconds=0)
        left = [row.key async for row in offloader.store.list("orders/data/")]
        await offloader.store.delete(left[:1])

        with pytest.raises(TryAgain, match="trimmed or compacted while it was copied"):
            await first.table()
        with pytest.raises(Absent):
            await missing.table()
        assert await content(last) == CHUNKS[-1]

    asyncio.run(main())


def test_a_copy_does_not_include_later_commits() -> None:
    async def main() -> None:
        offloader, manifest = await tier()
        writer = await StreamWriter.claim(offloader, "orders")
        await writer.offload([ledger_of(3, first_offset=13)])

        snapshot = await snapshot_of(offloader, manifest)

        assert snapshot.next_offset == snapshot.ledgers[-1].next_offset == 13

    asyncio.run(main())
