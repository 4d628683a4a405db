"""Tests of replays by topic, against a loop over the log, and of the claims that EMQX makes for its own."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any

import numpy as np
import pytest
from kit.world import STREAM
from offload_mqtt.iterators import HistoryTrimmed, ReplayIterator, ReplayUnit
from offload_mqtt.reading import ReplayMessage
from replay_world import ReplayWorld, all_of, time_us

from offload import AtOffset, AtTime
from offload.ground.errors import Misuse, StreamDeleted
from offload.model.position import AtEdge
from offload.upkeep.retention import delete_stream

TOPICS = (
    "",
    "a",
    "a/",
    "/a",
    "a//b",
    "a/1",
    "a/2",
    "b/1/x",
    "b/2/x",
    "b/2/y",
    "$SYS/a",
    "$SYS/b/x",
    "c" * 200 + "/1",
)
FILTERS = (
    ["#"],
    ["+"],
    ["a/#"],
    ["+/+"],
    ["b/+/x"],
    ["b/2/#"],
    ["$SYS/#"],
    ["+/1", "a/+", "b/#"],
    ["none"],
    ["c" * 200 + "/+"],
)


async def sorted_world(seed: int = 0, *, ledgers: int = 3, messages: int = 60) -> ReplayWorld:
    """Return a world with some sorted and indexed ledgers, each with its own choice of topics."""
    random, world = Random(seed), ReplayWorld()
    for _ in range(ledgers):
        chosen = random.sample(TOPICS, k=random.randint(3, len(TOPICS)))
        world.append(*random.choices(chosen, k=messages))
        world.seal()
        await world.sort()
    await world.index()
    return world


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def replayed(
    world: ReplayWorld, filters: list[str], since: Any = AtEdge.FIRST, **how: Any
) -> list[ReplayMessage]:
    replay = world.replay(joined=False)
    return (await all_of(replay, await replay.iterator(filters, since, **how)))[0]


def origins(messages: list[ReplayMessage]) -> list[int]:
    return sorted(each.origin for each in messages)


@pytest.mark.parametrize("filters", FILTERS, ids=" ".join)
def test_a_replay_has_each_match_once_with_and_without_indexes(filters: list[str]) -> None:
    async def main() -> None:
        world = await sorted_world()
        world.requests()

        found = await replayed(world, filters)
        with_indexes = world.requests().total()
        world.lose_indexes()
        scanned = await replayed(world, filters)

        assert origins(found) == world.wanted(filters)
        assert found == scanned
        assert [each.topic.decode() for each in found] == [world.log[each.origin] for each in found]
        assert [each.time_us for each in found] == [time_us(each.origin) for each in found]
        assert with_indexes < world.requests().total() or filters in (["#"], ["+/+"])

    run(main())


def test_ledgers_come_in_order_and_each_topic_in_the_order_of_publishing() -> None:
    """EMQX, section 2: generations strictly in order. Section 3: a FIFO for each topic."""

    async def main() -> None:
        world = await sorted_world(1)

        found = await replayed(world, ["#", "$SYS/#"])

        ledgers = [int(np.searchsorted(world.cuts, each.origin, side="right")) for each in found]
        assert ledgers == sorted(ledgers)
        for topic in TOPICS:
            of_topic = [each.origin for each in found if each.topic == topic.encode()]
            assert of_topic == sorted(of_topic)

    run(main())


def test_a_start_at_the_time_or_offset_of_a_message_includes_it() -> None:
    """EMQX, section 9: older generations are not read."""

    async def main() -> None:
        world = await sorted_world(2)
        for origin in range(0, len(world.log), 31):
            at_time = await replayed(world, ["#"], AtTime(time_us(origin) // 1000))
            at_offset = await replayed(world, ["#"], AtOffset(origin))

            wanted = world.wanted(["#"])
            assert origins(at_time) == [at for at in wanted if time_us(at) // 1000 >= time_us(origin) // 1000]
            assert origins(at_offset) == [at for at in wanted if at >= origin]
        world.requests()
        await replayed(world, ["#"], AtOffset(world.cuts[-2]))
        assert len({*world.fragments_read()}) < len(world.data) / 2
        assert await replayed(world, ["#"], AtEdge.NEXT) == []

    run(main())


def test_an_iterator_continues_after_a_restart_at_every_message() -> None:
    async def main() -> None:
        world = await sorted_world(3, ledgers=2, messages=30)
        filters = ["a/#", "b/+/x"]
        replay = world.replay(joined=False)
        whole, _ = await all_of(replay, iterator := await replay.iterator(filters))
        for number in range(len(whole)):
            rest, _ = await all_of(world.replay(joined=False), iterator)
            answer = await replay.next(iterator, 1)
            moved, _ = await all_of(world.replay(joined=False), replay.move(iterator, whole[number]))

            assert rest == whole[number:]
            assert moved == whole[number + 1 :]
            iterator = answer.iterator
        await replay.aclose()

    run(main())


def test_empty_means_nothing_now_and_the_same_iterator_gets_later_ledgers() -> None:
    """EMQX, section 2: an empty list is no end. New streams appear at any time."""

    async def main() -> None:
        world = await sorted_world(4)
        replay = world.replay(joined=False)
        _, iterator = await all_of(replay, await replay.iterator(["#"]))
        world.append("new/topic", "a/1", "new/topic")
        world.seal()
        await world.sort()
        await world.index()

        later, _ = await all_of(replay, iterator)

        assert origins(later) == [180, 181, 182]
        assert 180 in {each.ledger for each in await replay.streams(["new/#"])}

    run(main())


def test_streams_are_only_those_whose_structures_match() -> None:
    """EMQX, section 2: get_streams has only streams that were created for matching structures."""

    async def main() -> None:
        world = ReplayWorld()
        for topics in (["a/b", "a/b/c"], ["a/b"], ["x"]):
            world.append(*topics * 9)
            world.seal()
            await world.sort()
        await world.index()
        replay = world.replay(joined=False)

        units = await replay.streams(["a/+"])

        assert [(each.ledger, each.structure) for each in units] == [(0, 1), (18, 1)]
        assert await replay.streams(["+/+/+/+"]) == []

    run(main())


@pytest.mark.parametrize("chunks_max", [None, 1, 2])
@pytest.mark.parametrize("filters", [["#"], ["a/+", "b/2/#"], ["$SYS/#"]], ids=" ".join)
def test_units_share_messages_without_loss_and_keep_each_topic_of_a_ledger_whole(
    filters: list[str], chunks_max: int | None
) -> None:
    """EMQX, section 11: the unit of sharing is a stream. A topic of a ledger has one reader."""

    async def main() -> None:
        world = await sorted_world(5, ledgers=2, messages=60)
        replay = world.replay(joined=False)
        units = await replay.streams(filters, chunks_max=chunks_max)
        world.lose_indexes()  # also without them a unit has the same messages

        found = list[ReplayMessage]()
        places = dict[tuple[int, bytes], ReplayUnit]()
        for unit in units:
            of_unit, end = await all_of(replay, iterator := await replay.iterator(filters, unit=unit))
            for each in of_unit:
                assert places.setdefault((unit.ledger, each.topic), unit) == unit
            for number in range(0, len(of_unit), 7):
                rest, _ = await all_of(world.replay(joined=False), replay.move(iterator, of_unit[number]))
                assert rest == of_unit[number + 1 :]
            found += of_unit
            is_newest = unit.ledger == world.cuts[-2]
            assert (await replay.next(end, 1)).is_end is not is_newest

        assert origins(found) == world.wanted(filters)
        assert len(units) > 3 or filters == ["$SYS/#"]

    run(main())


@pytest.mark.parametrize("filters", [["a/+", "+"], ["+/+/+", "a"], ["a/+/2", "a", "a/1"]], ids=" ".join)
def test_units_of_several_filters_have_all_matches_in_any_order_of_the_filters(filters: list[str]) -> None:
    """The first filter here matches topics of a later structure than another one does."""

    async def main() -> None:
        world, found = ReplayWorld(), list[ReplayMessage]()
        world.append(*["a"] * 20, *["a/1"] * 20, *["a/1/2"] * 20)
        world.seal()
        await world.sort()
        await world.index()
        replay = world.replay(joined=False)

        for unit in await replay.streams(filters):
            found += (await all_of(replay, await replay.iterator(filters, unit=unit)))[0]

        assert origins(found) == world.wanted(filters)

    run(main())


def test_an_end_is_that_of_a_ledger_which_another_follows() -> None:
    """EMQX, section 2: the end of a stream is only that of a generation which is not the current one."""

    async def main() -> None:
        world = await sorted_world(6, ledgers=1)
        replay = world.replay(joined=False)
        unit = (await replay.streams(["a/1"]))[0]
        _, iterator = await all_of(replay, await replay.iterator(["a/1"], unit=unit))
        before = await replay.next(iterator, 1)
        world.append("z")
        world.seal()
        await world.sort()

        after = await replay.next(iterator, 1)

        assert (before.is_end, after.is_end) == (False, True)

    run(main())


def test_an_iterator_of_trimmed_data_says_where_history_begins_and_goes_on_there() -> None:
    """EMQX, section 9: replayers on a dropped generation get an error that lasts, and go on with the next."""

    async def main() -> None:
        world = await sorted_world(7)
        replay = world.replay(joined=False)
        iterator = await replay.iterator(["#"])
        await world.trim(world.cuts[1])

        for _ in range(2):
            with pytest.raises(HistoryTrimmed, match=f"history begins at {world.cuts[1]}") as gone:
                await replay.next(iterator, 10)
        rest, _ = await all_of(replay, gone.value.iterator)

        assert origins(rest) == [at for at in world.wanted(["#"]) if at >= world.cuts[1]]
        assert origins(await replayed(world, ["#"])) == origins(rest)

    run(main())


def test_an_iterator_that_was_cut_or_edited_is_a_misuse() -> None:
    async def main() -> None:
        world = await sorted_world(8, ledgers=1)
        replay = world.replay(joined=False)
        iterator = await replay.iterator(["a/+"])
        edited = [iterator[:at] for at in range(len(iterator))]
        edited += [
            iterator[:at] + other + iterator[at + 1 :]
            for at in range(len(iterator))
            for other in "A_z\u00e9"
            if other != iterator[at]
        ]
        for text in (*edited, iterator + "A", iterator + "=", "m1." + "A" * 2**21, ""):
            with pytest.raises(Misuse):
                await replay.next(text, 1)

    run(main())


def forged(**fields: Any) -> str:
    """Return an iterator that somebody made, with the right checksum."""
    known = {"stream": STREAM, "incarnation": "", "filters": ("#",), "part": 1, "offset": 0}
    return str(ReplayIterator(**{**known, **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "other"},
        {"offset": 10**9},
        {"filters": ()},
        {"filters": ("a/#/b",)},
        {"filters": ("#",) * 1025},
        {"part": -1},
        {"offset": 2**63},
        {"origin": "0"},
        {"since_us": 2**62},
        {"unit": ReplayUnit(1, 0, -1, 0, 0, 1)},
    ],
    ids=str,
)
def test_a_forged_iterator_is_a_misuse(fields: dict[str, Any]) -> None:
    async def main() -> None:
        replay = (await sorted_world(9, ledgers=1)).replay(joined=False)

        with pytest.raises(Misuse):
            await replay.next(forged(**fields), 1)

    run(main())


def test_an_iterator_of_a_stream_that_was_begun_again_is_refused() -> None:
    async def main() -> None:
        world = await sorted_world(10, ledgers=1)
        iterator = await world.replay(joined=False).iterator(["#"])
        await delete_stream(world.others(), STREAM)
        world.sorted_end = 0
        await world.sort()

        with pytest.raises(StreamDeleted):
            await world.replay(joined=False).next(iterator, 1)

    run(main())


@pytest.mark.parametrize("filters", [[], ["a/#/b"], [""]])
def test_a_replay_without_a_sound_filter_is_a_misuse(filters: list[str]) -> None:
    async def main() -> None:
        replay = (await sorted_world(11, ledgers=1)).replay(joined=False)

        with pytest.raises(Misuse):
            await replay.iterator(filters)

    run(main())


def test_an_index_object_that_is_cut_anywhere_costs_time_and_no_message() -> None:
    async def main() -> None:
        world = await sorted_world(12, ledgers=1)
        [key] = [each for each in world.objects if "/index/" in each]
        sound = world.objects[key]
        wanted = await replayed(world, ["a/#"])
        for size in range(0, len(sound), 9):
            world.objects[key] = sound[:size]
            replay = world.replay(joined=False)

            assert (await all_of(replay, await replay.iterator(["a/#"])))[0] == wanted
            assert len(replay.report.damages) > 0

    run(main())


def test_a_record_of_another_format_is_left_out() -> None:
    async def main() -> None:
        world = ReplayWorld()
        world.append("a", "b")
        record = world.record
        for strange in (b"", b"x", record(0)[:19], record(0)[:20], b"\xff" * 40):
            world.record = lambda origin, strange=strange: strange if origin == 0 else record(origin)  # type: ignore[method-assign, misc]
            world.seal()
            await world.sort()

            assert [each.topic for each in await replayed(world, ["#"])] == [b"b"]
            await delete_stream(world.others(), STREAM)
            world.sorted_end = 0

    run(main())
