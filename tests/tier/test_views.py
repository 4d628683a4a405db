"""Tests of views on our own layout, on a foreign one, and on an offloader with only the four verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from foreign_tier import LinesCatalogue, write_lines
from offload_conformance import ledger_of

from offload import ObjectStoreOffloader, StreamReader, StreamWriter, verify
from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event, Skipped
from offload.contracts.offloader import LedgerOffloader
from offload.ground.errors import Absent, Misuse, NotOffloaded
from offload.model.manifest import CommittedStream, Manifest
from offload.model.position import AtEdge, AtOffset, AtTime
from offload.model.tree import EntryTree
from offload.native.place import TierPlan
from offload.store.faults import FaultyStore
from offload.store.hashed import HashedStore
from offload.store.memory import MemoryStore


class Noting(FaultyStore):
    """A store that records the keys that are read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.read: list[str] = []

    async def get(self, key: str, span: Any = None) -> bytes:
        self.read.append(key)
        return await super().get(key, span)


class ByVerbs(ObjectStoreOffloader):
    """An offloader with the four verbs and without its own views."""

    view_of = LedgerOffloader.view_of  # type: ignore[assignment]


def on_four_fragments(act: Callable[[Noting, Manifest], Awaitable[None]]) -> None:
    async def scenario() -> None:
        store = Noting()
        async with ObjectStoreOffloader(store) as offloader:
            writer = await StreamWriter.claim(offloader, "orders")
            await writer.offload([ledger_of(10, first_offset=first) for first in range(0, 40, 10)])
        store.read.clear()
        await act(store, writer.manifest)

    asyncio.run(scenario())


async def offsets_read(reader: StreamReader, start: int = 0) -> list[int]:
    async with aclosing(reader.messages(start)) as batches:
        return [batch.offset + n async for batch in batches for n in range(len(batch.bodies))]


def test_a_stream_of_four_fragments_is_read_with_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[int] = []
    walk = EntryTree.walk

    def counted(self: EntryTree, offset: int = 0) -> Any:
        walks.append(offset)
        return walk(self, offset)

    async def act(store: Noting, manifest: Manifest) -> None:
        reader = await StreamReader.open(ObjectStoreOffloader(store), "orders")
        assert await offsets_read(reader) == [*range(40)]

    monkeypatch.setattr(EntryTree, "walk", counted)
    on_four_fragments(act)

    assert walks == [0]


def test_opening_an_entry_requests_only_its_table() -> None:
    """Two requests fetch the tier's anchor and the fragment's tail. The tree is not searched again."""

    async def act(store: Noting, manifest: Manifest) -> None:
        offloader = ObjectStoreOffloader(store)
        view = offloader.view_of(manifest)
        entry = await view.find(25)
        assert entry is not None
        assert store.read == [], "what the manifest names is found without a request"
        async with await view.open(entry) as handle:
            assert (handle.first_offset, handle.next_offset) == (20, 30)
        assert store.read == ["tier.anchor", f"orders/data/{20:020}.{entry.attempt}.fragment"]

    on_four_fragments(act)


def test_the_four_verbs_are_enough_to_be_read_as_a_catalogue() -> None:
    async def act(store: Noting, manifest: Manifest) -> None:
        catalogue: Catalogue = ByVerbs(store)
        reader = await StreamReader.open(catalogue, "orders")
        assert await offsets_read(reader, await reader.offset_of(AtOffset(15))) == [*range(15, 40)]
        assert await reader.offset_of(AtEdge.LAST) == 39

    on_four_fragments(act)


def test_objects_and_roots_are_not_accessible_before_the_anchor_is_read() -> None:
    """They never change afterwards, so no tool can hold a store that differs from the anchor's."""

    async def scenario() -> None:
        tier = ObjectStoreOffloader(MemoryStore(), plan=TierPlan(hashed_keys=True))
        for ask in (lambda: tier.store, lambda: tier.log("orders")):
            with pytest.raises(Misuse, match="before its objects"):
                ask()
        data = tier.data
        await tier.open(create=True)
        store = tier.store
        await tier.open()
        assert isinstance(store, HashedStore)
        assert (tier.store, tier.data, tier.log("orders").store) == (store, data, store)

    asyncio.run(scenario())


@pytest.fixture
def foreign(tmp_path: Path) -> LinesCatalogue:
    """Return a tier of two files, with four records at 1000 ms and three at 2000 ms."""
    write_lines(tmp_path, "orders", 0, 1000, ["a", "b", "c", "d"])
    write_lines(tmp_path, "orders", 4, 2000, ["e", "f", "g"])
    return LinesCatalogue(tmp_path)


def test_a_verify_of_a_foreign_layout_reaches_the_end_of_its_offsets(foreign: LinesCatalogue) -> None:
    report = asyncio.run(verify(foreign))

    assert (report.damages, report.offsets, report.reached) == ([], range(7), 7)


def test_a_foreign_layout_is_read_by_offset_and_by_time(foreign: LinesCatalogue) -> None:
    async def scenario() -> None:
        reader = await StreamReader.open(foreign, "orders")
        assert type(reader.manifest) is CommittedStream
        async with aclosing(reader.messages(3)) as batches:
            assert [body async for batch in batches for body in batch.bodies] == [b"d", b"e", b"f", b"g"]
        assert await reader.offset_of(AtTime(1001)) == 4
        assert await reader.offset_of(AtEdge.LAST) == 6
        assert await reader.last_timestamp_ms() == 2000
        with pytest.raises(NotOffloaded):
            await reader.offset_of(AtOffset(8))

    asyncio.run(scenario())


def test_a_trimmed_foreign_layout_is_read_from_its_new_beginning(
    foreign: LinesCatalogue,
) -> None:
    """The newest view does not name the missing file, so its records were trimmed, and this is reported."""
    told: list[Event] = []

    async def scenario() -> list[int]:
        reader = await StreamReader.open(foreign, "orders", emit=told.append)
        (foreign.root / "orders" / "0.1000.lines").unlink()
        return await offsets_read(reader)

    assert asyncio.run(scenario()) == [4, 5, 6]
    assert told == [Skipped(stream="orders", from_offset=0, to_offset=4)]


def test_a_missing_object_that_a_foreign_view_names_is_damage(
    foreign: LinesCatalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest view still names it, so a reader neither ends there nor skips it."""

    async def scenario() -> None:
        reader = await StreamReader.open(foreign, "orders")
        view = await foreign.view("orders")
        (foreign.root / "orders" / "0.1000.lines").unlink()
        monkeypatch.setattr(foreign, "view", lambda stream: _returned(view))
        with pytest.raises(Absent, match=r"orders/0\.1000\.lines"):
            await offsets_read(reader)

    asyncio.run(scenario())


async def _returned(view: Any) -> Any:
    return view
