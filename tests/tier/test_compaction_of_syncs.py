"""Tests of compaction in practice: a growing ledger was synced many times, a little each time."""

from __future__ import annotations

import asyncio

from offload_conformance import ledger_of

from offload import Job, ObjectStoreOffloader, StreamReader, StreamWriter
from offload.model.entry import Entry, entries_of_rows
from offload.model.tokens import token_for, token_of
from offload.read.handles import CutHandle
from offload.store.memory import MemoryStore
from offload.upkeep.compact.stream import compact

GROWTH = [*range(0, 60, 10)]


async def tier() -> ObjectStoreOffloader:
    offloader = ObjectStoreOffloader(MemoryStore())
    await offloader.open(create=True)
    return offloader


async def entries_of(offloader: ObjectStoreOffloader) -> list[Entry]:
    tree = offloader.tree(await offloader.load_manifest("orders"))
    return [entry async for leaf in tree.walk() for entry in entries_of_rows(leaf)]


async def bodies_of(offloader: ObjectStoreOffloader) -> list[bytes]:
    reader = await StreamReader.open(offloader, "orders")
    return [body async for batch in reader.messages(0) for body in batch.bodies]


async def compacted(offloader: ObjectStoreOffloader) -> tuple[int, int]:
    """Compact all planned runs, and return the number of fragments before and after."""
    [done] = [each async for each in compact(offloader, fragment_size_bytes=1 << 20)]
    return done.fragments, done.runs


def test_fragments_of_many_syncs_of_a_ledger_become_one() -> None:
    async def main() -> None:
        offloader, ledger = await tier(), ledger_of(60)
        for first in GROWTH:  # each sync is a process of its own, with a claim and an attempt
            writer = await StreamWriter.claim(offloader, "orders")
            await writer.offload([CutHandle(ledger, first_offset=first, next_offset=first + 10)])
        before = await entries_of(offloader)
        assert len({entry.attempt for entry in before}) == len(before) == len(GROWTH)
        bodies = await bodies_of(offloader)

        assert await compacted(offloader) == (5, 1)  # the newest fragment stays

        assert [entry.records for entry in await entries_of(offloader)] == [50, 10]
        assert await bodies_of(offloader) == bodies
        assert await compacted(offloader) == (0, 0)

    asyncio.run(main())


def test_named_batches_are_not_merged_with_anything() -> None:
    """A repeated batch is recognized by its attempts."""

    async def main() -> None:
        offloader, ledger = await tier(), ledger_of(60)
        await StreamWriter.claim(offloader, "orders")
        for first, name in zip(GROWTH, ["", "", "a", "a", "b", ""], strict=True):
            job = await Job.begin(offloader, "orders")
            manifest, [attempt] = await job.prepare([ledger.ledger_id], token=token_for(name))
            part = CutHandle(ledger, first_offset=first, next_offset=first + 10)
            await job.append([await offloader.offload(part, attempt, manifest=manifest, extra_metadata={})])

        assert await compacted(offloader) == (4, 2)

        entries = await entries_of(offloader)
        assert [entry.records for entry in entries] == [20, 20, 10, 10]
        assert [token_of(entry.attempt) for entry in entries] == [*map(token_for, ["", "a", "b", ""])]

    asyncio.run(main())
