"""Tests of reading ahead and of writing from handles of every kind; each keeps a bug found in
review fixed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from offload_conformance import ledger_of

from offload import (
    Attempt,
    Conflict,
    Corrupt,
    Denied,
    Env,
    LedgerOffloader,
    MemoryHandle,
    Misuse,
    NoSpace,
    ObjectStoreOffloader,
    ReadHandle,
    Snapshot,
    StreamReader,
    StreamWriter,
    TierOptions,
    TryAgain,
    build_chunk,
    verify,
)
from offload.commit.guest import Delete
from offload.commit.log import RootLog
from offload.contracts.store import Body, Span, Suffix
from offload.formats.root import encode_root
from offload.ground.errors import OffloadError
from offload.ground.tasks import run_each
from offload.model.chunk_table import ChunkTable, row_from, row_holding
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import Manifest, StreamState
from offload.read.batches import Window
from offload.read.snapshots import chunk_at as chunk_in
from offload.read.windows import WindowStream
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator


class Held(StoreDecorator):
    """A store whose reads of fragments wait for `gate` or fail once with `error`."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: OffloadError | None = None

    async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
        if key.endswith(".fragment"):
            await self.gate.wait()
            if self.error is not None:
                error, self.error = self.error, None
                raise error
        return await self.inner.get(key, span)


def chunk_at(offset: int, *, size_bytes: int = 300_000) -> bytes:
    return build_chunk([bytes(size_bytes)], offset=offset, timestamp_ms=offset, epoch=1)


def run_on(store: Any, main: Callable[[LedgerOffloader], Awaitable[None]], **options: int) -> None:
    async def run() -> None:
        async with ObjectStoreOffloader(store, options=TierOptions(**options)) as offloader:
            await main(offloader)

    asyncio.run(run())


async def written(offloader: LedgerOffloader, *handles: ReadHandle) -> StreamReader:
    writer = await StreamWriter.claim(offloader, "orders", first_offset=handles[0].first_offset)
    await writer.offload(handles)
    return StreamReader(offloader, writer.manifest)


async def drained(windows: Any, delivered: list[int]) -> None:
    """Take windows until one does not arrive in time."""
    while True:
        window = await asyncio.wait_for(anext(windows), 0.05)
        delivered += window.rows["offset"].tolist()


async def rest_of(windows: Any) -> list[int]:
    return [int(offset) async for window in windows for offset in window.rows["offset"]]


def test_a_wait_that_is_cancelled_loses_no_window() -> None:
    async def main(offloader: LedgerOffloader) -> None:
        reader = await written(offloader, MemoryHandle([chunk_at(i) for i in range(60)]))
        windows = reader.windows(0)
        delivered = (await anext(windows)).rows["offset"].tolist()
        held.gate.clear()
        with pytest.raises(TimeoutError):
            await drained(windows, delivered)
        held.gate.set()

        assert delivered + await rest_of(windows) == list(range(60))
        await windows.aclose()

    held = Held(MemoryStore())
    run_on(held, main)


@pytest.mark.parametrize("turns", range(8))
def test_a_wait_that_is_cancelled_while_a_fragment_opens_loses_no_window(turns: int) -> None:
    """Every window needs another fragment. Each wait is cancelled after so many turns of the loop."""

    async def main(offloader: LedgerOffloader) -> None:
        reader = await written(offloader, MemoryHandle([chunk_at(i, size_bytes=10) for i in range(6)]))
        windows = reader.windows(0)
        delivered: list[int] = []
        for _ in range(10):
            waiting = asyncio.ensure_future(anext(windows))
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            for window in await asyncio.gather(waiting, return_exceptions=True):
                if isinstance(window, Window):
                    delivered += window.rows["offset"].tolist()

        assert delivered + await rest_of(windows) == list(range(6))
        await windows.aclose()

    run_on(MemoryStore(), main, fragment_size_bytes=1)


async def offsets_despite_cancels(windows: WindowStream, turns: int) -> list[int]:
    """Cancel each of 30 waits after so many turns of the loop, then read to the end or to damage."""
    delivered: list[int] = []
    for _ in range(30):
        waiting = asyncio.ensure_future(anext(windows))
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, Corrupt):
            delivered += (await waiting).rows["offset"].tolist()
    with suppress(Corrupt):
        async for window in windows:
            delivered += window.rows["offset"].tolist()
    return delivered


@pytest.mark.parametrize("turns", range(16))
def test_a_wait_that_is_cancelled_loses_no_sound_chunk_before_a_damaged_one(turns: int) -> None:
    async def main(offloader: LedgerOffloader) -> None:
        reader = await written(offloader, MemoryHandle([chunk_at(i, size_bytes=1000) for i in range(6)]))
        [key] = [key for key in store.objects if key.endswith(".fragment")]
        raw = bytearray(store.objects[key])
        raw[raw.index(chunk_at(3, size_bytes=1000)) + 500] ^= 1
        store.objects[key] = bytes(raw)
        windows = reader.windows(0)

        assert await offsets_despite_cancels(windows, turns) == [0, 1, 2]
        with pytest.raises(Corrupt, match="stored chunk checksum"):
            await anext(windows)
        await windows.aclose()

    store = MemoryStore()
    run_on(store, main)


class SlowToClose:
    """A view of a stream, or a handle that it opens. A handle takes a few turns of the loop to close."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    async def open(self, entry: Entry) -> SlowToClose:
        return SlowToClose(await self.of.open(entry))

    async def aclose(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await self.of.aclose()


@pytest.mark.parametrize("turns", range(8))
def test_a_wait_that_is_cancelled_while_a_handle_closes_loses_no_window(turns: int) -> None:
    async def main(offloader: LedgerOffloader) -> None:
        reader = await written(offloader, MemoryHandle([chunk_at(i, size_bytes=10) for i in range(6)]))
        assert isinstance(reader.manifest, Manifest)
        view: Any = SlowToClose(offloader.view_of(reader.manifest))
        windows = WindowStream(view, 0, in_flight_max=2)

        assert await offsets_despite_cancels(windows, turns) == list(range(6))
        await windows.aclose()

    run_on(MemoryStore(), main, fragment_size_bytes=1)


def test_a_failed_window_is_not_skipped() -> None:
    async def main(offloader: LedgerOffloader) -> None:
        reader = await written(offloader, MemoryHandle([chunk_at(i) for i in range(4)]))
        windows = reader.windows(0)
        await anext(windows)
        held.error = TryAgain("not now")

        with pytest.raises(TryAgain):
            await rest_of(windows)
        with pytest.raises(TryAgain):
            await anext(windows)
        await windows.aclose()

    held = Held(MemoryStore())
    run_on(held, main)


def test_a_reader_holds_the_indexes_of_few_fragments_at_once() -> None:
    async def main(offloader: LedgerOffloader) -> None:
        reader = await written(offloader, MemoryHandle([chunk_at(i, size_bytes=100) for i in range(40)]))
        windows = reader.windows(0)
        most = 0
        async for _ in windows:
            most = max(most, len(windows._source._handles))
        await windows.aclose()

        assert reader.manifest.fragments == 40
        assert most <= 6

    run_on(MemoryStore(), main, fragment_size_bytes=1)


def test_a_handle_of_a_tier_can_be_the_source_for_another() -> None:
    """Its chunks are in several objects, so windows end at the end of an object."""

    async def main(offloader: LedgerOffloader) -> None:
        reader = await written(offloader, MemoryHandle([chunk_at(i, size_bytes=1000) for i in range(8)]))
        [entry, *_] = entries_of_rows(reader.manifest.entries)
        attempt = Attempt(stream="orders", ledger_id=entry.ledger_id, uid=entry.attempt)
        async with ObjectStoreOffloader(MemoryStore()) as other:
            copied = await written(other, await offloader.read_offloaded(attempt))

            assert copied.manifest.messages == 8
            assert (await verify(other)).damages == []

    run_on(MemoryStore(), main, fragment_size_bytes=2000)


class Claims(MemoryHandle):
    """A handle whose table differs from the range that it claims."""

    def __init__(self, chunks: list[bytes], rows: Callable[[ChunkTable], ChunkTable]) -> None:
        super().__init__(chunks)
        self.rows = rows

    async def table(self) -> ChunkTable:
        return self.rows(await super().table())


@pytest.mark.parametrize(
    "rows",
    [lambda table: table[[0, 1, 4, 5]], lambda table: table[1:], lambda table: table[:-1]],
    ids=["a hole", "begins later", "ends before"],
)
def test_a_table_must_cover_what_its_handle_claims(rows: Callable[[ChunkTable], ChunkTable]) -> None:
    """Invariant 1: committed data has no hole, even if a source's claim is wrong."""

    async def main(offloader: LedgerOffloader) -> None:
        with pytest.raises(Corrupt, match="table of chunks"):
            await written(offloader, Claims([chunk_at(i) for i in range(6)], rows))

        assert (await offloader.load_manifest("orders")).records == 0

    run_on(MemoryStore(), main)


def test_a_handle_of_another_ledger_is_refused() -> None:
    async def main(offloader: LedgerOffloader) -> None:
        writer = await StreamWriter.claim(offloader, "orders")
        [attempt] = await writer.prepare([77])

        with pytest.raises(Misuse):
            await offloader.offload(ledger_of(3), attempt, manifest=writer.manifest, extra_metadata={})

    run_on(MemoryStore(), main)


def test_offsets_beyond_the_precision_of_floats_are_distinguished() -> None:
    """From 2**53 on, NumPy would compare an integer and a u64 column as floats."""
    first = 2**60

    async def main(offloader: LedgerOffloader) -> None:
        chunks = [
            build_chunk([b"a", b"b", b"c"], offset=first + 3 * i, timestamp_ms=i, epoch=1) for i in range(5)
        ]
        reader = await written(offloader, MemoryHandle(chunks))
        table = await MemoryHandle(chunks).table()

        assert [row_holding(table, first + i) for i in (0, 2, 3, 14)] == [0, 0, 1, 4]
        assert row_from(table, first + 4) == 2
        async for batch in reader.messages(first + 7):
            assert batch.offset == first + 7
            break

    run_on(MemoryStore(), main)


def test_an_upload_that_fails_keeps_its_cause() -> None:
    class Full(StoreDecorator):
        async def put(self, key: str, body: Body) -> None:
            try:
                raise OSError(28, "No space left on device")
            except OSError as error:
                raise NoSpace("full") from error

    async def main(offloader: LedgerOffloader) -> None:
        with pytest.raises(NoSpace) as refused:
            await written(offloader, MemoryHandle([chunk_at(0)]))

        assert isinstance(refused.value.__cause__, OSError)

    run_on(Full(MemoryStore()), main)


def test_a_verify_of_a_forbidden_object_raises_one_of_our_errors() -> None:
    class Locked(StoreDecorator):
        async def get(self, key: str, span: Span | Suffix | None = None) -> bytes:
            if key.endswith(".fragment"):
                raise Denied(f"no permission for {key}")
            return await self.inner.get(key, span)

    store = MemoryStore()

    async def main(offloader: LedgerOffloader) -> None:
        await written(offloader, MemoryHandle([chunk_at(0)]))
        with pytest.raises(Denied):
            await verify(Locked(store))

    run_on(store, main)


def test_a_foreign_key_does_not_break_the_list_of_streams() -> None:
    store = MemoryStore()

    async def main(offloader: LedgerOffloader) -> None:
        await written(offloader, MemoryHandle([chunk_at(0)]))
        await store.put("x/\U0010ffffz", Body.of(b""))

        assert await asyncio.wait_for(offloader.streams(), 60) == ["orders"]

    run_on(store, main)


def test_no_attempt_is_deleted_while_a_stream_is_rebuilt() -> None:
    """The root during a rebuild names nothing yet, and this condemns nothing."""
    store = MemoryStore()

    async def main(offloader: LedgerOffloader) -> None:
        reader = await written(offloader, MemoryHandle([chunk_at(0)]))
        newest = reader.manifest
        [entry] = entries_of_rows(newest.entries)
        nothing = Delete(incarnation=newest.incarnation).apply(newest)
        rebuilding = replace(nothing, version=newest.version + 1, state=StreamState.REBUILDING)
        log = RootLog(store=store, stream="orders", env=Env())
        await store.put(log.keys.root(rebuilding.version), Body.of(encode_root(rebuilding)))
        before = set(store.objects)

        with pytest.raises(Conflict):
            await offloader.delete_offloaded(Attempt(stream="orders", ledger_id=0, uid=entry.attempt))

        assert set(store.objects) == before

    run_on(store, main)


def test_a_source_with_other_chunk_boundaries_lacks_the_committed_chunk() -> None:
    """This is also true if the offset is within the last chunk of a ledger."""
    whole = build_chunk([b"x"] * 12, offset=0, timestamp_ms=0, epoch=2)
    snapshot = Snapshot(ledgers=[MemoryHandle([whole])], first_offset=0, next_offset=12)

    assert asyncio.run(chunk_in(snapshot, 5)) is None
    assert asyncio.run(chunk_in(snapshot, 0)) == whole


def test_the_first_error_ends_the_other_tasks_and_is_raised_alone() -> None:
    ended: list[int] = []

    async def work(item: int) -> None:
        try:
            if item == 2:
                raise TryAgain("two")
            await asyncio.sleep(30)
        finally:
            ended.append(item)

    with pytest.raises(TryAgain, match="two"):
        asyncio.run(run_each(work, range(10), at_once=3))

    assert sorted(ended) == [0, 1, 2]
