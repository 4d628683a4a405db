"""Tests of windows of a part of a stream: exactly the requested chunks are fetched."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_conformance import ledger_of

from offload import ObjectStoreOffloader, StreamReader, StreamWriter
from offload.contracts.store import ObjectStore, Span
from offload.model.chunk_table import ChunkTable
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

RECORDS = 24
"""One record to a chunk, in four ledgers of six, and so in four fragments."""


def in_tier(act: Callable[[StreamReader, Spans], Awaitable[None]]) -> None:
    """Run `act` with a reader of a stream of `RECORDS` chunks and the record of its requests."""

    async def scenario() -> None:
        spans = Spans(MemoryStore())
        async with ObjectStoreOffloader(spans) as offloader:
            writer = await StreamWriter.claim(offloader, "orders")
            await writer.offload([ledger_of(6, first_offset=offset) for offset in range(0, RECORDS, 6)])
            spans.asked.clear()
            await act(StreamReader(offloader, writer.manifest), spans)

    asyncio.run(scenario())


class Spans(FaultyStore):
    """A store that records the requests for fragments."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked: list[tuple[str, Span]] = []

    async def get(self, key: str, span: object = None) -> bytes:
        if isinstance(span, Span) and key.endswith(".fragment"):
            self.asked.append((key, span))
        return await super().get(key, span)  # type: ignore[arg-type]


def offsets_in(*wanted: int) -> Callable[[ChunkTable], np.ndarray]:
    return lambda rows: np.isin(rows["offset"], np.array(wanted, np.uint64))


@given(st.integers(0, RECORDS), st.integers(0, RECORDS), st.sets(st.integers(0, RECORDS - 1)))
def test_exactly_the_requested_chunks_come_in_order(start: int, until: int, wanted: set[int]) -> None:
    found: list[int] = []

    async def read(reader: StreamReader, spans: Spans) -> None:
        windows = reader.windows(start, until=until, keep=offsets_in(*wanted))
        async for window in windows:
            assert len(window.data) == window.rows["size_bytes"].sum()
            found.extend(window.rows["offset"].tolist())
        await windows.aclose()

    in_tier(read)

    assert found == sorted(each for each in wanted if start <= each < until)


def test_no_byte_of_an_unwanted_chunk_is_requested() -> None:
    async def read(reader: StreamReader, spans: Spans) -> None:
        windows = reader.windows(0, until=20, keep=offsets_in(7, 8, 13, 22))
        sizes = [len(window.data) async for window in windows]
        await windows.aclose()

        assert sum(span.length for _, span in spans.asked if span.length in sizes) == sum(sizes)
        assert len(spans.asked) == 4 + len(sizes), (
            "the index of each fragment up to offset 20, and the chunks"
        )

    in_tier(read)


@pytest.mark.parametrize("until", [0, 6, 12, 18])
def test_a_fragment_behind_the_end_is_not_opened(until: int) -> None:
    async def read(reader: StreamReader, spans: Spans) -> None:
        windows = reader.windows(0, until=until)
        async for _ in windows:
            pass
        await windows.aclose()

        assert len({key for key, _ in spans.asked}) == until // 6

    in_tier(read)
