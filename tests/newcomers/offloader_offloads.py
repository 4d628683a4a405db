"""Mistakes on the way in: checks, receipts, sources, metadata, times."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from newcomers.ledgers import (
    all_of,
    attempt_of,
    chunks_of,
    copied,
    entries_of,
    ledger,
    raises,
    stumbling,
    tracking,
    uploaded,
)
from newcomers.registry import Open, bug
from newcomers.sound import Tier
from newcomers.table import Row, Table
from offload import MemoryHandle
from offload.contracts.ledger import ReadHandle
from offload.formats.checksums import crc32
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Conflict, Corrupt, TryAgain
from offload.model.attempt import Attempt, Receipt
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entry
from offload.model.manifest import Manifest
from offload.write.writer import StreamWriter


async def _refused_before_bytes(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), first=0)
    source, absent = ledger(3), Attempt(stream="s", ledger_id=3, uid=uuid4())
    await raises(Conflict, tier.offload(source, absent, manifest=writer.manifest, extra_metadata={}))
    assert [row for row in tier.db.uploaded("s") if row.entry.attempt == absent.uid] == []


@bug(_refused_before_bytes)
class RefusesAfterTheUpload(Table):
    """The attempt is checked when its rows are registered, after they were sent.

    Breaks "`offload` refuses an attempt that its manifest does not run before the first byte is stored".
    """

    def check_attempt(self, handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> bool:
        return False if not manifest.runs(attempt.uid) else super().check_attempt(handle, attempt, manifest)

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        super().check_attempt(handle, attempt, manifest)
        return receipt


async def _another_streams_attempt(open_: Open) -> None:
    tier = open_()
    one, _ = await copied(tier, "one", ledger(0)), await copied(tier, "two", ledger(0))
    [attempt] = await one.prepare([3])
    other = Attempt(stream="two", ledger_id=3, uid=attempt.uid)
    await raises(Conflict, tier.offload(ledger(3), other, manifest=one.manifest, extra_metadata={}))


@bug(_another_streams_attempt)
class AttemptsOfAnyStream(Table):
    """A running attempt is identified by its UUID alone, in any stream.

    Breaks "refuses an attempt that its manifest does not run": bytes of one stream are stored as another's.
    """

    def check_attempt(self, handle: ReadHandle, attempt: Attempt, manifest: Manifest) -> bool:
        return super().check_attempt(handle, replace(attempt, stream=manifest.stream), manifest)


@bug(_another_streams_attempt)
class AttemptsOfAnyStreamInObjects(Tier):
    """As `AttemptsOfAnyStream`, on objects: the author repeats only a part of the check.

    Breaks "refuses an attempt that its manifest does not run".
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        if manifest.runs(attempt.uid):
            manifest = replace(manifest, stream=attempt.stream)
        return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


async def _last_chunk_damaged(open_: Open, at: int = -1) -> None:
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


@bug(_last_chunk_damaged)
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


async def _entries_in_order(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0, 30, size=30_000))
    _, receipt = await uploaded(tier, writer, ledger(30, 30, size=30_000))
    firsts = [entry.first_offset for entry in receipt.entries]
    assert len(firsts) > 3
    assert firsts == sorted(firsts)


@bug(_entries_in_order)
class EntriesInOrderOfArrival(Table):
    """Fragments are uploaded four at a time, and the receipt lists them in the order in which they end.

    Breaks "Receipt: the entries, in order of offsets": the append is refused as a gap.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        entries = list(receipt.entries)
        return replace(receipt, entries=[*entries[1:4], *entries[:1], *entries[4:]])


async def _handle_stays_open(open_: Open) -> None:
    tier = open_()

    class Watched(MemoryHandle):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    writer = await StreamWriter.claim(tier, "s")
    handle = Watched(chunks_of(0))
    await uploaded(tier, writer, handle)
    assert not handle.closed


@bug(_handle_stays_open)
class ClosesTheSourcesHandle(Table):
    """`offload` closes the handle at its end: `async with handle`.

    Breaks "`aclose`: Release files": it is the caller's, who reads the last chunk again to compare it.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        async with handle:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)


async def _source_stumbles(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    handle = stumbling(TryAgain("the source moved a file"), 100)
    [attempt] = await writer.prepare([handle.ledger_id])
    await raises(TryAgain, tier.offload(handle, attempt, manifest=writer.manifest, extra_metadata={}))


@bug(_source_stumbles)
class SourcesTryAgainIsDamage(Table):
    """Every error of the source during a read becomes `Corrupt`.

    Breaks "`read` raises `TryAgain` where the source is gone for now": sound data is reported as damaged, and
    cut off.
    """

    async def upload(self, handle: ReadHandle, rows: ChunkTable, *rest: Any) -> Entry:
        try:
            return await super().upload(handle, rows, *rest)
        except TryAgain as exc:
            raise Corrupt("chunk", handle.where, expected="readable", found=str(exc)) from exc


async def _source_stumbles_once(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    handle = stumbling(TryAgain("the source moved a file"))
    [attempt] = await writer.prepare([handle.ledger_id])
    with suppress(TryAgain):
        receipt = await tier.offload(handle, attempt, manifest=writer.manifest, extra_metadata={})
        assert receipt.next_offset == 8
        assert sum(entry.records for entry in receipt.entries) == 8


@bug(_source_stumbles_once)
class StumblingSourceEndsTheLedger(Table):
    """A source that is unavailable counts as one that ends there, and the part so far is a success.

    Breaks "Copy every chunk of `handle`, and return once all of it is durable": the rest is never copied.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        self.sent: list[Entry] = []
        try:
            return await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        except TryAgain:
            if not self.sent:
                raise
            return Receipt(attempt=attempt, entries=self.sent)

    async def upload(self, *arguments: Any) -> Entry:
        entry = await super().upload(*arguments)
        self.sent.append(entry)
        return entry


async def _metadata_is_any_text(open_: Open) -> None:
    tier = open_()
    writer = await StreamWriter.claim(tier, "s")
    for at, metadata in enumerate(
        [
            {"söurce": "brökers/ß€😀"},
            {"stream": "other", "attempt": "x", "ledger_id": "9"},
            {"long": "x" * 5000},
            {"": ""},
        ]
    ):
        _, receipt = await uploaded(tier, writer, ledger(at * 3), **metadata)
        await writer.append([receipt])
    assert writer.manifest.next_offset == 12
    for entry in await entries_of(tier, writer.manifest):
        async with await tier.read_offloaded(attempt_of("s", entry)) as handle:
            assert (handle.first_offset, handle.ledger_id) == (entry.first_offset, entry.ledger_id)


@bug(_metadata_is_any_text)
class MetadataIsAscii(Table):
    """Metadata is sent as headers, in ASCII.

    Breaks "`extra_metadata` is for people": a host name with an umlaut ends the offload with a raw error.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        headers = {
            f"x-meta-{name}".encode("ascii"): text.encode("ascii") for name, text in extra_metadata.items()
        }
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        assert len(headers) == len(extra_metadata)
        return receipt


@bug(_metadata_is_any_text)
class MetadataReplacesColumns(Table):
    """A fragment's row is `{"ledger_id": ..., **extra_metadata}`, so metadata of that name replaces the
    column.

    Breaks "`extra_metadata` is never read back": a fragment is found under another ledger, or not at all.
    """

    async def insert(self, stream: str, row: Row) -> None:
        columns = {"ledger_id": row.entry.ledger_id, "stream": stream, **row.metadata}
        with suppress(ValueError, TypeError):
            row = replace(row, entry=replace(row.entry, ledger_id=int(columns["ledger_id"])))
        await super().insert(str(columns["stream"]), row)


async def _large_chunks(open_: Open) -> None:
    tier = open_()
    for size in (100, 65_000, 65_535, 65_536, 100_000, 1_100_000):
        stream = f"s{size}"
        await copied(tier, stream, ledger(0, 2, size=size))
        [*entries] = await entries_of(tier, await tier.load_manifest(stream))
        async with await tier.read_offloaded(attempt_of(stream, entries[0])) as handle:
            assert await all_of(handle) == b"".join(chunks_of(0, 2, size=size))


@bug(_large_chunks)
class ChunksAreCutAt64KiB(Table):
    """The column is a `BLOB` of 65,535 bytes, and the database truncates longer chunks without an error.

    Breaks "What is read back is, chunk for chunk, the bytes that were offloaded", for large chunks.
    """

    async def insert(self, stream: str, row: Row) -> None:
        await super().insert(stream, replace(row, data=row.data[:65_535] if len(row.rows) == 1 else row.data))


@bug(_large_chunks)
class ChunksOfAMegabyteAreTooLarge(Table):
    """The service takes items of 1 MB, and a larger chunk raises the service's own error.

    Breaks "Copy every chunk of `handle`": a stream with one large message can never be offloaded.
    """

    async def insert(self, stream: str, row: Row) -> None:
        if int(row.rows["size_bytes"].max()) > 1_000_000:
            raise ValueError("ItemSizeLimitExceeded")
        await super().insert(stream, row)


async def _tracking_is_copied(open_: Open) -> None:
    tier = open_()
    writer = await copied(tier, "s", ledger(0), tracking(3), ledger(4))
    assert (writer.manifest.next_offset, writer.manifest.messages) == (7, 6)
    [attempt] = await writer.prepare([7])
    damaged = tracking(7, damaged=True)
    await raises(Corrupt, tier.offload(damaged, attempt, manifest=writer.manifest, extra_metadata={}))


@bug(_tracking_is_copied)
class TrackingIsNotChecked(Table):
    """Only chunks of messages are checked. Tracking chunks, which are the broker's own, are not.

    Breaks "A chunk whose bytes do not hold is never stored".
    """

    def check(self, raw: bytes, rows: ChunkTable, where: str) -> npt.NDArray[np.uint32]:
        if (rows["type"] == ChunkType.USER).any():
            return super().check(raw, rows, where)
        return trusted(raw, rows)


@bug(_tracking_is_copied)
class FragmentsWithoutMessagesAreLeftOut(Table):
    """A fragment that holds no messages is not stored: `if not messages: continue`.

    Breaks "Copy every chunk of `handle`": the next append is a gap, and the stream stops.
    """

    async def offload(
        self, handle: ReadHandle, attempt: Attempt, *, manifest: Manifest, extra_metadata: Mapping[str, str]
    ) -> Receipt:
        receipt = await super().offload(handle, attempt, manifest=manifest, extra_metadata=extra_metadata)
        return replace(receipt, entries=[entry for entry in receipt.entries if entry.messages])


@bug(_tracking_is_copied)
class MessagesAreAllRecords(Table):
    """Every record counts as a message, even a tracking record of the broker.

    Breaks "`messages`: how many of them are records of user chunks": counts never agree with the broker's.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        return replace(row, entry=replace(row.entry, messages=row.entry.records))


async def _times_are_exact(open_: Open) -> None:
    tier = open_()
    chunks = [
        build_chunk([b"x"], offset=number, timestamp_ms=time_ms, epoch=1)
        for number, time_ms in enumerate(
            [1_700_000_000_123, 1_700_000_000_999, 1_700_000_000_001, 1_700_000_000_456]
        )
    ]
    await copied(tier, "s", MemoryHandle(chunks))
    [entry] = await entries_of(tier, await tier.load_manifest("s"))
    assert (entry.first_timestamp_ms, entry.last_timestamp_ms) == (1_700_000_000_001, 1_700_000_000_999)


@bug(_times_are_exact)
class TimesAreRoundedToSeconds(Table):
    """Timestamps are columns of seconds.

    Breaks "`first_timestamp_ms`: the least timestamp of any chunk": a reader that attaches at a time begins
    too late.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        first, last = (
            time // 1000 * 1000 for time in (row.entry.first_timestamp_ms, row.entry.last_timestamp_ms)
        )
        return replace(row, entry=replace(row.entry, first_timestamp_ms=first, last_timestamp_ms=last))


@bug(_times_are_exact)
class TimesOfTheFirstAndTheLastChunk(Table):
    """A fragment's times are those of its first and last chunk, as if clocks never went back.

    Breaks "the least timestamp of any chunk", and the greatest: a search by time skips the fragment.
    """

    def row(self, *arguments: Any) -> Row:
        row = super().row(*arguments)
        times = row.rows["timestamp_ms"]
        return replace(
            row, entry=replace(row.entry, first_timestamp_ms=int(times[0]), last_timestamp_ms=int(times[-1]))
        )


async def _before_1970(open_: Open) -> None:
    tier = open_()
    for number, time_ms in enumerate((-5, -(2**62), 2**62, 0)):
        await copied(tier, f"s{number}", ledger(0, 1, time_ms=time_ms))
        [entry] = await entries_of(tier, await tier.load_manifest(f"s{number}"))
        assert entry.first_timestamp_ms == time_ms


@bug(_before_1970)
class TimesHaveNoSign(Table):
    """Timestamps are stored without a sign.

    Breaks "Copy every chunk of `handle`": a chunk of before 1970, as a wrong clock writes, raises a raw
    error.
    """

    async def insert(self, stream: str, row: Row) -> None:
        row.entry.first_timestamp_ms.to_bytes(8, "big")
        await super().insert(stream, row)
