"""A stream as a table has the messages that `StreamReader` gives, for any range, and lacks none unnoticed."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import osiris_data
import pulsar_sets
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from foreign_tier import LinesCatalogue
from fresh_loops import use_loops
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_conformance import MemoryLedger, ledger_of, ledgers
from tables.tier_in_memory import World, rows_of, world

import offload
from offload import AtOffset, AtTime, Blocking, PartOffset
from offload.arrow.batches import _Made
from offload.formats.chunk_writer import build_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch
from offload.formats.records import RecordRun
from offload.ground.errors import Corrupt, Misuse, NotOffloaded, StreamDeleted
from offload.opening import tables
from offload.opening.tables import ArrowStream, ArrowTier
from offload.read.batches import Window
from offload.store.faults import Fault, Rule
from offload.upkeep.retention import Retention, trim
from offload.upkeep.sweep.tier import sweep

SHAPES = ("simple", "sub_batches", "with_tracking", "clock_goes_back")


@pytest.fixture
def made() -> Iterator[World]:
    with world() as made:
        yield made


@pytest.fixture
def parts(made: World) -> World:
    """A stream of three parts: the second behind a gap, the third a fork of it."""
    made.write("orders", [ledger_of(6)])
    made.begin_part(2, [ledger_of(3, first_offset=9)])
    made.begin_part(3, [ledger_of(4, first_offset=10)])
    return made


def chunks_of(records: int, size_bytes: int, *, count: int) -> MemoryLedger:
    """Return a ledger of `count` chunks with so many records of this size each."""
    return MemoryLedger(
        [
            build_chunk([b"x" * size_bytes] * records, offset=at * records, timestamp_ms=at, epoch=1)
            for at in range(count)
        ]
    )


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "NumPy"])
@settings(max_examples=20)
@given(
    shape=st.sampled_from(SHAPES),
    count=st.integers(1, 4),
    offsets=st.tuples(st.integers(0, 30), st.integers(0, 70)),
    limits=st.tuples(st.integers(1, 20), st.integers(1, 200)),
)
def test_a_table_has_the_messages_of_the_range(
    compiled: bool, shape: str, count: int, offsets: tuple[int, int], limits: tuple[int, int]
) -> None:
    with world() as made, pytest.MonkeyPatch.context() as patch:
        use_loops(patch, compiled=compiled)
        patch.setattr(tables, "BATCH_ROWS_MAX", limits[0])
        patch.setattr(tables, "BATCH_SIZE_BYTES_MAX", limits[1])
        made.write("orders", getattr(ledgers, shape)().ledgers(count))
        messages = made.expected()
        start, end = min(*offsets, messages[-1][1]), max(offsets)
        expected = [row for row in messages if start <= row[1] < end]
        stream = made.tables["orders"]

        batches = [*stream.to_batches(start, end)]
        index = stream.to_arrow(start, end, columns=["offset", "timestamp"])

        assert [row for batch in batches for row in rows_of(batch)] == expected
        assert index["offset"].to_pylist() == [offset for _, offset, _, _ in expected]
        assert index["timestamp"].cast(pa.int64()).to_pylist() == [at for _, _, at, _ in expected]
        assert stream.count(start, end) == len(expected)
        for batch in batches:
            batch.validate(full=True)
            assert batch.num_rows <= limits[0]
            assert batch.num_rows == 1 or batch["value"].nbytes <= limits[1] + 4 * (batch.num_rows + 1)


def test_a_table_of_parts_has_all_of_them_with_gap_and_fork(parts: World) -> None:
    stream = parts.tables["orders"]

    assert rows_of(stream.to_arrow()) == parts.expected()
    assert stream.count() == 13
    assert "[0, 6) and [9, 12) and [10, 14)" in repr(stream)


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (7, None, [(2, 9), (2, 10), (2, 11), (3, 10), (3, 11), (3, 12), (3, 13)]),
        (4, 10, [(1, 4), (1, 5), (2, 9)]),
        (PartOffset(3, 11), None, [(3, 11), (3, 12), (3, 13)]),
        (11, PartOffset(3, 11), [(2, 11), (3, 10)]),
        ("last", None, [(3, 13)]),
        ("next", None, []),
        (13, 99, [(3, 13)]),
    ],
)
def test_positions_in_parts_are_those_of_other_readers(
    parts: World, start: object, end: object, found: list[tuple[int, int]]
) -> None:
    stream = parts.tables["orders"]

    table = stream.to_arrow(start, end, columns=["part", "offset"])

    assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == found
    assert stream.count(start, end) == len(found)


FIFTH = datetime.fromtimestamp(ledgers.BIRTH_MS / 1000, UTC) + timedelta(milliseconds=5)


@pytest.mark.parametrize(
    "start",
    [
        5,
        np.int64(5),
        "5",
        AtOffset(5),
        AtTime(ledgers.BIRTH_MS + 5),
        f"@{ledgers.BIRTH_MS + 5}",
        FIFTH,
        FIFTH.replace(tzinfo=None),
        FIFTH.astimezone().isoformat(),
        FIFTH - timedelta(microseconds=1),
    ],
    ids=repr,
)
def test_a_position_is_a_number_a_moment_or_a_text(made: World, start: object) -> None:
    made.write("orders", [ledger_of(8)])

    found = made.tables["orders"].to_arrow(start, columns=["offset"])

    assert found["offset"].to_pylist() == [5, 6, 7]


def test_a_day_is_its_first_moment_in_utc(made: World) -> None:
    made.write("orders", [ledger_of(8)])
    stream, day = made.tables["orders"], FIFTH.date()

    assert stream.count(day) == stream.count(day.isoformat()) == 8
    assert stream.count(day + timedelta(days=1)) == 0


def test_columns_are_any_names_in_a_row(made: World) -> None:
    made.write("orders", [ledger_of(2)])
    names = ["part", "offset"]

    for columns in (tuple(names), iter(names), np.array(names), dict.fromkeys(names)):
        assert made.tables["orders"].to_arrow(columns=columns).column_names == names


def test_a_relative_time_counts_back_from_now(made: World) -> None:
    made.blocking.append("orders", [b"old"], timestamp_ms=0)
    made.blocking.append("orders", [b"new"])
    stream = made.tables["orders"]

    assert stream.to_arrow("-1h")["value"].to_pylist() == [b"new"]
    assert stream.to_arrow(end="-1h")["value"].to_pylist() == [b"old"]
    assert stream.to_arrow(end=datetime.min)["value"].to_pylist() == []


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"start": 5, "end": 2}, "inverted: the end, 2, is before the start, 5"),
        ({"start": "-1h", "end": "-2h"}, r"the end, \d{4}-.*Z, is before the start, \d{4}-.*Z"),
        ({"start": "next", "end": "first"}, "the end, first, is before the start, next"),
        (
            {"start": PartOffset(2, 9), "end": PartOffset(1, 9)},
            "9 of part 1, is before the start, 9 of part 2",
        ),
        ({"start": "yesterday"}, "is not a position"),
        ({"start": -1}, "-1 is not a position: use an offset from 0 on, a datetime or date, or a text"),
        ({"start": np.datetime64("2026-11-21")}, "is not a position"),
        ({"start": PartOffset(1, -1)}, "is not a position"),
        ({"start": True}, "True is not a position"),
        ({"start": 1.5}, "1.5 is not a position"),
        ({"columns": ["ofset"]}, "no column 'ofset'; did you mean 'offset'"),
        ({"columns": ["VALUE"]}, "did you mean 'value'"),
        ({"columns": ["body"]}, "need a decoder, such as amqp"),
        ({"columns": 7}, "a list of names"),
        ({"columns": [None]}, "a list of names"),
        ({"columns": ["propertys"], "decode": "amqp"}, "did you mean 'properties'"),
        ({"columns": "offset"}, "a list of names"),
        ({"columns": ["offset", "offset"]}, "each of them once"),
        ({"columns": []}, "one name or more"),
        ({"decode": "amq"}, "no plugin knows the decoder"),
    ],
    ids=repr,
)
def test_a_wrong_argument_is_misuse_at_once(made: World, given_: dict[str, object], text: str) -> None:
    made.write("orders", [ledger_of(8)])
    stream = made.tables["orders"]

    with pytest.raises(Misuse, match=text):
        stream.to_batches(**given_)


def test_a_start_beyond_the_end_is_an_error(made: World) -> None:
    made.write("orders", [ledger_of(8)])

    with pytest.raises(NotOffloaded, match="9 is beyond"):
        made.tables["orders"].to_arrow(9)


def test_a_stream_tells_how_many_rows_it_has(made: World) -> None:
    made.blocking.append("orders", [b"one"])
    one = repr(made.tables["orders"])
    made.blocking.append("orders", [b"two"])

    assert ": 1 row in offsets [0, 1);" in one
    assert ": 2 rows in offsets [0, 2);" in repr(made.tables["orders"])


def test_a_deleted_stream_has_a_name_and_no_rows(made: World) -> None:
    made.blocking.append("orders", [b"one"])
    made.blocking.delete("orders")

    assert list(made.tables) == ["orders"]
    with pytest.raises(StreamDeleted):
        made.tables["orders"]


def test_a_stream_stays_as_it_was_when_it_was_opened(made: World) -> None:
    made.blocking.append("orders", [b"one"])
    stream = made.tables["orders"]
    made.blocking.append("orders", [b"two"])

    assert (stream.count(), stream.to_arrow().num_rows) == (1, 1)
    assert made.tables["orders"].to_arrow()["value"].to_pylist() == [b"one", b"two"]


def test_columns_of_the_index_and_counts_fetch_no_chunk(made: World) -> None:
    made.write("orders", [chunks_of(100, 2000, count=20)])
    stream = made.tables["orders"]
    made.fragments_read()

    index = stream.to_arrow(columns=["offset", "timestamp", "part", "stream"])

    assert index.num_rows == 2000
    assert len(made.fragments_read()) == 1  # its tail
    assert (stream.count(), stream.count(150, 1950)) == (2000, 1800)
    assert len(made.fragments_read()) == 0
    assert stream.to_arrow(columns=["value"]).num_rows == 2000
    assert len(made.fragments_read()) > 1


def test_a_chunk_of_a_million_empty_records_and_a_large_one_are_read(made: World) -> None:
    many = [SubBatch.of([b""] * 2**15, Codec.GZIP)] * 31 + [b""] * 2**15
    chunks = [
        build_chunk(many, offset=0, timestamp_ms=1, epoch=1),
        build_chunk([b"", b"x" * 2**24, b""], offset=2**20, timestamp_ms=2, epoch=1),
    ]
    made.write("orders", [MemoryLedger(chunks)])

    sizes = pa.chunked_array([pc.binary_length(each["value"]) for each in made.tables["orders"].to_batches()])

    assert pc.sum(sizes).as_py() == 2**24
    assert sizes.to_numpy().nonzero()[0].tolist() == [2**20 + 1]
    assert len(sizes) == 2**20 + 3


def test_values_further_apart_than_arrow_can_address_are_found(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_loops(monkeypatch, compiled=False)
    monkeypatch.setattr("offload.arrow.batches.SPAN_SIZE_BYTES_MAX", 20)
    made.write("orders", [ledger_of(6)])

    assert rows_of(made.tables["orders"].to_arrow()) == made.expected()


def test_tracking_records_are_not_counted(made: World) -> None:
    made.write("orders", ledgers.with_tracking().ledgers(2))
    offsets = [offset for _, offset, _, _ in made.expected()]
    stream, end = made.tables["orders"], offsets[-1] + 1
    assert len(offsets) < end, "there are tracking records"

    for start in range(end):
        counted = (stream.count(start), stream.count(end=start))
        assert counted == (sum(at >= start for at in offsets), sum(at < start for at in offsets))


def test_ranges_of_a_split_are_the_whole_range(parts: World) -> None:
    stream = parts.tables["orders"]

    ranges = stream.split(4, PartOffset(3, 12), size_bytes=1)

    assert ranges == [
        (PartOffset(1, 4), PartOffset(1, 6)),
        (PartOffset(2, 9), PartOffset(2, 12)),
        (PartOffset(3, 10), PartOffset(3, 12)),
    ]
    assert sum(stream.count(*each) for each in ranges) == stream.count(4, PartOffset(3, 12))


def test_a_split_ends_with_the_fragment_that_reaches_the_size(made: World) -> None:
    made.write("orders", [ledger_of(2, first_offset=first) for first in range(0, 10, 2)])
    stream = made.tables["orders"]
    size = int(made.blocking.load_manifest("orders").entries["data_size_bytes"][0])

    def ends(size_bytes: int) -> list[int]:
        return [end.offset for _, end in stream.split(size_bytes=size_bytes)]

    assert ends(1) == ends(size) == [2, 4, 6, 8, 10]
    assert ends(size + 1) == ends(2 * size) == [4, 8, 10]
    assert ends(100 * size) == [10]


@pytest.mark.parametrize("size_bytes", [0, -1, float("nan")])
def test_a_split_into_nothing_is_misuse(parts: World, size_bytes: int) -> None:
    with pytest.raises(Misuse, match="a number of bytes from 1 on"):
        parts.tables["orders"].split(size_bytes=size_bytes)


def test_no_batch_is_made_before_it_is_wanted(made: World) -> None:
    made.write("orders", [chunks_of(10, 100_000, count=60)])
    made.fragments_read()

    reader = made.tables["orders"].to_batches()
    assert len(made.fragments_read()) == 0
    first = reader.read_next_batch()

    assert first["value"].nbytes < 3_000_000, "the first window is small"
    assert first.num_rows + sum(batch.num_rows for batch in reader) == 600


def test_a_batch_keeps_no_window_until_the_garbage_collector_comes(made: World) -> None:
    """A cycle would: a window has 8 MiB, and few other objects are made meanwhile, so it seldom comes."""
    made.write("orders", [chunks_of(10, 100, count=30)])
    gc.collect()
    gc.disable()
    try:
        rows = sum(batch.num_rows for batch in made.tables["orders"].to_batches())

        assert rows == 300
        assert [each for each in gc.get_objects() if isinstance(each, RecordRun | Window | _Made)] == []
    finally:
        gc.enable()


def test_an_interrupt_while_a_batch_is_made_loses_no_row(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.write("orders", [chunks_of(10, 10, count=30)])
    monkeypatch.setattr(tables, "BATCH_ROWS_MAX", 7)
    make, calls = tables.BatchMaker.batches, iter(range(1000))

    def interrupted(self: tables.BatchMaker, *args: object, **more: object) -> Iterator[pa.RecordBatch]:
        for batch in make(self, *args, **more):  # type: ignore[arg-type]
            if next(calls) % 3 == 1:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(tables.BatchMaker, "batches", interrupted)
    reader = made.tables["orders"].to_batches()
    found, interrupts = list[int](), 0
    while True:
        try:
            found += reader.read_next_batch()["offset"].to_pylist()
        except KeyboardInterrupt:
            interrupts += 1
        except StopIteration:
            break

    assert interrupts > 5
    assert found == [*range(300)]


def test_an_interrupt_behind_a_batch_loses_no_row(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when the batch is made, and the reader has not returned it."""
    made.write("orders", [chunks_of(10, 10, count=30)])
    monkeypatch.setattr(tables, "BATCH_ROWS_MAX", 7)
    batches = list[tables._Batches]()
    monkeypatch.setattr(pa, "RecordBatchReader", _Reader(batches))
    made.tables["orders"].to_batches()
    [reader] = batches
    reader._lock = _Interrupting()  # type: ignore[assignment]  # a lock that is interrupted
    found, interrupts = list[int](), 0
    while True:
        try:
            found += next(reader)["offset"].to_pylist()
        except KeyboardInterrupt:
            interrupts += 1
        except StopIteration:
            break

    assert interrupts > 5
    assert found == [*range(300)]


class _Reader:
    """In the place of Arrow's: keeps what a reader would read."""

    def __init__(self, kept: list[tables._Batches]) -> None:
        self._kept = kept

    def from_batches(self, schema: pa.Schema, batches: tables._Batches) -> None:
        self._kept.append(batches)


class _Interrupting:
    """A lock that is interrupted each third time when it is released."""

    def __init__(self) -> None:
        self._lock, self._calls = threading.Lock(), 0

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()
        self._calls += 1
        if self._calls % 3 == 1:
            raise KeyboardInterrupt


def test_damage_comes_after_the_rows_before_it_and_comes_again(made: World) -> None:
    made.write("orders", [chunks_of(10, 100_000, count=30)])
    reader = made.tables["orders"].to_batches()
    rows = reader.read_next_batch().num_rows
    made.store.rules = [Rule(Fault.FLIP, "get", "*.fragment")]

    raised = 0
    while raised < 2:
        try:
            rows += reader.read_next_batch().num_rows
        except Corrupt:
            raised += 1
            made.store.rules = []

    assert 0 < rows < 300


def test_a_trim_during_a_read_is_an_error_and_no_shorter_table(made: World) -> None:
    made.write("orders", [ledger_of(5), ledger_of(5, first_offset=5)])
    stream = made.tables["orders"]
    made.blocking.run(trim(made.blocking.offloader, "orders", Retention(before_offset=5)))
    made.blocking.run(sweep(made.blocking.offloader, grace_seconds=0.0))

    for columns in (None, ["offset"]):
        with pytest.raises(NotOffloaded, match=r"\[0, 5\) were trimmed .* open the stream again"):
            stream.to_arrow(columns=columns)
        with pytest.raises(NotOffloaded, match="were trimmed"):
            stream.to_arrow(0, 5, columns=columns)  # nothing of the range is left
        with pytest.raises(NotOffloaded, match="were trimmed"):
            stream.to_batches(columns=columns).read_next_batch()  # no row behind the gap
    assert made.tables["orders"].to_arrow()["offset"].to_pylist() == [5, 6, 7, 8, 9]


def test_threads_share_a_stream(made: World) -> None:
    made.write("orders", [chunks_of(100, 1000, count=40)])
    stream, reader = made.tables["orders"], made.tables["orders"].to_batches()
    counted, shared = list[int](), list[int]()

    def work() -> None:
        counted.append(stream.to_arrow().num_rows)
        shared.extend(offset for batch in reader for offset in batch["offset"].to_pylist())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counted == [4000] * 3
    assert sorted(shared) == [*range(4000)]


def test_a_tier_that_nobody_uses_is_closed(made: World, tmp_path: Path) -> None:
    with Blocking(str(tmp_path)) as tier:
        tier.append("orders", [b"one"])
    before = _threads_of_tiers()

    reader = offload.open(str(tmp_path))["orders"].to_batches()
    gc.collect()
    assert reader.read_all().num_rows == 1
    del reader
    gc.collect()

    assert _threads_of_tiers() <= before  # one of an earlier test may end meanwhile


def _threads_of_tiers() -> set[threading.Thread]:
    # The process keeps the threads of the pool for files, and begins one when all others are busy.
    return {thread for thread in threading.enumerate() if not thread.name.startswith("offload-posix")}


def test_a_closed_tier_refuses_reads(made: World) -> None:
    made.write("orders", [ledger_of(8)])
    stream = made.tables["orders"]
    made.tables.close()
    made.tables.close()

    with pytest.raises(Misuse, match="closed"):
        stream.to_arrow()


def test_a_tier_shows_its_streams(made: World) -> None:
    made.write("orders", [ledger_of(3)])
    made.begin_part(2, [ledger_of(3, first_offset=3)])
    made.write("returns", [ledger_of(3)])
    tier = made.tables

    assert list(tier) == ["orders", "returns"] == tier._ipython_key_completions_()
    assert "orders" in tier
    assert "streams orders, returns" in repr(tier)
    with pytest.raises(LookupError, match="did you mean 'orders'"):
        tier["ordesr"]
    with pytest.raises(Misuse, match=r"by its name, such as tier\['orders'\], not by 0"):
        tier[0]  # type: ignore[index]  # what a notebook may say


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    with Blocking(tmp_path) as tier:
        tier.append("orders", [b"one"])

    with offload.open(tmp_path) as tables_:
        assert tables_["orders"].count() == 1


def test_a_place_without_a_tier_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotOffloaded):
        offload.open(str(tmp_path / "absent"))


def test_a_read_only_tier_is_read_likewise(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "0.1000.lines").write_text("one\ntwo\nthree\n")

    with ArrowTier.around(Blocking.around(lambda: LinesCatalogue(tmp_path))) as tier:
        assert tier["orders"].to_arrow(1)["value"].to_pylist() == [b"two", b"three"]


def test_a_bucket_of_pulsar_is_read_likewise() -> None:
    """An entry is a row, and has several messages."""
    folder = pulsar_sets.DATA / "messages"
    expected = [json.loads(line) for line in (folder / "expected.jsonl").read_text().splitlines()]

    with offload.open(f"pulsar+file://{folder}") as tier:
        found = tier["ledger-7"].to_arrow(columns=["offset", "messages"], decode="pulsar")

    assert found["offset"].to_pylist() == [*range(124)]
    published = [
        (offset, each["metadata"]["publish_time"])
        for offset, messages in zip(*(column.to_pylist() for column in found.columns), strict=True)
        for each in json.loads(messages)
    ]
    assert published == [(each["entry"], each["publish_time"]) for each in expected]


@pytest.mark.parametrize("name", osiris_data.STREAMS)
def test_bodies_of_real_streams_are_decoded(name: str, tmp_path: Path) -> None:
    with Blocking(str(tmp_path)) as tier:
        tier.sync(f"rabbitmq://{osiris_data.DATA}", only=[name])

    stream: ArrowStream = offload.open(str(tmp_path))[name]
    found = stream.to_arrow(columns=["offset", "body"], decode="amqp")

    assert found["body"].to_pylist() == [osiris_data.body_of(at) for at in range(stream.count())]
    assert found["offset"].to_pylist() == sorted({*found["offset"].to_pylist()})
