"""Late imports for a package's `__init__`: each public name is imported when it is first used (PEP 562).

A module of the package then loads only what it uses, although the package re-exports more. And the command
line can answer Ctrl-C before the libraries are loaded. Type checkers read ordinary imports under
`TYPE_CHECKING` instead, and a test compares the two lists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["late_names"]


def late_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for `package`. `homes` gives the module of each name."""
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # Kept in the package, so that Python does not call this function for the name again.
        value = namespace[name] = getattr(import_module(homes[name]), name)
        return value

    def names() -> list[str]:
        return sorted({*namespace, *homes})

    return get, names
