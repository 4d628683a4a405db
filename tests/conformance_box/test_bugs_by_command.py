"""What an author's class catches, `offload conformance` catches too, though it sees less of the store."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance_box.installed import Site, box
from contract.all_store_bugs import ALL_STORE_BUGS
from contract.bugs import Bug
from servers.selection import CAMPAIGN

SEEN_FROM_OUTSIDE = (
    "MakesItsPlace",
    "LeavesParts",
    "DropsDotsAtTheEnd",
    "SaysItOnManyLines",
    "TakesItForOneOfTwo",
)
"""They leave objects beside those that were written, or live in an error that the box translates."""

NOT_A_CLAUSE = {
    "DeniesTheAbsent": "the command ends before the first clause: nothing may be read there",
    "KnowsOnlyItsOwnProcess": "another process does not find objects of this one's memory",
}

BACKEND = """
    from contract.all_store_bugs import ALL_STORE_BUGS

    OBJECTS = {}
    MAKE = {bug.name: bug.make for bug in ALL_STORE_BUGS}

    def open_url(url):
        return MAKE[url.partition("://")[2]](objects=OBJECTS)
"""


def asked(bug: Bug) -> bool:
    """Bugs of what an author states of capabilities are the plugin's to state here: test_declared.py."""
    if bug.name in NOT_A_CLAUSE or hasattr(bug.make, "declared"):
        return False
    return CAMPAIGN or bug.name in SEEN_FROM_OUTSIDE


@pytest.mark.parametrize("bug", [*filter(asked, ALL_STORE_BUGS)], ids=lambda bug: bug.name)
def test_a_bug_is_caught_by_its_clause_through_the_command(bug: Bug, site: Site, tmp_path: Path) -> None:
    site.install("bugs", BACKEND)
    clause = f"store/{bug.clause.removeprefix('test_')}"

    ran = box(f"bugs://{bug.name}", "--select", clause, "--seed", "0", "--json")

    [found] = [each for each in ran.document["clauses"] if each["id"] == clause]
    assert (ran.code, found["outcome"]) == (1, "failed")
