"""Executors and drivers that are killed on a cluster change no row.

Tasks wait for a file, so a test kills a process at the moment that it means.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign import campaign
from offload_spark.session import EXTENSION, JAR
from spark.cluster import JAVA_READER, WORKERS, Standalone, kill, rows_of, submitted, wait_for, written
from spark.java_tasks import write

from offload import MemoryHandle, build_chunk

pytestmark = campaign("Spark on a cluster of processes; make test has one local session")

LATE_APP = '''
"""Reads a tier. The first attempts of some tasks wait until a file is there. Prints what was read."""

import json
import sys
import time
from pathlib import Path

from offload_spark import session

tier, folder, waiting, java = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "java"
spark = session(java=java)


def late(batches):
    from pyspark import TaskContext

    task = TaskContext.get()
    number, attempt = task.partitionId(), task.attemptNumber()
    Path(folder, f"began-{number}-{attempt}").touch()
    while attempt == 0 and number < waiting and not Path(folder, "go").exists():
        time.sleep(0.1)  # the test tells a task by a file alone
    yield from batches


frame = spark.read.format("offload").option("minPartitions", 6).load(tier).select("stream", "offset", "value")
plan = frame._jdf.queryExecution().executedPlan().toString()
read = frame.mapInArrow(late, frame.schema).selectExpr("stream", "offset", "md5(value)").collect()
print("FOUND " + json.dumps({"rows": sorted(map(list, read)), "java": "the Java reader" in plan}))
spark.stop()
'''
"""An application that prints the same, whatever happens to its tasks."""

FOLLOW_APP = '''
"""Follows a stream to its end. Tasks from some offset on wait for a file. Prints what the sink has."""

import json
import sys
import time
from pathlib import Path

from offload_spark import session

tier, folder, sink, waiting = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
spark = session()


def late(batches):
    for batch in batches:
        first = batch.column("offset")[0].as_py()
        Path(folder, f"began-{first}").touch()
        while first >= waiting and not Path(folder, "go").exists():
            time.sleep(0.1)  # the test tells a task by a file alone
        yield batch
        Path(folder, f"passed-{first}").touch()


read = spark.readStream.format("offload").option("stream", "orders").option("maxOffsetsPerTrigger", 400)
frame = read.option("minPartitions", 2).load(tier).select("offset", "timestamp", "value")
written = frame.mapInArrow(late, frame.schema).writeStream.format(sink).option("stream", "orders")
written = written.option("path", folder + "/sink").option("checkpointLocation", folder + "/checkpoint")
written.trigger(availableNow=True).start().awaitTermination()
found = spark.read.format(sink).load(folder + "/sink").selectExpr("'orders'", "offset", "md5(value)")
print("FOUND " + json.dumps({"rows": sorted(map(list, found.collect())), "java": False}))
spark.stop()
'''
"""An application that continues where an earlier one with the same folder was killed."""


@pytest.mark.parametrize("reader", ["python", "java"])
def test_a_killed_executor_and_a_second_attempt_beside_the_first_change_no_row(
    cluster: Standalone, reader: str, tier: str, tmp_path: Path
) -> None:
    """Two tasks wait, and one is lost with its executor. Then the copy of a task that waits wins."""

    def run(name: str, waiting: int, during: Callable[[Path], None], *conf: str) -> list[list[Any]]:
        (folder := tmp_path / name).mkdir()
        words = (tier, str(folder), str(waiting), reader)
        conf = (*conf, *(JAVA_READER if reader == "java" else ()))
        done = submitted(cluster.url, folder, LATE_APP, *words, conf=conf, during=lambda _: during(folder))
        return rows_of(done, java=reader == "java")

    def kill_one(folder: Path) -> None:
        wait_for(lambda: len([*folder.glob("began-[01]-0")]) == WORKERS)
        wait_for(lambda: len(cluster.executors()) == WORKERS)  # those of the application before are ending
        os.kill(cluster.executors()[0], signal.SIGKILL)
        wait_for(lambda: [*folder.glob("began-[01]-1")])
        (folder / "go").touch()

    killed = run("killed", WORKERS, kill_one)
    speculation = [f"spark.speculation{name}" for name in ("=true", ".quantile=0.1", ".multiplier=1.01")]
    copied = run("copied", 1, lambda folder: wait_for((folder / "began-0-1").exists), *speculation)

    assert killed == written(tier)
    assert copied == written(tier)


@pytest.mark.parametrize("reader", ["python", "java"])
def test_a_read_whose_driver_was_killed_gives_every_row_when_it_is_started_again(
    cluster: Standalone, reader: str, tier: str, tmp_path: Path
) -> None:
    """Both tasks run when the driver dies. Their executors end, and the cluster serves the next driver."""

    def kill_driver(driver: subprocess.Popen[str]) -> None:
        wait_for(lambda: len([*tmp_path.glob("began-[01]-0")]) == WORKERS)
        before = {*cluster.executors()}
        kill(driver)
        wait_for(lambda: not before & {*cluster.executors()})

    words = (tier, str(tmp_path))
    conf = JAVA_READER if reader == "java" else ()
    killed = submitted(
        cluster.url, tmp_path, LATE_APP, *words, str(WORKERS), reader, conf=conf, during=kill_driver
    )
    again = submitted(cluster.url, tmp_path, LATE_APP, *words, "0", reader, conf=conf)

    assert killed.returncode == -signal.SIGKILL
    assert "FOUND" not in killed.stdout
    assert rows_of(again, java=reader == "java") == written(tier)


@pytest.mark.parametrize("sink", ["parquet", "offload"])
def test_a_streaming_query_whose_driver_was_killed_continues_and_has_every_row_once(
    cluster: Standalone, sink: str, tmp_path: Path
) -> None:
    """When the driver dies, one task of the third batch of five has given its rows, the other one none."""
    url = str(tmp_path / "tier")
    bodies = [[b"body %d" % offset for offset in range(first, first + 100)] for first in range(0, 2000, 100)]
    chunks = [
        build_chunk(each, offset=100 * number, timestamp_ms=number, epoch=1)
        for number, each in enumerate(bodies)
    ]
    write(url, "orders", [MemoryHandle(chunks)])

    def kill_driver(driver: subprocess.Popen[str]) -> None:
        wait_for((tmp_path / "began-1000").exists)
        wait_for((tmp_path / "passed-800").exists)
        kill(driver)

    words = (url, str(tmp_path), sink)
    killed = submitted(cluster.url, tmp_path, FOLLOW_APP, *words, "1000", during=kill_driver)
    began = {path.name for path in tmp_path.glob("began-*")}
    again = submitted(cluster.url, tmp_path, FOLLOW_APP, *words, "2000")

    assert killed.returncode == -signal.SIGKILL
    assert "began-1200" not in began
    assert rows_of(again) == written(url)


def test_a_jvm_that_was_started_without_the_jar_is_refused_with_the_words_that_are_missing(
    tier: str, tmp_path: Path
) -> None:
    done = submitted("local[1]", tmp_path, LATE_APP, tier, str(tmp_path), "0", "java")

    assert done.returncode != 0
    assert f"spark-submit --jars {JAR} --conf spark.sql.extensions={EXTENSION}" in done.stdout
