"""Tests of readers that share a cache: they get what they would get alone, for the requests of one."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from unittest.mock import patch

import pytest
from cache_world import CHUNKS_PER_FRAGMENT, STREAM, CacheWorld, body_at, checked, offsets, run
from campaign import CAMPAIGN
from key_world import LABEL, Service

from offload import (
    Corrupt,
    MemoryHandle,
    Messages,
    Misuse,
    ObjectStoreOffloader,
    Retention,
    StreamReader,
    StreamWriter,
    Throttled,
    build_chunk,
    delete_stream,
    trim,
)
from offload.cache.memory import AGE_SECONDS
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR
from offload.model.labels import MasterKey
from offload.native.fragment_reader import FragmentHandle
from offload.native.key_ring import KeyRing
from offload.native.view import ObjectView
from offload.read.batches import Window
from offload.store.faults import Fault, Rule
from offload.store.memory import MemoryStore

READERS = 8
RECORDS = 60


async def requests_of_one(world: CacheWorld) -> int:
    """Return the requests of a reader that has a cache for itself."""
    shared, world.cache = world.cache, world.new_cache()
    assert await offsets(await world.reader()) == [*range(RECORDS)]
    await world.cache.aclose()
    world.cache = shared
    return len(world.fragments_read())


@pytest.mark.parametrize("kind", ["messages", "windows"])
def test_readers_that_begin_together_send_the_requests_of_one(kind: str) -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        alone = await requests_of_one(world)
        readers = [await world.reader() for _ in range(READERS)]

        async def by_windows(reader: StreamReader, start: int) -> list[int]:
            windows = reader.windows(start)
            found = [offset async for window in windows for offset in window.rows["offset"].tolist()]
            await windows.aclose()
            return found

        read = {"messages": offsets, "windows": by_windows}[kind]
        for starts in ([0] * READERS, range(READERS)):
            found = await asyncio.gather(*(map(read, readers, starts)))
            assert found == [[*range(start, RECORDS)] for start in starts]
            # Readers that begin elsewhere need other first blocks, and meet behind them.
            assert len(world.fragments_read()) == (alone if starts[-1] == 0 else 0)

    run(act)


def test_a_reader_that_follows_another_sends_no_request() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        first, second = (await world.reader()).messages(0), (await world.reader()).messages(0)
        for _ in range(40):
            checked(await anext(first))
        world.fragments_read()
        for _ in range(15):
            checked(await anext(second))
        assert len(world.fragments_read()) == 0
        await first.aclose()
        await second.aclose()

    run(act)


def test_a_reader_fetches_what_lies_before_a_block_of_another_and_meets_it() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(CHUNKS_PER_FRAGMENT)
        behind = (await world.reader()).windows(CHUNKS_PER_FRAGMENT - 1)
        assert (await anext(behind)).rows["offset"].tolist() == [5]
        await behind.aclose()
        assert len(world.fragments_read()) == 2, "the tail, and the last step"

        assert await offsets(await world.reader()) == [*range(CHUNKS_PER_FRAGMENT)]
        assert len(world.fragments_read()) == 2, "the other two steps"

    run(act)


def test_a_trim_that_passes_a_reader_is_reported_and_the_reader_goes_on_behind_it() -> None:
    """Two small chunks are decoded together, so the second is still delivered."""

    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        batches = (await world.reader(in_flight=1)).messages(0)
        assert [checked(await anext(batches)) for _ in range(3)] == [0, 1, 2]
        await trim(world.others(), STREAM, Retention(before_offset=30))
        for first in range(0, 30, CHUNKS_PER_FRAGMENT):
            del world.objects[world.fragment(first)]
        await world.pass_time(AGE_SECONDS + 1)  # so that the cache has nothing left either

        assert [checked(batch) async for batch in batches] == [3, *range(30, RECORDS)]
        assert world.skips() == [(4, 30)]

    run(act)


def test_a_reader_at_the_end_goes_on_when_the_next_fragment_lands() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(8)
        readers = [await world.reader() for _ in range(3)]
        for reader in readers:
            assert await offsets(reader) == [*range(8)]
        await world.append(2)
        for reader in readers:
            await reader.refresh()
        world.fragments_read()

        assert await asyncio.gather(*(offsets(each, 8) for each in readers)) == [[8, 9]] * 3
        assert len(world.fragments_read()) == 2, "the tail and the chunks of the new fragment"

    run(act)


def gated(world: CacheWorld) -> asyncio.Event:
    """Return a gate at which the requests for fragments wait."""
    gate = asyncio.Event()

    async def before(operation: str, key: str) -> None:
        if operation == "get" and ".fragment" in key:
            await gate.wait()

    world.store.before = before
    return gate


async def waiting(world: CacheWorld, count: int = 3) -> list[asyncio.Task[int]]:
    """Return readers that wait for the same block, at a gate."""
    readers = [(await world.reader()).messages(0) for _ in range(count)]

    async def first(batches: AsyncGenerator[Messages, None]) -> int:
        async with aclosing(batches):
            return checked(await anext(batches))

    return [asyncio.create_task(first(each)) for each in readers]


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("first", "flips", "is_damage"),
    [(2, 1, False), (2, 2, False), (3, 2, False), (3, 4, False), (2, 100, True)],
)
def test_a_flipped_byte_that_three_readers_wait_for_reaches_none_of_them(
    first: int, flips: int, is_damage: bool
) -> None:
    """One flip is mended by the second reply, and two by reading the damaged block without the cache."""

    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        # The first request is for the tail.
        world.store.rules = [Rule(Fault.FLIP, "get", "*.fragment", nth=first + nth) for nth in range(flips)]
        readers = [await world.reader() for _ in range(3)]
        found = await asyncio.gather(*map(offsets, readers), return_exceptions=True)

        if is_damage:
            assert [type(each) for each in found] == [Corrupt] * 3
        else:
            assert found == [[*range(RECORDS)]] * 3
        world.store.rules = []
        assert await offsets(await world.reader()) == [*range(RECORDS)], "no error is kept"

    run(act)


def test_a_reader_that_is_cancelled_leaves_the_request_to_the_others() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        gate = gated(world)
        first, *others = await waiting(world)
        await turns()
        assert len(world.fragments_read()) == 1
        first.cancel()
        await turns()
        gate.set()

        assert await asyncio.gather(*others) == [0, 0]
        assert len(world.fragments_read()) == 1, "the chunks; the tail is not fetched again"

    run(act)


def test_a_request_that_nobody_wants_any_more_is_cancelled() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        gated(world)
        three = await waiting(world)
        await turns()
        for each in three:
            each.cancel()
        await asyncio.gather(*three, return_exceptions=True)
        await turns()

        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(act)


def test_a_cache_smaller_than_a_block_delivers_everything_and_keeps_nothing() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        readers = [await world.reader() for _ in range(3)]
        assert await asyncio.gather(*map(offsets, readers)) == [[*range(RECORDS)]] * 3
        await turns()
        assert world.cache.counts.size_bytes == 0
        assert len(world.store.calls) < 8 * RECORDS, "a block is not fetched again for each of its chunks"

    run(act, size_bytes=10)


def test_a_consumer_that_stops_for_an_hour_keeps_nothing_and_goes_on() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        batches = (await world.reader()).messages(0)
        assert [checked(await anext(batches)) for _ in range(20)] == [*range(20)]
        await turns()  # what it reads ahead arrives
        await world.pass_time(3600)
        assert world.cache.counts.size_bytes == 0

        assert [checked(batch) async for batch in batches] == [*range(20, RECORDS)]

    run(act)


def test_thousands_of_readers_that_close_at_once_leave_nothing() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        committed = (await world.reader()).manifest
        gate = gated(world)
        sources = [
            StreamReader(world.kept, committed, cache=world.cache).messages(number % RECORDS)
            for number in range(10_000 if CAMPAIGN else 500)
        ]
        calls = [asyncio.create_task(anext(each)) for each in sources]
        await turns(20)
        for each in calls[::2]:
            each.cancel()
        gate.set()
        for number, found in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
            if number % 2:
                assert isinstance(found, Messages)
                assert checked(found) == number % RECORDS
        await asyncio.gather(*(each.aclose() for each in sources))
        await turns()

        assert len(world.fragments_read()) < 200
        assert len(asyncio.all_tasks()) <= 2, "this one, and the one that lets old blocks go"

    run(act)


def test_a_store_that_refuses_two_requests_at_once_is_read_one_by_one() -> None:
    """Without retries between them, so that each refusal reaches the cache."""

    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        under_way = 0

        async def before(operation: str, key: str) -> None:
            nonlocal under_way
            if operation == "get" and ".fragment" in key:
                if under_way:
                    world.throttled += 1
                    raise Throttled("one at a time")
                under_way += 1
                await turns(3)

        async def after(operation: str, key: str) -> None:
            nonlocal under_way
            under_way -= operation == "get" and ".fragment" in key

        world.store.before, world.store.after = before, after
        assert await offsets(await world.reader()) == [*range(RECORDS)]
        assert world.throttled < 25

    run(act)


def test_a_reader_whose_store_asks_for_fewer_requests_reads_one_block_at_a_time() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        most = 0
        batches = (await world.reader()).messages(0)
        async for batch in batches:
            checked(batch)
            world.throttled += 1
            if batch.offset > 12:
                most = max(most, len(world.cache._fetches))
        assert most <= 2, "a block, and the tail behind it"

    run(act)


def test_tiers_with_other_rights_share_nothing() -> None:
    """Another catalogue of the same objects may have other keys, and must ask for itself."""

    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        other = world.tier()
        assert await offsets(await world.reader()) == [*range(RECORDS)]
        alone = await requests_of_one(world)
        assert await offsets(await world.reader(catalogue=other)) == [*range(RECORDS)]

        assert len(world.fragments_read()) == alone

    run(act)


def test_a_stream_that_was_begun_again_gets_nothing_of_its_earlier_life() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(6)
        old = await world.reader()
        assert await offsets(old) == [*range(6)]
        await delete_stream(world.others(), STREAM)
        writer = await StreamWriter.claim(world.others(), STREAM)
        chunk = build_chunk([b"another life"], offset=0, timestamp_ms=0, epoch=1)
        await writer.offload([MemoryHandle([chunk])])

        assert [batch.bodies async for batch in (await world.reader()).messages(0)] == [[b"another life"]]

    run(act)


def test_a_reader_goes_on_with_a_clear_error_when_its_cache_is_closed() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        gated(world)
        one, *_ = calls = await waiting(world)
        await turns()
        await world.cache.aclose()
        for each in calls:
            with pytest.raises(Misuse, match="the cache of this reader was closed"):
                await each
        assert one.done()

    run(act)


def test_a_forked_child_begins_with_an_empty_cache() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        await offsets(await world.reader())
        assert world.cache.counts.size_bytes
        parents = world.cache._ageing
        assert parents is not None
        with patch("os.getpid", return_value=-1):
            await world.cache.aclose()
            assert not parents.cancelled(), "the parent's tasks are left alone"
            world.cache.stream(world.kept, (await world.reader())._view)
            assert world.cache.counts.size_bytes == 0
            await offsets(await world.reader())
            await world.cache.aclose()
        parents.cancel()
        await asyncio.wait([parents])

    run(act)


def test_what_was_encrypted_leaves_in_time_even_if_it_is_used() -> None:
    async def act(world: CacheWorld) -> None:
        service = Service()
        ring = KeyRing(service=service, new=MasterKey.parse(LABEL))
        objects = MemoryStore(objects=world.objects)
        writer_tier = ObjectStoreOffloader(objects, ring=ring)
        writer = await StreamWriter.claim(writer_tier, STREAM)
        chunks = [build_chunk([body_at(n)], offset=n, timestamp_ms=n, epoch=1) for n in range(6)]
        await writer.offload([MemoryHandle(chunks)])
        tier = ObjectStoreOffloader(world.store, ring=ring)
        for step in range(8):
            assert await offsets(await world.reader(catalogue=tier)) == [*range(6)]
            assert bool(world.fragments_read()) == (step % 4 == 0), "the requests of one reader in this time"
            await world.pass_time(AGE_SECONDS / 4)

    run(act)


def test_a_consumer_that_stands_still_holds_the_only_reference_to_its_messages() -> None:
    """Thousands may stand still, and a chunk of small messages takes a hundred kibibytes."""

    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        reader = await world.reader()
        for batches in (reader.messages(1), reader.follow(1)):
            batch = await anext(batches)
            bodies = batch.bodies
            del batch
            assert sys.getrefcount(bodies) == 2, "the name here, and the argument"
            await batches.aclose()

    run(act)


def test_a_handle_is_closed_once_and_never_while_a_request_uses_it() -> None:
    """Ours hold nothing. Those of other tiers may hold a connection."""
    under_way: Counter[str] = Counter()
    opened: Counter[str] = Counter()
    read, of = FragmentHandle._read, FragmentHandle.open

    async def watched_open(*args: Any, **options: Any) -> FragmentHandle:
        handle = await of(*args, **options)
        opened[handle.where] += 1
        return handle

    async def watched_read(self: FragmentHandle, *args: Any) -> Any:
        assert opened[self.where] > 0
        under_way[self.where] += 1
        try:
            return await read(self, *args)
        finally:
            under_way[self.where] -= 1

    async def watched_close(self: FragmentHandle) -> None:
        assert not under_way[self.where]
        opened[self.where] -= 1

    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        gate = gated(world)
        gate.set()
        batches = (await world.reader()).messages(0)
        for _ in range(10):
            await anext(batches)
        gate.clear()
        waiting_for_more = asyncio.create_task(offsets(await world.reader(), 13))
        await turns()
        await world.pass_time(AGE_SECONDS + 1)
        gate.set()
        assert await waiting_for_more == [*range(13, RECORDS)]
        await batches.aclose()
        await world.cache.aclose()
        assert opened.total() == 0

    with (
        patch.object(FragmentHandle, "open", watched_open),
        patch.object(FragmentHandle, "_read", watched_read),
        patch.object(FragmentHandle, "aclose", watched_close),
        patch.object(ObjectView, "open", lambda self, entry: self._open(entry)),
    ):
        run(act)


@pytest.mark.parametrize("waits", range(1, 16, 2))
def test_waits_that_are_cancelled_while_groups_load_lose_no_window(waits: int) -> None:
    async def act(world: CacheWorld) -> None:
        world.objects[TIER_ANCHOR] = TierAnchor(branching_factor=2).encode()
        for _ in range(6):
            await world.append()
        windows, found = (await world.reader()).windows(0), list[int]()
        for _ in range(30):
            call = asyncio.ensure_future(anext(windows))
            await turns(waits)
            call.cancel()
            for window in await asyncio.gather(call, return_exceptions=True):
                if isinstance(window, Window):
                    found += window.rows["offset"].tolist()
        async for window in windows:
            found += window.rows["offset"].tolist()
        await windows.aclose()

        assert found == [*range(6 * CHUNKS_PER_FRAGMENT)]

    run(act)


def test_damage_in_a_block_that_was_read_in_part_repeats_nothing() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        batches = (await world.reader(in_flight=1)).messages(0)
        assert [checked(await anext(batches)) for _ in range(3)] == [0, 1, 2]
        await world.pass_time(AGE_SECONDS + 1)
        # The view still has the tail, so the first two requests are for the rest of the block.
        world.store.rules = [Rule(Fault.FLIP, "get", "*.fragment", nth=nth) for nth in (1, 2)]

        assert [checked(batch) async for batch in batches] == [*range(3, RECORDS)]

    run(act)
