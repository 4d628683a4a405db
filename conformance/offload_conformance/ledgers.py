"""Ledgers made for tests: handles in memory, and streams of every shape with what a reader should get.

Invariant: what is expected of a stream (`Sample.messages`) is written down while it is made, never
read back out of its chunks; so a mistake in reading cannot hide in the expectation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from offload.formats.chunk_writer import build_chunk, build_tracking_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.formats.tracking import ConsumerOffset, ProducerSequence
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.streams.handles import MemoryHandle

EPOCH: Final = 3
BIRTH_MS: Final = 1_700_000_000_000
POSITION: Final = 4_096
"""Leader epoch, first timestamp and first position of everything made here."""


class MemoryLedger(MemoryHandle):
    """Chunks in memory as a snapshot of a ledger; `before_read` is awaited with the rows of each read.

    By default that gives way to other tasks once. `closed` counts how often the handle was closed.

    It lies in the midst of its file: positions begin at `POSITION`. They mean nothing but to the handle, and
    to people who look for damage.
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
        """Count it."""
        self.closed += 1

    async def table(self) -> ChunkTable:
        """One row per chunk, as the file has them, but for one that `with_a_hole` left out."""
        return self._shown

    async def read(self, rows: ChunkTable) -> bytes:
        """The bytes of these rows."""
        await self.before_read(rows)
        wanted = {*rows["offset"].tolist()}
        return await super().read(
            self._table[[offset in wanted for offset in self._table["offset"].tolist()]]
        )

    def damaged(self, offset: int, *, byte: int, where: str | None = None) -> MemoryLedger:
        """The same ledger with one bit off: in this byte of the chunk that begins at `offset`.

        Its table is that of the sound ledger, as an index from before the damage would be.
        """
        start, end = self.span_of(offset)
        raw = bytearray(self._data)
        raw[start + byte % (end - start)] ^= 0b100
        other = self._with(bytes(raw))
        other._where = where or other._where
        return other

    def torn(self, offset: int) -> MemoryLedger:
        """The same ledger without the last bytes of the chunk at `offset`, and nothing behind it."""
        return self._with(self._data[: self.span_of(offset)[1] - 3])

    def with_a_hole(self, row: int) -> MemoryLedger:
        """The same ledger with a table that leaves out the chunk of this row."""
        other = self._with(self._data)
        offsets = self._table["offset"]
        other._shown = self._shown[offsets != offsets[row]]
        return other

    def scattered(self) -> MemoryLedger:
        """The same ledger in many files, or with other things between its chunks."""
        other = self._with(self._data)
        for row in range(len(self._table)):
            other._shown["position"][row] += row * POSITION
        return other

    def positions_of(self, offset: int) -> tuple[int, int]:
        """Where the chunk that begins at `offset` begins and ends in the file."""
        start, end = self.span_of(offset)
        return start + POSITION, end + POSITION

    def span_of(self, offset: int) -> tuple[int, int]:
        """Where the chunk that begins at `offset` begins and ends, in bytes of the ledger."""
        row = self._table["offset"].tolist().index(offset)
        start = sum(len(chunk) for chunk in self.chunks[:row])
        return start, start + len(self.chunks[row])

    def _with(self, data: bytes) -> MemoryLedger:
        other = MemoryLedger(self.chunks, ledger_id=self._ledger_id, where=self._where)
        other._data = data
        return other


async def give_way(rows: ChunkTable) -> None:
    """Let other tasks run."""
    await asyncio.sleep(0)


async def refuse_reads(rows: ChunkTable) -> None:
    """Fail: this ledger is one that an offloader has to refuse before it reads any of it."""
    offsets = rows["offset"].tolist()
    raise AssertionError(f"expected a refusal before the first read, found a read of the chunks at {offsets}")


def ledger_of(records: int, *, first_offset: int = 0, body_size_bytes: int = 8) -> MemoryLedger:
    """A ledger of so many records, one to a chunk, whose bodies say their offsets."""
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


def drawn_ledger(
    chunks: int, *, first_offset: int = 0, ledger_id: int | None = None, size_bytes_max: int = 4096
) -> MemoryLedger:
    """A ledger of so many chunks. Records, sizes, bytes and gaps in time are drawn.

    Each chunk has one to four records. A body is empty, short or up to `size_bytes_max` long, and either of
    random bytes or of one byte repeated.
    """
    raws, offset, timestamp_ms = [], first_offset, BIRTH_MS
    for _ in range(chunks):
        bodies = []
        for _ in range(random.randint(1, 4)):
            size = random.choice((0, 1, 30, random.randrange(size_bytes_max)))
            bodies.append(random.randbytes(size) if random.randrange(2) else random.randbytes(1) * size)
        raws.append(build_chunk(bodies, offset=offset, timestamp_ms=timestamp_ms, epoch=EPOCH))
        offset, timestamp_ms = offset + len(bodies), timestamp_ms + random.choice((0, 1, 999, 3_600_001))
    return MemoryLedger(raws, ledger_id=ledger_id, where=f"drawn/{random.getrandbits(32)}.segment")


@dataclass
class Sample:
    """A stream of some shape: its chunks, and what a reader should be given of it."""

    chunks: list[bytes] = field(default_factory=list)
    messages: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Offset, timestamp and body of every message, in order."""

    times: list[tuple[int, int]] = field(default_factory=list)
    """Offset and timestamp of every chunk, in order."""

    tracking: list[int] = field(default_factory=list)
    """Which chunks are tracking chunks."""

    next_offset: int = 0

    def add(self, entries: Sequence[bytes | list[bytes]], *, timestamp_ms: int) -> None:
        """One more user chunk; a list among the entries becomes a sub-batch."""
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
        """One more chunk that takes an offset and is given to nobody."""
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
        """The stream as at most `count` ledgers that follow each other."""
        size = -(-len(self.chunks) // count)
        return [MemoryLedger(self.chunks[start : start + size]) for start in range(0, len(self.chunks), size)]

    def messages_from(self, offset: int) -> list[tuple[int, int, bytes]]:
        """What a reader that begins at `offset` is given."""
        return [message for message in self.messages if message[0] >= offset]

    def offset_since(self, timestamp_ms: int) -> int:
        """The first offset of the first chunk of this time or a later one, by the definition."""
        return next((offset for offset, at in self.times if at >= timestamp_ms), self.next_offset)

    def _push(self, chunk: bytes, *, records: int, timestamp_ms: int) -> None:
        self.chunks.append(chunk)
        self.times.append((self.next_offset, timestamp_ms))
        self.next_offset += records


def simple() -> Sample:
    """Chunks of one to five plain messages, an empty one among them."""
    sample = Sample()
    for n in range(12):
        sample.add([b"%d/%d" % (n, k) * k for k in range(1 + n % 5)], timestamp_ms=BIRTH_MS + 10 * n)
    return sample


def sub_batches() -> Sample:
    """Plain messages and compressed runs of them, side by side in one chunk."""
    sample = Sample()
    for n in range(9):
        run = [b"batched %d" % k for k in range(1 + n)]
        sample.add([b"before", run, b"between", run], timestamp_ms=BIRTH_MS + n)
    return sample


def with_tracking() -> Sample:
    """Tracking chunks first, last, and two in a row between messages."""
    sample = Sample()
    for n, kind in enumerate("SuuDDuSuD"):
        if kind == "u":
            sample.add([b"message %d" % n, b"another"], timestamp_ms=BIRTH_MS + n)
        else:
            chunk_type = ChunkType.TRACKING_SNAPSHOT if kind == "S" else ChunkType.TRACKING_DELTA
            sample.add_tracking(chunk_type, timestamp_ms=BIRTH_MS + n)
    return sample


def clock_goes_back() -> Sample:
    """Timestamps that fall, stand still and rise again, as they do when a clock is set or leaders change."""
    sample = Sample()
    for n, seconds in enumerate((5, 6, 6, 2, 1, 9, 9, 3, 10, -7, 11, 11)):
        sample.add([b"message %d" % n, b"another"], timestamp_ms=BIRTH_MS + 1000 * seconds)
    return sample


def before_1970() -> Sample:
    """Timestamps below zero, zero, and as far from it as years go that nobody lives to see."""
    sample = Sample()
    for n, timestamp_ms in enumerate((-5, 0, -(2**62), 2**62, BIRTH_MS, -1)):
        sample.add([b"message %d" % n], timestamp_ms=timestamp_ms)
    return sample


def tracking_alone() -> Sample:
    """Nothing but tracking chunks: a fragment of them has no message."""
    sample = Sample()
    for n, chunk_type in enumerate((ChunkType.TRACKING_SNAPSHOT, *[ChunkType.TRACKING_DELTA] * 3)):
        sample.add_tracking(chunk_type, timestamp_ms=BIRTH_MS + n)
    return sample


def huge_chunk(size_bytes: int) -> Sample:
    """A single chunk of about so many bytes between two small ones."""
    sample = Sample()
    sample.add([b"before"], timestamp_ms=BIRTH_MS)
    sample.add([bytes(range(256)) * (size_bytes // 1024)] * 4, timestamp_ms=BIRTH_MS + 1)
    sample.add([b"after"], timestamp_ms=BIRTH_MS + 2)
    return sample


def tiny_chunks(count: int) -> Sample:
    """So many chunks of one short message each."""
    sample = Sample()
    for n in range(count):
        sample.add([b"%d" % n], timestamp_ms=BIRTH_MS + n // 3)
    return sample


def offsets_to_try(sample: Sample) -> Iterator[int]:
    """Where reading may go wrong: at both ends of chunks and in the middle of them, and at the very end."""
    starts = [offset for offset, _ in sample.times]
    yield from {*starts[:4], *starts[len(starts) // 2 :][:3], *starts[-3:], 1, sample.next_offset - 1}
    yield sample.next_offset
