"""Mistakes on the way out: handles, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from newcomers.ledgers import (
    all_of,
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Row, Table, TableHandle
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import NotOffloaded, TryAgain
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.upkeep.retention import delete_stream


async def _uncommitted(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    attempt, _ = await uploaded(tier, writer, ledger(3))
    await raises(NotOffloaded, tier.read_offloaded(attempt))


@bug(_uncommitted)
class UncommittedFragmentsAreRead(Table):
    """Fragments are found by their attempt in the table of fragments. The manifest is not consulted.

    Breaks "Reading what was never committed raises `NotOffloaded`": a reader sees data that is deleted later.
    """

    async def entries_of(self, attempt: Attempt, manifest: Manifest, only: range | None) -> list[Entry]:
        rows = self.of_attempt(attempt)
        only = range(2**64) if only is None else only
        return [
            row.entry
            for row in rows
            if row.entry.first_offset < only.stop and row.entry.next_offset > only.start
        ]


async def _reads_at_once(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0, 8, size=40_000))
    [entry, *_] = await entries_of(tier, await tier.load_manifest("s"))
    async with await tier.read_offloaded(attempt_of("s", entry)) as handle:
        table, chunks = await handle.table(), chunks_of(0, 8, size=40_000)
        found = await asyncio.gather(*(handle.read(table[number : number + 1]) for number in range(8)))
        assert found == chunks


class _Handles(Table):
    """Opens handles of `HANDLE`."""

    HANDLE: ClassVar[type[TableHandle]] = TableHandle

    def handle(self, parts: Sequence[Row], where: str) -> ReadHandle:
        return self.HANDLE(self, parts, where)


class _OnePlace(TableHandle):
    place: ChunkTable | None = None

    async def read(self, rows: ChunkTable) -> bytes:
        self.place = rows
        await asyncio.sleep(0)
        return await super().read(self.place)


@bug(_reads_at_once)
class ReadsShareOnePlace(_Handles):
    """A handle seeks, and then reads: two concurrent reads both read at the position of the last seek.

    Breaks "The stored chunks of `rows`": a reader gets other chunks than it asked for.
    """

    HANDLE = _OnePlace


async def _cancelled_read(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    async with asyncio.timeout(5), await tier.read_offloaded(attempt_of("s", entry)) as handle:
        table = await handle.table()
        task = asyncio.create_task(handle.read(table))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert await handle.read(table) == b"".join(chunks_of(0))


class _Locking(TableHandle):
    lock: asyncio.Lock | None = None

    async def read(self, rows: ChunkTable) -> bytes:
        self.lock = self.lock or asyncio.Lock()
        await self.lock.acquire()
        try:
            data = await super().read(rows)
        except Exception:
            self.lock.release()
            raise
        self.lock.release()
        return data


@bug(_cancelled_read)
class CancelledReadsKeepTheLock(_Handles):
    """Reads of a handle take turns, and a cancelled read never gives its turn back.

    Breaks "connections return to the pool, and the next call works": a reader that seeks hangs for ever.
    """

    HANDLE = _Locking


async def _closed_handle(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    one, two = [await tier.read_offloaded(attempt_of("s", entry)) for _ in range(2)]
    await one.aclose()
    await one.aclose()
    assert await all_of(two) == b"".join(chunks_of(0))
    await two.aclose()


class _ClosesTheTier(TableHandle):
    async def aclose(self) -> None:
        self.tier.closed = True  # type: ignore[attr-defined]

    async def read(self, rows: ChunkTable) -> bytes:
        if getattr(self.tier, "closed", False):
            raise TryAgain("the connection is closed")
        return await super().read(rows)


@bug(_closed_handle)
class ClosedHandlesCloseTheTier(_Handles):
    """A handle closes the connection of its offloader, which other handles use too.

    Breaks "`aclose`: Release files and connections", which are the handle's own: the next fragment cannot be
    read.
    """

    HANDLE = _ClosesTheTier


async def _other_life(open_: Open) -> None:
    tier = open_()
    for turn in range(2):
        await copied(tier, "s", ledger(0, size=100 + turn), first=0)
        [entry] = await entries_of(tier, await tier.load_manifest("s"))
        async with await tier.read_offloaded(attempt_of("s", entry)) as handle:
            assert await all_of(handle) == b"".join(chunks_of(0, size=100 + turn))
        await delete_stream(tier, "s")


@bug(_other_life)
class FragmentsAreCachedByOffset(Table):
    """A client caches fragments by stream and offset, although another attempt may have the same.

    Breaks "What is read back is the bytes that were offloaded", once a stream is deleted and begun again.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.cache: dict[tuple[str, int], Row] = {}

    def fetched(self, stream: str, entry: Entry) -> Row:
        key = stream, entry.first_offset
        if key not in self.cache:
            self.cache[key] = super().fetched(stream, entry)
        return self.cache[key]
