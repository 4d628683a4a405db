"""What a task raised, as an error of the framework's: one sentence, and no trace of Spark's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from offload.errors import OffloadError


@contextmanager
def plain_errors() -> Iterator[None]:
    """An error that a worker raised comes wrapped; the last line of its trace is what a person needs."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as exc:
        lines = [line for line in str(exc).splitlines() if "offload.errors." in line]
        said = lines[-1].partition("offload.errors.")[2].partition(": ")[2] if lines else str(exc)
        raise OffloadError(said) from exc
