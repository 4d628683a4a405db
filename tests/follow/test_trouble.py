"""Tests of followers in trouble: a source that is cut, damaged or ahead of its broker, and late turns."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from follower_world import LAG, RULES, World, run
from growing_source import GrowingStream
from kit.world import Clock
from osiris_writer import append_chunks, simple_chunks, write_stream

from offload import Session, SourceStream
from offload.contracts.events import StreamPaused, StreamResumed, TookOver
from offload.contracts.source import Snapshot
from offload.copy.hold_back import Arrival, Arrivals, vouched_end
from offload.copy.log_order import LogPlace, LogTurns
from offload.follow.follower import Follower
from offload.follow.rules import FollowState, Wait
from offload.ground.errors import (
    Corrupt,
    Denied,
    Diverged,
    NoSpace,
    NoSuchKey,
    OffloadError,
    StoreDenied,
    TryAgain,
)
from offload.ground.pause import PAUSE_SECONDS
from offload.model.manifest import Manifest
from offload.store.faults import MUTATIONS, Fault, Rule


class TestASourceThatIsCut:
    """A new leader of the broker has cut the log, and writes on."""

    def test_data_behind_a_cut_is_held_back_again_and_nothing_waits_for_ever(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower(replace(RULES, hold_back_seconds=5.0))
            world.source.append()
            await world.run(follower, seconds=2 * LAG)
            world.source.append(3)
            await world.run(follower, seconds=2)
            del world.source.ledgers[-1][2:]
            world.source.next_offset = 20
            await world.run(follower, seconds=3 * LAG)
            assert (await world.committed(), follower.status.lag_seconds) == (20, 0)

            world.source.append()
            world.source.roll()
            world.source.append()
            await world.run(follower, seconds=3)

            assert await world.committed() == 20

        run(scenario)

    def test_data_behind_a_cut_is_held_back_from_now_on_and_is_as_old_as_what_was_there(self) -> None:
        """Some of it may have been there before the cut, and would be copied too late."""
        arrivals = Arrivals()
        arrivals.notice(10, since_seconds=0.0, seen_seconds=2.0)
        arrivals.notice(5, since_seconds=2.0, seen_seconds=4.0)

        assert arrivals.oldest == Arrival(since_seconds=0.0, seen_seconds=4.0, next_offset=5)

    def test_nothing_behind_a_snapshot_is_believed_whatever_the_broker_has_committed(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append()
            world.source.committed_offset = 100
            async with await world.source.snapshot() as snapshot:
                source, arrivals = world.source, Arrivals()
                end = await vouched_end(source, snapshot, arrivals, seen_seconds=0.0, hold_back_seconds=1.0)
            assert end == snapshot.next_offset

        run(scenario)

    def test_a_restarted_process_whose_source_ends_before_the_tier_says_so(self) -> None:
        """Not at once: a replica that lags is behind for a moment."""

        async def scenario(world: World) -> None:
            world.source.append(3)
            leader = world.follower()
            await world.run(leader, seconds=LAG)
            await leader.release()
            cut = GrowingStream()
            cut.append(2)

            restarted = world.follower(source=cut)
            await world.run(restarted, seconds=LAG)
            assert not restarted.status.is_behind
            world.store.calls.clear()
            await world.run(restarted, seconds=RULES.alarm_seconds)

            assert restarted.status.is_behind
            assert restarted.status.state is FollowState.STANDBY
            # It has nothing to copy, so it looks at the root only now and then.
            assert sum(call.operation == "list" for call in world.store.calls) <= 6

        run(scenario)

    def test_a_stream_that_diverged_is_not_claimed(self) -> None:
        """A claim would fence the process that still leads."""

        async def scenario(world: World) -> None:
            other = GrowingStream(epoch=1)
            world.source.append(2)
            leader = world.follower()
            await world.run(leader, seconds=2 * LAG)
            await leader.release()
            other.append(1, records=5)
            other.append(4)
            version = (await world.tier().load_manifest("orders")).version

            await world.run(heir := world.follower(source=other), seconds=2 * LAG)

            assert isinstance(heir.status.error, Diverged)
            assert (await world.tier().load_manifest("orders")).version == version

        run(scenario)


@dataclass
class Rewritten(SourceStream):
    """A stream in files whose broker cuts the segment behind one snapshot, and then writes it again."""

    stream: SourceStream
    segment: Path
    cut_at: int = 0
    cuts: int = 0
    snapshots: int = 0
    _kept: bytes = b""

    @property
    def name(self) -> str:
        """See `SourceStream.name`."""
        return self.stream.name

    async def mark(self) -> Hashable | None:
        """See `SourceStream.mark`."""
        return await self.stream.mark()

    async def snapshot(self, since: Manifest | None = None) -> Snapshot:
        """Return a snapshot, and then cut the file if it is time."""
        self.snapshots += 1
        if self._kept:
            self.segment.write_bytes(self._kept)
            self._kept = b""
        found = await self.stream.snapshot(since)
        if self.snapshots == self.cut_at:
            self._kept, self.cuts = self.segment.read_bytes(), self.cuts + 1
            os.truncate(self.segment, 8)
        return found


class TestDamage:
    def test_ledgers_before_a_damaged_table_are_copied_and_the_stream_pauses(self) -> None:
        async def scenario(world: World) -> None:
            for _ in range(4):
                world.source.append(2)
                world.source.roll()
            world.source.append()
            world.source.damaged = [40]
            await world.run(follower := world.follower(), seconds=2 * LAG)

            assert await world.committed() == 40
            assert isinstance(follower.status.error, Corrupt)

        run(scenario)

    def test_a_snapshot_that_ends_at_damage_is_copied_and_the_stream_pauses(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append(2)
            world.source.damage = Corrupt("chunk", "segment", expected=1, found=2)
            await world.run(follower := world.follower(), seconds=4 * PAUSE_SECONDS)

            assert await world.committed() == 20
            assert (follower.state, world.told(StreamPaused)) == (FollowState.PAUSED, 1)

            world.source.damage = None
            world.source.append(2)
            await world.run(follower, seconds=PAUSE_SECONDS + LAG)
            assert (await world.committed(), follower.state) == (40, FollowState.LEADING)

        run(scenario)

    @pytest.mark.parametrize("at", range(1, 4))
    def test_a_file_that_is_cut_and_written_again_while_it_is_read_pauses_nothing(
        self, tmp_path: Path, at: int
    ) -> None:
        """It is cut to its header behind the snapshot number `at`, and whole again before the next one."""

        write_stream(tmp_path / "orders", simple_chunks(3))
        [segment] = tmp_path.glob("*/*.segment")

        async def scenario(world: World) -> None:
            async with Session() as session:
                [stream] = await session.source(f"rabbitmq://{tmp_path}").streams()
                source = Rewritten(stream, segment=segment)
                follower = world.follower(source=source)  # type: ignore[arg-type]  # no other fields are used
                await world.run(follower, seconds=LAG)
                append_chunks(tmp_path / "orders", simple_chunks(3, first_offset=9))
                source.cut_at = source.snapshots + at
                await world.run(follower, seconds=2 * LAG)

                assert (source.cuts, world.told(StreamPaused), await world.committed()) == (1, 0, 18)

        run(scenario)


class TestATierThatRefuses:
    @pytest.mark.parametrize(
        "error", [NoSpace("the disk is full"), StoreDenied("the key is revoked"), NoSuchKey("no master key")]
    )
    def test_a_tier_that_refuses_for_an_hour_lacks_no_record_afterwards_and_doubles_none(
        self, error: OffloadError
    ) -> None:
        """A full disk, a revoked credential or a master key that is gone, until a person has mended it."""

        async def refuse(operation: str, key: str) -> None:
            if operation in MUTATIONS:
                raise error

        async def scenario(world: World) -> None:
            world.source.append()
            await world.run(follower := world.follower(), seconds=2 * LAG)
            world.store.before, mended = refuse, world.store.before
            world.source.append(3)
            await world.run(follower, seconds=3600)

            assert (follower.state, follower.status.error) == (FollowState.PAUSED, error)
            assert await world.committed() == 10

            world.store.before = mended
            world.source.append()
            await world.run(follower, seconds=PAUSE_SECONDS + LAG)
            assert (await world.committed(), follower.state) == (50, FollowState.LEADING)
            assert (world.told(StreamPaused), world.told(StreamResumed)) == (1, 1)

        run(scenario)


class TestAPauseThatLasts:
    def test_a_process_that_stands_by_resumes_only_when_another_one_has_committed(self) -> None:
        async def scenario(world: World) -> None:
            leader, standby = world.follower(), world.follower()
            world.source.append()
            await world.run(leader, seconds=LAG)
            await world.run(standby, seconds=LAG)
            world.source.error = Denied("no right to read")
            await standby.step()
            world.source.error = None
            world.source.append()
            standby.retry()
            await standby.step()
            assert (standby.state, world.told(StreamResumed)) == (FollowState.PAUSED, 0)

            await world.run(leader, seconds=2 * LAG)
            await world.run(standby, seconds=2 * LAG)
            assert (standby.state, world.told(StreamResumed)) == (FollowState.STANDBY, 1)

        run(scenario)

    def test_each_kind_of_error_is_told_once_and_outlasts_the_pause_of_a_person(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append()
            await world.run(follower := world.follower(), seconds=LAG)
            for error in (Denied("no right to read"), NoSpace("the disk is full"), NoSpace("still full")):
                world.source.error = error
                follower.retry()
                await follower.step()
            assert world.told(StreamPaused) == 2

            follower.hold()
            await follower.step()
            follower.let_go()
            assert (follower.state, follower.status.is_stopped) == (FollowState.PAUSED, True)

        run(scenario)

    def test_a_lead_that_could_not_be_given_up_for_a_person_is_given_up_at_the_next_step(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append()
            await world.run(follower := world.follower(), seconds=2 * LAG)
            world.store.rules = [Rule(Fault.DENY, "create")]
            follower.hold()
            await follower.step()
            assert (await world.tier().load_manifest("orders")).running != ()

            world.store.rules = []
            await follower.step()
            assert (await world.tier().load_manifest("orders")).running == ()

        run(scenario)


class TestALookThatFails:
    def test_what_a_failed_look_did_not_see_is_seen_by_the_next_one(self) -> None:
        """The mark was read before the snapshot failed, and does not change any more."""

        class Busy(GrowingStream):
            async def snapshot(self, since: Manifest | None = None) -> Snapshot:
                self.snapshots += 1
                if self.snapshots == 1:
                    raise TryAgain("the broker is busy")
                return await super().snapshot(since)

        async def scenario(world: World) -> None:
            world.source = Busy()
            world.source.append()
            await world.run(world.follower(), seconds=2 * LAG)

            assert await world.committed() == 10

        run(scenario)

    def test_the_first_failure_after_a_look_that_worked_waits_as_briefly_as_any_first_one(self) -> None:
        async def scenario(world: World) -> None:
            follower, busy = world.follower(), TryAgain("the broker is busy")
            world.source.error = busy
            first, second = await follower.step(), await follower.step()
            world.source.error = None
            await follower.step()
            world.source.error = busy

            assert second > first
            assert await follower.step() == first

        run(scenario)


class TestCost:
    def test_data_that_the_broker_does_not_vouch_for_costs_one_load_of_the_root(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append(3)
            world.source.committed_offset = 0
            await world.run(follower, seconds=100 * LAG)
            assert len(world.store.calls) <= 4

            world.source.committed_offset = 30
            await world.run(follower, seconds=LAG)
            assert await world.committed() == 30

        run(scenario)

    def test_the_vouched_beginning_of_a_ledger_that_ended_waits_for_its_rest(self) -> None:
        """One fragment for the whole ledger costs less than two."""

        async def scenario(world: World) -> None:
            world.source.append(2)
            world.source.roll()
            world.source.append()
            world.source.committed_offset = 10

            await world.run(world.follower(), seconds=RULES.look_seconds + 1)

            assert not any(call.operation == "put" for call in world.store.calls)

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
                await world.run(follower, seconds=LAG)
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

            class LateTurns(LogTurns):
                @asynccontextmanager
                async def turn(self, place: LogPlace | None) -> AsyncGenerator[None, None]:
                    await world.run(leader, seconds=2 * LAG)
                    yield

            late = world.follower(replace(RULES, hold_back_seconds=0.0), source=lagging)
            world.clock.now += LAG
            await late.step()
            world.clock.now += LAG
            await late.step(LateTurns(1))

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
            await world.run(follower, seconds=2 * LAG)
            world.store.rules = [Rule(Fault.FAIL_BEFORE)]
            world.source.append()
            await world.run(follower, seconds=2 * LAG)

            status = follower.status
            assert isinstance(status.error, TryAgain)
            assert (status.committed_offset, status.dispatched_offset, status.lag_records) == (100, 100, 10)

        run(scenario)

    def test_the_lag_is_the_age_of_the_oldest_record_also_in_a_process_that_is_killed_again_and_again(
        self,
    ) -> None:
        """Each life of it stands by, because the root names a writer at work: the one of the first life."""

        async def scenario(world: World) -> None:
            world.source.append(timestamp_ms=int(world.clock.now * 1000))
            await world.run(world.follower(), seconds=LAG)  # killed without a word
            world.source.append(timestamp_ms=(written_ms := int(world.clock.now * 1000)))
            world.source.append(timestamp_ms=written_ms + 500)

            for _ in range(5):
                killed = world.follower()
                assert killed.status.lag_seconds is None
                await world.run(killed, seconds=47.0)
                status, looked_ms = killed.status, killed._root_ms
                assert (status.state, status.waits) == (FollowState.STANDBY, Wait.LEADER)
                assert looked_ms is not None
                assert world.clock.now - 47.0 <= looked_ms / 1000 <= world.clock.now
                assert status.lag_seconds == (looked_ms - written_ms) / 1000
            assert status.is_late
            await world.run(killed, seconds=2 * RULES.takeover_seconds)
            assert (await world.committed(), killed.status.lag_seconds) == (30, 0)

        run(scenario)

    def test_the_lag_of_a_process_that_stands_by_grows_while_it_has_an_error(self) -> None:
        """It does not know whether the leader goes on."""

        async def scenario(world: World) -> None:
            world.source.append()
            await world.run(world.follower(), seconds=LAG)  # killed without a word
            written_ms = int(world.clock.now * 1000)
            world.source.append(timestamp_ms=written_ms)
            standby = world.follower()
            await world.run(standby, seconds=LAG)
            looked_ms = standby._root_ms
            world.source.error = TryAgain("the folder is away")
            await world.run(standby, seconds=5 * LAG)

            status = standby.status
            assert (status.state, standby._root_ms) == (FollowState.STANDBY, looked_ms)
            assert status.lag_seconds == (int(world.clock.now * 1000) - written_ms) / 1000

        run(scenario)

    def test_the_lag_is_not_known_before_the_tier_was_seen(self) -> None:
        """It is late all the same, as soon as this process has seen the records wait for so long."""

        async def scenario(world: World) -> None:
            world.store.rules = [Rule(Fault.FAIL_BEFORE)]
            world.source.append()
            follower = world.follower()
            began_ms = int(world.clock.now * 1000)
            await world.run(follower, seconds=RULES.alarm_seconds + LAG)
            status = follower.status

            assert (status.lag_seconds, status.is_late) == (None, True)
            assert (status.waits, status.waits_since_ms) == (Wait.RETRY, began_ms)

        run(scenario)

    def test_a_record_says_what_it_waits_for(self) -> None:
        async def scenario(world: World) -> None:
            seen = list[Wait]()
            follower = Follower(
                source=world.source,
                offloader=world.tier(),
                rules=RULES,
                env=world.clock.env(),
                emit=lambda event: seen.append(follower.status.waits),
            )

            class NotedTurns(LogTurns):
                @asynccontextmanager
                async def turn(self, place: LogPlace | None) -> AsyncGenerator[None, None]:
                    seen.append(follower.status.waits)
                    yield

            async def note(step: Awaitable[float]) -> None:
                await step
                seen.append(follower.status.waits)

            await note(follower.step())
            world.source.append()
            await note(follower.step())
            world.clock.now += LAG
            await note(follower.step(NotedTurns(1)))
            assert [*dict.fromkeys(seen)] == [Wait.NOTHING, Wait.MORE, Wait.TURN, Wait.COPY]
            assert seen[-1] is Wait.NOTHING
            world.source.committed_offset = world.source.next_offset
            world.source.append()
            world.clock.now += LAG
            await note(follower.step())
            world.clock.now += LAG
            await note(follower.step())
            assert seen[-1] is Wait.BROKER
            world.source.error = Denied("no right")
            await note(follower.step())
            assert seen[-1] is Wait.PERSON

        run(scenario)
