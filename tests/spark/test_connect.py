"""The same over Spark Connect: a client without a JVM, and a server that it starts on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import osiris_data

SCRIPT = """
import json, sys
from offload_spark import append, prepare, register

prepare()
from pyspark.sql import SparkSession

tier, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
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


def test_reads_filters_streams_and_writes_work_over_connect(tier: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tier, str(tmp_path)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
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
