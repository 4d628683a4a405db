"""The data source `offload`: streams of a tier as a frame of Spark's.

Spark makes the reader in a process beside the driver, and pickles it to the tasks. Invariant: so it holds
plain values only, and opens the tier anew wherever it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from offload.blocking import Blocking
from offload.plugins import Plugins
from offload_spark.batches import BatchMaker
from offload_spark.bounds import Bounds
from offload_spark.columns import Columns, decoder_named, schema_of
from offload_spark.filters import bounds_of
from offload_spark.options import ReadOptions
from offload_spark.planning import Part, plan
from offload_spark.scan import Scan


class OffloadDataSource(DataSource):
    """`spark.read.format("offload")`. Its options and columns are in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "offload"

    def schema(self) -> StructType:
        """As the options ask for it."""
        return schema_of(self._options(), Plugins.find())

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of just these columns."""
        options = self._options()
        columns = Columns.of(schema, options, Plugins.find())
        kind = PrunedReader if options.pushdown else Reader
        return kind(options, columns)

    def _options(self) -> ReadOptions:
        return ReadOptions.of(dict(self.options))


class PushdownDataSource(OffloadDataSource):
    """The same, with filters pushed down unless the option `pushdown` says otherwise.

    For sessions with `spark.sql.python.filterPushdown.enabled`: without it Spark refuses every read of it.
    """

    def _options(self) -> ReadOptions:
        return ReadOptions.of({"pushdown": "true"} | {k.lower(): v for k, v in self.options.items()})


@dataclass
class Partition(InputPartition):
    """What one task reads."""

    value: Sequence[Part]


class Reader(DataSourceReader):
    """Reads what was planned. Everything of it is plain data."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options, self._columns = options, columns
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        """See `planning.plan`."""
        with self._tier() as tier:
            planned = tier.run(plan(tier.offloader, self._options, self._bounds))
        return [Partition(parts) for parts in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `scan.Scan`. Spark replaces an empty plan by one partition of nothing."""
        options = self._options
        if not partition.value:
            return
        with self._tier() as tier:
            maker = BatchMaker(
                columns=self._columns,
                decoder=decoder_named(options.decode, Plugins.find()) if options.decode else None,
                rows_max=options.batch_rows,
                size_bytes_max=options.batch_size_bytes,
            )
            scan = Scan(tier=tier, maker=maker, fail_on_data_loss=options.fail_on_data_loss)
            yield from scan.batches(partition.value)

    def _tier(self) -> Blocking:
        return Blocking(self._options.url, storage_options=self._options.storage_options)


class PrunedReader(Reader):
    """Leaves out what filters rule out."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - the name is Spark's
        """Take what narrows the range; Spark is to filter every row again."""
        self._bounds = bounds_of(filters)
        return filters


def register(spark: Any) -> None:
    """Make `spark.read.format("offload")` work in this session, with filters pushed down."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PushdownDataSource)
