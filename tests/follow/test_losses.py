"""Tests of lost records: the number is exact, a restart counts nothing twice, and no number is guessed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from follower_world import RULES, World, run
from growing_source import GrowingStream
from prometheus_client.parser import text_string_to_metric_families

from offload import StreamWriter, build_chunk, delete_stream, open_tier
from offload.contracts.events import RecordsLost
from offload.follow.follower import Follower
from offload.follow.gaps import SeenTail, lost_of
from offload.follow.pauses import SIGNS_SECONDS
from offload.ground.errors import TryAgain
from offload.log.memory_handle import MemoryHandle
from offload.model.gaps import GapKind, PartEnds, StreamGap, gaps_between, lost_records
from offload.model.part import StreamPart
from offload.parts.whole_stream import WholeStream
from offload.service.metrics import ServiceMetrics
from offload.upkeep.retention import Retention, trim

NEW_PART = replace(RULES, new_part=True)


def lose(world: World, chunks: int) -> int:
    """Append chunks, delete all but the newest as the retention does, and return how many are gone."""
    end = world.source.next_offset
    for _ in range(chunks):
        world.source.roll()
        world.source.append()
    while len(world.source.ledgers) > 1:
        world.source.drop_first_ledger()
    return world.source.first_offset - end


def numbers(follower: Follower) -> tuple[float | None, float | None]:
    """Return `offload_gaps` and `offload_lost_records_total` of a process with this follower."""
    text = ServiceMetrics(lambda: [follower.status]).text().decode()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels == {"stream": "orders"}
    }
    return found.get("offload_gaps"), found.get("offload_lost_records_total")


def told(world: World) -> list[tuple[int, int]]:
    """Return the offsets of the losses that were reported."""
    return [(event.from_offset, event.to_offset) for event in world.events if isinstance(event, RecordsLost)]


def gap(part: int, from_offset: int, to_offset: int, kind: GapKind = GapKind.LOST) -> StreamGap:
    return StreamGap(stream="orders", part=part, from_offset=from_offset, to_offset=to_offset, kind=kind)


class TestAFollower:
    def test_counts_exactly_what_the_retention_deleted_and_a_restart_counts_nothing_twice(self) -> None:
        async def scenario(world: World) -> None:
            follower, lost, ends = world.follower(NEW_PART), 0, [10]
            world.source.append()
            await world.run(follower, seconds=60)
            assert numbers(follower) == (0, 0)
            for chunks in (3, 5):
                lost += lose(world, chunks)
                await world.run(follower, seconds=60)
                ends.append(world.source.next_offset)

            assert lost == 60
            assert numbers(follower) == (2, 60)
            assert told(world) == [(10, 30), (40, 80)]
            await follower.release()
            world.source.append()
            restarted = world.follower(NEW_PART)
            await world.run(restarted, seconds=60)
            assert numbers(restarted) == (2, 60)
            assert len(told(world)) == 2

        run(scenario)

    def test_counts_a_gap_at_which_it_pauses_while_the_retention_goes_on(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower()
            world.source.append()
            await world.run(follower, seconds=60)
            lose(world, 3)
            await world.run(follower, seconds=60)
            assert numbers(follower) == (1, 20)
            assert follower.status.lag_records == 10, "what is lost does not wait for a copy"

            lose(world, 2)
            await world.run(follower, seconds=SIGNS_SECONDS)
            assert numbers(follower) == (1, 40), "not only at the next try, minutes later"
            await world.run(follower, seconds=400)
            assert numbers(follower) == (1, 40)
            assert told(world) == [(10, 30), (30, 50)]

        run(scenario)

    def test_reports_only_the_rest_of_a_gap_behind_which_somebody_went_on(self) -> None:
        async def scenario(world: World) -> None:
            follower, other = world.follower(), world.follower(NEW_PART)
            world.source.append()
            await world.run(follower, seconds=60)
            lose(world, 3)
            await world.run(follower, seconds=60)
            lose(world, 2)
            await world.run(other, seconds=200)
            world.events.clear()
            world.source.append()
            await world.run(follower, seconds=700)

            assert follower.status.part == 2
            assert numbers(follower) == (1, 40)
            assert told(world) == [(30, 50)]

        run(scenario)

    def test_forgets_a_gap_whose_records_are_in_the_source_again(self) -> None:
        async def scenario(world: World) -> None:
            follower, whole = world.follower(), GrowingStream()
            for source in (world.source, whole):
                source.append()
            await world.run(follower, seconds=60)
            lose(world, 3)
            await world.run(follower, seconds=60)
            whole.append(4)
            follower.source = whole
            await world.run(follower, seconds=400)

            assert numbers(follower) == (0, 0)

        run(scenario)

    def test_claims_no_number_before_it_has_seen_the_tier(self) -> None:
        async def scenario(world: World) -> None:
            first = world.follower(NEW_PART)
            world.source.append()
            await world.run(first, seconds=60)
            lose(world, 3)
            await world.run(first, seconds=60)
            await first.release()
            world.source.append()
            is_down = True

            async def before(operation: str, key: str) -> None:
                if is_down:
                    raise TryAgain("the store is down")

            world.store.before = before
            follower = world.follower(NEW_PART)
            await world.run(follower, seconds=60)
            assert numbers(follower) == (None, None)

            is_down = False
            await world.run(follower, seconds=120)
            assert numbers(follower) == (1, 20)

        run(scenario)

    def test_counts_no_loss_in_another_history(self) -> None:
        async def scenario(world: World) -> None:
            follower = world.follower(NEW_PART)
            world.source.append(3)
            await world.run(follower, seconds=60)
            begun_again = GrowingStream(epoch=2)
            begun_again.append(5)
            follower.source = begun_again
            await world.run(follower, seconds=60)

            assert follower.status.part == 2
            assert numbers(follower) == (1, 0)
            assert told(world) == []
            assert await WholeStream(world.tier(), "orders").gaps() == [gap(2, 30, 0, GapKind.OTHER_HISTORY)]

        run(scenario)


def test_the_tail_of_a_stream_is_lost_although_no_tier_was_ever_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_tier(str(tmp_path / "tier")) as tier:
            assert await lost_of(tier, "orders", SeenTail(2, 5)) == range(2, 5)

    asyncio.run(scenario())


class TestGapsOfATier:
    def test_the_gap_behind_a_part_with_data_is_exact(self) -> None:
        first, second = PartEnds(0, 10, 1), PartEnds(30, 40, 1)

        assert gaps_between("orders", {1: first, 2: second}) == [gap(2, 10, 30)]
        assert gaps_between("orders", {1: first}) == []

    def test_parts_that_touch_have_no_gap_between_them(self) -> None:
        assert gaps_between("orders", {1: PartEnds(0, 10, 1), 2: PartEnds(10, 40, 1)}) == []

    def test_the_part_behind_a_restore_says_nothing_about_a_gap(self) -> None:
        """Its offsets are those of the stream that was restored."""
        ends = {1: PartEnds(0, 10, 1), 2: PartEnds(30, 40, 1)}

        assert gaps_between("orders", ends, behind=[2]) == []

    def test_a_number_behind_trimmed_data_is_only_an_upper_bound(self) -> None:
        async def scenario(world: World) -> None:
            world.source.append()
            follower = world.follower(NEW_PART)
            await world.run(follower, seconds=60)
            lose(world, 3)
            await world.run(follower, seconds=60)
            world.source.roll()
            world.source.append()
            await world.run(follower, seconds=60)
            tier = world.tier()
            assert await WholeStream(tier, "orders").gaps() == [gap(2, 10, 30)]

            for name in ("orders", "orders-part-2"):
                await trim(tier, name, Retention(before_offset=40))

            found = await WholeStream(tier, "orders").gaps()
            assert [(each.kind, each.records) for each in found] == [(GapKind.AT_MOST, 30)]
            assert lost_records(found) == 0

        run(scenario)

    def test_a_part_that_was_deleted_makes_no_record_lost(self) -> None:
        async def scenario(world: World) -> None:
            tier = world.tier()
            for number, offset in ((1, 0), (2, 10), (3, 40)):
                part = StreamPart("orders", number)
                if number > 1:
                    await tier.begin_part(part, before=None)
                writer = await StreamWriter.claim(tier, part.name, is_new=True, first_offset=offset)
                chunk = build_chunk([b"x"] * 10, offset=offset, timestamp_ms=1, epoch=1)
                await writer.offload([MemoryHandle([chunk])])
            assert await WholeStream(tier, "orders").gaps() == [gap(3, 20, 40)]

            await delete_stream(tier, "orders-part-2")

            assert await WholeStream(tier, "orders").gaps() == [gap(3, 10, 40, GapKind.AT_MOST)]

        asyncio.run(scenario(World()))
