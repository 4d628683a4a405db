"""Two sets of bugs, each run by a command of its own: `python -m newcomers.fifth prove`.

`make test` runs a few proofs of each set, and the campaign runs all. A process of its own runs them, so that
the bugs of a set are never among those of `newcomers.everything`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest
from campaign import CAMPAIGN

from newcomers.fourth import TESTS

PROVED: Final = {
    "fourth": ("ring_of_buffers", "last_ledger_is_forgotten"),
    "fifth": ("ids_of16_bits", "incarnation_of_the_name"),
}
"""Cheap proofs of each set: of a store, and of an offloader."""


@pytest.mark.parametrize("which", PROVED)
def test_a_proof_of_a_set_passes_on_the_sound_class_and_fails_on_the_bug(which: str) -> None:
    names = () if CAMPAIGN else PROVED[which]
    command = (sys.executable, "-m", f"newcomers.{which}", "prove", *names)

    ran = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed, 0 failed" in ran.stdout
