"""Tests of the number of requests of verify and copy, on a store that answers reads from one reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from offload_cloud.long_reads import LongReads, RangeReply

from offload import Compression, MemoryHandle, ObjectStoreOffloader, StreamWriter, TierOptions, verify
from offload.contracts.store import Buffer, Span, Suffix
from offload.formats.chunk_writer import build_chunk
from offload.formats.fragment_trailer import HEADER
from offload.model.chunk_table import WINDOW_SIZE_BYTES
from offload.store.buffers import BufferPool
from offload.store.memory import MemoryStore
from offload.upkeep.copy.tier import copy

CHUNK_SIZE_BYTES = WINDOW_SIZE_BYTES // 4
CHUNKS = 11
"""A fragment of three windows, of which the last is shorter."""


class OneReplyStore(MemoryStore):
    """A store in memory that answers the reads of spans by `LongReads`, and counts its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Span] = []
        self.long_reads = LongReads(self.ask, BufferPool(), connections_max=8)

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        if key.endswith(".fragment") and isinstance(span, Span):
            return await self.long_reads.get(key, span)
        return await super().get(key, span)

    async def ask(self, key: str, span: Span) -> RangeReply | None:
        self.requests.append(span)
        raw = await super().get(key, span)
        return RangeReply(_Reply(raw), span.start, span.start + len(raw)) if raw else None


class _Reply:
    def __init__(self, raw: Buffer) -> None:
        self.raw = raw

    async def readinto(self, buffer: memoryview) -> None:
        buffer[:], self.raw = self.raw[: len(buffer)], self.raw[len(buffer) :]

    def close(self) -> None:
        pass


def in_tier(
    act: Callable[[OneReplyStore, ObjectStoreOffloader], Awaitable[None]], compression: Compression
) -> None:
    """Run `act` with a tier of one stream of one fragment."""

    async def scenario() -> None:
        store = OneReplyStore()
        async with ObjectStoreOffloader(store, options=TierOptions(compression=compression)) as tier:
            writer = await StreamWriter.claim(tier, "orders")
            body = bytes(range(256)) * (CHUNK_SIZE_BYTES // 256)
            chunks = [build_chunk([body], offset=n, timestamp_ms=n, epoch=1) for n in range(CHUNKS)]
            await writer.offload([MemoryHandle(chunks)])
            store.requests.clear()
            await act(store, tier)

    asyncio.run(scenario())


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_verify_of_all_bytes_sends_two_requests_for_a_named_fragment(codec: str) -> None:
    async def act(store: OneReplyStore, tier: ObjectStoreOffloader) -> None:
        report = await verify(tier)

        assert report.damages == []
        assert len(store.requests) == 2, "the tail, and all bytes before it"

    in_tier(act, Compression.parse(codec))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_copy_gets_the_chunks_of_a_fragment_by_one_request(codec: str) -> None:
    async def act(store: OneReplyStore, tier: ObjectStoreOffloader) -> None:
        options = TierOptions(compression=Compression.parse(codec))
        async with ObjectStoreOffloader(MemoryStore(), options=options) as target:
            [copied] = [each async for each in copy(tier, target)]

        assert (copied.fragments, copied.error) == (1, None)
        tail, chunks, *_ = store.requests
        assert (chunks.start, chunks.start + chunks.length) == (HEADER.size_bytes, tail.start)
        assert len(store.requests) == 4, "at the end, the tail and the last chunk are compared"

    in_tier(act, Compression.parse(codec))


def test_a_verify_with_a_limit_of_bytes_asks_only_for_what_it_reads_next() -> None:
    """A reply that waits for the rate would be dropped, and what has arrived of it be fetched again."""

    async def act(store: OneReplyStore, tier: ObjectStoreOffloader) -> None:
        report = await verify(tier, bytes_per_second_max=1e12)

        assert report.damages == []
        assert len(store.requests) == 1 + 1 + 3, "the tail, the header, and each window"
        assert max(span.length for span in store.requests) < 2 * WINDOW_SIZE_BYTES

    in_tier(act, Compression.parse("none"))
