"""`offload conformance` catches every bug that an author's own test class catches, although it sees less."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from campaign import CAMPAIGN, keeping
from conformance_box.installed import Site, box
from contract.all_offloader_bugs import ALL_OFFLOADER_BUGS
from contract.all_store_bugs import ALL_STORE_BUGS
from contract.bugs import Bug
from contract.protocol_bugs import PROTOCOL_BUGS
from offload_conformance.offloader.coded import CodedClauses

from offload.contracts.store import ObjectStore

SEEN_FROM_OUTSIDE = (
    "MakesItsPlace",
    "LeavesParts",
    "DropsDotsAtTheEnd",
    "SaysItOnManyLines",
    "TakesItForOneOfTwo",
)
"""Bugs that leave other objects beside the written ones, or that are in an error which the box translates."""

NOT_A_CLAUSE = {
    "DeniesTheAbsent": "the command ends before the first clause: nothing may be read there",
    "KnowsOnlyItsOwnProcess": "another process does not find objects of this one's memory",
}

NOT_ASKED = re.compile("not selected|declares no codings")
"""Reasons of clauses that the command did not run."""

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
    """Return the bugs to test. Wrong declarations of capabilities are tested in test_declared.py.

    Only a test class can declare the codings of an offloader. So the command skips the clauses on codings.
    """
    of_codings = bug.clause in vars(CodedClauses)
    return bug.name not in NOT_A_CLAUSE and not hasattr(bug.make, "declared") and not of_codings


def cases(bugs: Iterable[Bug], kept: Sequence[str]) -> list[Any]:
    """Return the bugs as parameters; those whose names are not `kept` are left to the campaign."""
    seen = [bug for bug in bugs if bug.name in kept]
    return keeping(seen, bugs, "planted bugs, each by the whole command", id_=lambda bug: bug.name)


OFFLOADER = """
    from contract.all_offloader_bugs import ALL_OFFLOADER_BUGS
    from contract.protocol_bugs import PROTOCOL_BUGS
    from offload.ground.env import Env
    from offload.store.memory import MemoryStore
    from offload.store.prefix import PrefixStore
    from offload.native.offloader import ObjectStoreOffloader, TierOptions

    OBJECTS = {}
    MAKE = {bug.name: bug.make for bug in ALL_OFFLOADER_BUGS} | {"Sound": ObjectStoreOffloader}
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


@pytest.mark.parametrize("bug", cases([*filter(asked, ALL_STORE_BUGS)], SEEN_FROM_OUTSIDE))
def test_a_bug_is_caught_by_its_clause_through_the_command(bug: Bug, site: Site) -> None:
    site.install("bugs", BACKEND)

    assert caught(bug, "store")


@pytest.mark.parametrize("bug", cases([*filter(asked, [*ALL_OFFLOADER_BUGS, *PROTOCOL_BUGS])], SEEN_BENEATH))
def test_an_offloaders_bug_is_caught_by_its_clause_through_the_command(bug: Bug, site: Site) -> None:
    is_store = issubclass(bug.make, ObjectStore) if isinstance(bug.make, type) else False
    site.install("bugs", BACKEND if is_store else OFFLOADER)

    assert caught(bug, "*")


def test_a_sound_offloader_fails_no_clause_through_the_command(site: Site) -> None:
    """All clauses of a store's tier run on it, and everything that it stored is removed."""
    site.install("bugs", OFFLOADER)

    ran = box("bugs://Sound", *([] if CAMPAIGN else ["--select", "protocol/t*"]), "--json")

    asked = [each for each in ran.document["clauses"] if not NOT_ASKED.search(each["message"])]
    assert {each["outcome"] for each in asked} == {"passed"}
    assert "protocol/throttling_is_waited_out" in {each["id"] for each in asked}
    assert (ran.code, ran.document["left"], site.objects("bugs")) == (0, {}, {})


def caught(bug: Bug, layer: str) -> bool:
    """Return True if the command fails by the clause that the bug breaks."""
    name = bug.clause.removeprefix("test_")
    server = "server:80/" if hasattr(bug.make, "unreachable") else ""
    ran = box(f"bugs://{server}{bug.name}", "--select", f"{layer}/{name}", "--seed", "0", "--json")
    failed = [each["id"] for each in ran.document["clauses"] if each["outcome"] == "failed"]
    return ran.code == 1 and [each.partition("/")[2] for each in failed] == [name]
