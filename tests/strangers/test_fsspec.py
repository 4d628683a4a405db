"""What the suite finds in fsspec's own file systems: these clauses, and no others."""

from __future__ import annotations

import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from strangers.suites import ROOT, outcomes, refusing

WHOLE, CREATED = "puts_are_whole_while_replaced", "creates_are_whole"
ATOMIC = {"create_is_atomic", "create_is_atomic_between_threads", "capabilities_are_as_meant"}
FOUND = {
    "TestMemory": {WHOLE, CREATED, *ATOMIC},
    "TestMemoryPiping": {WHOLE, *ATOMIC},
    "TestLocal": {WHOLE, CREATED},
    "TestLocalPiping": {WHOLE, CREATED, *ATOMIC},
}
"""Per class of `fsspec_suites`, the clauses that its file system does not keep."""

BY_CHANCE = {
    "listing_keeps_its_end",
    "create_never_undoes_a_put",
    "puts_are_invisible_until_they_return",
}
"""Whether `find` misses the end of a folder that another thread changes depends on when threads switch.

So does whether a create, which opens the file and fills it later, writes over a put; and whether a read
comes while one of two puts of a key fills its file.
"""

PAGE = ROOT / "docs" / "fsspec-findings.md"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("fsspec")
    shutil.copy(Path(__file__).with_name("fsspec_suites.py"), folder)
    return outcomes(folder, "fsspec_suites.py", paths=[ROOT / "tests"])


@pytest.mark.parametrize("suite", FOUND)
def test_these_clauses_fail_and_no_others(ended: dict[str, str], suite: str) -> None:
    mine = {name: error for name, error in ended.items() if name.startswith(f"{suite}::")}

    assert refusing(mine) - BY_CHANCE == FOUND[suite]
    assert len(mine) > 100


def test_the_page_says_what_was_found() -> None:
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (memory|local) \| `(\w+)\(.*?` \| (`.*`) \|$", text, re.MULTILINE)
    said = {
        f"Test{files.title()}{'Piping' if how == 'pipe_file' else ''}": set(re.findall(r"`(\w+)`", clauses))
        for files, how, clauses in rows
    }

    assert said == FOUND
    assert f"fsspec {version('fsspec')}" in text, "measure again, and say what this version does"
