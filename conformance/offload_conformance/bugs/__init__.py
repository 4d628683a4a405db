"""Planted bugs: backends with one mistake each, for whoever changes the suite or writes a part of it.

A suite that passes everything proves nothing. Each clause of the suite has at least one bug here that it must
find. An author of more clauses runs them on these bugs, and the author of a backend finds mistakes here that
others made.

    python -m offload_conformance.bugs                        every bug, each by its clause
    python -m offload_conformance.bugs store/listing_is_strong PagesByNumber

`load` returns the bugs by name, each a `Bug`, and `bug` registers more. The runner checks that a clause
passes on the sound class, and fails on the bug.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages

from offload_conformance.bugs.registry import BUGS, Bug, bug

__all__ = ["Bug", "bug", "load"]


def load() -> dict[str, Bug]:
    """Import every module of planted bugs, and return all bugs by name, in the order of the modules."""
    for module in walk_packages(__path__, f"{__name__}."):
        if not module.ispkg and not module.name.endswith("__main__"):
            import_module(module.name)
    return BUGS
