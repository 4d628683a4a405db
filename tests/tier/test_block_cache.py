"""Tests of readers that share a cache: they get what they would get alone, for the requests of one."""

from __future__ import annotations

import asyncio

import pytest
from cache_world import CacheWorld, checked, offsets, run

from offload import StreamReader

READERS = 8
RECORDS = 60


async def requests_of_one(world: CacheWorld) -> int:
    """Return the requests of a reader that has a cache for itself."""
    shared, world.cache = world.cache, world.new_cache()
    assert await offsets(await world.reader()) == [*range(RECORDS)]
    await world.cache.aclose()
    world.cache = shared
    return world.requests()


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
            assert world.requests() == (alone if starts[-1] == 0 else 0)

    run(act)


def test_a_reader_that_follows_another_sends_no_request() -> None:
    async def act(world: CacheWorld) -> None:
        await world.append(RECORDS)
        first, second = (await world.reader()).messages(0), (await world.reader()).messages(0)
        for _ in range(20):
            checked(await anext(first))
        world.requests()
        for _ in range(20):
            checked(await anext(second))
        assert world.requests() == 0
        await first.aclose()
        await second.aclose()

    run(act)
