"""The example of a pipeline, as a user would run it, on a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import osiris_data
import pytest
from command_line import CAMPAIGN
from servers import Place, real_servers_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = Path(__file__).parents[2] / "examples" / "spark-pipeline" / "pipeline.py"


@pytest.mark.parametrize("bucket", real_servers_of("s3")[-1:], indirect=True)
def test_messages_are_counted_by_key_and_minute(
    bucket: Place, sources: Path, spark: SparkSession, tmp_path: Path
) -> None:
    options = dict(bucket.options)
    environment = {  # credentials are where S3's own tools look for them: drivers and workers find them there
        **os.environ,
        "AWS_ACCESS_KEY_ID": options.pop("key"),
        "AWS_SECRET_ACCESS_KEY": options.pop("secret"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TIER_OPTIONS": json.dumps(options),
    }
    words = [sys.executable, str(PIPELINE), f"rabbitmq://{sources}", bucket.url, "by-minute"]

    for _ in range(2 if CAMPAIGN else 1):  # run again, it counts nothing twice
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr

    found = spark.read.parquet(str(tmp_path / "by-minute"))
    counted: Counter[tuple[str, str]] = Counter()
    for row in found.collect():
        counted[row.stream, row.key] += row.messages
    expected: Counter[tuple[str, str]] = Counter()
    for stream in osiris_data.STREAMS:
        for i in range(osiris_data.MANIFEST["streams"][stream]["messages"]):
            expected[stream, json.loads(osiris_data.body_of(i))["key"]] += 1
    assert counted == expected
    assert all(row.minute.second == 0 for row in found.collect())
    assert "tiny: moved" in done.stdout
