"""Bugs that were written blind: a proof shows each without the suite, and the command catches it.

Their authors had read the contract, and not the clauses. `make test` runs a few proofs and single clauses.
The campaign runs all, and the real command with default options on each bug.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import contract.backend_bugs  # noqa: F401 - registers its bugs
import pytest
from campaign import few, keeping
from conformance_box.installed import Site, box
from conformance_box.real_command import install, judged
from offload_conformance.bugs import Bug, load
from offload_conformance.bugs.trial import proved

BLIND: Final = {name: bug for name, bug in load().items() if bug.proof is not None}

PROVED: Final = ("NoTierHasNoStreams", "NoOffsetsAreAllOffsets", "FolderAgainOnEachPage", "TenTags")
"""Cheap proofs: of a database, of a tier on a store, of a client of a service, and of a store in memory."""


@pytest.mark.parametrize("name", keeping(PROVED, BLIND, "proofs of bugs that were written blind"))
def test_a_proof_passes_on_the_sound_class_and_fails_on_the_bug(name: str) -> None:
    bug = BLIND[name]
    assert bug.proof is not None

    assert proved(bug, bug.proof) is None


@few("bugs that were written blind, each by its clause; make test has one of 24", 24)
@pytest.mark.parametrize("name", BLIND)
def test_a_clause_catches_a_bug_that_was_written_blind(name: str, site: Site, tmp_path: Path) -> None:
    bug = BLIND[name]
    install(bug.backend, site)

    ran = box(_url(bug, tmp_path), "--select", bug.clause, "--seed", "0", "--json")

    failed = [each["id"] for each in ran.document["clauses"] if each["outcome"] == "failed"]
    assert (ran.code, failed) == (1, [bug.clause])


COMMANDS: Final = keeping((), BLIND, "the whole command on bugs that were written blind")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_catches_a_bug_with_default_options(name: str, tmp_path: Path) -> None:
    """The command may fail by a clause, by an error before the first one, or by never ending. It must not
    pass.
    """
    found = judged(BLIND[name].backend, str(tmp_path / "place"), tmp_path)

    assert found.code != 0, "no clause failed"


def _url(bug: Bug, folder: Path) -> str:
    """Return the URL of a new place. What the class keeps in files is in the folder."""
    return f"planted://{folder / bug.name}"
