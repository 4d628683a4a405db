"""The work of a reading task: it fetches the chunks of its parts and makes batches of them.

The task opens the tier from URL and options alone, and closes it at the end. It uses nothing of the process
that was forked, because connections and threads do not survive a fork. Requests run ahead on the tier's own
thread while batches are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from offload.arrow.batches import BatchMaker
from offload.arrow.columns import OF_TABLE
from offload.blocking import Blocking
from offload.contracts.events import Event, Skipped
from offload.errors import NotOffloaded
from offload.formats.records import RecordRun, record_runs, runs_of_table
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import CommittedStream
from offload.streams.reader import StreamReader
from offload.streams.tables import chunk_tables
from offload_spark.planning import PlannedPart


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
            runs = self._runs_of_tables if OF_TABLE.issuperset(self.maker.schema.names) else self._runs
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
        tables = chunk_tables(self.tier.catalogue, reader)
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


async def _next(found: Any) -> Any:
    return await anext(found, None)
