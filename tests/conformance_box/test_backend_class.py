"""One class per backend: pytest collects every layer from it, with the author's methods."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
from offload_conformance import Limits, OffloaderBackend, StoreBackend
from offload_conformance.backend import SUITES
from offload_conformance.box import Result
from offload_conformance.clauses import Clause, clause_of, clauses_of, since
from offload_conformance.report import verdict

from offload import Capabilities, ObjectStoreOffloader
from offload.contracts.offloader import LedgerOffloader
from offload.store.memory import MemoryStore

MINE = """
from offload import Capabilities
from offload.store.memory import MemoryStore
from offload_conformance import Limits, StoreBackend

PLACES = {}


class TestMine(StoreBackend):
    capabilities = Capabilities(atomic_create=True, strong_listing=True, multipart=True, durable=False)
    limits = Limits(tiny_chunks=100)

    def open_backend(self):
        return MemoryStore(objects=PLACES.setdefault(self.name, {}))

    def keys_in_store(self):
        return set(PLACES.get(self.name, ()))
"""


def test_a_backend_of_few_lines_collects_every_clause(tmp_path: Path) -> None:
    """This test only collects. The tests of `examples/offload-sqlite`, such a backend, run the clauses."""
    (tmp_path / "test_mine.py").write_text(MINE)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "test_mine.py"],
        cwd=tmp_path, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    found = set(re.findall(r"^test_mine.py::TestMine::(\w+)::test_(\w+)", done.stdout, re.MULTILINE))
    home = {"store": "TestStore", "contract": "TestOffloader", "end_to_end": "TestOffloader"}
    home["protocol"] = "TestProtocol"
    assert found == {(home[each.layer], each.id.partition("/")[2]) for each in clauses_of(*SUITES)}
    assert len(MINE.splitlines()) < 30


class Mine(StoreBackend):
    limits = Limits(key_size_bytes_max=900, tiny_chunks=7, walk_examples=3, walk_steps=4)
    test_of_my_own: ClassVar[str] = "not collected again in every layer"

    def open_backend(self) -> MemoryStore:
        return MemoryStore()

    def keys_in_store(self) -> set[str]:
        return set()


def test_limits_reach_the_layers() -> None:
    assert Mine.TestStore.key_size_bytes_max == 900  # type: ignore[attr-defined]
    assert Mine.TestOffloader.tiny_chunks == 7  # type: ignore[attr-defined]
    assert (Mine.TestProtocol.walk_examples, Mine.TestProtocol.walk_steps) == (3, 4)  # type: ignore[attr-defined]


def test_a_layer_collects_neither_another_nor_what_its_author_adds() -> None:
    for layer in (Mine.TestStore, Mine.TestOffloader, Mine.TestProtocol):  # type: ignore[attr-defined]
        assert (layer.TestStore, layer.TestOffloader, layer.TestProtocol) == (None, None, None)
        assert layer.test_of_my_own is None
        assert issubclass(layer, Mine)


def test_capabilities_are_compared_with_those_of_the_store() -> None:
    class Boastful(Mine):
        capabilities = Capabilities(atomic_create=True, strong_listing=True, multipart=False)

    for backend, holds in ((Mine, True), (Boastful, False)):
        suite = backend.TestStore()  # type: ignore[attr-defined]
        if holds:
            suite.test_capabilities_are_those_stated(MemoryStore())
        else:
            with pytest.raises(AssertionError):
                suite.test_capabilities_are_those_stated(MemoryStore())


def test_an_offloader_has_no_layer_of_a_store() -> None:
    class Whole(OffloaderBackend):
        def open_backend(self) -> ObjectStoreOffloader:
            return ObjectStoreOffloader(MemoryStore())

        def keys_in_store(self) -> set[str]:
            return set()

    assert not hasattr(Whole, "TestStore")
    asked = [clause.id for clause in clauses_of(Whole.TestProtocol)]  # type: ignore[attr-defined]
    assert asked == ["protocol/walks_go_as_the_model_says"]
    assert isinstance(Whole.TestOffloader().open_offloader(), LedgerOffloader)  # type: ignore[attr-defined]


# Clauses are derived from the tests


class Suite:
    layer = "store"

    def test_old(self) -> None:
        """It holds. So it
        was written."""

    @since("0.9", advisory=True)
    def test_new(self) -> None:
        """Whatever
        happens (this; or that): it holds"""


ONE = Clause(id="store/one", text="One.")


class Built(Suite):
    layer = "contract"

    def test_above(self) -> None:
        """Above."""


def test_a_clause_has_the_name_of_a_method_and_its_first_sentence() -> None:
    assert clause_of(Suite, "test_old") == Clause(id="store/old", text="It holds.")
    assert clause_of(Suite, "test_new").text == "Whatever happens (this; or that): it holds"
    assert (clause_of(Suite, "test_new").since, clause_of(Suite, "test_new").advisory) == ("0.9", True)


def test_a_clause_belongs_to_the_layer_that_defines_it() -> None:
    assert [clause.id for clause in clauses_of(Built)] == ["store/old", "store/new", "contract/above"]


def test_every_clause_of_the_suite_has_its_own_id_and_a_text() -> None:
    clauses = clauses_of(*SUITES)

    assert len({clause.id for clause in clauses}) == len(clauses) > 60
    assert [clause.id for clause in clauses if len(clause.text) < 15] == []


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("store", True),
        ("store/old", True),
        ("store/o*", True),
        ("*old", True),
        ("old", False),
        ("contract", False),
    ],
)
def test_patterns_match_layers_or_ids(pattern: str, matches: bool) -> None:
    assert clause_of(Suite, "test_old").matches(pattern) == matches


@pytest.mark.parametrize(("advisory", "passes"), [(True, True), (False, False)])
def test_an_advisory_clause_may_fail(advisory: bool, passes: bool) -> None:
    clauses = [{"outcome": "passed", "advisory": False}, {"outcome": "failed", "advisory": advisory}]

    assert verdict({"clauses": clauses}) == passes


def test_a_run_without_clauses_has_not_passed() -> None:
    assert not verdict({"clauses": [{"outcome": "not_run", "advisory": False}]})


@pytest.mark.parametrize(
    ("result", "outcome", "message"),
    [
        (Result(ONE, cases=2), "passed", ""),
        (Result(ONE, cases=1, skipped="no room"), "not_run", "no room"),
        (Result(ONE, cases=1, unfinished=1), "not_run", "the run was stopped"),
        (Result(ONE, message="not selected"), "not_run", "not selected"),
        (Result(ONE, "failed", "why", cases=1, skipped="no room"), "failed", "why"),
    ],
)
def test_a_clause_passed_only_if_every_case_ran_to_its_end(
    result: Result, outcome: str, message: str
) -> None:
    result.settle()

    assert (result.outcome, result.message) == (outcome, message)
