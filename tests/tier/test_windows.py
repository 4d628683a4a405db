"""Reading ahead, and writing from handles of every kind: what a review found, held for good."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
from offload.errors import OffloadError
from offload.formats.root import encode_root
from offload.model.chunk_table import ChunkTable, row_from, row_holding
from offload.model.entry import entries_of_rows
from offload.model.manifest import StreamState
from offload.store.memory import MemoryStore
from offload.store.wrap import StoreDecorator
from offload.tasks import run_each


class Held(StoreDecorator):
    """A store whose reads of fragments wait for `gate`, or fail once with `error`."""

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
    """Take windows until one does not come in time."""
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


def test_a_window_that_fails_is_not_passed_over() -> None:
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


def test_a_reader_holds_the_indexes_of_few_fragments_however_many_there_are() -> None:
    async def main(offloader: LedgerOffloader) -> None:
        reader = await written(offloader, MemoryHandle([chunk_at(i, size_bytes=100) for i in range(40)]))
        windows = reader.windows(0)
        most = 0
        async for _ in windows:
            most = max(most, len(windows._handles))
        await windows.aclose()

        assert reader.manifest.fragments == 40
        assert most <= 6

    run_on(MemoryStore(), main, fragment_size_bytes=1)


def test_a_handle_of_a_tier_is_a_source_for_another() -> None:
    """Its chunks lie in several objects, so windows end where one object does."""

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
    """A handle whose table is not what it says it holds."""

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
    """Invariant 1: what is committed has no hole, whatever a source says."""

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


def test_offsets_beyond_what_floats_can_tell_apart_are_told_apart() -> None:
    """From 2**53 on, NumPy would compare an integer with a u64 column as floats."""
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


def test_verify_of_an_object_that_may_not_be_read_is_an_error_of_ours() -> None:
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


def test_a_strangers_key_does_not_hold_up_the_list_of_streams() -> None:
    store = MemoryStore()

    async def main(offloader: LedgerOffloader) -> None:
        await written(offloader, MemoryHandle([chunk_at(0)]))
        await store.put("x/\U0010ffffz", Body.of(b""))

        assert await asyncio.wait_for(offloader.streams(), 60) == ["orders"]

    run_on(store, main)


def test_nothing_is_deleted_while_a_stream_is_rebuilt() -> None:
    """A root that is being rebuilt names nothing yet; that condemns nothing."""
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


def test_a_source_with_other_chunk_boundaries_has_no_chunk_where_one_was() -> None:
    """Also where the offset lies within the last chunk of a ledger."""
    whole = build_chunk([b"x"] * 12, offset=0, timestamp_ms=0, epoch=2)
    snapshot = Snapshot(ledgers=[MemoryHandle([whole])], first_offset=0, next_offset=12)

    assert asyncio.run(snapshot.chunk_at(5)) is None
    assert asyncio.run(snapshot.chunk_at(0)) == whole


def test_the_first_error_ends_the_others_and_comes_alone() -> None:
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
