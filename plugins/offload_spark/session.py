"""A Spark session for commands, examples and tests, on this machine or at a given master."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from offload_spark.java import prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


def session(
    *, master: str | None = None, name: str = "ledger-offload", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session in which `format("offload")` works. A running session is used, with its settings.

    `master` defaults to that of the environment, else `local[*]`. Raises `Misuse` if there is no Java.
    """
    prepare()
    from pyspark.sql import SparkSession

    from offload_spark.source import register

    builder = SparkSession.builder.appName(name)
    for key, value in ({**QUIET, **(conf or {})}).items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    spark = builder.getOrCreate()
    register(spark)
    return spark
