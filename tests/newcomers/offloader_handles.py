"""Mistakes on the way out: handles, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from newcomers.ledgers import (
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
from offload.ground.errors import NotOffloaded
from offload.model.attempt import Attempt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import Manifest


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


class _Handles(Table):
    """Opens handles of `HANDLE`."""

    HANDLE: ClassVar[type[TableHandle]] = TableHandle

    def handle(self, parts: Sequence[Row], where: str) -> ReadHandle:
        return self.HANDLE(self, parts, where)


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
