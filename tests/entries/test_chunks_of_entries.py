"""Tests of the chunks that are made of entries: their bytes, and where they are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from entry_store import EntryStore, Ledger, bodies, synced
from hypothesis import given
from hypothesis import strategies as st

from offload import Misuse, ObjectStoreOffloader, StreamReader, build_chunk, open_tier
from offload.contracts.entries import EntryRun
from offload.entries import chunks as chunks_module
from offload.entries.chunks import CHUNK_DATA_SIZE_BYTES, CHUNK_ENTRIES_MAX, Cuts, EntryHandle
from offload.formats.entries import encode_entries, encode_run
from offload.model.chunk_table import ChunkTable
from offload.store.memory import MemoryStore

sizes_of_entries = st.lists(
    st.one_of(
        st.integers(0, 20),
        st.integers(400, 700),
        st.integers(CHUNK_DATA_SIZE_BYTES // 3, CHUNK_DATA_SIZE_BYTES + 5),
    ),
    min_size=1,
    max_size=12,
)


times_of_entries = st.one_of(
    st.integers(-5, 5),
    st.integers(-900, 900),
    st.sampled_from([0, 999, 1000, 1001, -(2**63), 2**63 - 1]),
)


def entry(rank: int, size_bytes: int) -> bytes:
    """Return an entry that differs from the others of its size."""
    return (b"%d," % rank * (size_bytes // 2 + 1))[:size_bytes]


def chunks_by_hand(entries: Sequence[bytes], times_ms: Sequence[int]) -> bytes:
    """Return the chunks of one ledger, built one entry after the other."""
    runs: list[list[int]] = []
    size = low = high = 0
    for rank, body in enumerate(entries):
        size += 4 + len(body)
        low, high = min(low, times_ms[rank]), max(high, times_ms[rank])
        is_full = size > CHUNK_DATA_SIZE_BYTES or high - low > 1000
        if not runs or is_full or len(runs[-1]) == CHUNK_ENTRIES_MAX:
            runs.append([])
            low = high = times_ms[rank]
            size = 4 + len(body)
        runs[-1].append(rank)
    return b"".join(
        build_chunk(
            [entries[rank] for rank in run],
            offset=run[0],
            timestamp_ms=max(times_ms[rank] for rank in run),
            epoch=0,
        )
        for run in runs
    )


async def chunks_of(store: EntryStore) -> tuple[ChunkTable, bytes]:
    """Return the table and all chunks of a store's only ledger."""
    async with await store.stream_of_this_process.snapshot() as snapshot:
        (handle,) = snapshot.ledgers
        rows = await handle.table()
        return rows, b"".join([bytes(await handle.read(each)) for each in handle.windows(rows)])


@given(st.lists(st.binary(max_size=900), max_size=30), st.integers(0, 3), st.data())
def test_a_run_is_encoded_as_its_entries_are(entries: list[bytes], gap: int, data: st.DataObject) -> None:
    """This also holds if other bytes lie between the entries."""
    bias = data.draw(st.sampled_from([1, 1000]), "small or large entries")
    entries = [body[: len(body) // bias + 1] for body in entries]
    buffer, starts, ends = b"", list[int](), list[int]()
    for body in entries:
        buffer += b"\xff" * gap
        starts.append(len(buffer))
        buffer += body
        ends.append(len(buffer))

    encoded = encode_run(buffer + b"\xff", np.array(starts, np.uint64), np.array(ends, np.uint64))

    assert bytes(encoded) == encode_entries(entries)


@given(sizes_of_entries, st.booleans(), st.data())
def test_chunks_are_those_of_build_chunk(sizes: list[int], has_sizes: bool, data: st.DataObject) -> None:
    entries = [entry(rank, size) for rank, size in enumerate(sizes)]
    times = data.draw(st.lists(times_of_entries, min_size=len(entries), max_size=len(entries)))
    store = EntryStore([Ledger(7, entries, times, is_sealed=True)], has_sizes=has_sizes)

    _, chunks = asyncio.run(chunks_of(store))

    assert chunks == chunks_by_hand(entries, times)


@given(sizes_of_entries, st.data())
def test_a_cut_that_goes_on_is_that_of_the_whole(sizes: list[int], data: st.DataObject) -> None:
    stops = sorted(data.draw(st.lists(st.integers(0, len(sizes)), max_size=4)))
    whole, pieces = Cuts(0), Cuts(0)
    array = np.array(sizes, np.uint64)
    drawn = data.draw(st.lists(times_of_entries, min_size=len(sizes), max_size=len(sizes)))
    times = np.array(drawn, np.int64)

    whole.add(array, times)
    for start, stop in zip([0, *stops], [*stops, len(sizes)], strict=True):
        pieces = pieces.copy()
        pieces.add(array[start:stop], times[start:stop])

    assert pieces.table(5).tolist() == whole.table(5).tolist()


def test_a_chunk_ends_before_its_entries_span_more_than_a_second() -> None:
    """Also if the span is found only far behind the first entries, or if times fall."""
    times = [*range(900), 1000, 1001, *[1500] * 400, 400, 2501, 2501]
    ledger = Ledger(0, [b"x"] * len(times), times, is_sealed=True)

    rows, chunks = asyncio.run(chunks_of(EntryStore([ledger])))

    assert rows["records"].tolist() == [901, 401, 1, 2]
    assert rows["timestamp_ms"].tolist() == [1000, 1500, 400, 2501]
    assert chunks == chunks_by_hand(ledger.entries, ledger.timestamps_ms)


def test_the_oldest_entry_of_a_span_may_lie_anywhere_in_it() -> None:
    times = [1000, *[500] * 9, 0, *[500] * 200, 1001, 1001]
    cuts = Cuts(0)

    cuts.add(np.ones(len(times), np.uint64), np.array(times, np.int64))

    assert cuts.table(0)["records"].tolist() == [211, 2]


def test_entries_of_one_time_are_cut_by_size_alone() -> None:
    """Nothing is known of the times of entries if a store has one time for all of them."""
    cuts = Cuts(0)

    cuts.add(np.full(5000, 10, np.uint64), 1_700_000_000_000)

    assert cuts.table(0)["records"].tolist() == [5000]


def test_a_tier_that_was_written_with_longer_spans_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version cut by size alone. Its last chunk is compared, and the next one begins behind it."""
    store, tier = EntryStore(), ObjectStoreOffloader(MemoryStore())
    ledger = store.begin(3)

    def grow(first: int) -> None:
        for number in range(first, first + 10):
            ledger.add(b"%d" % number, timestamp_ms=number * 700)

    async def scenario() -> None:
        grow(0)
        with monkeypatch.context() as patched:
            patched.setattr(chunks_module, "CHUNK_SPAN_MS", 2**63)
            assert (await synced(store, tier)).error is None
        grow(10)
        store.restart()
        assert (await synced(store, tier)).error is None
        store.begin(4, b"20")
        assert (await synced(store, tier)).error is None

        assert await bodies(tier) == [b"%d" % number for number in range(21)]
        reader = await StreamReader.open(tier, "orders")
        spans = [len(batch.bodies) async for batch in reader.messages(0)]
        assert spans == [10, 2, 2, 2, 2, 2, 1]

    asyncio.run(scenario())


def test_a_chunk_has_no_more_entries_than_its_header_can_count() -> None:
    """Empty entries count, too."""
    ledger = Ledger(0, [b""] * (2 * CHUNK_ENTRIES_MAX + 1), [1] * (2 * CHUNK_ENTRIES_MAX + 1), is_sealed=True)

    rows, chunks = asyncio.run(chunks_of(EntryStore([ledger])))

    assert rows["records"].tolist() == [CHUNK_ENTRIES_MAX, CHUNK_ENTRIES_MAX, 1]
    assert chunks == chunks_by_hand(ledger.entries, ledger.timestamps_ms)


def test_one_time_for_a_run_is_that_of_each_entry() -> None:
    run = EntryRun.of([b"a", b"bc"], first=0, timestamps_ms=5)
    store = EntryStore([Ledger(0).add(b"a", b"bc").seal()], lies={0: {"run": lambda _: run}})

    rows, _ = asyncio.run(chunks_of(store))

    assert rows["timestamp_ms"].tolist() == [5]


def test_memory_is_bounded_by_windows_and_not_by_the_ledger() -> None:
    """No question asks for more than its answer may have, and the answers are those of windows."""
    asked: list[int] = []

    def noted(run: EntryRun) -> EntryRun:
        asked.append(len(run.data))
        return run

    large = [b"x" * 300_000] * 200
    ledger = Ledger(0, [*[b""] * 1000, *large], [1] * 1200, is_sealed=True)
    store = EntryStore([ledger], lies={0: {"run": noted}})

    asyncio.run(chunks_of(store))

    assert max(asked) < 6 * 2**20
    assert sum(asked) == 2 * 200 * 300_000, "each entry is measured once and read once"


def test_a_ledger_that_grows_is_not_measured_again() -> None:
    store = EntryStore()
    ledger = store.begin(3, *[b"x" * 1000] * 50)

    async def tables() -> list[tuple[int, int]]:
        for _ in range(2):
            async with await store.stream_of_this_process.snapshot() as snapshot:
                await snapshot.ledgers[0].table()
            ledger.add(b"more")
        return store.listed[0].reads

    assert asyncio.run(tables()) == [(50, 50)]


def test_the_time_of_a_chunk_that_was_measured_in_pieces_is_that_of_its_newest_entry() -> None:
    cuts = Cuts(0)
    for timestamp_ms in (5, 9, 7):
        cuts.add(np.array([1, 1], np.uint64), timestamp_ms)

    assert cuts.table(0)["timestamp_ms"].tolist() == [9]


def test_an_older_snapshot_has_its_own_entries_although_a_newer_one_was_measured() -> None:
    """Two snapshots that are taken at once share what was measured."""
    store = EntryStore()
    store.begin(3, *[b"x"] * 60)

    async def records() -> list[int]:
        async with await store.stream_of_this_process.snapshot() as snapshot:
            (newer,) = snapshot.ledgers
            assert isinstance(newer, EntryHandle)
            older = replace(newer, stop=50)
            return [int((await each.table())["records"].sum()) for each in (newer, older)]

    assert asyncio.run(records()) == [60, 50]


@pytest.mark.parametrize("size_bytes", [65 * 2**20])
def test_an_entry_larger_than_a_fragment_is_copied(tmp_path: Path, size_bytes: int) -> None:
    store = EntryStore()
    store.begin(0, b"small", b"\0" * size_bytes, b"small again")

    async def run() -> list[bytes]:
        async with open_tier(str(tmp_path / "tier")) as tier:
            assert (await synced(store, tier)).error is None
            return await bodies(tier)

    assert [len(body) for body in asyncio.run(run())] == [5, size_bytes, 11]


def test_an_entry_larger_than_a_record_is_refused_before_anything_of_it_is_written() -> None:
    """The ledger before it is copied, though both are of one batch."""

    def huge(found: Any) -> Any:
        found.sizes[1] = 2**31
        return found

    store = EntryStore(has_sizes=True, lies={9: {"sizes": huge, "length": 2**40}})
    store.begin(7, b"sound")
    store.begin(9, b"a", b"huge", b"c")
    tier = ObjectStoreOffloader(MemoryStore())

    async def run() -> list[bytes]:
        report = await synced(store, tier)
        assert isinstance(report.error, Misuse)
        assert "ledger 9 of stream 'orders': entry 1 has 2147483648 bytes" in str(report.error)
        return await bodies(tier)

    assert asyncio.run(run()) == [b"sound"]
