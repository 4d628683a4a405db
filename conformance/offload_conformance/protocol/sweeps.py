"""Sweeps: they delete every object that no commit can name, and no other."""

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
    """The clauses on sweeps: afterwards, exactly the fragments that the newest root names are stored."""

    def test_sweeps_take_only_garbage(self, run: Run, new_world: Worlds) -> None:
        """A sweep beside a writer, at any of its requests, deletes garbage and nothing that will be named."""
        world = new_world()

        async def scenario() -> set[str]:
            await leave_garbage(world.process(), END)
            writer = world.process()
            job = writer.begin(writer.copy())
            await job.settled()
            while job.parked is not None:
                # Between the decision of the writer and its effect: a sweep could do harm here.
                if job.parked.operation in MUTATIONS:
                    await swept(world)
                await job.step()
            await job.finish()
            await swept(world)
            return await named(world)

        # Looked up past the store: a store that hides garbage from listings would seem to be swept.
        expected = run(scenario())
        assert self._fragments_there(world) == expected

    def test_dead_sweeps_are_ended_by_the_next(self, run: Run, new_world: Worlds) -> None:
        """If a sweep dies at any of its requests, the next one deletes what is left, and nothing else."""
        world = new_world()

        async def scenario() -> set[str]:
            await leave_garbage(world.process(), 2 * END)
            await world.process().copy()
            change = 1
            # Each sweep gets one change further than the one before it, until one reaches its end.
            while await dies_before_change(world.process(front=OneByOne), change):
                change += 1
            assert change > 1, "expected garbage; found nothing to sweep"
            await swept(world)
            return await named(world)

        expected = run(scenario())
        assert self._fragments_there(world) == expected

    def _fragments_there(self, world: World) -> set[str]:
        """Return the fragments of a world that are really stored, found by other means than the store."""
        below = f"{world.folder}/"
        keys = {key.removeprefix(below) for key in self.keys_in_store() if key.startswith(below)}
        return {key for key in keys if key.startswith(KEYS.data)}


class OneByOne(StoreDecorator):
    """A store that deletes one key per request, so that a sweep can die between any two deletions."""

    @property
    def capabilities(self) -> Capabilities:
        """Return the store's own capabilities, but with batches of one key."""
        return replace(self.inner.capabilities, delete_batch_max=1)


async def leave_garbage(process: Process, end: int) -> None:
    """Upload [0, end) and drop the attempt, so that nobody will ever name its fragments."""
    attempt = await process.upload(end)
    await process.holder.abort([attempt])


async def swept(world: World) -> None:
    """Sweep everything that is condemned, without a grace period for readers."""
    await sweep_by(world.process())


async def sweep_by(process: Process) -> None:
    """Do the same as `swept`, by this process."""
    report = await sweep(process.offloader, grace_seconds=0, env=process.env)
    assert [error for row in report.streams for error in row.errors] == []


async def named(world: World) -> set[str]:
    """Assert that the stream is whole, and return the keys of its fragments."""
    manifest = await world.check()
    return keys_of(manifest, await named_by(world.process().offloader, manifest))


async def dies_before_change(process: Process, nth: int) -> bool:
    """Sweep up to the n-th request that changes something, and die there. Return False if there is none."""
    job = process.begin(sweep_by(process))
    await job.settled()
    while job.parked is not None:
        nth -= job.parked.operation in MUTATIONS
        if not nth:
            # The parked request is the last one logged, so the process dies before it takes effect.
            process.dies_before = len(process.store.calls)
            return await died(job.finish())
        await job.step()
    await job.finish()
    return False
