"""A tier in memory, readers that share a cache, and the requests that they send."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kit.world import STREAM, TierWorld

from offload import (
    Env,
    MemoryHandle,
    StreamReader,
    StreamWriter,
    TierOptions,
    build_chunk,
)
from offload.cache.block_cache import BlockCache
from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event, Skipped
from offload.read.reader import Messages

BODY_SIZE_BYTES = 3000
CHUNK_SIZE_BYTES = BODY_SIZE_BYTES + 52
CHUNKS_PER_FRAGMENT = 6
STEP_SIZE_BYTES = 2 * CHUNK_SIZE_BYTES
"""Two chunks: a fragment has three steps."""


def body_at(offset: int) -> bytes:
    return (b"%d|" % offset).ljust(BODY_SIZE_BYTES, b"%d" % (offset % 10))


@dataclass
class CacheWorld(TierWorld):
    """One stream with a record to a chunk, and a cache for its readers. Its clock stands still by itself."""

    size_bytes: int = 1000 * CHUNK_SIZE_BYTES
    throttled: int = 0

    def __post_init__(self) -> None:
        self.kept = self.tier()
        self.ticks = asyncio.Semaphore(0)
        self.cache = self.new_cache()

    def new_cache(self, size_bytes: int | None = None) -> BlockCache:
        return BlockCache(
            size_bytes or self.size_bytes,
            env=Env(monotonic=lambda: self.clock.now, sleep=self.sleep),
            throttled=lambda: self.throttled,
            step_size_bytes=STEP_SIZE_BYTES,
        )

    async def sleep(self, seconds: float) -> None:
        await self.ticks.acquire()

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and the cache look at what has grown old."""
        self.clock.now += seconds
        self.ticks.release()
        for _ in range(5):
            await asyncio.sleep(0)

    def options(self) -> TierOptions:
        return TierOptions(fragment_size_bytes=CHUNKS_PER_FRAGMENT * CHUNK_SIZE_BYTES)

    async def append(self, records: int = CHUNKS_PER_FRAGMENT) -> None:
        writer = await StreamWriter.claim(self.others(), STREAM)
        begin = writer.manifest.next_offset
        chunks = [
            build_chunk([body_at(offset)], offset=offset, timestamp_ms=offset, epoch=1)
            for offset in range(begin, begin + records)
        ]
        await writer.offload([MemoryHandle(chunks)])

    async def reader(
        self,
        *,
        catalogue: Catalogue | None = None,
        in_flight: int = 4,
        emit: Callable[[Event], None] | None = None,
    ) -> StreamReader:
        """Open a reader that shares the cache. Forgets the requests before it."""
        opened = await StreamReader.open(
            catalogue or self.kept,
            STREAM,
            in_flight=in_flight,
            emit=emit or self.events.append,
            cache=self.cache,
        )
        self.store.calls.clear()
        return opened

    def skips(self) -> list[tuple[int, int]]:
        return [(event.from_offset, event.to_offset) for event in self.of(Skipped)]

    def fragment(self, first_offset: int) -> str:
        """Return the key of a fragment."""
        return next(key for key in self.objects if f"/data/{first_offset:020}." in key)


def checked(batch: Messages) -> int:
    """Return the offset of a batch, whose body must be the one that was written there."""
    assert batch.bodies == [body_at(batch.offset)]
    return batch.offset


async def offsets(reader: StreamReader, start: int = 0) -> list[int]:
    return [checked(batch) async for batch in reader.messages(start)]


def run(act: Callable[[CacheWorld], Awaitable[None]], **options: int) -> None:
    """Run `act`. Behind it, the cache is closed, and nothing may run."""

    async def scenario() -> None:
        world = CacheWorld(**options)
        async with asyncio.timeout(60):
            await act(world)
            await world.cache.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "something runs on"
        assert world.cache.counts.size_bytes == 0

    asyncio.run(scenario())
