"""Ledgers for tests: handles in memory, and streams of many shapes with the messages expected of them.

Invariant: `Sample.messages`, the expectation, is written down while the stream is made. It is never read
back from the chunks, because then a mistake in reading could hide in the expectation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from offload.contracts.store import Buffer
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.formats.tracking import ConsumerOffset, ProducerSequence
from offload.log.memory_handle import MemoryHandle
from offload.model.chunk_table import ChunkTable, ChunkType

EPOCH: Final = 3
BIRTH_MS: Final = 1_700_000_000_000
POSITION: Final = 4_096
"""The leader epoch, first timestamp and first position of everything made here."""


class MemoryLedger(MemoryHandle):
    """Chunks in memory as a snapshot of a ledger.

    `before_read` is awaited with the rows of each read. By default it lets other tasks run once. `closed`
    counts how often the handle was closed.

    The ledger lies in the middle of its file: positions begin at `POSITION`. So an offloader that takes them
    for positions in the ledger is found out. Only the handle, and people who look for damage, may use them.
    """

    def __init__(
        self, chunks: Sequence[bytes], *, ledger_id: int | None = None, where: str = "memory"
    ) -> None:
        super().__init__(chunks, ledger_id=ledger_id, where=where)
        self.chunks: Final = tuple(chunks)
        self._shown = self._table.copy()
        self._shown["position"] += POSITION
        self.before_read: Callable[[ChunkTable], Awaitable[None]] = give_way
        self.closed = 0

    async def aclose(self) -> None:
        """Count the call."""
        self.closed += 1

    async def table(self) -> ChunkTable:
        """Return one row per chunk, except one that `with_a_hole` left out."""
        return self._shown

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return the bytes of these rows."""
        await self.before_read(rows)
        # Rows are matched by offset: the positions that callers see were changed, and may be scattered.
        wanted = {*rows["offset"].tolist()}
        return await super().read(
            self._table[[offset in wanted for offset in self._table["offset"].tolist()]]
        )

    def damaged(self, offset: int, *, byte: int, where: str | None = None) -> MemoryLedger:
        """Return the same ledger with one flipped bit, in this byte of the chunk that begins at `offset`.

        Its table is that of the sound ledger, as in an index that was written before the damage. An offloader
        that checks the table only does not see this damage.
        """
        start, end = self.span_of(offset)
        raw = bytearray(self._data)
        raw[start + byte % (end - start)] ^= 0b100
        other = self._with(bytes(raw))
        other._where = where or other._where
        return other

    def torn(self, offset: int) -> MemoryLedger:
        """Return the same ledger, cut three bytes before the end of the chunk at `offset`."""
        return self._with(self._data[: self.span_of(offset)[1] - 3])

    def with_a_hole(self, row: int) -> MemoryLedger:
        """Return the same ledger with a table that leaves out the chunk of this row."""
        other = self._with(self._data)
        offsets = self._table["offset"]
        other._shown = self._shown[offsets != offsets[row]]
        return other

    def scattered(self) -> MemoryLedger:
        """Return the same ledger with gaps between its chunks, as if it were in many files."""
        other = self._with(self._data)
        for row in range(len(self._table)):
            other._shown["position"][row] += row * POSITION
        return other

    def positions_of(self, offset: int) -> tuple[int, int]:
        """Return the file positions between which the chunk that begins at `offset` lies."""
        start, end = self.span_of(offset)
        return start + POSITION, end + POSITION

    def span_of(self, offset: int) -> tuple[int, int]:
        """Return the positions in the ledger between which the chunk that begins at `offset` lies."""
        row = self._table["offset"].tolist().index(offset)
        start = sum(len(chunk) for chunk in self.chunks[:row])
        return start, start + len(self.chunks[row])

    def _with(self, data: bytes) -> MemoryLedger:
        other = MemoryLedger(self.chunks, ledger_id=self._ledger_id, where=self._where)
        # The table stays that of the sound chunks, like an index written before the damage.
        other._data = data
        return other


async def give_way(rows: ChunkTable) -> None:
    """Let other tasks run."""
    await asyncio.sleep(0)


async def refuse_reads(rows: ChunkTable) -> None:
    """Fail: an offloader has to refuse this ledger before it reads any of it."""
    offsets = rows["offset"].tolist()
    raise AssertionError(f"expected a refusal before the first read; found a read of the chunks at {offsets}")


def ledger_of(records: int, *, first_offset: int = 0, body_size_bytes: int = 8) -> MemoryLedger:
    """Return a ledger of so many records, one in each chunk, whose bodies name their offsets."""
    return MemoryLedger(
        [
            build_chunk(
                [b"%d" % offset + b"." * body_size_bytes],
                offset=offset,
                timestamp_ms=BIRTH_MS + offset % 2**40,
                epoch=EPOCH,
            )
            for offset in range(first_offset, first_offset + records)
        ]
    )


def noisy_ledger(records: int, *, body_size_bytes: int = 1024) -> MemoryLedger:
    """Return a ledger of so many records, one in each chunk, of bytes that nobody compresses or expects."""
    return MemoryLedger(
        [
            build_chunk(
                [random.randbytes(body_size_bytes)],
                offset=offset,
                timestamp_ms=BIRTH_MS + offset,
                epoch=EPOCH,
            )
            for offset in range(records)
        ]
    )


def drawn_ledger(
    chunks: int, *, first_offset: int = 0, ledger_id: int | None = None, size_bytes_max: int = 4096
) -> MemoryLedger:
    """Return a ledger of so many chunks, with random records, sizes, bytes and gaps in time.

    Each chunk has one to four records. A body is empty, short or up to `size_bytes_max` long, and consists of
    random bytes or of one byte repeated.
    """
    raws, offset, timestamp_ms = [], first_offset, BIRTH_MS
    for _ in range(chunks):
        bodies = []
        for _ in range(random.randint(1, 4)):
            # Empty and tiny bodies often, because mistakes at the edges of a buffer need them.
            size = random.choice((0, 1, 30, random.randrange(size_bytes_max)))
            # Bytes that compress and bytes that do not: a backend may compress on the way.
            bodies.append(random.randbytes(size) if random.randrange(2) else random.randbytes(1) * size)
        raws.append(build_chunk(bodies, offset=offset, timestamp_ms=timestamp_ms, epoch=EPOCH))
        offset, timestamp_ms = offset + len(bodies), timestamp_ms + random.choice((0, 1, 999, 3_600_001))
    return MemoryLedger(raws, ledger_id=ledger_id, where=f"drawn/{random.getrandbits(32)}.segment")


@dataclass
class Sample:
    """A stream of some shape: its chunks, and the messages that a reader must get."""

    chunks: list[bytes] = field(default_factory=list)
    messages: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Offset, timestamp and body of every message, in order."""

    times: list[tuple[int, int]] = field(default_factory=list)
    """Offset and timestamp of every chunk, in order."""

    tracking: list[int] = field(default_factory=list)
    """The indexes of the tracking chunks."""

    next_offset: int = 0

    def add(self, entries: Sequence[bytes | list[bytes]], *, timestamp_ms: int) -> None:
        """Add a user chunk. A list among the entries becomes a sub-batch."""
        bodies = [b for entry in entries for b in (entry if isinstance(entry, list) else [entry])]
        chunk = build_chunk(
            [SubBatch.of(entry, Codec.GZIP) if isinstance(entry, list) else entry for entry in entries],
            offset=self.next_offset,
            timestamp_ms=timestamp_ms,
            epoch=EPOCH,
        )
        self.messages += [(self.next_offset + n, timestamp_ms, body) for n, body in enumerate(bodies)]
        self._push(chunk, records=len(bodies), timestamp_ms=timestamp_ms)

    def add_tracking(self, chunk_type: ChunkType, *, timestamp_ms: int) -> None:
        """Add a tracking chunk, which takes an offset and is delivered to nobody."""
        blocks = (
            ProducerSequence(name=b"producer", chunk_offset=0, sequence=self.next_offset),
            ConsumerOffset(name=b"consumer", offset=0),
        )
        chunk = build_tracking_chunk(
            blocks, chunk_type=chunk_type, offset=self.next_offset, timestamp_ms=timestamp_ms, epoch=EPOCH
        )
        self.tracking.append(len(self.chunks))
        self._push(chunk, records=1, timestamp_ms=timestamp_ms)

    def ledgers(self, count: int) -> list[MemoryLedger]:
        """Return the stream as at most `count` consecutive ledgers."""
        size = -(-len(self.chunks) // count)
        return [MemoryLedger(self.chunks[start : start + size]) for start in range(0, len(self.chunks), size)]

    def messages_from(self, offset: int) -> list[tuple[int, int, bytes]]:
        """Return the messages that a reader gets from `offset` on."""
        return [message for message in self.messages if message[0] >= offset]

    def offset_since(self, timestamp_ms: int) -> int:
        """Return the first offset of the first chunk with this time or a later one, by the definition."""
        return next((offset for offset, at in self.times if at >= timestamp_ms), self.next_offset)

    def _push(self, chunk: bytes, *, records: int, timestamp_ms: int) -> None:
        self.chunks.append(chunk)
        self.times.append((self.next_offset, timestamp_ms))
        self.next_offset += records


def simple() -> Sample:
    """Return chunks of one to five plain messages, of which one is empty."""
    sample = Sample()
    for n in range(12):
        sample.add([b"%d/%d" % (n, k) * k for k in range(1 + n % 5)], timestamp_ms=BIRTH_MS + 10 * n)
    return sample


def sub_batches() -> Sample:
    """Return chunks with plain messages and compressed runs of messages side by side."""
    sample = Sample()
    for n in range(9):
        run = [b"batched %d" % k for k in range(1 + n)]
        sample.add([b"before", run, b"between", run], timestamp_ms=BIRTH_MS + n)
    return sample


@cache
def crowded() -> list[bytes]:
    """Return chunks of so many records that 8, 16 or 24 bits cannot count them."""
    most, chunks, offset = 2**16 - 1, list[bytes](), 0
    full = SubBatch.of([b""] * most, Codec.GZIP)
    for records in (1, 2**8, 2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**17 + 5, 2**24 + 3):
        entries: list[bytes | SubBatch] = [full] * (records // most)
        if records % most:
            entries.append(SubBatch.of([b"."] * (records % most), Codec.GZIP))
        chunks.append(build_chunk(entries, offset=offset, timestamp_ms=BIRTH_MS, epoch=EPOCH))
        offset += records
    return chunks


def with_tracking() -> Sample:
    """Return tracking chunks first, last, and two in a row between messages."""
    sample = Sample()
    for n, kind in enumerate("SuuDDuSuD"):
        if kind == "u":
            sample.add([b"message %d" % n, b"another"], timestamp_ms=BIRTH_MS + n)
        else:
            chunk_type = ChunkType.TRACKING_SNAPSHOT if kind == "S" else ChunkType.TRACKING_DELTA
            sample.add_tracking(chunk_type, timestamp_ms=BIRTH_MS + n)
    return sample


def clock_goes_back() -> Sample:
    """Return timestamps that fall, repeat and rise again, as after a clock was set or leaders changed."""
    sample = Sample()
    for n, seconds in enumerate((5, 6, 6, 2, 1, 9, 9, 3, 10, -7, 11, 11)):
        sample.add([b"message %d" % n, b"another"], timestamp_ms=BIRTH_MS + 1000 * seconds)
    return sample


def before_1970() -> Sample:
    """Return timestamps below zero, zero, and as far from it as 2^62 ms."""
    sample = Sample()
    for n, timestamp_ms in enumerate((-5, 0, -(2**62), 2**62, BIRTH_MS, -1)):
        sample.add([b"message %d" % n], timestamp_ms=timestamp_ms)
    return sample


def tracking_alone() -> Sample:
    """Return only tracking chunks: a fragment of them has no message."""
    sample = Sample()
    for n, chunk_type in enumerate((ChunkType.TRACKING_SNAPSHOT, *[ChunkType.TRACKING_DELTA] * 3)):
        sample.add_tracking(chunk_type, timestamp_ms=BIRTH_MS + n)
    return sample


def huge_chunk(size_bytes: int) -> Sample:
    """Return one chunk of about so many bytes between two small ones."""
    sample = Sample()
    sample.add([b"before"], timestamp_ms=BIRTH_MS)
    sample.add([bytes(range(256)) * (size_bytes // 1024)] * 4, timestamp_ms=BIRTH_MS + 1)
    sample.add([b"after"], timestamp_ms=BIRTH_MS + 2)
    return sample


def tiny_chunks(count: int) -> Sample:
    """Return so many chunks of one short message each."""
    sample = Sample()
    for n in range(count):
        sample.add([b"%d" % n], timestamp_ms=BIRTH_MS + n // 3)
    return sample


def offsets_to_try(sample: Sample) -> Iterator[int]:
    """Yield offsets at which reading may go wrong: both ends and the middle of chunks, and the very end."""
    starts = [offset for offset, _ in sample.times]
    yield from {*starts[:4], *starts[len(starts) // 2 :][:3], *starts[-3:], 1, sample.next_offset - 1}
    yield sample.next_offset
