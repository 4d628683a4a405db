"""Tests of two managed ledgers that both believe they own one stream, in a simulated tier.

`simulation.owners` has the invariants. `docs/simulation.md` explains how to replay a seed that fails.
"""

from __future__ import annotations

import os

import pytest
from campaign import campaign

from simulation.history import simulate
from simulation.world import Figures

FIRST_FRESH = int(os.environ["OFFLOAD_FRESH_SEED"])
SEEDS = (12, 22, 31, 37, 68)
"""With these, everything in `EXPECTED` happens."""

MORE_SEEDS = 20
"""The parts of the campaign, of 100 fresh seeds each."""

EXPECTED = {
    *("appends", "offloads of a prefix", "reads", "openings", "deleted local copies"),
    *("fenced owners", "diverged owners", "losers that begin again"),
    *("trims by an owner", "restored disks", "deletions by an owner", "sweeps", "appends by guests"),
    *("refused", "late requests", "lost replies", "landings", "stalls", "crashes"),
}
"""The troubles and actions that the fixed seeds must contain."""


def test_two_owners_keep_one_history_and_every_record_that_the_tier_lacks() -> None:
    figures = Figures()
    for seed in SEEDS:
        figures.add(simulate(seed, owned=True))

    print(figures)
    assert {what for what in EXPECTED if not figures.counts[what]} == set()


@campaign("`make test` runs 5 fixed histories of two owners")
@pytest.mark.parametrize("part", range(MORE_SEEDS))
def test_two_owners_keep_one_history_in_fresh_histories(part: int) -> None:
    """A failure names its seed: `python -m simulation --owners --seed N --trace` repeats it."""
    first = FIRST_FRESH + 100 * part
    for seed in range(first, first + 100):
        simulate(seed, owned=True)


def test_a_seed_gives_the_same_history_of_owners_again() -> None:
    first, second = list[str](), list[str]()

    assert simulate(1, owned=True, tell=first.append) == simulate(1, owned=True, tell=second.append)

    assert first == second
    assert len(first) > 200
