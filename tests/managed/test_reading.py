"""Reads of a managed ledger: the log answers what it has by itself, and whatever is left out is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from managed_world import MANUAL, STREAM, World, bodies, fill, run

from offload.contracts.events import DamageFound, Skipped, StreamPaused
from offload.ground.errors import Diverged, Fenced
from offload.managed.ledger import LedgerState, ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.model.position import AtEdge, AtTime, PartOffset, Position
from offload.read.batches import Messages
from offload.store.faults import Fault, Rule
from offload.two_sides.choice import ReadPriority
from offload.upkeep.retention import Retention, trim

LAG = LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=60, roll_seconds=None)
TIER_FIRST = LedgerPolicy(
    offload_size_bytes=None,
    deletion_lag_seconds=None,
    roll_seconds=None,
    read_priority=ReadPriority.TIER_FIRST,
)


async def offsets(batches: AsyncGenerator[Messages, None], count: int) -> list[int]:
    """Return the offsets of the next records, at least so many."""
    found: list[int] = []
    while len(found) < count:
        batch = await asyncio.wait_for(anext(batches), 60)
        found += range(batch.offset, batch.offset + len(batch.bodies))
    return found


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, 0),
        (3, 3),
        (25, None),
        (PartOffset(1, 12), 12),
        (AtEdge.FIRST, 0),
        (AtEdge.LAST, 24),
        (AtEdge.NEXT, None),
        (AtTime(0), 0),
    ],
)
def test_a_read_that_the_log_can_answer_sends_the_tier_no_request(
    start: Position | int | PartOffset, expected: int | None
) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(MANUAL)
        await fill(ledger, 10, 10, 5)
        await ledger.offload_prefix(20)
        sent = len(world.store.calls)

        found = [batch.offset async for batch in ledger.read(start)]

        assert found == ([] if expected is None else [*range(expected, 25)])
        assert len(world.store.calls) == sent

    run(scenario)


def test_followers_of_the_log_send_no_request_whenever_they_began() -> None:
    """One began before the first commit. While the store is away, none of them may wait for it."""

    async def scenario(world: World) -> None:
        ledger = await world.open(MANUAL)
        early = ledger.follow(0)
        await fill(ledger, 10, 0)
        assert await offsets(early, 10) == [*range(10)]
        await ledger.offload_prefix(10)
        late = ledger.follow(0)
        assert await offsets(late, 10) == [*range(10)]
        sent = len(world.store.calls)

        await fill(ledger, 5, 5)
        newest = ledger.follow(AtEdge.LAST)

        assert await offsets(early, 10) == await offsets(late, 10) == [*range(10, 20)]
        assert await offsets(newest, 1) == [19]
        assert len(world.store.calls) == sent
        for each in (early, late, newest):
            await each.aclose()

    run(scenario)


def test_a_follower_whose_records_left_the_log_goes_on_with_the_tier_and_returns_to_the_log() -> None:
    """The local copies go up to the end of the log. The follower does not wait for another append."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 0)
        async with aclosing(ledger.follow(0)) as batches:
            assert await offsets(batches, 10) == [*range(10)]
            await fill(ledger, 10, 0)
            await ledger.step()
            world.clock.now += 61
            await ledger.step()
            assert ledger.log.first_offset == 20

            assert await offsets(batches, 10) == [*range(10, 20)]

            await ledger.append([b"local again"])
            assert await offsets(batches, 1) == [20]
            waiting = asyncio.ensure_future(offsets(batches, 1))
            for _ in range(50):
                await asyncio.sleep(0)
            work = {getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()}
            assert "_local_news" in work
            assert "_tier_news" not in work, "the follower of the log still looks at the tier"
            await ledger.append([b"more"])
            assert await waiting == [21]

    run(scenario)


def test_a_damaged_chunk_of_the_log_is_read_from_the_tier_and_reported_once() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(MANUAL)
        records = await fill(ledger, 10, 10, 5)
        await ledger.offload_prefix(20)
        chunks = world.disk.ledgers[0].chunks
        chunks[4] = chunks[4][:-1] + b"!"

        assert await bodies(ledger) == records

        assert world.told(DamageFound) == 1
        async with aclosing(ledger.follow(0)) as batches:
            assert await offsets(batches, 25) == [*range(25)]

    run(scenario)


@pytest.mark.parametrize("is_following", [False, True])
@pytest.mark.parametrize("start", [0, 4])
def test_a_read_that_begins_in_a_trimmed_range_reports_what_it_leaves_out(
    start: int, is_following: bool
) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10, 5)
        await ledger.step()
        world.clock.now += 61
        await ledger.step()
        await trim(world.tier(), STREAM, Retention(before_offset=10))

        async with aclosing(ledger.follow(start) if is_following else ledger.read(start)) as batches:
            assert await offsets(batches, 15) == [*range(10, 25)]

        skipped = [event for event in world.events if isinstance(event, Skipped)]
        assert skipped == [Skipped(stream=STREAM, from_offset=start, to_offset=10)]

    run(scenario)


# Rivals.


async def rivals(world: World, policy: LedgerPolicy = MANUAL) -> tuple[ManagedLedger, World]:
    """Return a ledger with 10 records on the tier, and the world of a machine with a copy of its disk."""
    ledger = await world.open(policy)
    await fill(ledger, 10, 0)
    await ledger.offload_prefix(10)
    return ledger, World(clock=world.clock, disk=world.copied_disk(), store=world.store)


async def take_over(world: World) -> None:
    """Append a record and offload it, as the owner of the other machine."""
    ledger = await world.open()
    await ledger.append([b"of the rival"])
    await ledger.roll()
    await ledger.offload_prefix(11)


def test_a_follower_never_delivers_a_record_that_a_rival_wrote() -> None:
    async def scenario(world: World) -> None:
        ledger, other = await rivals(world)
        async with aclosing(ledger.follow(0)) as batches:
            await offsets(batches, 10)
            await take_over(other)

            await ledger.append([b"of the owner"])

            assert (await asyncio.wait_for(anext(batches), 60)).bodies == [b"of the owner"]

    run(scenario)


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_reader_of_the_tier_that_finds_a_rival_fences_its_ledger(is_ahead: bool) -> None:
    """`is_ahead`: the rival has records beyond the end of the log. Else both have another record there."""

    async def scenario(world: World) -> None:
        ledger, other = await rivals(world, TIER_FIRST)
        if not is_ahead:
            await ledger.append([b"of the owner"])
        await take_over(other)
        found: list[bytes] = []

        async def read() -> None:
            async for batch in ledger.read(5):
                found.extend(batch.bodies)

        with pytest.raises((Fenced, Diverged)):
            await read()

        assert b"of the rival" not in found
        with pytest.raises((Fenced, Diverged)):
            await ledger.append([b"more"])
        await ledger.step()
        assert ledger.state is LedgerState.FENCED

    run(scenario)


def test_a_reader_that_finds_another_history_refuses_appends_before_any_step() -> None:
    """The ledger has not claimed the stream since it was opened, so it is no fenced writer."""

    async def scenario(world: World) -> None:
        first, other = await rivals(world)
        await first.close()
        ledger = await world.open(TIER_FIRST)
        await ledger.append([b"of the owner"])
        await take_over(other)

        with pytest.raises(Diverged):
            await bodies(ledger, 5)

        assert isinstance(ledger.error, Diverged)
        with pytest.raises(Diverged):
            await ledger.append([b"more"])
        await ledger.step()
        assert isinstance(ledger.error, Diverged)
        assert world.told(StreamPaused) == 1

    run(scenario)


@pytest.mark.parametrize("is_offloading", [False, True])
def test_the_first_call_is_refused_if_the_tier_ends_there_with_another_record(is_offloading: bool) -> None:
    """An offload that has nothing to copy must not say that the tier has the records of this log."""

    async def scenario(world: World) -> None:
        first, other = await rivals(world)
        await first.append([b"of the owner"])
        await first.close()
        await take_over(other)
        ledger = await world.open()

        if is_offloading:
            await ledger.roll()
            with pytest.raises(Diverged, match="part at or before offset 10"):
                await ledger.offload_prefix(11)
        with pytest.raises(Diverged, match="part at or before offset 10"):
            await ledger.append([b"more"])

        assert ledger.next_offset == 11

    run(scenario)


def test_a_comparison_that_the_first_append_could_not_make_is_made_by_the_next_step() -> None:
    async def scenario(world: World) -> None:
        first, other = await rivals(world)
        await first.append([b"of the owner"])
        await first.close()
        await take_over(other)
        ledger = await world.open(LAG)
        world.store.rules = [Rule(Fault.FAIL_BEFORE, "get", key="*fragment*")]
        assert await ledger.append([b"more"]) == 11
        world.store.rules = []

        await ledger.step()

        with pytest.raises(Diverged):
            await ledger.append([b"more"])

    run(scenario)


def test_a_read_of_a_log_that_ends_before_a_rivals_delivers_nothing_of_the_rival() -> None:
    """The log is preferred, and known to differ. So the tier is read, which has other records, and more."""

    async def scenario(world: World) -> None:
        owner = await world.open(MANUAL)
        rival = await World(clock=world.clock, store=world.store).open(MANUAL)
        for ledger, bodies_ in ((owner, [b"owner"] * 4), (rival, [b"rival"] * 5)):
            for body in bodies_:
                await ledger.append([body])
            await ledger.roll()
        await rival.offload_prefix(5)
        with pytest.raises(Diverged):
            await owner.offload_prefix(4)
        found: list[bytes] = []

        async def read() -> None:
            async for batch in owner.read(0):
                found.extend(batch.bodies)

        with pytest.raises(Diverged):
            await read()

        assert found == []

    run(scenario)
