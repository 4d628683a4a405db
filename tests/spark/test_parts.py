"""A stream with parts is one stream in Spark: each record once, with the number of its part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from campaign import campaign
from offload_conformance import ledger_of
from offload_spark.known import KnownStreams
from offload_spark.planning import PlannedPart
from offload_spark.tailing import Mark, TailLimit, initial, latest, plan_between
from spark.in_process import Tier, tier

from offload import Blocking, StreamWriter
from offload.ground.errors import NotOffloaded
from offload.model.part import StreamPart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Found = list[tuple[str, int, int]]
"""The stream, the part and the offset of each record."""


def write(tier: Blocking, stream: str, *, first_offset: int, records: int) -> None:
    """Begin a stream with one ledger."""

    async def written() -> None:
        await tier.offloader.open(create=True)
        writer = await StreamWriter.claim(tier.offloader, stream, first_offset=first_offset)
        await writer.offload([ledger_of(records, first_offset=first_offset)])

    tier.run(written())


def begin(tier: Blocking, number: int, *, first_offset: int, records: int) -> None:
    """Begin a part of `orders`, with data."""
    part = StreamPart("orders", number)
    before = tier.load_manifest(StreamPart("orders", number - 1).name)
    tier.run(tier.offloader.begin_part(part, before=before))
    write(tier, part.name, first_offset=first_offset, records=records)


def fill(tier: Blocking) -> None:
    """Write a stream of three parts: the second behind a gap, the third a fork of it; and one without."""
    write(tier, "orders", first_offset=0, records=6)
    begin(tier, 2, first_offset=9, records=3)
    begin(tier, 3, first_offset=10, records=4)
    write(tier, "plain", first_offset=0, records=2)


@pytest.fixture
def made() -> Iterator[Tier]:
    with tier() as made:
        fill(made.blocking)
        yield made


def rows(made: Tier, planned: Iterable[Iterable[PlannedPart]]) -> Found:
    found = Found()
    for batch in (batch for parts in planned for batch in made.read(parts, columns="stream,part,offset")):
        columns = (batch.column(name).to_pylist() for name in ("stream", "part", "offset"))
        found += zip(*columns, strict=True)
    return found


def records(part: int, first: int, stop: int, stream: str = "orders") -> Found:
    return [(stream, part, offset) for offset in range(first, stop)]


ORDERS = [*records(1, 0, 6), *records(2, 9, 12), *records(3, 10, 14)]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"stream": "orders"}, ORDERS),
        ({}, [*ORDERS, *records(1, 0, 2, "plain")]),
        ({"streamPattern": "ord.*"}, ORDERS),
        ({"stream": "orders-part-2"}, records(1, 9, 12, "orders-part-2")),
        ({"stream": "orders", "startingOffsets": '{"orders": 11}'}, ORDERS[8:]),
        ({"stream": "orders", "endingOffsets": '{"orders": 11}'}, ORDERS[:8]),
        ({"stream": "orders", "startingOffsets": '{"orders": 13}'}, ORDERS[-1:]),
    ],
)
def test_a_read_of_a_stream_has_the_records_of_all_parts(
    made: Tier, options: dict[str, str], wanted: Found
) -> None:
    assert rows(made, made.plan(**options)) == wanted


def test_an_offset_in_a_gap_is_lost_data(made: Tier) -> None:
    with pytest.raises(NotOffloaded, match="but 7 is asked for"):
        made.plan(stream="orders", startingOffsets='{"orders": 7}')
    found = made.plan(stream="orders", startingOffsets='{"orders": 7}', failOnDataLoss="false")
    assert rows(made, found) == ORDERS[6:]


@pytest.mark.parametrize(("start", "wanted"), [("earliest", 0), ("latest", 6)])
def test_a_query_reads_each_record_once_across_the_birth_of_a_part(start: str, wanted: int) -> None:
    """A part that is begun while the query runs is read from its first record, whatever the start."""
    with tier() as made:
        write(made.blocking, "orders", first_offset=0, records=6)
        options, run = made.read_options(stream="orders", startingOffsets=start), made.blocking.run
        known = KnownStreams(made.blocking.catalogue, options, look_seconds=0)
        mark, found = run(initial(known)), Found()
        for number, first_offset, count in [(1, 0, 0), (2, 9, 3), (3, 10, 4)]:
            if number > 1:
                begin(made.blocking, number, first_offset=first_offset, records=count)
            for limit in (TailLimit(rows=2), TailLimit()):
                reached = Mark.of_json(run(latest(known, mark, limit, None)).as_json())
                found += rows(made, run(plan_between(known, mark, reached)))
                mark = reached

        assert found == ORDERS[wanted:]


def test_a_plan_of_a_stream_without_parts_costs_one_listing_more_than_its_view(made: Tier) -> None:
    made.plan(stream="plain")
    made.store.calls.clear()
    made.blocking.run(made.blocking.catalogue.view("plain"))
    of_view = [name for name, _ in made.store.calls]
    made.store.calls.clear()

    made.plan(stream="plain")

    assert [name for name, _ in made.store.calls] == ["list", *of_view]


@campaign("Spark over the parts of a stream; make test plans and reads them without Spark")
def test_spark_counts_the_records_of_each_part(spark: SparkSession, tmp_path: Path) -> None:
    with Blocking(str(tmp_path)) as made:
        fill(made)

    orders = spark.read.format("offload").option("stream", "orders").load(str(tmp_path))

    assert [tuple(row) for row in orders.groupBy("part").count().orderBy("part").collect()] == [
        (1, 6), (2, 3), (3, 4),
    ]  # fmt: skip
    assert [row["offset"] for row in orders.where("part = 2").collect()] == [9, 10, 11]
