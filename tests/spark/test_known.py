"""A trigger asks for little: the states of streams are kept, and several streams are asked at a time."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from offload_conformance import ledger_of
from offload_spark import planning
from offload_spark.known import LOOK_SECONDS, KnownStreams
from offload_spark.planning import each_of
from offload_spark.source import OffloadDataSource, StreamingReader
from offload_spark.tailing import TailLimit, initial, latest, plan_between
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark.in_process import Tier, tier
from spark.test_parts import begin, write

from offload import Blocking
from offload.ground.env import Env
from offload.ground.errors import StreamDeleted, TryAgain
from offload.upkeep.retention import delete_stream

STREAMS = 40


@pytest.fixture
def made() -> Iterator[Tier]:
    with tier() as made:
        for number in range(STREAMS):
            made.write(f"s{number:02}", [ledger_of(3, first_offset=0)])
        yield made


def known(made: Tier, env: Env | None = None, **options: str) -> KnownStreams:
    return KnownStreams(made.blocking.catalogue, made.read_options(**options), env=env)


def requests(made: Tier, work: Any) -> tuple[Any, Counter[str]]:
    """Return the result of a coroutine, and its requests by kind."""
    made.store.calls.clear()
    result = made.blocking.run(work)
    return result, Counter(name for name, _ in made.store.calls)


def test_a_trigger_without_news_costs_one_listing_for_each_stream_and_one_for_the_names(made: Tier) -> None:
    streams = known(made)
    mark = made.blocking.run(initial(streams))
    mark = made.blocking.run(latest(streams, mark, TailLimit(), None))

    again, asked = requests(made, latest(streams, mark, TailLimit(), None))

    assert again == mark
    assert asked == {"list": STREAMS + 1}


def test_a_trigger_of_named_streams_looks_for_parts_only_now_and_then(made: Tier) -> None:
    seconds = [0.0]
    streams = known(made, Env(monotonic=lambda: seconds[0]), streams="s00,s01")
    mark = made.blocking.run(initial(streams))

    _, asked = requests(made, latest(streams, mark, TailLimit(), None))
    seconds[0] += LOOK_SECONDS
    _, later = requests(made, latest(streams, mark, TailLimit(), None))

    assert asked == {"list": 2}
    assert later == {"list": 4}


def test_a_micro_batch_loads_no_manifest_again(made: Tier) -> None:
    streams = known(made)
    mark = made.blocking.run(initial(streams))
    end = made.blocking.run(latest(streams, mark, TailLimit(), None))

    planned, asked = requests(made, plan_between(streams, mark, end))

    assert sum(map(len, planned)) == STREAMS
    assert asked == {"list": STREAMS}


def test_an_earlier_part_costs_a_trigger_nothing(made: Tier) -> None:
    write(made.blocking, "orders", first_offset=0, records=6)
    begin(made.blocking, 2, first_offset=6, records=3)
    streams = known(made, stream="orders")
    mark = made.blocking.run(initial(streams))

    _, asked = requests(made, latest(streams, mark, TailLimit(), None))

    assert asked == {"list": 1}


def test_new_data_new_streams_and_deletions_are_found_at_the_next_trigger(made: Tier) -> None:
    streams = known(made, failOnDataLoss="false")
    mark = made.blocking.run(initial(streams))
    made.write("s00", [ledger_of(2, first_offset=3)])
    made.write("t", [ledger_of(1, first_offset=0)])
    made.blocking.run(delete_stream(made.blocking.offloader, "s01"))

    end = made.blocking.run(latest(streams, mark, TailLimit(), None))

    assert (end.places["s00"].offset, end.places["t"].offset) == (5, 1)
    assert "s01" not in end.places


def test_a_named_stream_that_is_deleted_is_an_error(made: Tier) -> None:
    streams = known(made, stream="s00")
    mark = made.blocking.run(initial(streams))
    made.blocking.run(delete_stream(made.blocking.offloader, "s00"))

    with pytest.raises(StreamDeleted, match=r"'s00' of .* was deleted"):
        made.blocking.run(latest(streams, mark, TailLimit(), None))


def test_a_look_that_failed_is_made_again(made: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the query would take its streams for deleted, or read none."""
    streams = known(made, stream="s00")

    async def refused(*_: object, **__: object) -> NoReturn:
        raise TryAgain("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(made.blocking.catalogue), "parts", refused)
        with pytest.raises(TryAgain):
            made.blocking.run(initial(streams))

    assert list(made.blocking.run(initial(streams)).places) == ["s00"]


def test_streams_are_asked_several_at_a_time_and_never_more(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(planning, "STREAMS_AT_ONCE", 4)
    running, most = 0, 0

    async def work(item: int) -> int:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running -= 1
        return item

    assert asyncio.run(each_of(work, range(20))) == [*range(20)]
    assert most == 4


def test_a_reader_keeps_its_tier_between_calls_and_never_sends_it(tmp_path: Path) -> None:
    """Spark may pickle a reader: an open tier has a thread, which no other process has."""
    with Blocking(str(tmp_path)) as opened:
        write(opened, "orders", first_offset=0, records=3)
    source = OffloadDataSource({"path": str(tmp_path)})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamingReader)
    start = reader.initialOffset()
    opened_first = reader._opened

    end = reader.latestOffset(start, ReadAllAvailable())
    sent = pickle.loads(pickle.dumps(reader))

    assert reader._opened is opened_first is not None
    assert sent._opened is None
    assert end["streams"]["orders"]["offset"] == 3
    reader.stop()
    assert reader._opened is None
