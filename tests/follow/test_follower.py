"""Tests of followers: what they copy and when, what it costs, and how they hand over."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from follower_world import World as FollowerWorld
from growing_source import BODY_SIZE_BYTES, GrowingSource, GrowingStream

from offload import delete_stream
from offload import sync as sync_all
from offload.contracts.events import Event, StreamPaused, StreamResumed, TookOver
from offload.follow.follower import Follower
from offload.follow.pauses import SIGNS_SECONDS, TIER_SIGNS_SECONDS, LookAtPlace, look_nowhere
from offload.follow.rules import FollowRules, FollowState, FollowStatus, Wait
from offload.ground.errors import Denied, Diverged, Misuse, NoSpace, OutcomeUnknown, TryAgain
from offload.ground.pause import PAUSE_SECONDS
from offload.native.offloader import TierOptions
from offload.store.faults import Fault, Rule

LAG: Final = 10.0
FRAGMENT_SIZE_BYTES: Final = 50 * BODY_SIZE_BYTES
RULES: Final = FollowRules(
    max_lag_seconds=LAG, hold_back_seconds=1.0, fragment_size_bytes=FRAGMENT_SIZE_BYTES
)
AT_ONCE: Final = replace(RULES, hold_back_seconds=0.0)


@dataclass
class World(FollowerWorld):
    """A source that grows beside a tier of small fragments."""

    def options(self) -> TierOptions:
        return TierOptions(fragment_size_bytes=FRAGMENT_SIZE_BYTES)

    def follower(
        self,
        rules: FollowRules = RULES,
        source: GrowingStream | None = None,
        place: LookAtPlace = look_nowhere,
    ) -> Follower:
        return super().follower(rules, source, place)

    async def committed(self) -> int:
        """Return the next offset of the tier, without a read."""
        return (await self.tier().load_manifest("orders")).next_offset

    async def assert_whole(self) -> None:
        """Assert that the tier has every record of the source, once and in order."""
        assert [offset for offset, _ in await self.records()] == list(range(self.source.next_offset))

    async def go_on_in_a_new_part(self) -> None:
        """Do what somebody does by hand, who reads that there is a gap."""
        source = GrowingSource([self.source])
        [report] = [each async for each in sync_all(source, self.tier(), new_part=True, env=self.clock.env())]
        assert report.error is None


async def full(operation: str, key: str) -> None:
    """Refuse fragments, as a disk that has room for small objects only."""
    if operation == "put":
        raise NoSpace("the file system is full")


async def with_room(operation: str, key: str) -> None:
    """Refuse nothing."""


def is_of_a_commit(event: Event) -> bool:
    """Return True for the events of the writer, which say nothing about who leads."""
    return not isinstance(event, StreamPaused | StreamResumed | TookOver)


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    world = World()
    asyncio.run(scenario(world))  # type: ignore[arg-type]  # a coroutine function


class TestWhenItCopies:
    """A record is on the tier in time, and not in needlessly small fragments."""

    def test_a_source_without_a_whole_chunk_is_one_line_of_the_log(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, logger="offload")

        async def scenario(world: World) -> None:
            await world.run(world.follower(), seconds=10 * LAG)

        run(scenario)
        [line] = [record.getMessage() for record in caplog.records]
        assert line == "stream 'orders': its source has no whole chunk yet: nothing to copy"

    def test_a_record_is_readable_within_the_lag(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            await world.run(follower, seconds=5)
            for _ in range(20):
                world.source.append()
                end = world.source.next_offset
                await world.run(follower, seconds=LAG)
                assert await world.committed() >= end
            await world.assert_whole()

        run(scenario)

    def test_nothing_is_copied_before_it_has_to_be(self) -> None:
        """More may come, and one large fragment costs less than two small ones."""

        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append()
            await world.run(follower, seconds=LAG)
            manifest = await world.tier().load_manifest("orders")
            for _ in range(10):
                world.source.append()
                await world.run(follower, seconds=1)
            after = await world.tier().load_manifest("orders")

            assert after.fragments - manifest.fragments <= 2

        run(scenario)

    def test_whole_fragments_are_copied_at_the_next_look(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower(AT_ONCE)
            world.source.append()
            await world.run(follower, seconds=LAG)
            world.source.append(12)  # two fragments of five chunks, and two more
            await world.run(follower, seconds=RULES.look_seconds)

            assert await world.committed() == 110
            await world.run(follower, seconds=LAG)
            assert await world.committed() == 130

        run(scenario)

    def test_a_ledger_that_ended_is_copied_at_the_next_look(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower(AT_ONCE)
            world.source.append()
            await world.run(follower, seconds=LAG)
            world.source.append()
            world.source.roll()
            world.source.append()
            await world.run(follower, seconds=RULES.look_seconds)

            assert await world.committed() == 20

        run(scenario)

    def test_what_came_just_now_is_held_back(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower(FollowRules(max_lag_seconds=LAG, hold_back_seconds=5.0))
            world.source.append()
            await world.run(follower, seconds=5)
            world.source.append()
            world.source.roll()
            world.source.append()
            await world.run(follower, seconds=4.9)

            assert await world.committed() == 10

        run(scenario)

    def test_nothing_is_copied_beyond_what_the_broker_vouches_for(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append(10)
            world.source.committed_offset = 35
            await world.run(follower, seconds=10 * LAG)
            assert await world.committed() == 30

            world.source.committed_offset = 100
            await world.run(follower, seconds=LAG)
            assert await world.committed() == 100

        run(scenario)

    def test_a_backlog_is_copied_in_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("offload.follow.due.TURN_SIZE_BYTES", 100 * BODY_SIZE_BYTES)

        async def scenario(world: World) -> None:
            follower = world.follower()
            for _ in range(20):
                world.source.append(10)
                world.source.roll()
            world.source.append()
            await follower.step()
            world.clock.now += RULES.look_seconds
            ends = []
            while await follower.step() == 0.0:
                ends.append(await world.committed())

            assert ends == list(range(100, 2000, 100))
            await world.run(follower, seconds=LAG)
            await world.assert_whole()

        run(scenario)


class TestACopyNow:
    """What somebody asks for is copied without waiting for more."""

    def test_what_the_source_has_is_copied_once_and_later_records_wait_again(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower(AT_ONCE)
            await world.run(follower, seconds=1)
            world.source.append(2)
            await follower.step()
            assert follower.status.waits is Wait.MORE

            follower.hurry()
            await follower.step()
            assert await world.committed() == world.source.next_offset == 20
            world.source.append()
            await world.run(follower, seconds=1)
            assert (await world.committed(), follower.status.waits) == (20, Wait.MORE)

        run(scenario)

    def test_what_the_broker_does_not_vouch_for_waits_for_that_alone(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()  # which holds records back for a second
            world.source.append()
            await world.run(follower, seconds=LAG)
            world.source.append()
            follower.hurry()
            await world.run(follower, seconds=0.5)
            assert await world.committed() == 10
            await world.run(follower, seconds=RULES.look_seconds + 1)
            assert await world.committed() == 20

        run(scenario)

    def test_a_process_that_stands_by_takes_nothing_over(self) -> None:
        async def scenario(world: World) -> None:
            leader, standby = world.follower(AT_ONCE), world.follower(AT_ONCE)
            world.source.append()
            await world.run(leader, standby, seconds=LAG)
            version = (await world.tier().load_manifest("orders")).version
            world.source.append()
            standby.hurry()
            await world.run(standby, seconds=3)

            assert standby.state is FollowState.STANDBY
            assert (await world.tier().load_manifest("orders")).version == version

        run(scenario)


class TestItsStatus:
    def test_what_is_dispatched_and_what_is_committed_are_apart_during_a_copy(self) -> None:
        """Before the first commit the lag is everything in the source. `alarm_lag` says when it is late."""

        async def scenario(world: World) -> None:
            seen: list[FollowStatus] = []
            follower = Follower(
                source=world.source,
                offloader=world.tier(),
                rules=replace(RULES, alarm_lag_seconds=7.0),
                env=world.clock.env(),
                emit=lambda event: seen.append(follower.status),
            )
            world.source.append(3)
            await world.run(follower, seconds=RULES.max_lag_seconds)

            first = seen[0]
            assert (first.dispatched_offset, first.committed_offset, first.lag_records) == (30, None, 30)
            after = follower.status
            assert (after.dispatched_offset, after.committed_offset, after.lag_records) == (30, 30, 0)
            assert (after.alarm_seconds, RULES.alarm_seconds) == (7.0, 3 * RULES.max_lag_seconds)

        run(scenario)

    def test_the_lag_in_records_grows_while_a_copy_waits_for_the_store(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A store that does not answer holds a copy for minutes."""
        monkeypatch.setattr("offload.follow.follower.PEEK_SECONDS", 0.001)

        async def scenario(world: World) -> None:
            follower = world.follower(AT_ONCE)
            world.source.append()
            await world.run(follower, seconds=LAG)

            async def grow(operation: str, _: str) -> None:
                if operation == "put":
                    world.source.append(2)
                    async with asyncio.timeout(60):
                        while follower.status.lag_records != 30:  # noqa: ASYNC110 - no event says it
                            await asyncio.sleep(0.001)

            world.store.before = grow
            world.source.append()
            world.clock.now += LAG
            await follower.step()
            world.source.append()
            await asyncio.sleep(0.01)
            assert follower.status.source_next_offset == world.source.next_offset - 10  # nobody peeks now
            assert world.source.snapshots_open == 0

        run(scenario)


class TestWhatItCosts:
    """Requests to the store."""

    def test_an_idle_stream_costs_no_request(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append()
            await world.run(follower, seconds=LAG)
            world.requests()
            snapshots = world.source.snapshots

            await world.run(follower, seconds=1000 * LAG)

            assert world.requests() == {}
            assert world.source.snapshots == snapshots

        run(scenario)

    def test_a_fragment_costs_a_put_a_create_and_a_list(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append()
            await world.run(follower, seconds=LAG)
            for _ in range(3):
                world.requests()
                world.source.append()
                await world.run(follower, seconds=LAG)
                assert world.requests() == {"put": 1, "create": 1, "list": 1}

        run(scenario)

    def test_an_attempt_announced_in_vain_is_dropped_when_the_next_ledger_is_copied(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            for _ in range(5):
                world.source.append()
                world.source.roll()
                world.source.append()
                await world.run(follower, seconds=LAG)

            assert len((await world.tier().load_manifest("orders")).running) == 1
            await world.assert_whole()

        run(scenario)


class TestErrors:
    """What stops a stream, and what it does then."""

    @pytest.mark.parametrize("error", [Denied("no right to read"), NoSpace("the bucket is full")])
    def test_an_error_for_a_person_pauses_the_stream_and_is_told_once(self, error: Any) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append()
            await world.run(follower, seconds=LAG)
            world.source.error = error
            await world.run(follower, seconds=5 * PAUSE_SECONDS)

            assert follower.state is FollowState.PAUSED
            assert [event.error for event in world.of(StreamPaused)] == [error]
            world.source.error = None
            world.source.append()
            await world.run(follower, seconds=PAUSE_SECONDS + LAG)
            assert len(world.of(StreamResumed)) == 1
            assert follower.state is FollowState.LEADING
            await world.assert_whole()

        run(scenario)

    def test_a_disk_that_stays_full_pauses_the_stream_once_and_nothing_says_between_the_tries_that_it_goes_on(
        self,
    ) -> None:
        """Roots are small and still fit, so each try claims the stream, and then fails."""

        async def scenario(world: World) -> None:
            follower = world.follower()
            world.store.before = full
            world.source.append()
            await world.run(follower, seconds=2 * LAG)
            assert follower.state is FollowState.PAUSED
            states = set()
            for _ in range(100):
                await world.run(follower, seconds=LAG)
                states.add((follower.state, type(follower.status.error), follower.status.is_stopped))

            assert states == {(FollowState.PAUSED, NoSpace, True)}
            assert [type(event) for event in world.events if not is_of_a_commit(event)] == [
                TookOver,
                StreamPaused,
            ]

        run(scenario)

    def test_a_process_that_cannot_copy_wakes_no_other_one_that_is_paused_by_the_same_cause(self) -> None:
        """Each try leaves roots on the tier. The other process must not take them for a sign."""

        async def scenario(world: World) -> None:
            one, two = world.follower(), world.follower()
            world.store.before = full
            world.source.append()
            await world.run(one, two, seconds=10 * 60)
            before = (await world.tier().load_manifest("orders")).epoch
            await world.run(one, two, seconds=60 * 60)
            claims = (await world.tier().load_manifest("orders")).epoch - before

            assert 12 <= claims <= 24  # each tries every five minutes, and a try claims once
            assert len(world.of(StreamPaused)) == 2

        run(scenario)

    def test_a_paused_stream_goes_on_as_soon_as_its_place_looks_different(self) -> None:
        async def scenario(world: World) -> None:
            room = {"free": 0}

            async def look(stream: str) -> int:
                return room["free"]

            follower = world.follower(place=look)
            world.store.before = full
            world.source.append()
            await world.run(follower, seconds=60)
            assert follower.state is FollowState.PAUSED
            world.store.before, room["free"] = with_room, 1
            await world.run(follower, seconds=SIGNS_SECONDS + RULES.look_seconds)

            assert await world.committed() == 10
            assert follower.state is FollowState.LEADING
            assert len(world.of(StreamResumed)) == 1

        run(scenario)

    @pytest.mark.parametrize("cause", ["the source can be read", "a new part", "the tier can be read"])
    def test_a_paused_stream_goes_on_within_a_look_at_what_was_mended(self, cause: str) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append()
            await world.run(follower, seconds=LAG)
            world.source.append()
            if cause == "the source can be read":
                world.source.error = Denied("no right to read")
            elif cause == "a new part":
                world.source.roll()
                world.source.append()
                world.source.drop_first_ledger()
            else:
                world.store.rules = [Rule(Fault.DENY, "list"), Rule(Fault.DENY, "put")]
            await world.run(follower, seconds=3 * LAG)
            assert follower.state is FollowState.PAUSED
            world.source.error, world.store.rules = None, []
            if cause == "a new part":
                await world.go_on_in_a_new_part()
            await world.run(follower, seconds=TIER_SIGNS_SECONDS + SIGNS_SECONDS + LAG)

            assert follower.status.lag_records == 0
            assert follower.status.error is None

        run(scenario)

    def test_a_stream_that_a_person_pauses_sends_no_request_and_leaves_the_lead_to_another_process(
        self,
    ) -> None:
        async def scenario(world: World) -> None:
            one, two = world.follower(), world.follower()
            world.source.append()
            await world.run(one, two, seconds=LAG)
            held = one if one.state is FollowState.LEADING else two
            other = two if held is one else one
            held.hold()
            await held.step()
            world.requests()
            world.source.append()
            await world.run(held, seconds=3600)
            assert world.requests() == {}
            assert (held.state, held.status.waits) == (FollowState.PAUSED, Wait.RESUME)
            assert not held.status.is_stopped
            await world.run(other, seconds=2 * LAG)
            assert await world.committed() == 20
            assert world.of(StreamPaused) == []

            held.let_go()
            await other.release()
            world.source.append()
            await world.run(held, seconds=2 * LAG)
            assert await world.committed() == 30

        run(scenario)

    def test_a_retry_that_somebody_asks_for_comes_at_once(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.store.before = full
            world.source.append()
            await world.run(follower, seconds=60)
            world.store.before = with_room
            follower.retry()
            while await follower.step() == 0.0:
                pass

            assert await world.committed() == 10

        run(scenario)

    def test_a_gap_pauses_the_stream_and_changes_nothing(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append()
            await world.run(follower, seconds=LAG)
            world.source.append()
            world.source.roll()
            world.source.append()
            world.source.drop_first_ledger()
            await world.run(follower, seconds=LAG)

            assert isinstance(follower.status.error, Diverged)
            assert await world.committed() == 10

        run(scenario)

    def test_a_source_that_cut_its_log_pauses_the_stream(self) -> None:
        """A new leader of the broker has other chunks at these offsets."""

        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append(2)
            await world.run(follower, seconds=LAG)
            world.source.ledgers, world.source.next_offset, world.source.epoch = [[]], 0, 2
            world.source.append(4)
            await world.run(follower, seconds=LAG)

            assert isinstance(follower.status.error, Diverged)
            assert await world.committed() == 20

        run(scenario)

    def test_a_stream_that_was_deleted_on_the_tier_is_not_begun_again(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append()
            await world.run(follower, seconds=LAG)
            await delete_stream(world.tier(), "orders")
            world.source.append()
            await world.run(follower, seconds=3 * PAUSE_SECONDS)

            assert follower.state is FollowState.PAUSED
            assert "was deleted" in str(follower.status.error)

        run(scenario)

    def test_a_store_that_is_down_loses_nothing_and_is_tried_again(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append()
            await world.run(follower, seconds=LAG)
            world.store.rules = [Rule(Fault.FAIL_BEFORE, "put"), Rule(Fault.FAIL_BEFORE, "create")]
            world.source.append()
            await world.run(follower, seconds=3600)
            assert isinstance(follower.status.error, (TryAgain, OutcomeUnknown))
            assert follower.status.lag_seconds > 3600 - LAG
            world.store.rules = []

            await world.run(follower, seconds=2 * 60)
            await world.assert_whole()
            assert follower.status.error is None
            assert len((await world.tier().load_manifest("orders")).running) == 1

        run(scenario)

    @pytest.mark.parametrize("operation", ["create", "put"])
    def test_a_lost_reply_neither_loses_nor_doubles_a_record(self, operation: str) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            for nth in range(1, 8):
                world.store.rules = [Rule(Fault.LOSE_REPLY, operation, nth=nth)]
                world.source.append()
                await world.run(follower, seconds=3 * LAG)
            world.store.rules = []
            await world.run(follower, seconds=120)
            await world.assert_whole()

        run(scenario)


class TestLeading:
    """Several processes on replicas of one stream."""

    def test_one_of_three_leads_and_the_others_claim_nothing(self) -> None:
        async def scenario(world: World) -> None:
            followers = [world.follower() for _ in range(3)]
            for _ in range(50):
                world.source.append()
                await world.run(*followers, seconds=LAG)

            assert len(world.of(TookOver)) == 1
            assert sorted(each.state for each in followers) == ["leading", "standby", "standby"]
            await world.assert_whole()

        run(scenario)

    def test_another_takes_over_if_the_leader_is_gone(self) -> None:
        async def scenario(world: World) -> None:
            dead, heir = world.follower(), world.follower()
            world.source.append()
            await world.run(dead, heir, seconds=LAG)
            assert dead.state is FollowState.LEADING
            world.source.append()
            await world.run(heir, seconds=RULES.quiet_seconds - LAG)
            assert await world.committed() == 10

            await world.run(heir, seconds=RULES.quiet_seconds + LAG)

            assert heir.state is FollowState.LEADING
            assert len(world.of(TookOver)) == 2
            await world.assert_whole()

        run(scenario)

    def test_of_several_that_want_to_take_over_at_once_one_claims(self) -> None:
        async def scenario(world: World) -> None:
            followers = [world.follower() for _ in range(5)]
            world.source.append()
            for _ in range(3):
                await asyncio.gather(*(each.step() for each in followers))
                world.clock.now += RULES.look_seconds

            assert len(world.of(TookOver)) == 1
            assert (await world.tier().load_manifest("orders")).epoch == 1
            await world.run(*followers, seconds=LAG)
            await world.assert_whole()

        run(scenario)

    def test_a_claim_whose_reply_is_lost_is_known_to_be_ours(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.store.rules = [Rule(Fault.LOSE_REPLY, "create", "*/root.*1.manifest", nth=1)]
            world.source.append()
            await world.run(follower, seconds=LAG)

            assert (await world.tier().load_manifest("orders")).epoch == 1
            await world.assert_whole()

        run(scenario)

    def test_the_leader_that_wakes_up_stands_by_and_commits_nothing(self) -> None:
        async def scenario(world: World) -> None:
            sleeper, heir = world.follower(), world.follower()
            world.source.append()
            await world.run(sleeper, heir, seconds=LAG)
            world.source.append()
            await world.run(heir, seconds=3 * RULES.quiet_seconds)
            version = (await world.tier().load_manifest("orders")).version
            world.source.append()

            await world.run(sleeper, seconds=LAG)

            assert sleeper.state is FollowState.STANDBY
            assert (await world.tier().load_manifest("orders")).version == version
            await world.run(sleeper, heir, seconds=2 * LAG)
            assert len(world.of(TookOver)) == 2
            await world.assert_whole()

        run(scenario)

    def test_an_idle_stream_never_changes_hands(self) -> None:
        async def scenario(world: World) -> None:
            leader, other = world.follower(), world.follower()
            world.source.append()
            await world.run(leader, other, seconds=LAG)

            await world.run(other, seconds=100 * RULES.quiet_seconds)

            assert len(world.of(TookOver)) == 1

        run(scenario)

    def test_a_process_that_ends_cleanly_is_replaced_at_once(self) -> None:
        async def scenario(world: World) -> None:
            first, heir = world.follower(), world.follower()
            world.source.append()
            await world.run(first, seconds=LAG)
            await first.release()
            assert first.state is FollowState.STANDBY
            assert (await world.tier().load_manifest("orders")).running == ()
            world.source.append()

            await world.run(heir, seconds=LAG)

            await world.assert_whole()

        run(scenario)

    def test_a_replica_with_an_old_leader_epoch_asks_seldom_and_claims_nothing(self) -> None:
        """The broker has deposed its leader, which does not know it yet."""

        async def scenario(world: World) -> None:
            leader, deposed = world.follower(), GrowingStream(epoch=1)
            world.source.epoch = 2
            world.source.append()
            await world.run(leader, seconds=LAG)
            await leader.release()
            deposed.ledgers, deposed.next_offset = [list(world.source.ledgers[0])], 10
            deposed.append()
            follower = world.follower(source=deposed)
            world.requests()

            await world.run(follower, seconds=10 * RULES.quiet_seconds)

            assert await world.committed() == 10
            assert len(world.of(TookOver)) == 1
            assert world.requests()["list"] <= 50  # two for each load of the root

        run(scenario)

    def test_a_standby_asks_seldom(self) -> None:
        """It loads the root only while its source has something that the root does not name."""

        async def scenario(world: World) -> None:
            leader, other = world.follower(), world.follower()
            world.source.append()
            await world.run(leader, other, seconds=LAG)
            world.source.append()
            world.requests()

            await world.run(other, seconds=RULES.quiet_seconds / 2)

            assert world.requests() <= Counter(list=2, get=4)  # two loads of the root

        run(scenario)


def test_rules_that_contradict_each_other_are_refused() -> None:
    for wrong in ({"max_lag_seconds": 0.5}, {"max_lag_seconds": 2.0, "hold_back_seconds": 1.5}):
        with pytest.raises(Misuse):
            FollowRules(**wrong)


def test_the_patience_is_at_least_twice_the_lag() -> None:
    assert FollowRules(max_lag_seconds=60.0, takeover_seconds=60.0).quiet_seconds == 120.0
