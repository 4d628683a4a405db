"""Whatever happens to a tier in its life, invariants 1 to 9 hold at every moment (docs/commit-protocol.md).

`simulation.world` says what can happen. Each run lives through the same seeds as the last one, and through
fresh ones, of which pytest prints the first. `OFFLOAD_CAMPAIGN=1` takes many more fresh ones.
`docs/simulation.md` tells how to replay one that fails.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from simulation.history import simulate
from simulation.mutants import BY_REPLAY, FOUND_AT, PLANTED
from simulation.world import Broken, Figures

CAMPAIGN = bool(os.environ.get("OFFLOAD_CAMPAIGN"))
FIRST_FRESH = int(os.environ["OFFLOAD_FRESH_SEED"])
SEEDS = 600
FRESH_SEEDS = 20_000 if CAMPAIGN else 400
PARTS = 2
FRESH_PARTS = 2
"""So that several processes share them."""

SOUGHT = 1_000
"""Among so many seeds one finds each planted bug."""

EXPECTED = {
    *("refused", "throttled", "late requests", "lost replies", "landings", "stalls", "crashes", "cancels"),
    *("pauses", "clock jumps", "flipped bits", "torn objects", "zombies"),
    *("roots", "reads", "trims", "deletions", "deleted attempts", "jobs", "compactions", "sweeps"),
    *("scrubs", "rebuilds", "swept: replaced by a copy"),
    *("swept: trimmed", "swept: superseded root", "swept: its attempt was dropped"),
    *("swept: the stream was deleted", "swept: a commit that lost made it"),
    "swept: an upload that nobody will finish",
}
"""Every trouble that was met, and every deed that was done, in each part. Seeds are fixed: it is no luck."""


@pytest.mark.parametrize("part", range(PARTS))
def test_every_history_holds(part: int) -> None:
    figures = Figures()
    for seed in range(part, SEEDS, PARTS):
        figures.add(simulate(seed))
    print(figures)
    assert {what for what in EXPECTED if not figures.counts[what]} == set()


@pytest.mark.parametrize("part", range(FRESH_PARTS))
def test_every_fresh_history_holds(part: int) -> None:
    """A failure names its seed: `python -m simulation --seed N --trace` repeats it."""
    for seed in range(FIRST_FRESH + part, FIRST_FRESH + FRESH_SEEDS, FRESH_PARTS):
        simulate(seed)


def test_some_readers_skip_what_was_trimmed_and_swept() -> None:
    """Too rare to be expected of each part. Readers check that it is said."""
    assert any(
        simulate(seed).counts["skips"] for seed in [FOUND_AT["reader: skips silently"], *range(SOUGHT)]
    )


def test_a_seed_is_one_history() -> None:
    first, second = list[str](), list[str]()
    for seed in range(5):
        assert simulate(seed, tell=first.append) == simulate(seed, tell=second.append)
    assert first == second
    assert len(first) > 500


@pytest.mark.parametrize("name", sorted(PLANTED.keys() - BY_REPLAY.keys()))
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the seeds that CI takes; and the seed that found it finds it again, at the same step."""

    def live_through(seeds: Sequence[int]) -> None:
        for seed in seeds:
            PLANTED[name].take_out(monkeypatch)  # each time: a bug may remember what it did
            simulate(seed)

    with pytest.raises(Broken, match=r"seed [0-9]+, step [0-9]+: ") as broken:
        live_through([FOUND_AT.get(name, 0), *range(SOUGHT)])

    seed = int(str(broken.value).split()[1].strip(","))
    with pytest.raises(Broken) as again:
        live_through([seed])
    assert str(again.value) == str(broken.value)


def test_the_page_has_every_planted_bug_and_its_rule() -> None:
    page = (Path(__file__).parents[2] / "docs/simulation.md").read_text(encoding="utf-8")
    rows = [
        f"| {name} | {bug.rule} | {bug.clause} |" for name, bug in PLANTED.items() if name not in BY_REPLAY
    ]
    rows += [f"| {name} | {PLANTED[name].rule} | {PLANTED[name].clause} |" for name in BY_REPLAY]

    for row in rows:
        assert f"\n{row}" in page
