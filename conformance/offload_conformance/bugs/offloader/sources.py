"""Bugs of offloads: what is checked, copied and reported, and how a source is treated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload import Job, MemoryHandle
from offload.contracts.ledger import ReadHandle
from offload.contracts.store import Body, ObjectStore
from offload.formats.checksums import crc32
from offload.formats.chunk_check import check_source
from offload.formats.chunk_writer import build_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.ground.errors import Corrupt, Misuse, OffloadError, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.native.offloader import ObjectStoreOffloader
from offload.store.wrap import StoreDecorator
from offload.write.writer import StreamWriter
from offload_conformance.bugs.offloader.shared import Around, deleted_but
from offload_conformance.bugs.registry import OpenClient, bug
from offload_conformance.bugs.sound.ledgers import (
    all_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
    tracking,
    uploaded,
)
from offload_conformance.bugs.sound.table import FragmentRow, Table
from offload_conformance.bugs.sound.views import ended, opened


class _Renamed(Around):
    announced = 0

    @property
    def ledger_id(self) -> int:
        return self.announced


@bug("contract/ledgers_are_those_announced")
class StoresAnyLedger(ObjectStoreOffloader):
    """Stores any ledger under the number that the attempt announced.

    The number is taken from the attempt, and the handle is never asked for its own.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        renamed = _Renamed.around(handle)
        renamed.announced = attempt.ledger_id  # type: ignore[attr-defined]  # `around` returns its own class
        return await super().offload(renamed, attempt, manifest=manifest, extra_metadata=extra_metadata)


@bug("contract/offloads_are_checked")
class ForgetsToCheck(ObjectStoreOffloader):
    """Stores chunks whose checksums do not match.

    The source's index is trusted without a check.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def unchecked(raw: bytes, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
            return np.zeros(len(rows), np.uint32)

        with patch("offload.native.fragment_writer.check_source", unchecked):
            return await super().offload(*args, **kwargs)


@bug("contract/offloads_are_checked_for_length")
class TakesAShortReadForTheEnd(ObjectStoreOffloader):
    """Treats a source that ends too early as complete.

    `while data := source.read()`: nobody compares with what the index says.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except Corrupt:
            return Receipt(attempt=attempt, entries=())


@bug("contract/offloads_are_checked")
class ChecksOnlyTheData(ObjectStoreOffloader):
    """Checks the CRC of a chunk's data, and nothing of its header.

    The format's checksum is checked, but it does not cover the header.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def agree(headers: Any, rows: ChunkTable) -> npt.NDArray[np.bool_]:
            return np.ones(len(rows), np.bool_)

        with patch("offload.formats._chunk_table._agree", agree):
            return await super().offload(*args, **kwargs)


@bug("contract/offloads_are_checked")
class ChecksTheFirstOfEachRead(ObjectStoreOffloader):
    """Checks only the first chunk of each read.

    The check was written for one chunk, before reads became larger.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        def first(raw: bytes, rows: ChunkTable, *, where: str) -> npt.NDArray[np.uint32]:
            one = rows[:1]
            check_source(raw[: int(one["size_bytes"][0])], one, where=where)
            return np.zeros(len(rows), np.uint32)

        with patch("offload.native.fragment_writer.check_source", first):
            return await super().offload(*args, **kwargs)


@bug("contract/offloads_are_checked")
class BlamesTheTier(ObjectStoreOffloader):
    """Blames the tier for damage in the source.

    An error is translated in a place where the file is no longer known.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        try:
            return await super().offload(*args, **kwargs)
        except Corrupt as damage:
            raise damage.within(self.url) from damage


@bug("contract/offloads_are_checked_for_holes")
class TrustsTheTable(ObjectStoreOffloader):
    """Copies the chunks in the table of the source, even if they do not cover the whole range.

    An index lost a record, so the chunk exists and nobody reads it.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        with (
            patch("offload.native.offloader.covering_table", lambda handle: handle.table()),
            patch("offload.formats.fragment._check_table", lambda *args, **kwargs: None),
        ):
            return await super().offload(*args, **kwargs)


@bug("contract/errors_of_the_source_are_passed_on")
class TakesTryAgainForTheEnd(ObjectStoreOffloader):
    """Treats a source that is temporarily unavailable as ended.

    A loop reads until there is no more data, and an error counts as no data.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except TryAgain:
            return Receipt(attempt=attempt, entries=())


class _UploadSlots(ObjectStoreOffloader):
    """Has four slots for uploads. `kept_after` says after which errors a slot is not given back."""

    taken = 0
    kept_after: type[BaseException]

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        if self.taken == 4:
            raise TryAgain("all slots are taken")
        self.taken += 1
        try:
            receipt = await super().offload(*args, **kwargs)
        except BaseException as error:
            self.taken -= not isinstance(error, self.kept_after)
            raise
        self.taken -= 1
        return receipt


@bug("contract/errors_of_the_source_are_passed_on")
class LosesSlotsToErrors(_UploadSlots):
    """Loses an upload slot at each error of a source.

    A semaphore is released after the call, and not in a `finally`.
    """

    kept_after = OffloadError


@bug("contract/cancelled_offloads_hinder_nobody")
class LosesSlotsToCancellation(_UploadSlots):
    """Loses an upload slot with each offload that is cancelled.

    `except Exception` releases the slot, and a cancellation is not an `Exception`.
    """

    kept_after = asyncio.CancelledError


@bug("contract/source_handles_stay_open")
class ClosesItsSource(ObjectStoreOffloader):
    """Closes the handle that it copied.

    `async with handle` closes it, but the caller owns the handle and may copy it once more.
    """

    async def offload(self, handle: ReadHandle, *args: Any, **kwargs: Any) -> Receipt:
        async with handle:
            return await super().offload(handle, *args, **kwargs)


@bug("contract/extra_metadata_is_any_text")
class SendsMetadataAsHeaders(ObjectStoreOffloader):
    """Refuses metadata outside ASCII.

    It is sent as HTTP headers, as user metadata of objects is.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        if not all((name + text).isascii() for name, text in kwargs["extra_metadata"].items()):
            raise Misuse("a header must be ASCII")
        return await super().offload(*args, **kwargs)


@bug("contract/extra_metadata_is_any_text")
class AddsToTheMetadata(ObjectStoreOffloader):
    """Adds to the mapping of metadata that its caller gave.

    It adds a default to the caller's mapping, so the next ledger has it too.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        if kwargs["extra_metadata"]:
            try:
                kwargs["extra_metadata"]["by"] = "an archive"
            except TypeError as error:
                raise RuntimeError("the mapping cannot be changed") from error
        return await super().offload(*args, **kwargs)


@bug("contract/offloads_may_run_at_once")
class CopiesByOneCursor(ObjectStoreOffloader):
    """Keeps the current handle in the offloader itself.

    An attribute is used instead of a variable, so of two simultaneous ledgers one is stored twice.
    """

    current: ReadHandle

    async def offload(self, handle: ReadHandle, *args: Any, **kwargs: Any) -> Receipt:
        self.current = handle
        await asyncio.sleep(0)
        return await super().offload(self.current, *args, **kwargs)


@bug("contract/receipts_tell_what_was_copied")
class CountsEveryRecord(ObjectStoreOffloader):
    """Counts the records of tracking chunks as messages.

    Every record takes an offset, so the offsets are counted.
    """

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        receipt = await super().offload(*args, **kwargs)
        return replace(receipt, entries=[replace(each, messages=each.records) for each in receipt.entries])


@bug("contract/receipts_tell_what_was_copied")
class TakesTheLastTimeForTheGreatest(ObjectStoreOffloader):
    """Takes the timestamp of the last chunk for the greatest.

    Time usually rises, until somebody sets a clock.
    """

    async def offload(self, handle: ReadHandle, *args: Any, **kwargs: Any) -> Receipt:
        receipt = await super().offload(handle, *args, **kwargs)
        last_ms = int((await handle.table())["timestamp_ms"][-1])
        *entries, newest = receipt.entries
        return replace(receipt, entries=[*entries, replace(newest, last_timestamp_ms=last_ms)])


class Behind(StoreDecorator):
    """A store that keeps back what is put."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.buffered: dict[str, bytes] = {}

    async def put(self, key: str, body: Body) -> None:
        self.buffered[key] = b"".join([window async for window in body.windows()])

    async def create(self, key: str, data: bytes) -> None:
        for buffered, raw in self.buffered.items():
            await super().put(buffered, Body.of(raw))
        self.buffered.clear()
        await super().create(key, data)


@bug("contract/receipts_are_of_durable_bytes")
class SendsWithTheNextCommit(ObjectStoreOffloader):
    """Sends copied data only with its next commit.

    A transaction stays open until then; if another process commits, the data is missing.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(Behind(store))


@bug("contract/receipts_are_of_durable_bytes")
class TidiesUpAtItsClose(ObjectStoreOffloader):
    """Removes uncommitted copies when it is closed.

    An open transaction is rolled back with its connection, but another writer may commit or adopt the copies.
    """

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.open_attempts: set[UUID] = set()

    async def offload(self, *args: Any, **kwargs: Any) -> Receipt:
        receipt = await super().offload(*args, **kwargs)
        self.open_attempts.add(receipt.attempt.uid)
        return receipt

    async def aclose(self) -> None:
        rows = [row.key async for row in self.data.list("")]
        mine = [key for key in rows if any(str(uid) in key for uid in self.open_attempts)]
        await self.data.delete(mine)
        await super().aclose()


@bug("contract/ended_offloads_read_no_more")
class GoesOnInTheBackground(ObjectStoreOffloader):
    """Goes on with an offload whose caller was cancelled.

    `asyncio.shield` was meant to protect a single request.
    """

    async def offload(self, *args: Any, **options: Any) -> Receipt:
        return await asyncio.shield(asyncio.ensure_future(super().offload(*args, **options)))


@bug("contract/returned_offloads_read_no_more")
class ComparesLater(ObjectStoreOffloader):
    """Reads the ledger once more after `offload` has returned, to compare it.

    A background task, so that the caller need not wait.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        receipt = await super().offload(handle, attempt, **options)
        self.comparing = asyncio.ensure_future(handle.read(await handle.table()))
        return receipt


@bug("contract/cancelled_offloads_hinder_nobody")
class CleansUpWhenCancelled(ObjectStoreOffloader):
    """Deletes whatever lies behind the end of a stream when an offload of it is cancelled.

    Nothing is committed there, so it looks like what the cancelled offload has left.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except asyncio.CancelledError:
            await deleted_but(self, attempt, manifest)
            raise


@bug("contract/extra_metadata_is_any_text")
class AddsToTheCallersMetadata(ObjectStoreOffloader):
    """Adds its own names to the mapping that it was given.

    The mapping of the caller is used instead of a copy.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if isinstance(extra_metadata, dict):
            extra_metadata["attempt"] = str(attempt.uid)
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


class RetoldEntries(Table):
    """Fragments whose entries are told otherwise: the base of some bugs, itself without one."""

    def retold(self, entry: Entry, rows: ChunkTable, metadata: Mapping[str, str]) -> Entry:
        return entry

    async def insert(self, stream: str, row: FragmentRow) -> None:
        await super().insert(stream, replace(row, entry=self.retold(row.entry, row.rows, row.metadata)))

    async def upload(self, handle: ReadHandle, rows: ChunkTable, *arguments: Any, **keywords: Any) -> Entry:
        entry = await super().upload(handle, rows, *arguments, **keywords)
        metadata = next(each for each in (*arguments, *keywords.values()) if isinstance(each, Mapping))
        return self.retold(entry, rows, metadata)


async def _metadata_changes_nothing(open_: OpenClient) -> None:
    tier = await opened(open_)
    writer = await copied(tier, "s", ledger(0, ledger_id=1))
    given = {"ledger_id": "77", "codec": "1", "first_offset": "9"}
    _, receipt = await uploaded(tier, writer, ledger(3, ledger_id=2), **given)
    [entry] = receipt.entries
    assert (entry.ledger_id, entry.codec, entry.first_offset) == (2, 0, 3), entry


@bug("contract/extra_metadata_is_any_text", _metadata_changes_nothing)
class MetadataWinsOverColumns(RetoldEntries):
    """The row of a fragment is a document, into which the caller's metadata is merged last.

    Breaks "which is never read back and changes nothing else". Costs a caller that describes the ledger by a
    name that the backend has too.
    """

    def retold(self, entry: Entry, rows: ChunkTable, metadata: Mapping[str, str]) -> Entry:
        own = {name: int(value) for name, value in metadata.items() if name in ("ledger_id", "codec")}
        return replace(entry, **own)


async def _two_at_one_ledger(open_: OpenClient) -> None:
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


@bug("contract/errors_of_the_source_are_passed_on", _two_at_one_ledger)
class StagedByLedger(Table):
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


async def _times_to_the_millisecond(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    for number in range(200):
        time_ms = 1_700_000_000_000 + number * 7919
        _, receipt = await uploaded(tier, writer, ledger(0, 1, time_ms=time_ms))
        assert receipt.entries[0].last_timestamp_ms == time_ms, number


@bug("contract/offloads_may_run_at_once", _times_to_the_millisecond)
class TimesAreDatetimes(Table):
    """Times are columns of a type that keeps three-hundredths of a second, so a millisecond is rounded to 0,
    3 or 7.

    Breaks "the entries have the exact sizes and times of their chunks". Costs a reader that begins at a time
    its first chunk, which the tree says is older.
    """

    def row(self, *arguments: Any) -> FragmentRow:
        row = super().row(*arguments)
        first, last = self.kept(row.entry.first_timestamp_ms), self.kept(row.entry.last_timestamp_ms)
        return replace(row, entry=replace(row.entry, first_timestamp_ms=first, last_timestamp_ms=last))

    def kept(self, time_ms: int) -> int:
        return time_ms // 10 * 10 + (0, 0, 3, 3, 3, 7, 7, 7, 7, 10)[time_ms % 10]


def large_chunks(records: int) -> list[bytes]:
    """Return two chunks, the first one of sub-batches with this number of records each."""
    batches = [SubBatch.of([b""] * records, Codec.NONE) for _ in range(2)]
    one = build_chunk(batches, offset=0, timestamp_ms=1_700_000_000_000, epoch=1)
    return [one, *chunks_of(records * 2, 1)]


async def _records_of_sub_batches(open_: OpenClient) -> None:
    tier = open_()
    await copied(tier, "s", MemoryHandle(large_chunks(40_000)))
    view = await tier.view("s")
    entry = await view.find(0)
    assert entry is not None
    table = await (await view.open(entry)).table()
    assert table["records"].tolist() == [80_000]


@bug("contract/receipts_tell_what_was_copied", _records_of_sub_batches)
class RecordsAreShort(Table):
    """The number of a chunk's records is a column of 16 bits, as in its header the number of entries is.

    Breaks "Return one row per chunk of the range, in order": sub-batches make more records than entries.
    Costs the chunks behind such a one: the table has a hole.
    """

    def row(self, *arguments: Any) -> FragmentRow:
        row = super().row(*arguments)
        row.rows["records"] %= 2**16
        return row


async def _bounds_of_times(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    times = 1_700_000_000_500, 1_700_000_000_100, 1_700_000_000_300
    chunks = [
        build_chunk([b"x"], offset=at, timestamp_ms=time_ms, epoch=1) for at, time_ms in enumerate(times)
    ]
    _, receipt = await uploaded(tier, writer, MemoryHandle(chunks))
    [entry] = receipt.entries
    assert (entry.first_timestamp_ms, entry.last_timestamp_ms) == (min(times), max(times))


@bug("contract/receipts_tell_what_was_copied", _bounds_of_times)
class FirstTimeOfTheFirstChunk(Table):
    """The earliest time of a fragment is taken from its first chunk.

    Breaks "the entries have the exact sizes and times of their chunks": clocks of brokers go back. Costs
    retention by age the truth about the oldest record.
    """

    def row(self, *arguments: Any) -> FragmentRow:
        row = super().row(*arguments)
        first = int(row.rows["timestamp_ms"][0])
        return replace(row, entry=replace(row.entry, first_timestamp_ms=first))


async def _receipts_are_in_order(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, ledger(0, 8, size=40_000))
    firsts = [entry.first_offset for entry in receipt.entries]
    assert len(firsts) > 2
    assert firsts == sorted(firsts)
    assert receipt.next_offset == 8


@bug("contract/ended_offloads_read_no_more", _receipts_are_in_order)
class ReceiptsInOrderOfArrival(Table):
    """Fragments are uploaded at the same time, and a receipt lists them in the order in which they arrived.

    Breaks "The durable result of an attempt: the entries that a commit may now append, in order of offsets".
    Costs the commit, which finds a gap.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        receipt = await super().offload(handle, attempt, **options)
        arrived = sorted(receipt.entries, key=lambda entry: (entry.data_size_bytes, entry.checksum))
        return replace(receipt, entries=arrived)


async def _any_text(open_: OpenClient) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, ledger(0), note="", host="a\nb")
    assert receipt.next_offset == 3


@bug("contract/extra_metadata_is_any_text", _any_text)
class EmptyNotesAreRefused(Table):
    """A value for people that is empty is refused, as by a column that takes the empty string for NULL.

    Breaks "`extra_metadata` is for people who inspect the store: any text". Costs a copy that fails because a
    host has no rack.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if not all(extra_metadata.values()):
            raise Misuse("a value of the metadata is empty")
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


async def _last_chunk_damaged(open_: OpenClient, at: int = -1) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    chunks = chunks_of(0, 8, size=40_000)
    sound = ledger(0, 8, size=40_000)
    bad = bytearray(b"".join(chunks))
    bad[at] ^= 1

    class Bad(MemoryHandle):
        async def read(self, rows: ChunkTable) -> bytes:
            start = int(rows["position"][0])
            return bytes(bad[start : start + int(rows["size_bytes"].sum())])

    [attempt] = await writer.prepare([sound.ledger_id])
    await raises(Corrupt, tier.offload(Bad(chunks), attempt, manifest=writer.manifest, extra_metadata={}))


def trusted(raw: bytes, rows: ChunkTable) -> npt.NDArray[np.uint32]:
    """The checksums of chunks, unverified."""
    stops = np.cumsum(rows["size_bytes"])
    pairs = zip((stops - rows["size_bytes"]).tolist(), stops.tolist(), strict=True)
    return np.array([crc32(raw[int(start) : int(stop)]) for start, stop in pairs], np.uint32)


@bug("contract/offloads_are_checked", _last_chunk_damaged)
class LastFragmentIsNotChecked(Table):
    """Each fragment is checked while the next one is read, and the last one has no next.

    Breaks "A chunk whose bytes do not hold is never stored": damage at the end of a ledger is kept for ever.
    """

    is_last = False

    async def upload(self, handle: ReadHandle, rows: ChunkTable, *rest: Any) -> Entry:
        ends = int(rows["offset"][-1]) + int(rows["records"][-1]) == handle.next_offset
        self.is_last = ends and int(rows["offset"][0]) > handle.first_offset
        return await super().upload(handle, rows, *rest)

    def check(self, raw: bytes, rows: ChunkTable, where: str) -> npt.NDArray[np.uint32]:
        return trusted(raw, rows) if self.is_last else super().check(raw, rows, where)


async def _tracking_is_copied(open_: OpenClient) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), tracking(3), ledger(4))
    assert (writer.manifest.next_offset, writer.manifest.messages) == (7, 6)
    [attempt] = await writer.prepare([7])
    damaged = tracking(7, damaged=True)
    await raises(Corrupt, tier.offload(damaged, attempt, manifest=writer.manifest, extra_metadata={}))


@bug("contract/offloads_are_checked", _tracking_is_copied)
class TrackingIsNotChecked(Table):
    """Only chunks of messages are checked. Tracking chunks, which are the broker's own, are not.

    Breaks "A chunk whose bytes do not hold is never stored".
    """

    def check(self, raw: bytes, rows: ChunkTable, where: str) -> npt.NDArray[np.uint32]:
        if (rows["type"] == ChunkType.USER).any():
            return super().check(raw, rows, where)
        return trusted(raw, rows)


@bug("contract/receipts_tell_what_was_copied", _tracking_is_copied)
class FragmentsWithoutMessagesAreLeftOut(Table):
    """A fragment that holds no messages is not stored: `if not messages: continue`.

    Breaks "Copy every chunk of `handle`": the next append is a gap, and the stream stops.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        return replace(receipt, entries=[entry for entry in receipt.entries if entry.messages])


async def _before_1970(open_: OpenClient) -> None:
    tier = open_()
    for number, time_ms in enumerate((-5, -(2**62), 2**62, 0)):
        await copied(tier, f"s{number}", ledger(0, 1, time_ms=time_ms))
        [entry] = await entries_of(tier, await tier.load_manifest(f"s{number}"))
        assert entry.first_timestamp_ms == time_ms


@bug("contract/receipts_tell_what_was_copied", _before_1970)
class TimesHaveNoSign(Table):
    """Timestamps are stored without a sign.

    Breaks "Copy every chunk of `handle`": a chunk of before 1970, as a wrong clock writes, raises a raw
    error.
    """

    async def insert(self, stream: str, row: FragmentRow) -> None:
        row.entry.first_timestamp_ms.to_bytes(8, "big")
        await super().insert(stream, row)
