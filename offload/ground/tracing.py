"""Spans of OpenTelemetry, if this process uses it.

A process that traces has imported `opentelemetry.trace`, to set its provider: by `opentelemetry-instrument`,
by a plugin, or by the program around us. If nobody has, a span is one look-up in a dictionary. So this
project neither needs nor imports the library.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

__all__ = ["is_tracing", "span"]

SCOPE: Final = "ledger-offload"
_NOTHING: Final[AbstractContextManager[Any]] = nullcontext()


def is_tracing() -> bool:
    """Return True if somebody in this process may be interested in spans."""
    return "opentelemetry.trace" in sys.modules


def span(name: str, *, is_parent: bool = True, **attributes: str | int) -> AbstractContextManager[Any]:
    """Return a context that is a span. An error that leaves it is recorded.

    Spans that begin within it are its children, unless `is_parent` is false. A generator that yields within
    its span needs that, because the code between two rows belongs to the consumer.
    """
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return _NOTHING
    tracer = trace.get_tracer(SCOPE)
    begin = tracer.start_as_current_span if is_parent else tracer.start_span
    named = {f"offload.{key}": value for key, value in attributes.items()}
    context: AbstractContextManager[Any] = begin(name, attributes=named)
    return context
