"""The rules of index objects, each with a replay that shows the harm if the rule is taken out.

`mutants.indexes` has the rules and the ways to take them out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import pytest
from index_world import BY, KEYS, IndexWorld, Keyed, make_small, run
from kit.world import STREAM
from mutants import INDEXES

from offload import RootsLost, StreamReader
from offload.ground.errors import OffloadError
from offload.index import build
from offload.index.find import FindReport
from offload.index.objects import IndexObject, check_index
from offload.index.rules import judged, uncovered
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.retention import delete_stream
from offload.upkeep.sweep.tier import sweep


async def check(world: IndexWorld, *terms: str) -> FindReport:
    """Compare finds with the records, and return what the last one read."""
    report = FindReport()
    for term in terms:
        report = FindReport()
        assert await world.find(term, report=report) == await world.having(term)
    return report


async def check_whole(world: IndexWorld) -> None:
    """Check that everything is indexed, by sound objects."""
    manifest = await world.tier().load_manifest(STREAM)
    used = judged(world.names, manifest).used
    assert uncovered(used, manifest.first_offset, manifest.next_offset) == []
    for name in used:
        key = KEYS.index(name)
        await check_index(IndexObject(world.store.inner, STREAM, name, len(world.objects[key])))


async def begun_again(world: IndexWorld) -> None:
    await world.append([["a"], ["b"]])
    await world.index()
    await delete_stream(world.others(), STREAM)
    await world.append([["b"], ["a"]])

    await check(world, "a", "b")


async def _back_in_time(world: IndexWorld) -> None:
    """The tier goes back to an earlier state, but its index objects stay: a replica that lags has such."""
    await world.append([["a"]])
    before = {*world.objects}
    for _ in range(3):
        await world.append([["b"]])
    await world.index()
    for key in {*world.objects} - before:
        if "/index/" not in key:
            del world.objects[key]


async def rebuilt(world: IndexWorld) -> None:
    await _back_in_time(world)
    report = await rebuild(world.others(), STREAM, env=world.env())
    assert report.manifest is not None
    await world.append([["c"], ["d"], ["e"]])

    await check(world, "c", "d", "e")


async def roots_lost(world: IndexWorld) -> None:
    await _back_in_time(world)
    indexes = world.indexes

    with pytest.raises(RootsLost):
        await world.index()
    report = await sweep(world.store.inner, grace_seconds=0, env=world.env())
    assert [type(error) for each in report.streams for error in each.errors] == [RootsLost]
    assert world.indexes == indexes


async def beside(
    world: IndexWorld, work: Awaitable[object], other: Callable[[], Awaitable[object]], *, before: str
) -> None:
    """Await `work`, and do something else before its first request of a kind: its operation and key."""

    async def hook(operation: str, key: str) -> None:
        if f"{operation} {key}".startswith(before):
            world.store.before = _nothing
            await other()

    world.store.before = hook
    await work
    assert world.store.before is _nothing


async def _nothing(operation: str, key: str) -> None:
    """Do nothing."""


async def another_commits_meanwhile(world: IndexWorld) -> None:
    await world.append([["a"]])

    async def other() -> None:
        await world.append([["b"]])
        await world.index()

    await beside(world, world.index(), other, before=f"list {KEYS.indexes}")

    await check_whole(world)


async def two_at_once(world: IndexWorld) -> None:
    await world.append([["a"], ["b"]])
    await beside(world, world.index(), world.index, before=f"put {KEYS.indexes}")

    assert len(world.indexes) == 1
    await check_whole(world)
    await check(world, "a", "b")


async def damaged(world: IndexWorld) -> None:
    await world.append([["a"], ["b"], ["a", "b"]])
    await world.index()
    for position in range(len(world.objects[world.indexes[0]])):
        world.flip(world.indexes[0], position)
        await check(world, "a", "b")
        world.flip(world.indexes[0], position)


async def gone(world: IndexWorld) -> None:
    for _ in range(3):
        await world.append([["a"]])
    await build_apart(world)
    await beside(world, check(world, "a"), world.index, before=f"get {KEYS.indexes}")


async def build_apart(world: IndexWorld) -> None:
    """Index each fragment by itself, and merge nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offload.index.job.merges", lambda used: [])
        patch.setattr(build, "BUILT_RECORDS_MAX", 1)
        await world.index()


async def same_hash(world: IndexWorld) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("xxhash.xxh64_intdigest", lambda value: 7)
        await world.append([["a"], ["b"]])
        await world.index()
        await check(world, "a", "b")


async def under_another_key(world: IndexWorld) -> None:
    await world.append([["a"]])
    await world.append([["b"]])
    await build_apart(world)
    first, second = world.indexes
    world.objects[second] = world.objects[first]

    await check(world, "a", "b")


async def a_hole(world: IndexWorld) -> None:
    for letter in "abcd":
        await world.append([[letter]])
    await build_apart(world)
    del world.objects[world.indexes[1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offload.index.job.uncovered", lambda used, first, following: [])
        await world.index()

    await check(world, "a", "b", "c", "d")


async def merged(world: IndexWorld) -> None:
    for _ in range(9):
        await world.append([["a", "b"], ["b", "c"], ["c"]])
        await world.index()
    assert len(world.indexes) < 9

    await check_whole(world)
    report = await check(world, "a", "b", "c")
    assert report.scanned == 0


async def overlapping(world: IndexWorld) -> None:
    """One process saw less than another one: their objects overlap."""
    await world.append([["a"], ["b"], ["c"], ["a"]])
    for first, following in ((0, 2), (1, 3), (2, 4)):
        await build_exactly(world, first, following)
    await world.index()

    assert len(world.indexes) == 1
    await check_whole(world)
    await check(world, "a", "b", "c")


async def build_exactly(world: IndexWorld, begin: int, end: int) -> None:
    """Store one object of these offsets, whatever others cover."""
    tier = world.tier()
    reader = await StreamReader.open(tier, STREAM)
    work = build.build_range(tier.store, reader, BY, Keyed(), begin=begin, end=end, env=world.env())
    async with aclosing(work) as built:
        assert [each.name[1:3] async for each in built] == [(begin, end)]


REPLAYS: Final = {
    "index: of any life": begun_again,
    "index: of any time": rebuilt,
    "index: numbers of indexes do not count": rebuilt,
    "index: above the root is nothing": roots_lost,
    "index: root before listing": another_commits_meanwhile,
    "index: equal ones go": two_at_once,
    "find: damaged has nothing": damaged,
    "find: gone has nothing": gone,
    "find: every hit": same_hash,
    "find: another key": under_another_key,
    "merge: across a hole": a_hole,
    "merge: offsets stay": merged,
    "merge: overlaps twice": overlapping,
    "merge: later inputs first": merged,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.mark.parametrize("replay", {*REPLAYS.values()}, ids=lambda each: each.__name__)
def test_a_replay_shows_no_harm_with_all_rules(replay: Callable[[IndexWorld], Awaitable[None]]) -> None:
    run(replay(IndexWorld()))


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_a_replay_finds_each_mutant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    INDEXES[name].take_out(monkeypatch)

    with pytest.raises((AssertionError, OffloadError, pytest.fail.Exception)):
        run(REPLAYS[name](IndexWorld()))


def test_every_mutant_has_a_replay() -> None:
    assert REPLAYS.keys() == INDEXES.keys()
