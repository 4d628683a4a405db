"""A filter narrows a read, and never excludes a record that passes it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_spark.bounds import ScanBounds
from offload_spark.filters import bounds_of
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

COMPARISONS: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda found, given: found in given,
}
ONE = st.sampled_from([kind for kind in COMPARISONS if kind is not In])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OFFSETS = st.integers(-3, 12)
MOMENTS = st.integers(-6000, 6000).map(lambda us: EPOCH + timedelta(microseconds=us))


def filters_on(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Filter]]:
    """Draw comparisons of one column, which must all hold."""
    one = st.builds(lambda kind, value: kind((column,), value), ONE, values)
    several = st.builds(lambda found: In((column,), tuple(found)), st.lists(values, min_size=1, max_size=3))
    return st.lists(one | several, max_size=3)


@given(filters_on("offset", OFFSETS))
def test_offsets_that_pass_are_within_the_bounds(filters: list[Filter]) -> None:
    bounds = bounds_of(filters)

    for offset in range(10):
        if all(COMPARISONS[type(each)](offset, each.value) for each in filters):  # type: ignore[attr-defined]
            assert bounds.first_offset <= offset < bounds.next_offset


@given(filters_on("timestamp", MOMENTS))
def test_times_that_pass_are_within_the_bounds(filters: list[Filter]) -> None:
    bounds = bounds_of(filters)

    for at in range(-7, 8):
        moment = EPOCH + timedelta(milliseconds=at)
        if all(COMPARISONS[type(each)](moment, each.value) for each in filters):  # type: ignore[attr-defined]
            assert bounds.first_timestamp_ms <= at <= bounds.last_timestamp_ms


@pytest.mark.parametrize(
    ("filters", "bounds"),
    [
        (
            [GreaterThanOrEqual(("offset",), 5), LessThan(("offset",), 9)],
            {"first_offset": 5, "next_offset": 9},
        ),
        ([GreaterThan(("offset",), 5)], {"first_offset": 6}),
        ([LessThanOrEqual(("offset",), 5)], {"next_offset": 6}),
        ([In(("offset",), (7, 3))], {"first_offset": 3, "next_offset": 8}),
        ([EqualTo(("stream",), "a")], {"streams": frozenset({"a"})}),
        ([In(("stream",), ("a", "b")), EqualTo(("stream",), "b")], {"streams": frozenset({"b"})}),
        (
            [EqualTo(("timestamp",), EPOCH + timedelta(microseconds=1500))],
            {"first_timestamp_ms": 1, "last_timestamp_ms": 1},
        ),
    ],
    ids=str,
)
def test_a_known_filter_narrows_the_bounds(filters: list[Filter], bounds: dict[str, Any]) -> None:
    assert bounds_of(filters) == ScanBounds(**bounds)


@pytest.mark.parametrize(
    "each",
    [
        IsNotNull(("offset",)),
        Not(EqualTo(("offset",), 3)),
        StringStartsWith(("stream",), "or"),
        EqualTo(("value",), b"x"),
        EqualTo(("offset", "inner"), 3),
        EqualTo(("offset",), None),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),
    ],
    ids=str,
)
def test_an_unknown_filter_narrows_nothing(each: Filter) -> None:
    assert bounds_of([each]) == ScanBounds()
