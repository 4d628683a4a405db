"""Tests of windows of a part of a stream: exactly the requested chunks are delivered, by few requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_conformance import ledger_of

from offload import ObjectStoreOffloader, StreamReader, StreamWriter
from offload.contracts.store import Buffer, Span
from offload.ground.errors import Corrupt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import entries_of_rows
from offload.model.position import AtTime
from offload.read import windows as windows_module
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

RECORDS = 24
"""One record to a chunk, in four ledgers of six, and so in four fragments."""

CHUNK_SIZE_BYTES = len(ledger_of(1).chunks[0])


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

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.objects = inner.objects
        self.asked: list[tuple[str, Span]] = []

    async def get(self, key: str, span: object = None) -> Buffer:
        if isinstance(span, Span) and key.endswith(".fragment"):
            self.asked.append((key, span))
        return await super().get(key, span)  # type: ignore[arg-type]


def offsets_in(*wanted: int) -> Callable[[ChunkTable], np.ndarray]:
    return lambda rows: np.isin(rows["offset"], np.array(wanted, np.uint64))


async def tables_of(reader: StreamReader) -> dict[str, ChunkTable]:
    """Return the table of each fragment, by its key."""
    found = {}
    view = reader._view
    async for run in view.walk(0):
        for entry in entries_of_rows(run):
            async with await view.open(entry) as handle:
                found[handle.where] = await handle.table()
    return found


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


@given(
    st.lists(st.sampled_from("ww..DW"), min_size=RECORDS, max_size=RECORDS),
    st.integers(0, 4).map(lambda chunks: chunks * CHUNK_SIZE_BYTES),
)
def test_damage_that_nobody_wants_hides_nothing(chunks: list[str], gap_max: int) -> None:
    # Each chunk is wanted (w), unwanted (.), unwanted and damaged (D), or wanted and damaged (W).
    wanted = {offset for offset, kind in enumerate(chunks) if kind in "wW"}
    damaged = {offset for offset, kind in enumerate(chunks) if kind in "DW"}
    found: list[int] = []

    async def read(reader: StreamReader, spans: Spans) -> None:
        for key, table in (await tables_of(reader)).items():
            raw = bytearray(spans.objects[key])
            for offset, position in zip(table["offset"].tolist(), table["position"].tolist(), strict=True):
                raw[position + 60] ^= offset in damaged
            spans.objects[key] = bytes(raw)
        windows = reader.windows(0, keep=offsets_in(*wanted))
        with suppress(Corrupt):
            async for window in windows:
                assert len(window.data) == window.rows["size_bytes"].sum()
                found.extend(window.rows["offset"].tolist())
        await windows.aclose()

    with patch.object(windows_module, "GAP_SIZE_BYTES_MAX", gap_max):
        in_tier(read)

    assert found == sorted(each for each in wanted if each < min(wanted & damaged, default=RECORDS))


@pytest.mark.parametrize(("gap_max", "requests"), [(0, 3), (CHUNK_SIZE_BYTES, 2), (2 * CHUNK_SIZE_BYTES, 1)])
def test_small_gaps_are_fetched_and_not_delivered(gap_max: int, requests: int) -> None:
    async def read(reader: StreamReader, spans: Spans) -> None:
        windows = reader.windows(0, until=6, keep=offsets_in(0, 2, 5))
        assert [window.rows["offset"].tolist() async for window in windows] == [[0], [2], [5]]
        await windows.aclose()
        assert len(spans.asked) == 1 + requests, "the index, and the chunks"

    with patch.object(windows_module, "GAP_SIZE_BYTES_MAX", gap_max):
        in_tier(read)


def test_each_read_but_the_first_says_what_follows_it_in_its_fragment() -> None:
    async def read(reader: StreamReader, spans: Spans) -> None:
        tables = await tables_of(reader)
        spans.asked.clear()
        windows = reader.windows(0)
        async for _ in windows:
            pass
        await windows.aclose()

        ends = {key: int(table["position"][-1] + table["size_bytes"][-1]) for key, table in tables.items()}
        reads = [(key, span) for key, span in spans.asked if span.start < ends[key]]
        assert [span.follows for _, span in reads[:1]] == [0], "a reader of one message wants no more"
        for key, span in reads[1:]:
            assert span.start + span.length + span.follows == ends[key]

    with (
        patch.object(windows_module, "FIRST_WINDOW_SIZE_BYTES", CHUNK_SIZE_BYTES),
        patch.object(windows_module, "READ_WINDOW_SIZE_BYTES", 2 * CHUNK_SIZE_BYTES),
    ):
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


def test_a_consumer_of_one_message_pays_for_one_index_and_one_window() -> None:
    """Also if a lookup read the index before, and if another fragment follows."""

    async def act(reader: StreamReader, spans: Spans) -> None:
        newest_ms = await reader.last_timestamp_ms()
        assert newest_ms is not None
        offset = await reader.offset_of(AtTime(newest_ms))
        found = len(spans.asked)
        batches = reader.messages(offset)
        assert (await anext(batches)).offset == offset
        await batches.aclose()
        assert (found, len(spans.asked)) == (1, 2)

        async with aclosing(reader.windows(0)) as windows:
            await anext(windows)
            assert len(spans.asked) == 4
            await anext(windows)  # now the next fragment is wanted
            assert len(spans.asked) >= 6

    in_tier(act)
