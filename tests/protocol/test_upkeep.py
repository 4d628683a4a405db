"""Tests of compacting and copying that are killed after every change and run again. All work is done once.

These are the steps "guests" and "replace" of the commit protocol. The stream is [0, 12), of ledgers 0 and 4,
in fragments of two records. Groups have two entries. So a compaction replaces two runs, and a copy has three
portions. A process that is stepped makes one request at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest
from protocol_sweep import Sweep
from protocol_world import STREAM, Crash, Ledger, Process, World

from offload import ObjectStoreOffloader, StreamWriter, TierOptions
from offload.store.memory import MemoryStore
from offload.upkeep.compact import stream as compacting
from offload.upkeep.compact.stream import compact
from offload.upkeep.copy import tier as copying
from offload.upkeep.copy.tier import copy

LEDGERS: Final = (Ledger(0, 4), Ledger(4, 12))


def _source() -> dict[str, bytes]:
    """Return the objects of a tier to copy from. They are made once, because a copy is of one incarnation."""
    objects: dict[str, bytes] = {}

    async def main() -> None:
        offloader = ObjectStoreOffloader(
            MemoryStore(objects=objects), options=TierOptions(fragment_size_bytes=1)
        )
        writer = await StreamWriter.claim(offloader, STREAM)
        await writer.offload(LEDGERS)

    asyncio.run(main())
    return objects


SOURCE: Final = _source()


async def compacted(process: Process) -> tuple[int, int]:
    """Compact. Return the number of replaced runs and of skipped runs."""
    [done] = [each async for each in compact(process.offloader, fragment_size_bytes=1 << 20)]
    assert done.error is None
    return done.runs, done.passed_over


async def copied(process: Process) -> tuple[int, int]:
    """Copy. Return the number of uploaded fragments and of those taken over."""
    source = ObjectStoreOffloader(MemoryStore(objects=SOURCE))
    [done] = [each async for each in copy(source, process.offloader, part_size_bytes=1, at_once=1)]
    assert done.error is None
    return done.fragments, done.taken_over


def to_compact(world: World) -> None:
    """Make a stream of small fragments for a compaction."""
    w0 = world.process("w0")
    world.run(w0.claim())
    world.run(w0.offload(*LEDGERS))


def nothing(world: World) -> None:
    """Make nothing, because a copy makes the tier."""


@dataclass(frozen=True)
class Upkeep:
    """A kind of upkeep, and its expected result."""

    prepare: Callable[[World], None]
    run: Callable[[Process], Coroutine[Any, Any, tuple[int, int]]]
    chunks_per_fragment: int
    fragments: int
    is_empty: bool

    def process(self, world: World, name: str) -> Process:
        return world.process(name, opened=False, chunks_per_fragment=self.chunks_per_fragment)


UPKEEP: Final = {
    "compact": Upkeep(to_compact, compacted, 100, fragments=4, is_empty=False),
    "copy": Upkeep(nothing, copied, 1, fragments=6, is_empty=True),
}


@pytest.fixture(autouse=True)
def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "RUNS_AT_ONCE", 1)
    monkeypatch.setattr(copying, "RUNS_PER_PORTION", 2)


@pytest.fixture(params=UPKEEP)
def upkeep(request: pytest.FixtureRequest) -> Upkeep:
    return UPKEEP[request.param]


@contextmanager
def world_for(upkeep: Upkeep) -> Iterator[World]:
    """Return a world in which the upkeep has work."""
    with World(empty=upkeep.is_empty) as world:
        upkeep.prepare(world)
        yield world


def changing(upkeep: Upkeep) -> list[int]:
    """Return the numbers of the requests that change an object, in an undisturbed upkeep.

    A kill between two of them leaves the same state as a kill right behind the first.
    """
    with world_for(upkeep) as world:
        process = upkeep.process(world, "undisturbed")
        world.run(upkeep.run(process))
        assert_done(world, upkeep)
        return [
            number
            for number, call in enumerate(process.store.calls, start=1)
            if call.operation in ("put", "create", "delete")
        ]


def assert_done(world: World, upkeep: Upkeep) -> None:
    """Assert that all data is committed once, and that a sweep deletes all garbage, also of late requests."""
    sweeper = world.process("sweeper", opened=False)
    world.run(Sweep(sweeper).run())
    for process in world.processes:
        world.run(process.store.land())
    world.run(Sweep(sweeper).run())
    world.check()
    assert (world.root.first_offset, world.root.next_offset) == (0, 12)
    assert world.root.running == frozenset()
    assert len(world.root.named) == upkeep.fragments
    world.check_nothing_is_left()


def test_upkeep_that_is_killed_after_any_change_is_completed_by_another_run(upkeep: Upkeep) -> None:
    for number in changing(upkeep):
        with world_for(upkeep) as world:
            killed = upkeep.process(world, "killed")
            killed.crash_after = number
            with pytest.raises(Crash):
                world.run(upkeep.run(killed))
            world.check()

            world.run(upkeep.run(upkeep.process(world, "again")))

            assert_done(world, upkeep)


def test_upkeep_that_runs_again_when_all_is_done_changes_nothing(upkeep: Upkeep) -> None:
    with world_for(upkeep) as world:
        world.run(upkeep.run(upkeep.process(world, "first")))
        before = dict(world.objects)

        assert world.run(upkeep.run(upkeep.process(world, "second"))) == (0, 0)

        assert dict(world.objects) == before


def test_one_of_two_upkeeps_at_a_time_gives_way(upkeep: Upkeep) -> None:
    """The second one does all the work before a change that the first one is about to make."""
    for number in changing(upkeep):
        with world_for(upkeep) as world:
            first = upkeep.process(world, "first").start(_whatever(upkeep, world))
            for _ in range(number - 1):
                first.step()
            world.run(upkeep.run(upkeep.process(world, "second")))

            first.finish()

            world.check()
            world.run(upkeep.run(upkeep.process(world, "third")))
            assert_done(world, upkeep)


async def _whatever(upkeep: Upkeep, world: World) -> None:
    """Run the upkeep, which may end with an error, because the other one does the work."""
    with suppress(AssertionError):
        await upkeep.run(world.processes[-1])
