"""Crashes: a writer may end anywhere, and the next one continues from what it left.

Each clause first counts the requests of an undisturbed copy, then runs one course of events for each of
them. So a crash is tried before every request, and the count follows the implementation by itself.
"""

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
    """The clauses on crashes: nothing committed is lost, and another writer finishes the job."""

    def test_crashes_lose_nothing(self, run: Run, new_world: Worlds) -> None:
        """If a writer dies at any of its requests, its commits stay and another finishes its job."""

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
        """If a writer is cancelled within any request that changes something, nothing committed is lost."""

        async def course(number: int) -> None:
            # A world for each course: what one crash leaves must not help or hinder the next course.
            world = new_world()
            dead, successor = world.process(), world.process()
            job = dead.begin(dead.copy())
            await job.settled()
            for _ in range(number - 1):
                await job.step()
            # A few turns into the request: the store may have applied it, or not, or half of it.
            await job.cancel(turns=world.random.randrange(1, 8))
            await ended_by(successor, dead, world)

        async def scenario() -> None:
            for number in await changes_of_a_copy(new_world()):
                await course(number)

        run(scenario())

    def test_whole_leftovers_are_adopted(self, run: Run, new_world: Worlds) -> None:
        """The next writer commits whole fragments of a crash, up to the first hole, and copies none again."""

        async def scenario() -> None:
            world = new_world()
            dead = world.process(options=replace(OPTIONS, uploads_max=4))
            await dies_without(dead, missing=4, end=8)
            successor = world.process()
            writer = await successor.claim()
            assert writer.manifest.next_offset == 4, "expected two adopted fragments"
            await successor.copy_to(8)
            # Two puts for the offsets from 4 on: adopted fragments were not uploaded a second time.
            puts = [call.key for call in successor.store.calls if call.operation == "put"]
            assert [KEYS.parse_fragment(key) is not None for key in puts] == [True, True]
            await world.check(first=0, end=8)

        run(scenario())

    def test_damaged_leftovers_are_not_adopted(self, run: Run, new_world: Worlds) -> None:
        """The next writer commits no damaged fragment of a crash."""

        async def scenario() -> None:
            world = new_world()
            dead, successor = world.process(), world.process()
            await dead.upload(END)
            store = world.client()
            # The second of two fragments: the sound one before it must still be adopted.
            [_, key] = sorted(await world.fragments())
            raw = bytes(await store.get(key))
            await store.put(key, Body.of(raw[:20] + bytes([raw[20] ^ 1]) + raw[21:]))

            writer = await successor.claim()

            assert writer.manifest.next_offset == 2
            await successor.copy()
            await world.check()

        run(scenario())


async def changes_of_a_copy(world: World) -> list[int]:
    """Return the numbers of those requests of an undisturbed job that change something."""
    process = world.process()
    await process.copy()
    await world.check()
    return process.mutations


async def ended_by(successor: Process, dead: Process, world: World) -> None:
    """Let another process take over, find everything whose commit the dead one knew, and finish the job."""
    known = 0 if dead.writer is None else dead.writer.manifest.next_offset
    writer = await successor.claim()
    # More than that is fine: the dead process may have committed without hearing the reply.
    assert writer.manifest.next_offset >= known, "committed offsets are lost"
    await successor.copy()
    await world.check()


async def dies_without(process: Process, *, missing: int, end: int) -> None:
    """Upload the fragments of [0, end) at once. Die when all are stored except the one at `missing`."""
    landed, all_landed = 0, asyncio.Event()

    async def before(operation: str, key: str) -> None:
        if fnmatchcase(key, f"{KEYS.data}{missing:020d}.*"):
            # The death waits until all other uploads are stored, so that the hole is the only thing missing.
            await all_landed.wait()
            raise Crash

    async def after(operation: str, key: str) -> None:
        nonlocal landed
        landed += operation == "put"
        if landed == end // 2 - 1:
            all_landed.set()

    process.store.before, process.store.after = before, after
    assert await died(process.upload(end))
