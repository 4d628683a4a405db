"""Mistakes on the way in: checks, receipts, sources, metadata, times."""

from __future__ import annotations

from collections.abc import Mapping
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
    tracking,
)
from newcomers.registry import Open, bug
from newcomers.table import Row, Table
from offload import MemoryHandle
from offload.contracts.ledger import ReadHandle
from offload.formats.checksums import crc32
from offload.ground.errors import Conflict, Corrupt
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
