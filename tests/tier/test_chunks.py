"""Tests of reading stored chunks one by one: whole, in order, without a copy, and through the block cache."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from dataclasses import dataclass, field

import pytest
from cache_world import CHUNK_SIZE_BYTES, CHUNKS_PER_FRAGMENT, CacheWorld, body_at
from cache_world import run as run_cached
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from row_choices import Offsets

from offload import (
    Corrupt,
    MemoryHandle,
    ObjectStoreOffloader,
    PartOffset,
    Retention,
    StreamReader,
    StreamWriter,
    TierOptions,
    build_chunk,
    trim,
)
from offload.cache.block_cache import BlockCache
from offload.cache.memory import AGE_SECONDS
from offload.contracts.chunks import StoredChunk
from offload.contracts.events import Event
from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_writer import build_tracking_chunk
from offload.formats.entries import messages
from offload.formats.tracking import ConsumerOffset, encode_blocks
from offload.model.chunk_table import ChunkType
from offload.model.part import StreamPart
from offload.read.batches import messages_in
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

STREAM = "orders"
Model = list[tuple[int, int, bytes]]
"""The part, the first offset and the bytes of each chunk."""


@dataclass
class World:
    """A stream with parts, and the list of its chunks."""

    cache_size_bytes: int | None = None
    store: FaultyStore = field(default_factory=lambda: FaultyStore(MemoryStore()))
    chunks: Model = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tier = ObjectStoreOffloader(self.store, options=TierOptions(fragment_size_bytes=600))
        size = self.cache_size_bytes
        self.cache = None if size is None else BlockCache(size, step_size_bytes=min(size, 300))

    async def append_part(self, number: int, first_offset: int, kinds: list[int]) -> int:
        """Write a part. A kind above 0 is a number of messages, 0 a tracking chunk, below 0 has a filter."""
        part = StreamPart(STREAM, number)
        if number > 1:
            before = await self.tier.log(StreamPart(STREAM, number - 1).name).load_newest()
            assert before is not None
            await self.tier.begin_part(part, before=before)
        writer = await StreamWriter.claim(self.tier, part.name, first_offset=first_offset)
        raws, offset = list[bytes](), first_offset
        for kind in kinds:
            raw = made_chunk(kind, offset)
            self.chunks.append((number, offset, raw))
            raws.append(raw)
            offset += abs(kind) or 1
        if raws:
            await writer.offload([MemoryHandle(raws)])
        return offset

    async def reader(self) -> StreamReader:
        opened = await StreamReader.open(self.tier, STREAM, emit=self.events.append, cache=self.cache)
        self.store.calls.clear()
        return opened

    def reads(self) -> int:
        """Return the reads of fragments since the reader was opened or this was asked."""
        found = sum(call.operation == "get" and ".fragment" in call.key for call in self.store.calls)
        self.store.calls.clear()
        return found

    async def aclose(self) -> None:
        if self.cache is not None:
            await self.cache.aclose()


def made_chunk(kind: int, offset: int) -> bytes:
    block, delta = ConsumerOffset(name=b"app", offset=offset), ChunkType.TRACKING_DELTA
    if kind == 0:
        return build_tracking_chunk([block], chunk_type=delta, offset=offset, timestamp_ms=offset, epoch=1)
    return build_chunk(
        [b"%d" % (offset + k) * (1 + k % 3) for k in range(abs(kind))],
        offset=offset,
        timestamp_ms=offset,
        epoch=1,
        filter_values=[b"red" if k % 2 else None for k in range(abs(kind))] if kind < -1 else None,
        trailer=encode_blocks([block], chunk_type=ChunkType.USER) if kind % 3 == 0 else b"",
    )


def told(chunk: StoredChunk) -> tuple[int, int, bytes]:
    """Return what the model has of a chunk, whose parts must be those of its header."""
    raw = bytes(chunk.raw)
    header = ChunkHeader.decode(raw, where="")
    assert raw == b"".join([chunk.header, chunk.filter, chunk.data, chunk.trailer])
    assert len(chunk.header) == 48
    sizes = header.filter_size_bytes, header.data_size_bytes, header.trailer_size_bytes
    assert (len(chunk.filter), len(chunk.data), len(chunk.trailer)) == sizes
    assert (chunk.offset, chunk.next_offset) == (header.offset, header.offset + header.records)
    assert (chunk.timestamp_ms, chunk.type) == (header.timestamp_ms, header.type)
    batch = messages_in(chunk)
    assert (None if batch is None else batch.bodies) == (messages(raw, where="") if chunk.type == 0 else None)
    return chunk.part, chunk.offset, raw


def end_of(chunk: tuple[int, int, bytes]) -> int:
    return ChunkHeader.decode(chunk[2], where="").next_offset


async def read(reader: StreamReader, start: int | PartOffset, **how: Offsets | None) -> Model:
    return [told(chunk) async for chunk in reader.chunks(start, **how)]


kinds = st.lists(st.integers(-4, 6), max_size=9)


@settings(deadline=None, max_examples=1_500 if CAMPAIGN else 25)
@given(
    parts=st.lists(st.tuples(st.integers(-3, 4), kinds), min_size=1, max_size=3),
    cache_size_bytes=st.sampled_from([None, 100, 700, 1 << 20]),
    starts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 99)), min_size=1, max_size=4),
    wanted=st.none() | st.sets(st.integers(0, 60)),
)
def test_chunks_come_whole_and_in_order_from_the_one_that_holds_the_place(
    parts: list[tuple[int, list[int]]],
    cache_size_bytes: int | None,
    starts: list[tuple[int, int]],
    wanted: set[int] | None,
) -> None:
    """The model is the list of what was written. Parts have gaps and forks, or are empty."""

    async def scenario() -> None:
        world, end, firsts = World(cache_size_bytes), 3, list[tuple[int, int]]()
        for number, (step, drawn) in enumerate(parts, start=1):
            first = max(end + step, 0)
            end = await world.append_part(number, first, drawn)
            firsts.append((first, end))
        reader = await world.reader()
        choice = None if wanted is None else Offsets(wanted)

        for which, at in starts:
            part = which % len(parts)
            first, end = firsts[part]
            place = PartOffset(part + 1, first + at % (end - first + 1))
            expected = [
                chunk
                for chunk in world.chunks
                if (chunk[0], end_of(chunk)) > (place.part, place.offset)
                and (wanted is None or chunk[1] in wanted)
            ]

            assert await read(reader, place, rows_of=choice) == expected

        await world.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("cache_size_bytes", [None, 1 << 20])
def test_chunks_cost_no_request_more_than_windows_and_no_copy(cache_size_bytes: int | None) -> None:
    async def scenario() -> None:
        world = World(cache_size_bytes)
        await world.append_part(1, 0, [5, 0, -3] * 20)
        reader = await world.reader()
        windows = [window async for window in reader.windows(0)]
        by_windows = world.reads()
        if world.cache is not None:
            await world.cache.aclose()
            world.cache = BlockCache(1 << 20, step_size_bytes=300)
        reader = await world.reader()

        chunks = [chunk async for chunk in reader.chunks(0)]

        assert [told(chunk) for chunk in chunks] == world.chunks
        assert world.reads() == by_windows
        # A view of a copy would have an object of its own.
        assert len({id(chunk.raw.obj) for chunk in chunks}) <= len(windows) < len(chunks)
        await world.aclose()

    asyncio.run(scenario())


def test_the_chunks_of_many_readers_are_fetched_once() -> None:
    async def scenario() -> None:
        world = World(1 << 20)
        await world.append_part(1, 0, [5, 0, -3] * 20)
        reader = await world.reader()
        assert await read(reader, 0) == world.chunks
        for_one = world.reads()

        assert [await read(await world.reader(), 0) for _ in range(4)] == [world.chunks] * 4

        assert for_one
        assert world.reads() == 0
        await world.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("follows", [False, True])
def test_a_reader_holds_no_bytes_while_its_consumer_works_on_a_chunk(follows: bool) -> None:
    async def act(world: CacheWorld) -> None:
        await world.append()
        reader = await world.reader()
        async with aclosing(reader.follow_chunks(0) if follows else reader.chunks(0)) as chunks:
            chunk = await anext(chunks)
            held = chunk.raw.obj
            assert bytes(chunk.data)[4:] == body_at(0)
            del chunk
            for _ in range(3):
                await world.pass_time(AGE_SECONDS + 1)

            assert world.cache.counts.left_by_age
            assert sys.getrefcount(held) == 2, "something but this test holds the window"
            assert (await anext(chunks)).offset == 1

    run_cached(act)


@pytest.mark.parametrize("cache_size_bytes", [None, 1 << 20])
def test_damage_is_raised_with_object_and_byte_after_the_sound_chunks(cache_size_bytes: int | None) -> None:
    async def act(world: CacheWorld) -> None:
        await world.append()
        key, damaged = world.fragment(0), 4
        raw = bytearray(world.objects[key])
        at = raw.index(body_at(damaged)) + 7
        raw[at] ^= 1
        world.objects[key] = bytes(raw)
        reader = await world.reader()
        if cache_size_bytes is None:
            reader = await StreamReader.open(world.tier(), STREAM)
        got = list[int]()

        async def read_all() -> None:
            async for chunk in reader.chunks(0):
                got.append(chunk.offset)

        with pytest.raises(Corrupt) as caught:
            await read_all()

        assert got == [*range(damaged)]
        assert caught.value.where.endswith(key)
        assert caught.value.position in range(at - CHUNK_SIZE_BYTES, at + 1)

    run_cached(act)


@pytest.mark.parametrize("is_cached", [False, True])
def test_chunks_that_retention_takes_in_mid_read_are_reported_as_skipped(is_cached: bool) -> None:
    async def act(world: CacheWorld) -> None:
        for _ in range(8):
            await world.append()
        reader = await world.reader(in_flight=1)
        if not is_cached:
            reader = await StreamReader.open(world.tier(), STREAM, in_flight=1, emit=world.events.append)
        async with aclosing(reader.chunks(0)) as chunks:
            got = [(await anext(chunks)).offset]
            await trim(world.others(), STREAM, Retention(before_offset=5 * CHUNKS_PER_FRAGMENT))
            for number in range(5):
                del world.objects[world.fragment(number * CHUNKS_PER_FRAGMENT)]

            got += [chunk.offset async for chunk in chunks]

        [(begin, end)] = world.skips()
        assert got == [*range(begin), *range(end, 8 * CHUNKS_PER_FRAGMENT)]
        assert end == 5 * CHUNKS_PER_FRAGMENT

    run_cached(act)


def test_chunks_that_come_later_are_followed_into_the_next_part() -> None:
    async def scenario() -> None:
        world = World(1 << 20)
        end = await world.append_part(1, 0, [2, 3])
        reader = await world.reader()
        async with aclosing(reader.follow_chunks(0)) as chunks, asyncio.timeout(30):
            got = [told(await anext(chunks)) for _ in range(2)]
            await world.append_part(2, end + 4, [1, 0, 2])

            got += [told(await anext(chunks)) for _ in range(3)]

        assert got == world.chunks
        assert [chunk[0] for chunk in got] == [1, 1, 2, 2, 2]
        await world.aclose()

    asyncio.run(scenario())
