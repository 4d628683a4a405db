"""Tests of reading ahead through a cache: it grows and halves, and takes no room that others need sooner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from cache_world import CacheWorld, checked, run

from offload.cache.contents import Block
from offload.cache.memory import CacheMemory
from offload.cache.reader_speeds import Pace, Paces

RECORDS = 900


def under_way(world: CacheWorld) -> int:
    """Return how many blocks and tails are being fetched."""
    return len(world.cache._fetches)


async def slow(operation: str, key: str) -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_reader_begins_with_one_request_and_ends_with_its_maximum() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        world.store.before, most = slow, list[int]()
        async for batch in (await world.reader(in_flight=4)).messages(0):
            checked(batch)
            most.append(under_way(world))
        assert most[0] <= 1
        assert max(most) == 3  # beside the one that was taken

    run(act)


def test_a_reader_that_was_far_ahead_reads_block_by_block_when_the_store_refuses() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        world.store.before, most, grown = slow, 0, 0
        async for batch in (await world.reader(in_flight=4)).messages(0):
            grown = max(grown, under_way(world))
            if checked(batch) > RECORDS // 2:
                world.throttled += 1
            if batch.offset > RECORDS * 3 // 4:
                most = max(most, under_way(world))
        assert (grown, most) == (3, 0)  # it waits for each block alone

    run(act)


def a_block(first: int, size_bytes: int, wanted_in: float) -> Block:
    """Return what a room needs to know of a block."""
    paces = SimpleNamespace(seconds_until=lambda *_: wanted_in)
    block = Block.__new__(Block)
    block.fragment = cast("Any", SimpleNamespace(stream=SimpleNamespace(paces=paces), entry=None))
    block.first_offset, block.next_offset, block.size_bytes = first, first + 1, size_bytes
    block.is_ahead, block.pins, block.used_at = False, 0, 0.0
    return block


def a_room(size_bytes: int, gone: Callable[[Any], None] = lambda kept: None) -> CacheMemory:
    return CacheMemory(size_bytes, clock=lambda: 0.0, gone=gone)


def test_all_readers_together_read_ahead_in_half_of_the_bound() -> None:
    room = a_room(100)

    entered = [room.enter_ahead(a_block(number, 20, wanted_in=1.0)) for number in range(4)]

    assert entered == [True, True, False, False]
    assert room.size_bytes == 40


def test_a_block_is_read_ahead_only_in_place_of_one_that_is_wanted_later() -> None:
    gone = list[Any]()
    room = a_room(100, gone.append)
    sooner, later = a_block(0, 50, wanted_in=1.0), a_block(1, 50, wanted_in=9.0)
    for block in (sooner, later):
        assert room.enter(block)
        room.fetched(block, 50)

    assert not room.enter_ahead(a_block(2, 40, wanted_in=10.0))
    assert gone == []
    assert room.enter_ahead(a_block(3, 40, wanted_in=5.0))
    assert gone == [later]


def test_the_reader_that_comes_first_may_be_further_away_and_faster() -> None:
    paces, now = Paces(), 100.0
    fast, slow_one = Pace(0, now - 10), Pace(940, now - 10)
    for second in range(11):
        paces.move(fast, 50 * second, now - 10 + second)
        paces.move(slow_one, 940 + second // 10, now - 10 + second)

    assert 8 < paces.seconds_until(1000, 1001, now) < 12  # the fast one is 500 records away
