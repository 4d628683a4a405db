"""A reader of a disk and a tier while both change: every record once, and no splice of two histories."""

from __future__ import annotations

import asyncio

import pytest
from campaign import CAMPAIGN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from two_sides import World

from offload import Corrupt, Diverged, NotOffloaded, ReadPriority
from offload.two_sides.choice import ReadSide

Step = tuple[str, int]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 6)),
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("retain"), st.integers(1, 3)),
        st.tuples(st.just("copy"), st.just(0)),
        st.tuples(st.just("trim"), st.integers(0, 20)),
        st.tuples(st.just("compact"), st.just(0)),
        st.tuples(st.just("damage"), st.integers(0, 10)),
        st.tuples(st.just("gone"), st.just(0)),
        st.tuples(st.just("cut"), st.integers(1, 8)),
        st.tuples(st.just("wait"), st.integers(1, 3)),
        st.tuples(st.just("read"), st.integers(1, 6)),
        st.tuples(st.just("read"), st.integers(1, 6)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    min_size=4,
    max_size=40,
)


async def take(world: World, step: Step) -> None:
    """Change the world, or let the reader go on."""
    disk = world.disk
    match step:
        case "append", records:
            disk.append(records)
        case "roll", _:
            disk.roll()
        case "retain", segments:
            for _ in range(segments):
                disk.retain()
        case "copy", _:
            disk.is_gone = False
            await world.copy()
        case "trim", before:
            await world.trim(max(disk.first_offset + before - 10, 0))
        case "compact", _:
            await world.compact()
        case "damage", back:
            disk.damaged |= {max(disk.next_offset - back, 0)}
        case "gone", _:
            disk.is_gone = not disk.is_gone
        case "cut", records:
            disk.cut(disk.next_offset - records)
        case "wait", seconds:
            await world.turn(seconds)
        case "read", batches:
            await world.read(batches)
        case "reopen", _:
            await world.close()
            await world.open()


async def play(priority: ReadPriority, steps: list[Step], *, recuts: bool, by_chunks: bool) -> World:
    """Play the steps, and then let the reader go on until nothing more comes."""
    world = World(priority=priority, by_chunks=by_chunks)
    world.disk.recuts = recuts
    world.disk.append(3)
    await world.copy()
    await world.open()
    for step in steps:
        if recuts and step[0] in ("cut", "damage"):
            continue
        await take(world, step)
        if world.error is not None:
            break
    world.disk.is_gone = False
    while world.error is None and await world.read(1):
        pass
    await judge_the_end(world)
    await world.close()
    return world


async def judge_the_end(world: World) -> None:
    """Assert that the reader has reached the end, or that its error is true."""
    committed, sides, disk = await world.committed(), world.priority.sides, world.disk
    tier_end = 0 if committed is None else committed.next_offset
    is_one_history = tier_end <= disk.next_offset and (
        committed is None
        or max(committed.first_offset, disk.first_offset) >= tier_end
        or await world.on_tier(tier_end - 1, tier_end) == disk.bodies[tier_end - 1 : tier_end]
    )
    match world.error:
        case Diverged():
            lost = any(
                offset >= disk.first_offset and disk.bodies[offset : offset + 1] != [body]
                for offset, body in world.delivered
            )
            assert not is_one_history or lost, "there is one history"
            return
        case Corrupt():
            assert disk.damaged, world.error
            return
        case NotOffloaded():
            end = disk.next_offset if ReadSide.TIER not in sides else max(disk.next_offset, tier_end)
            assert world.place > end, world.error
            return
        case None:
            ends = (
                [disk.next_offset]
                if ReadSide.LOCAL in sides and (is_one_history or sides == (ReadSide.LOCAL,))
                else []
            )
            ends += [tier_end] if ReadSide.TIER in sides else []
            assert world.place == max(ends), f"the reader is at {world.place}, and the ends are {ends}"
        case error:
            raise error


@pytest.mark.parametrize("priority", ReadPriority)
@settings(
    max_examples=1500 if CAMPAIGN else 6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(steps=STEPS, by_chunks=st.booleans())
def test_no_course_of_events_splices_repeats_or_leaves_out_a_record(
    priority: ReadPriority, steps: list[Step], by_chunks: bool
) -> None:
    asyncio.run(play(priority, steps, recuts=False, by_chunks=by_chunks))


@pytest.mark.parametrize("priority", [ReadPriority.LOCAL_FIRST, ReadPriority.TIER_FIRST])
@settings(max_examples=1500 if CAMPAIGN else 6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, by_chunks=st.booleans())
def test_sides_that_cut_their_chunks_elsewhere_are_read_as_one(
    priority: ReadPriority, steps: list[Step], by_chunks: bool
) -> None:
    asyncio.run(play(priority, steps, recuts=True, by_chunks=by_chunks))
