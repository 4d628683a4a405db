"""Rows are stored as chunks, and a reader gets the same rows back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_spark.framing import CHUNK_RECORDS_MAX, CHUNK_SIZE_BYTES_MAX, Framer

from offload.formats.chunk import check_chunks, scan
from offload.formats.records import record_runs
from offload.ground.errors import Misuse

US = pa.timestamp("us", tz="Europe/Paris")  # Spark writes times in the zone of its session
Row = tuple[int, int, bytes]


def batch(rows: Sequence[Row], kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Return a batch of rows: offset, microseconds and value."""
    offsets, times, values = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets, pa.int64()),
            pa.array(times, pa.int64()).cast(US),
            pa.array(values, kind or pa.binary()),
        ],
        ["offset", "timestamp", "value"],
    )


def framed(batches: Sequence[pa.RecordBatch], timestamp_ms: int = 0) -> bytes:
    framer = Framer(stream="orders", timestamp_ms=timestamp_ms)
    return b"".join(chunk for each in batches for chunk in framer.chunks(each))


def rows_of(data: bytes) -> list[Row]:
    """Check every checksum, and return the rows as a reader gets them, with times in milliseconds."""
    table = scan(data, where="rows")
    check_chunks(data, table, window_position=0, where="rows")
    found: list[Row] = []
    for run in record_runs(data, table, where="rows"):
        for offset, at, start, size in zip(
            *(each.tolist() for each in (run.offsets, run.timestamps_ms, run.starts, run.sizes)), strict=True
        ):
            found.append((offset, at, run.data[start : start + size]))
    return found


@given(
    st.lists(st.lists(st.tuples(st.integers(-5, 5), st.sampled_from([0, 1, 999]), st.binary(max_size=40)))),
    st.integers(0, 2**62),
)
def test_a_reader_gets_the_rows_that_were_written(
    given: list[list[tuple[int, int, bytes]]], first: int
) -> None:
    rows: list[Row] = []
    batches = []
    for part in given:
        begun = first + len(rows)
        made = [(begun + row, ms * 1000 + us, value) for row, (ms, us, value) in enumerate(part)]
        batches.append(batch(made))
        rows += made
    assert rows_of(framed(batches)) == [(offset, us // 1000, value) for offset, us, value in rows]


def test_a_slice_of_a_batch_has_only_its_own_rows() -> None:
    rows = [(at, at * 1000, b"v%d" % at) for at in range(100)]
    data = framed([batch(rows).slice(0, 30), batch(rows).slice(30, 70)])
    assert rows_of(data) == [(offset, us // 1000, value) for offset, us, value in rows]


def test_text_is_stored_as_utf_8() -> None:
    assert rows_of(framed([batch([(7, 0, "ü")], pa.string())])) == [(7, 0, "ü".encode())]  # type: ignore[list-item]


def test_rows_without_a_time_get_the_time_of_the_write() -> None:
    rows = batch([(0, 1, b"a"), (1, 2, b"b")]).select(["offset", "value"])
    assert [at for _, at, _ in rows_of(framed([rows], timestamp_ms=1_234))] == [1_234, 1_234]


def test_chunks_are_bounded_and_a_larger_record_has_its_own() -> None:
    large = b"x" * (CHUNK_SIZE_BYTES_MAX + 1)
    values = [b"", *[b"y" * 300_000] * 5, large, *[b"z"] * (CHUNK_RECORDS_MAX + 1)]
    data = framed([batch([(at, 0, value) for at, value in enumerate(values)])])
    table = scan(data, where="rows")
    assert [value for _, _, value in rows_of(data)] == values
    assert max(table["records"]) <= CHUNK_RECORDS_MAX
    sizes = {int(row["size_bytes"]) for row in table if row["records"] > 1}
    assert max(sizes) <= CHUNK_SIZE_BYTES_MAX + 100
    assert len(table) <= 6


@pytest.mark.parametrize("offsets", [[0, 2], [1, 0], [0, 0], [-1, 0], [-2, -1]])
@pytest.mark.parametrize("batches", [1, 2])
def test_offsets_that_do_not_follow_one_another_are_refused(offsets: list[int], batches: int) -> None:
    rows = [(offset, 0, b"") for offset in offsets]
    parts = [rows] if batches == 1 else [rows[:1], rows[1:]]
    with pytest.raises(Misuse, match=r"instead of \d+; sort"):
        framed([batch(part) for part in parts])


@pytest.mark.parametrize("column", ["offset", "timestamp", "value"])
def test_nulls_are_refused_by_the_name_of_their_column(column: str) -> None:
    full = batch([(0, 0, b""), (1, 0, b"")])
    holed = pa.nulls(2, full.schema.field(column).type)
    rows = full.set_column(full.schema.names.index(column), column, holed)
    with pytest.raises(Misuse, match=f"column '{column}' is null in 2 of 2 rows"):
        framed([rows])


def test_a_chunk_ends_with_its_millisecond() -> None:
    at = int(datetime(2026, 11, 22, tzinfo=UTC).timestamp()) * 1_000_000
    rows = [(0, at, b""), (1, at + 999, b""), (2, at + 1_000, b""), (3, at + 500, b"")]
    table = scan(framed([batch(rows)]), where="rows")
    assert table["records"].tolist() == [2, 1, 1]
    assert table["offset"].tolist() == [0, 2, 3]
