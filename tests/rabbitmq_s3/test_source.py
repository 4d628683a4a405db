"""Buckets of rabbitmq-stream-s3 as a source: copied again and again while a broker writes."""

from __future__ import annotations

import asyncio
import copy
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from campaign import CAMPAIGN
from command_line import offload
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from offload_rabbitmq_s3 import RabbitmqS3Catalogue
from offload_rabbitmq_s3.keys import older_root
from offload_rabbitmq_s3.source import TABLES_KEPT, RabbitmqS3Source
from rabbitmq_s3_bucket import DATA, MANIFEST, STREAM, Bucket, header_of

from offload import ObjectStoreOffloader, StreamReader, sync
from offload.contracts.catalogue import Catalogue
from offload.contracts.store import Body
from offload.copy.sync import StreamReport
from offload.ground.errors import Diverged, Divergence, TryAgain, UnsupportedFormat
from offload.model.manifest import Manifest
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator

T = TypeVar("T")


def source_of(bucket: Bucket) -> RabbitmqS3Source:
    return RabbitmqS3Source(RabbitmqS3Catalogue(bucket.store, "rabbitmq+memory://b"))


async def chunks_in(tier: Catalogue, offset: int = 0) -> bytes:
    reader = await StreamReader.open(tier, STREAM)
    async with aclosing(reader.windows(max(offset, reader.manifest.first_offset))) as windows:
        return b"".join([bytes(window.data) async for window in windows])


class World:
    """A bucket, and a tier of ours that follows it."""

    def __init__(self) -> None:
        self.bucket, self.objects = Bucket(branching=3), MemoryStore()

    @property
    def tier(self) -> ObjectStoreOffloader:
        return ObjectStoreOffloader(self.objects)

    async def sync(self, **given: Any) -> StreamReport:
        tier = self.tier
        await tier.open(create=True)
        [report] = [each async for each in sync(source_of(self.bucket), tier, **given)]
        return report

    async def grow(self, fragments: int = 1, chunks: int = 2) -> None:
        for _ in range(fragments):
            await self.bucket.append(self.bucket.messages(chunks))


@pytest.mark.parametrize("name", MANIFEST)
def test_a_copy_has_the_chunks_of_the_bucket_and_a_second_run_finds_nothing_new(
    name: str, tmp_path: Path
) -> None:
    told, url, tier = MANIFEST[name], f"rabbitmq+file://{DATA / name}", str(tmp_path / "tier")
    first = offload("sync", url, tier, "--json")
    again = offload("sync", url, tier, "--json")
    offload("sync", f"rabbitmq://{DATA.parent / 'osiris' / told['from']}", str(tmp_path / "own"))
    printed = offload("read", tier, told["stream"], "--from", "0", "--format", "raw")
    own = offload(
        "read",
        str(tmp_path / "own"),
        told["from"],
        "--from",
        "0",
        "--limit",
        str(told["messages"]),
        "--format",
        "raw",
    )

    [row] = first.objects
    assert (first.code, row["messages"], row["next_offset"]) == (0, told["messages"], told["next_offset"])
    assert again.objects[0]["uploaded_bytes"] == 0
    assert hashlib.sha256(printed.stdout).digest() == hashlib.sha256(own.stdout).digest()


def test_the_source_epoch_of_the_copy_is_that_of_the_newest_chunk() -> None:
    async def main() -> None:
        world = World()
        await world.grow()
        world.bucket.epoch = 7
        await world.grow()
        await world.sync()
        manifest = (await world.tier.view(STREAM)).committed

        assert isinstance(manifest, Manifest)
        assert manifest.source_epoch == 7

    asyncio.run(main())


def test_a_first_offset_that_jumped_ahead_is_a_gap() -> None:
    async def main() -> None:
        world = World()
        await world.grow(2)
        await world.sync()
        await world.grow(4)
        await world.bucket.trim(4)

        report = await world.sync()
        assert isinstance(report.error, Diverged)
        assert report.error.kind is Divergence.GAP
        after = await world.sync(new_part=True)
        assert after.error is None
        assert (after.part.number, after.manifest and after.manifest.first_offset) == (2, world.bucket.first)

    asyncio.run(main())


@pytest.mark.parametrize(("chunks", "kind"), [(1, Divergence.BEHIND), (9, Divergence.FORK)])
def test_a_history_that_a_higher_epoch_began_again_is_never_mixed_in(chunks: int, kind: Divergence) -> None:
    async def main() -> None:
        world = World()
        await world.grow(2)
        await world.sync()
        before = await chunks_in(world.tier)
        world.bucket = Bucket(store=world.bucket.store, epoch=2)
        await world.grow(1, chunks)

        report = await world.sync()

        assert isinstance(report.error, Diverged)
        assert report.error.kind is kind
        assert await chunks_in(world.tier) == before

    asyncio.run(main())


def test_chunks_before_a_damaged_one_are_copied() -> None:
    async def main() -> None:
        world = World()
        await world.grow(1)
        await world.grow(1, 6)
        entry = world.bucket.fragments()[1]
        key = f"{world.bucket.prefix}data/{entry.offset:020d}.{entry.uid:08x}.fragment"
        raw = bytearray(await world.bucket.store.get(key))
        chunks = [chunk for chunk in world.bucket.chunks if header_of(chunk)[0] >= entry.offset]
        raw[8 + sum(map(len, chunks[:3])) + 52] ^= 1
        await world.bucket.store.put(key, Body.of(bytes(raw)))

        report = await world.sync()

        assert f"damaged chunk at offset {header_of(chunks[3])[0]}" in str(report.error)
        assert await chunks_in(world.tier) == b"".join(world.bucket.chunks[:-3])

    asyncio.run(main())


def test_a_damaged_group_cuts_the_copy_before_it() -> None:
    async def main() -> None:
        world = World()
        await world.grow(7)
        group = world.bucket.entries[1]
        await world.bucket.put(f"metadata/{group.offset:020d}.{group.uid:08x}.group", b"OSIG")

        report = await world.sync()

        assert "size of the header" in str(report.error)
        expected = [chunk for chunk in world.bucket.chunks if header_of(chunk)[0] < group.offset]
        assert await chunks_in(world.tier) == b"".join(expected)

    asyncio.run(main())


def test_a_fragment_that_is_deleted_during_a_copy_is_tried_again() -> None:
    class Trimming(StoreDecorator):
        """A bucket whose retention runs while the third fragment is read."""

        is_new = True

        async def get(self, key: str, span: Any = None) -> Any:
            if key.endswith(".fragment") and f"/{third:020d}." in key and self.is_new:
                self.is_new = False
                await world.bucket.trim(4)
            return await super().get(key, span)

    world = World()

    async def main() -> None:
        await world.grow(6)
        nonlocal third
        third = world.bucket.fragments()[2].offset
        inner = world.bucket.store
        seen = copy.copy(world.bucket)
        seen.store = Trimming(inner)
        tier = world.tier
        await tier.open(create=True)
        [report] = [each async for each in sync(source_of(seen), tier)]

        assert isinstance(report.error, TryAgain)
        assert "was deleted" in str(report.error)

    third = 0
    asyncio.run(main())


def test_memory_keeps_the_tables_of_a_few_fragments() -> None:
    async def main() -> None:
        world = World()
        await world.grow(30)
        [stream] = await source_of(world.bucket).streams()
        async with await stream.snapshot() as snapshot:
            for ledger in snapshot.ledgers:
                await ledger.table()
            assert len(snapshot.ledgers) == 30
            assert len(snapshot.ledgers[0]._tables) == TABLES_KEPT
            assert all(ledger._table is None for ledger in snapshot.ledgers)

    asyncio.run(main())


class BucketMachine(RuleBasedStateMachine):
    """A broker that writes, groups, trims, dies and is deposed, beside a list of the chunks it committed.

    A tier of ours follows. Every read, in place and on that tier, is of some committed state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.synced: list[bytes] = []
        self.catalogue = RabbitmqS3Catalogue(self.world.bucket.store, "rabbitmq+memory://b")

    @property
    def bucket(self) -> Bucket:
        return self.world.bucket

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def main() -> T:
            return await work()

        return asyncio.run(main())

    @rule(fragments=st.integers(1, 30), chunks=st.integers(1, 4))
    def append(self, fragments: int, chunks: int) -> None:
        """Four levels of groups are reached at 27 fragments and above."""
        self.run(lambda: self.world.grow(fragments, chunks))

    @rule(chunks=st.integers(1, 3))
    def die_between_fragment_and_root(self, chunks: int) -> None:
        """The next leader uploads the same offsets again, cut otherwise."""
        self.run(lambda: self.bucket.upload(self.bucket.messages(chunks)))
        self.bucket.epoch += 1
        self.run(self.bucket.persist)

    @rule(chunks=st.integers(1, 3))
    def be_deposed(self, chunks: int) -> None:
        """The old leader puts another root after the new leader's first one."""
        old = copy.deepcopy({**self.bucket.__dict__, "store": None})
        before = Bucket(**{**old, "store": self.bucket.store})
        self.bucket.epoch += 1
        self.run(self.bucket.persist)
        self.run(lambda: before.append(before.messages(chunks, records=1)))

    @precondition(lambda self: len(self.bucket.fragments()) > 1)
    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        """The tier has all of it before, or there would be a gap."""
        self.sync()
        self.run(lambda: self.bucket.trim(int(share * len(self.bucket.fragments()))))

    @precondition(lambda self: self.bucket.next > 0)
    @rule()
    def sync(self) -> None:
        report = self.run(self.world.sync)

        assert report.error is None
        end = header_of(self.synced[-1])[1] if self.synced else 0
        self.synced += [chunk for chunk in self.bucket.chunks if header_of(chunk)[0] >= end]
        assert self.run(lambda: chunks_in(self.world.tier)) == b"".join(self.synced)

    @precondition(lambda self: self.bucket.next > 0)
    @rule(share=st.floats(0, 1))
    def read_in_place(self, share: float) -> None:
        """By a catalogue that has groups of earlier states at hand."""
        offset = int(share * self.bucket.next)
        expected = [chunk for chunk in self.bucket.chunks if header_of(chunk)[1] > offset]

        assert self.run(lambda: chunks_in(self.catalogue, offset)) == b"".join(expected)

    @invariant()
    def the_newest_root_is_the_one_of_the_leader(self) -> None:
        if self.bucket.next:
            root = self.run(lambda: self.catalogue.root(STREAM))
            assert (root.key.number, root.manifest.next_offset) == (self.bucket.epoch, self.bucket.next)


TestBucketMachine = BucketMachine.TestCase
TestBucketMachine.settings = settings(
    max_examples=200 if CAMPAIGN else 12, stateful_step_count=12, deadline=None
)


def test_a_stream_of_the_first_generation_stops_no_other_stream() -> None:
    async def run() -> None:
        world = World()
        await world.grow()
        await world.bucket.store.put(older_root("__old_1"), Body.of(bytes(60)))
        await world.tier.open(create=True)

        reports = {each.stream: each async for each in sync(source_of(world.bucket), world.tier)}

        assert {*reports} == {STREAM, "__old_1"}
        assert isinstance(reports["__old_1"].error, UnsupportedFormat)
        assert reports[STREAM].error is None
        assert len(await chunks_in(world.tier)) == sum(map(len, world.bucket.chunks))

    asyncio.run(run())
