"""Rivals: several writers believe that they hold one stream. The result is one history, without any loss."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import pytest

from offload.ground.errors import Conflict, Fenced, OutcomeUnknown, TryAgain
from offload_conformance.asynchronous import Run
from offload_conformance.protocol.base import ProtocolClauses
from offload_conformance.protocol.process import END, Process, ProcessWork
from offload_conformance.protocol.sweeps import swept
from offload_conformance.protocol.world import World, Worlds

RIVALS: Final = 3
STRIDES: Final = (1, 1, 2, 3, 5, 8)
"""The number of requests that a rival makes at a time: few enough to stall anywhere, enough to get on."""

TURNS_MAX: Final = 40

COURSES: Final = 6
"""The number of courses. In four, 2 of 24 seeds brought no two rivals to the same create; in six, none."""

INTERLEAVED_END: Final = 8


class RivalClauses(ProtocolClauses):
    """The clauses on rivals: a claim fences at every request, and requests of fenced writers do no harm."""

    def test_paused_writers_are_fenced(self, run: Run, new_world: Worlds) -> None:
        """A writer that pauses at any request while another takes over is fenced, and harms nothing."""

        async def course(number: int) -> None:
            world = new_world()
            paused, rival = world.process(), world.process()
            job = paused.begin(paused.copy(trimmed=0))
            await job.settled()
            for _ in range(number - 1):
                await job.step()
            await rival.copy(trimmed=0)
            with pytest.raises(Fenced):
                await job.finish()
            # A sweep deletes the paused writer's uploads. If a root named any of them, the check would fail.
            await swept(world)
            await world.check(first=0)

        async def scenario() -> None:
            for number in await pauses_of_a_copy(new_world()):
                await course(number)

        run(scenario())

    def test_rivals_make_one_history(self, run: Run, new_world: Worlds) -> None:
        """Writers that take the stream from each other at any request make one line of commits."""

        async def course() -> None:
            world = new_world()
            rivals = [world.process() for _ in range(RIVALS)]
            await interleaved(world, rivals)
            # Before anybody tidies up: each commit that a rival was promised must be in the one history.
            await world.check_told()
            # One rival finishes the copy alone, so that the end of every course is known.
            await rivals[0].copy(INTERLEAVED_END, trimmed=0)
            await world.history()
            await world.check(first=0, end=INTERLEAVED_END)

        async def scenario() -> None:
            for _ in range(COURSES):
                await course()

        run(scenario())


async def pauses_of_a_copy(world: World) -> list[int]:
    """Return the requests between a claim and the end of the copy for which the stream's holder matters."""
    process = world.process()
    await process.claim()
    claimed = len(process.store.calls)
    await process.copy_to(END)
    copied = len(process.store.calls)  # the last one reads back whether the commit took effect
    return [*(number for number in process.mutations if number > claimed), copied]


async def interleaved(world: World, rivals: list[Process]) -> None:
    """Let the rivals take turns until one has copied everything. Then let all of them end."""
    jobs = [rival.begin(life(rival)) for rival in rivals]
    for _ in range(TURNS_MAX):
        mover = world.random.randrange(len(rivals))
        for _ in range(world.random.choice(STRIDES)):
            # A random stride for the mover. If several stall before one create, they are let go together.
            await asyncio.gather(*(job.step() for job in at_once(jobs, jobs[mover])))
        if any(job.over and job.task.result() for job in jobs):
            break
        for number, job in enumerate(jobs):
            if job.over:  # it was fenced, and starts again
                jobs[number] = rivals[number].begin(life(rivals[number]))
    for job in jobs:
        await job.finish()


def at_once(jobs: list[ProcessWork], mover: ProcessWork) -> list[ProcessWork]:
    """Return the rival whose turn it is, and all that stall before the same create: so every race happens."""
    if mover.parked is None or mover.parked.operation != "create":
        return [mover]
    return [job for job in jobs if job.parked == mover.parked]


async def life(rival: Process) -> bool:
    """Claim the stream and copy it ledger by ledger until fenced. Return True if all of it is copied."""
    with suppress(Fenced, Conflict, TryAgain, OutcomeUnknown):
        await rival.claim()
        for end in range(2, INTERLEAVED_END + 1, 2):
            await rival.copy_to(end)
        return True
    return False
