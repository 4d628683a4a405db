"""The place of the current run, for its tests."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from offload_conformance.place import BackendPlace

CURRENT: Final = ContextVar[BackendPlace]("the place that the black box is run at")
"""The place of the run, set while pytest runs."""
