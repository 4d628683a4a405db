"""Tests of rows made of pieces: they are what joining the pieces one after the other gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offload.formats import rows as rows_module
from offload.formats.rows import RowBuilder, RowPiece, ValuePool, column_of
from offload.model.record_columns import ByteColumn, HeaderColumn, RecordBytes

SIZES = st.integers(0, 12) | st.integers(0, 700)


def pool_of(values: list[bytes], gap: bytes = b"") -> ValuePool:
    """Return the values, in their order in a buffer, with other bytes between them."""
    records = RecordBytes.of([part for value in values for part in (gap, value)])
    return ValuePool(records.data, records.starts[1::2], records.sizes[1::2])


@st.composite
def tables(draw: st.DrawFn) -> list[list[bytes]]:
    """Draw rows of values, each with as many values."""
    rows, width = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    sizes = [[draw(SIZES) for _ in range(width)] for _ in range(rows)]
    return [
        [bytes((65 + (row * width + at) % 61,)) * size for at, size in enumerate(of)]
        for row, of in enumerate(sizes)
    ]


@pytest.fixture(params=["compiled", "numpy"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the compiled loops, if this checkout has them, and without."""
    if request.param == "numpy":
        monkeypatch.setattr(rows_module, "compiled_loops", lambda: None)


@pytest.mark.usefixtures("loops")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables(), st.sampled_from([b"", b"-", b"-- a long gap --"]), st.sampled_from([b"", b",", b"' and '"]))
def test_rows_are_their_pieces_in_order(table: list[list[bytes]], gap: bytes, comma: bytes) -> None:
    made: list[RowPiece] = [b"<"]
    for values in zip(*table, strict=True):
        made += [pool_of([*values], gap), comma]

    column = column_of(made, len(table))

    assert column.to_list() == [b"<" + b"".join(value + comma for value in row) for row in table]
    assert column.data.size == column.offsets[-1]


@pytest.mark.usefixtures("loops")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tables(), st.data())
def test_groups_of_rows_do_not_touch_each_other(table: list[list[bytes]], data: st.DataObject) -> None:
    group_of = [data.draw(st.integers(0, 3)) for _ in table]
    builder = RowBuilder(len(table))
    for group in range(3):  # rows of group 3 stay empty
        rows = [row for row, of in enumerate(group_of) if of == group]
        columns = zip(*(table[row] for row in rows), strict=True)
        builder.add(np.array(rows, np.int64), [pool_of([*values]) for values in columns])

    expected = [b"".join(row) if of < 3 else b"" for row, of in zip(table, group_of, strict=True)]
    assert builder.column().to_list() == expected


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("sizes", [[0, 0], [8191, 3], [8192, 3], [20_000, 8192, 0, 1], [513, 512, 1]])
def test_values_of_very_different_sizes_are_copied(sizes: list[int]) -> None:
    values = [bytes((65 + at,)) * size for at, size in enumerate(sizes)]

    assert column_of([pool_of(values), b"!"], len(values)).to_list() == [value + b"!" for value in values]


def test_many_rows_are_copied_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "STEP_SIZE_BYTES", 100)
    values = [b"%d" % at * (at % 7) for at in range(200)]

    assert column_of([pool_of(values)], len(values)).to_list() == values


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("gap", [b"", b"<", b"a long gap between values"])
@pytest.mark.parametrize("pieces_before", [0, 1, 2])
def test_rows_at_the_edges_of_a_buffer_are_whole(gap: bytes, pieces_before: int) -> None:
    """The compiled loop copies values with what is around them: the first and the last have too little."""
    values = [b"%d" % number * (number % 40) for number in range(200)]
    others = [b"%x" % number for number in range(200)]
    made: list[RowPiece] = [
        b"before ",
        pool_of(others),
        pool_of(values, gap),
        b" and behind ",
        pool_of(others),
    ]
    made = made[2 - pieces_before :]

    expected = [
        [b"before ", other, value, b" and behind ", other][2 - pieces_before :]
        for value, other in zip(values, others, strict=True)
    ]
    assert column_of(made, len(values)).to_list() == [b"".join(row) for row in expected]


@pytest.mark.usefixtures("loops")
def test_rows_without_values_are_their_fixed_bytes() -> None:
    assert column_of([b"{", b"", b"}"], 3).to_list() == [b"{}"] * 3

    builder = RowBuilder(4)
    builder.add(np.array([0, 2]), [b"[", b"]"])
    builder.add(np.array([3]), [b"a long one"])
    assert builder.column().to_list() == [b"[]", b"", b"[]", b"a long one"]


def test_no_rows_make_an_empty_column() -> None:
    assert column_of([b"a", pool_of([])], 0).to_list() == []


OPTIONAL = st.lists(st.none() | st.binary(max_size=3), max_size=5)


@given(st.lists(OPTIONAL, min_size=1, max_size=4))
def test_joined_columns_have_the_rows_of_all(parts: list[list[bytes | None]]) -> None:
    joined = ByteColumn.joined([ByteColumn.of(part) for part in parts])

    assert joined.to_list() == [value for part in parts for value in part]
    assert len(joined) == sum(map(len, parts))


@given(
    st.lists(
        st.lists(st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3)), min_size=1
    )
)
def test_joined_headers_have_the_rows_of_all(parts: list[list[list[tuple[str, bytes]]]]) -> None:
    joined = HeaderColumn.joined([HeaderColumn.of(part) for part in parts])

    assert joined.to_list() == [row for part in parts for row in part]
    assert len(joined) == sum(map(len, parts))


@given(st.lists(st.binary(max_size=4), max_size=6), st.integers(0, 6), st.integers(0, 6))
def test_records_in_one_buffer_are_the_records(values: list[bytes], start: int, stop: int) -> None:
    records = RecordBytes.of(values)

    assert records.to_list() == values
    assert [records.at(row) for row in range(len(records))] == values
    assert records.between(start, stop).to_list() == values[start:stop]
