"""Readers of a disk and a tier at each edge: hand-overs, damage, outages, places, parts, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import count

import pytest
from two_sides import HOLD_BACK, STREAM, Disk, OneStream, Segment, SegmentHandle, World

from offload import (
    AtEdge,
    AtOffset,
    AtTime,
    Corrupt,
    Diverged,
    NotOffloaded,
    ReadPriority,
    Retention,
    Snapshot,
    StreamDeleted,
    TieredReader,
    TryAgain,
    delete_stream,
    sync,
    trim,
)
from offload.contracts.events import Event, Skipped
from offload.model.manifest import Manifest
from offload.model.position import PartOffset, Position
from offload.read.reader import Messages
from offload.store.faults import Fault, Rule
from offload.two_sides.choice import ReadSide
from offload.two_sides.local_side import TRIES, Believed

LOCAL_FIRST, TIER_FIRST = ReadPriority.LOCAL_FIRST, ReadPriority.TIER_FIRST
LOCAL_ONLY, TIER_ONLY = ReadPriority.LOCAL_ONLY, ReadPriority.TIER_ONLY
BOTH = pytest.mark.parametrize("priority", [LOCAL_FIRST, TIER_FIRST])


def run(scenario: Callable[[World], Awaitable[None]], priority: ReadPriority = LOCAL_FIRST) -> None:
    async def main() -> None:
        world = World(priority=priority)
        async with asyncio.timeout(60):
            await scenario(world)
            await world.close()

    asyncio.run(main())


async def filled(world: World, *, segments: int = 3, on_tier: int = 2) -> None:
    """Fill the disk with segments of ten records in two chunks. The tier has the oldest of them."""
    for number in range(segments):
        for _ in range(2):
            world.disk.append(5)
        world.disk.roll()
        if number + 1 == on_tier:
            await world.copy()


async def read_all(world: World) -> list[int]:
    """Read from the world's place to the end, by a read that ends. Return the offsets."""
    await world.open(follow=False)
    before = len(world.delivered)
    await world.read(1000)
    return [offset for offset, _ in world.delivered[before:]]


def counts(world: World) -> tuple[int, int]:
    """Return the numbers of messages from the disk and from the tier."""
    assert world.reader is not None
    return world.reader.records[ReadSide.LOCAL], world.reader.records[ReadSide.TIER]


class TestTheEnd:
    def test_a_read_ends_with_what_was_there_when_it_began(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            await world.open(follow=False)
            await world.read(1)
            world.disk.append(5)
            await world.read(1000)
            assert world.has_ended
            assert world.place == 30

        run(scenario)

    def test_what_is_new_waits_for_the_hold_back_and_what_is_on_the_tier_does_not(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            began = world.clock.now
            await world.open(follow=False)
            await world.read(4, turns=1)
            assert (world.place, world.clock.now) == (20, began)
            await world.read(1000)
            assert world.place == 30
            assert world.clock.now - began >= HOLD_BACK

        run(scenario)

    def test_a_broker_that_vouches_for_less_is_believed(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.disk.committed_offset = 25
            assert await read_all(world) == [*range(25)]
            assert world.has_ended

        run(scenario)

    def test_the_next_fragment_lands_while_a_reader_is_at_the_end(self) -> None:
        """It repeats nothing of what the disk had first."""

        async def scenario(world: World) -> None:
            await filled(world)
            await world.open()
            await world.read(1000)
            assert world.place == 30
            await world.copy()
            assert not await world.read(1)
            world.disk.append(5)
            await world.copy()
            await world.read(1000)
            assert world.place == 35

        run(scenario, TIER_FIRST)

    def test_a_stream_that_is_not_on_the_tier_yet_is_read_and_found_there_later(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=0)
            await world.open()
            await world.read(1000)
            assert world.place == 30
            await world.copy()
            world.disk.append(5)
            await world.copy()
            world.disk.is_gone = True
            await world.read(1000)
            assert world.place == 35
            assert counts(world) == (30, 5)

        run(scenario)


class TestHandOvers:
    @BOTH
    def test_files_that_the_broker_deletes_are_read_on_the_tier(self, priority: ReadPriority) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=3)
            await world.open()
            await world.read(1)
            for _ in range(2):
                world.disk.retain()
            await world.read(1000)
            assert world.place == 40
            assert world.skipped == []

        run(scenario, priority)

    @BOTH
    def test_a_trim_of_the_tier_leads_to_the_disk(self, priority: ReadPriority) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            await world.open()
            await world.read(1)
            await world.trim(20)
            await world.read(1000)
            assert world.place == 30
            assert world.skipped == []

        run(scenario, priority)

    def test_a_trim_within_the_tier_leads_to_the_disk_and_back(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            await world.open()
            await world.read(1)
            await world.trim(20)
            await world.read(1000)
            assert world.skipped == []
            assert counts(world) == (10, 20)

        run(scenario, TIER_FIRST)

    def test_offsets_that_are_on_neither_side_are_reported_once(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=1)
            await world.open()
            await world.read(2)
            for _ in range(3):
                world.disk.retain()
            world.disk.append(5)
            await world.read(1000)
            assert world.skipped == [(10, 30)]
            assert world.place == 45

        run(scenario, TIER_FIRST)

    @BOTH
    def test_what_was_copied_and_deleted_at_the_moment_of_a_read_is_not_skipped(
        self, priority: ReadPriority
    ) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=1)
            await world.open()
            if priority is LOCAL_FIRST:
                world.disk.retain()  # so that it begins on the tier
            await world.read(2)

            async def act() -> None:
                await world.copy()
                for _ in range(2):
                    world.disk.retain()

            world.disk.before_read = 10, act
            await world.read(1000)
            assert world.skipped == []
            assert world.place == 40

        run(scenario, priority)

    @pytest.mark.parametrize("look", range(1, 6))
    def test_what_was_copied_and_deleted_between_the_looks_at_both_sides_is_not_skipped(
        self, look: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The tier was looked at before the copy, and the disk after the deletion."""

        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=1)
            await world.open()
            await world.read(2)
            whole, looks = world.disk.snapshot, count(1)

            async def snapshot(since: Manifest | None = None) -> Snapshot:
                if next(looks) == look:
                    await world.copy()
                    for _ in range(3):
                        world.disk.retain()
                return await whole(since)

            monkeypatch.setattr(world.disk, "snapshot", snapshot)
            await world.read(1000)
            assert world.skipped == []
            assert world.place == 40

        run(scenario, TIER_FIRST)

    @BOTH
    @pytest.mark.parametrize("snapshots", [1, TRIES])
    def test_files_that_go_away_while_they_are_compared_do_not_end_a_read(
        self, snapshots: int, priority: ReadPriority, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The files of the first snapshots cannot be opened. The tier has the beginning, and answers."""

        async def scenario(world: World) -> None:
            await filled(world)
            whole, taken = world.disk.snapshot, count(1)

            async def snapshot(since: Manifest | None = None) -> Snapshot:
                found, is_gone = await whole(since), next(taken) <= snapshots
                for segment in world.disk.segments:
                    segment.is_deleted = is_gone
                return found

            monkeypatch.setattr(world.disk, "snapshot", snapshot)
            assert await read_all(world) == [*range(30)]
            assert world.error is None

        run(scenario, priority)

    def test_files_that_go_away_while_the_last_delivered_chunk_is_compared_do_not_end_a_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No chunk is on both sides, so the snapshot is compared with what was delivered."""

        async def scenario(world: World) -> None:
            await filled(world, on_tier=1)
            world.disk.retain()
            whole, is_next_gone = world.disk.snapshot, list[bool]()

            async def act() -> None:
                is_next_gone.append(True)
                for segment in world.disk.segments:
                    segment.is_deleted = True

            async def snapshot(since: Manifest | None = None) -> Snapshot:
                is_gone = bool(is_next_gone) and is_next_gone.pop()
                for segment in world.disk.segments:
                    segment.is_deleted = is_gone
                return await whole(since)

            monkeypatch.setattr(world.disk, "snapshot", snapshot)
            world.disk.before_read = 20, act
            assert await read_all(world) == [*range(30)]
            assert world.disk.before_read == (20, None)
            assert (world.error, is_next_gone) == (None, [])

        run(scenario)

    def test_the_tier_is_looked_at_again_before_the_disk_is_read_behind_it(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.disk.committed_offset = 30
            await world.open(follow=False)
            await world.copy()
            await world.read(1000)
            assert counts(world) == (0, 30)

        run(scenario, TIER_FIRST)

    def test_no_file_is_held_while_the_tier_is_read(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            world.disk.damaged = {5}
            await world.open()
            await world.read(1)
            assert world.disk.files_open > 0
            await world.read(1)
            assert counts(world) == (5, 5)
            assert world.disk.files_open == 0

        run(scenario)

    def test_an_hour_of_rest_in_a_segment_holds_two_files_and_loses_nothing(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=4)
            await world.open()
            await world.read(1)
            assert world.disk.files_open == 2, "that which is read, and the newest, which was compared"
            for _ in range(3):
                world.disk.retain()
            await world.turn(3600)
            await world.read(1000)
            assert world.place == 40
            assert world.disk.files_open == 0, "a reader that waits holds no file"

        run(scenario)

    def test_files_that_were_read_are_closed(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=8, on_tier=8)
            await world.open()
            for _ in range(16):
                await world.read(1)
                assert world.disk.files_open <= 2

        run(scenario)

    def test_readers_that_are_closed_at_once_leave_nothing(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=3)
            reader = await TieredReader.open(world.disk, world.kept, env=world.env())
            readers = [reader.follow(PartOffset(1, number % 40)) for number in range(50)]
            waiting = [asyncio.ensure_future(anext(each)) for each in readers]
            await asyncio.sleep(0.01)
            for each in waiting:
                each.cancel()
            await asyncio.wait(waiting)
            await asyncio.gather(*(each.aclose() for each in readers))

        run(scenario)


class TestDamage:
    @pytest.mark.parametrize("refuses", [False, True])
    def test_a_damaged_chunk_on_disk_is_read_on_the_tier_and_reported(self, refuses: bool) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.disk.damaged, world.disk.refuses_damage = {5}, refuses
            assert await read_all(world) == [*range(30)]
            assert counts(world) == (25, 5)
            assert [damage.stream for damage in world.damage] == [STREAM]

        run(scenario)

    @pytest.mark.parametrize("refuses", [False, True])
    def test_a_damaged_chunk_that_only_the_disk_has_ends_the_read_behind_the_sound_ones(
        self, refuses: bool
    ) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.disk.damaged, world.disk.refuses_damage = {25}, refuses
            assert await read_all(world) == [*range(25)]
            assert isinstance(world.error, Corrupt)
            assert len(world.damage) == 1

        run(scenario)

    def test_a_follower_ends_with_the_damage_at_which_its_source_ends(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would wait for ever for what the source cannot show."""
        damage, whole = Corrupt("segment", "here", expected="a header", found="none"), Disk.snapshot

        async def ends_at_damage(disk: Disk, since: Manifest | None = None) -> Snapshot:
            return replace(await whole(disk, since), damage=damage)

        async def scenario(world: World) -> None:
            await filled(world)
            monkeypatch.setattr(Disk, "snapshot", ends_at_damage)
            await world.open()
            await world.read(1000)
            assert (world.place, world.error) == (30, damage)

        run(scenario)

    def test_a_tail_that_is_rewritten_under_a_snapshot_is_no_damage(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.disk.committed_offset = 30
            await world.open()
            await world.read(4)
            world.disk.cut(25)
            world.disk.append(2)
            world.disk.append(3)
            await world.read(1000)
            assert world.place == 30
            assert world.damage == []

        run(scenario)

    def test_damage_on_the_tier_leads_to_the_disk(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            for key, value in [*world.objects.items()]:
                if key.endswith(".fragment"):
                    world.objects[key] = bytes([*value[:60], value[60] ^ 1, *value[61:]])
            assert await read_all(world) == [*range(30)]
            assert counts(world)[0] == 30
            assert len(world.damage) == 1

        run(scenario, TIER_FIRST)

    def test_only_the_disk_is_read_while_the_store_is_down(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            await world.open()
            await world.read(1)
            world.store.rules.append(Rule(Fault.FAIL_BEFORE, "get"))
            world.store.rules.append(Rule(Fault.FAIL_BEFORE, "list"))
            world.disk.append(5)
            await world.read(1000)
            assert world.place == 35

        run(scenario, TIER_FIRST)


class TestOutages:
    def test_the_tier_goes_on_while_the_source_is_gone_and_at_its_end_it_is_an_error(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.disk.is_gone = True
            await world.open(follow=False)
            await world.read(1000)
            assert world.place == 20
            assert isinstance(world.error, TryAgain)
            assert "the source is gone for now" in str(world.error)

        run(scenario)

    def test_a_follower_waits_for_a_source_that_is_gone(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.disk.is_gone = True
            await world.open()
            assert not await world.read(1000)
            assert world.place == 20
            world.disk.is_gone = False
            await world.read(1000)
            assert world.place == 30

        run(scenario)

    def test_a_deleted_stream_ends_the_reader(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            await world.open()
            await world.read(1000)
            await delete_stream(world.others(), STREAM)
            await world.read(1)
            assert isinstance(world.error, StreamDeleted)

        run(scenario)


class TestHistories:
    def test_a_source_of_another_history_is_refused_before_its_first_record(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            world.disk.cut(25)
            world.disk.append(8)
            assert await read_all(world) == []
            assert isinstance(world.error, Diverged)

        run(scenario)

    def test_a_cut_below_what_was_delivered_is_an_error_and_no_splice(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            await world.open()
            await world.read(1000)
            world.disk.cut(25)
            world.disk.append(15)
            await world.read(1000)
            assert world.place == 30
            assert isinstance(world.error, Diverged)

        run(scenario)

    def test_a_cut_below_what_was_delivered_is_an_error_before_the_source_has_grown_again(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            await world.open()
            await world.read(1000)
            world.disk.cut(25)
            await world.read(1)
            assert isinstance(world.error, Diverged)

        run(scenario)

    def test_a_tier_that_gets_another_history_behind_a_gap_is_noticed(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=1)
            ours, world.disk = world.disk, Disk()
            await filled(world, segments=1, on_tier=0)
            world.disk.epoch = 2
            await filled(world, segments=3, on_tier=0)
            ours, world.disk = world.disk, ours
            for _ in range(2):
                world.disk.retain()
            await world.open()
            await world.read(1000)
            assert (world.place, world.skipped) == (40, [(10, 20)])
            await world.copy(ours)
            await world.read(1)
            assert isinstance(world.error, Diverged)

        run(scenario)

    def test_a_tier_with_another_history_than_what_was_delivered_is_refused(self) -> None:
        """The source is gone, so only the tier can show it."""

        async def scenario(world: World) -> None:
            await filled(world)
            await world.open()
            await world.read(1000)
            world.disk.cut(25)
            world.disk.append(15)
            await world.copy()
            world.disk.is_gone = True
            await world.read(1000)
            assert world.place == 30
            assert isinstance(world.error, Diverged)

        run(scenario)

    @pytest.mark.parametrize("lost", [1, 2], ids=["right behind the tier", "behind a hole"])
    def test_leader_epochs_never_fall_where_no_chunk_can_be_compared(self, lost: int) -> None:
        """The tier has the records of leader 2, and the disk behind it has those of leader 1."""

        async def scenario(world: World) -> None:
            world.disk.epoch = 2
            await filled(world, segments=1, on_tier=1)
            world.disk.epoch = 1
            await filled(world, on_tier=0)
            for _ in range(lost):
                world.disk.retain()
            assert await read_all(world) == [*range(10)]
            assert isinstance(world.error, Diverged)
            assert "has leader epoch 1, but the chunk that was read before has 2" in str(world.error)

        run(scenario)

    def test_leader_epochs_never_fall_behind_a_hole_of_one_side(self) -> None:
        async def scenario(world: World) -> None:
            world.disk.epoch = 2
            await filled(world, segments=1, on_tier=0)
            await world.open()
            await world.read(1000)
            world.disk.epoch = 1
            await filled(world, on_tier=0)
            world.disk.retain()
            world.disk.retain()
            await world.read(1000)
            assert (world.place, world.skipped) == (20, [(10, 20)])
            assert isinstance(world.error, Diverged)
            assert "has leader epoch 1, but the chunk that was read before has 2" in str(world.error)

        run(scenario)

    def test_a_source_that_was_cut_is_believed_less(self) -> None:
        """What a new leader wrote in the place of records that had been held back long enough waits again."""

        async def scenario(world: World) -> None:
            believed = Believed(world.disk, HOLD_BACK, world.env())

            async def end() -> int:
                return await believed.end(await world.disk.snapshot())

            await filled(world, segments=1, on_tier=0)
            assert await end() == 0
            world.clock.now += 2 * HOLD_BACK
            assert await end() == 10
            world.disk.cut(5)
            assert await end() == 5
            world.disk.append(5)
            assert await end() == 5
            world.clock.now += 2 * HOLD_BACK
            assert await end() == 10

        run(scenario)

    def test_a_source_that_ends_before_the_tier_is_read_as_far_as_it_goes(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            world.disk.cut(25)
            world.disk.epoch = 1
            await world.open()
            await world.read(1000)
            assert counts(world) == (25, 5)
            world.disk.append(5)
            world.disk.append(5)
            await world.read(1000)
            assert counts(world) == (30, 5)

        run(scenario)

    def test_a_cut_below_what_was_delivered_is_no_loss_if_the_tier_has_it_to_its_end(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            await world.open()
            await world.read(1000)
            await world.copy()
            world.disk.cut(25)
            world.disk.epoch = 1
            assert world.reader is not None
            await world.reader.refresh()
            await world.read(1)
            assert (world.place, world.error) == (30, None)
            world.disk.append(5)
            world.disk.append(5)
            await world.read(1)
            assert (world.place, world.error) == (35, None)

        run(scenario)

    @pytest.mark.parametrize("committed", [None, 25])
    def test_a_source_that_ends_before_the_tier_with_another_history_is_left_alone_until_it_has_grown(
        self, committed: int | None
    ) -> None:
        """It may be a replica that has not cut its tail yet, whatever its broker vouches for."""

        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            world.disk.cut(20)
            world.disk.append(5)
            world.disk.committed_offset = committed
            await world.open()
            await world.read(1000)
            assert counts(world) == (0, 30)
            world.disk.append(8)
            await world.read(1000)
            assert world.place == 30
            assert isinstance(world.error, Diverged)

        run(scenario)


class TestParts:
    def test_a_part_that_begins_behind_a_gap_is_read_where_the_disk_was(self) -> None:
        """The reader had delivered data of the disk behind the gap, before the part began."""

        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=1)
            for _ in range(2):
                world.disk.retain()
            await world.open()
            await world.read(1000)
            assert (world.place, world.skipped) == (40, [(10, 20)])
            await self.sync(world)
            world.disk.append(5)
            await self.sync(world)
            world.disk.is_gone = True
            assert await world.read(1)
            assert (world.place, world.part) == (45, 2)

        run(scenario)

    def test_a_part_with_another_history_is_refused(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=1)
            for _ in range(2):
                world.disk.retain()
            await world.open()
            await world.read(1000)
            world.disk.cut(35)
            world.disk.append(15)
            await self.sync(world)
            await world.read(1000)
            assert world.place == 40
            assert isinstance(world.error, Diverged)

        run(scenario)

    @pytest.mark.parametrize("end", [40, 50])
    def test_a_part_is_compared_with_what_was_delivered_although_the_disk_goes_on_behind_it(
        self, end: int
    ) -> None:
        """The disk has another history, of which it has deleted what could be compared. The part has it.

        What was delivered ends at offset 40.
        """

        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=1)
            for _ in range(2):
                world.disk.retain()
            await world.open()
            await world.read(1000)
            assert world.place == 40
            world.disk.cut(35)
            for records in (5, 10, 5):
                world.disk.append(records)
                world.disk.roll()
                if world.disk.next_offset == end:
                    await self.sync(world)
            for _ in range(2):
                world.disk.retain()
            assert world.disk.first_offset == 40
            assert world.reader is not None
            await world.reader.refresh()
            await world.read(1000)
            assert world.place == 40
            assert isinstance(world.error, Diverged)

        run(scenario)

    @BOTH
    def test_all_parts_are_read_in_order(self, priority: ReadPriority) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=1)
            for _ in range(2):
                world.disk.retain()
            await self.sync(world)
            world.disk.append(5)
            assert await read_all(world) == [*range(10), *range(20, 45)]
            assert world.skipped == [(10, 20)]

        run(scenario, priority)

    @BOTH
    def test_a_forked_part_is_read_from_its_beginning_and_the_step_back_is_reported(
        self, priority: ReadPriority
    ) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            await self.fork(world)
            read, events = await self.read(world, priority)
            assert read == [(part, offset) for part in (1, 2) for offset in range(30)]
            assert events == [Skipped(stream=STREAM, from_offset=30, to_offset=0, part=2)]

        run(scenario, priority)

    @BOTH
    def test_a_part_without_data_is_passed_over_without_an_event(self, priority: ReadPriority) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            await self.fork(world)
            world.disk.append(5)
            await self.sync(world)
            others = world.others()
            await trim(others, f"{STREAM}-part-2", Retention(before_offset=35))
            await self.sync(world)
            read, events = await self.read(world, priority)
            assert read == [*((1, offset) for offset in range(30)), *((3, offset) for offset in range(35))]
            assert events == [Skipped(stream=STREAM, from_offset=30, to_offset=0, part=3)]

        run(scenario, priority)

    @BOTH
    def test_the_last_message_is_that_of_the_source_if_the_newest_part_on_the_tier_has_none(
        self, priority: ReadPriority
    ) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            await self.fork(world)
            others = world.others()
            await trim(others, f"{STREAM}-part-2", Retention(before_offset=30))
            world.disk.roll()
            world.disk.append(5)
            for _ in range(4):
                world.disk.retain()
            assert world.disk.first_offset == 30
            reader = await TieredReader.open(world.disk, world.kept, priority=priority, env=world.env())

            assert await reader.place_of(AtEdge.LAST) == PartOffset(2, 30)

        run(scenario)

    def test_a_source_is_compared_with_a_later_part_of_the_same_end_by_its_own_last_chunk(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            reader = await TieredReader.open(world.disk, world.kept, env=world.env())
            assert await reader.place_of(AtEdge.NEXT) == PartOffset(1, 30)
            await self.fork(world)
            await reader.refresh()
            assert await reader.place_of(AtEdge.NEXT) == PartOffset(2, 30)

        run(scenario)

    @staticmethod
    async def read(world: World, priority: ReadPriority) -> tuple[list[tuple[int, int]], list[Event]]:
        """Read all parts. Return the part and the offset of each message, and the events."""
        events = list[Event]()
        reader = await TieredReader.open(
            world.disk, world.kept, priority=priority, env=world.env(), emit=events.append
        )
        found = [
            (batch.part, batch.offset + k)
            async for batch in reader.messages(PartOffset(1, 0))
            for k in range(len(batch.bodies))
        ]
        return found, events

    async def fork(self, world: World) -> None:
        """Let a new leader rewrite the last chunk of a disk of 30 records. The stream goes on in part 2."""
        world.disk.cut(25)
        world.disk.append(5)
        await self.sync(world)

    @staticmethod
    async def sync(world: World) -> None:
        others = world.others()
        [report] = [each async for each in sync(OneStream(world.disk), others, new_part=True)]
        assert report.error is None


class TestPlaces:
    @pytest.mark.parametrize(
        ("position", "expected"),
        [
            (AtEdge.FIRST, 0),
            (AtEdge.LAST, 25),
            (AtEdge.NEXT, 30),
            (AtOffset(7), 7),
            (AtOffset(23), 23),
            (AtOffset(30), 30),
            (AtTime(0), 0),
            (AtTime(2), 25),
            (AtTime(3), 30),
        ],
    )
    @BOTH
    def test_a_position_is_one_in_both_sides(
        self, position: Position, expected: int, priority: ReadPriority
    ) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.disk.cut(25)
            world.disk.append(5)  # of epoch 2, which is its time as well
            world.disk.retain()
            reader = await TieredReader.open(world.disk, world.kept, priority=priority, env=world.env())
            assert await reader.place_of(position) == PartOffset(1, expected)

        run(scenario)

    def test_a_place_is_found_in_a_new_snapshot_although_the_mark_of_the_source_is_as_before(self) -> None:
        """The files of the first snapshot are gone, and nothing of the mark shows it."""

        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            snapshot, taken = world.disk.snapshot, list[Snapshot]()

            async def with_a_lost_file(since: Manifest | None = None) -> Snapshot:
                found = await snapshot(since)
                taken.append(found)
                if len(taken) == 1:
                    handle = found.ledgers[0]
                    assert isinstance(handle, SegmentHandle)
                    handle._segment = Segment(handle._segment.chunks, is_deleted=True)
                return found

            world.disk.snapshot = with_a_lost_file  # type: ignore[method-assign]  # for this test
            reader = await TieredReader.open(world.disk, world.kept, env=world.env())

            assert await reader.place_of(AtTime(0)) == PartOffset(1, 0)
            assert len(taken) == 2

        run(scenario)

    @BOTH
    def test_the_next_offset_is_that_of_the_tier_if_the_source_ends_before_it(
        self, priority: ReadPriority
    ) -> None:
        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            world.disk.cut(25)
            reader = await TieredReader.open(world.disk, world.kept, priority=priority, env=world.env())
            assert await reader.place_of(AtEdge.NEXT) == PartOffset(1, 30)

        run(scenario, priority)

    @pytest.mark.parametrize(
        ("priority", "first"), [(LOCAL_FIRST, 10), (TIER_FIRST, 10), (LOCAL_ONLY, 10), (TIER_ONLY, 20)]
    )
    def test_what_was_trimmed_from_the_tier_is_found_on_the_disk(
        self, priority: ReadPriority, first: int
    ) -> None:
        async def scenario(world: World) -> None:
            await filled(world, segments=4, on_tier=3)
            world.disk.retain()
            await world.trim(20)
            reader = await TieredReader.open(world.disk, world.kept, priority=priority, env=world.env())
            for position in (AtEdge.FIRST, AtOffset(3), AtTime(0)):
                assert await reader.offset_of(position) == first
            if priority is not TIER_ONLY:
                assert await reader.offset_of(AtOffset(15)) == 15

        run(scenario)

    @BOTH
    def test_the_first_place_is_that_of_the_tier_and_the_last_one_that_of_the_disk_behind_it(
        self, priority: ReadPriority
    ) -> None:
        """Both sides have lost their beginning, and the disk has one chunk behind the tier."""

        async def scenario(world: World) -> None:
            await filled(world, on_tier=3)
            world.disk.append(5)
            for _ in range(2):
                world.disk.retain()
            await world.trim(10)
            reader = await TieredReader.open(world.disk, world.kept, priority=priority, env=world.env())
            assert (world.disk.first_offset, world.disk.next_offset) == (20, 35)
            assert await reader.offset_of(AtOffset(3)) == 10
            assert await reader.offset_of(AtEdge.LAST) == 30

        run(scenario, priority)

    @pytest.mark.parametrize("priority", ReadPriority)
    def test_an_offset_beyond_both_ends_is_refused(self, priority: ReadPriority) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            reader = await TieredReader.open(world.disk, world.kept, priority=priority, env=world.env())
            with pytest.raises(NotOffloaded, match="31 is beyond"):
                await anext(reader.messages(31))

        run(scenario)

    @pytest.mark.parametrize(
        ("priority", "expected"),
        [(LOCAL_FIRST, (20, 10)), (TIER_FIRST, (10, 20)), (LOCAL_ONLY, (20, 0)), (TIER_ONLY, (0, 20))],
    )
    def test_each_priority_reads_its_side(self, priority: ReadPriority, expected: tuple[int, int]) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.disk.retain()
            world.place = 10 if priority is LOCAL_ONLY else 0
            await read_all(world)
            assert counts(world) == expected

        run(scenario, priority)

    def test_the_tier_is_sent_nothing_by_a_reader_of_the_disk_alone(self) -> None:
        async def scenario(world: World) -> None:
            await filled(world)
            world.store.calls.clear()
            assert await read_all(world) == [*range(30)]
            assert world.store.calls == []

        run(scenario, LOCAL_ONLY)


def test_messages_have_the_shape_that_a_reader_of_a_tier_gives_them() -> None:
    async def scenario(world: World) -> None:
        await filled(world)
        reader = await TieredReader.open(world.disk, world.kept, env=world.env())
        batches = reader.messages(3)
        expected = Messages(3, 1, [b"3 in 1", b"4 in 1"], 1)
        assert await anext(batches) == expected
        await batches.aclose()

    run(scenario)
