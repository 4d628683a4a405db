"""Every sentence of the two contracts names the clauses that ask for it (docs/contract.md)."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any, Final

import pytest
from offload_conformance import CatalogueBackend
from offload_conformance.backend import SUITES
from offload_conformance.clauses import clauses_of

DOCS: Final = Path(__file__).parents[2] / "docs"
MADE: Final[dict[str, Any]] = runpy.run_path(str(DOCS / "make_contract.py"))
PAGE: Final = (DOCS / "contract.md").read_text(encoding="utf-8")
CELLS: Final[dict[tuple[str, str], str]] = MADE["cells"](PAGE)
CLAUSES: Final = {clause.id for clause in clauses_of(*SUITES, CatalogueBackend)}
REASONS: Final = re.findall(r"^\| ([a-z ]+) \| (?:says|is) ", PAGE, re.MULTILINE)


def fault(cell: str) -> str:
    """Why this is neither a list of clauses nor a reason of the page; empty if it is."""
    named = re.findall(r"`(.*?)`", cell)
    if unknown := [each for each in named if each not in CLAUSES]:
        return f"no such clause: {unknown}"
    reason, _, why = re.sub(r"(, |; )?`.*?`", "", cell).partition(":")
    if reason not in {"", *REASONS}:
        return f"no such reason: {reason!r}"
    if reason in {"not visible", "not asked"} and not why.strip():
        return "say why"
    return "" if named or reason else "name a clause or a reason"


def test_every_sentence_of_the_contracts_names_its_clause() -> None:
    faults = {key: fault(cell) for key, cell in CELLS.items()}

    assert {key: why for key, why in faults.items() if why} == {}


def test_the_page_has_every_sentence_as_it_is_now() -> None:
    assert MADE["page"]() == PAGE, "run: python docs/make_contract.py, and fill the empty cells"


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("", "name a clause or a reason"),
        ("`store/puts_are_hole`", "no such clause: ['store/puts_are_hole']"),
        ("because", "no such reason: 'because'"),
        ("not visible", "say why"),
        ("`store/puts_are_whole`, `store/puts_are_durable`", ""),
        ("not visible: no test cuts the power; `store/puts_are_durable`", ""),
        ("definition", ""),
    ],
)
def test_a_cell_names_clauses_that_exist_or_a_known_reason(cell: str, why: str) -> None:
    assert fault(cell) == why


def test_sentences_are_found_wherever_a_contract_may_have_them() -> None:
    module = ast.parse('''"""Of a module. In two."""
class Port:
    """**Puts are whole.** A bold
    beginning. Raises

    - `A` if one;
    - `B` if two. Then stop.
    """
    size: int
    """Of an attribute."""
    async def put(self) -> None:
        """Of a method."""
    def _private(self) -> None:
        """Not public."""
''')

    found = [(name, each) for name, text in MADE["documented"](module) for each in MADE["sentences"](text)]

    assert found == [
        ("", "Of a module."),
        ("", "In two."),
        ("Port", "**Puts are whole.** A bold beginning."),
        ("Port", "Raises `A` if one."),
        ("Port", "Raises `B` if two."),
        ("Port", "Then stop."),
        ("Port.size", "Of an attribute."),
        ("Port.put", "Of a method."),
    ]
