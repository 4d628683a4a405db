"""Tests of compaction: the planned runs, and the stream afterwards. `protocol/test_replace` tests rivals."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from offload_conformance.ledgers import MemoryLedger, ledger_of

from offload import Conflict, Job, Misuse, ObjectStoreOffloader, StreamReader, StreamWriter, TierOptions
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.model.entry import Entry, entries_of_rows
from offload.model.found import FoundFragment
from offload.native.fragment_reader import load_tail
from offload.store.memory import MemoryStore
from offload.upkeep.compact.runs import FragmentRun, open_run, plan_runs
from offload.upkeep.compact.stream import compact
from offload.upkeep.rebuild.choice import choose
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.sweep.page import Why
from offload.upkeep.sweep.tier import sweep
from offload.upkeep.verify.tier import VerifyLevel, verify

LARGE = 1 << 20


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def small_fragments(*ledgers: int, factor: int = 1024) -> tuple[ObjectStoreOffloader, StreamWriter]:
    """Write a stream of ledgers with so many chunks, each chunk a fragment."""
    store = MemoryStore(objects={TIER_ANCHOR: TierAnchor(branching_factor=factor).encode()})
    offloader = ObjectStoreOffloader(store, options=TierOptions(fragment_size_bytes=1))
    writer = await StreamWriter.claim(offloader, "orders")
    for chunks in ledgers:
        await writer.offload([ledger_of(chunks, first_offset=writer.manifest.next_offset)])
    return offloader, writer


def compactor(offloader: ObjectStoreOffloader) -> ObjectStoreOffloader:
    """Return the same tier, for fragments as large as any run here."""
    return ObjectStoreOffloader(offloader.store, options=TierOptions(fragment_size_bytes=LARGE))


async def planned(offloader: ObjectStoreOffloader, **options: Any) -> list[FragmentRun]:
    tree = offloader.tree(await offloader.load_manifest("orders"))
    return [each async for each in plan_runs(tree, **{"fragment_size_bytes": LARGE} | options)]


async def compacted(offloader: ObjectStoreOffloader) -> int:
    """Compact all planned runs, and return their number."""
    [done] = [each async for each in compact(compactor(offloader), fragment_size_bytes=LARGE)]
    assert (done.error, done.passed_over) == (None, 0)
    return done.runs


async def entries_of(offloader: ObjectStoreOffloader) -> list[Entry]:
    tree = offloader.tree(await offloader.load_manifest("orders"))
    return [entry async for leaf in tree.walk() for entry in entries_of_rows(leaf)]


async def bodies_of(offloader: ObjectStoreOffloader) -> list[bytes]:
    reader = await StreamReader.open(offloader, "orders")
    return [body async for batch in reader.messages(0) for body in batch.bodies]


def counts(runs: list[FragmentRun]) -> list[int]:
    return [len(each.entries) for each in runs]


def test_runs_are_planned_within_ledgers_and_never_with_the_newest_fragment() -> None:
    async def main() -> None:
        offloader, _ = await small_fragments(3, 1, 4)

        assert counts(await planned(offloader)) == [3, 3]

    run(main())


def test_runs_are_planned_within_groups() -> None:
    """Groups hold two fragments each, the root the rest. Adjacent fragments in two groups are two runs."""

    async def main() -> None:
        offloader, _ = await small_fragments(7, factor=2)

        assert counts(await planned(offloader)) == [2, 2, 2]
        offloader, _ = await small_fragments(8, factor=4)
        assert counts(await planned(offloader)) == [4, 3]

    run(main())


def test_a_run_has_the_size_of_a_fragment_and_half_full_fragments_stay() -> None:
    async def main() -> None:
        offloader, _ = await small_fragments(9)
        size = (await entries_of(offloader))[0].data_size_bytes

        assert counts(await planned(offloader, fragment_size_bytes=3 * size)) == [3, 3, 2]
        assert counts(await planned(offloader, fragment_size_bytes=2 * size)) == []
        assert counts(await planned(offloader, fragment_size_bytes=3 * size, fragments_min=3)) == [3, 3]
        with pytest.raises(Misuse):
            await planned(offloader, fragments_min=1)

    run(main())


@pytest.mark.parametrize("factor", [2, 3, 1024])
def test_a_compacted_stream_is_the_same_to_readers_and_sound_to_a_verify(factor: int) -> None:
    async def main() -> None:
        offloader, writer = await small_fragments(6, 5, factor=factor)
        before, manifest = await bodies_of(offloader), writer.manifest

        runs = await compacted(offloader)

        after = await offloader.load_manifest("orders")
        assert after.fragments < manifest.fragments
        assert (after.fragments == 3) == (factor == 1024)
        for name in (
            "first_offset",
            "next_offset",
            "messages",
            "data_size_bytes",
            "ledgers",
            "epoch",
            "writer",
        ):
            assert getattr(after, name) == getattr(manifest, name)
        assert sum(entry.copied for entry in await entries_of(offloader)) == runs
        assert await bodies_of(offloader) == before
        report = await verify(ObjectStoreOffloader(offloader.store), level=VerifyLevel.BYTES)
        assert report.damages == []
        await writer.offload([ledger_of(2, first_offset=after.next_offset)])
        assert len(await bodies_of(offloader)) > len(before)

    run(main())


def test_a_compacted_run_is_not_planned_again() -> None:
    async def main() -> None:
        offloader, _ = await small_fragments(6, 5)

        assert await compacted(offloader) == 2
        assert await compacted(offloader) == 0

    run(main())


def test_a_copy_ranks_with_the_fragments_that_it_copies() -> None:
    """A rebuild ranks by the epoch in the trailer, which also marks the copy."""

    async def main() -> None:
        offloader, _ = await small_fragments(3, 2)
        claimed = await StreamWriter.claim(offloader, "orders")
        await compacted(offloader)

        manifest = await offloader.load_manifest("orders")
        tail = await load_tail(offloader.store, manifest, (await entries_of(offloader))[0])

        assert (tail.trailer.copied, tail.trailer.epoch, claimed.manifest.epoch) == (1, 1, 2)

    run(main())


def test_a_copy_of_fragments_of_several_epochs_ranks_with_the_first() -> None:
    """A rebuild compares it with other fragments at that offset; with a later epoch, it would
    outrank them.
    """

    async def main() -> None:
        offloader, _ = await small_fragments(1)
        for first_offset in (1, 2):
            writer = await StreamWriter.claim(offloader, "orders")
            more = ledger_of(1, first_offset=first_offset).chunks
            await writer.offload([MemoryLedger(more, ledger_id=0)])
        await writer.offload([ledger_of(1, first_offset=3)])
        old = await entries_of(offloader)
        manifest = await offloader.load_manifest("orders")
        epochs = [(await load_tail(offloader.store, manifest, each)).trailer.epoch for each in old]
        await compacted(offloader)

        manifest = await offloader.load_manifest("orders")
        [copied, _] = await entries_of(offloader)
        tail = await load_tail(offloader.store, manifest, copied)

        assert epochs == [1, 2, 3, 3]
        assert (copied.records, tail.trailer.copied, tail.trailer.epoch) == (3, 1, 1)

    run(main())


def test_a_rebuild_restores_a_compacted_stream_with_or_without_the_originals() -> None:
    async def main() -> None:
        offloader, _ = await small_fragments(3, 4)
        await compacted(offloader)
        before, bodies = await entries_of(offloader), await bodies_of(offloader)
        keys = [row.key async for row in offloader.store.list("")]
        named = {StreamKeys("orders").fragment(entry.first_offset, entry.attempt) for entry in before}
        old = [key for key in keys if "/data/" in key and key not in named]
        await offloader.store.delete([key for key in keys if "/root." in key])

        report = await rebuild(offloader, "orders", dry_run=True)
        await offloader.store.delete(old)
        rebuilt = await rebuild(ObjectStoreOffloader(offloader.store), "orders")

        assert [each.entry for each in report.choice.chosen] == before
        assert len(report.choice.left_out) == len(old) == 6
        assert rebuilt.manifest is not None
        again = ObjectStoreOffloader(offloader.store)
        assert await entries_of(again) == before
        assert await bodies_of(again) == bodies

    run(main())


def test_an_uncommitted_copy_does_not_hide_a_committed_one() -> None:
    """The copy [0, 4) was given up. [2, 6) replaced some of the same fragments, which are swept."""

    def found(first_offset: int, next_offset: int, copied: int) -> FoundFragment:
        entry = Entry(
            first_offset=first_offset,
            records=next_offset - first_offset,
            messages=0,
            first_timestamp_ms=0,
            last_timestamp_ms=0,
            data_size_bytes=1,
            stored_size_bytes=1,
            ledger_id=0,
            attempt=UUID(int=10 * first_offset + next_offset),
            checksum=0,
            copied=copied,
        )
        return FoundFragment(entry=entry, incarnation=UUID(int=1), epoch=1, base_version=3)

    choice = choose([found(0, 2, 0), found(0, 4, 1), found(2, 6, 1)], incarnation=UUID(int=1))

    assert [each.entry.next_offset for each in choice.chosen] == [2, 6]
    assert choice.holes == []


def test_a_run_that_changed_since_it_was_planned_is_a_conflict_before_anything_is_uploaded() -> None:
    async def main() -> None:
        offloader, _ = await small_fragments(3, 2)
        [each, *_] = await planned(offloader)
        await compacted(offloader)
        large = compactor(offloader)
        before = large.metrics.bytes_put

        with pytest.raises(Conflict, match="since the copy was planned"):
            await open_run(large, each, manifest=await large.load_manifest("orders"))

        assert large.metrics.bytes_put == before

    run(main())


def test_copies_of_a_damaged_entry_are_refused_before_any_request() -> None:
    async def main() -> None:
        offloader, _ = await small_fragments(3, 2)
        [each, *_] = await planned(offloader)
        large = compactor(offloader)
        job = await Job.begin(large, "orders")
        manifest, [attempt] = await job.prepare_copies([each.entries])
        async with await open_run(large, each, manifest=manifest) as handle:
            receipt = await large.offload(handle, attempt, manifest=manifest, extra_metadata={})
        fewer = replace(receipt, entries=[replace(receipt.entries[0], messages=1)])

        with pytest.raises(Misuse):
            await job.replace(each.entries, [fewer])

        assert (await job.replace(each.entries, [receipt])).fragments == 3

    run(main())


def test_a_sweep_reports_replaced_fragments_as_replaced() -> None:
    async def main() -> None:
        offloader, _ = await small_fragments(3, 2)
        await compacted(offloader)

        report = await sweep(offloader, grace_seconds=0)

        [stream] = report.streams
        assert dict(stream.deleted.objects)[Why.REPLACED] == 3
        assert Why.DROPPED not in stream.deleted.objects

    run(main())
