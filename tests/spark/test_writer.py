"""Writes through Spark: batches, streaming queries, and rows that `append` numbers first."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from campaign import campaign
from offload_spark import append
from offload_spark.appending import _numbered, _placed
from offload_spark.source import OffloadDataSource
from pyspark.sql.types import StructType
from servers import Place
from spark.drivers import end
from spark.drivers import start as start_driver

from offload import Blocking
from offload.ground.errors import Misuse, NotOffloaded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS_MAX = 120
MS = 1_700_000_000_000


def rows(spark: SparkSession, first: int, stop: int, *, tasks: int = 3) -> DataFrame:
    """Return rows in the order of their offsets. Ten have the same millisecond, each value has its offset."""
    return spark.range(first, stop, 1, tasks).selectExpr(
        "id AS offset",
        "CAST(concat('value ', id) AS BINARY) AS value",
        f"timestamp_millis({MS} + id DIV 10) AS timestamp",
    )


def write(frame: DataFrame, url: str, stream: str = "orders", **options: str) -> None:
    frame.write.format("offload").mode("append").option("stream", stream).options(**options).save(url)


def check(spark: SparkSession, url: str, stop: int, stream: str = "orders", **options: str) -> None:
    """The stream holds exactly the rows from 0 to `stop`, each as it was written."""
    found = spark.read.format("offload").option("stream", stream).options(**options).load(url)
    at = "CAST(unix_millis(timestamp) AS BIGINT) AS at"
    have = [tuple(row) for row in found.selectExpr("offset", "CAST(value AS STRING)", at).collect()]
    assert sorted(have) == [(offset, f"value {offset}", MS + offset // 10) for offset in range(stop)]


def is_absent(url: str, stream: str = "orders") -> bool:
    """Return True if the tier does not have the stream, and fail if it does."""
    with Blocking(url) as tier, pytest.raises(NotOffloaded):
        tier.load_manifest(stream)
    return True


def running(url: str, stream: str = "orders", **options: Any) -> int:
    """Return how many attempts of the stream have not ended."""
    with Blocking(url, storage_options=options) as tier:
        return len(tier.load_manifest(stream).running)


@pytest.mark.parametrize(
    "bucket",
    ["minio", pytest.param("azurite", marks=campaign("a write by Spark to Azure; one to S3 is here"))],
    indirect=True,
)
def test_a_frame_is_written_to_a_bucket_and_read_back(spark: SparkSession, bucket: Place) -> None:
    options = {"storageOptions": json.dumps(bucket.options)}
    write(rows(spark, 0, 1000), bucket.url, **options)
    write(rows(spark, 1000, 1500, tasks=1), bucket.url, **options)
    check(spark, bucket.url, 1500, **options)
    assert not running(bucket.url, **bucket.options)


@campaign("a frame with an id that is written twice; make test appends twice with one id")
def test_a_write_with_an_id_is_applied_once(spark: SparkSession, tmp_path: Path) -> None:
    """The first one is of rows in any order, put in order as docs/spark.md shows."""
    url = str(tmp_path)
    ordered = rows(spark, 0, 100).repartitionByRange(3, "offset").sortWithinPartitions("offset")
    write(ordered, url, writeId="monday")
    write(rows(spark, 0, 100, tasks=2), url, writeId="monday")
    with pytest.raises(Exception, match="do not continue it: it ends at 100"):
        write(rows(spark, 0, 100), url, writeId="tuesday")
    check(spark, url, 100)
    assert not running(url)


def test_rows_out_of_order_are_refused_and_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path)
    with pytest.raises(Exception, match="sort the rows by offset, without a gap"):
        write(rows(spark, 0, 100).where("offset != 50"), url)
    assert is_absent(url)
    with pytest.raises(Exception, match=r'is new and begins at offset 0.*firstOffset", 5'):
        write(rows(spark, 5, 100), url)
    assert is_absent(url)
    write(rows(spark, 0, 100), url)
    check(spark, url, 100)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"offset": "long", "value": "binary", "price": "long"}, "a stream has no column 'price'"),
        ({"value": "binary"}, "a write needs a column 'offset'; offload_spark.append numbers the rows"),
        ({"offset": "long"}, "a write needs a column 'value'"),
        ({"offset": "long", "value": "long"}, "column 'value' must be binary or string, not bigint"),
    ],
)
def test_columns_that_cannot_be_written_are_named(tmp_path: Path, columns: dict[str, str], said: str) -> None:
    """The source refuses them when Spark asks it for a writer, of a frame or of a query."""
    source = OffloadDataSource({"path": str(tmp_path), "stream": "orders"})
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    with pytest.raises(Misuse, match=said):
        source.writer(schema, overwrite=False)
    with pytest.raises(Misuse, match=said):
        source.streamWriter(schema, overwrite=False)
    assert is_absent(str(tmp_path))


def test_a_key_that_would_be_lost_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    keyed = rows(spark, 0, 10).selectExpr("*", "CAST(NULL AS BINARY) AS key")
    write(keyed, str(tmp_path))
    with pytest.raises(Exception, match="a stored record has no key of its own"):
        write(rows(spark, 10, 20).selectExpr("*", "value AS key"), str(tmp_path))
    check(spark, str(tmp_path), 10)


def test_overwriting_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="a stream can only be appended to"):
        rows(spark, 0, 10).write.format("offload").mode("overwrite").option("stream", "a").save(str(tmp_path))


@campaign("a task of a write that Spark tries again; make test has one of a copy")
def test_a_task_that_fails_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    def fails_once(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        assert task is not None
        if (task.partitionId(), task.attemptNumber()) == (1, 0):
            raise RuntimeError("planted")

    frame = rows(spark, 0, 300)

    write(frame.mapInArrow(fails_once, frame.schema), str(tmp_path))

    check(spark, str(tmp_path), 300)
    assert not running(str(tmp_path))


def started(spark: SparkSession, source: str, target: str, checkpoint: str, *, limit: int) -> Any:
    """Start a query that copies a stream, `limit` offsets in a batch."""
    read = spark.readStream.format("offload").option("stream", "orders")
    return (
        read.option("maxOffsetsPerTrigger", str(limit))
        .load(source)
        .select("offset", "timestamp", "value")
        .writeStream.format("offload")
        .option("stream", "copy")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )


def stream(spark: SparkSession, source: Path, target: Path, tmp_path: Path, *, limit: int = 50) -> None:
    query = started(spark, str(source), str(target), str(tmp_path / "checkpoint"), limit=limit)
    assert query.awaitTermination(SECONDS_MAX)


def test_a_query_appends_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write(rows(spark, 0, 100, tasks=1), str(source))
    stream(spark, source, target, tmp_path)
    check(spark, str(target), 100, "copy")
    for name in ("1", ".1.crc"):  # as if the driver had died before it noted the end of batch 1
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    write(rows(spark, 100, 150, tasks=1), str(source))

    stream(spark, source, target, tmp_path)

    check(spark, str(target), 150, "copy")
    assert not running(str(target), "copy")


QUERY = """
import sys
from offload_spark import session
from spark.test_writer import SECONDS_MAX, started

spark = session(master="local[2]", conf={"spark.driver.memory": "512m", "spark.log.level": "OFF"})
query = started(spark, *sys.argv[1:], limit=50)
query.awaitTermination(SECONDS_MAX)
"""


@campaign("a streaming write by a driver that is killed; a lost record of a batch is planted here")
def test_a_query_resumes_after_its_driver_was_killed_without_loss_or_repetition(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write(rows(spark, 0, 3000, tasks=1), str(source))
    process = start_driver(QUERY, source, target, tmp_path / "checkpoint")
    try:
        deadline = time.monotonic() + 180
        while process.poll() is None and time.monotonic() < deadline:
            if len([*target.glob("*/data/**/*.fragment")]) > 3:
                break
            time.sleep(0.005)
        assert process.poll() is None, "it ended before it could be killed"
    finally:
        end(process)

    stream(spark, source, target, tmp_path, limit=1000)

    check(spark, str(target), 3000, "copy")
    assert not running(str(target), "copy")


def unnumbered(spark: SparkSession, first: int, stop: int, *, tasks: int = 3) -> DataFrame:
    return rows(spark, first, stop, tasks=tasks).drop("offset")


def test_rows_without_offsets_get_the_next_offsets(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path)
    assert append(unnumbered(spark, 0, 0), url, "orders", first_offset=7) == range(7, 7)
    assert is_absent(url)
    assert append(unnumbered(spark, 0, 100), url, "orders") == range(100)
    assert append(unnumbered(spark, 100, 103), url, "orders", write_id="x") == range(100, 103)
    assert append(unnumbered(spark, 103, 103), url, "orders") == range(103, 103)
    assert append(unnumbered(spark, 103, 250, tasks=4), url, "orders") == range(103, 250)
    assert append(unnumbered(spark, 100, 103), url, "orders", write_id="x") == range(100, 103)
    check(spark, url, 250)


def test_the_plan_of_an_append_does_not_grow_with_its_partitions(spark: SparkSession) -> None:
    """The first offsets of all partitions are one literal."""
    placed = _placed(unnumbered(spark, 0, 40, tasks=8))
    try:
        numbered, count = _numbered(placed, 5)

        assert count == 40
        assert "array(" not in numbered._jdf.queryExecution().analyzed().toString()
    finally:
        placed.unpersist()


@campaign("batches of any query; make test has the batches of a query that writes")
def test_batches_of_any_query_are_appended_once(spark: SparkSession, tmp_path: Path) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    write(rows(spark, 0, 120, tasks=1), source)
    batches: list[range] = []

    def twice(batch: DataFrame, number: int) -> None:
        even = batch.where("offset % 2 = 0").select("value", "timestamp")
        name = f"evens {number}"
        once = append(even, target, "even", write_id=name)
        again = append(even, target, "even", write_id=name)  # as Spark does if the driver died in between
        batches.extend([once, again])

    query = (
        spark.readStream.format("offload").option("maxOffsetsPerTrigger", "50").option("stream", "orders")
        .load(source).writeStream.foreachBatch(twice)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(SECONDS_MAX)

    assert batches[0::2] == batches[1::2]
    found = spark.read.format("offload").option("stream", "even").load(target).collect()
    values = [value for _, value in sorted((row.offset, bytes(row.value)) for row in found)]
    assert values == [b"value %d" % offset for offset in range(0, 120, 2)]


@campaign("an append by Spark that lost a race; make test has a back-fill that lost one")
def test_an_append_that_lost_the_race_raises(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer appends between the count and the write."""
    from offload_spark import appending

    url, real = str(tmp_path), appending._numbered

    def slow(placed: DataFrame, first_offset: int) -> tuple[DataFrame, int]:
        write(rows(spark, 0, 10), url)
        return real(placed, first_offset)

    monkeypatch.setattr(appending, "_numbered", slow)
    with pytest.raises(Exception, match="do not continue it: it ends at 10"):
        append(unnumbered(spark, 0, 5), url, "orders")
    monkeypatch.undo()
    assert append(unnumbered(spark, 10, 15), url, "orders") == range(10, 15)
    check(spark, url, 15)
