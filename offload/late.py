"""Public names that are imported when they are first used (PEP 562), for a package's `__init__`.

An entry-point module then pays for nothing but what it uses, although its package re-exports more;
and the command line can answer Ctrl-C before the libraries are loaded. Type checkers never see
this: beside it stand ordinary imports under `TYPE_CHECKING`, and a test holds one against the other.
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
    """`__getattr__` and `__dir__` for `package`, whose names live in the modules that `homes` gives."""
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(homes[name]), name)
        return value

    def names() -> list[str]:
        return sorted({*namespace, *homes})

    return get, names
