"""A store of records keeps the contract of a store, and refuses what the service cannot take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import pytest
from campaign import CAMPAIGN, few, some
from offload_conformance import OffloaderConformance, StoreConformance
from records.in_memory import LIMITS, MemoryRecords

from offload import (
    Body,
    LedgerOffloader,
    ObjectStore,
    ObjectStoreOffloader,
    Record,
    RecordStore,
    StreamWriter,
    TierPlan,
)
from offload.contracts.capabilities import CREATE_SIZE_BYTES_LEAST
from offload.ground.errors import AlreadyExists, Corrupt, Denied, Misuse
from offload.store.memory import MemoryStore

RECORDS = few(
    "cases of clauses on records in memory: each clause keeps one of three, and a plain store has all", 3
)


@RECORDS
class TestRecordStore(StoreConformance):
    listing_keys = 1_100
    model_examples = 30 if CAMPAIGN else 10

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def open_store(self) -> ObjectStore:
        return RecordStore(MemoryRecords(self.rows))

    def keys_in_store(self) -> set[str]:
        return {key.decode() for key in self.rows}


@RECORDS
@some("clauses of an offloader with its roots in records; make test has one of three, and all in memory", 3)
class TestCommitStore(OffloaderConformance):
    """The roots are records, and the data is on another store."""

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.data: dict[str, bytes] = {}
        self.rows: dict[bytes, bytes] = {}

    def open_offloader(self) -> LedgerOffloader:
        return ObjectStoreOffloader(
            MemoryStore(objects=self.data),
            plan=TierPlan(commit_store="memory-records://here"),
            open_store=lambda url: RecordStore(MemoryRecords(self.rows)),
        )

    def keys_in_store(self) -> set[str]:
        return self.data.keys() | {key.decode() for key in self.rows}


def test_an_object_above_the_limit_is_refused_before_any_request() -> None:
    service = MemoryRecords({}, replace(LIMITS, value_size_bytes_max=10))
    store = RecordStore(service)

    async def windows() -> AsyncIterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    async def main() -> None:
        with pytest.raises(Misuse, match="at most 10 bytes in a record, and 'root' has 11"):
            await store.create("root", b"x" * 11)
        with pytest.raises(Misuse, match="at most 10 bytes"):
            await store.put("root", Body(size_bytes=11, windows=windows))
        assert service.calls == []
        await store.create("root", b"x" * 10)

    asyncio.run(main())
    assert service.rows == {b"root": b"x" * 10}


def test_a_service_that_is_too_small_for_a_full_root_gets_no_tier() -> None:
    """It is refused when the tier is made, so that no stream stops years later, when its root has grown."""
    service = MemoryRecords({}, replace(LIMITS, value_size_bytes_max=CREATE_SIZE_BYTES_LEAST - 1))
    data = MemoryStore()
    plan = TierPlan(commit_store="memory-records://here")
    tier = ObjectStoreOffloader(data, plan=plan, open_store=lambda url: RecordStore(service))

    with pytest.raises(Denied, match="one create takes 1048575 bytes, and a full root is larger"):
        asyncio.run(StreamWriter.claim(tier, "orders"))

    assert (service.calls, data.objects) == ([], {})


def test_a_key_above_the_limit_is_refused_by_every_call() -> None:
    service = MemoryRecords({}, replace(LIMITS, key_size_bytes_max=300))
    store, key = RecordStore(service), "ü" * 100 + "/" + "ü" * 50

    async def main() -> None:
        for call in (
            store.get(key),
            store.create(key, b""),
            store.put(key, Body.of(b"")),
            store.delete([key]),
        ):
            with pytest.raises(Misuse, match="at most 300 bytes"):
                await call

    asyncio.run(main())
    assert service.calls == []


def test_a_listing_of_a_short_folder_is_one_request() -> None:
    """A commit lists the roots of its stream."""
    roots = {f"orders/metadata/root.{number:020}.manifest".encode(): b"" for number in range(17)}
    service = MemoryRecords({**roots, b"orders/stream.anchor": b"", b"p/metadata/root.1": b""})

    async def main() -> list[str]:
        return [row.key async for row in RecordStore(service).list("orders/metadata/root.")]

    assert [key.encode() for key in asyncio.run(main())] == sorted(roots)
    assert service.calls == ["list"]


def test_a_strangers_record_in_a_listing_is_named() -> None:
    store = RecordStore(MemoryRecords({b"a\x80": b""}))

    async def main() -> None:
        async for _ in store.list(""):
            pass

    with pytest.raises(Misuse, match="no object of a tier"):
        asyncio.run(main())


PAGES: dict[str, Callable[[list[Record]], list[Record]]] = {
    "the page before": lambda rows: rows[:1],
    "rows that go back": lambda rows: rows[::-1],
    "one row twice": lambda rows: [rows[0], rows[0], *rows[1:]],
    "a row behind the end": lambda rows: [*rows[:-1], Record(b"z", 1)],
    "more rows than asked for": lambda rows: [*rows, *rows],
}


@pytest.mark.parametrize("lie", PAGES)
def test_a_page_that_was_not_asked_for_ends_the_listing_with_an_error(lie: str) -> None:
    """Otherwise a page that does not advance would be listed for ever."""

    class Wrong(MemoryRecords):
        async def list(self, first: bytes, end: bytes, *, limit: int) -> Sequence[Record]:
            begin = b"a" if lie == "the page before" else first
            rows = list(await super().list(begin, end, limit=limit))
            return rows * limit if lie == "the page before" else PAGES[lie](rows)

    async def scenario() -> None:
        store = RecordStore(Wrong({b"a/%03d" % rank: b"x" for rank in range(100)}))
        with pytest.raises(Corrupt, match=r"memory-records://here.*page of a listing"):
            async with asyncio.timeout(60):
                [row async for row in store.list("a/")]

    asyncio.run(scenario())


def test_a_create_that_loses_names_its_key() -> None:
    store = RecordStore(MemoryRecords({b"root": b""}))

    with pytest.raises(AlreadyExists, match="'root'"):
        asyncio.run(store.create("root", b"later"))
