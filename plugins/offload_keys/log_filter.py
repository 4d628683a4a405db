"""Silence for SDKs while they handle keys: they log the bodies of requests and replies at the level DEBUG.

Other users of an SDK in the same process keep their logs: only records from within a call of a key service
are dropped, and only those below the level INFO.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_in_call: Final = ContextVar("a call of a key service", default=False)
"""Tasks and threads that a call starts copy it."""


class _Hush(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO or not _in_call.get()


_hush: Final = _Hush()


@contextmanager
def hushed(*packages: str) -> Iterator[None]:
    """Drop the debug log of these packages within the block. It knows the loggers that exist at its start."""
    # A filter sees the records of its own logger, not those of loggers below it.
    for name, logger in [*logging.root.manager.loggerDict.items()]:
        if isinstance(logger, logging.Logger) and name.partition(".")[0] in packages:
            logger.addFilter(_hush)  # does nothing if it is there
    token = _in_call.set(True)
    try:
        yield
    finally:
        _in_call.reset(token)
