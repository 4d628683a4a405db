"""Shared steps of the Spark commands: start Spark, hand over options, report errors in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offload.cli.kit.state import CommandContext
from offload.ground.errors import Misuse
from offload.ground.extras import missing_text
from offload_spark.opening import KEYS_VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The Spark master. Default: all cores of this machine."),
]

# The plain commands read the variable. Here each executor does: its service may be at another address.
ExecutorKeys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="URL",
        help="The key service for encrypted streams, as every executor reaches it: keyfile:/path or keyenv:. "
        "Default: OFFLOAD_KEYS of each process.",
    ),
]


@contextmanager
def session_at(master: str | None) -> Iterator[SparkSession]:
    """Yield a Spark session, and stop it at the end. A session that runs in this process already stays."""
    if find_spec("pyspark") is None:
        raise Misuse(missing_text("'spark'", "pyspark", "ledger-offload[spark]"))
    from pyspark.sql import SparkSession

    from offload_spark.session import session

    runs_already = SparkSession.getActiveSession() is not None
    spark = session(master=master, conf={"spark.log.level": "FATAL"})  # the command prints errors in one line
    try:
        yield spark
    finally:
        if not runs_already:
            spark.stop()


def check_keys(
    state: CommandContext, keys: str | None, encrypt: str | None = None, *, decrypt: bool = False
) -> None:
    """Raise `Usage` if `--encrypt` is wrong, lacks a key service here, or contradicts `--decrypt`."""
    state.with_keys(keys or os.environ.get(KEYS_VARIABLE), encrypt, decrypt=decrypt)


def given(state: CommandContext, option: list[str] | None) -> Mapping[str, Any]:
    """Return the options of the tier in the form that workers get."""
    state.options(option)  # raises for a malformed one
    return dict(each.split("=", 1) for each in option or ())
