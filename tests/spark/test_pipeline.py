"""The example of a pipeline, as a user would run it."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import osiris_data
import pytest
from campaign import campaign
from servers import Place, servers_of
from spark.drivers import SECONDS_MAX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = Path(__file__).parents[2] / "examples" / "spark-pipeline" / "pipeline.py"


def check_counts(spark: SparkSession, folder: Path) -> None:
    """The table counts every message by its stream and key, in whole minutes."""
    rows = spark.read.parquet(str(folder)).collect()
    counted: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counted[row.stream, row.key] += row.messages
    expected: Counter[tuple[str, str]] = Counter()
    for stream in osiris_data.STREAMS:
        for i in range(osiris_data.MANIFEST["streams"][stream]["messages"]):
            expected[stream, json.loads(osiris_data.body_of(i))["key"]] += 1
    assert counted == expected
    assert all(row.minute.second == 0 for row in rows)


def test_the_pipeline_counts_messages_by_key_and_minute(
    spark: SparkSession,
    sources: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It runs in this process, and the session of the tests survives it."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    folder = tmp_path / "by-minute"

    runpy.run_path(str(PIPELINE))["main"](f"rabbitmq://{sources}", str(tmp_path / "tier"), str(folder))

    check_counts(spark, folder)
    assert "tiny: moved" in capsys.readouterr().out


@campaign("the pipeline on a server, by itself; it runs here in this process, on a folder")
@pytest.mark.parametrize("bucket", servers_of("s3")[:1], indirect=True)
def test_the_pipeline_runs_by_itself_on_a_server_and_counts_nothing_twice(
    bucket: Place, sources: Path, spark: SparkSession, tmp_path: Path
) -> None:
    options = dict(bucket.options)
    environment = {  # drivers and workers find credentials where S3's own tools look for them
        **os.environ,
        "AWS_ACCESS_KEY_ID": options.pop("key"),
        "AWS_SECRET_ACCESS_KEY": options.pop("secret"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TIER_OPTIONS": json.dumps(options),
    }
    words = [sys.executable, str(PIPELINE), f"rabbitmq://{sources}", bucket.url, "by-minute"]

    for _ in range(2):
        done = subprocess.run(
            words, cwd=tmp_path, env=environment,
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    check_counts(spark, tmp_path / "by-minute")
    assert "tiny: moved" in done.stdout
