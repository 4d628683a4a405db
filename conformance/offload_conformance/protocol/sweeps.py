"""Sweeps: what no commit can ever name goes, all of it, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from offload.contracts.capabilities import Capabilities
from offload.store.faults import MUTATIONS
from offload.store.wrap import StoreDecorator
from offload.upkeep.sweep.tier import sweep
from offload_conformance.asynchronous import Run
from offload_conformance.protocol.base import ProtocolClauses
from offload_conformance.protocol.process import END, Process, died
from offload_conformance.protocol.world import KEYS, World, Worlds, keys_of, named_by


class SweepClauses(ProtocolClauses):
    """What is there by other means, after a sweep, is what the newest root names."""

    def test_sweeps_take_only_garbage(self, run: Run, new_world: Worlds) -> None:
        """A sweep beside a writer, at any of its requests, takes garbage and nothing that will be named."""
        world = new_world()

        async def scenario() -> set[str]:
            await leave_garbage(world.process(), END)
            writer = world.process()
            job = writer.begin(writer.copy())
            await job.settled()
            while job.parked is not None:
                if job.parked.operation in MUTATIONS:
                    await swept(world)
                await job.step()
            await job.finish()
            await swept(world)
            return await named(world)

        expected = run(scenario())
        assert self._fragments_there(world) == expected

    def test_dead_sweeps_are_ended_by_the_next(self, run: Run, new_world: Worlds) -> None:
        """A sweep may die before any of its requests: the next one takes what is left, and nothing else."""
        world = new_world()

        async def scenario() -> set[str]:
            await leave_garbage(world.process(), 2 * END)
            await world.process().copy()
            change = 1
            while await dies_before_change(world.process(front=OneByOne), change):
                change += 1
            assert change > 1, "there was nothing to sweep"
            await swept(world)
            return await named(world)

        expected = run(scenario())
        assert self._fragments_there(world) == expected

    def _fragments_there(self, world: World) -> set[str]:
        """The fragments of a world that are really there, by other means than the store."""
        below = f"{world.folder}/"
        keys = {key.removeprefix(below) for key in self.keys_in_store() if key.startswith(below)}
        return {key for key in keys if key.startswith(KEYS.data)}


class OneByOne(StoreDecorator):
    """A store that deletes one key at a request."""

    @property
    def capabilities(self) -> Capabilities:
        """As the store's own, but for that."""
        return replace(self.inner.capabilities, delete_batch_max=1)


async def leave_garbage(process: Process, end: int) -> None:
    """Upload [0, end), and drop the attempt: nobody will ever name what is there."""
    attempt = await process.upload(end)
    await process.holder.abort([attempt])


async def swept(world: World) -> None:
    """Sweep everything that is condemned, as if no reader were left."""
    await sweep_by(world.process())


async def sweep_by(process: Process) -> None:
    """As `swept`, by this process."""
    report = await sweep(process.offloader, grace_seconds=0, env=process.env)
    assert [error for row in report.streams for error in row.errors] == []


async def named(world: World) -> set[str]:
    """The stream is whole, and these are its fragments."""
    manifest = await world.check()
    return keys_of(manifest, await named_by(world.process().offloader, manifest))


async def dies_before_change(process: Process, nth: int) -> bool:
    """Sweep up to the n-th request that changes something, and die there; False where there is none."""
    job = process.begin(sweep_by(process))
    await job.settled()
    while job.parked is not None:
        nth -= job.parked.operation in MUTATIONS
        if not nth:
            process.dies_before = len(process.store.calls)
            return await died(job.finish())
        await job.step()
    await job.finish()
    return False
