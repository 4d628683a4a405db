"""Tests of a process that recognizes its earlier lives, and of identities that were copied."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

import pytest
from campaign import CAMPAIGN
from follower_world import LAG, RULES, World, run

from offload.contracts.events import TookOver
from offload.copy.instance import Instance
from offload.copy.next_part import PartOnTier
from offload.follow.follower import Follower
from offload.follow.rules import FollowState
from offload.ground.errors import Conflict
from offload.model.part import StreamPart
from offload.write.writer import StreamWriter

SOON_SECONDS = RULES.hold_back_seconds + 0.1
"""The time after which a process that was killed copies again: records are held back, and that is all."""


def life(world: World, name: bytes = b"one") -> Follower:
    """Return a follower in a new process with this identity."""
    follower = world.follower()
    return replace(follower, instance=Instance.of(name))


class TestAWriter:
    def test_the_same_facts_make_the_same_identity_and_others_another(self) -> None:
        made = Instance.of(b"a", b"bc").fresh_writer(uuid4())

        assert Instance.of(b"a", b"bc").is_of_another(made)
        assert not Instance.of(b"ab", b"c").is_of_another(made)

    def test_a_random_writer_that_begins_like_the_tag_is_a_stranger(self) -> None:
        own = Instance.of(b"one")

        assert not own.is_of_another(UUID(bytes=own.tag + uuid4().bytes[6:]))

    def test_writers_of_one_identity_differ_in_74_bits(self) -> None:
        own = Instance.of(b"one")

        ones = own.fresh_writer(UUID(int=2**128 - 1)).int
        zeros = own.fresh_writer(UUID(int=0)).int

        assert (ones ^ zeros).bit_count() == 74
        assert not own.is_of_another(UUID(int=ones))


class TestAnEarlierLife:
    def test_a_process_that_was_killed_copies_again_as_soon_as_the_hold_back_allows(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append()
            await world.run(life(world), seconds=LAG)
            world.source.append()

            await world.run(life(world), seconds=SOON_SECONDS)

            assert (world.told(TookOver), await world.committed()) == (2, 20)

        run(scenario)

    def test_it_does_so_beside_a_node_that_does_not_lead(self) -> None:
        """It worked before it was killed, so the process beside the leader does not."""

        async def scenario(world: World) -> None:
            async def leads() -> bool:
                return False

            world.source.leads = leads  # type: ignore[method-assign]
            world.source.append()
            await world.run(life(world), seconds=10 * RULES.quiet_seconds)
            world.source.append()

            await world.run(life(world), seconds=SOON_SECONDS)

            assert (world.told(TookOver), await world.committed()) == (2, 20)

        run(scenario)

    def test_records_that_come_later_wait_for_a_larger_fragment(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append()
            await world.run(life(world), seconds=LAG)
            world.source.append()
            again = replace(life(world), rules=replace(RULES, hold_back_seconds=0.0))
            await again.step()
            world.source.append()
            world.clock.now += RULES.look_seconds

            await again.step()

            assert await world.committed() == 20

        run(scenario)

    def test_a_writer_of_another_identity_is_left_alone_for_takeover(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append()
            await world.run(life(world), seconds=LAG)
            world.source.append()

            await world.run(life(world, b"two"), seconds=RULES.quiet_seconds - 1)

            assert world.told(TookOver) == 1

        run(scenario)

    @pytest.mark.parametrize(("late_commits", "claims"), [(1, 2), (9, 1)])
    def test_one_late_commit_of_the_dead_process_costs_one_look(self, late_commits: int, claims: int) -> None:
        """More of them are no leftover of a process that was killed: somebody lives."""

        async def scenario(world: World) -> None:
            dead = life(world)
            world.source.append()
            await world.run(dead, seconds=LAG)
            world.source.append()
            left, again = late_commits, life(world)

            async def before(operation: str, key: str) -> None:
                nonlocal left
                if operation == "create" and left:
                    left -= 1
                    raise Conflict("somebody committed meanwhile")

            world.store.before = before
            await world.run(again, seconds=SOON_SECONDS + 2 * RULES.look_seconds)

            assert (again.state is FollowState.LEADING) == (claims == 2)
            assert world.told(TookOver) == claims
            assert left == max(0, late_commits - 2)

        run(scenario)


class TestACopiedIdentity:
    def test_two_processes_with_one_identity_fence_each_other_once_and_the_log_says_so(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(world: World) -> None:
            both = [life(world), life(world)]
            for _ in range(40):
                for each in both:
                    world.source.append()
                    await world.run(each, seconds=LAG / 2)

            assert world.told(TookOver) == 2
            assert [each.state for each in both] == [FollowState.STANDBY, FollowState.LEADING]
            assert await world.committed() >= world.source.next_offset - 30

        run(scenario)
        [line] = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
        assert "stream 'orders': another process claims streams with the identity of this one" in line

    def test_a_claim_of_an_earlier_life_on_an_earlier_part_is_no_sign_of_a_double(self) -> None:
        """The part that this process led was deleted, so it goes back to the one before."""

        async def scenario(world: World) -> None:
            dead, again = Instance.of(b"one"), life(world)
            await StreamWriter.claim(world.tier(), "orders", writer=dead.fresh_writer(uuid4()))
            again._own_writer = UUID(int=7)
            again._enter(PartOnTier(again.offloader, StreamPart("orders", 2)))
            again._enter(PartOnTier(again.offloader, StreamPart("orders", 1)))
            world.source.append()

            await world.run(again, seconds=LAG)

            assert again.instance is not None
            assert not again.instance.is_shared

        run(scenario)


@dataclass
class Schedule:
    """Processes on two machines and a third one of its own, which are killed and started again at random."""

    draw: random.Random
    world: World = field(default_factory=World)
    starts: int = 0
    stalls: int = 0

    def process(self, number: int) -> Follower:
        """Return a new life of process `number`. Those of 0 and 1 have one identity, which was copied."""
        self.starts += 1
        return life(self.world, b"copied" if number < 2 else b"own")

    async def play(self, steps: int) -> None:
        """Let each process look when it is due. Now and then one is killed, or stops for a while."""
        lives = [self.process(number) for number in range(3)]
        due = [0.0] * 3
        for _ in range(steps):
            number = due.index(min(due))
            self.world.clock.now = max(self.world.clock.now, due[number])
            if self.draw.random() < 0.3:
                self.world.source.append()
            due[number] = self.world.clock.now + await lives[number].step()
            if self.draw.random() < 0.02:
                lives[number] = self.process(number)
                due[number] = self.world.clock.now + self.draw.choice([1.0, 100.0])
            elif self.draw.random() < 0.01:
                self.stalls += 1
                due[number] += 10 * RULES.quiet_seconds


@pytest.mark.parametrize("seed", range(100 if CAMPAIGN else 3))
def test_lives_and_copied_identities_lose_and_double_nothing_and_cost_a_claim_each(seed: int) -> None:
    """Each start may cost one claim, and each process that falls silent one more."""

    async def scenario() -> None:
        schedule = Schedule(random.Random(seed))
        await schedule.play(3000 if CAMPAIGN else 400)
        world = schedule.world
        world.clock.now += 100 * RULES.quiet_seconds
        world.source.append()
        await world.run(life(world, b"last"), seconds=4 * RULES.quiet_seconds)

        assert await world.committed() == world.source.next_offset
        history = await world.tier().load_manifest("orders")
        assert history.epoch <= schedule.starts + schedule.stalls + 2

    asyncio.run(scenario())
