"""The data source `offload`: streams of a tier as a Spark frame.

Spark makes the reader in a process beside the driver, and pickles it for the tasks. Invariant: so it holds
only plain values, and opens the tier in each process in which it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from offload.arrow.batches import BatchMaker
from offload.arrow.columns import OF_TABLE
from offload.ground.errors import Misuse
from offload.opening.blocking import Blocking
from offload.opening.plugins import Plugins
from offload_spark.bounds import ScanBounds
from offload_spark.columns import Columns, decoder_named, schema_of
from offload_spark.damage import table_of
from offload_spark.filters import bounds_of
from offload_spark.finding import TermFilter, plan_found
from offload_spark.known import KnownStreams
from offload_spark.options import LATEST, Edge, OnDamage, ReadOptions, WriteOptions
from offload_spark.planning import PlannedPart, plan
from offload_spark.scan import Scan
from offload_spark.selecting import TopicRows, plan_selected
from offload_spark.sink import StreamingWriter, Writer
from offload_spark.tailing import Mark, TailLimit, initial, latest, newest, plan_between

__all__ = ["OffloadDataSource"]

_log: Final = logging.getLogger(__name__)


T = TypeVar("T")


class OffloadDataSource(DataSource):
    """The source of `spark.read.format("offload")`. Its options and columns are in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "offload"

    def schema(self) -> StructType:
        """Return the schema that the options ask for."""
        return schema_of(self._options(), Plugins.find())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of these columns alone."""
        options = self._options()
        columns = Columns.of(schema, options, Plugins.find())
        _records_of(options)  # a wrong SPEC or topic filter is refused here, before any task
        kind = PrunedReader if options.pushdown else Reader
        return kind(options, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - the name is Spark's
        """Return a reader that follows the streams as they grow."""
        options = self._options()
        return StreamingReader(options, Columns.of(schema, options, Plugins.find()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a frame with these columns."""
        return Writer(self._write_options(), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's
        """Return a writer of the batches of a query with these columns."""
        return StreamingWriter(self._write_options(), schema, overwrite=overwrite)

    def _options(self) -> ReadOptions:
        return ReadOptions.of(dict(self.options))

    def _write_options(self) -> WriteOptions:
        return WriteOptions.of(dict(self.options))


class PushdownDataSource(OffloadDataSource):
    """The same source, with filters pushed down unless the option `pushdown` is false.

    For sessions with `spark.sql.python.filterPushdown.enabled`. Without it, Spark refuses every read.
    """

    def _options(self) -> ReadOptions:
        return ReadOptions.of({"pushdown": "true"} | {k.lower(): v for k, v in self.options.items()})


@dataclass
class Partition(InputPartition):
    """The parts that one task reads."""

    value: Sequence[PlannedPart]


def _records_of(options: ReadOptions) -> TermFilter | TopicRows | None:
    """Return the filter of the records of a read. Raises `Misuse` if it is wrong."""
    plugins = Plugins.find()
    return TermFilter.of(options, plugins) or TopicRows.of(options, plugins)


class _Reads:
    """The common base of both readers, for their work in a task."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options, self._columns = options, columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a partition (`scan.Scan`)."""
        options = self._options
        if not partition.value:  # Spark replaces an empty plan by one partition without a value
            return
        with self._open() as tier:
            maker = BatchMaker(
                schema=self._columns.arrow,
                decoder=decoder_named(options.decode, Plugins.find()) if options.decode else None,
                rows_max=options.batch_rows,
                size_bytes_max=options.batch_size_bytes,
            )
            scan = Scan(
                tier=tier,
                maker=maker,
                fail_on_data_loss=options.fail_on_data_loss,
                on_damage=OnDamage.SKIP if options.is_of_damage else options.on_damage,
                # At damage alone: finding the plugins costs each task a tenth of a second.
                emit=lambda event: Plugins.find().emit(event),
                chosen=options.chosen(),
                records=_records_of(options) if options.terms or options.topics else None,
            )
            if options.is_of_damage:
                found = table_of(scan.damages(partition.value))
                yield found.select(self._columns.arrow.names)
            else:
                yield from scan.batches(partition.value)
            if scan.chosen is not None:
                _log.info("%s", scan.chosen)

    def _tell_of_indexes(self) -> None:
        """Log that records are not read, if the columns need only the indexes."""
        names = self._columns.arrow.names
        if OF_TABLE.issuperset(names) and not self._options.is_of_records:
            # A user who asked for damage to be left out would take the count for one of sound records.
            level = logging.WARNING if self._options.on_damage is OnDamage.SKIP else logging.INFO
            what = "come from the indexes alone: no record is read, and damage in records is not seen"
            _log.log(level, "the columns %s %s", ", ".join(names), what)

    def _open(self) -> Blocking:
        return self._options.tier.opened()


class Reader(_Reads, DataSourceReader):
    """A reader of a batch read."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._bounds = ScanBounds()

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the read (`planning.plan`)."""
        self._tell_of_indexes()
        with self._open() as tier:
            work = plan_found if self._options.terms else plan_selected if self._options.topics else plan
            planned = tier.run(work(tier.catalogue, self._options, self._bounds))
        return [Partition(parts) for parts in planned]


class PrunedReader(Reader):
    """A reader that skips what filters exclude."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - the name is Spark's
        """Take the bounds from the filters. Return all of them: Spark filters every row again."""
        self._bounds = bounds_of(filters)
        return filters


class StreamingReader(_Reads, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that follows the streams of a tier. Its offsets are those of `tailing.Mark`."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        if options.terms or options.topics:
            raise Misuse("a streaming query reads all records: remove by and terms, or topic")
        if options.end != Edge(otherwise=LATEST):
            raise Misuse("a streaming query has no end: remove endingOffsets and endingTimestamp")
        self._target: Mark | None = None
        # Opened by the first call, and used by all calls of a query: its tasks have readers of their own.
        self._opened: tuple[Blocking, KnownStreams] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the opened tier out: connections and threads do not survive in another process."""
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - the names are Spark's
        """Return the mark at which a new query begins."""
        return self._run(initial).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the options."""
        if self._options.trigger_rows_max is not None:
            return ReadMaxRows(self._options.trigger_rows_max)
        if self._options.trigger_size_bytes_max is not None:
            return ReadMaxBytes(self._options.trigger_size_bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch."""
        begun, bound = Mark.of_json(start), _limit_of(limit, self._options)
        reached = self._run(lambda known: latest(known, begun, bound, self._target))
        return reached.as_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: what is committed now."""
        self._target = self._run(newest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a micro-batch (`tailing.plan_between`)."""
        first, last = Mark.of_json(start), Mark.of_json(end)
        planned = self._run(lambda known: plan_between(known, first, last))
        return [Partition(parts) for parts in planned]

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a read changes nothing in the tier."""

    def stop(self) -> None:
        """Close the tier."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def _run(self, ask: Callable[[KnownStreams], Coroutine[Any, Any, T]]) -> T:
        if self._opened is None:
            tier = self._open()
            self._opened = tier, KnownStreams(tier.catalogue, self._options)
        tier, known = self._opened
        return tier.run(ask(known))


def _limit_of(limit: ReadLimit, options: ReadOptions) -> TailLimit:
    """Return Spark's limit. With a limit of rows, that of bytes in the options holds too."""
    match limit:
        case ReadMaxRows(max_rows=rows):
            return TailLimit(rows=rows, size_bytes=options.trigger_size_bytes_max)
        case ReadMaxBytes(max_bytes=size_bytes):
            return TailLimit(size_bytes=size_bytes)
    return TailLimit()
