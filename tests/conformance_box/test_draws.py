"""The draws of the suite depend on its seed alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from offload_conformance.draws import by_seed_alone


def drawn() -> list[int]:
    found: list[int] = []

    @seed(0)
    @settings(max_examples=300, database=None, phases=[Phase.generate])
    @given(st.integers(0, 2**16))
    def take(number: int) -> None:
        found.append(number)

    take()
    return found


def test_earlier_draws_do_not_change_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis remembers constants of local modules from earlier tests in the same process."""
    module: Any = providers
    monkeypatch.setattr(module, "CONSTANTS_CACHE", module.LRUCache(16))
    with by_seed_alone():
        wanted = drawn()
    assert drawn() != wanted, "this process has no constants that Hypothesis draws: the test shows nothing"

    with by_seed_alone():
        assert drawn() == wanted
