"""docs/pulsar-claims.md names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "pulsar-claims.md"


def test_every_test_that_the_table_names_exists_and_names_the_claim_it_follows() -> None:
    tests = {
        node.name: ast.get_docstring(node) or ""
        for path in HERE.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| `(test_\w+)` \|$", PAGE.read_text(), re.MULTILINE)

    assert len(rows) >= 30
    for theirs, ours in rows:
        assert ours in tests, f"{ours} is named for {theirs}, and does not exist"
        first = theirs.split(",")[0].split(".")[-1].strip()
        claimed = first.removesuffix("FirstFails")
        assert claimed in tests[ours], f"{ours} does not say that it follows {first}"
