"""A Spark session for commands, examples and tests, on this machine or at a given master."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from offload.ground.errors import Misuse
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


JAR: Final = Path(__file__).parent / "jvm" / "offload-spark.jar"
"""The jar of the Java reader. The driver and every executor need it."""

EXTENSION: Final = "ledgeroffload.spark.JavaReader"


def session(
    *,
    master: str | None = None,
    name: str = "ledger-offload",
    conf: Mapping[str, str] | None = None,
    java: bool = False,
) -> SparkSession:
    """Return a session in which `format("offload")` works. A running session is used, with its settings.

    `master` defaults to that of the environment, else `local[*]`. With `java`, the Java reader reads what it
    can (docs/spark.md). Raises `Misuse` if there is no Java, if this version of PySpark is not supported, and
    with `java` if a running session, which is left as it is, or the JVM of `spark-submit` was started without
    that reader.
    """
    prepare()
    check_version()
    from pyspark.sql import SparkSession

    builder, given = SparkSession.builder.appName(name), conf or {}
    for key, value in ({**QUIET, **given, **(java_reader(given) if java else {})}).items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(master)
    spark = builder.getOrCreate()
    if java and not has_java_reader(spark):
        raise Misuse("a session without the Java reader runs already: stop it, and call this again")
    if java and not _is_loadable(spark):
        raise Misuse(
            "this JVM was started without the jar of the Java reader, and loads none later: "
            f"spark-submit --jars {JAR} --conf spark.sql.extensions={EXTENSION}"
        )
    register(spark)
    return spark


def register(spark: Any) -> None:
    """Make `spark.read.format("offload")` work in this session, with filters pushed down.

    If the session was started with the Java reader, that reads what it can (docs/spark.md). Raises `Misuse`
    if this version of PySpark is not supported.
    """
    check_version()
    from offload_spark.source import PushdownDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(PushdownDataSource)
    if has_java_reader(spark):
        from offload_spark.java_plans import JavaPlanSource

        spark.dataSource.register(JavaPlanSource)


def has_java_reader(spark: Any) -> bool:
    """Return whether the session was started with the extension of the Java reader."""
    return EXTENSION in (spark.conf.get("spark.sql.extensions", "") or "").split(",")


def _is_loadable(spark: Any) -> bool:
    """Return whether the JVM of a session finds the Java reader. A server of Spark Connect is not asked."""
    context = getattr(spark, "_sc", None)
    return context is None or bool(context._jvm.org.apache.spark.util.Utils.classIsLoadable(EXTENSION))


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


def java_reader(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the Java reader: those of `conf` with its jar and its extension behind them."""
    ours = {"spark.jars": str(JAR), "spark.sql.extensions": EXTENSION}
    return {name: ",".join(filter(None, (conf.get(name), value))) for name, value in ours.items()}
