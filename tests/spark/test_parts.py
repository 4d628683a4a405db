"""A stream with parts is one stream in Spark: each record once, with the number of its part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from offload_conformance import ledger_of
from offload_spark.planning import PlannedPart
from offload_spark.tailing import Mark, TailLimit, initial, latest, plan_between
from spark.in_process import Tier, tier

from offload.errors import NotOffloaded
from offload.model.part import StreamPart

Found = list[tuple[str, int, int]]
"""The stream, the part and the offset of each record."""


@pytest.fixture
def made() -> Iterator[Tier]:
    """Return a tier with a stream of three parts: the second behind a gap, the third a fork of it."""
    with tier() as made:
        made.write("orders", [ledger_of(6)])
        begin(made, 2, first_offset=9, records=3)
        begin(made, 3, first_offset=10, records=4)
        made.write("plain", [ledger_of(2)])
        yield made


def begin(made: Tier, number: int, *, first_offset: int, records: int) -> None:
    """Begin a part of `orders`, with data."""
    part, offloader = StreamPart("orders", number), made.blocking.offloader
    before = made.blocking.load_manifest(StreamPart("orders", number - 1).name)
    made.blocking.run(offloader.begin_part(part, before=before))
    made.write(part.name, [ledger_of(records, first_offset=first_offset)])


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
        made.write("orders", [ledger_of(6)])
        options, run = made.options(stream="orders", startingOffsets=start), made.blocking.run
        catalogue = made.blocking.catalogue
        mark, found = run(initial(catalogue, options)), Found()
        for number, first_offset, count in [(1, 0, 0), (2, 9, 3), (3, 10, 4)]:
            if number > 1:
                begin(made, number, first_offset=first_offset, records=count)
            for limit in (TailLimit(rows=2), TailLimit()):
                reached = Mark.of_json(run(latest(catalogue, options, mark, limit, None)).as_json())
                found += rows(made, run(plan_between(catalogue, options, mark, reached)))
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
