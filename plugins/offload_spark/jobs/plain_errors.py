"""The error of a task as an error of the framework: one sentence, without Spark's traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from offload.errors import OffloadError, StoreDenied

MODULE: Final = "offload.errors."
"""The text before the name of an error's class in a worker's trace."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Unwrap an error of a worker: the last line of its trace has its class and its text.

    Raises an `OffloadError`, or `StoreDenied` if it was one: then other streams need not be tried.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as exc:
        lines = [line for line in str(exc).splitlines() if MODULE in line]
        name, _, said = lines[-1].partition(MODULE)[2].partition(": ") if lines else ("", "", str(exc))
        kind = StoreDenied if name == StoreDenied.__name__ else OffloadError
        raise kind(said) from exc
