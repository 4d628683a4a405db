"""DuckDB, Polars, pandas and pyarrow read a stream in three lines, and the core needs none of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from offload_conformance import ledger_of, ledgers
from tables.tier_in_memory import World, world

from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Corrupt
from offload.log.memory_handle import MemoryHandle
from offload.opening.tables import ArrowStream
from offload.store.faults import Fault, Rule


@pytest.fixture
def made() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture
def orders(made: World) -> ArrowStream:
    made.write("orders", [ledger_of(2000)])
    return made.tables["orders"]


def test_duckdb_queries_a_stream_by_the_name_of_its_variable(orders: ArrowStream) -> None:
    query = 'select count(*), sum("offset"), min(epoch_ms(timestamp)), sum(octet_length(value)) from orders'
    sizes = sum(len(str(offset)) + 8 for offset in range(2000))

    for _ in range(2):  # a stream is read anew by each query
        assert duckdb.sql(query).fetchall() == [(2000, 1999000, ledgers.BIRTH_MS, sizes)]
    assert duckdb.sql('select value from orders where "offset" = 7').fetchall() == [(b"7........",)]


def test_duckdb_streams_from_a_reader_of_some_columns(orders: ArrowStream) -> None:
    newest = orders.to_batches(start=1990, columns=["offset"])  # noqa: F841 - DuckDB finds it by its name

    assert duckdb.sql('select sum("offset") from newest').fetchall() == [(sum(range(1990, 2000)),)]


def test_duckdb_gets_the_damage_and_no_shorter_table(made: World, orders: ArrowStream) -> None:
    made.store.rules = [Rule(Fault.FLIP, "get", "*.fragment")]

    with pytest.raises((duckdb.Error, Corrupt), match=r"checksum|CRC"):
        duckdb.sql("select count(*) from orders").fetchall()


def test_polars_makes_a_frame_of_a_stream(orders: ArrowStream) -> None:
    frame = pl.DataFrame(orders)

    assert frame.shape == (2000, 4)
    assert frame["timestamp"].dtype == pl.Datetime("ms", "UTC")
    assert frame.filter(pl.col("offset") == 7)["value"].to_list() == [b"7........"]


def test_polars_takes_a_table_of_some_columns(orders: ArrowStream) -> None:
    frame = pl.from_arrow(orders.to_arrow(start=1990, columns=["offset"]))

    assert isinstance(frame, pl.DataFrame)
    assert frame["offset"].to_list() == [*range(1990, 2000)]


def test_pandas_gets_exact_offsets_and_times(orders: ArrowStream) -> None:
    frame = orders.to_pandas(start=1998)

    assert [str(kind) for kind in frame.dtypes] == ["int64", "datetime64[ms, UTC]", "object", "int32"]
    assert frame["offset"].tolist() == [1998, 1999]
    assert frame["value"].tolist() == [b"1998........", b"1999........"]


def test_pyarrow_takes_the_stream_protocol_and_writes_parquet(
    orders: ArrowStream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("parquet") / "orders.parquet"
    reader = pa.RecordBatchReader.from_stream(orders)
    with pq.ParquetWriter(file, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)

    assert pq.read_table(file).equals(orders.to_arrow())


@pytest.mark.parametrize("timestamp_ms", [-(2**63), -1, 2**63 - 1])
def test_times_and_offsets_at_their_limits_are_exact(made: World, timestamp_ms: int) -> None:
    first = 2**63 - 2
    chunk = build_chunk([b"a", b""], offset=first, timestamp_ms=timestamp_ms, epoch=1)
    made.write("orders", [MemoryHandle([chunk])])

    found = made.tables["orders"].to_arrow(start=first)

    assert found["offset"].to_pylist() == [first, first + 1]
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [timestamp_ms] * 2


def interrupt_a_waiting_call() -> None:
    """Send the main thread SIGINT when one call of `Blocking` has kept it waiting for a while."""
    last, seen = None, 0
    while seen < 5:
        time.sleep(0.02)
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        while frame.f_back is not None and not frame.f_code.co_filename.endswith("blocking.py"):
            frame = frame.f_back
        call = frame.f_locals.get("self") if frame.f_code.co_name == "wait" else None
        seen = seen + 1 if call is not None and call is last else 0
        last = call
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_reader_goes_on_behind_its_last_batch(made: World) -> None:
    """The store does not answer, and the user presses Ctrl-C. Polars is imported, and has a handler of it."""
    made.write("orders", [ledger_of(600, body_size_bytes=10_000)])
    reader = made.tables["orders"].to_batches(columns=["offset", "value"])
    found = reader.read_next_batch()["offset"].to_pylist()
    before = made.store.before

    async def wait_for_ever(operation: str, key: str) -> None:
        await asyncio.Event().wait()

    made.store.before = wait_for_ever
    presses = threading.Thread(target=interrupt_a_waiting_call)
    presses.start()
    with suppress(KeyboardInterrupt):
        for batch in reader:
            found += batch["offset"].to_pylist()
    presses.join()
    interrupted = len(found)
    made.store.before = before
    for batch in reader:
        found += batch["offset"].to_pylist()

    assert 0 < interrupted < 600
    assert found == [*range(600)]


WITHOUT_PYARROW = """
import sys
import offload
offload.Blocking
print([name for name in ("pyarrow", "pandas", "duckdb", "polars") if name in sys.modules])
sys.modules["pyarrow"] = None
try:
    offload.open("./nowhere")
except offload.Misuse as error:
    print(error)
"""


def test_the_core_needs_no_pyarrow_and_names_the_extra() -> None:
    """The error ends with the command that installs it. How it looks depends on how this was installed."""
    said = subprocess.run([sys.executable, "-c", WITHOUT_PYARROW], capture_output=True, text=True, check=True)

    assert said.stdout.startswith("[]\noffload.open needs pyarrow, which is not installed: ")
    assert said.stdout.rstrip("'\n").endswith("[arrow]")
