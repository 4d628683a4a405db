"""A Spark session for commands, examples and tests, on this machine or at a given master."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from offload.errors import Misuse
from offload_spark.java import prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION_MIN: Final = (4, 3)

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

    `master` defaults to that of the environment, else `local[*]`. Raises `Misuse` if there is no Java, or if
    this version of PySpark is not supported.
    """
    prepare()
    check_version()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    for key, value in ({**QUIET, **(conf or {})}).items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: Any) -> None:
    """Make `spark.read.format("offload")` work in this session, with filters pushed down.

    Raises `Misuse` if this version of PySpark is not supported.
    """
    check_version()
    from offload_spark.source import PushdownDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PushdownDataSource)


def check_version() -> None:
    """Raise `Misuse` if PySpark is older than the classes that the source needs."""
    import pyspark

    found = tuple(int(number) for number in re.findall(r"[0-9]+", pyspark.__version__)[:2])
    if found < VERSION_MIN:
        least = ".".join(map(str, VERSION_MIN))
        raise Misuse(
            f"PySpark {pyspark.__version__} is too old: format('offload') needs {least} or newer, here and "
            f'on the cluster; run: pip install "pyspark>={least}"'
        )
