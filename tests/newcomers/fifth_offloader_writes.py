"""Fifth set, offloaders: offloads, receipts, attempts and what a crash leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np

from newcomers.fifth_sound import ended, opened, stopped
from newcomers.fourth_sound import Relay, Rows
from newcomers.ledgers import (
    all_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.table import Row
from offload import Job, MemoryHandle, StreamWriter
from offload.commit.writer import Append
from offload.contracts.change import Change
from offload.contracts.ledger import ReadHandle
from offload.ground.errors import TryAgain
from offload.model.attempt import Attempt, Leftover, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.model.tokens import token_for


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


async def _times_of_an_entry(open_: Open) -> None:
    tier = await opened(open_)
    handle = MemoryHandle(
        [
            *chunks_of(0, 1, time_ms=5001),
            *chunks_of(1, 1, time_ms=9123),
            *chunks_of(2, 1, time_ms=1009),
        ],
        ledger_id=0,
    )
    await copied(tier, "a", handle)
    await copied(tier, "b", ledger(0, 1, time_ms=-7), ledger(1, 1, time_ms=1_700_000_000_009))
    [entry] = await entries_of(tier, await tier.load_manifest("a"))
    assert entry.last_timestamp_ms == 9123, entry
    found = [each.last_timestamp_ms for each in await entries_of(tier, await tier.load_manifest("b"))]
    assert found == [-7, 1_700_000_000_009], found


@bug(_times_of_an_entry)
class TimesAreUnsigned(Entries):
    """The column of times is unsigned, and the database takes 0 for what is below it.

    Breaks "The greatest timestamp of any chunk". Costs chunks of a time before 1970, which a clock that was
    not set yet has made.
    """

    def retold(self, entry: Entry, rows: ChunkTable, metadata: Mapping[str, str]) -> Entry:
        return replace(
            entry,
            first_timestamp_ms=max(entry.first_timestamp_ms, 0),
            last_timestamp_ms=max(entry.last_timestamp_ms, 0),
        )


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


async def _metadata_is_left_as_it_is(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    metadata = {"by": "me", "host": "h"}
    await writer.offload([ledger(3)], extra_metadata=metadata)
    attempt = (await writer.prepare([6]))[0]
    await tier.offload(ledger(6), attempt, manifest=writer.manifest, extra_metadata=metadata)
    assert metadata == {"by": "me", "host": "h"}, metadata


@bug(_metadata_is_left_as_it_is)
class MetadataIsTheCallers(Rows):
    """The backend adds its own names to the mapping that it was given.

    Breaks "`extra_metadata` ... changes nothing else". Costs a caller that passes one mapping for each
    ledger: it describes the second one by the first.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if isinstance(extra_metadata, dict):
            extra_metadata["attempt"] = str(attempt.uid)
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


async def _in_order_of_offsets(open_: Open) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    _, receipt = await uploaded(tier, writer, ledger(3, 10, size=30_000))
    offsets = [entry.first_offset for entry in receipt.entries]
    assert len(offsets) > 1
    assert offsets == sorted(offsets), offsets
    assert receipt.next_offset == 13


@bug(_in_order_of_offsets)
class ReceiptAsUploadsEnd(Rows):
    """Fragments are uploaded at the same time, and the receipt has them in the order in which they ended.

    Breaks "the entries that a commit may now append, in order of offsets". Costs the ledger whose last, short
    fragment is done first: it cannot be committed.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        return replace(receipt, entries=sorted(receipt.entries, key=lambda entry: entry.data_size_bytes))


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


async def _jobs_with_a_token(open_: Open) -> None:
    tier = await opened(open_)
    await copied(tier, "s", ledger(0))
    token = token_for("batch")
    done = []
    for size in (100, 200):
        job = await Job.begin(tier, "s")
        manifest, [attempt] = await job.prepare([1], token=token)
        handle = ledger(3, size=size, ledger_id=1)
        receipt = await tier.offload(handle, attempt, manifest=manifest, extra_metadata={})
        done.append((job, receipt))
    job, receipt = done[0]
    await job.append([receipt])
    handle = await tier.read_offloaded(receipt.attempt)
    assert await all_of(handle) == b"".join(chunks_of(3))


@bug(_jobs_with_a_token)
class AttemptsByHalfTheirId(Rows):
    """A fragment's row is keyed by its offset and the first eight bytes of its attempt, which jobs of one
    batch share.

    Breaks "No two attempts share an object". Costs a batch that was begun twice: the second job overwrites
    what the first one commits.
    """

    async def insert(self, stream: str, row: Row) -> None:
        for each in self.db.uploaded(self.name(stream)):
            same = each.entry.attempt.bytes[:8] == row.entry.attempt.bytes[:8]
            if same and each.entry.first_offset == row.entry.first_offset:
                self.db.remove(self.name(stream), each.entry.first_offset, each.entry.attempt)
        await super().insert(stream, row)


async def _one_of_a_batch_is_deleted(open_: Open) -> None:
    tier = await opened(open_)
    await copied(tier, "s", ledger(0))
    job = await Job.begin(tier, "s")
    manifest, attempts = await job.prepare([1, 2], token=token_for("batch"))
    receipts = [
        await tier.offload(ledger(3, ledger_id=number), each, manifest=manifest, extra_metadata={})
        for number, each in enumerate(attempts, 1)
    ]
    await tier.delete_offloaded(attempts[1])
    await job.append([receipts[0]])
    handle = await tier.read_offloaded(attempts[0])
    assert await all_of(handle) == b"".join(chunks_of(3))


@bug(_one_of_a_batch_is_deleted)
class DeletesByHalfTheirId(Rows):
    """A deletion removes the rows whose attempt begins with the first eight bytes of the id.

    Breaks "Remove every object of `attempt`", and of no other. Costs a batch of two ledgers of which one was
    given up: the other one is committed, and gone.
    """

    async def delete_offloaded(self, attempt: Attempt) -> None:
        await super().delete_offloaded(attempt)
        stream = self.name(attempt.stream)
        for each in self.db.uploaded(stream):
            if each.entry.attempt.bytes[:8] == attempt.uid.bytes[:8]:
                self.db.remove(stream, each.entry.first_offset, each.entry.attempt)


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


async def _committed_by_another(open_: Open) -> None:
    tier, other = await opened(open_), open_()
    writer = await copied(tier, "s", ledger(0))
    _, receipt = await uploaded(tier, writer, ledger(3))
    uid = writer.manifest.writer
    change = Append(writer=uid, entries=receipt.entries, finished=frozenset({receipt.attempt.uid}))
    await other.commit_manifest("s", change, base=None, committer=uid)
    handle = await other.read_offloaded(receipt.attempt)
    assert await all_of(handle) == b"".join(chunks_of(3))


@bug(_committed_by_another)
class FlushedByItsCommit(Rows):
    """Rows of fragments wait in the client, and are sent with its next commit, in one transaction.

    Breaks "Anybody can commit and read it from then on". Costs a job whose workers upload and whose driver
    commits: the manifest names what is not there.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.waiting: list[tuple[str, Row]] = []

    async def insert(self, stream: str, row: Row) -> None:
        self.waiting.append((stream, row))

    async def commit_manifest(
        self, stream: str, change: Change, *, base: Manifest | None, committer: UUID
    ) -> Manifest:
        while self.waiting:
            await super().insert(*self.waiting.pop(0))
        return await super().commit_manifest(stream, change, base=base, committer=committer)


async def _cancelled_alone(open_: Open) -> None:
    tier = await opened(open_)
    await copied(tier, "s", ledger(0))
    jobs = [await Job.begin(tier, "s") for _ in range(2)]
    begun = [await job.prepare([1]) for job in jobs]
    manifest, [attempt] = begun[0]
    receipt = await tier.offload(ledger(3, ledger_id=1), attempt, manifest=manifest, extra_metadata={})
    hangs = asyncio.Event()

    class Hanging(Relay):
        async def read(self, rows: ChunkTable) -> Any:
            hangs.set()
            await asyncio.Event().wait()

    manifest, [second] = begun[1]
    task = asyncio.create_task(
        tier.offload(Hanging(ledger(3, ledger_id=1)), second, manifest=manifest, extra_metadata={})
    )
    await hangs.wait()
    await stopped(task)
    await jobs[0].append([receipt])
    assert await all_of(await tier.read_offloaded(attempt)) == b"".join(chunks_of(3))


@bug(_cancelled_alone)
class CancelledCleansTheLedger(Rows):
    """An offload that is cancelled removes the rows of its ledger that no manifest names, also of others.

    Breaks "No two attempts share an object, so a crashed attempt is garbage, never a hazard". Costs the job
    that uploaded the same ledger, and commits it now.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except asyncio.CancelledError:
            stream = self.name(attempt.stream)
            for each in self.db.uploaded(stream, manifest.next_offset):
                if each.entry.ledger_id == attempt.ledger_id:
                    self.db.remove(stream, each.entry.first_offset, each.entry.attempt)
            raise


# Leftovers


async def _left_for(open_: Open) -> tuple[Any, Attempt, Manifest]:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0))
    attempt, _ = await uploaded(tier, writer, ledger(3, 9, size=30_000))

    class Keeping(Exception):
        pass

    def keep(_: Leftover) -> bool:
        raise Keeping

    with suppress(Keeping):
        await StreamWriter.claim(tier, "s", agree=keep)
    return tier, attempt, await tier.load_manifest("s")


async def _left_no_longer(open_: Open) -> None:
    tier, attempt, manifest = await _left_for(open_)
    assert await tier.leftovers(manifest) != []
    await tier.delete_offloaded(attempt)
    assert await tier.leftovers(await tier.load_manifest("s")) == []


@bug(_left_no_longer)
class LeftoversAreRemembered(Rows):
    """What follows an offset is looked for once, because it is costly.

    Breaks "of attempts that run in `manifest`". Costs a writer that adopts fragments which were deleted
    since.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.found: dict[tuple[str, int], list[Leftover]] = {}

    async def leftovers(self, manifest: Manifest) -> list[Leftover]:
        name = manifest.stream, manifest.next_offset
        if not self.found.get(name):
            self.found[name] = await super().leftovers(manifest)
        return self.found[name]
