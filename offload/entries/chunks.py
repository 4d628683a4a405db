"""Chunks made of the entries of one ledger: where they are cut, and how they are built.

A chunk takes entries while its data section has at most `chunk_size_bytes`, by default 1 MiB, or one larger
entry, and while their times are at most `CHUNK_SPAN_MS` apart. The cut depends on nothing but this size, and
the sizes and times of the entries from the first one on. So it continues where an earlier cut of a shorter
ledger ended, and two processes cut alike.

A table needs the sizes of all entries. They are measured first, in bounded pieces, and only the cuts are
kept: 24 bytes for each chunk. The entries are read again when their chunks are copied, and compared with the
cuts.

Invariants: no run of entries is used before it was compared with the question; no memory is taken by a number
that a ledger states.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.contracts.entries import EntryLedger, EntryRun, EntrySizes, EntryTimes
from offload.contracts.store import Buffer
from offload.entries.offsets import NumberedLedger
from offload.formats.chunk import CHUNK_HEADER
from offload.formats.chunk_writer import seal_chunk
from offload.formats.entries import RECORD_SIZE_BYTES_MAX, encode_run
from offload.ground.errors import Corrupt, Misuse
from offload.model.chunk_table import CHUNK_TABLE, WINDOW_SIZE_BYTES, ChunkTable, ChunkType
from offload.read.handles import MeasuredHandle

__all__ = ["Cuts", "EntryHandle", "read_run"]


CHUNK_DATA_SIZE_BYTES: Final = 2**20
CHUNK_ENTRIES_MAX: Final = 2**16 - 1
"""A chunk ends before the entry that would exceed one of these. A larger entry is a chunk by itself."""

CHUNK_SPAN_MS: Final = 1000
"""The most between the times of two entries of one chunk. A reader finds a time by the time of a chunk, which
is that of its newest entry. Entries of a store that knows one time for a whole ledger are not cut by it."""

_TIMES_AT_ONCE: Final = 64
"""How many times are looked at first for the end of a span. Then twice as many: short spans are cheap."""

ENTRIES_AT_ONCE: Final = 2**18
"""The most entries that are asked for at once: 2 MiB of sizes, and as much of times."""

LENGTH_SIZE_BYTES: Final = 4
"""The size of the length before each record in a data section."""

Sizes: TypeAlias = npt.NDArray[np.uint64]


@dataclass(slots=True)
class Cuts:
    """The chunks of one ledger from one entry on: those that are complete, and the last, which may grow."""

    next_entry: int
    chunk_size_bytes: int = CHUNK_DATA_SIZE_BYTES
    size_bytes: int = 0
    """The size of all entries, as the ledger counts them."""
    _rows: array[int] = field(default_factory=lambda: array("q"))
    """Three numbers for each complete chunk: its entries, the size of its data section, and its time."""
    _last: tuple[int, int, int] = (0, 0, 0)
    """The same numbers of the chunk that may grow."""
    _oldest_ms: int = 0
    """The time of its oldest entry."""

    def copy(self) -> Cuts:
        """Return a copy that takes further entries independently of this one."""
        return replace(self, _rows=self._rows[:])

    def add(self, sizes: Sizes, timestamps_ms: EntryTimes) -> None:
        """Cut these entries, which follow."""
        times = np.broadcast_to(np.asarray(timestamps_ms, np.int64), len(sizes))
        ends = np.cumsum(sizes + np.uint64(LENGTH_SIZE_BYTES))
        at = before = 0
        while at < len(sizes):
            count, data_size_bytes, newest_ms = self._last
            # It is negative behind an entry that is larger than a chunk.
            room = max(before + self.chunk_size_bytes - data_size_bytes, 0)
            stop = int(np.searchsorted(ends, np.uint64(room), side="right"))
            stop = max(min(stop, at + CHUNK_ENTRIES_MAX - count), at if count else at + 1)
            if stop > at:
                spans = times[at] if count == 0 else newest_ms, times[at] if count == 0 else self._oldest_ms
                stop = at + _within_span(times[at:stop], *map(int, spans))
            if stop == at:
                self._rows.extend(self._last)
                self._last = 0, 0, 0
                continue
            latest_ms, oldest_ms = int(times[at:stop].max()), int(times[at:stop].min())
            self._oldest_ms = min(self._oldest_ms, oldest_ms) if count else oldest_ms
            end = int(ends[stop - 1])
            self._last = (
                count + stop - at,
                data_size_bytes + end - before,
                max(newest_ms, latest_ms) if count else latest_ms,
            )
            at, before = stop, end
        self.next_entry += len(sizes)
        self.size_bytes += int(sizes.sum())

    def table(self, first_offset: int) -> ChunkTable:
        """Return the rows of all chunks, also of the one that may grow. There is at least one entry."""
        rows = np.array([*self._rows, *self._last], np.int64).reshape(-1, 3)
        table: ChunkTable = np.empty(len(rows), CHUNK_TABLE)
        table["records"], table["timestamp_ms"], table["type"] = rows[:, 0], rows[:, 2], ChunkType.USER
        table["size_bytes"] = rows[:, 1] + CHUNK_HEADER.size_bytes
        table["offset"] = np.uint64(first_offset) + _sums_before(rows[:, 0])
        table["position"] = _sums_before(table["size_bytes"])
        return table


def _within_span(times: npt.NDArray[np.int64], newest_ms: int, oldest_ms: int) -> int:
    """Return how many of these entries join a chunk whose times are these."""
    at, count = 0, _TIMES_AT_ONCE
    while at < len(times):
        here = times[at : at + count]
        newest = np.maximum(np.maximum.accumulate(here), newest_ms)
        oldest = np.minimum(np.minimum.accumulate(here), oldest_ms)
        # Times are any 64 bits, and a difference of two wraps to a negative number, or is exact as unsigned.
        beyond = newest.view(np.uint64) - oldest.view(np.uint64) > CHUNK_SPAN_MS
        if beyond.any():
            return at + int(beyond.argmax())
        newest_ms, oldest_ms = int(newest[-1]), int(oldest[-1])
        at, count = at + count, count * 2
    return len(times)


@dataclass(slots=True, kw_only=True)
class EntryHandle(MeasuredHandle):
    """The entries of a ledger from `first_entry` on and before `stop`, as chunks."""

    numbered: NumberedLedger
    first_entry: int
    stop: int
    known: dict[tuple[int, int], Cuts]
    """The cuts of earlier snapshots, by ledger id and first entry. The handle adds its own."""
    chunk_size_bytes: int = CHUNK_DATA_SIZE_BYTES
    _table: ChunkTable | None = None

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self.numbered.ledger_id

    @property
    def first_offset(self) -> int:
        """The offset of the first entry of the part."""
        return self.numbered.begin + self.first_entry

    @property
    def next_offset(self) -> int:
        """The first offset after the part."""
        return self.numbered.begin + self.stop

    @property
    def where(self) -> str:
        """The ledger and its stream."""
        return self.numbered.where

    async def table(self) -> ChunkTable:
        """Return the table. The first call measures the entries that no earlier snapshot has measured."""
        if self._table is None:
            key = self.ledger_id, self.first_entry
            cuts = self.known.get(key)
            # Cuts that reach further are those of a newer snapshot. Their last chunk has more entries.
            cuts = cuts.copy() if cuts and cuts.next_entry <= self.stop else self._no_cuts()
            while cuts.next_entry < self.stop:
                found = await self._measured(cuts.next_entry, self.stop)
                self._check_sizes(found, cuts)
                await asyncio.to_thread(cuts.add, found.sizes, found.timestamps_ms)
            self._check_length(cuts)
            self.known[key] = cuts
            self._table = cuts.table(self.first_offset)
        return self._table

    async def sound_table(self) -> ChunkTable:
        """See `MeasuredHandle.sound_table`. The entry is searched by halves: an error need not name it."""
        cuts, damaged = self._no_cuts(), self.stop
        while damaged - cuts.next_entry > 1:
            middle = (cuts.next_entry + damaged) // 2
            try:
                found = await self._measured(cuts.next_entry, middle)
                self._check_sizes(found, cuts)
            except Corrupt:
                damaged = middle
            else:
                await asyncio.to_thread(cuts.add, found.sizes, found.timestamps_ms)
        table = cuts.table(self.first_offset)
        # Without an entry, its only row would be an empty chunk.
        return table if cuts.next_entry > self.first_entry else table[:0]

    async def read(self, rows: ChunkTable) -> Buffer:
        """Return the chunks of these rows. Raises `Corrupt` if the sizes or times are not those measured."""
        at = first = int(rows["offset"][0]) - self.numbered.begin
        stop, left = first + int(rows["records"].sum()), int(rows["size_bytes"].sum())
        runs: list[EntryRun] = []
        while at < stop:
            run = await read_run(
                self.numbered.ledger, at, stop - 1, size_bytes=max(left, 1), where=self.where
            )
            runs.append(run)
            at += len(run.ends)
            left -= int((run.ends - run.starts).sum())
        return await asyncio.to_thread(self._chunks, runs, rows, first)

    async def aclose(self) -> None:
        """Close the ledger, and forget the table. A later read opens it again."""
        self._table = None
        await self.numbered.ledger.aclose()

    def _no_cuts(self) -> Cuts:
        return Cuts(self.first_entry, self.chunk_size_bytes)

    async def _measured(self, first: int, stop: int) -> EntrySizes:
        last, ledger = min(stop, first + ENTRIES_AT_ONCE) - 1, self.numbered.ledger
        found = await ledger.sizes(first, last)
        if found is None:
            run = await read_run(ledger, first, last, size_bytes=WINDOW_SIZE_BYTES, where=self.where)
            return EntrySizes(first=first, sizes=run.ends - run.starts, timestamps_ms=run.timestamps_ms)
        _check_array("sizes", found.sizes, self.where)
        _check_count(found.first, len(found.sizes), first, last, self.where)
        _check_times(found.timestamps_ms, len(found.sizes), self.where)
        return found

    def _check_sizes(self, found: EntrySizes, cuts: Cuts) -> None:
        largest, last = int(found.sizes.argmax()), found.first + len(found.sizes) - 1
        if (size_bytes := int(found.sizes[largest])) > RECORD_SIZE_BYTES_MAX:
            raise Misuse(
                f"{self.where}: entry {found.first + largest} has {size_bytes} bytes, and a record has at "
                f"most {RECORD_SIZE_BYTES_MAX}: nothing more of this ledger is copied"
            )
        # The sum cannot wrap: no entry is larger than a record.
        total, length = cuts.size_bytes + int(found.sizes.sum()), self.numbered.length
        if length is not None and total > length:
            raise self._wrong_length(last, total)

    def _check_length(self, cuts: Cuts) -> None:
        """Raise `Corrupt` unless the ledger has the length that it states. A part of it may be shorter."""
        is_whole = self.first_entry == 0 and self.stop == self.numbered.count
        if is_whole and self.numbered.length not in (None, cuts.size_bytes):
            raise self._wrong_length(self.stop - 1, cuts.size_bytes)

    def _wrong_length(self, last: int, found: int) -> Corrupt:
        what = f"size of entries {self.first_entry} to {last}"
        return Corrupt(what, self.where, expected=f"the stated length {self.numbered.length}", found=found)

    def _chunks(self, runs: Sequence[EntryRun], rows: ChunkTable, first: int) -> bytes:
        """Return the chunks of these rows. The entries of `runs` together are theirs."""
        begins = _sums_before(rows["records"]).astype(np.int64)
        sizes = np.concatenate([run.ends - run.starts for run in runs])
        times = np.concatenate(
            [np.broadcast_to(np.asarray(run.timestamps_ms), len(run.ends)) for run in runs]
        )
        expected = rows["size_bytes"] - np.uint64(CHUNK_HEADER.size_bytes)
        found = np.add.reduceat(sizes + np.uint64(LENGTH_SIZE_BYTES), begins)
        newest_ms = np.maximum.reduceat(times, begins)
        wrong = (found != expected) | (newest_ms != rows["timestamp_ms"])
        if wrong.any():
            row = int(wrong.argmax())
            entry = first + int(begins[row])
            raise Corrupt(
                f"second read of entries {entry} to {entry + int(rows['records'][row]) - 1}",
                self.where,
                expected=f"a data section of {expected[row]} bytes, of time {rows['timestamp_ms'][row]}",
                found=f"one of {found[row]} bytes, of time {newest_ms[row]}",
            )
        encoded = [encode_run(run.data, run.starts, run.ends) for run in runs]
        section = memoryview(encoded[0] if len(encoded) == 1 else b"".join(encoded))
        chunks, at = [], 0
        columns = (expected, rows["records"], rows["offset"], rows["timestamp_ms"])
        for size_bytes, records, offset, timestamp_ms in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            chunk = seal_chunk(
                section[at : at + size_bytes],
                entries=records,
                records=records,
                offset=offset,
                timestamp_ms=timestamp_ms,
                epoch=self.numbered.chunk_epoch,
            )
            chunks.append(chunk)
            at += size_bytes
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_run(ledger: EntryLedger, first: int, last: int, *, size_bytes: int, where: str) -> EntryRun:
    """Return a checked run from entry `first` on. It may end before `last`, if it is large enough."""
    last = min(last, first + ENTRIES_AT_ONCE - 1)
    try:
        run = await ledger.entries(first, last, size_bytes=size_bytes)
    except Corrupt as damage:
        raise damage.within(f"{where}, entries {first} to {last}: {damage.where}") from damage
    starts, ends = run.starts, run.ends
    _check_array("starts", starts, where)
    _check_array("ends", ends, where)
    if len(starts) != len(ends):
        raise Corrupt(f"starts of entries from {first} on", where, expected=len(ends), found=len(starts))
    # An end before its start would wrap in a difference, so positions are compared.
    sound = (starts <= ends) & (ends <= np.uint64(len(run.data)))
    sound[1:] &= starts[1:] >= ends[:-1]
    if not sound.all():
        row = int(sound.argmin())
        expected = f"behind the one before it, within {len(run.data)} bytes"
        found = f"from byte {starts[row]} to {ends[row]}"
        raise Corrupt(f"position of entry {first + row}", where, expected=expected, found=found)
    is_enough = int((ends - starts).sum()) >= size_bytes
    _check_count(run.first, len(ends), first, last, where, may_end_early=is_enough)
    _check_times(run.timestamps_ms, len(ends), where)
    return run


def _check_array(name: str, numbers: Sizes, where: str) -> None:
    if not isinstance(numbers, np.ndarray) or numbers.dtype != np.uint64 or numbers.ndim != 1:
        raise Misuse(f"{where}: {name} must be an array of numpy.uint64, not {type(numbers).__name__}")


def _check_count(
    found: int, count: int, first: int, last: int, where: str, *, may_end_early: bool = False
) -> None:
    if found != first:
        raise Corrupt("first entry of a run", where, expected=first, found=found)
    asked = last - first + 1
    if not count or count > asked or (count < asked and not may_end_early):
        raise Corrupt(f"number of entries from {first} on", where, expected=asked, found=count)


def _check_times(times: EntryTimes, count: int, where: str) -> None:
    if isinstance(times, np.ndarray):
        if times.dtype != np.int64 or times.shape != (count,):
            raise Misuse(f"{where}: times must be one number, or an array of {count} numpy.int64")
    elif not -(2**63) <= times < 2**63:
        raise Misuse(f"{where}: time {times} does not fit 64 bits")


def _sums_before(numbers: npt.NDArray[np.generic]) -> Sizes:
    """Return, for each number, the sum of those before it."""
    sums = np.zeros(len(numbers), np.uint64)
    np.cumsum(numbers[:-1], dtype=np.uint64, out=sums[1:])
    return sums
