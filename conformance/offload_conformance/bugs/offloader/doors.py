"""Bugs of handles, and of the ways to open one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Final
from unittest.mock import MagicMock

from offload.contracts.catalogue import StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body, Buffer, Span, Suffix
from offload.model.attempt import Attempt
from offload.model.chunk_table import WINDOW_SIZE_BYTES, ChunkTable
from offload.model.entry import Entries, Entry, entries_of_rows
from offload.model.manifest import CommittedStream, Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload_conformance.bugs.offloader.shared import Around, CodedHandles
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import attempt_of, chunks_of, copied, entries_of, ledger
from offload_conformance.bugs.sound.memory import SharedMemory
from offload_conformance.bugs.sound.proofs import data_of
from offload_conformance.bugs.sound.table import Table
from offload_conformance.bugs.sound.views import Glance, opened
from offload_conformance.bugs.sound.wrappers import Relay


class _Sharing(Around):
    offloader: ClosesWithTheHandle

    async def read(self, rows: ChunkTable) -> bytes:
        if self.offloader.is_closed:
            raise RuntimeError("the connection is closed")
        return await super().read(rows)

    async def aclose(self) -> None:
        self.offloader.is_closed = True


@bug("contract/handles_are_closed_alone")
class ClosesWithTheHandle(ObjectStoreOffloader):
    """Closes its connection with any handle that is closed.

    The handle got the connection, and cleans up everything that it got.
    """

    is_closed = False

    async def read_offloaded(self, *args: Any, **kwargs: Any) -> ReadHandle:
        handle = _Sharing.around(await super().read_offloaded(*args, **kwargs))
        handle.offloader = self  # type: ignore[attr-defined]  # `around` returns its own class
        return handle


@bug("contract/reads_are_verbatim_at_every_door")
class OpensByRow(ObjectStoreOffloader):
    """Opens the fragment in the same row of the first view that it made.

    A list of open files is kept by index, and the rows of a view that is cut begin at 0 again.
    """

    def view_of(self, committed: CommittedStream) -> Any:
        view, known = super().view_of(committed), vars(self).setdefault("known", {})
        rows = known.setdefault(committed.version, entries_of_rows(committed.entries))
        own, opened = entries_of_rows(committed.entries), view.open

        async def by_row(entry: Entry) -> ReadHandle:
            return await opened(rows[own.index(entry)])

        shown = MagicMock(wraps=view)
        shown.open, shown.walk, shown.committed = by_row, view.walk, committed
        return shown


class _Growing(Around):
    asked = 0

    def windows(self, rows: ChunkTable, *, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[ChunkTable]:
        _Growing.asked += 1
        return super().windows(rows, size_bytes=size_bytes * _Growing.asked)


@bug("contract/windows_are_the_same_at_every_call")
class WindowsGrowWithUse(CodedHandles):
    """Cuts the same rows into larger windows at each call.

    A reader that goes on is likely to want more.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _Growing.around(handle)


class _InSeconds(Around):
    async def modified_ms(self) -> int | None:
        return 1_700_000_000


@bug("contract/times_of_handles_are_in_milliseconds")
class ModifiedInSeconds(CodedHandles):
    """Returns the time of the last write in seconds.

    `st_mtime` is in seconds.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _InSeconds.around(handle)


class _Ahead(Around):
    hinted: bytes | None = None

    async def read_on(self, rows: ChunkTable, then: ChunkTable) -> bytes:
        found = bytes(await super().read(rows))
        self.hinted = bytes(await super().read(then[:1])) if len(then) else None
        return found

    async def read(self, rows: ChunkTable) -> bytes:
        hinted, self.hinted = self.hinted, None
        if hinted is not None and len(hinted) == int(rows["size_bytes"].sum()):
            return hinted
        return bytes(await super().read(rows))


@bug("contract/reads_may_come_in_any_order")
class ReadsWhatWasHinted(CodedHandles):
    """Returns the chunk that a reader said it would read next, for any chunk of that size.

    A reply that is kept for the next read, and compared by its length.
    """

    def handle(self, handle: ReadHandle, entry: Entry) -> ReadHandle:
        return _Ahead.around(handle)


async def _runs_are_kept(open_: OpenClient) -> None:
    tier = await opened(open_)
    await copied(tier, "s", *(ledger(first) for first in range(0, 12, 3)))
    async with aclosing((await tier.view("s")).walk()) as walk:
        runs = [run async for run in walk]
    offsets = [entry.first_offset for run in runs for entry in entries_of_rows(run)]
    assert offsets == [0, 3, 6, 9], offsets


@bug("contract/reads_are_verbatim_at_every_door", _runs_are_kept)
class RunsShareTheirRows(Table):
    """A walk fetches entries into one array, again and again, and yields it each time.

    Breaks "Yield the entries of the fragments". Costs a caller that keeps the runs: all of them are the last.
    """

    def view_of(self, committed: CommittedStream) -> StreamView:
        class Fetching(Glance):
            async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
                rows: Any = None
                async with aclosing(super().walk(offset)) as runs:
                    async for run in runs:
                        for at in range(len(run)):
                            rows = run[at : at + 1].copy() if rows is None else rows
                            rows[:] = run[at : at + 1]
                            yield rows

        return Fetching(super().view_of(committed))


class SharedScratch(Table):
    """Handles in front of those of `Table`: the base of some bugs, itself without one."""

    def in_front(self, handle: ReadHandle) -> ReadHandle:
        return handle

    async def read_offloaded(
        self, attempt: Attempt, *, manifest: Manifest | None = None, only: range | None = None
    ) -> ReadHandle:
        return self.in_front(await super().read_offloaded(attempt, manifest=manifest, only=only))


async def _read_on_is_read(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, 6))
    [entry] = await entries_of(tier, writer.manifest)
    handle = await tier.read_offloaded(attempt_of("s", entry))
    table = await handle.table()
    runs = [table[at : at + 1] for at in range(6)]
    found = [await handle.read_on(run, table[at + 1 :]) for at, run in enumerate(runs)]
    assert [bytes(each) for each in found] == chunks_of(0, 6)


@bug("contract/handles_are_closed_alone", _read_on_is_read)
class ReadOnReadsBoth(SharedScratch):
    """A read that goes on returns the rows behind too, up to a window: they were read anyway.

    Breaks "Return what `read` returns". Costs a reader that counts on it: it delivers chunks twice.
    """

    def in_front(self, handle: ReadHandle) -> ReadHandle:
        class Greedy(Relay):
            async def read_on(self, rows: ChunkTable, then: ChunkTable) -> Buffer:
                return bytes(await self.read(rows)) + bytes(await self.read(then[:1]))

        return Greedy(handle)


RING: Final = 64


async def _reads_stay(open_: OpenClient) -> None:
    store = open_()
    for number in range(100):
        await store.put(f"k{number}", Body.of(data_of(500, number)))
    held = [await store.get(f"k{number}") for number in range(100)]
    assert all(bytes(read) == data_of(500, number) for number, read in enumerate(held))


@bug("contract/reads_are_verbatim_at_every_door", _reads_stay)
class RingOfBuffers(SharedMemory):
    """Small reads take turns in a ring of 64 buffers, whoever still refers to one.

    Breaks "They never change, for as long as anything refers to them". Costs a consumer that holds more than
    64 reads their bytes.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.ring = [bytearray(64 * 1024) for _ in range(RING)]
        self.turn = 0

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:  # type: ignore[override]  # the bug
        data = await super().get(key, span)
        if len(data) > 64 * 1024:
            return data
        self.turn += 1
        buffer = self.ring[self.turn % RING]
        buffer[: len(data)] = data
        return memoryview(buffer)[: len(data)].toreadonly()
