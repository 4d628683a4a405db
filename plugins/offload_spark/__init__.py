"""Spark reads and maintains the objects of a tier in parallel (docs/spark.md).

    from offload_spark import append, register
    register(spark)
    orders = spark.read.format("offload").option("stream", "orders").load("s3://bucket/tier")
    append(totals, "s3://bucket/tier", "totals")

The names are imported when they are first used, so that `offload` starts without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offload.ground.late import late_names

if TYPE_CHECKING:
    from offload_spark.appending import append
    from offload_spark.java import prepare
    from offload_spark.jobs.plain_errors import plain_errors
    from offload_spark.session import register, session
    from offload_spark.source import OffloadDataSource

__all__ = ["OffloadDataSource", "append", "plain_errors", "prepare", "register", "session"]

_HOMES = {
    "OffloadDataSource": "offload_spark.source",
    "append": "offload_spark.appending",
    "plain_errors": "offload_spark.jobs.plain_errors",
    "prepare": "offload_spark.java",
    "register": "offload_spark.session",
    "session": "offload_spark.session",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = late_names(__name__, _HOMES)
