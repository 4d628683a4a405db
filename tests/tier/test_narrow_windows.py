"""Tests of windows of a part of a stream: exactly the requested chunks are delivered, by few requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_conformance import ledger_of
from row_choices import Offsets

from offload import ObjectStoreOffloader, StreamReader, StreamWriter
from offload.cache.block_cache import BlockCache
from offload.contracts.store import Buffer, Span
from offload.ground.errors import Corrupt, Misuse, TryAgain
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry, entries_of_rows
from offload.model.position import AtTime
from offload.read import windows as windows_module
from offload.read.reader import StreamWindows
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

RECORDS = 24
"""One record to a chunk, in four ledgers of six, and so in four fragments."""

CHUNK_SIZE_BYTES = len(ledger_of(1).chunks[0])


def in_tier(
    act: Callable[[StreamReader, Spans], Awaitable[None]],
    *,
    cached: bool = False,
    records: int = RECORDS,
) -> None:
    """Run `act` with a reader of a stream of `records` chunks and the record of its requests."""

    async def scenario() -> None:
        spans = Spans(MemoryStore())
        async with ObjectStoreOffloader(spans) as offloader:
            writer = await StreamWriter.claim(offloader, "orders")
            await writer.offload([ledger_of(6, first_offset=offset) for offset in range(0, records, 6)])
            spans.asked.clear()
            cache = BlockCache(2**20, step_size_bytes=2 * CHUNK_SIZE_BYTES) if cached else None
            await act(StreamReader(offloader, writer.manifest, cache=cache), spans)
            if cache is not None:
                await cache.aclose()

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


async def tables_of(reader: StreamReader) -> dict[str, ChunkTable]:
    """Return the table of each fragment, by its key."""
    found = {}
    view = reader._view
    async for run in view.walk(0):
        for entry in entries_of_rows(run):
            async with await view.open(entry) as handle:
                found[handle.where] = await handle.table()
    return found


CHOICES = st.builds(
    Offsets, st.sets(st.integers(0, RECORDS - 1)), hasty=st.booleans(), turns=st.integers(0, 3)
)


async def taken_from(windows: StreamWindows, *, by_runs: bool, found: list[int]) -> None:
    """Add the offsets of all windows or, if `by_runs`, of all messages to `found`."""
    if not by_runs:
        async for window in windows:
            assert len(window.data) == window.rows["size_bytes"].sum()
            found.extend(window.rows["offset"].tolist())
        return
    while (run := await windows.next_run()) is not None:
        found.extend(batch.offset for batch in run.batches(1))


@given(
    st.integers(0, RECORDS), st.integers(0, RECORDS), CHOICES, st.integers(0, 4), st.booleans(), st.booleans()
)
def test_exactly_the_requested_chunks_come_in_order(
    start: int, until: int, choice: Offsets, gap_max: int, cached: bool, by_runs: bool
) -> None:
    found: list[int] = []

    async def read(reader: StreamReader, spans: Spans) -> None:
        windows = reader.windows(start, until=until, rows_of=choice)
        await taken_from(windows, by_runs=by_runs, found=found)
        await windows.aclose()
        opened = {int(key.split("/data/")[1].split(".")[0]) for key, _ in spans.asked}
        if choice.hasty:
            assert opened <= {offset // 6 * 6 for offset in choice.wanted}

    with patch.object(windows_module, "GAP_SIZE_BYTES_MAX", gap_max * CHUNK_SIZE_BYTES):
        in_tier(read, cached=cached)

    assert found == sorted(each for each in choice.wanted if start <= each < until)
    for asked in choice.asked:
        assert start <= asked.start, "it is asked about the range alone"
        assert asked.stop <= until


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("turns", [0, 1, 2, 5, 9])
def test_a_choice_goes_on_if_the_wait_for_it_is_cancelled(turns: int, cached: bool) -> None:
    """Each wait is cancelled before the choice can answer."""
    choice = Offsets([1, 8, 9, 20], turns=40)
    found: list[int] = []

    async def read(reader: StreamReader, spans: Spans) -> None:
        windows = reader.windows(0, rows_of=choice)
        for _ in range(2000):
            waiting = asyncio.ensure_future(anext(windows, None))
            for _ in range(turns + 1):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                window = await waiting
            except asyncio.CancelledError:
                continue
            if window is None:
                break
            found.extend(window.rows["offset"].tolist())
        else:
            pytest.fail("the choice never answers")
        await windows.aclose()

    in_tier(read, cached=cached)

    assert found == [1, 8, 9, 20]
    assert len(choice.asked) == 3, "it is asked once about each fragment"


class Waiting(Offsets):
    """A choice that never answers about rows."""

    def __init__(self, wanted: list[int], *, hasty: bool) -> None:
        super().__init__(wanted, hasty=hasty)
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def of_rows(self, entry: Entry, rows: ChunkTable) -> npt.NDArray[np.bool_]:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        raise AssertionError("nobody sets the event")


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("hasty", [False, True])
def test_a_reader_that_is_closed_ends_the_question_that_waits(hasty: bool, cached: bool) -> None:
    async def read(reader: StreamReader, spans: Spans) -> None:
        choice = Waiting([1], hasty=hasty)
        windows = reader.windows(0, rows_of=choice)
        waiting = asyncio.ensure_future(anext(windows, None))
        await choice.begun.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not choice.ended.is_set()
        await windows.aclose()
        assert choice.ended.is_set()

    in_tier(read, cached=cached)


class Broken(Offsets):
    """A choice that fails when it is asked about the fragment at `at`."""

    def __init__(self, at: int, *, in_entries: bool, error: type[Exception] = TryAgain) -> None:
        super().__init__(range(0, RECORDS, 2))
        self.at, self.in_entries, self.error = at, in_entries, error

    async def of_entries(self, entries: Entries) -> npt.NDArray[np.uint8]:
        if self.in_entries:
            raise self.error("the index does not answer")
        return await super().of_entries(entries)

    async def of_rows(self, entry: Entry, rows: ChunkTable) -> npt.NDArray[np.bool_]:
        if entry.first_offset == self.at:
            raise self.error("the index does not answer")
        return await super().of_rows(entry, rows)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(("at", "in_entries"), [(0, False), (6, False), (18, False), (0, True)])
@pytest.mark.parametrize("error", [TryAgain, OSError])
def test_an_error_of_a_choice_comes_after_all_chunks_before_it(
    error: type[Exception], at: int, in_entries: bool, cached: bool
) -> None:
    found: list[int] = []

    async def read(reader: StreamReader, spans: Spans) -> None:
        windows = reader.windows(0, rows_of=Broken(at, in_entries=in_entries, error=error))
        for _ in range(2):
            with pytest.raises(error, match="the index"):
                await taken_from(windows, by_runs=False, found=found)
        await windows.aclose()

    in_tier(read, cached=cached)

    assert found == [*range(0, at, 2)]


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("question", ["of_entries", "of_rows"])
def test_a_choice_that_leaves_a_chunk_without_an_answer_is_refused(question: str, cached: bool) -> None:
    async def one_short(choice: Offsets, *about: Any) -> np.ndarray:
        return (await getattr(Offsets, question)(choice, *about))[1:]

    async def read(reader: StreamReader, spans: Spans) -> None:
        short = type("Short", (Offsets,), {question: one_short})
        windows = reader.windows(0, rows_of=short([1, 8]))
        with pytest.raises(Misuse, match=r"Short answered \d times about \d"):
            await anext(windows)
        await windows.aclose()

    in_tier(read, cached=cached)


def test_a_read_of_one_fragment_of_a_thousand_opens_no_other() -> None:
    """If the entries do not show it, the table of each fragment is fetched."""

    async def read(reader: StreamReader, spans: Spans) -> None:
        for cached, (hasty, requests) in product([False, True], [(True, 2), (False, 1001)]):
            found: list[int] = []
            cache = BlockCache(2**20) if cached else None
            again = StreamReader(reader._catalogue, reader.manifest, cache=cache)
            spans.asked.clear()
            windows = again.windows(0, rows_of=Offsets([3003], hasty=hasty))
            await taken_from(windows, by_runs=False, found=found)
            await windows.aclose()
            assert found == [3003]
            assert len(spans.asked) == requests
            if cache is not None:
                await cache.aclose()

    in_tier(read, records=6000)


@given(
    st.lists(st.sampled_from("ww..DW"), min_size=RECORDS, max_size=RECORDS),
    st.integers(0, 4).map(lambda chunks: chunks * CHUNK_SIZE_BYTES),
    st.booleans(),
    st.booleans(),
)
def test_damage_that_nobody_wants_hides_nothing(
    chunks: list[str], gap_max: int, cached: bool, by_runs: bool
) -> None:
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
        windows = reader.windows(0, rows_of=Offsets(wanted))
        try:
            await taken_from(windows, by_runs=by_runs, found=found)
            assert not wanted & damaged
        except Corrupt:
            assert wanted & damaged, "damage that nobody wants is not reported"
        await windows.aclose()

    with patch.object(windows_module, "GAP_SIZE_BYTES_MAX", gap_max):
        in_tier(read, cached=cached)

    assert found == sorted(each for each in wanted if each < min(wanted & damaged, default=RECORDS))


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("at", [6, 12, 18])
@pytest.mark.parametrize("damaged", [1, 7, 13])
def test_damage_that_nobody_wants_hides_nothing_before_an_error_of_a_choice(
    damaged: int, at: int, cached: bool
) -> None:
    found: list[int] = []

    async def read(reader: StreamReader, spans: Spans) -> None:
        for key, table in (await tables_of(reader)).items():
            raw = bytearray(spans.objects[key])
            for position in table["position"][table["offset"] == damaged].tolist():
                raw[position + 60] ^= 1
            spans.objects[key] = bytes(raw)
        windows = reader.windows(0, rows_of=Broken(at, in_entries=False))
        for _ in range(2):
            with pytest.raises(TryAgain, match="the index"):
                await taken_from(windows, by_runs=False, found=found)
        await windows.aclose()

    in_tier(read, cached=cached)

    assert found == [*range(0, at, 2)]


@pytest.mark.parametrize(("gap_max", "requests"), [(0, 3), (CHUNK_SIZE_BYTES, 2), (2 * CHUNK_SIZE_BYTES, 1)])
def test_small_gaps_are_fetched_and_not_delivered(gap_max: int, requests: int) -> None:
    async def read(reader: StreamReader, spans: Spans) -> None:
        windows = reader.windows(0, until=6, rows_of=Offsets([0, 2, 5]))
        assert [window.rows["offset"].tolist() async for window in windows] == [[0], [2], [5]]
        await windows.aclose()
        assert len(spans.asked) == 1 + requests, "the index, and the chunks"

    with patch.object(windows_module, "GAP_SIZE_BYTES_MAX", gap_max):
        in_tier(read)


@pytest.mark.parametrize(
    ("wanted", "gap_max", "requests"),
    [([0, 1, 3, 5], 0, 4), ([0, 1, 3, 5], CHUNK_SIZE_BYTES, 3), ([0, 3], 2 * CHUNK_SIZE_BYTES, 2)],
)
def test_a_cache_fetches_small_gaps_in_the_blocks_around_them(
    wanted: list[int], gap_max: int, requests: int
) -> None:
    """A block may end before a gap. Then the next one begins with a wanted chunk."""

    async def read(reader: StreamReader, spans: Spans) -> None:
        cache = BlockCache(2**20, step_size_bytes=CHUNK_SIZE_BYTES)
        again = StreamReader(reader._catalogue, reader.manifest, cache=cache)
        windows = again.windows(0, until=6, rows_of=Offsets(wanted))
        assert [window.rows["offset"].tolist() async for window in windows] == [[each] for each in wanted]
        await windows.aclose()
        assert len(spans.asked) == 1 + requests, "the index, and the blocks"
        await cache.aclose()

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
