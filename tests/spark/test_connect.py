"""Reads and writes over Spark Connect, by a client that has no JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import osiris_data
import pytest
from campaign import campaign
from spark.drivers import SECONDS_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
import json, sys
from offload_spark import append, prepare, register

prepare()
from pyspark.sql import SparkSession

tier, folder, remote = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
read = lambda: spark.read.format("offload")
found = {"kind": type(spark).__module__, "unregistered": read().option("stream", "tiny").load(tier).count()}
register(spark)
rows = read().option("decode", "amqp").load(tier).where("stream = 'tiny' and offset > 7").collect()
found["rows"] = [[row.offset, bytes(row.body).decode()] for row in rows]
query = (
    spark.readStream.format("offload").option("stream", "tiny").load(tier)
    .writeStream.format("parquet").option("path", folder + "/out")
    .option("checkpointLocation", folder + "/at").trigger(availableNow=True).start()
)
query.awaitTermination(120)
found["streamed"] = spark.read.parquet(folder + "/out").count()
numbers = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
found["appended"] = [[*append(numbers, folder + "/tier", "numbers", write_id="once")] for _ in range(2)]
found["written"] = read().option("stream", "numbers").load(folder + "/tier").count()
spark.stop()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def remote(spark: SparkSession) -> str:
    """The URL of a Connect server in the JVM of the tests' session. It ends with that JVM."""
    service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    server = getattr(service, "MODULE$")
    server.start(spark._jsc.sc())
    return f"sc://localhost:{server.localPort()}"


def check_client(remote: str, tier: str, folder: Path) -> None:
    """A client in a process of its own reads, filters, streams and writes."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tier, str(folder), remote],
        cwd=folder, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "kind": "pyspark.sql.connect.session",
        "unregistered": 10,
        "rows": [[offset, osiris_data.body_of(offset).decode()] for offset in (8, 9)],
        "streamed": 10,
        "appended": [[0, 1, 2, 3, 4]] * 2,
        "written": 5,
    }


OVER_CONNECT = campaign("a client over Spark Connect; a classic session runs the same source here")


@OVER_CONNECT
def test_a_client_reads_filters_streams_and_writes_over_connect(
    remote: str, tier: str, tmp_path: Path
) -> None:
    check_client(remote, tier, tmp_path)


@OVER_CONNECT
def test_a_client_starts_a_connect_server_of_its_own(tier: str, tmp_path: Path) -> None:
    check_client("local[1]", tier, tmp_path)
