"""The layer `catalogue`: the promises of a place that can only be read.

The suite cannot write to such a place. So its author says how to: `fill`, `grow`, `damage` and `drop` change
it by other means, as the program does whose layout it is. The clauses compare what readers find with what was
put.

Invariant: the clauses use only the contract of a catalogue and of its views.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final
from uuid import uuid4

import pytest

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk import check_chunks
from offload.ground.errors import Absent, Corrupt, NotOffloaded, StreamDeleted
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entry, entries_of_rows, joined_entries
from offload.model.excerpt import of_fragments
from offload.read.reader import StreamReader
from offload_conformance.asynchronous import Asynchronous, Run
from offload_conformance.clauses import since
from offload_conformance.offloader.base import span
from offload_conformance.offloader.edges import KINDS
from offload_conformance.offloader.views import names_in, walked

__all__ = ["CatalogueBackend", "FilledStream"]

OFFSETS_TRIED: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledStream:
    """A stream that the author put into the place."""

    name: str
    records: Sequence[bytes]
    """The bodies of all messages, in the order of offsets."""

    first_offset: int = 0


class CatalogueBackend(Asynchronous, ABC):
    """The tests of a catalogue. Every test gets a fresh `folder` and `name` to use, and an empty place."""

    layer: ClassVar[str] = "catalogue"

    finds_damage: ClassVar[bool] = True
    """False for a layout that has nothing by which damage could be found. `damage` is then not called."""

    folder: Path
    """A folder that does not exist yet, in a temporary folder of the test's own."""

    name: str
    """A unique name: for a bucket, a prefix, a table."""

    @abstractmethod
    def open_catalogue(self) -> Catalogue:
        """Return a fresh catalogue of the same place at every call."""

    @abstractmethod
    async def fill(self) -> Sequence[FilledStream]:
        """Put at least two streams into the empty place, the first with three or more fragments.

        If views are not measured, times must not go back from fragment to fragment.
        """

    @abstractmethod
    async def grow(self, stream: str) -> Sequence[bytes]:
        """Add a fragment to the end of a stream, and return its records."""

    @abstractmethod
    async def damage(self, stream: str, fragment: str) -> None:
        """Change stored bytes of a fragment, named as in `StreamView.name_of`, so that a check must fail."""

    @abstractmethod
    async def drop(self, stream: str) -> None:
        """Remove the oldest fragment of a stream, or more, as the layout's own retention does."""

    @pytest.fixture(autouse=True)
    def _fresh_place(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "place"
        self.name = f"conformance-{uuid4()}"

    @pytest.fixture
    def opened(self, run: Run) -> Iterator[Callable[[], Catalogue]]:
        """Return a function that opens catalogues. They are closed after the test, twice."""
        catalogues: list[Catalogue] = []

        async def on_the_loop() -> Catalogue:
            return self.open_catalogue()

        def open_another() -> Catalogue:
            catalogues.append(run(on_the_loop()))
            return catalogues[-1]

        yield open_another
        for catalogue in catalogues:
            run(catalogue.aclose())
            run(catalogue.aclose())

    @since("0.3")
    def test_absence_is_not_offloaded(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """A place that is empty, and a stream that is not there, raise `NotOffloaded`."""

        async def scenario() -> None:
            empty = opened_empty
            for call in (empty.open, empty.streams):
                with pytest.raises(NotOffloaded):
                    await call()
            with pytest.raises(NotOffloaded):
                await empty.view("orders")
            filled = await self.fill()
            with pytest.raises(NotOffloaded):
                await other.view(f"{filled[0].name}-of-nobody")

        opened_empty, other = opened(), opened()
        run(scenario())

    @since("0.3")
    def test_streams_are_listed_and_read_whole(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """All streams are listed, in order of names, and all of their records are read as they were put."""

        async def scenario() -> None:
            filled = await self.fill()
            assert len(filled) > 1, "fill: put at least two streams"
            await catalogue.open()
            assert await catalogue.streams() == sorted(each.name for each in filled)
            for each in filled:
                view = await catalogue.view(each.name)
                assert view.committed.stream == each.name
                assert view.committed.first_offset == each.first_offset
                check_count(view, len(each.records))
                assert await bodies(catalogue, each.name, each.first_offset) == [*each.records]

        catalogue = opened()
        run(scenario())

    @since("0.3")
    def test_entries_cover_the_stream(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """Entries leave no hole, add up to the totals, and agree with the tables of their fragments.

        Times and sizes are exact if the view is measured. Otherwise times are bounds.
        """

        async def scenario() -> None:
            for each in await self.fill():
                view = await catalogue.view(each.name)
                committed, entries = view.committed, await walked(view)
                reached = committed.first_offset
                for entry in entries:
                    assert entry.first_offset == reached
                    reached = entry.next_offset
                    async with await view.open(entry) as handle:
                        check_entry(await handle.table(), entry, view)
                assert reached == committed.next_offset
                assert committed.fragments <= len(entries)
                assert committed.fragments == len(entries) or not view.counts_messages
                assert committed.messages == sum(entry.messages for entry in entries)
                assert committed.stored_size_bytes == sum(entry.stored_size_bytes for entry in entries)

        catalogue = opened()
        run(scenario())

    @since("0.3")
    def test_any_offset_is_found(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """A view finds the fragment of each offset, and none beyond; a reader begins at any offset."""

        async def scenario() -> None:
            each = (await self.fill())[0]
            view = await catalogue.view(each.name)
            entries = await walked(view)
            assert len(entries) > 2, "fill: the first stream needs three fragments or more"
            offsets = range(view.committed.first_offset, view.committed.next_offset)
            for offset in offsets:
                holding = next(one for one in entries if offset < one.next_offset)
                assert span(await view.find(offset)) == span(holding)
            for beyond in (offsets.stop, *KINDS["offset: int"].taken):
                if beyond not in offsets:
                    assert span(await view.find(beyond)) is None, f"expected no fragment at offset {beyond}"
            for offset in random.sample(offsets, min(OFFSETS_TRIED, len(offsets))):
                found = await bodies(catalogue, each.name, offset)
                assert found == [*each.records[offset - offsets.start :]], f"read from offset {offset}"

        catalogue = opened()
        run(scenario())

    @since("0.3")
    def test_times_are_found(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """A view finds the first fragment with a chunk of a time or later, and the latest time.

        A view that is not measured may return no latest time.
        """

        async def scenario() -> None:
            view = await catalogue.view((await self.fill())[0].name)
            entries = await walked(view)
            latest = []
            for entry in entries:
                async with await view.open(entry) as handle:
                    latest.append(int((await handle.table())["timestamp_ms"].max()))
            around = {asked for each in latest for asked in (each - 1, each, each + 1)}
            for time in sorted(around | {*KINDS["timestamp_ms: int"].taken}):
                wanted = next((one for one, last in zip(entries, latest, strict=True) if last >= time), None)
                found = await view.first_since(time)
                assert span(found) == span(wanted), f"the first fragment since {time} ms, among {latest}"
            newest = await view.last_timestamp_ms()
            assert newest == max(latest) or (newest is None and not view.is_measured)
            last = await view.last_with_messages()
            assert span(last) == span(entries[-1])

        catalogue = opened()
        run(scenario())

    @since("0.3")
    def test_handles_are_stable(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """A handle gives the same table and bytes at every call, for any range, and its chunks are sound."""

        async def scenario() -> None:
            view = await catalogue.view((await self.fill())[0].name)
            for entry in await walked(view):
                async with await view.open(entry) as handle:
                    assert (handle.first_offset, handle.next_offset) == span(entry)
                    assert handle.ledger_id == entry.ledger_id
                    table = await handle.table()
                    whole = bytes(await handle.read(table))
                    check_chunks(whole, table, window_position=int(table["position"][0]), where=handle.where)
                    parts = [bytes(await handle.read(table[row : row + 1])) for row in range(len(table))]
                    assert b"".join(parts) == whole
                    assert (await handle.table()).tobytes() == table.tobytes()
                async with await view.open(entry) as again:
                    assert (await again.table()).tobytes() == table.tobytes()
                    assert bytes(await again.read(table)) == whole
                    assert again.where == handle.where

        catalogue = opened()
        run(scenario())

    @since("0.3")
    def test_names_tell_fragments_apart(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """Each fragment has a name of its own, which the view knows."""

        async def scenario() -> None:
            view = await catalogue.view((await self.fill())[0].name)
            names = await names_in(view)
            assert len({*names}) == len(names)
            assert all([await view.names(name) for name in names])

        catalogue = opened()
        run(scenario())

    @since("0.3")
    def test_shares_of_a_view_are_views(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """Another process reads a fragment with nothing but its entry, as a task of Spark does."""

        async def scenario() -> None:
            each = (await self.fill())[0]
            view = await catalogue.view(each.name)
            rows = joined_entries(*[found async for found in view.walk()])
            for row, entry in enumerate(entries_of_rows(rows)):
                share = other.view_of(of_fragments(view.committed, rows[row : row + 1]))
                assert [span(one) for one in await walked(share)] == [span(entry)]
                assert span(await share.find(entry.first_offset)) == span(entry)
                async with await view.open(entry) as handle, await share.open(entry) as found:
                    assert await chunks(found) == await chunks(handle)

        catalogue, other = opened(), opened()
        run(scenario())

    @since("0.3")
    def test_views_do_not_move_while_data_is_added(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """An older view gives the same answers, and a newer view has the new records."""

        async def scenario() -> None:
            each = (await self.fill())[0]
            view = await catalogue.view(each.name)
            before = [span(entry) for entry in await walked(view)]
            assert await other.newer_view(view.committed) is None
            added = await self.grow(each.name)
            assert added, "grow: add at least one record"
            newer = await later.newer_view(view.committed)
            assert newer is not None, "expected a newer view"
            assert newer.committed.version > view.committed.version
            assert newer.committed.incarnation == view.committed.incarnation
            check_count(newer, len(each.records) + len(added))
            assert [span(entry) for entry in await walked(view)] == before
            assert [span(entry) for entry in await walked(newer)][: len(before)] == before
            assert await bodies(later, each.name, view.committed.next_offset) == [*added]

        catalogue, other, later = opened(), opened(), opened()
        run(scenario())

    @since("0.3")
    def test_what_was_dropped_is_absent(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """A view that names a dropped fragment raises `Absent`, and a newer view does not name it.

        If offsets move, the stream counts as deleted and begun again.
        """

        async def scenario() -> None:
            each, other_stream = (await self.fill())[:2]
            view = await catalogue.view(each.name)
            [first, *_] = await walked(view)
            gone = (await names_in(view))[0]
            await self.drop(each.name)
            with pytest.raises(Absent):
                async with await later.view_of(view.committed).open(first) as handle:
                    await chunks(handle)
            newer = await later.view(each.name)
            if newer.committed.incarnation == view.committed.incarnation:
                assert newer.committed.first_offset > view.committed.first_offset
                assert not await newer.names(gone)
            else:
                with pytest.raises(StreamDeleted):
                    await later.newer_view(view.committed)
            kept = await bodies(later, each.name, newer.committed.first_offset)
            assert 0 < len(kept) < len(each.records)
            assert kept == [*each.records[-len(kept) :]]
            assert await bodies(later, other_stream.name, other_stream.first_offset) == [
                *other_stream.records
            ]

        catalogue, later = opened(), opened()
        run(scenario())

    @since("0.3")
    def test_damage_is_reported(self, run: Run, opened: Callable[[], Catalogue]) -> None:
        """Reading a damaged fragment raises `Corrupt`, and every other stream is read whole."""
        if not self.finds_damage:
            pytest.skip("the author says that nothing in the layout shows damage")

        async def scenario() -> None:
            each, *others = await self.fill()
            view = await catalogue.view(each.name)
            await self.damage(each.name, (await names_in(view))[1])
            with pytest.raises(Corrupt) as raised:
                await bodies(later, each.name, each.first_offset)
            assert not isinstance(raised.value, Absent)
            assert raised.value.where
            assert await later.streams() == sorted(one.name for one in (each, *others))
            for one in others:
                assert await bodies(later, one.name, one.first_offset) == [*one.records]

        catalogue, later = opened(), opened()
        run(scenario())


def check_count(view: StreamView, messages: int) -> None:
    """Assert that a view has this number of messages, or an upper bound if its entries do not count them."""
    found = view.committed.messages
    assert found == messages or (found > messages and not view.counts_messages)


def check_entry(table: ChunkTable, entry: Entry, view: StreamView) -> None:
    """Assert that an entry describes the chunks of its fragment."""
    offsets, records, times = table["offset"], table["records"], table["timestamp_ms"]
    assert len(table)
    assert (int(offsets[0]), int(offsets[-1] + records[-1])) == span(entry)
    assert (offsets[1:] == (offsets + records)[:-1]).all()
    messages = int(records[table["type"] == ChunkType.USER].sum())
    assert messages == entry.messages or (messages < entry.messages and not view.counts_messages)
    first_ms, last_ms = int(times.min()), int(times.max())
    if view.is_measured:
        assert (first_ms, last_ms) == (entry.first_timestamp_ms, entry.last_timestamp_ms)
        assert int(table["size_bytes"].sum()) == entry.data_size_bytes
    assert entry.first_timestamp_ms <= first_ms
    assert last_ms <= entry.last_timestamp_ms


async def chunks(handle: ReadHandle) -> bytes:
    """Return all chunks of a handle."""
    return bytes(await handle.read(await handle.table()))


async def bodies(catalogue: Catalogue, stream: str, offset: int) -> list[bytes]:
    """Return the bodies of all messages from an offset on, as a reader yields them."""
    reader = await StreamReader.open(catalogue, stream)
    return [bytes(body) async for batch in reader.messages(offset) for body in batch.bodies]
