"""The registry of mutants: rules of the product, each with a way to take it out and what finds it then.

A test that never failed proves little. So every rule is taken out alone, and a history of `simulation` or a
replay of `tests/protocol/test_counterexamples.py` must then show the harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pytest
from simulation.history import simulate

from mutants.indexes import INDEXES
from mutants.mutant import Mutant
from mutants.owners import OWNERS
from mutants.protocol import PROTOCOL
from mutants.tier import TIER

__all__ = ["INDEXES", "MUTANTS", "OWNERS", "PROTOCOL", "REPLAYED", "SIMULATED", "live_through"]

MUTANTS: Final[dict[str, Mutant]] = {**PROTOCOL, **TIER, **OWNERS, **INDEXES}

SIMULATED: Final = {name: mutant for name, mutant in MUTANTS.items() if mutant.seed is not None}
"""Those that a seed finds."""

REPLAYED: Final = {name: mutant for name, mutant in MUTANTS.items() if mutant.needs}
"""Those that chance meets too rarely. Replays find them, and `tests/tier/test_sweep.py` that of the grace."""


def live_through(name: str, seeds: Iterable[int], patch: pytest.MonkeyPatch) -> None:
    """Live through histories without the rule, for its owners those of two owners. Raises the first harm."""
    for seed in seeds:
        MUTANTS[name].take_out(patch)  # for each seed again, because a mutant may keep state
        simulate(seed, owned=name in OWNERS)
