"""The export of streams as Parquet, in folders by stream and date, with unchanged offsets.

An export is a streaming query that reads the data of now and ends. Spark's checkpoint has its position. So a
killed export continues, a repeated one adds new records, and the file sink takes a repeated batch once.

Invariant: in the export, each record of the streams is present exactly once for readers that use Spark, which
reads the sink's own list of files (`_spark_metadata`). Other readers may also see files of an interrupted
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    about once a second. Raises the errors of the query. A repeated run continues.
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
    try:
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # seconds, also parts of one
            progress(_so_far(query))
    finally:
        query.stop()
    return _so_far(query)


def _so_far(query: Any) -> Exported:
    done = [each for each in query.recentProgress if each["numInputRows"]]
    return Exported(rows=sum(each["numInputRows"] for each in done), batches=len(done))
