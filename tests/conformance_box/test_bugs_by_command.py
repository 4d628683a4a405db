"""`offload conformance` catches every bug that an author's own test class catches, although it sees less."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from campaign import CAMPAIGN, keeping
from conformance_box.installed import Site, box
from offload_conformance.bugs import Bug, load
from offload_conformance.offloader.coded import CodedClauses

from offload.contracts.store import ObjectStore

BUGS = {name: bug for name, bug in load().items() if bug.proof is None}
"""Those with a proof are in `test_blind_bugs`."""

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
    from offload_conformance.bugs import load

    OBJECTS = {}

    def open_url(url):
        server, _, name = url.partition("://")[2].rpartition("/")
        backend = load()[name].backend
        return backend(objects=OBJECTS) if server in ("", "server:80") else backend.unreachable()
"""


def asked(bug: Bug) -> bool:
    """Return the bugs to test. Wrong declarations of capabilities are tested in test_declared.py.

    Only a test class can declare the codings of an offloader. So the command skips the clauses on codings.
    """
    of_codings = bug.test in vars(CodedClauses)
    return bug.name not in NOT_A_CLAUSE and not hasattr(bug.backend, "declared") and not of_codings


def asked_of(*layers: str) -> list[Bug]:
    return [bug for bug in BUGS.values() if bug.layer in layers and asked(bug)]


def cases(bugs: Iterable[Bug], kept: Sequence[str]) -> list[Any]:
    """Return the bugs as parameters; those whose names are not `kept` are left to the campaign."""
    seen = [bug for bug in bugs if bug.name in kept]
    return keeping(seen, bugs, "planted bugs, each by the whole command", id_=lambda bug: bug.name)


OFFLOADER = """
    from offload_conformance.bugs import load
    from offload.ground.env import Env
    from offload.store.memory import MemoryStore
    from offload.store.prefix import PrefixStore
    from offload.native.offloader import ObjectStoreOffloader, TierOptions

    OBJECTS = {}
    DECLARES = {"kind": "offloader"}

    def open_url(url):
        name, _, folder = url.partition("://")[2].partition("/")
        store = MemoryStore(objects=OBJECTS)
        store = PrefixStore(store, folder) if folder else store
        if name == "Sound":
            return ObjectStoreOffloader(store)
        bug = load()[name]
        if bug.layer == "protocol":
            return bug.backend(store, env=Env(), options=TierOptions())
        return bug.backend(store)
"""

SEEN_BENEATH = ("SharesObjects", "ChecksNothingItReads", "AdoptsNothing", "AsksAgainAtOnce")
"""Bugs of offloaders that show only in the store beneath, or under its faults."""


@pytest.mark.parametrize("bug", cases(asked_of("store"), SEEN_FROM_OUTSIDE))
def test_a_bug_is_caught_by_its_clause_through_the_command(bug: Bug, site: Site) -> None:
    site.install("bugs", BACKEND)

    assert caught(bug)


@pytest.mark.parametrize("bug", cases(asked_of("contract", "protocol"), SEEN_BENEATH))
def test_an_offloaders_bug_is_caught_by_its_clause_through_the_command(bug: Bug, site: Site) -> None:
    is_store = issubclass(bug.backend, ObjectStore)
    site.install("bugs", BACKEND if is_store else OFFLOADER)

    assert caught(bug)


def test_a_sound_offloader_fails_no_clause_through_the_command(site: Site) -> None:
    """All clauses of a store's tier run on it, and everything that it stored is removed."""
    site.install("bugs", OFFLOADER)

    ran = box("bugs://Sound", *([] if CAMPAIGN else ["--select", "protocol/t*"]), "--json")

    asked = [each for each in ran.document["clauses"] if not NOT_ASKED.search(each["message"])]
    assert {each["outcome"] for each in asked} == {"passed"}
    assert "protocol/throttling_is_waited_out" in {each["id"] for each in asked}
    assert (ran.code, ran.document["left"], site.objects("bugs")) == (0, {}, {})


def caught(bug: Bug) -> bool:
    """Return True if the command fails by the clause that the bug breaks."""
    server = "server:80/" if hasattr(bug.backend, "unreachable") else ""
    ran = box(f"bugs://{server}{bug.name}", "--select", bug.clause, "--seed", "0", "--json")
    failed = [each["id"] for each in ran.document["clauses"] if each["outcome"] == "failed"]
    return ran.code == 1 and failed == [bug.clause]
