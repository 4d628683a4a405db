"""Tests of reading by topic into columns: Arrow tables, and the plans and tasks of Spark."""

from __future__ import annotations

import asyncio
import json

import pytest
from kit.world import STREAM
from offload_spark.bounds import ScanBounds
from offload_spark.java_plans import reason_of_place
from offload_spark.planning import PlannedPart
from offload_spark.selecting import plan_selected
from replay_world import ReplayWorld
from spark.in_process import Tier

from offload import Blocking, Plugins
from offload.ground.errors import Misuse
from offload.opening.tables import ArrowStream, ArrowTier

TOPICS = ("a/1", "a/2", "b/1/x", "b/2/x", "c", "")


@pytest.fixture(scope="module")
def world() -> ReplayWorld:
    """A stream of three ledgers. The last of them is not indexed."""
    world = ReplayWorld()

    async def made() -> None:
        for number in range(3):
            world.append(*[topic for topic in TOPICS for _ in range(9)], f"only/{number}/x/y")
            world.seal()
            await world.sort()
            if number < 2:
                await world.index()

    asyncio.run(made())
    return world


def stream_of(world: ReplayWorld) -> ArrowStream:
    return ArrowTier.around(Blocking.around(world.tier, plugins=Plugins.find()))[STREAM]


@pytest.mark.parametrize("topic", ["a/+", ["b/#", "c"], "only/1/#", "#", "none"], ids=str)
def test_an_arrow_table_has_the_rows_whose_topic_matches(world: ReplayWorld, topic: str | list[str]) -> None:
    found = stream_of(world).to_arrow(decode="mqtt", topic=topic, columns=["offset", "key", "body"])

    origins = sorted(int(body) for body in found.column("body").to_pylist())
    assert origins == world.wanted([topic] if isinstance(topic, str) else topic)
    assert [world.log[int(body)].encode() for body in found.column("body").to_pylist()] == found.column(
        "key"
    ).to_pylist()


def test_an_arrow_table_by_topic_fetches_fragments_that_can_have_a_match_alone(world: ReplayWorld) -> None:
    stream = stream_of(world)
    world.fragments_read()

    rows = stream.to_arrow(decode="mqtt", topic="only/1/+/y", start=0, end=world.cuts[2]).num_rows
    read = {*world.fragments_read()}
    whole = stream.to_arrow(decode="mqtt", start=0, end=world.cuts[2]).num_rows

    assert (rows, whole) == (1, world.cuts[2])
    assert 0 < len(read) * 2 < len({*world.fragments_read()})


@pytest.mark.parametrize("how", [{}, {"decode": "amqp"}, {"decode": "mqtt", "filter": "a"}], ids=str)
def test_a_topic_without_a_decoder_that_knows_topics_is_a_misuse(
    world: ReplayWorld, how: dict[str, str]
) -> None:
    with pytest.raises(Misuse, match="topics"):
        stream_of(world).to_arrow(topic="a", **how)  # type: ignore[arg-type]


def planned(made: Tier, *topics: str, **given: str) -> list[list[PlannedPart]]:
    options = made.read_options(stream=STREAM, decode="mqtt", topic=json.dumps(topics), **given)
    return made.blocking.run(plan_selected(made.blocking.catalogue, options, ScanBounds()))


@pytest.mark.parametrize("topics", [["a/+"], ["b/#", "c"], ["only/1/#"], ["#"]], ids=str)
@pytest.mark.parametrize("size", ["1", "1000", "100000"])
def test_spark_reads_each_match_once_in_tasks_of_any_size(
    world: ReplayWorld, topics: list[str], size: str
) -> None:
    made = Tier(store=world.store)  # type: ignore[arg-type]  # its notes of requests are not used here
    how = {"stream": STREAM, "decode": "mqtt", "topic": json.dumps(topics), "maxpartitionbytes": size}

    found = [
        int(body)
        for parts in planned(made, *topics, maxpartitionbytes=size)
        for batch in made.read(parts, **how)
        for body in batch.column("body").to_pylist()
    ]

    assert sorted(found) == world.wanted(topics)


def test_only_fragments_that_can_have_a_match_get_a_task_of_spark(world: ReplayWorld) -> None:
    made = Tier(store=world.store)  # type: ignore[arg-type]  # as above
    parts = [part for parts in planned(made, "only/0/+/y") for part in parts]

    indexed = [part for part in parts if part.first < world.cuts[2]]

    fragments = sum(len(part.committed.entries) for part in indexed)
    whole = [part for parts in made.plan(stream=STREAM) for part in parts]
    assert 0 < fragments * 2 < sum(len(part.committed.entries) for part in whole)
    assert {part.until for part in parts} >= {world.cuts[3]}  # what is not indexed is read whole


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "a"}, "needs decode"),
        ({"topic": "a", "decode": "mqtt", "filter": "x"}, "takes neither"),
        ({"topic": '["a", 1]', "decode": "mqtt"}, "JSON list"),
    ],
)
def test_wrong_options_of_topics_are_refused(world: ReplayWorld, given: dict[str, str], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        Tier(store=world.store).read_options(**given)  # type: ignore[arg-type]  # as above


def test_the_java_reader_leaves_a_read_by_topic_to_python(world: ReplayWorld) -> None:
    made = Tier(store=world.store)  # type: ignore[arg-type]  # as above

    options = made.read_options(stream=STREAM, decode="mqtt", topic="a")

    assert reason_of_place(made.blocking, options) == "the option topic is given"
