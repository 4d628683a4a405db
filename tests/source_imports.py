"""The imports of a Python file, read from its text.

Several tests ask for the imports of all files. Only statements can be imports, so expressions, most of the
nodes, are not walked, and what a file imports is kept.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

Imports = ast.Import | ast.ImportFrom


@cache
def imports_in(path: Path) -> tuple[Imports, ...]:
    """Return the imports of a file, also those within functions and for type checkers."""
    return (*_imports(ast.parse(path.read_text(encoding="utf-8"))),)


def _imports(node: ast.AST) -> Iterator[Imports]:
    for name in ("body", "orelse", "handlers", "finalbody", "cases"):
        for each in getattr(node, name, ()) or ():
            if isinstance(each, Imports):
                yield each
            else:
                yield from _imports(each)
