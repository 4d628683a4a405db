"""Where the tests of a run find the place that they are run at."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from offload_conformance.place import BackendPlace

CURRENT: Final = ContextVar[BackendPlace]("the place that the black box is run at")
"""Set while pytest runs."""
