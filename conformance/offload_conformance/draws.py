"""A block in which Hypothesis draws by its seed alone.

By default Hypothesis also draws constants that it finds in the local modules imported so far, and remembers
them. So one seed gave different draws after other tests, and in a checkout other draws than from a wheel.
Hypothesis has no setting for that. Older releases draw no such constants.
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
    if not hasattr(module, "_get_local_constants") or not hasattr(module, "CONSTANTS_CACHE"):
        yield
        return
    none = module.Constants(**{kind: module.SortedSet() for kind in KINDS})
    remembered = module.LRUCache(1024)
    with patch.multiple(module, _get_local_constants=lambda: none, CONSTANTS_CACHE=remembered):
        yield
