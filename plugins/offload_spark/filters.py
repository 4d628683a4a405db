"""Spark's filters as bounds. An unknown filter sets no bound: Spark filters every row again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from offload_spark.bounds import ScanBounds

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)


def bounds_of(filters: Iterable[Filter]) -> ScanBounds:
    """Return the bounds of all these filters together."""
    bounds = ScanBounds()
    for each in filters:
        column, values = getattr(each, "attribute", None), _values(each)
        if column in _NARROW and values:
            bounds = _NARROW[column](bounds, each, values)
    return bounds


def _values(each: Filter) -> list[Any]:
    found = [*each.value] if isinstance(each, In) else [getattr(each, "value", None)]
    return [] if None in found else found


def _by_offset(bounds: ScanBounds, each: Filter, values: list[int]) -> ScanBounds:
    low, high = max(min(values), 0), max(max(values), -1)
    match each:
        case EqualTo() | In():
            return bounds.and_offsets(low, high + 1)
        case GreaterThan():
            return bounds.and_offsets(low + 1 if values[0] >= 0 else 0, bounds.next_offset)
        case GreaterThanOrEqual():
            return bounds.and_offsets(low, bounds.next_offset)
        case LessThan():
            return bounds.and_offsets(0, max(high, 0))
        case LessThanOrEqual():
            return bounds.and_offsets(0, high + 1)
    return bounds


def _by_timestamp(bounds: ScanBounds, each: Filter, values: list[datetime]) -> ScanBounds:
    """Narrow by time. A bound is cut to milliseconds, as stored times are, and may allow a little more."""
    if any(value.tzinfo is None for value in values):
        return bounds
    low, high = (_milliseconds(edge) for edge in (min(values), max(values)))
    match each:
        case EqualTo() | In():
            return bounds.and_times(low, high)
        case GreaterThan() | GreaterThanOrEqual():
            return bounds.and_times(low, bounds.last_timestamp_ms)
        case LessThan() | LessThanOrEqual():
            return bounds.and_times(bounds.first_timestamp_ms, high)
    return bounds


def _by_stream(bounds: ScanBounds, each: Filter, values: list[str]) -> ScanBounds:
    return bounds.and_streams(frozenset(values)) if isinstance(each, EqualTo | In) else bounds


def _milliseconds(at: datetime) -> int:
    return (at - EPOCH) // MILLISECOND


_NARROW: Final[dict[tuple[str, ...], Callable[[ScanBounds, Filter, list[Any]], ScanBounds]]] = {
    ("offset",): _by_offset,
    ("timestamp",): _by_timestamp,
    ("stream",): _by_stream,
}
