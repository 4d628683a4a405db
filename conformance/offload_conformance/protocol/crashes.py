"""Crashes: a writer ends anywhere, and the next one goes on from what it left."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from fnmatch import fnmatchcase

from offload.contracts.store import Body
from offload_conformance.asynchronous import Run
from offload_conformance.protocol.base import ProtocolClauses
from offload_conformance.protocol.process import END, OPTIONS, Crash, Process, died
from offload_conformance.protocol.world import KEYS, World, Worlds


class CrashClauses(ProtocolClauses):
    """Whatever a crash leaves, nothing that was committed is lost, and the job is ended by another."""

    def test_crashes_lose_nothing(self, run: Run, new_world: Worlds) -> None:
        """A writer may die before any of its requests: what it committed stays, and another ends the job."""

        async def course(number: int) -> None:
            world = new_world()
            dead, successor = world.process(), world.process()
            await world.crashed(dead, before=number)
            await ended_by(successor, dead, world)

        async def scenario() -> None:
            for number in await changes_of_a_copy(new_world()):
                await course(number)

        run(scenario())

    def test_cancelled_requests_lose_nothing(self, run: Run, new_world: Worlds) -> None:
        """A writer may be cancelled in the midst of any request that changes something, as by a crash."""

        async def course(number: int) -> None:
            world = new_world()
            dead, successor = world.process(), world.process()
            job = dead.begin(dead.copy())
            await job.settled()
            for _ in range(number - 1):
                await job.step()
            await job.cancel(turns=world.random.randrange(1, 8))
            await ended_by(successor, dead, world)

        async def scenario() -> None:
            for number in await changes_of_a_copy(new_world()):
                await course(number)

        run(scenario())

    def test_whole_leftovers_are_adopted(self, run: Run, new_world: Worlds) -> None:
        """What a crash left whole, up to the first hole, the next writer commits and does not copy again."""

        async def scenario() -> None:
            world = new_world()
            dead = world.process(options=replace(OPTIONS, uploads_max=4))
            await dies_without(dead, missing=4, end=8)
            successor = world.process()
            writer = await successor.claim()
            assert writer.manifest.next_offset == 4, "two fragments are whole, and the third is missing"
            await successor.copy_to(8)
            puts = [call.key for call in successor.store.calls if call.operation == "put"]
            assert [KEYS.parse_fragment(key) is not None for key in puts] == [True, True]
            await world.check(first=0, end=8)

        run(scenario())

    def test_damaged_leftovers_are_not_adopted(self, run: Run, new_world: Worlds) -> None:
        """Of what a crash left nothing is committed that does not hold, byte for byte."""

        async def scenario() -> None:
            world = new_world()
            dead, successor = world.process(), world.process()
            await dead.upload(END)
            store = world.client()
            [_, key] = sorted(await world.fragments())
            raw = await store.get(key)
            await store.put(key, Body.of(raw[:20] + bytes([raw[20] ^ 1]) + raw[21:]))

            writer = await successor.claim()

            assert writer.manifest.next_offset == 2
            await successor.copy()
            await world.check()

        run(scenario())


async def changes_of_a_copy(world: World) -> list[int]:
    """Which requests of a job that nobody disturbs would change something."""
    process = world.process()
    await process.copy()
    await world.check()
    return process.mutations


async def ended_by(successor: Process, dead: Process, world: World) -> None:
    """Another takes over, finds what the dead was told is committed, and ends its job."""
    told = 0 if dead.writer is None else dead.writer.manifest.next_offset
    writer = await successor.claim()
    assert writer.manifest.next_offset >= told, "what was committed is lost"
    await successor.copy()
    await world.check()


async def dies_without(process: Process, *, missing: int, end: int) -> None:
    """Upload the fragments of [0, end) at once; die when all are there but the one at `missing`."""
    landed, all_landed = 0, asyncio.Event()

    async def before(operation: str, key: str) -> None:
        if fnmatchcase(key, f"{KEYS.data}{missing:020d}.*"):
            await all_landed.wait()
            raise Crash

    async def after(operation: str, key: str) -> None:
        nonlocal landed
        landed += operation == "put"
        if landed == end // 2 - 1:
            all_landed.set()

    process.store.before, process.store.after = before, after
    assert await died(process.upload(end))
