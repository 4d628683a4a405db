"""Every record is in exactly one partition of a read, and a read requests only the bytes that it needs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_conformance import MemoryLedger, ledger_of, ledgers
from offload_conformance.ledgers import Sample
from offload_spark.bounds import ScanBounds
from offload_spark.planning import FRAGMENTS_MAX, PlannedPiece, partitions_of
from spark.in_process import Tier, rows_of, tier

from offload.contracts.store import Span
from offload.formats.chunk_writer import build_chunk
from offload.ground.errors import Misuse, NotOffloaded, StreamDeleted
from offload.upkeep.retention import Retention, delete_stream, trim
from offload.upkeep.sweep.tier import sweep

SHAPES = ("simple", "sub_batches", "with_tracking", "clock_goes_back")


def sample_of(shape: str) -> Sample:
    make: Callable[[], Sample] = getattr(ledgers, shape)
    return make()


def written(made: Tier, shape: str, count: int = 3, *, stream: str = "orders") -> list[tuple[object, ...]]:
    """Write a stream of this shape in `count` ledgers. Return the rows that a read of it should give."""
    sample = sample_of(shape)
    parts = sample.ledgers(count)
    made.write(stream, parts)
    return [*rows_of(stream, sample, parts)]


@settings(max_examples=40 if CAMPAIGN else 6)
@given(
    shape=st.sampled_from(SHAPES),
    count=st.integers(1, 5),
    size_bytes=st.integers(1, 2000),
    partitions=st.integers(1, 30),
    rows=st.integers(1, 10),
    offsets=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_each_record_is_read_once_and_in_order(
    shape: str, count: int, size_bytes: int, partitions: int, rows: int, offsets: tuple[int, int]
) -> None:
    with tier() as made:
        expected = written(made, shape, count)
        bounds = ScanBounds(first_offset=offsets[0], next_offset=offsets[1])
        said = {"maxPartitionBytes": str(size_bytes), "minPartitions": str(partitions)}

        planned = made.plan(bounds=bounds, **said)
        found = made.rows(planned, batchRows=str(rows))

        assert found == [row for row in expected if offsets[0] <= row[2] < offsets[1]]  # type: ignore[operator]
        assert all(planned), "no partition is empty"


@settings(max_examples=40 if CAMPAIGN else 6)
@given(shape=st.sampled_from(SHAPES), times=st.tuples(st.integers(-8000, 12000), st.integers(-8000, 12000)))
def test_bounds_of_time_leave_out_no_record_within_them(shape: str, times: tuple[int, int]) -> None:
    with tier() as made:
        expected = written(made, shape)
        first, last = (ledgers.BIRTH_MS + at for at in times)
        bounds = ScanBounds(first_timestamp_ms=first, last_timestamp_ms=last)

        found = made.rows(made.plan(bounds=bounds))

        assert found == [row for row in expected if first <= row[3] <= last]  # type: ignore[operator]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_read_without_values_requests_only_indexes(shape: str) -> None:
    with tier() as made:
        expected = written(made, shape)
        made.store.asked.clear()

        found = [
            row
            for parts in made.plan()
            for batch in made.read(parts, columns="offset")
            for row in batch.column("offset").to_pylist()
        ]

        assert found == [row[2] for row in expected]
        assert len(made.store.asked) == 3, "one index for each fragment"
        assert all(isinstance(span, Span) and span.start > 16 for _, span in made.store.asked)


def test_a_narrow_read_requests_its_chunks_and_one_index() -> None:
    with tier() as made:
        made.write("orders", [ledger_of(100, body_size_bytes=1000, first_offset=n) for n in (0, 100, 200)])
        made.store.asked.clear()

        found = made.rows(made.plan(bounds=ScanBounds(first_offset=150, next_offset=152)))

        assert [row[2] for row in found] == [150, 151]
        assert len({key for key, _ in made.store.asked}) == 1
        index, chunks = (span.length for _, span in made.store.asked)
        assert 2 * 1000 < chunks < 2 * 1100
        assert index < 100 * 48, "less than the chunks that are left out"


def test_a_fragment_of_several_chunks_is_split_if_more_partitions_are_wanted() -> None:
    with tier() as made:
        made.write("orders", [ledger_of(90)])

        planned = made.plan(minPartitions="9")

        assert len(planned) == 9
        assert [len(made.rows([parts])) for parts in planned] == [10] * 9


def pieces(count: int, *, size_bytes: int) -> list[PlannedPiece]:
    """Return fragments of one stream that follow each other, of two records each."""
    with tier() as made:
        made.write("orders", [ledger_of(2)])
        [[part]] = made.plan()
        entries = np.repeat(part.committed.entries, count)
    entries["first_offset"] = np.arange(count) * 2
    return [
        PlannedPiece(
            stream=part.stream,
            part=part.part,
            committed=part.committed,
            entry=entries[n : n + 1],
            first=2 * n,
            until=2 * n + 2,
            bounds=part.bounds,
            size_bytes=size_bytes,
        )
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "size_bytes", "tasks"),
    [
        pytest.param(2560, 100, 10, id="tiny fragments are counted"),
        pytest.param(FRAGMENTS_MAX, 100, 1, id="as many as a task may have"),
        pytest.param(FRAGMENTS_MAX + 1, 100, 2, id="one more"),
        pytest.param(200, 2**20, 4, id="larger ones are weighed"),
    ],
)
def test_fragments_share_a_task_up_to_its_bytes_and_its_count(
    count: int, size_bytes: int, tasks: int
) -> None:
    found = partitions_of(pieces(count, size_bytes=size_bytes), size_bytes=64 * 2**20, count_min=1)

    assert len(found) == tasks
    covered = [(part.first, part.until) for parts in found for part in parts]
    assert [first for first, _ in covered] == [0, *(until for _, until in covered[:-1])]
    assert covered[-1][1] == 2 * count


def test_consecutive_parts_are_merged_into_one() -> None:
    with tier() as made:
        made.write("orders", [ledger_of(2, first_offset=2 * n) for n in range(5)])

        ((part,),) = made.plan()

        assert (part.first, part.until) == (0, 10)


class TestStreams:
    """The choice of streams, and of the offsets at which a read begins and ends."""

    @pytest.fixture
    def made(self) -> object:
        with tier() as made:
            for name, first in (("one", 0), ("two", 100), ("three", 7)):
                made.write(name, [ledger_of(10, first_offset=first)])
            yield made

    @pytest.mark.parametrize(
        ("given", "read"),
        [
            ({}, {"one": (0, 10), "two": (100, 110), "three": (7, 17)}),
            ({"stream": "two"}, {"two": (100, 110)}),
            ({"streams": "two,one"}, {"one": (0, 10), "two": (100, 110)}),
            ({"streamPattern": "t.*"}, {"two": (100, 110), "three": (7, 17)}),
            ({"startingOffsets": '{"one": 4}'}, {"one": (4, 10), "two": (100, 110), "three": (7, 17)}),
            ({"startingOffsets": "latest"}, {}),
            ({"endingOffsets": '{"one": 4, "two": 100, "three": -1}'}, {"one": (0, 4), "three": (7, 17)}),
            ({"startingTimestamp": str(ledgers.BIRTH_MS + 12)}, {"two": (100, 110), "three": (12, 17)}),
            ({"endingTimestamp": str(ledgers.BIRTH_MS + 12)}, {"one": (0, 10), "three": (7, 12)}),
        ],
        ids=str,
    )
    def test_a_read_has_the_streams_and_offsets_of_its_options(
        self, made: Tier, given: dict[str, str], read: dict[str, tuple[int, int]]
    ) -> None:
        found = made.rows(made.plan(**given))

        assert sorted((row[0], row[2]) for row in found) == sorted(
            (stream, offset) for stream, span in read.items() for offset in range(*span)
        )

    def test_a_missing_stream_that_is_named_is_an_error(self, made: Tier) -> None:
        with pytest.raises(NotOffloaded):
            made.plan(stream="four")

    @pytest.mark.parametrize("given", ['{"two": 99}', '{"two": 111}'])
    def test_an_offset_outside_of_its_stream_is_an_error(self, made: Tier, given: str) -> None:
        with pytest.raises(NotOffloaded, match="failOnDataLoss=false"):
            made.plan(stream="two", startingOffsets=given)

        (planned,) = made.plan(stream="two", startingOffsets='{"two": 3}', failOnDataLoss="false")
        assert len(made.rows([planned])) == 10


@pytest.mark.parametrize("columns", ["offset", "offset,value"])
class TestTrimmedMeanwhile:
    """A read that was planned before its first fragments were trimmed and swept."""

    @pytest.fixture
    def made(self) -> object:
        with tier() as made:
            made.write("orders", [ledger_of(10, first_offset=10 * n) for n in range(4)])
            yield made

    def lose(self, made: Tier, before: int) -> None:
        made.blocking.run(trim(made.blocking.offloader, "orders", Retention(before_offset=before)))
        made.blocking.run(sweep(made.blocking.offloader, grace_seconds=0))

    def test_a_read_of_trimmed_data_is_an_error(self, made: Tier, columns: str) -> None:
        planned = made.plan()
        self.lose(made, 20)

        with pytest.raises(NotOffloaded, match=r"\[0, [12]0\) were trimmed while they were read"):
            [*made.read([part for parts in planned for part in parts], columns=columns)]

    def test_trimmed_data_is_skipped_without_fail_on_data_loss(self, made: Tier, columns: str) -> None:
        planned = made.plan(minPartitions="4")
        self.lose(made, 20)

        batches = [
            batch for parts in planned for batch in made.read(parts, columns=columns, failOnDataLoss="false")
        ]

        found = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        assert found == [*range(20, 40)]


def test_a_stream_that_is_deleted_while_it_is_read_is_an_error() -> None:
    """The objects are gone once a sweep has run. Before, the task reads them as they were planned."""
    with tier() as made:
        made.write("orders", [ledger_of(20)])
        planned = made.plan()
        made.blocking.run(delete_stream(made.blocking.offloader, "orders"))
        assert len(made.rows(planned)) == 20
        made.blocking.run(sweep(made.blocking.offloader, grace_seconds=0))

        for options in ({}, {"failOnDataLoss": "false"}, {"onDamage": "skip"}):
            with pytest.raises(StreamDeleted, match="'orders' was deleted while it was read"):
                made.rows(planned, **options)


def test_a_batch_ends_at_its_limit_of_rows_or_bytes() -> None:
    with tier() as made:
        bodies = [b"x" * size for size in (10, 10, 10, 500, 10, 10)]
        made.write("orders", [MemoryLedger([build_chunk(bodies, offset=0, timestamp_ms=0, epoch=1)])])
        (parts,) = made.plan()

        by_bytes = [batch.num_rows for batch in made.read(parts, batchBytes="25")]
        by_rows = [batch.num_rows for batch in made.read(parts, batchRows="4")]

        assert by_bytes == [2, 1, 1, 2]
        assert by_rows == [4, 2]


def test_offsets_that_a_long_cannot_hold_are_refused() -> None:
    with tier() as made:
        chunk = build_chunk([b"one", b"two"], offset=2**63 - 1, timestamp_ms=0, epoch=1)
        made.write("orders", [MemoryLedger([chunk])])

        with pytest.raises(Misuse, match="too large for a 64-bit column"):
            made.rows(made.plan())


def test_times_that_no_timestamp_can_hold_become_the_last_one() -> None:
    with tier() as made:
        chunk = build_chunk([b"body"], offset=0, timestamp_ms=2**63 - 1, epoch=1)
        made.write("orders", [MemoryLedger([chunk])])

        ((*_, at, _body),) = made.rows(made.plan())

        assert at == (2**63 - 1) // 1000


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize("chosen", [{}, {"stream": "orders"}, {"streamPattern": "ord.*"}], ids=str)
def test_offsets_of_a_misspelt_stream_are_an_error(option: str, chosen: dict[str, str]) -> None:
    """They would otherwise be ignored, and other records be read than were asked for."""
    with tier() as made:
        made.write("orders", [ledger_of(3)])
        made.write("other", [ledger_of(3)])

        with pytest.raises(Misuse, match=f"{option} names stream 'odrers', .*did you mean 'orders'"):
            made.plan(**chosen, **{option: '{"odrers": 1}'})


def test_a_misspelt_stream_is_an_error_that_names_the_nearest() -> None:
    with tier() as made:
        made.write("orders", [ledger_of(3)])

        with pytest.raises(NotOffloaded, match=r"has no stream 'odrers'.*did you mean 'orders'"):
            made.plan(stream="odrers")


@pytest.mark.parametrize(
    ("column", "hint"),
    [
        ("ofset", "did you mean 'offset'"),
        ("body", "The columns are stream, .* need decode"),
    ],
)
def test_a_column_that_does_not_exist_is_an_error_that_names_the_nearest(column: str, hint: str) -> None:
    with tier() as made, pytest.raises(Misuse, match=f"no column '{column}'.*{hint}"):
        [*made.read([], columns=f"value,{column}")]
