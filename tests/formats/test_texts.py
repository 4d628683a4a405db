"""Tests of texts of many values: each is what the Python function returns for that value alone."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest
from fresh_loops import use_loops
from guarded_loops import is_utf8
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offload.formats.rows import ValuePool, column_of
from offload.formats.texts import (
    broken_rows,
    integer_texts,
    json_strings,
    odd_rows,
    timestamp_texts,
    uuid_texts,
)
from offload.model.position import iso_of
from offload.model.record_columns import ByteColumn, RecordBytes
from offload.model.value_text import value_text

EDGES = [0, 1, 9, 10, 99, 100, 9999, 10_000, 10**8 - 1, 10**8, 2**63 - 1]


def texts(pool: ValuePool) -> list[str]:
    return [(value or b"").decode() for value in column_of([pool], len(pool.starts)).to_list()]


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([*EDGES, -1, -10, -(2**63)])))
def test_signed_integers_have_their_digits(values: list[int]) -> None:
    assert texts(integer_texts(np.array(values, np.int64))) == [*map(str, values)]


@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from([*EDGES, 10**19 - 1, 10**19])))
def test_unsigned_integers_have_their_digits(values: list[int]) -> None:
    assert texts(integer_texts(np.array(values, np.uint64))) == [*map(str, values)]


YEAR_1_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
MOMENTS = st.integers(YEAR_1_MS, LAST_MS) | st.sampled_from([0, -1, YEAR_1_MS, LAST_MS, 951_782_400_000])


@given(st.lists(MOMENTS))
def test_timestamps_are_written_as_one_by_one(values: list[int]) -> None:
    assert texts(timestamp_texts(np.array(values, np.int64))) == [*map(iso_of, values)]


@pytest.mark.parametrize("beyond", [YEAR_1_MS - 1, LAST_MS + 1, -(2**63), 2**63 - 1])
def test_timestamps_that_no_calendar_has_are_numbers(beyond: int) -> None:
    values = [0, 0, beyond, beyond, 1]
    assert texts(timestamp_texts(np.array(values, np.int64))) == [*map(iso_of, values)]


@given(st.lists(st.uuids()))
def test_uuids_are_written_as_one_by_one(values: list[UUID]) -> None:
    raw = np.frombuffer(b"".join(value.bytes for value in values), np.uint8).reshape(-1, 16)
    assert texts(uuid_texts(raw)) == [*map(str, values)]


PIECES = st.sampled_from(
    [b"a", b'"', b"\\", b"\n", b"\x00", b"\x1f", b"\x7f", b"\xc3\xa9", b"\xc3", b"\xa9", b" "]
)
RAW = st.lists(PIECES, max_size=4).map(b"".join)


@pytest.mark.parametrize("compiled", [True, False])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(RAW, max_size=6))
def test_values_are_json_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, values: list[bytes]
) -> None:
    use_loops(monkeypatch, compiled=compiled)
    records = RecordBytes.of(values)
    found = json_strings(ValuePool(records.data, records.starts, records.sizes)).to_list()

    assert found == [value_text(value).encode() for value in values]


@given(st.lists(RAW, max_size=6))
def test_odd_rows_are_the_ones_with_control_characters_or_no_utf_8(values: list[bytes]) -> None:
    column = ByteColumn.of([value + b"." for value in values])
    broken = [row for row, value in enumerate(values) if not is_utf8(value)]
    controls = [row for row, value in enumerate(values) if any(byte < 0x20 for byte in value)]

    assert broken_rows(column).tolist() == broken
    assert odd_rows(column).tolist() == sorted({*broken, *controls})
