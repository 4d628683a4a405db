"""What Hypothesis draws depends on its seed alone.

By itself it also draws constants that it finds in whatever local modules are imported by now. So the same
seed gave other draws after other tests, and in a checkout others than from a wheel. Hypothesis has no setting
for that; older releases draw none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from hypothesis.internal.conjecture import providers

KINDS = ("integers", "floats", "bytes", "strings")


@contextmanager
def by_seed_alone() -> Iterator[None]:
    """Draw no constants of local modules within this block."""
    module: Any = providers
    if not hasattr(module, "_get_local_constants"):
        yield
        return
    none = module.Constants(**{kind: module.SortedSet() for kind in KINDS})
    with patch.object(module, "_get_local_constants", lambda: none):
        yield
