"""The work of a reading task: it fetches the chunks of its parts and makes batches of them.

The task opens the tier from URL and options alone, and closes it at the end. It uses nothing of the process
that was forked, because connections and threads do not survive a fork. Requests run ahead on the tier's own
thread while batches are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offload.arrow.batches import BatchMaker
from offload.arrow.columns import OF_TABLE
from offload.contracts.events import DamageFound, Event, Skipped
from offload.contracts.row_choice import RowChoice, Wanted
from offload.formats.records import RecordRun, record_runs, runs_of_table
from offload.ground.errors import Corrupt, NotOffloaded
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entries, Entry
from offload.opening.blocking import Blocking
from offload.read.chunk_filter import ChunkFilter
from offload.read.reader import StreamReader
from offload.read.tables import chunk_tables
from offload_spark.damage import DamagedRange, damaged_range
from offload_spark.finding import TermFilter
from offload_spark.options import OnDamage
from offload_spark.planning import PlannedPart
from offload_spark.selecting import TopicRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A read of one task."""

    tier: Blocking
    maker: BatchMaker
    fail_on_data_loss: bool
    on_damage: OnDamage = OnDamage.FAIL
    emit: Callable[[Event], None] = lambda event: None
    """Called with `DamageFound` for each range that is left out."""

    chosen: ChunkFilter | None = None
    """The filter of chunks, if the read has one."""

    records: TermFilter | TopicRows | None = None
    """The filter of records by terms or topics, if the read has one."""

    def batches(self, parts: Sequence[PlannedPart]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of these parts, in order.

        Damaged records raise `Corrupt`, after all records before them, or are left out and reported, as
        `on_damage` says. If `fail_on_data_loss`, raises `NotOffloaded` if records were trimmed and swept
        since the read was planned.
        """
        for part in parts:
            committed = part.committed
            firsts, ledgers = committed.entries["first_offset"], committed.entries["ledger_id"]
            is_of_table = OF_TABLE.issuperset(self.maker.schema.names) and not (self.chosen or self.records)
            for run in self._runs_over_damage(part, [], is_of_table=is_of_table):
                wanted = run.between(part.bounds.first_offset, part.bounds.next_offset)
                if self.records is not None:
                    wanted = self.records.among(wanted, part)
                if len(wanted):
                    row = np.searchsorted(firsts, wanted.offsets[0], side="right") - 1
                    yield from self.maker.batches(
                        wanted, stream=part.stream, part=part.part, ledger_id=int(ledgers[row])
                    )

    def damages(self, parts: Sequence[PlannedPart]) -> Iterator[DamagedRange]:
        """Read these parts whole, and yield the ranges that a read with `OnDamage.SKIP` leaves out."""
        for part in parts:
            found: list[DamagedRange] = []
            for _ in self._runs_over_damage(part, found, is_of_table=False):
                pass
            yield from found

    def _runs_over_damage(
        self, part: PlannedPart, found: list[DamagedRange], *, is_of_table: bool
    ) -> Iterator[RecordRun]:
        """Yield the runs of a part. Adds the damaged ranges that were left out to `found`."""
        lost: list[Event] = []
        reader = StreamReader(self.tier.catalogue, part.committed, emit=lost.append)
        read = self._runs_of_tables if is_of_table else self._runs
        reached = _Reached(part.first)
        while reached.offset < part.until:
            try:
                yield from read(part, reader, lost, reached)
                return
            except Corrupt as damage:
                hole = self._range_of(part, reader, damage, reached.offset, is_of_table=is_of_table)
                if self.on_damage is OnDamage.FAIL:
                    raise hole.error() from damage.__cause__
                hole.log()
                self.emit(DamageFound(damage=damage))
                found.append(hole)
                reached.offset = hole.next_offset

    def _range_of(
        self, part: PlannedPart, reader: StreamReader, damage: Corrupt, at: int, *, is_of_table: bool
    ) -> DamagedRange:
        view = self.tier.catalogue.view_of(reader.manifest)
        looking = damaged_range(
            view,
            damage,
            stream=part.stream,
            part=part.part,
            at=max(at, reader.manifest.first_offset),
            until=part.until,
            keep=None if is_of_table else lambda rows: _wanted(part, rows),
        )
        return self.tier.run(looking)

    def _runs(
        self, part: PlannedPart, reader: StreamReader, lost: list[Event], reached: _Reached
    ) -> Iterator[RecordRun]:
        windows = reader.windows(reached.offset, until=part.until, rows_of=_PartChoice(part))
        try:
            while (window := self.tier.run(_next(windows))) is not None:
                self._check(lost)
                for wanted in [window] if self.chosen is None else self.chosen.windows_in(window):
                    # The chunks before are sound: damage in this one must not seem to be in one of them.
                    reached.offset = max(reached.offset, int(wanted.rows["offset"][0]))
                    for run in record_runs(wanted.data, wanted.rows, where=wanted.where):
                        yield run
                        reached.offset = int(run.offsets[-1]) + 1
                reached.offset = int(window.rows["offset"][-1]) + int(window.rows["records"][-1])
            self._check(lost)
        finally:
            self.tier.run(windows.aclose())

    def _runs_of_tables(
        self, part: PlannedPart, reader: StreamReader, lost: list[Event], reached: _Reached
    ) -> Iterator[RecordRun]:
        tables = chunk_tables(self.tier.catalogue, reader, reached.offset, until=part.until)
        try:
            while (table := self.tier.run(_next(tables))) is not None:
                self._check(lost)
                yield from runs_of_table(table[_wanted(part, table)], rows_max=self.maker.rows_max)
                reached.offset = int(table["offset"][-1]) + int(table["records"][-1])
            self._check(lost)
        finally:
            self.tier.run(tables.aclose())

    def _check(self, events: Sequence[Event]) -> None:
        for event in events:
            if self.fail_on_data_loss and isinstance(event, Skipped):
                raise NotOffloaded(
                    f"stream {event.stream!r}: offsets [{event.from_offset}, {event.to_offset}) were trimmed "
                    "while they were read; run again, or with failOnDataLoss=false"
                )


@dataclass(slots=True)
class _Reached:
    """The first offset that is not read yet. Reading continues there after damage."""

    offset: int


class _PartChoice(RowChoice):
    """The part's own chunks that may have wanted records."""

    __slots__ = ("_part",)

    def __init__(self, part: PlannedPart) -> None:
        self._part = part

    async def of_entries(self, entries: Entries) -> npt.NDArray[np.uint8]:
        """Want some of each fragment that may have records within the bounds."""
        return np.where(self._part.bounds.of_fragments(entries), Wanted.SOME, Wanted.NONE).astype(np.uint8)

    async def of_rows(self, entry: Entry, rows: ChunkTable) -> npt.NDArray[np.bool_]:
        """Want the part's own chunks."""
        return _wanted(self._part, rows)


def _wanted(part: PlannedPart, rows: ChunkTable) -> npt.NDArray[np.bool_]:
    """Return a mask of the part's own chunks that may have wanted records."""
    wanted = part.bounds.of_chunks(rows)
    wanted &= rows["offset"] >= np.uint64(part.first)
    wanted &= rows["offset"] < np.uint64(part.until)
    if part.places is not None:
        before = np.searchsorted(part.places, rows["offset"])
        wanted &= np.searchsorted(part.places, rows["offset"] + rows["records"]) > before
    if part.ranges is not None:
        begun = np.searchsorted(part.ranges[:, 0], rows["offset"] + rows["records"])
        wanted &= begun > np.searchsorted(part.ranges[:, 1], rows["offset"], side="right")
    return wanted


async def _next(found: Any) -> Any:
    return await anext(found, None)
