"""Tests of copiers: histories that change between two looks, and what is known after damage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from follower_world import World, run
from growing_source import GrowingStream
from managed_world import contribute

from offload import StreamWriter, build_chunk
from offload.copy.copier import LEDGERS_AT_ONCE, StreamCopier
from offload.copy.next_part import PartOnTier
from offload.ground.errors import Conflict, Corrupt, Diverged
from offload.store.faults import Fault, Rule
from offload.write.writer import COMMIT_RECEIPTS


def copier(world: World) -> StreamCopier:
    """Return a copier in a process of its own. It claims the stream whatever the version of its root is."""
    return StreamCopier(part=PartOnTier.first(world.tier(), "orders"), env=world.clock.env())


async def copy_all(copier: StreamCopier, source: GrowingStream) -> None:
    """Compare the histories and copy everything, as a sync does."""
    async with await source.snapshot() as snapshot:
        await copier.compare(snapshot)
        await copier.copy(snapshot, snapshot.next_offset)


@pytest.mark.parametrize("chunks_before", [0, 1], ids=["of-nothing", "of-a-stream"])
def test_histories_are_compared_again_if_a_rival_appended_before_the_claim(chunks_before: int) -> None:
    """What the rival appended is not in this source."""

    async def scenario(world: World) -> None:
        rivals = GrowingStream()
        for source in (world.source, rivals):
            source.append(chunks_before)
        if chunks_before:
            await copy_all(copier(world), world.source)
        world.source.append(3)
        rivals.append(records=5)
        late = copier(world)
        async with await world.source.snapshot() as snapshot:
            await late.compare(snapshot)
            await copy_all(copier(world), rivals)

            with pytest.raises(Diverged):
                await late.copy(snapshot, snapshot.next_offset)

        assert await world.committed() == rivals.next_offset

    run(scenario)


def test_a_tier_without_data_that_goes_on_within_a_chunk_of_the_source_is_another_history() -> None:
    async def scenario(world: World) -> None:
        world.source.append(2)
        await StreamWriter.claim(world.tier(), "orders", first_offset=15)

        with pytest.raises(Diverged, match="no chunk of the source begins there"):
            await copy_all(copier(world), world.source)

    run(scenario)


def test_the_last_of_several_ledgers_is_what_the_next_snapshot_must_continue() -> None:
    async def scenario(world: World) -> None:
        kept = copier(world)
        world.source.append()
        world.source.roll()
        world.source.append()
        await copy_all(kept, world.source)
        del world.source.ledgers[1:]
        world.source.next_offset, world.source.epoch = 10, 2
        world.source.roll()
        world.source.append(2)

        with pytest.raises(Diverged):
            await copy_all(kept, world.source)

        assert await world.committed() == 20

    run(scenario)


def test_a_source_that_compares_records_gets_the_whole_chunk_that_was_copied_last() -> None:
    async def scenario(world: World) -> None:
        kept, compared = copier(world), list[bytes]()

        async def holds(chunk: bytes) -> None:
            compared.append(chunk)

        for _ in range(2):
            world.source.append()
            async with replace(await world.source.snapshot(), holds=holds) as snapshot:
                await kept.compare(snapshot)
                await kept.copy(snapshot, snapshot.next_offset)

        assert compared == world.source.ledgers[0][:1]

    run(scenario)


def flipped(chunk: bytes) -> bytes:
    """Return the chunk with one bit of its data flipped."""
    return chunk[:-1] + bytes([chunk[-1] ^ 1])


class TestDamage:
    """A chunk behind the first one is damaged. What is before it is committed."""

    @staticmethod
    async def damaged(world: World) -> StreamCopier:
        """Return a copier that has met the damage, at offset 20."""
        kept = copier(world)
        world.source.append(3)
        world.source.ledgers[0][2] = flipped(world.source.ledgers[0][2])
        with pytest.raises(Corrupt):
            await copy_all(kept, world.source)
        return kept

    def test_what_was_committed_before_the_damage_is_known(self) -> None:
        async def scenario(world: World) -> None:
            kept = await self.damaged(world)

            assert kept.manifest is not None
            assert (kept.manifest.next_offset, await world.committed()) == (20, 20)

        run(scenario)

    def test_the_last_sound_chunk_is_what_the_next_snapshot_must_continue(self) -> None:
        async def scenario(world: World) -> None:
            kept = await self.damaged(world)
            bodies = [b"other"] * 10
            other = build_chunk(bodies, offset=10, timestamp_ms=1, epoch=2)
            world.source.ledgers, world.source.next_offset = [[world.source.ledgers[0][0], other]], 20
            world.source.append()

            with pytest.raises(Diverged):
                await copy_all(kept, world.source)

            assert await world.committed() == 20

        run(scenario)


def test_one_commit_announces_no_more_ledgers_than_the_bound() -> None:
    """Each open ledger holds its table and a file."""

    async def scenario(world: World) -> None:
        announced: list[int] = []

        async def before(operation: str, key: str) -> None:
            if operation == "put":
                announced.append(len((await world.tier().load_manifest("orders")).running))

        for _ in range(2 * LEDGERS_AT_ONCE):
            world.source.append()
            world.source.roll()
        world.store.before = before
        await copy_all(copier(world), world.source)

        assert max(announced) == LEDGERS_AT_ONCE

    run(scenario)


class TestAJobBesideTheWriter:
    """A job appends other records beside a writer, which keeps its fence. Nothing goes on behind them."""

    OTHER = 10
    """The number of records of the job: as many as one chunk of the source has."""

    async def contribute(self, world: World) -> None:
        end = (await world.tier().load_manifest("orders")).next_offset
        await contribute(
            world.tier(), build_chunk([b"job"] * self.OTHER, offset=end, timestamp_ms=1, epoch=1)
        )

    async def check(self, world: World, kept: StreamCopier, end: int) -> None:
        with pytest.raises(Conflict, match="beside this writer"):
            await copy_all(kept, world.source)

        assert await world.committed() == end + self.OTHER
        with pytest.raises(Diverged):
            await copy_all(copier(world), world.source)

    def test_nothing_is_copied_behind_a_job_that_a_lost_reply_has_hidden(self) -> None:
        """The last commit of a batch is in, and is judged by the newest root, in which the job is too."""

        async def scenario(world: World) -> None:
            for _ in range(LEDGERS_AT_ONCE + 3):
                world.source.append()
                world.source.roll()
            commits = 2 + LEDGERS_AT_ONCE // COMMIT_RECEIPTS  # a claim, and the announcement
            rule = Rule(Fault.LOSE_REPLY, "create", "*/root.*", nth=commits)

            async def before(operation: str, key: str) -> None:
                if rule.matched == commits and operation == "list":
                    world.store.before = nothing
                    await self.contribute(world)

            world.store.rules, world.store.before = [rule], before

            await self.check(world, copier(world), 10 * LEDGERS_AT_ONCE)

        run(scenario)

    def test_the_sound_part_of_a_damaged_ledger_is_not_copied_behind_a_job(self) -> None:
        """The job appends while the fragment is uploaded that the damage breaks off."""

        async def scenario(world: World) -> None:
            kept = copier(world)
            world.source.append()
            await copy_all(kept, world.source)
            world.source.append(4)
            world.source.ledgers[0][4] = flipped(world.source.ledgers[0][4])

            async def after(operation: str, key: str) -> None:
                if operation == "create":  # the announcement
                    world.store.after = nothing
                    await self.contribute(world)

            world.store.after = after

            await self.check(world, kept, 10)

        run(scenario)


async def nothing(operation: str, key: str) -> None:
    """Do nothing beside a request."""
