"""Fourth set, offloaders: receipts, and the names of what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from newcomers.fourth_sound import Relay, Rows, copying
from newcomers.ledgers import (
    all_of,
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
    tracking,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.sound import Ledgers
from newcomers.table import Database, Row
from offload import MemoryHandle
from offload.contracts.ledger import ReadHandle
from offload.formats.chunk_writer import build_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.ground.errors import Misuse
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.model.tokens import token_for
from offload.write.job import Job
from offload.write.writer import StreamWriter

# Receipts


async def _times_to_the_millisecond(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    for number in range(200):
        time_ms = 1_700_000_000_000 + number * 7919
        _, receipt = await uploaded(tier, writer, ledger(0, 1, time_ms=time_ms))
        assert receipt.entries[0].last_timestamp_ms == time_ms, number


@bug(_times_to_the_millisecond)
class TimesAreDatetimes(Rows):
    """Times are columns of a type that keeps three-hundredths of a second, so a millisecond is rounded to 0,
    3 or 7.

    Breaks "the entries have the exact sizes and times of their chunks". Costs a reader that begins at a time
    its first chunk, which the tree says is older.
    """

    def row(self, *arguments: Any) -> Row:
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


async def _records_of_sub_batches(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", MemoryHandle(large_chunks(40_000)))
    view = await tier.view("s")
    entry = await view.find(0)
    assert entry is not None
    table = await (await view.open(entry)).table()
    assert table["records"].tolist() == [80_000]


@bug(_records_of_sub_batches)
class RecordsAreShort(Rows):
    """The number of a chunk's records is a column of 16 bits, as in its header the number of entries is.

    Breaks "Return one row per chunk of the range, in order": sub-batches make more records than entries.
    Costs the chunks behind such a one: the table has a hole.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        row.rows["records"] %= 2**16
        return row


async def _bounds_of_times(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    times = 1_700_000_000_500, 1_700_000_000_100, 1_700_000_000_300
    chunks = [
        build_chunk([b"x"], offset=at, timestamp_ms=time_ms, epoch=1) for at, time_ms in enumerate(times)
    ]
    _, receipt = await uploaded(tier, writer, MemoryHandle(chunks))
    [entry] = receipt.entries
    assert (entry.first_timestamp_ms, entry.last_timestamp_ms) == (min(times), max(times))


@bug(_bounds_of_times)
class FirstTimeOfTheFirstChunk(Rows):
    """The earliest time of a fragment is taken from its first chunk.

    Breaks "the entries have the exact sizes and times of their chunks": clocks of brokers go back. Costs
    retention by age the truth about the oldest record.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        first = int(row.rows["timestamp_ms"][0])
        return replace(row, entry=replace(row.entry, first_timestamp_ms=first))


async def _long_ledger_ids(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, ledger(0, ledger_id=2**53 + 1))
    assert receipt.entries[0].ledger_id == 2**53 + 1


@bug(_long_ledger_ids)
class LedgerIdsAreDoubles(Rows):
    """Ids of ledgers pass through JSON, whose numbers are doubles in the other program.

    Breaks "The id of the ledger". Costs a broker whose ids are hashes: its entries name ledgers that do not
    exist.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        rounded = min(int(float(row.entry.ledger_id)), 2**64 - 1)
        return replace(row, entry=replace(row.entry, ledger_id=rounded))


async def _receipts_are_in_order(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, ledger(0, 8, size=40_000))
    firsts = [entry.first_offset for entry in receipt.entries]
    assert len(firsts) > 2
    assert firsts == sorted(firsts)
    assert receipt.next_offset == 8


@bug(_receipts_are_in_order)
class ReceiptsInOrderOfArrival(Rows):
    """Fragments are uploaded at the same time, and a receipt lists them in the order in which they arrived.

    Breaks "The durable result of an attempt: the entries that a commit may now append, in order of offsets".
    Costs the commit, which finds a gap.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        receipt = await super().offload(handle, attempt, **options)
        arrived = sorted(receipt.entries, key=lambda entry: (entry.data_size_bytes, entry.checksum))
        return replace(receipt, entries=arrived)


async def _tracking_is_no_message(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    _, receipt = await uploaded(tier, writer, tracking(0))
    await writer.append([receipt])
    assert writer.manifest.messages == 0
    assert await (await tier.view("s")).last_with_messages() is None


@bug(_tracking_is_no_message)
class EveryRecordIsAMessage(Rows):
    """The messages of a fragment are the records of its chunks, of whatever type.

    Breaks "Offsets and numbers of messages are always exact". Costs the count of messages, and a reader that
    looks for the last one.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        return replace(row, entry=replace(row.entry, messages=row.entry.records))


# Names of what is stored


async def _copy_beside_its_original(open_: Open) -> None:
    tier = open_()
    await StreamWriter.claim(tier, "s")
    job = await Job.begin(tier, "s")
    for at in (0, 3, 6):
        manifest, [attempt] = await job.prepare([1], token=token_for("batch"))
        handle = ledger(at, ledger_id=1)
        receipt = await tier.offload(handle, attempt, manifest=manifest, extra_metadata={})
        await job.append([receipt])
    old = (await entries_of(tier, job.manifest))[:2]
    await copying(tier, "s", old)
    handle = await tier.read_offloaded(attempt_of("s", old[0]), manifest=job.manifest)
    assert await all_of(handle) == b"".join(chunks_of(0))


class HalfKeys(Database):
    """A database whose rows are named by the first half of a UUID."""

    def half(self, uid: UUID) -> UUID:
        return UUID(bytes=uid.bytes[:8] + bytes(8))

    def insert(self, stream: str, row: Row) -> None:
        self.fragments[stream, row.entry.first_offset, self.half(row.entry.attempt)] = row

    def remove(self, stream: str, first_offset: int, attempt: UUID) -> None:
        self.fragments.pop((stream, first_offset, self.half(attempt)), None)


@bug(_copy_beside_its_original)
class HalfAUuid(Rows):
    """Rows are named by the first eight bytes of an attempt, which is enough for random ones.

    Breaks "No two attempts share an object". Costs a batch with a token: a copy of it has the same first
    half, and overwrites what it copies before anybody committed it.
    """

    PLACES: Final[dict[str, HalfKeys]] = {}

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.db: HalfKeys = self.PLACES.setdefault(url, HalfKeys())

    def fetched(self, stream: str, entry: Entry) -> Row:
        row = self.db.fragments.get((self.name(stream), entry.first_offset, self.db.half(entry.attempt)))
        if row is None or row.entry.attempt != entry.attempt:
            return super().fetched(stream, entry)
        return row


async def _two_at_once(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    ledgers = [ledger(at, 8, size=40_000, ledger_id=at) for at in (0, 8)]
    attempts = await writer.prepare([0, 8])
    receipts = await asyncio.gather(
        *(
            tier.offload(handle, attempt, manifest=writer.manifest, extra_metadata={})
            for handle, attempt in zip(ledgers, attempts, strict=True)
        )
    )
    for receipt, attempt in zip(receipts, attempts, strict=True):
        assert {entry.attempt for entry in receipt.entries} == {attempt.uid}


@bug(_two_at_once)
class AttemptInAField(Rows):
    """The attempt under way is a field of the offloader, and each row is written under it.

    Breaks "its methods may be called at the same time". Costs the fragments of one of two uploads: they are
    stored under the other's attempt.
    """

    under_way: Attempt | None = None

    def check_attempt(self, handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> bool:
        self.under_way = attempt
        return super().check_attempt(handle, attempt, manifest)

    def row(self, raw: bytes, rows: ChunkTable, checksums: Any, attempt: Attempt, *rest: Any) -> Row:
        return super().row(raw, rows, checksums, self.under_way or attempt, *rest)


async def _copies_within_a_tier(open_: Open) -> None:
    tier = open_()
    await copied(tier, "s", ledger(0))
    view = await tier.view("s")
    entry = await view.find(0)
    writer = await StreamWriter.claim(tier, "t")
    async with asyncio.timeout(5):
        await uploaded(tier, writer, await view.open(entry))


@bug(_copies_within_a_tier)
class OneLockForAll(Rows):
    """An offloader holds its lock during an upload, and takes it for each read of a row.

    Breaks "its methods may be called at the same time". Costs a copy within the tier, such as a compaction:
    its source waits for the lock that the upload holds.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.lock = asyncio.Lock()

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        async with self.lock:
            return await super().offload(handle, attempt, **options)

    def handle(self, parts: Sequence[Row], where: str) -> ReadHandle:
        lock = self.lock

        class Locked(Relay):
            async def read(self, rows: ChunkTable) -> Any:
                async with lock:
                    return await self.handle.read(rows)

        return Locked(super().handle(parts, where))


async def _readable_at_once(open_: Open) -> None:
    tier, other = open_(), open_()
    await copied(tier, "s", ledger(0))
    view = await other.view("s")
    assert await all_of(await view.open(await view.find(0))) == b"".join(chunks_of(0))


@bug(_readable_at_once)
class WritesBehind(Rows):
    """Rows are sent by a producer that waits for 50 ms to send several together, and nobody flushes it.

    Breaks "return once all of it is durable. Anybody can commit and read it from then on". Costs the source
    copy: it goes while the rows are still in memory.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sending: set[asyncio.Task[None]] = set()

    async def insert(self, stream: str, row: Row) -> None:
        async def later() -> None:
            await asyncio.sleep(0.05)
            self.db.insert(self.name(stream), row)

        task = asyncio.create_task(later())
        self.sending.add(task)
        task.add_done_callback(self.sending.discard)


class Counting(MemoryHandle):
    """A ledger that counts its reads."""

    reads = 0

    async def read(self, rows: ChunkTable) -> Any:
        self.reads += 1
        return await super().read(rows)


async def _refused_before_any_read(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s", first_offset=2**63 - 2)
    handle = Counting(chunks_of(2**63 - 2, 4))
    await raises(Misuse, uploaded(tier, writer, handle))
    assert handle.reads == 0


@bug(_refused_before_any_read)
class SixtyThreeBitsAreFoundLate(Ledgers):
    """That an offset does not fit is found when its row is inserted.

    Breaks "a backend that keeps only 63 raises `Misuse` for a ledger that goes further, before it reads any
    of it". Costs the reading of such a ledger, and rows of a part of it.
    """

    async def offload(self, handle: ReadHandle, attempt: Attempt, **options: Any) -> Receipt:
        if handle.next_offset >= 2**63:
            for rows in handle.windows(await handle.table()):
                await handle.read(rows)
        return await super().offload(handle, attempt, **options)
