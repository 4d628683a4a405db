"""docs/conformance.md agrees with the schema, the command and the reports."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conformance_box.installed import Site, box
from offload_conformance.backend import SUITES
from offload_conformance.clauses import clauses_of
from offload_conformance.report import SCHEMA

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "conformance.md").read_text(encoding="utf-8")


def fields(schema: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Yield every field that the schema describes, and the fields within it."""
    for name, described in schema.get("properties", {}).items():
        yield before + name, described["description"].removesuffix(".")
        yield from fields(described, f"{before}{name}.")
        yield from fields(described.get("items", {}), f"{before}{name}[].")


def test_the_page_lists_the_fields_of_the_report() -> None:
    section = PAGE[PAGE.index("## The report") : PAGE.index("## How the contract grows")]

    assert re.findall(r"^\| `(\S+)` \| (.*) \|$", section, re.MULTILINE) == [
        *fields(json.loads(SCHEMA.read_text()))
    ]


def test_the_page_lists_the_options_of_the_command(site: Site) -> None:
    section = PAGE[PAGE.index("## Test a backend") : PAGE.index("## Layers")]
    listed = {
        option
        for row in re.findall(r"^\| (`-.*?) \|", section, re.MULTILINE)
        for option in re.findall(r"(--?[\w-]+)", row)
    }

    known = set(re.findall(r"(?:^| )(--?[a-z][a-z-]*)\b", box("--help").text, re.MULTILINE))

    assert {"--report", "--seed"} <= listed
    assert listed <= known
    assert {each for each in known if each.startswith("--")} - listed == {"--help", "--option"}


def test_the_matrix_matches_the_reports() -> None:
    made = runpy.run_path(str(DOCS / "make_conformance.py"))["page"]()

    assert made == PAGE, "run: python docs/make_conformance.py"


def test_the_matrix_has_every_current_clause() -> None:
    """Outcomes date from the day that each column names. Clauses and their texts are current."""
    rows = re.findall(r"^\| `(\w+/\w+)` \| (.*?) \|(?: (?:yes|\*\*no\*\*|-) \|)+$", PAGE, re.MULTILINE)

    now = [(clause.id, clause.text.replace("|", "\\|")) for clause in clauses_of(*SUITES)]
    assert rows == now, "run: python docs/make_conformance.py"


@pytest.mark.parametrize("path", sorted((DOCS / "conformance").glob("*.json")), ids=lambda path: path.stem)
def test_reports_in_the_repository_fit_the_schema(path: Path) -> None:
    jsonschema.validate(json.loads(path.read_text()), json.loads(SCHEMA.read_text()))
