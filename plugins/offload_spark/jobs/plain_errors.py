"""Errors of Spark's workers as errors of the framework: the cause first, and without traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from offload.ground.errors import OffloadError, StoreDenied

NAMED: Final = re.compile(rf"{re.escape(OffloadError.__module__)}\.(\w+): ")
"""The text before an error of the framework in a worker's trace: its class."""

LAST: Final = re.compile(r"(\w+\.)*\w*(Error|Exception|Exit)\b")
"""The begin of the last line of a Python trace: the class of the error."""

LINES_MAX: Final = 10


@contextmanager
def plain_errors() -> Iterator[None]:
    """Replace an error of Spark by one of at most ten lines, with the cause first.

    Raises an `OffloadError` with the text of the error in the worker, or `StoreDenied` if it was one: then
    other streams need not be tried. Spark's own error is its `__cause__`.
    """
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as exc:
        name, said = cause_of(str(exc))
        kind = StoreDenied if name == StoreDenied.__name__ else OffloadError
        raise kind(said) from exc


def cause_of(text: str) -> tuple[str, str]:
    """Return the class and the text of an error of the framework in Spark's text.

    If there is none, returns an empty class and a short text: the error of the last Python trace, if there is
    one, before the first lines of Spark's text.
    """
    lines = text.splitlines()
    for line in reversed(lines):
        if found := NAMED.search(line):
            return found[1], line[found.end() :]
    # Indented lines and those of the JVM are where something happened, and not what.
    told = [line for line in lines if line.strip() and not line.startswith((" ", "\t"))]
    causes = [line for line in told if LAST.match(line)][-1:]
    rest = [line for line in told if line not in causes and not line.startswith("Traceback")]
    return "", "\n".join([*causes, *rest][:LINES_MAX])
