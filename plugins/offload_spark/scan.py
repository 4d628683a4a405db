"""The work of a reading task: it fetches the chunks of its parts and makes batches of them.

The task opens the tier from URL and options alone, and closes it at the end. It uses nothing of the process
that was forked, because connections and threads do not survive a fork. Requests run ahead on the tier's own
thread while batches are made.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offload.blocking import Blocking
from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Event, Skipped
from offload.errors import Absent, NotOffloaded
from offload.formats.records import RecordRun, record_runs
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import CommittedStream
from offload.streams.reader import StreamReader
from offload_spark.batches import BatchMaker, runs_of_table
from offload_spark.planning import PlannedPart

INDEXES_AHEAD: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A read of one task."""

    tier: Blocking
    maker: BatchMaker
    fail_on_data_loss: bool

    def batches(self, parts: Sequence[PlannedPart]) -> Iterator[pa.RecordBatch]:
        """Yield the batches of these parts, in order.

        Raises `Corrupt` at damage, after all records before it. If `fail_on_data_loss`, raises `NotOffloaded`
        if records were trimmed and swept since the read was planned.
        """
        for part in parts:
            committed = part.committed
            firsts, ledgers = committed.entries["first_offset"], committed.entries["ledger_id"]
            runs = self._runs if self.maker.columns.needs_chunks else self._runs_of_tables
            for run in runs(part, committed):
                wanted = run.between(part.bounds.first_offset, part.bounds.next_offset)
                if len(wanted):
                    row = np.searchsorted(firsts, wanted.offsets[0], side="right") - 1
                    yield from self.maker.batches(wanted, of=part.of, ledger_id=int(ledgers[row]))

    def _runs(self, part: PlannedPart, committed: CommittedStream) -> Iterator[RecordRun]:
        lost: list[Event] = []
        reader = StreamReader(self.tier.catalogue, committed, emit=lost.append)
        windows = reader.windows(part.first, until=part.until, keep=lambda rows: _wanted(part, rows))
        try:
            while (window := self.tier.run(_next(windows))) is not None:
                self._check(lost)
                yield from record_runs(window.data, window.rows, where=window.where)
            self._check(lost)
        finally:
            self.tier.run(windows.aclose())

    def _runs_of_tables(self, part: PlannedPart, committed: CommittedStream) -> Iterator[RecordRun]:
        lost: list[Event] = []
        reader = StreamReader(self.tier.catalogue, committed, emit=lost.append)
        tables = _tables(self.tier.catalogue, reader, committed)
        try:
            while (table := self.tier.run(_next(tables))) is not None:
                self._check(lost)
                yield from runs_of_table(table[_wanted(part, table)], rows_max=self.maker.rows_max)
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


def _wanted(part: PlannedPart, rows: ChunkTable) -> npt.NDArray[np.bool_]:
    """Return a mask of the part's own chunks that may have wanted records."""
    wanted = part.bounds.of_chunks(rows)
    wanted &= rows["offset"] >= np.uint64(part.first)
    wanted &= rows["offset"] < np.uint64(part.until)
    return wanted


async def _tables(
    catalogue: Catalogue, reader: StreamReader, committed: CommittedStream
) -> AsyncGenerator[ChunkTable, None]:
    """Yield the table of every fragment, in order, a few requests ahead. Emits `Skipped` for trimmed ones."""
    ahead: deque[asyncio.Task[list[ChunkTable]]] = deque()
    entries = iter(entries_of_rows(committed.entries))
    try:
        while True:
            while len(ahead) < INDEXES_AHEAD and (entry := next(entries, None)) is not None:
                ahead.append(asyncio.create_task(_tables_of(catalogue, reader, committed, entry)))
            if not ahead:
                return
            found = await ahead[0]
            ahead.popleft()
            for table in found:
                yield table
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)


async def _tables_of(
    catalogue: Catalogue, reader: StreamReader, committed: CommittedStream, entry: Entry
) -> list[ChunkTable]:
    """Return the fragment's table. If it was replaced and swept, return its replacement's, cut to it."""
    view = catalogue.view_of(committed)
    try:
        async with await view.open(entry) as handle:
            return [await handle.table()]
    except Absent as absent:
        newest = (await reader.newer_view(view, absent)).committed
    begin = min(max(entry.first_offset, newest.first_offset), entry.next_offset)
    if begin > entry.first_offset:
        where = {"from_offset": entry.first_offset, "to_offset": begin}
        reader.emit(Skipped(stream=committed.stream, **where))
    if begin == entry.next_offset:
        return []
    again = StreamReader(catalogue, newest, emit=reader.emit)
    async with aclosing(again.windows(begin, until=entry.next_offset)) as windows:
        return [window.rows async for window in windows]


async def _next(found: Any) -> Any:
    return await anext(found, None)
