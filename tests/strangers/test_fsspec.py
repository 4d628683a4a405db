"""The suite finds exactly these failures in fsspec's own file systems."""

from __future__ import annotations

import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from campaign import campaign
from strangers.suites import ROOT, outcomes, refusing

WHOLE, CREATED = "puts_are_whole_while_replaced", "creates_are_whole"
ATOMIC = {"create_is_atomic", "create_is_atomic_between_threads", "capabilities_are_as_meant"}
FOUND = {
    "TestMemory": {WHOLE, CREATED, *ATOMIC},
    "TestMemoryPiping": {WHOLE, *ATOMIC},
    "TestLocal": {WHOLE, CREATED},
    "TestLocalPiping": {WHOLE, CREATED, *ATOMIC},
}
"""The clauses that the file system of each class in `fsspec_suites` does not keep."""

BY_CHANCE = {
    "listing_keeps_its_end",
    "create_never_undoes_a_put",
    "puts_are_invisible_until_they_return",
}
"""Clauses whose outcome depends on when threads switch: `find` may miss the end of a folder that changes.

A create opens the file and fills it later, and so may overwrite a put. A read may come while a put fills
its file.
"""

PAGE = ROOT / "docs" / "fsspec-findings.md"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("fsspec")
    shutil.copy(Path(__file__).with_name("fsspec_suites.py"), folder)
    return outcomes(folder, "fsspec_suites.py", paths=[ROOT / "tests"])


def test_these_clauses_fail_in_memory(tmp_path: Path) -> None:
    """This tests only these clauses, on one file system. The campaign tests all clauses on all four."""
    shutil.copy(Path(__file__).with_name("fsspec_suites.py"), tmp_path)
    clauses = " or ".join(sorted(FOUND["TestMemory"]))
    wanted = f"TestMemory and not TestMemoryPiping and ({clauses})"

    found = outcomes(tmp_path, "fsspec_suites.py", "-k", wanted, paths=[ROOT / "tests"])

    assert refusing(found) - BY_CHANCE == FOUND["TestMemory"]


@campaign("all clauses over fsspec's file systems; those that its dictionary fails are asked here")
@pytest.mark.parametrize("suite", FOUND)
def test_these_clauses_fail_and_no_others(ended: dict[str, str], suite: str) -> None:
    mine = {name: error for name, error in ended.items() if name.startswith(f"{suite}::")}

    assert refusing(mine) - BY_CHANCE == FOUND[suite]
    assert len(mine) > 100


def test_the_page_lists_the_failures() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (memory|local) \| `(\w+)\(.*?` \| (`.*`) \|$", text, re.MULTILINE)
    said = {
        f"Test{files.title()}{'Piping' if how == 'pipe_file' else ''}": set(re.findall(r"`(\w+)`", clauses))
        for files, how, clauses in rows
    }

    assert said == FOUND
    assert f"fsspec {version('fsspec')}" in text, "measure again, and say what this version does"
