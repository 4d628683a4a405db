"""A consume queue as ledgers: each file of it is one, and each of its records one entry, untouched.

```text
queue file 0         | unit | unit | ... full        ledger 0, sealed
queue file 6000000   | unit | unit | 0 0 0 ...       ledger 300000, which is its first queue offset
                         |      |
commit log           ... record ... record of another queue ... record ...
```

Units name records in the log. The broker deletes files of the log, and the units of their records stay: the
entries before `first_entry` cannot be read any more. Each record that is read is compared with the queue: its
size, topic, queue, queue offset, and the checksum of its body.

Invariants: no byte is read that a unit names outside of the log; positions of units ascend; every error names
a file and a byte.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.contracts.entries import EntryLedger, EntryRun, EntrySizes
from offload.formats.patterns import windows_at
from offload.ground.errors import Corrupt
from offload.local.files import opened, read_at, shown_path
from offload.model.record_columns import Integers, RecordBytes
from offload_rocketmq.log import CommitLog, LogExtent, bad_bodies, numbered_files
from offload_rocketmq.record import MAGICS, RECORD_SIZE_BYTES_MIN, RecordColumns, store_times
from offload_rocketmq.units import BLANK_UNIT_SIZE_BYTES, UNIT, Units, units_of, written

__all__ = ["QueueFiles", "QueueLedger"]

UNIT_SIZE: Final = UNIT.size_bytes
UNITS_AT_ONCE: Final = 2**14


@dataclass(slots=True)
class CountedFile:
    """How far the units of a file were counted and found possible."""

    units: int = 0
    length: int = 0
    """The sum of the sizes of their records. Blank units have none."""
    blank: int = 0
    """The number of blank units at the beginning."""
    last: bytes = b""
    """The last unit. If it changes, the broker has lost it and given the offset again."""
    end: int = 0
    """Where the last record ends in the log."""

    def add(self, units: Units, extent: LogExtent) -> UnitFault | None:
        """Count further units, up to the first that cannot be. Return what is wrong with it."""
        if not len(units):
            return None
        if self.blank == self.units:
            is_record = units["size_bytes"] != BLANK_UNIT_SIZE_BYTES
            blank = int(is_record.argmax()) if is_record.any() else len(units)
            self.blank, self.units, units = self.blank + blank, self.units + blank, units[blank:]
        fault = fault_of(units, extent, behind=self.end)
        units = units if fault is None else units[: fault.row]
        if len(units):
            self.units += len(units)
            self.length += int(units["size_bytes"].sum(dtype=np.int64))
            self.last, self.end = (
                units[-1:].tobytes(),
                int(units["position"][-1]) + int(units["size_bytes"][-1]),
            )
        return fault


@dataclass(frozen=True, slots=True)
class UnitFault:
    """The first of some units that cannot be."""

    row: int
    what: str
    expected: str
    found: str


def fault_of(units: Units, extent: LogExtent, *, behind: int, is_readable: bool = False) -> UnitFault | None:
    """Return what is wrong with the first unit that cannot be; None if all of them can.

    Its record must begin at or behind the end of the record before it, which is `behind` for the first, and
    lie within one file of the log. The file may have been deleted, unless all records must be `is_readable`.
    Behind the end of a crashed log, nothing is compared.
    """
    positions, sizes = units["position"].astype(np.int64), units["size_bytes"].astype(np.int64)
    lows = np.append(behind, positions + sizes)[:-1]
    room, _ = _room(positions, extent)
    is_deleted = (positions < extent.first) & (not is_readable)
    is_dropped = (positions >= extent.end) & extent.is_crashed
    too_small, too_low = sizes < RECORD_SIZE_BYTES_MIN, positions < lows
    wrong = too_small | too_low | ~(is_deleted | is_dropped | (sizes <= room))
    if not wrong.any():
        return None
    row = int(wrong.argmax())
    found = f"{sizes[row]} bytes at {positions[row]}"
    if too_small[row]:
        return UnitFault(row, "size in a unit", f"at least {RECORD_SIZE_BYTES_MIN}", found)
    if too_low[row]:
        return UnitFault(row, "place in a unit", f"{lows[row]} or more, behind the record before it", found)
    within = f"within one file of the log, whose last one begins at {extent.starts[-1]}"
    return UnitFault(row, "place in a unit", within, found)


def _room(positions: Integers, extent: LogExtent) -> tuple[Integers, Integers]:
    """Return how many bytes of its file are behind each position, and where that begins. 0 without a file."""
    starts = np.array(extent.starts, np.int64)
    starts = starts[np.maximum(np.searchsorted(starts, positions, side="right") - 1, 0)]
    room = extent.file_size_bytes - (positions - starts)
    return np.where(positions < starts, 0, room), starts


@dataclass(slots=True)
class QueueFiles:
    """The files of one queue, and how far each was counted."""

    log: CommitLog
    folder: Path
    topic: str
    queue_id: int
    _counted: dict[int, CountedFile] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def list_ledgers(self) -> Sequence[EntryLedger | Corrupt]:
        """Return a ledger for each file, and behind them the first damage. Raises as `CommitLog.look` does.

        Units that the broker will drop when it recovers from a crash are left out.
        """
        with self._lock:
            starts, size = numbered_files(self.folder)
            newest = self._fresh(starts[-1], size, is_last=True) if starts else None
            # The log is looked at after the newest units: what a unit names was written before it.
            extent, counted = self.log.look(), dict[int, CountedFile]()
            found = [*self._ledgers(starts, size, newest, extent, counted)]
            self._counted = counted
            return found

    def _ledgers(
        self,
        starts: Sequence[int],
        size: int,
        newest: tuple[CountedFile, Units] | None,
        extent: LogExtent,
        counted_files: dict[int, CountedFile],
    ) -> Iterator[EntryLedger | Corrupt]:
        """Yield the ledgers, and fill `counted_files`. One file is in memory at a time."""
        before: QueueLedger | None = None
        for start, following in zip(starts, [*starts[1:], None], strict=True):
            damage = self._misplaced(start, size, starts[0] if before is None else before.start + size)
            if damage is not None:
                yield damage
                return
            fresh = self._fresh(start, size, is_last=False) if following is not None else newest
            assert fresh is not None, "the last file was read first"
            counted, units = fresh
            fault = counted.add(units, extent)
            counted_files[start] = counted
            is_full = counted.units == size // UNIT_SIZE
            if fault is None and not is_full and following is not None:
                fault = UnitFault(0, "unit", "one of a record, as a file is behind this one", "none")
            # Positions ascend: if a file begins in the log that is left, all later ones do.
            is_cut = before is None or before.first_entry > 0
            ledger = self._ledger(start, counted, extent, is_sealed=is_full, is_cut=is_cut)
            if ledger.last_entry >= 0 or before is None:
                yield ledger
            if fault is not None and ledger.last_entry + 1 == counted.units:
                yield self.damage(start, counted.units, fault)
                return
            if not ledger.is_sealed:
                return
            before = ledger

    def position_of(self, offset: int) -> int:
        """Return where the log has the record at this queue offset."""
        start = max(each for each in self._counted if each <= offset * UNIT_SIZE)
        return self._position(start, offset - start // UNIT_SIZE)

    def units(self, start: int, first: int, count: int) -> Units:
        """Return units of a file, or fewer if it ends before. Raises `TryAgain` if it was deleted."""
        path = self.folder / f"{start:020}"
        with opened(path) as descriptor:
            return units_of(read_at(descriptor, first * UNIT_SIZE, count * UNIT_SIZE, path=path))

    def damage(self, start: int, unit: int, fault: UnitFault) -> Corrupt:
        """Return the damage of this unit of the file that begins at `start`."""
        where, position = shown_path(self.folder / f"{start:020}"), unit * UNIT_SIZE
        return Corrupt(fault.what, where, expected=fault.expected, found=fault.found, position=position)

    def _misplaced(self, start: int, size: int, expected: int) -> Corrupt | None:
        fault = None
        if start % UNIT_SIZE or size % UNIT_SIZE:
            fault = UnitFault(0, "name and size of the file", "multiples of 20", f"{start} and {size}")
        elif start != expected:
            fault = UnitFault(0, "file before it", f"one named {start - size:020}", "none")
        return None if fault is None else self.damage(start, 0, fault)

    def _fresh(self, start: int, size: int, *, is_last: bool) -> tuple[CountedFile, Units]:
        """Return how far a file was counted, and the written units behind."""
        counted, parts = self._counted.get(start, CountedFile()), [units_of(b"")]
        if not is_last and counted.units * UNIT_SIZE == size:
            return counted, parts[0]
        if counted.last and self.units(start, counted.units - 1, 1).tobytes() != counted.last:
            counted = CountedFile()
        at, count = counted.units, UNITS_AT_ONCE
        while count == UNITS_AT_ONCE:
            units = self.units(start, at, UNITS_AT_ONCE)
            count = written(units)
            parts.append(units[:count])
            at += count
        return counted, np.concatenate(parts)

    def _ledger(
        self, start: int, counted: CountedFile, extent: LogExtent, *, is_sealed: bool, is_cut: bool
    ) -> QueueLedger:
        count, length = counted.units, counted.length
        if extent.is_crashed and counted.end > extent.end:
            count, is_sealed = self._first_from(start, count, extent.end), False
            sizes = self.units(start, counted.blank, max(count - counted.blank, 0))["size_bytes"]
            length = int(sizes.sum(dtype=np.int64))
        first = min(counted.blank, count)
        if is_cut and count > first and self._position(start, first) < extent.first:
            first = self._first_from(start, count, extent.first)
        return QueueLedger(
            self, extent, start, count=count, length=length, is_sealed=is_sealed, first_entry=first
        )

    def _position(self, start: int, unit: int) -> int:
        return int(self.units(start, unit, 1)["position"][0])

    def _first_from(self, start: int, count: int, position: int) -> int:
        """Return the first unit whose record begins at this position of the log, or behind it."""
        return bisect_left(range(count), position, key=lambda unit: self._position(start, unit))


class QueueLedger(EntryLedger):
    """One file of a consume queue, as it was when it was listed, and the records that its units name."""

    last_entry = length = first_entry = 0
    is_sealed = False

    def __init__(
        self,
        files: QueueFiles,
        extent: LogExtent,
        start: int,
        *,
        count: int,
        length: int,
        is_sealed: bool,
        first_entry: int,
    ) -> None:
        """`start` is the byte of the queue at which the file begins, and `count` the number of its units."""
        self._files, self._extent, self.start = files, extent, start
        self.last_entry, self.first_entry = count - 1, first_entry
        self.length, self.is_sealed = length, is_sealed

    @property
    def ledger_id(self) -> int:
        """The queue offset of the first unit of the file."""
        return self.start // UNIT_SIZE

    @property
    def first_offset(self) -> int:
        """The same number: the broker keeps the offsets."""
        return self.ledger_id

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return checked records. Those in one file of the log are not copied."""
        return await asyncio.to_thread(self._entries, first, last, size_bytes)

    async def sizes(self, first: int, last: int) -> EntrySizes:
        """Return the sizes in the units, and the store times in the log, which are not checked here."""
        return await asyncio.to_thread(self._sizes, first, last)

    def _sizes(self, first: int, last: int) -> EntrySizes:
        positions, sizes = self._units(first, last)
        times = np.empty(len(sizes), np.int64)
        for start, rows in self._pieces(positions):
            times[rows] = store_times(self._mapped(start), positions[rows] - start)
        return EntrySizes(first=first, sizes=sizes.astype(np.uint64), timestamps_ms=times)

    def _entries(self, first: int, last: int, size_bytes: int) -> EntryRun:
        positions, sizes = self._units(first, min(last, first + size_bytes // RECORD_SIZE_BYTES_MIN))
        stop = int(np.searchsorted(np.cumsum(sizes), size_bytes)) + 1
        positions, sizes = positions[:stop], sizes[:stop]
        pieces = [*self._pieces(positions)]
        found = [
            RecordColumns.of(RecordBytes(self._mapped(start), positions[rows] - start, sizes[rows]))
            for start, rows in pieces
        ]
        for (start, rows), columns in zip(pieces, found, strict=True):
            self._check(columns, first + rows.start, start)
        times = np.concatenate([columns.store_ms for columns in found])
        if len(found) == 1:
            begin = int(found[0].records.starts[0])
            starts = found[0].records.starts - begin
            ends = (starts + sizes).astype(np.uint64)
            return EntryRun(
                first=first,
                data=found[0].records.data.data[begin : begin + int(ends[-1])],
                starts=starts.astype(np.uint64),
                ends=ends,
                timestamps_ms=times,
            )
        data = b"".join(each for columns in found for each in _slices(columns.records))
        return EntryRun.packed(data, np.cumsum(sizes).astype(np.uint64), first=first, timestamps_ms=times)

    def _mapped(self, start: int) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._files.log.mapped(start, self._extent.file_size_bytes), np.uint8)

    def _units(self, first: int, last: int) -> tuple[Integers, Integers]:
        """Return where these records begin in the log, and their sizes, checked."""
        units = self._files.units(self.start, first, last - first + 1)
        fault = fault_of(units, self._extent, behind=0, is_readable=True)
        if fault is None and len(units) <= last - first:
            fault = UnitFault(len(units), "unit", "one of a record, as before", "the end of the file")
        if fault is not None:
            raise self._files.damage(self.start, first + fault.row, fault)
        return units["position"].astype(np.int64), units["size_bytes"].astype(np.int64)

    def _pieces(self, positions: Integers) -> Iterator[tuple[int, slice]]:
        """Yield the begin of each file of the log with the rows of its records. Positions ascend."""
        _, starts = _room(positions, self._extent)
        edges = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), len(starts)]
        for begin, end in pairwise(edges):
            yield int(starts[begin]), slice(begin, end)

    def _check(self, columns: RecordColumns, first: int, log_start: int) -> None:
        """Raise `Corrupt` unless these are the records from entry `first` on, of the sizes in their units."""
        heads, topic, files = columns.heads, self._files.topic.encode(), self._files
        offsets = self.first_offset + first + np.arange(len(heads))
        found_topic = windows_at(columns.records.data, columns.topic.starts, max(len(topic), 1))
        wrong = {
            "size of the record": heads["size_bytes"] != columns.records.sizes,
            "magic": ~np.isin(heads["magic"], MAGICS),
            "sizes of the parts": ~columns.is_sound,
            "topic": (columns.topic.sizes != len(topic)) | (found_topic != np.void(topic)),
            "queue": heads["queue_id"] != files.queue_id,
            "queue offset": heads["queue_offset"] != offsets,
        }
        any_wrong = np.logical_or.reduce([*wrong.values()])
        row = int(any_wrong.argmax()) if any_wrong.any() else len(heads)
        bad = bad_bodies(columns, np.arange(row))
        if len(bad):
            row, what, expected, found = int(bad[0]), "checksum of the body", "that of the record", "another"
        elif row == len(heads):
            return
        else:
            what = next(name for name, rows in wrong.items() if rows[row])
            values = {
                "size of the record": (columns.records.sizes[row], heads["size_bytes"][row]),
                "magic": (f"{MAGICS[0]:08x} or {MAGICS[1]:08x}", f"{heads['magic'][row]:08x}"),
                "sizes of the parts": (f"{columns.records.sizes[row]} bytes together", "another sum"),
                "topic": (repr(files.topic), repr(columns.topic.of(columns.records.data, row))),
                "queue": (files.queue_id, heads["queue_id"][row]),
                "queue offset": (offsets[row], heads["queue_offset"][row]),
            }
            expected, found = map(str, values[what])
        raise Corrupt(
            f"{what} (queue offset {offsets[row]})",
            shown_path(files.log.path_of(log_start)),
            expected=expected,
            found=found,
            position=int(columns.records.starts[row]),
        )


def _slices(records: RecordBytes) -> list[memoryview]:
    """Return each record, without a copy. Records of other queues lie between them."""
    view, starts = records.data.data, records.starts
    edges = zip(starts.tolist(), (starts + records.sizes).tolist(), strict=True)
    return [view[start:stop] for start, stop in edges]
