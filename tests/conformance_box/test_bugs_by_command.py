"""What an author's class catches, `offload conformance` catches too, though it sees less of the store."""

from __future__ import annotations

import pytest
from conformance_box.installed import Site, box
from contract.all_store_bugs import ALL_STORE_BUGS
from contract.bugs import Bug
from contract.offloader_bugs import OFFLOADER_BUGS
from contract.protocol_bugs import PROTOCOL_BUGS
from servers.selection import CAMPAIGN

from offload.contracts.store import ObjectStore

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
    from contract.protocol_bugs import PROTOCOL_BUGS

    OBJECTS = {}
    MAKE = {bug.name: bug.make for bug in ALL_STORE_BUGS + PROTOCOL_BUGS}

    def open_url(url):
        server, _, name = url.partition("://")[2].rpartition("/")
        return MAKE[name](objects=OBJECTS) if server in ("", "server:80") else MAKE[name].unreachable()
"""


def asked(bug: Bug) -> bool:
    """Bugs of what an author states of capabilities are the plugin's to state here: test_declared.py."""
    if bug.name in NOT_A_CLAUSE or hasattr(bug.make, "declared"):
        return False
    return CAMPAIGN or bug.name in SEEN_FROM_OUTSIDE


OFFLOADER = """
    from contract.offloader_bugs import OFFLOADER_BUGS
    from contract.protocol_bugs import PROTOCOL_BUGS
    from offload.env import Env
    from offload.store.memory import MemoryStore
    from offload.store.prefix import PrefixStore
    from offload.native.offloader import ObjectStoreOffloader, TierOptions

    OBJECTS = {}
    MAKE = {bug.name: bug.make for bug in OFFLOADER_BUGS} | {"Sound": ObjectStoreOffloader}
    TIERS = {bug.name: bug.make for bug in PROTOCOL_BUGS}
    DECLARES = {"kind": "offloader"}

    def open_url(url):
        name, _, folder = url.partition("://")[2].partition("/")
        store = MemoryStore(objects=OBJECTS)
        store = PrefixStore(store, folder) if folder else store
        return MAKE[name](store) if name in MAKE else TIERS[name](store, env=Env(), options=TierOptions())
"""

SEEN_BENEATH = ("SharesObjects", "ChecksNothingItReads", "AdoptsNothing", "AsksAgainAtOnce")
"""Bugs of offloaders that show only in the store beneath, or under its faults."""

OFFLOADERS_AND_TIERS = [*OFFLOADER_BUGS, *PROTOCOL_BUGS]


@pytest.mark.parametrize("bug", [*filter(asked, ALL_STORE_BUGS)], ids=lambda bug: bug.name)
def test_a_bug_is_caught_by_its_clause_through_the_command(bug: Bug, site: Site) -> None:
    site.install("bugs", BACKEND)

    assert caught(bug, "store")


@pytest.mark.parametrize(
    "bug",
    [each for each in OFFLOADERS_AND_TIERS if CAMPAIGN or each.name in SEEN_BENEATH],
    ids=lambda bug: bug.name,
)
def test_an_offloaders_bug_is_caught_by_its_clause_through_the_command(bug: Bug, site: Site) -> None:
    is_store = issubclass(bug.make, ObjectStore) if isinstance(bug.make, type) else False
    site.install("bugs", BACKEND if is_store else OFFLOADER)

    assert caught(bug, "*")


def test_a_sound_offloader_is_caught_by_no_clause_through_the_command(site: Site) -> None:
    """It is asked whatever a store's tier is asked, and everything that it stored is removed."""
    site.install("bugs", OFFLOADER)

    ran = box("bugs://Sound", *([] if CAMPAIGN else ["--select", "protocol/t*"]), "--json")

    asked = [each for each in ran.document["clauses"] if each["message"] != "not selected"]
    assert {each["outcome"] for each in asked} == {"passed"}
    assert "protocol/throttling_is_waited_out" in {each["id"] for each in asked}
    assert (ran.code, ran.document["left"], site.objects("bugs")) == (0, {}, {})


def caught(bug: Bug, layer: str) -> bool:
    """Whether the command fails, and by the clause that the bug breaks."""
    name = bug.clause.removeprefix("test_")
    server = "server:80/" if hasattr(bug.make, "unreachable") else ""
    ran = box(f"bugs://{server}{bug.name}", "--select", f"{layer}/{name}", "--seed", "0", "--json")
    failed = [each["id"] for each in ran.document["clauses"] if each["outcome"] == "failed"]
    return ran.code == 1 and [each.partition("/")[2] for each in failed] == [name]
