"""Tests of patterns: the rows that a plain loop finds are found, by the compiled loop and by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from fresh_loops import use_loops
from guarded_loops import plain_match
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offload.formats.patterns import Pattern, PatternStep, PatternValue
from offload.model.record_columns import RecordBytes

VALUES = st.builds(PatternValue, st.sampled_from([1, 4]), st.just(True)) | st.builds(
    PatternValue, st.integers(0, 3)
)
STEPS = st.lists(st.binary(min_size=1, max_size=3) | VALUES, min_size=1, max_size=4)


@st.composite
def rows_of(draw: st.DrawFn, steps: list[PatternStep]) -> bytes:
    """Draw a row that fits, or one that was changed."""
    row = b""
    for step in steps:
        match step:
            case bytes():
                row += step
            case PatternValue(width, is_sized=True):
                value = draw(st.binary(max_size=4))
                row += len(value).to_bytes(width, "big") + value
            case PatternValue(width):
                row += draw(st.binary(min_size=width, max_size=width))
    match draw(st.sampled_from(["fits", "fits", "cut", "longer", "changed"])):
        case "cut":
            return row[: draw(st.integers(0, len(row)))]
        case "longer":
            return row + draw(st.binary(min_size=1, max_size=4))
        case "changed" if row:
            at = draw(st.integers(0, len(row) - 1))
            return row[:at] + draw(st.binary(min_size=1, max_size=1)) + row[at + 1 :]
    return row


@pytest.mark.parametrize("compiled", [True, False])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), steps=STEPS)
def test_rows_that_fit_are_found_with_their_values(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, data: st.DataObject, steps: list[PatternStep]
) -> None:
    use_loops(monkeypatch, compiled=compiled)
    records = RecordBytes.of(data.draw(st.lists(rows_of(steps), max_size=5)))
    stops = records.starts + records.sizes

    found = Pattern(steps).find(records.data, records.starts, stops)

    columns = [found.rows, *(each for pair in zip(found.places, found.sizes, strict=True) for each in pair)]
    got = np.array([column.tolist() for column in columns]).T.tolist() if len(found.rows) else []
    plain = [step if isinstance(step, bytes) else (step.width, step.is_sized) for step in steps]
    raw = records.data.tobytes()
    assert got == plain_match(raw, records.starts.tolist(), stops.tolist(), plain)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("width", "size"), [(1, 255), (4, 70_000)])
def test_all_bytes_of_a_size_count(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, width: int, size: int
) -> None:
    use_loops(monkeypatch, compiled=compiled)
    records = RecordBytes.of([size.to_bytes(width, "big") + bytes(size)])
    pattern = Pattern([PatternValue(width, is_sized=True)])

    found = pattern.find(records.data, records.starts, records.sizes)

    assert [each.tolist() for each in (found.rows, *found.places, *found.sizes)] == [[0], [width], [size]]
