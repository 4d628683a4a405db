"""What every command of Spark's does: start it, hand options over, and tell errors in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offload.cli.kit.state import CommandContext
from offload.errors import Misuse
from offload.extras import missing_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where Spark runs; without it, on all cores of this machine."),
]


@contextmanager
def session_at(master: str | None) -> Iterator[SparkSession]:
    """Spark, at this master, until the command ends. One that runs in this process already goes on."""
    if find_spec("pyspark") is None:
        raise Misuse(missing_text("'spark'", "pyspark", "ledger-offload[spark]"))
    from pyspark.sql import SparkSession

    from offload_spark.session import session

    runs_already = SparkSession.getActiveSession() is not None
    spark = session(master=master, conf={"spark.log.level": "FATAL"})  # errors are told in one line
    try:
        yield spark
    finally:
        if not runs_already:
            spark.stop()


def given(state: CommandContext, option: list[str] | None) -> Mapping[str, Any]:
    """The options of the tier, as they are handed to workers."""
    state.options(option)  # which checks them
    return dict(each.split("=", 1) for each in option or ())
