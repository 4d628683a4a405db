"""Streaming queries through Spark deliver each record once, across restarts and replays."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from campaign import campaign
from offload_conformance import ledger_of
from spark.drivers import end
from spark.drivers import start as start_driver

from offload import Blocking, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SECONDS_MAX = 120


def grow(url: str, records: int, *, first_offset: int, stream: str = "orders") -> None:
    async def write() -> None:
        await tier.offloader.open(create=True)
        writer = await StreamWriter.claim(tier.offloader, stream, first_offset=first_offset)
        await writer.offload([ledger_of(records, first_offset=first_offset)])

    with Blocking(url) as tier:
        tier.run(write())


class Sink:
    """A folder in which file n has the offsets of batch n. A batch that is repeated replaces its file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, batch: DataFrame, number: int) -> None:
        offsets = sorted(row.offset for row in batch.select("offset").collect())
        (self.folder / f"{number:04}").write_text(" ".join(map(str, offsets)))

    def batches(self) -> list[list[int]]:
        return [[*map(int, path.read_text().split())] for path in sorted(self.folder.iterdir())]

    def offsets(self) -> list[int]:
        return [offset for batch in self.batches() for offset in batch]


def started(spark: SparkSession, url: str, tmp_path: Path, **options: str) -> tuple[StreamingQuery, Sink]:
    sink = Sink(tmp_path / "sink")
    read = spark.readStream.format("offload").options(**options).option("stream", "orders").load(url)
    query = (
        read.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    return query, sink


def run(spark: SparkSession, url: str, tmp_path: Path, **options: str) -> Sink:
    query, sink = started(spark, url, tmp_path, **options)
    assert query.awaitTermination(SECONDS_MAX)
    return sink


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = str(tmp_path / "tier")
    grow(url, 10, first_offset=0)
    return url


@campaign("a streaming read alone; make test has a query from a stream to a stream, with a repeated batch")
def test_a_query_repeats_a_batch_whose_end_was_not_recorded_and_continues_after_it(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    assert run(spark, url, tmp_path, maxOffsetsPerTrigger="4").batches() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    for name in ("2", ".2.crc"):  # as if the driver had died before it noted the end of batch 2
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    (tmp_path / "sink" / "0002").unlink()
    grow(url, 5, first_offset=10)

    sink = run(spark, url, tmp_path, maxOffsetsPerTrigger="4")

    assert sink.batches()[2] == [8, 9]
    assert sink.offsets() == [*range(15)]


QUERY = """
import sys
import time
from pathlib import Path
from offload_spark import session
from spark.test_streaming import SECONDS_MAX, started

url, folder = sys.argv[1:]
spark = session(master="local[2]", conf={"spark.driver.memory": "512m", "spark.sql.shuffle.partitions": "1"})
query, _ = started(spark, url, Path(folder), maxOffsetsPerTrigger="40")
query.awaitTermination(SECONDS_MAX)
"""


@campaign("a streaming read by a driver that is killed; a lost record of a batch is planted here")
def test_a_query_resumes_after_its_driver_was_killed_without_loss_or_repetition(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    grow(url, 2000, first_offset=10)
    process = start_driver(QUERY, url, tmp_path)
    try:
        while process.poll() is None and len([*(tmp_path / "sink").glob("*")]) < 3:
            time.sleep(0.05)
        assert process.poll() is None, "it ended before it could be killed"
    finally:
        end(process)

    sink = run(spark, url, tmp_path, maxOffsetsPerTrigger="700")

    assert len(sink.batches()) > 3
    assert sink.offsets() == [*range(2010)]
