"""The steps of Spark's driver and tasks, in this process, without Spark, on a store that notes requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from kit.world import BlockingWorld
from offload_conformance import MemoryLedger, Sample
from offload_spark.bounds import ScanBounds
from offload_spark.columns import Columns, decoder_named, schema_of
from offload_spark.finding import TermFilter
from offload_spark.options import ReadOptions
from offload_spark.planning import PlannedPart, plan
from offload_spark.scan import Scan
from offload_spark.selecting import TopicRows

from offload import Plugins
from offload.arrow.batches import BatchMaker
from offload.contracts.store import Span
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore

PLUGINS = Plugins.find()
Row = tuple[str, int, int, int, bytes]


class Noting(FaultyStore):
    """A store that notes which bytes of fragments are requested."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.asked: list[tuple[str, Span]] = []

    async def get(self, key: str, span: Any = None) -> bytes:
        if key.endswith(".fragment"):
            self.asked.append((key, span))
        return await super().get(key, span)


@dataclass
class Tier(BlockingWorld):
    """A tier in memory, or the catalogue that `make` returns."""

    store: Noting = field(default_factory=Noting)

    def read_options(self, **given: str) -> ReadOptions:
        return ReadOptions.of({"path": "memory"} | given)

    def plan(self, *, bounds: ScanBounds | None = None, **given: str) -> list[list[PlannedPart]]:
        planned = plan(self.blocking.catalogue, self.read_options(**given), bounds or ScanBounds())
        return self.blocking.run(planned)

    def read(self, parts: Iterable[PlannedPart], **given: str) -> Iterator[pa.RecordBatch]:
        options = self.read_options(**given)
        columns = Columns.of(schema_of(options, PLUGINS), options, PLUGINS)
        maker = BatchMaker(
            schema=columns.arrow,
            decoder=decoder_named(options.decode, PLUGINS) if options.decode else None,
            rows_max=options.batch_rows,
            size_bytes_max=options.batch_size_bytes,
        )
        scan = Scan(
            tier=self.blocking,
            maker=maker,
            fail_on_data_loss=options.fail_on_data_loss,
            on_damage=options.on_damage,
            emit=self.events.append,
            chosen=options.chosen(),
            records=TermFilter.of(options, PLUGINS) or TopicRows.of(options, PLUGINS),
        )
        for batch in scan.batches([*parts]):
            assert batch.schema == columns.arrow
            batch.validate(full=True)
            yield batch

    def rows(self, partitions: Iterable[Iterable[PlannedPart]], **given: str) -> list[Row]:
        """Return stream, ledger, offset, milliseconds and value of each record, by partition."""
        found: list[Row] = []
        for parts in partitions:
            for batch in self.read(parts, columns="stream,ledger,offset,timestamp,value", **given):
                times = batch.column("timestamp").cast(pa.int64()).to_pylist()
                names = ("stream", "ledger", "offset", "value")
                stream, ledger, offset, value = (batch.column(name).to_pylist() for name in names)
                found += zip(stream, ledger, offset, (at // 1000 for at in times), value, strict=True)
        return found


@contextmanager
def tier() -> Iterator[Tier]:
    made = Tier()
    with made.blocking:
        yield made


def rows_of(stream: str, sample: Sample, ledgers: Iterable[MemoryLedger]) -> list[Row]:
    """Return the rows that a read of the whole stream should give."""
    spans = [(ledger.first_offset, ledger.next_offset, ledger.ledger_id) for ledger in ledgers]
    return [
        (stream, ledger_id, offset, at, body)
        for offset, at, body in sample.messages
        for first, stop, ledger_id in spans
        if first <= offset < stop
    ]
