"""The growth of the contract: each sentence of that section in docs/conformance.md that code can check."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest
from command_line import offload
from conformance_box.installed import Site, box
from offload_conformance.backend import SUITES
from offload_conformance.clauses import FIRST, clauses_of
from offload_conformance.report import SCHEMA
from offload_conformance.store.reads import StoreReadClauses

from offload import Backend
from offload.contracts.plugin import CONTRACT
from offload.ground.errors import Misuse
from offload.ground.loops import loops_in_use

LOOPS = f"note: loops over records: {loops_in_use()}\n"
"""The note of `offload plugins` that is not about the contract."""

STORE = """
    from offload.store.memory import MemoryStore
    from offload.contracts.store import Span

    OBJECTS = {}
    DECLARES = {"tested_against": STATED}

    class Store(MemoryStore):
        async def get(self, key, span=None):
            if SHIFTS and isinstance(span, Span) and span.length:
                span = Span(span.start + 1, span.length)
            return await super().get(key, span)

    def open_url(url):
        return Store(objects=OBJECTS, name=url.partition("://")[2])
"""


def code(*, stated: str | None = None, shifts: bool = False) -> str:
    return STORE.replace("STATED", repr(stated)).replace("SHIFTS", repr(shifts))


def minor(number: str) -> tuple[int, ...]:
    return tuple(map(int, number.split(".")[:2]))


# The number, and the clauses.


def test_the_contract_is_the_minor_release_of_the_distribution() -> None:
    """A report, a page and `pip show` therefore show the same number."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]

    assert minor(project["version"]) == minor(CONTRACT)


def test_no_clause_belongs_to_a_future_contract() -> None:
    for clause in clauses_of(*SUITES):
        assert minor(FIRST) <= minor(clause.since) <= minor(CONTRACT), clause.id


def test_a_clause_is_advisory_for_one_minor_release() -> None:
    """With the next contract this test fails until `advisory` is removed from the clause's mark."""
    late = [each.id for each in clauses_of(*SUITES) if each.advisory and each.since != CONTRACT]

    assert late == []


@pytest.mark.parametrize(("advisory", "code_"), [(True, 0), (False, 1)])
def test_a_failing_advisory_clause_is_reported_and_does_not_change_the_exit_code(
    site: Site, monkeypatch: pytest.MonkeyPatch, advisory: bool, code_: int
) -> None:
    site.install("shifts", code(shifts=True))
    monkeypatch.setattr(StoreReadClauses.test_ranges_are_exact, "advisory", advisory, raising=False)

    ran = box("shifts://here", "--select", "store/ranges_are_exact", "--select", "store/puts_are_whole")

    assert ran.code == code_
    assert ran.lines[0].startswith("FAILED store/ranges_are_exact: ")
    assert ("(advisory: does not affect the verdict)" in ran.lines[0]) == advisory


# The contract against which a backend was tested.

OLDER, NEWER = "0.1", "99.0"
NOTES = {
    OLDER: "newer clauses were not tested; `offload conformance` tests them",
    NEWER: "it may need a newer framework; pip install --upgrade ledger-offload",
}


@pytest.mark.parametrize("stated", [OLDER, NEWER])
def test_another_contract_gives_a_note_and_is_not_refused(site: Site, stated: str) -> None:
    site.install("attic", code(stated=stated))
    note = f"backend 'attic' was tested against contract {stated}, and this is {CONTRACT}: {NOTES[stated]}"

    listed, machine = offload("plugins"), offload("plugins", "--json")
    checked, checked_json = offload("check", "attic://here"), offload("check", "attic://here", "--json")

    assert (listed.code, listed.stderr) == (0, f"note: {note}\n{LOOPS}")
    assert (machine.document["contract"], machine.document["notes"]) == (CONTRACT, [note])
    assert (checked.code, checked_json.code) == (0, 0)
    assert checked.lines[-1] == f"advice: {note}"
    assert checked_json.document["advice"] == [note]


@pytest.mark.parametrize("stated", [CONTRACT, None])
def test_the_same_contract_or_none_gives_no_note(site: Site, stated: str | None) -> None:
    site.install("attic", code(stated=stated))

    listed, machine = offload("plugins"), offload("plugins", "--json")

    assert listed.stderr == LOOPS
    assert machine.document["notes"] == []
    [row] = [each for each in machine.document["plugins"] if each["plugin"] == "attic"]
    assert row["declares"][0]["tested_against"] == stated
    assert "advice" not in offload("check", "attic://here").text


@pytest.mark.parametrize("stated", [OLDER, None])
def test_the_report_has_the_stated_contract_and_the_one_that_ran(site: Site, stated: str | None) -> None:
    site.install("attic", code(stated=stated))

    document = box("attic://here", "--select", "store/puts_are_whole", "--json").document

    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["backend"]["tested_against"] == stated
    assert (document["contract"], document["suite_version"]) == (CONTRACT, version("ledger-offload"))


@pytest.mark.parametrize("stated", ["", "0", "0.2.1", ">=0.2", "0.2\n", "\u0660.\u0662", "1" * 5 + ".0"])
def test_an_invalid_contract_cannot_be_stated(stated: str) -> None:
    with pytest.raises(Misuse, match="tested_against is a contract such as"):
        Backend(name="attic", target="a:b", tested_against=stated)


def test_a_plugin_that_declares_what_this_framework_does_not_know_is_not_loaded(site: Site) -> None:
    """A plugin for a newer framework may do so. It does not affect others."""
    site.install("attic", STORE.replace("STATED", "'0.2', 'of_the_future': 1").replace("SHIFTS", "False"))

    rows = {row["plugin"]: row for row in offload("plugins", "--json").document["plugins"]}

    assert "of_the_future" in rows["attic"]["error"]
    assert rows["posix"]["error"] is None


def test_the_page_names_the_contract() -> None:
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")

    assert f"to which its clauses belong: now {CONTRACT}." in page
