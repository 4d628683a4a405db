"""The export of streams as Parquet, in folders by stream and date, with unchanged offsets.

An export is a streaming query that reads the data of now and ends. Spark's checkpoint has its position. So a
killed export continues, a repeated one adds new records, and the file sink takes a repeated batch once.

Invariant: in the export, each record of the streams is present exactly once for readers that use Spark, which
reads the sink's own list of files (`_spark_metadata`). Other readers may also see files of an interrupted
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT = "_checkpoint"
"""The folder of the checkpoint in the export. Its name hides it from readers of Parquet."""

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Exported:
    """The rows and batches that a run added."""

    rows: int
    batches: int


def export(
    spark: SparkSession,
    url: str,
    target: str,
    *,
    options: Mapping[str, str] | None = None,
    compression: str = "zstd",
    progress: Callable[[Exported], None] = lambda exported: None,
) -> Exported:
    """Write the streams of the tier at `url` into `target`. Return the rows and batches that this run added.

    `options` are those of the source: streams, `decode`, storage options, limits of a batch. Calls `progress`
    about once a second. Raises the errors of the query. A repeated run continues. The counts are complete
    unless Spark ends more than 100 batches in a second.
    """
    from pyspark.sql.functions import to_date

    records = spark.readStream.format("offload").options(**(options or {})).load(url)
    query = (
        records.withColumn("date", to_date("timestamp"))
        .writeStream.format("parquet")
        .option("compression", compression)
        .option("path", target)
        .option("checkpointLocation", f"{target.rstrip('/')}/{CHECKPOINT}")
        .partitionBy("stream", "date")
        .trigger(availableNow=True)
        .start()
    )
    tally = BatchTally()
    try:
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # seconds, also parts of one
            progress(tally.exported(query.recentProgress))
    finally:
        query.stop()
    return tally.exported(query.recentProgress)


class BatchTally:
    """The rows of each batch that Spark reported. Spark forgets all but the newest 100 reports."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def exported(self, reports: Iterable[Any]) -> Exported:
        """Add these reports, of which some may be known. Return the sums over batches that have rows."""
        for each in reports:
            if each["numInputRows"]:
                self._rows[each["batchId"]] = each["numInputRows"]
        return Exported(rows=sum(self._rows.values()), batches=len(self._rows))
