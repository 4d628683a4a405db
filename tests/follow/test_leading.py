"""Tests of which process claims a stream, and when: patience, fences, and what counts as work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import pytest
from follower_world import LAG, RULES, World, run

from offload.commit.job import Announce
from offload.commit.writer import Claim
from offload.contracts.change import Change
from offload.contracts.events import StreamPaused, TookOver
from offload.follow.rules import FollowState
from offload.ground.errors import Conflict
from offload.write.writer import StreamWriter


class TestPatience:
    """How long a process that stands by leaves a stream to the one that leads."""

    def test_the_patience_begins_again_when_the_version_changes(self) -> None:
        async def scenario(world: World) -> None:
            leader, heir = world.follower(), world.follower()
            world.source.append()
            await world.run(leader, seconds=LAG)
            world.source.append()
            await world.run(heir, seconds=RULES.quiet_seconds - LAG)
            await world.run(leader, seconds=LAG)
            world.source.append()

            await world.run(heir, seconds=RULES.quiet_seconds - LAG)

            assert world.told(TookOver) == 1

        run(scenario)

    def test_new_data_of_a_quiet_stream_is_left_to_the_leader_until_it_is_late(self) -> None:
        """The stream was idle for longer than the patience. Its leader needs the lag and the hold-back."""

        async def scenario(world: World) -> None:
            rules = replace(RULES, takeover_seconds=2 * LAG, hold_back_seconds=LAG / 2)
            leader, heir = world.follower(rules), world.follower(rules)
            world.source.append()
            await world.run(leader, seconds=2 * LAG)
            await heir.step()
            world.clock.now += 100 * LAG
            world.source.append()

            await world.run(heir, seconds=1.4 * LAG)
            assert world.told(TookOver) == 1

            await world.run(heir, seconds=LAG)
            assert world.told(TookOver) == 2

        run(scenario)

    def test_the_patience_begins_again_after_a_claim_that_was_refused(self) -> None:
        """A stream that is being rebuilt refuses every claim, and its version may stay."""

        async def scenario(world: World) -> None:
            refused: list[str] = []

            async def refuse(operation: str, key: str) -> None:
                if operation == "create":
                    refused.append(key)
                    raise Conflict("the stream is being rebuilt")

            dead, heir = world.follower(), world.follower()
            world.source.append()
            await world.run(dead, seconds=LAG)
            world.source.append()
            world.store.before = refuse
            while not refused:
                await world.run(heir, seconds=1)
            await world.run(heir, seconds=RULES.quiet_seconds - LAG)

            assert len(refused) == 1

        run(scenario)


class TestARivalThatIsFirst:
    """A rival claims the free stream between this process's look at the root and its claim."""

    @staticmethod
    async def rivals(world: World) -> list[StreamWriter]:
        """Let a rival come before every claim. The list grows with each of them."""
        rivals, is_rival = list[StreamWriter](), False

        async def before(operation: str, key: str) -> None:
            nonlocal is_rival
            if operation == "create" and ".manifest" in key and not is_rival:
                is_rival = True
                rivals.append(await StreamWriter.claim(world.tier(), "orders"))
                is_rival = False

        world.store.before = before
        return rivals

    def test_a_claim_that_comes_too_late_makes_the_process_stand_by(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append()
            rivals, late = await self.rivals(world), world.follower()

            await world.run(late, seconds=LAG)

            assert rivals
            assert (late.state, world.told(StreamPaused)) == (FollowState.STANDBY, 0)

        run(scenario)

    def test_after_a_lost_claim_the_next_one_is_not_at_once(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append()
            rivals, late = await self.rivals(world), world.follower()

            await world.run(late, seconds=RULES.quiet_seconds / 2)

            assert len(rivals) == 1

        run(scenario)


async def commit(world: World, change: Change, writer: StreamWriter, committer: UUID) -> None:
    """Commit a change on the root that a writer knows."""
    await world.tier().commit_manifest("orders", change, base=writer.manifest, committer=committer)


async def crash_after_a_claim(world: World) -> None:
    """Leave an attempt of an earlier writer, and a present writer that has announced none."""
    earlier = await StreamWriter.claim(world.tier(), "orders")
    await earlier.prepare([0])
    claim = Claim(stream="orders", writer=UUID(int=5), first_offset=0)
    await commit(world, claim, earlier, claim.writer)


async def announce_for_a_job(world: World) -> None:
    """Leave an attempt of the present writer that is a job's."""
    writer = await StreamWriter.claim(world.tier(), "orders")
    incarnation = writer.manifest.incarnation
    announce = Announce(job=writer.writer, incarnation=incarnation, attempts=[(UUID(int=6), 0)])
    await commit(world, announce, writer, writer.writer)


class TestWhatCountsAsWork:
    @pytest.mark.parametrize(
        "leave", [crash_after_a_claim, announce_for_a_job], ids=lambda leave: leave.__name__
    )
    def test_a_stream_without_a_stream_attempt_of_its_present_writer_is_free(
        self, leave: Callable[[World], Awaitable[None]]
    ) -> None:
        async def scenario(world: World) -> None:
            await leave(world)
            manifest = await world.tier().load_manifest("orders")
            assert len(manifest.running) == 1
            world.source.append()

            await world.run(world.follower(), seconds=LAG)

            assert (world.told(TookOver), await world.committed()) == (1, 10)

        run(scenario)


def test_a_source_without_leader_epochs_is_not_taken_for_a_deposed_one() -> None:
    async def scenario(world: World) -> None:
        leader = world.follower()
        world.source.epoch = 2
        world.source.append()
        await world.run(leader, seconds=LAG)
        await leader.release()
        world.source.epoch = 0
        world.source.append()

        await world.run(world.follower(), seconds=LAG)

        assert await world.committed() == 20

    run(scenario)
