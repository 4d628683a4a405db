"""Writes through Spark: batch, streaming, and rows that are numbered first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from offload_spark import append
from servers import Place

from offload import Blocking
from offload.errors import NotOffloaded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECONDS_MAX = 120
MS = 1_700_000_000_000


def rows(spark: SparkSession, first: int, stop: int, *, tasks: int = 3) -> DataFrame:
    """Offsets, the value of each says its offset, and ten of them have the same millisecond."""
    return (
        spark.range(first, stop, 1, tasks)
        .selectExpr(
            "id AS offset",
            "CAST(concat('value ', id) AS BINARY) AS value",
            f"timestamp_millis({MS} + id DIV 10) AS timestamp",
        )
        .repartitionByRange(tasks, "offset")
        .sortWithinPartitions("offset")
    )


def write(frame: DataFrame, url: str, stream: str = "orders", **options: str) -> None:
    frame.write.format("offload").mode("append").option("stream", stream).options(**options).save(url)


def check(spark: SparkSession, url: str, stop: int, stream: str = "orders", **options: str) -> None:
    """The stream holds exactly the rows from 0 to `stop`, each as it was, and nothing runs any more."""
    found = spark.read.format("offload").option("stream", stream).options(**options).load(url)
    at = "CAST(unix_millis(timestamp) AS BIGINT) AS at"
    have = [tuple(row) for row in found.selectExpr("offset", "CAST(value AS STRING)", at).collect()]
    assert sorted(have) == [(offset, f"value {offset}", MS + offset // 10) for offset in range(stop)]


def is_absent(url: str, stream: str = "orders") -> bool:
    with Blocking(url) as tier, pytest.raises(NotOffloaded):
        tier.load_manifest(stream)
    return True


def running(url: str, stream: str = "orders", **options: Any) -> int:
    with Blocking(url, storage_options=options) as tier:
        return len(tier.load_manifest(stream).running)


@pytest.mark.parametrize("bucket", ["minio", "azurite"], indirect=True)
def test_a_frame_is_written_to_a_bucket_and_read_back(spark: SparkSession, bucket: Place) -> None:
    options = {"storageOptions": json.dumps(bucket.options)}
    write(rows(spark, 0, 1000), bucket.url, **options)
    write(rows(spark, 1000, 1500, tasks=1), bucket.url, **options)
    check(spark, bucket.url, 1500, **options)
    assert not running(bucket.url, **bucket.options)


def test_a_write_of_a_name_is_in_once(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path)
    write(rows(spark, 0, 100), url, writeId="monday")
    write(rows(spark, 0, 100, tasks=2), url, writeId="monday")
    check(spark, url, 100)
    with pytest.raises(Exception, match="do not continue it: it ends at 100"):
        write(rows(spark, 0, 100), url, writeId="tuesday")
    check(spark, url, 100)
    assert not running(url)


def test_rows_out_of_order_are_refused_and_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path)
    with pytest.raises(Exception, match="should be; rows come in the order of their offsets"):
        write(rows(spark, 0, 100).where("offset != 50"), url)
    assert is_absent(url)
    with pytest.raises(Exception, match=r"does not continue|begins at 5"):
        write(rows(spark, 5, 100), url)
    assert is_absent(url)
    write(rows(spark, 0, 100), url)
    check(spark, url, 100)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (["offset", "value", "offset AS price"], "column 'price' has no place in a stream"),
        (["value"], "a write needs a column 'offset'; offload_spark.append numbers the rows"),
        (["offset"], "a write needs a column 'value'"),
        (["offset", "offset AS value"], "column 'value' is binary or string, not bigint"),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    spark: SparkSession, tmp_path: Path, columns: list[str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        write(rows(spark, 0, 10).selectExpr(*columns), str(tmp_path))
    with Blocking(str(tmp_path)) as tier, pytest.raises(NotOffloaded):
        tier.load_manifest("orders")


def test_a_key_would_be_lost_and_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    keyed = rows(spark, 0, 10).selectExpr("*", "CAST(NULL AS BINARY) AS key")
    write(keyed, str(tmp_path))
    with pytest.raises(Exception, match="a stored record has no key of its own"):
        write(rows(spark, 10, 20).selectExpr("*", "value AS key"), str(tmp_path))
    check(spark, str(tmp_path), 10)


def test_overwriting_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="a stream is only appended to"):
        rows(spark, 0, 10).write.format("offload").mode("overwrite").option("stream", "a").save(str(tmp_path))


RETRIED = """
import sys
from offload_spark import session
from spark.test_writer import rows, write

def fails_once(batches):
    from pyspark import TaskContext
    yield from batches
    if TaskContext.get().partitionId() == 1 and TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("planted")

spark = session(master="local[2,3]", conf={"spark.driver.memory": "512m", "spark.log.level": "OFF"})
frame = rows(spark, 0, 300)
write(frame.mapInArrow(fails_once, frame.schema), sys.argv[1])
"""


def test_a_task_that_fails_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", RETRIED, str(tmp_path)], env=environment, timeout=180, capture_output=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    check(spark, str(tmp_path), 300)
    assert not running(str(tmp_path))


def started(spark: SparkSession, source: str, target: str, checkpoint: str, *, limit: int) -> Any:
    """A query that copies a stream, some offsets in a batch."""
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


def stream(spark: SparkSession, source: Path, target: Path, tmp_path: Path, *, limit: int = 40) -> None:
    query = started(spark, str(source), str(target), str(tmp_path / "checkpoint"), limit=limit)
    assert query.awaitTermination(SECONDS_MAX)


def test_a_query_appends_each_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write(rows(spark, 0, 100, tasks=1), str(source))
    stream(spark, source, target, tmp_path)
    check(spark, str(target), 100, "copy")
    for name in ("2", ".2.crc"):  # as if the driver had died before it noted the end of batch 2
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    with Blocking(str(target)) as tier:
        before = tier.load_manifest("copy").next_offset

    stream(spark, source, target, tmp_path)

    with Blocking(str(target)) as tier:
        assert tier.load_manifest("copy").next_offset == before == 100
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


def test_a_query_that_is_killed_goes_on_without_loss_or_repetition(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    write(rows(spark, 0, 3000, tasks=1), str(source))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", QUERY, str(source), str(target), str(tmp_path / "checkpoint")],
        env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 180
        while process.poll() is None and time.monotonic() < deadline:
            if len([*target.glob("*/data/**/*.fragment")]) > 3:
                break
            time.sleep(0.005)
        assert process.poll() is None, "it ended before it could be killed"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    stream(spark, source, target, tmp_path, limit=1000)

    check(spark, str(target), 3000, "copy")
    assert not running(str(target), "copy")


def unnumbered(spark: SparkSession, first: int, stop: int, *, tasks: int = 3) -> DataFrame:
    return rows(spark, first, stop, tasks=tasks).drop("offset")


def test_rows_without_offsets_get_those_that_follow(spark: SparkSession, tmp_path: Path) -> None:
    url = str(tmp_path)
    assert append(unnumbered(spark, 0, 0), url, "orders", first_offset=7) == range(7, 7)
    assert is_absent(url)
    assert append(unnumbered(spark, 0, 100), url, "orders") == range(100)
    assert append(unnumbered(spark, 100, 103), url, "orders", write_id="x") == range(100, 103)
    assert append(unnumbered(spark, 103, 103), url, "orders") == range(103, 103)
    assert append(unnumbered(spark, 103, 250, tasks=4), url, "orders") == range(103, 250)
    assert append(unnumbered(spark, 100, 103), url, "orders", write_id="x") == range(100, 103)
    check(spark, url, 250)


def test_batches_of_any_query_are_appended_once(spark: SparkSession, tmp_path: Path) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    write(rows(spark, 0, 120, tasks=1), source)
    batches: list[range] = []

    def twice(batch: DataFrame, number: int) -> None:
        even = batch.where("offset % 2 = 0").select("value", "timestamp")
        name = f"evens {number}"
        once = append(even, target, "even", write_id=name)
        again = append(even, target, "even", write_id=name)  # as Spark does where the driver died in between
        batches.extend([once, again])

    query = (
        spark.readStream.format("offload").option("maxOffsetsPerTrigger", "50").option("stream", "orders")
        .load(source).writeStream.foreachBatch(twice)
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(SECONDS_MAX)

    assert batches[0::2] == batches[1::2]
    found = spark.read.format("offload").option("stream", "even").load(target).orderBy("offset").collect()
    assert [bytes(row.value) for row in found] == [b"value %d" % offset for offset in range(0, 120, 2)]


def test_an_append_that_lost_the_race_says_so(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another appends between the count and the write."""
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
