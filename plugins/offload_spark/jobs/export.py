"""Streams as Parquet, in folders by stream and date, with offsets as they are.

An export is a streaming query that reads what is there and ends. Spark's checkpoint says how far it came: so
one that is killed goes on, one that is run again adds what is new, and its file sink takes a repeated batch
once.

Invariant: each record of the streams is in the export exactly once, for whoever reads the folder with Spark,
which goes by the sink's own list of files (`_spark_metadata`). Other readers may also see files of a batch
that was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT = "_checkpoint"
"""The folder within the export; its name hides it from readers of Parquet."""

POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Exported:
    """What a run has added."""

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
    """Write the streams of the tier at `url` into `target`, and return what this run has added.

    `options` are those of the source: streams, `decode`, storage options, limits of a batch. `progress` is
    told about once a second. Raises what the query raises; run again, it goes on.
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
