"""Signed requests where the driver and the tasks are apart: on a cluster, and over Spark Connect.

The store is in no process of the test, and the query names no secret.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from campaign import campaign
from servers import servers_of
from spark.cluster import JAVA_READER, WORKERS, rows_of, submitted, written
from spark.drivers import SECONDS_MAX

pytestmark = campaign(
    "signed requests over Connect and on a cluster; make test has them in one local session"
)

MINIO = pytest.mark.parametrize("elsewhere", servers_of("s3")[:1], indirect=True)

APP = '''
"""Reads a bucket by both readers. Prints Java's rows, the other's error, and what executors have."""

import json
import os
import sys

from offload_spark import plain_errors, session

tier, options = sys.argv[1:]
spark = session(java=True)
context = spark.sparkContext


def secrets_here(_):
    yield sorted(name for name in os.environ if name.startswith("AWS"))


executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1
secrets = context.parallelize(range(8), 8).mapPartitions(secrets_here).collect()
frame = spark.read.format("offload").option("storageOptions", options).option("minPartitions", 4).load(tier)
frame = frame.selectExpr("stream", "offset", "md5(value)")
plan = frame._jdf.queryExecution().executedPlan().toString()
rows = sorted(map(list, frame.collect()))
spark.conf.set("spark.offload.reader", "python")
try:
    with plain_errors():
        frame.sparkSession.read.format("offload").option("storageOptions", options).load(tier).collect()
    refused = ""
except Exception as error:
    refused = f"{type(error).__name__}: {error}"
found = {"rows": rows, "java": "the Java reader" in plan, "secrets": secrets, "executors": executors}
print("FOUND " + json.dumps(found | {"refused": refused}))
spark.stop()
'''

CLIENT = """
import contextlib, io, json, sys
from offload_spark import prepare, register
from offload_spark.session import java_reader

prepare()
from pyspark.sql import SparkSession

tier, options = sys.argv[1:]
builder = SparkSession.builder.remote("local[1]")
for name, value in java_reader({}).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
register(spark)
frame = spark.read.format("offload").option("storageOptions", options).load(tier)
frame = frame.where("offset >= 3").selectExpr("stream", "offset", "md5(value)")
with contextlib.redirect_stdout(io.StringIO()) as plan:
    frame.explain(True)
rows = sorted(map(list, frame.collect()))
spark.stop()
found = {"kind": type(spark).__module__, "rows": rows, "plan": plan.getvalue()}
print("FOUND " + json.dumps(found))
"""


def parted(options: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the options without a secret, as text, and the environment that has the secrets."""
    plain = {name: value for name, value in options.items() if name not in ("key", "secret")}
    return json.dumps(plain), {
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
    }


@MINIO
def test_executors_without_credentials_read_a_bucket_by_the_requests_of_the_driver(
    standalone: str, elsewhere: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """The Python source fails on the same executors with the store's answer."""
    url, options = elsewhere
    plain, secrets = parted(options)

    done = submitted(standalone, tmp_path, APP, url, plain, conf=JAVA_READER, env=secrets)

    assert rows_of(done, java=True) == written(url, storage_options=options)
    found = json.loads(done.stdout.partition("FOUND ")[2])
    assert found["executors"] == WORKERS
    assert found["secrets"] == [[]] * 8
    assert found["refused"].startswith("StoreDenied: ")


@MINIO
def test_a_client_of_connect_reads_a_bucket_by_signed_requests(
    elsewhere: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """The client starts a server in which the session's extension is the Java reader."""
    url, options = elsewhere
    plain, secrets = parted(options)

    done = subprocess.run(
        [sys.executable, "-c", CLIENT, url, plain],
        cwd=tmp_path, env={**os.environ, **secrets, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.partition("FOUND ")[2])
    assert found["kind"] == "pyspark.sql.connect.session"
    assert "offload: the Java reader" in found["plan"]
    assert "X-Amz" not in found["plan"]
    assert found["rows"] == [row for row in written(url, storage_options=options) if row[1] >= 3]
