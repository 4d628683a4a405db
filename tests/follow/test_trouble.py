"""Tests of followers in trouble: a source that is cut, damaged or ahead of its broker, and late turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from growing_source import Clock, GrowingStream

from offload import ObjectStoreOffloader, StreamReader
from offload.contracts.events import Event, StreamPaused, TookOver
from offload.errors import Corrupt, Diverged, TryAgain
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore
from offload.streams.follow_rules import FollowRules, FollowState
from offload.streams.follower import PAUSE_SECONDS, Follower

LAG: Final = 10.0
RULES: Final = FollowRules(max_lag_seconds=LAG, hold_back_seconds=1.0)


@dataclass
class World:
    """A source that grows, a tier in memory, and a clock."""

    clock: Clock = field(default_factory=Clock)
    source: GrowingStream = field(default_factory=GrowingStream)
    store: FaultyStore = field(default_factory=lambda: FaultyStore(MemoryStore()))
    events: list[Event] = field(default_factory=list)

    def tier(self) -> ObjectStoreOffloader:
        """Return the tier, as another process opens it."""
        return ObjectStoreOffloader(self.store, env=self.clock.env())

    def follower(self, rules: FollowRules = RULES, source: GrowingStream | None = None) -> Follower:
        """Return a follower in a process of its own."""
        return Follower(
            source=source or self.source,
            offloader=self.tier(),
            rules=rules,
            env=self.clock.env(),
            emit=self.events.append,
        )

    async def run(self, follower: Follower, seconds: float) -> None:
        """Let the follower look until so much time has passed."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += await follower.step()

    async def committed(self) -> int:
        """Return the end of the tier, after reading every message of it."""
        reader = await StreamReader.open(self.tier(), "orders")
        end = 0
        async for batch in reader.messages(0):
            assert batch.offset == end
            end += len(batch.bodies)
        return end

    def told(self, kind: type[Event]) -> int:
        """Return the number of events of a kind."""
        return sum(isinstance(event, kind) for event in self.events)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    asyncio.run(scenario(World()))  # type: ignore[arg-type]  # a coroutine function


class TestASourceThatIsCut:
    """A new leader of the broker has cut the log, and writes on."""

    def test_data_behind_a_cut_is_held_back_again_and_nothing_waits_for_ever(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower(replace(RULES, hold_back_seconds=5.0))
            world.source.append()
            await world.run(follower, 2 * LAG)
            world.source.append(3)
            await world.run(follower, 2)
            del world.source.ledgers[-1][2:]
            world.source.next_offset = 20
            await world.run(follower, 3 * LAG)
            assert (await world.committed(), follower.status.lag_seconds) == (20, 0)

            world.source.append()
            world.source.roll()
            world.source.append()
            await world.run(follower, 3)

            assert await world.committed() == 20

        run(scenario)

    def test_a_stream_that_diverged_is_not_claimed(self) -> None:
        """A claim would fence the process that still leads."""

        async def scenario(world: World) -> None:
            other = GrowingStream(epoch=1)
            world.source.append(2)
            leader = world.follower()
            await world.run(leader, 2 * LAG)
            await leader.release()
            other.append(1, records=5)
            other.append(4)
            version = (await world.tier().load_manifest("orders")).version

            await world.run(heir := world.follower(source=other), 2 * LAG)

            assert isinstance(heir.status.error, Diverged)
            assert (await world.tier().load_manifest("orders")).version == version

        run(scenario)


class TestDamage:
    def test_ledgers_before_a_damaged_table_are_copied_and_the_stream_pauses(self) -> None:
        async def scenario(world: World) -> None:
            for _ in range(4):
                world.source.append(2)
                world.source.roll()
            world.source.append()
            world.source.damaged = [40]
            await world.run(follower := world.follower(), 2 * LAG)

            assert await world.committed() == 40
            assert isinstance(follower.status.error, Corrupt)

        run(scenario)

    def test_a_snapshot_that_ends_at_damage_is_copied_and_the_stream_pauses(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append(2)
            world.source.damage = Corrupt("chunk", "segment", expected=1, found=2)
            await world.run(follower := world.follower(), 2 * PAUSE_SECONDS)

            assert await world.committed() == 20
            assert (follower.state, world.told(StreamPaused)) == (FollowState.PAUSED, 1)

            world.source.damage = None
            world.source.append(2)
            await world.run(follower, PAUSE_SECONDS + LAG)
            assert (await world.committed(), follower.state) == (40, FollowState.LEADING)

        run(scenario)


class TestCost:
    def test_data_that_the_broker_does_not_vouch_for_costs_one_load_of_the_root(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append(3)
            world.source.committed_offset = 0
            await world.run(follower, 100 * LAG)
            assert len(world.store.calls) <= 4

            world.source.committed_offset = 30
            await world.run(follower, LAG)
            assert await world.committed() == 30

        run(scenario)

    def test_a_source_without_a_mark_is_looked_at_each_time(self) -> None:
        class Unmarked(GrowingStream):
            async def mark(self) -> Hashable | None:
                return None

        async def scenario(world: World) -> None:
            world.source = Unmarked()
            follower = world.follower()
            for _ in range(3):
                world.source.append()
                await world.run(follower, LAG)
                assert await world.committed() == world.source.next_offset

        run(scenario)


class TestALongWait:
    """The turn comes late: other streams, or a machine that slept."""

    def test_a_replica_behind_the_new_leader_stands_by(self) -> None:
        """It was free to claim the stream when it began to wait."""

        async def scenario(world: World) -> None:
            leader, lagging = world.follower(), GrowingStream()
            world.source.append(3)
            lagging.append(2)

            @asynccontextmanager
            async def turn() -> Any:
                await world.run(leader, 2 * LAG)
                yield

            late = world.follower(replace(RULES, hold_back_seconds=0.0), source=lagging)
            world.clock.now += LAG
            await late.step()
            world.clock.now += LAG
            await late.step(turn())

            assert (late.state, late.status.error) == (FollowState.STANDBY, None)
            assert (world.told(TookOver), await world.committed()) == (1, 30)

        run(scenario)

    def test_data_that_was_seen_once_is_held_back_although_the_process_slept(self) -> None:
        class Sleepy(GrowingStream):
            async def vouched(self, snapshot: Any) -> int | None:
                world_clock.now += 3600
                return None

        async def scenario(world: World) -> None:
            nonlocal world_clock
            world_clock = world.clock
            world.source = Sleepy()
            world.source.append()
            world.source.roll()
            world.source.append()
            follower = world.follower()

            await follower.step()

            assert world.store.calls == [] or not any(call.operation == "put" for call in world.store.calls)

        world_clock = Clock()
        run(scenario)


class TestStatus:
    def test_an_error_of_the_store_does_not_make_committed_data_lag(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append(10)
            await world.run(follower, 2 * LAG)
            world.store.rules = [Rule(Fault.FAIL_BEFORE)]
            world.source.append()
            await world.run(follower, 2 * LAG)

            status = follower.status
            assert isinstance(status.error, TryAgain)
            assert (status.committed_offset, status.lag_records) == (100, 10)

        run(scenario)
