"""Micro-batches have each record once, whatever their limits, and lost data is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_conformance import ledger_of
from offload_spark.known import KnownStreams
from offload_spark.tailing import Mark, TailLimit, initial, latest, newest, plan_between
from spark.in_process import Tier, tier

from offload.ground.errors import Misuse, NotOffloaded, UnsupportedFormat
from offload.store.memory import MemoryStore
from offload.upkeep.retention import Retention, delete_stream, trim

EVERYTHING = TailLimit()


class Query:
    """A streaming query. Its checkpoint is written as JSON and read back, as Spark's is."""

    def __init__(self, made: Tier, **options: str) -> None:
        self.made, self.options = made, made.read_options(**options)
        self.offloader = made.blocking.offloader
        # Looks for new streams and parts at every trigger, and not only every ten seconds.
        self.known = KnownStreams(self.offloader, self.options, look_seconds=0)
        self.mark = self.kept(made.blocking.run(initial(self.known)))
        self.target: Mark | None = None
        self.batches: list[tuple[Mark, Mark]] = []

    def kept(self, mark: Mark) -> Mark:
        return Mark.of_json(json.loads(json.dumps(mark.as_json())))

    def trigger(self, limit: TailLimit = EVERYTHING) -> list[tuple[str, int]]:
        """Run the next micro-batch. Return stream and offset of each record."""
        run, before = self.made.blocking.run, self.mark
        reached = run(latest(self.known, before, limit, self.target))
        self.mark = self.kept(reached)
        self.batches.append((before, self.mark))
        return self.again(-1)

    def again(self, number: int) -> list[tuple[str, int]]:
        """Return the records of a micro-batch that is planned again after a crash."""
        start, end = self.batches[number]
        planned = self.made.blocking.run(plan_between(self.known, start, end))
        return [(row[0], row[2]) for row in self.made.rows(planned)]


def offsets(stream: str, *spans: tuple[int, int]) -> list[tuple[str, int]]:
    return [(stream, offset) for span in spans for offset in range(*span)]


@pytest.fixture
def made() -> Iterator[Tier]:
    with tier() as made:
        yield made


def grow(made: Tier, stream: str, *, records: int, first_offset: int) -> None:
    made.write(stream, [ledger_of(records, first_offset=first_offset)])


@settings(max_examples=25 if CAMPAIGN else 4)
@given(
    steps=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 30)), max_size=5),
    rows=st.none() | st.integers(1, 20),
    size_bytes=st.none() | st.integers(1, 800),
)
def test_every_record_is_in_one_batch_however_they_are_limited(
    steps: list[tuple[str, int]], rows: int | None, size_bytes: int | None
) -> None:
    limit = TailLimit(rows=rows, size_bytes=size_bytes)
    with tier() as made:
        grow(made, "a", records=3, first_offset=0)
        query, ends = Query(made), {"a": 3}
        found: list[tuple[str, int]] = []
        for stream, records in steps:
            grow(made, stream, records=records, first_offset=ends.get(stream, 0))
            ends[stream] = ends.get(stream, 0) + records
            found += query.trigger(limit)
        while query.mark != query.batches[-1][0] if query.batches else True:
            batch = query.trigger(limit)
            assert rows is None or len(batch) <= max(rows, len(ends))
            found += batch

        assert sorted(found) == sorted(
            pair for stream, end in ends.items() for pair in offsets(stream, (0, end))
        )
        again = [pair for number in range(len(query.batches)) for pair in query.again(number)]
        assert again == found, "a batch that is planned again is the same"


def test_a_batch_without_new_records_keeps_the_mark(made: Tier) -> None:
    grow(made, "a", records=3, first_offset=0)
    query = Query(made)
    query.trigger()
    before = query.mark

    assert query.trigger() == []
    assert query.mark == before


def test_streams_share_a_limit_by_the_size_of_their_backlogs(made: Tier) -> None:
    grow(made, "a", records=30, first_offset=0)
    grow(made, "b", records=10, first_offset=0)

    found = Query(made).trigger(TailLimit(rows=20))

    assert found == offsets("a", (0, 15)) + offsets("b", (0, 5))


def test_a_limit_of_bytes_is_kept_approximately(made: Tier) -> None:
    made.write("a", [ledger_of(50, first_offset=50 * n, body_size_bytes=1000) for n in range(4)])

    found = Query(made).trigger(TailLimit(size_bytes=75 * 1070))

    assert 70 <= len(found) <= 80


def test_a_query_with_a_target_reads_no_later_records(made: Tier) -> None:
    grow(made, "a", records=5, first_offset=0)
    query = Query(made)
    query.target = made.blocking.run(newest(query.known))
    grow(made, "a", records=5, first_offset=5)
    grow(made, "b", records=5, first_offset=0)

    assert query.trigger(TailLimit(rows=3)) == offsets("a", (0, 3))
    assert query.trigger() == offsets("a", (3, 5))
    assert query.trigger() == []


def test_a_query_may_begin_at_the_end(made: Tier) -> None:
    grow(made, "a", records=5, first_offset=0)
    query = Query(made, startingOffsets="latest")
    grow(made, "a", records=2, first_offset=5)

    assert query.trigger() == offsets("a", (5, 7))


class TestLostData:
    @pytest.fixture
    def made(self) -> Iterator[Tier]:
        with tier() as made:
            made.write("a", [ledger_of(5, first_offset=5 * n) for n in range(4)])
            grow(made, "b", records=4, first_offset=0)
            yield made

    def trim(self, made: Tier, before: int) -> None:
        made.blocking.run(trim(made.blocking.offloader, "a", Retention(before_offset=before)))

    def test_data_that_was_trimmed_before_it_was_read_is_an_error(self, made: Tier) -> None:
        query = Query(made)
        self.trim(made, 10)

        with pytest.raises(NotOffloaded, match=r"offsets \[10, 20\) now, but not all of \[0, 20\)"):
            query.trigger()

    def test_trimmed_data_is_skipped_without_fail_on_data_loss(self, made: Tier) -> None:
        query = Query(made, failOnDataLoss="false")
        self.trim(made, 10)

        assert query.trigger() == offsets("a", (10, 20)) + offsets("b", (0, 4))

    def test_data_that_was_trimmed_after_it_was_read_is_no_error(self, made: Tier) -> None:
        query = Query(made)
        query.trigger()
        self.trim(made, 20)
        grow(made, "a", records=3, first_offset=20)

        assert query.trigger() == offsets("a", (20, 23))

    def test_a_deleted_stream_is_an_error(self, made: Tier) -> None:
        query = Query(made)
        made.blocking.run(delete_stream(made.blocking.offloader, "a"))

        with pytest.raises(NotOffloaded, match="'a' no longer exists"):
            query.trigger()

    def test_a_recreated_stream_is_an_error(self, made: Tier) -> None:
        query = Query(made)
        query.trigger()
        made.blocking.run(delete_stream(made.blocking.offloader, "a"))
        grow(made, "a", records=3, first_offset=0)

        with pytest.raises(NotOffloaded, match="was deleted and begun again"):
            query.trigger()

    def test_a_recreated_stream_is_read_from_its_beginning_without_fail_on_data_loss(
        self, made: Tier
    ) -> None:
        query = Query(made, failOnDataLoss="false")
        query.trigger()
        made.blocking.run(delete_stream(made.blocking.offloader, "a"))
        assert query.trigger() == []
        grow(made, "a", records=3, first_offset=0)

        assert query.trigger() == offsets("a", (0, 3))

    def test_a_stream_that_ends_before_the_mark_moves_no_mark_back(self, made: Tier) -> None:
        """Otherwise the query would read records twice after the stream has grown again."""
        memory = made.store.inner
        assert isinstance(memory, MemoryStore)
        query = Query(made, failOnDataLoss="false")
        kept = dict(memory.objects)  # a backup from which the store is restored
        grow(made, "b", records=3, first_offset=4)
        query.trigger()
        memory.objects.clear()
        memory.objects.update(kept)
        before = query.mark

        assert query.trigger() == []
        assert query.mark == before


def test_a_checkpoint_of_a_newer_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="version 2"):
        Mark.of_json({"version": 2, "streams": {}})


@pytest.mark.parametrize(
    "found", [{}, {"streams": {"a": 3}}, {"streams": {"a": {"incarnation": "x"}}}], ids=str
)
def test_a_malformed_checkpoint_is_refused(found: dict[str, object]) -> None:
    with pytest.raises(Misuse, match="the checkpoint is not of the source offload"):
        Mark.of_json(found)


def test_a_new_query_with_offsets_of_a_misspelt_stream_is_an_error(made: Tier) -> None:
    grow(made, "orders", records=3, first_offset=0)

    with pytest.raises(Misuse, match="did you mean 'orders'"):
        Query(made, startingOffsets='{"odrers": 1}')
    with pytest.raises(NotOffloaded, match=r"has no stream 'odrers'.*did you mean 'orders'"):
        Query(made, stream="odrers")


def test_a_query_that_continues_ignores_the_offsets_of_its_start(made: Tier) -> None:
    grow(made, "orders", records=3, first_offset=0)
    query = Query(made)
    query.known = KnownStreams(query.offloader, made.read_options(startingOffsets='{"gone": 1}'))

    assert query.trigger() == offsets("orders", (0, 3))
