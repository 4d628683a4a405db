"""The number of restarts within a period, and its boundary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_queue.restarts import GivenUp, RestartLimit, Restarts

from offload.ground.errors import Misuse

GAPS = st.lists(st.integers(0, 400), max_size=40)


@given(GAPS, st.integers(0, 5), st.integers(1, 300))
def test_no_closed_period_has_more_restarts_than_the_intensity(
    gaps: list[int], intensity: int, period: int
) -> None:
    """A failure is refused exactly if the period that ends with it is full already."""
    restarts = Restarts(RestartLimit(intensity=intensity, period_seconds=period))
    now, begun = 0, list[int]()

    for gap in gaps:
        now += gap
        recent = [each for each in begun if now - each <= period]
        allowed = restarts.allow(now)

        assert allowed == (len(recent) < intensity)
        begun += [now] * allowed


@pytest.mark.parametrize(
    ("last", "is_restarted"), [(299.0, False), (300.0, False), (300.001, True)], ids=["in", "at", "after"]
)
def test_the_fourth_failure_within_five_minutes_is_the_last(last: float, is_restarted: bool) -> None:
    """The seed's limit: 3 in 5 minutes. The end of the period belongs to it."""
    restarts = Restarts(RestartLimit())

    assert [restarts.allow(at) for at in (0.0, 100.0, 200.0, last)] == [True, True, True, is_restarted]


def test_refused_failures_do_not_lengthen_the_wait() -> None:
    restarts = Restarts(RestartLimit(intensity=1, period_seconds=10))

    assert [restarts.allow(at) for at in (0, 6, 9, 11)] == [True, False, False, True]


def test_a_restart_by_a_person_begins_a_new_count() -> None:
    restarts = Restarts(RestartLimit(intensity=1))
    restarts.allow(0)
    restarts.forget()

    assert restarts.allow(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"intensity": -1},
        {"period_seconds": 0},
        {"period_seconds": float("nan")},
        {"period_seconds": float("inf")},
        {"then": "stop_node"},
    ],
    ids=str,
)
def test_a_limit_that_is_none_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Misuse):
        RestartLimit(**wrong)  # type: ignore[arg-type]


def test_the_strategy_may_be_given_as_text() -> None:
    assert RestartLimit(then="stop").then == GivenUp.STOP  # type: ignore[arg-type]
