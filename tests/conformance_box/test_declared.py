"""Five states of a capability: the declaration, the store's own answer and the finding must agree."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from conformance_box.installed import Site, box, outcomes
from conformance_box.test_black_box import broken
from offload_conformance import Declared, State, since
from offload_conformance.declared import (
    COMPLAINTS,
    NAMES,
    NOT_YET,
    SUPPORTED,
    UNKNOWN,
    UNSUPPORTED,
    Finding,
    parsed,
    state_of,
    words_of,
)
from offload_conformance.probes import PROBES
from offload_conformance.report import SCHEMA

from offload.ground.errors import Misuse
from offload.store.memory import MemoryStore

FITS = {
    SUPPORTED: {Finding.WORKS},
    UNSUPPORTED: {Finding.ABSENT},
    NOT_YET: {Finding.ABSENT},
    UNKNOWN: set(Finding),
}


@pytest.mark.parametrize(("state", "found"), [*itertools.product(State, Finding)], ids=str)
def test_each_state_agrees_with_its_own_finding_and_with_undecided(state: State, found: Finding) -> None:
    fits = FITS[state] | {Finding.UNDECIDED}

    assert ((state, found) not in COMPLAINTS) == (found in fits)


@pytest.mark.parametrize(
    ("server", "is_meant"),
    [
        ("2.3", SUPPORTED),
        ("2.3.0", SUPPORTED),
        ("v2.10-rc1", SUPPORTED),
        ("3", SUPPORTED),
        ("2.2.99", UNSUPPORTED),
        ("2", UNSUPPORTED),
        (None, UNKNOWN),
    ],
)
def test_the_version_decides_a_capability_supported_since_a_version(
    server: str | None, is_meant: State
) -> None:
    declared = Declared(multipart=since("2.3"), server_version=server)

    assert state_of(declared, "multipart", says=True) is is_meant
    assert words_of(declared, "multipart", says=True) == "since 2.3"


@pytest.mark.parametrize("says", [True, False])
def test_the_store_s_answer_replaces_a_missing_declaration(says: bool) -> None:
    for meant in (None, Declared()):
        assert state_of(meant, "durable", says=says) is (SUPPORTED if says else UNSUPPORTED)


def test_a_plugin_declares_states_as_text() -> None:
    states = {"multipart": "not yet", "server_checksum": "since 2.3"}
    stated = MemoryStore().capabilities

    found = Declared.of(states, stated=stated, server_version="2.4")

    assert found == Declared(
        atomic_create=SUPPORTED,
        strong_listing=SUPPORTED,
        multipart=NOT_YET,
        server_checksum=since("2.3"),
        durable=UNSUPPORTED,
        server_version="2.4",
    )
    assert {name: found.words(name) for name in states} == states


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("maybe", "'maybe' is not a state"),
        ("since soon", "'soon' is not a version"),
        ("", "'' is not a state"),
    ],
)
def test_text_that_is_not_a_state_is_refused(words: str, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        parsed(words)


def test_an_unknown_capability_is_refused() -> None:
    with pytest.raises(Misuse, match="'colour' is not a capability"):
        Declared.of({"colour": "unknown"}, stated=None, server_version=None)


def test_every_capability_with_a_state_is_probed() -> None:
    assert tuple(PROBES) == NAMES


# The command.


WITHOUT_UPLOADS = """
@property
def capabilities(self):
    return Capabilities(atomic_create=True, strong_listing=True, multipart=False, durable=False)

async def start_upload(self, key):
    from offload.ground.errors import Misuse
    raise Misuse('not yet')
"""


@pytest.mark.parametrize(
    ("states", "server_version", "holds"),
    [
        ("{'multipart': 'not yet'}", "1", True),
        ("{'multipart': 'since 2.3'}", "2.2", True),
        ("{'multipart': 'since 2.3'}", "2.3", False),
        ("{'multipart': 'supported'}", "1", False),
        ("{'multipart': 'unknown'}", "1", True),
    ],
)
def test_the_plugin_s_states_are_compared_with_the_store(
    site: Site, states: str, server_version: str, holds: bool
) -> None:
    site.install("broken", broken(WITHOUT_UPLOADS, declares=f"{{'states': {states}}}"))
    select = ("--select", "store/capabilities_are_*")

    ran = box("broken://here", *select, "--server-version", server_version, "--json")

    outcome = "passed" if holds else "failed"
    assert outcomes(ran.document) == {
        "store/capabilities_are_those_stated": outcome,
        "store/capabilities_are_as_meant": outcome,
    }
    assert ran.document["server_version"] == server_version


def test_the_report_has_the_answer_the_declaration_and_the_finding(site: Site) -> None:
    site.install("broken", broken(WITHOUT_UPLOADS, declares="{'states': {'multipart': 'since 2.3'}}"))

    report = box("broken://here", "--select", "store/capabilities_are_as_meant", "--json").document

    assert set(report["capability_states"]) == set(NAMES)
    assert report["capability_states"]["multipart"] == {
        "says": False,
        "declared": "since 2.3",
        "found": "absent, as documented",
        "seen": "an upload is refused: not yet",
    }
    described = json.loads(SCHEMA.read_text())["properties"]["capability_states"]["additionalProperties"]
    assert described["properties"]["found"]["enum"] == [finding.value for finding in Finding]


@pytest.mark.parametrize(
    ("states", "arguments", "says"),
    [
        ("{'multipart': 'maybe'}", (), "'maybe' is not a state"),
        ("{'multipart': 'unknown'}", ("--server-version", "latest"), "'latest' is not a version"),
    ],
)
def test_an_invalid_state_or_version_gives_exit_code_2(
    site: Site, states: str, arguments: tuple[str, ...], says: str
) -> None:
    site.install("broken", broken("pass", declares=f"{{'states': {states}}}"))

    ran = box("broken://here", *arguments)

    assert (ran.code, ran.stdout) == (2, b"")
    assert says in ran.stderr


# Creates in several processes.


KNOWS_ITS_OWN = """
async def create(self, key, data):
    await super().create(key, data)

@property
def capabilities(self):
    from dataclasses import replace
    return replace(super().capabilities, one_process={one_process})
"""


def test_a_store_for_one_process_fails_unless_it_declares_so(
    site: Site,
) -> None:
    found = {}
    for one_process in (False, True):
        name = f"one{one_process}".lower()
        site.install(name, broken(KNOWS_ITS_OWN.format(one_process=one_process)))
        clause = "store/create_is_atomic_between_processes"
        ran = box(f"{name}://here", "--select", clause, "--json")
        found[one_process] = outcomes(ran.document)[clause]
        assert ran.document["left"] == {}

    assert found == {False: "failed", True: "not_run"}


def test_keys_that_other_processes_create_are_removed(site: Site, tmp_path: Path) -> None:
    ran = box(tmp_path / "place", "--select", "store/create_is_atomic_between_processes", "--json")

    assert ran.code == 0
    assert ran.document["left"] == {}
    assert {path.name for path in (tmp_path / "place").rglob("*") if path.is_file()} == set()
