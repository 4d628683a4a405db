"""The code of the commands: each function is short enough to see at once."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

import offload.cli

LINES_MAX: Final = 40
FILES: Final = sorted(Path(offload.cli.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_no_function_is_longer_than_forty_lines(path: Path) -> None:
    """The arguments count too. Their help texts are annotations with names, above the function."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    lengths = {each.name: (each.end_lineno or 0) - each.lineno + 1 for each in functions}

    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}
