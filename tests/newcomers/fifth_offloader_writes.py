"""Fifth set, offloaders: offloads, receipts, attempts and what a crash leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from newcomers.fifth_sound import ended, opened
from newcomers.fourth_sound import Relay, Rows
from newcomers.ledgers import (
    all_of,
    chunks_of,
    copied,
    ledger,
    raises,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Row
from offload import Job
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import TryAgain
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry


class Entries(Rows):
    """Fragments whose entries are told otherwise: the base of some bugs, itself without one."""

    def retold(self, entry: Entry, rows: ChunkTable, metadata: Mapping[str, str]) -> Entry:
        return entry

    async def insert(self, stream: str, row: Row) -> None:
        await super().insert(stream, replace(row, entry=self.retold(row.entry, row.rows, row.metadata)))

    async def upload(self, handle: ReadHandle, rows: ChunkTable, *arguments: Any, **keywords: Any) -> Entry:
        entry = await super().upload(handle, rows, *arguments, **keywords)
        metadata = next(each for each in (*arguments, *keywords.values()) if isinstance(each, Mapping))
        return self.retold(entry, rows, metadata)


# Numbers and descriptions


async def _metadata_changes_nothing(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, ledger_id=1))
    given = {"ledger_id": "77", "codec": "1", "first_offset": "9"}
    _, receipt = await uploaded(tier, writer, ledger(3, ledger_id=2), **given)
    [entry] = receipt.entries
    assert (entry.ledger_id, entry.codec, entry.first_offset) == (2, 0, 3), entry


@bug(_metadata_changes_nothing)
class MetadataWinsOverColumns(Entries):
    """The row of a fragment is a document, into which the caller's metadata is merged last.

    Breaks "which is never read back and changes nothing else". Costs a caller that describes the ledger by a
    name that the backend has too.
    """

    def retold(self, entry: Entry, rows: ChunkTable, metadata: Mapping[str, str]) -> Entry:
        own = {name: int(value) for name, value in metadata.items() if name in ("ledger_id", "codec")}
        return replace(entry, **own)


# Sources that fail


class Away(Relay):
    """A ledger whose source is away for good."""

    async def read(self, rows: ChunkTable) -> Any:
        raise TryAgain("the source is away")


async def _source_is_away(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    attempt = (await writer.prepare([3]))[0]
    async with asyncio.timeout(10):
        await raises(
            TryAgain, tier.offload(Away(ledger(3)), attempt, manifest=writer.manifest, extra_metadata={})
        )


@bug(_source_is_away)
class WaitsForItsSource(Rows):
    """A source that is away is asked again and again, until it is back.

    Breaks "An error that `handle` raises is passed on". Costs a caller whose source was removed: the call
    never ends, and its stream is held.
    """

    async def upload(self, handle: ReadHandle, rows: ChunkTable, *arguments: Any, **keywords: Any) -> Entry:
        class Patient(Relay):
            async def read(self, rows: ChunkTable) -> Any:
                while True:
                    try:
                        return await super().read(rows)
                    except TryAgain:
                        await asyncio.sleep(0.05)

        return await super().upload(Patient(handle), rows, *arguments, **keywords)


# Attempts


async def _two_at_one_ledger(open_: Open) -> None:
    tier = await opened(open_)
    await copied(tier, "s", ledger(0))
    jobs = [await Job.begin(tier, "s") for _ in range(2)]
    begun = [await job.prepare([1]) for job in jobs]
    handles = [ledger(3, size=100, ledger_id=1, time_ms=time_ms) for time_ms in (1000, 2000)]
    receipts = await ended(
        *(
            tier.offload(handle, attempt, manifest=manifest, extra_metadata={})
            for handle, (manifest, [attempt]) in zip(handles, begun, strict=True)
        )
    )
    await jobs[0].append([receipts[0]])
    handle = await tier.read_offloaded(begun[0][1][0])
    assert await all_of(handle) == b"".join(chunks_of(3, time_ms=1000))


@bug(_two_at_one_ledger)
class StagedByLedger(Rows):
    """A ledger on its way is staged under its id, and two attempts at one ledger share the place.

    Breaks "Attempts never share an object, even if they copy one ledger". Costs a takeover while the old
    writer still uploads: one has the other's bytes.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.staged: dict[int, ReadHandle] = {}

    async def upload(self, handle: ReadHandle, rows: ChunkTable, *arguments: Any, **keywords: Any) -> Entry:
        self.staged[handle.ledger_id] = handle
        for _ in range(3):
            await asyncio.sleep(0)
        staged = self.staged[handle.ledger_id]
        table = await staged.table()
        rows = table[np.isin(table["offset"], rows["offset"])]
        return await super().upload(staged, rows, *arguments, **keywords)


# Leftovers
