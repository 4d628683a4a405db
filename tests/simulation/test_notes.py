"""Tests of shared notes in a simulated tier, under every trouble of `simulation.world`.

`simulation.notes` has the invariants. `docs/simulation.md` explains how to replay a seed that fails.
"""

from __future__ import annotations

import os

import pytest
from campaign import campaign

from simulation.history import simulate
from simulation.world import Figures

FIRST_FRESH = int(os.environ["OFFLOAD_FRESH_SEED"])
SEEDS = (3, 8, 22, 23, 45, 113, 118)
"""With these, everything in `EXPECTED` happens."""

MORE_SEEDS = 10
"""The parts of the campaign, of 100 fresh seeds each."""

EXPECTED = {
    *("notes changed", "refused", "late requests", "lost replies", "landings", "stalls", "crashes"),
    *("deletions", "sweeps", "swept: an earlier value of a shared note"),
    "swept: a shared note of a deleted life of the stream",
}


def test_no_change_of_a_note_is_lost_or_in_twice() -> None:
    figures = Figures()
    for seed in SEEDS:
        figures.add(simulate(seed, noted=True))

    print(figures)
    assert {what for what in EXPECTED if not figures.counts[what]} == set()


@campaign("fresh histories of shared notes; make test has seven seeds")
@pytest.mark.parametrize("part", range(MORE_SEEDS))
def test_fresh_histories_lose_no_change_of_a_note(part: int) -> None:
    for seed in range(FIRST_FRESH + 100 * part, FIRST_FRESH + 100 * (part + 1)):
        simulate(seed, noted=True)
