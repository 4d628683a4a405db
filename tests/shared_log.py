"""A broker whose streams share one log, as a file: its records lie in the order of their writing."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from offload import EntryLedger, EntryLedgerStream, EntryRun, Source, SourceStream
from offload.contracts.entries import EntrySizes
from offload.contracts.source import SharedLog
from offload.ground.errors import Corrupt, OffloadError

BLOCK_SIZE_BYTES = 2**14


@dataclass
class LogFile:
    """The file of the log. It is read in blocks, and the last ones are kept, as a page cache does."""

    path: Path
    kept_blocks: int
    reads: list[int] = field(default_factory=list)
    """The block of each read of the file, in order."""
    _blocks: OrderedDict[int, bytes] = field(default_factory=OrderedDict)

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the file."""
        first, last = position // BLOCK_SIZE_BYTES, (position + size - 1) // BLOCK_SIZE_BYTES
        joined = b"".join([self._block(number) for number in range(first, last + 1)])
        begin = position - first * BLOCK_SIZE_BYTES
        return joined[begin : begin + size]

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            self.reads.append(number)
            with self.path.open("rb") as file:
                self._blocks[number] = os.pread(file.fileno(), BLOCK_SIZE_BYTES, number * BLOCK_SIZE_BYTES)
        self._blocks.move_to_end(number)
        while len(self._blocks) > self.kept_blocks:
            self._blocks.popitem(last=False)
        return self._blocks[number]

    @property
    def jumps(self) -> int:
        """The number of reads that do not follow the one before."""
        return sum(b != a + 1 for a, b in zip([-1, *self.reads], self.reads, strict=False))


@dataclass
class Queue:
    """Where the records of one stream lie in the log."""

    positions: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    damaged: int | None = None
    """The offset of a record that cannot be read."""


class QueueLedger(EntryLedger):
    """All records of a stream, as they are now: one ledger that grows."""

    ledger_id = 0
    is_sealed = False
    first_offset = 0

    def __init__(self, log: LogFile, queue: Queue) -> None:
        self._log, self._queue, self._count = log, queue, len(queue.positions)

    @property
    def last_entry(self) -> int:
        return self._count - 1

    @property
    def length(self) -> int:
        return sum(self._queue.sizes[: self._count])

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        queue, found, found_size_bytes = self._queue, list[bytes](), 0
        if queue.damaged is not None and first <= queue.damaged <= last:
            raise Corrupt("record", "the log", expected="a sound one", found=f"offset {queue.damaged}")
        for position, size in zip(
            queue.positions[first : last + 1], queue.sizes[first : last + 1], strict=True
        ):
            found.append(self._log.read(position, size))
            found_size_bytes += size
            if found_size_bytes >= size_bytes:
                break
        times = np.array(queue.timestamps_ms[first : first + len(found)], np.int64)
        return EntryRun.of(found, first=first, timestamps_ms=times)

    async def sizes(self, first: int, last: int) -> EntrySizes:
        sizes, times = self._queue.sizes[first : last + 1], self._queue.timestamps_ms[first : last + 1]
        return EntrySizes(
            first=first, sizes=np.array(sizes, np.uint64), timestamps_ms=np.array(times, np.int64)
        )


class QueueStream(EntryLedgerStream):
    """A stream of the log.

    `error` is raised when its records are listed, and `position_error` when it is asked for a position.
    `on_listing` is called with the number of the listing.
    """

    def __init__(self, name: str, source: LogSource) -> None:
        super().__init__(name, self._list)
        self.source, self.queue = source, Queue()
        self.error: OffloadError | None = None
        self.position_error: OffloadError | None = None
        self.on_listing: Callable[[int], None] = lambda number: None
        self.listings = 0

    async def _list(self) -> Sequence[EntryLedger]:
        if self.error is not None:
            raise self.error
        self.listings += 1
        self.on_listing(self.listings)
        return [QueueLedger(self.source.log, self.queue)]

    @property
    def shared_log(self) -> SharedLog | None:
        if not self.source.is_ordered:
            return None
        return SharedLog(key=self.source.url, window_size_bytes=self.source.window_size_bytes)

    async def log_position(self, offset: int) -> int:
        if self.position_error is not None:
            raise self.position_error
        return self.queue.positions[offset]


@dataclass
class LogSource(Source):
    """A log in a new file, and its streams. With `is_ordered`, the streams say that they share it."""

    log: LogFile
    is_ordered: bool = True
    window_size_bytes: int = 2**20
    held: list[QueueStream] = field(default_factory=list)
    url = "memory://log"  # type: ignore[assignment]
    notes = ()  # type: ignore[assignment]

    def write(self, records: Sequence[tuple[int, bytes]], *, timestamps_ms: Sequence[int]) -> None:
        """Append records: the number of the stream, and the body."""
        with self.log.path.open("ab") as file:
            position = file.tell()
            for (number, body), timestamp_ms in zip(records, timestamps_ms, strict=True):
                queue = self.held[number].queue
                queue.positions.append(position)
                queue.sizes.append(len(body))
                queue.timestamps_ms.append(timestamp_ms)
                file.write(body)
                position += len(body)

    async def streams(self) -> Sequence[SourceStream]:
        return self.held
