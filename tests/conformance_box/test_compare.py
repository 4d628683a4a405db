"""`offload conformance --compare`: the changes between two reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conformance_box.installed import Site, box

OLD = {"same": "passed", "breaks": "passed", "mended": "failed", "stops": "passed", "goes": "passed"}
NEW = {"same": "passed", "breaks": "failed", "mended": "passed", "stops": "not_run", "comes": "passed"}


@pytest.fixture(autouse=True)
def _installed(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, outcomes: dict[str, str], *, version: int = 1) -> str:
    clauses = [{"id": f"store/{each}", "outcome": outcome} for each, outcome in outcomes.items()]
    Path(name).write_text(json.dumps({"report": version, "clauses": clauses}))
    return name


def test_each_change_is_one_line_and_a_new_failure_gives_exit_code_1() -> None:
    ran = box("--compare", write("old", OLD), write("new", NEW))

    assert ran.code == 1
    assert ran.lines == [
        "newly fails: store/breaks",
        "newly passes: store/mended",
        "not run any more: store/stops",
        "appeared: store/comes",
        "disappeared: store/goes",
    ]


def test_an_old_failure_is_not_reported_as_new() -> None:
    ran = box("--compare", write("old", {"broken": "failed"}), write("new", {"broken": "failed"}))

    assert (ran.code, ran.stdout, ran.stderr) == (0, b"", "note: nothing changed\n")


def test_a_new_clause_that_fails_is_newly_failing() -> None:
    ran = box("--compare", write("old", {}), write("new", {"comes": "failed"}), "--json")

    assert ran.code == 1
    assert ran.document["newly fails"] == ran.document["appeared"] == ["store/comes"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "old is not a report of a conformance run"),
        ("[]", "old is not a report of a conformance run"),
        ('{"report": 1}', "old is not a report of a conformance run"),
        ('{"report": 2, "clauses": []}', "old is a report of version 2; this program reads version 1"),
    ],
)
def test_compare_refuses_a_file_that_is_not_a_report(content: str, says: str) -> None:
    Path("old").write_text(content)

    ran = box("--compare", "old", write("new", {}))

    assert (ran.code, ran.error) == (1, f"offload: {says}")


def test_the_error_about_an_absent_file_names_it() -> None:
    assert "no-such-file" in box("--compare", "no-such-file", write("new", {})).error
