"""Tests of the conformance classes: each clause has a test, and each test catches a violation of it.

The broken backends are `offload_conformance.bugs`, and those of `backend_bugs`, which need a backend of this
project. Each runs the one clause that finds it, and must fail it. Sound backends pass in the same way.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Final

import contract.backend_bugs  # noqa: F401 - registers its bugs
import pytest
from campaign import few, keeping
from contract.backend_bugs import Folder
from offload_conformance import OffloaderConformance, StoreConformance
from offload_conformance.bugs import Bug, load
from offload_conformance.bugs.trial import BREACHES, clauses_of, verdict

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import Committer, LedgerOffloader
from offload.contracts.store import ObjectStore
from offload.native.offloader import ObjectStoreOffloader
from offload.store.memory import MemoryStore

DOCS = Path(__file__).parents[2] / "docs"

ALL_BUGS: Final = load()

FIRST_BUGS: Final = {bug.clause: bug for bug in reversed(ALL_BUGS.values())}
"""The first bug of each clause."""


def promises_of(contract: type) -> list[str]:
    """Return the names of the tests that a contract's docstring promises."""
    promised = re.findall(r"\*\*([A-Z][a-z ]+)\.\*\*", contract.__doc__ or "")
    return [f"test_{clause.lower().replace(' ', '_')}" for clause in promised]


@pytest.mark.parametrize(
    ("contract", "suite"),
    [
        (LedgerOffloader, OffloaderConformance),
        (Committer, OffloaderConformance),
        (ReadHandle, OffloaderConformance),
        (ObjectStore, StoreConformance),
    ],
)
def test_every_clause_has_a_test_of_its_name(contract: type, suite: type) -> None:
    clauses = promises_of(contract)

    assert len(clauses) >= 2
    assert [clause for clause in clauses if not hasattr(suite, clause)] == []


@pytest.mark.parametrize("layer", ["store", "contract", "protocol"])
def test_every_test_is_failed_by_a_bug(layer: str) -> None:
    assert {*clauses_of(layer)} == {bug.clause for bug in ALL_BUGS.values() if bug.layer == layer}


@pytest.mark.parametrize(
    "bug",
    keeping(
        FIRST_BUGS.values(),
        ALL_BUGS.values(),
        "planted bugs; make test has one of each clause",
        id_=lambda bug: bug.name,
    ),
)
def test_a_bug_is_caught_by_its_clause(bug: Bug) -> None:
    """The clause fails because of the violation, and not because the broken backend is a faulty program."""
    failure = verdict(bug.backend, bug.clause)

    assert failure is not None
    assert bug.proof is not None or isinstance(failure, BREACHES), repr(failure)


@few("sound stores, clause by clause, where bugs are caught; the suites of tests/store have all", 12)
@pytest.mark.parametrize("clause", clauses_of("store"))
def test_a_sound_store_is_not_caught(clause: str) -> None:
    sound = Folder if clause == "store/create_is_atomic_between_processes" else MemoryStore
    assert verdict(sound, clause) is None


@few("sound offloaders, clause by clause, where bugs are caught; the suite in memory has all", 12)
@pytest.mark.parametrize("clause", clauses_of("contract"))
def test_a_sound_offloader_is_not_caught(clause: str) -> None:
    assert verdict(ObjectStoreOffloader, clause) is None


@few("sound tiers, clause by clause, where bugs are caught; test_own_protocol has all", 4)
@pytest.mark.parametrize("clause", clauses_of("protocol"))
def test_a_sound_store_of_a_tier_is_not_caught(clause: str) -> None:
    assert verdict(MemoryStore, clause) is None


def test_the_page_of_bugs_agrees_with_the_code() -> None:
    made = runpy.run_path(str(DOCS / "make_conformance_bugs.py"))["page"]()

    found = (DOCS / "conformance-bugs.md").read_text(encoding="utf-8")
    assert found == made, "run: python docs/make_conformance_bugs.py"
