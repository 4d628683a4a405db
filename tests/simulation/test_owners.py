"""Tests of two managed ledgers that both believe they own one stream, in a simulated tier.

`simulation.owners` has the invariants. `docs/simulation.md` explains how to replay a seed that fails.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from campaign import campaign, keeping

from simulation.history import simulate
from simulation.owner_mutants import OWNER_BUGS, OWNER_FOUND_AT
from simulation.world import Broken, Figures

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


@pytest.mark.parametrize(
    "name",
    keeping(
        ("owner: copies go by a root that was not accepted", "owner: a fork is offloaded"),
        OWNER_BUGS,
        "`make test` plants two of the bugs of owners",
    ),
)
def test_a_bug_of_an_owner_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seed finds it, and finds it again at the same step."""
    found = []
    for _ in range(2):
        OWNER_BUGS[name].take_out(monkeypatch)
        with pytest.raises(Broken, match=r"seed [0-9]+, step [0-9]+: ") as broken:
            simulate(OWNER_FOUND_AT[name], owned=True)
        found.append(str(broken.value))

    assert found[0] == found[1]


def test_the_page_has_every_bug_of_an_owner() -> None:
    page = (Path(__file__).parents[2] / "docs/simulation.md").read_text(encoding="utf-8")

    for name, bug in OWNER_BUGS.items():
        assert f"\n| {name} | {bug.rule} |\n" in page
