"""Claims of Pulsar's tests on deletion, the deletion lag and reads, on managed ledgers.

Each test names the one that it follows. Times are theirs: 2 minutes, 7 minutes, and a lag of 5.
"""

from __future__ import annotations

import asyncio

import pytest
from managed_world import MANUAL, STREAM, World, bodies, fill, run

from offload import StreamWriter
from offload.contracts.events import LocalLedgerDeleted
from offload.contracts.log import LocalLedger
from offload.ground.errors import Fenced, Misuse, NotOffloaded, OutcomeUnknown, StreamDeleted
from offload.managed.ledger import LedgerState
from offload.managed.policy import LedgerPolicy
from offload.managed.rules import Situation, removable_offset
from offload.store.faults import Fault, Rule
from offload.two_sides.choice import ReadPriority
from offload.upkeep.retention import Retention, trim

LAG = LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=300, roll_seconds=None)
RETAINED = LedgerPolicy(
    offload_size_bytes=0, deletion_lag_seconds=300, roll_seconds=None, retention_seconds=600
)


async def first_on_tier(world: World) -> int:
    """Return the first offset on the tier."""
    return (await world.tier().load_manifest(STREAM)).first_offset


def test_a_trim_while_a_ledger_is_copied_costs_the_others_nothing() -> None:
    """testTrimOccursDuringOffload."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        records = await fill(ledger, 10, 10, 10, 5)
        await ledger.offload_prefix(10)

        async def trim_once(operation: str, key: str) -> None:
            if operation == "put" and "fragment" in key:
                world.store.before = nothing
                await trim(world.tier(), STREAM, Retention(before_offset=10), env=world.env())

        async def nothing(_operation: str, _key: str) -> None: ...

        world.store.before = trim_once
        assert await ledger.offload_prefix(32) == 30

        assert await world.complete() == [10, 20]
        assert await first_on_tier(world) == 10
        assert (await bodies(ledger))[-25:] == records[-25:]

    run(scenario)


def test_a_ledger_that_was_deleted_before_it_is_copied_is_not_copied() -> None:
    """testTrimOccursDuringOffloadLedgerDeletedBeforeOffload. Retention takes it: the tier begins later."""

    async def scenario(world: World) -> None:
        policy = LedgerPolicy(
            offload_size_bytes=None, deletion_lag_seconds=None, roll_seconds=None, retention_seconds=100
        )
        ledger = await world.open(policy)
        await fill(ledger, 10)
        await ledger.roll()
        world.clock.now += 101
        await fill(ledger, 10, 5)

        await ledger.step()
        assert world.local() == [10, 20]
        assert await ledger.offload_prefix(22) == 20

        assert await world.complete() == [10]

    run(scenario)


def test_retention_deletes_the_offloaded_copy_of_what_was_consumed() -> None:
    """testOffloadDelete."""

    async def scenario(world: World) -> None:
        ledger = await world.open(RETAINED)
        records = await fill(ledger, 10, 10, 5)
        ledger.open_cursor("slow")
        await ledger.step()
        world.clock.now += 601
        await ledger.step()
        assert await first_on_tier(world) == 0  # the cursor has passed nothing

        ledger.acknowledge("slow", 10)
        await ledger.step()

        assert await world.complete() == [10]
        assert await bodies(ledger, 10) == records[10:]

    run(scenario)


def test_a_deleted_ledger_is_gone_on_the_tier_and_in_the_log() -> None:
    """testOffloadDeleteClosedLedger."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10, 5)
        await ledger.step()
        await ledger.close()
        ledger = await world.open(LAG)

        await ledger.delete()

        with pytest.raises(StreamDeleted):
            await world.tier().load_manifest(STREAM)
        assert world.disk.ledgers == []
        assert world.disk.notes == {}

    run(scenario)


def test_deletion_also_ends_an_attempt_that_failed() -> None:
    """testOffloadDeleteIncomplete. The sweep deletes the objects; no root names the attempt any more."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 5)
        world.store.rules = [Rule(Fault.LOSE_REPLY, "put", "*.fragment")]
        with pytest.raises(OutcomeUnknown):
            await ledger.offload_prefix(12)
        world.store.rules = []
        assert world.data

        await ledger.delete()

        with pytest.raises(StreamDeleted):
            await world.tier().load_manifest(STREAM)

    run(scenario)


def test_a_local_copy_goes_after_the_lag_and_the_offloaded_one_after_retention() -> None:
    """testLaggedDelete."""

    async def scenario(world: World) -> None:
        ledger = await world.open(RETAINED)
        await fill(ledger, 10, 5)
        await ledger.step()
        world.clock.now += 120
        await ledger.step()
        assert world.local() == [0, 10]

        world.clock.now += 300
        await ledger.step()
        assert world.local() == [10]
        assert [each.ledger_id async for each in ledger.contexts()] == [0, 10]

        await fill(ledger, 0, 1)
        await ledger.step()  # the tier keeps its last fragment, so there is another one
        world.clock.now += 300
        await ledger.step()
        assert await first_on_tier(world) == 10

    run(scenario)


def test_both_copies_go_if_retention_is_shorter_than_the_lag() -> None:
    """testLaggedDeleteRetentionSetLower."""

    async def scenario(world: World) -> None:
        policy = LedgerPolicy(
            offload_size_bytes=0, deletion_lag_seconds=3000, roll_seconds=None, retention_seconds=300
        )
        ledger = await world.open(policy)
        await fill(ledger, 10)
        await ledger.roll()
        world.clock.now += 200
        await fill(ledger, 10, 5)
        await ledger.step()
        world.clock.now += 101

        await ledger.step()

        assert await first_on_tier(world) == 10
        assert world.local() == [10, 20]
        assert world.told(LocalLedgerDeleted) == 1

    run(scenario)


def test_the_lag_counts_although_a_consumer_is_slow() -> None:
    """testLaggedDeleteSlowConsumer."""

    async def scenario(world: World) -> None:
        ledger = await world.open(RETAINED)
        records = await fill(ledger, 10, 5)
        ledger.open_cursor("slow", 0)
        await ledger.step()
        world.clock.now += 700

        await ledger.step()

        assert world.local() == [10]
        assert await first_on_tier(world) == 0
        assert await bodies(ledger, ledger.cursors["slow"]) == records

    run(scenario)


@pytest.mark.parametrize(
    ("lag_seconds", "is_complete", "is_removable"),
    [(None, True, False), (0.5, True, True), (2, True, False), (1, True, False), (0.5, False, False)],
)
def test_a_local_copy_is_removable_when_its_lag_is_over_and_the_tier_has_it(
    lag_seconds: float | None, is_complete: bool, is_removable: bool
) -> None:
    """isOffloadedNeedsDeleteTest: offloaded 1 second ago. A lag of -1 is `Misuse`, and None means never."""
    sealed = LocalLedger(ledger_id=0, first_offset=0, next_offset=10, size_bytes=100, closed_ms=1000)
    now = Situation(
        ledgers=[sealed, LocalLedger(ledger_id=10, first_offset=10, next_offset=10, size_bytes=0)],
        tier_first=0,
        tier_next=10 if is_complete else 9,
        committed_ms=[(10 if is_complete else 9, 1000)],
        now_ms=2000,
        committed_offset=10,
    )

    until, _ = removable_offset(now, LedgerPolicy(deletion_lag_seconds=lag_seconds))

    assert until == (10 if is_removable else 0)
    with pytest.raises(Misuse):
        LedgerPolicy(deletion_lag_seconds=-1)


def fragment_reads(world: World) -> int:
    """Return the number of requests for fragments so far."""
    return sum(call.operation == "get" and "fragment" in call.key for call in world.store.calls)


def test_a_read_takes_what_is_local_from_the_log_and_the_rest_from_the_tier() -> None:
    """testBookkeeperFirstOffloadRead, testGetReadLedgerHandleAfterTrimOffloadedLedgers."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        records = await fill(ledger, 10, 10, 5)
        await ledger.step()
        before = fragment_reads(world)
        reader = await ledger._reader(ReadPriority.LOCAL_FIRST, world.events.append)
        assert [body async for batch in reader.messages(0) for body in batch.bodies] == records
        assert set(reader.records.values()) == {25, 0}
        assert fragment_reads(world) - before <= 3  # the comparison of the last chunk

        batches = ledger.follow(0)
        first = await anext(batches)
        world.clock.now += 301
        await ledger.step()
        assert world.local() == [20]

        found = list(first.bodies)
        async for batch in batches:
            found += batch.bodies
            if len(found) == 25:
                break
        await batches.aclose()
        assert found == records
        assert await bodies(ledger) == records

    run(scenario)


def test_a_read_that_prefers_the_tier_takes_from_the_log_only_what_the_tier_lacks() -> None:
    """testOffloadRead."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        records = await fill(ledger, 10, 10, 5)
        await ledger.step()

        reader = await ledger._reader(ReadPriority.TIER_FIRST, world.events.append)
        assert [body async for batch in reader.messages(0) for body in batch.bodies] == records
        assert sorted(reader.records.values()) == [5, 20]

        await ledger.close()
        with pytest.raises(Misuse, match="was closed"):
            await bodies(ledger)

    run(scenario)


def test_a_tier_that_takes_nothing_is_only_read() -> None:
    """testSkipOffloadIfReadOnly. Without triggers and calls, nothing is offloaded."""

    async def scenario(world: World) -> None:
        ledger = await world.open(MANUAL)
        await fill(ledger, 10, 5)

        await ledger.step()

        with pytest.raises(NotOffloaded):
            await world.tier().load_manifest(STREAM)

    run(scenario)


@pytest.mark.parametrize("is_fenced", [False, True])
def test_work_ends_when_the_ledger_is_closed_or_fenced(is_fenced: bool) -> None:
    """testOffloadTaskCancelled."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 5)
        await ledger.step()
        await fill(ledger, 0, 10, 5)
        if is_fenced:
            await StreamWriter.claim(world.tier(), STREAM, env=world.env())
        else:
            await ledger.close()

        assert await ledger.step() == (float("inf"))

        assert await world.complete() == [0]
        assert ledger.state is (LedgerState.FENCED if is_fenced else LedgerState.CLOSED)

    run(scenario)


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_follower_ends_when_the_ledger_is_closed_or_fenced(is_fenced: bool) -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 5)
        await ledger.step()
        await fill(ledger, 0, 1)

        async def follow() -> None:
            async for _ in ledger.follow(0):
                pass

        task = asyncio.create_task(follow())
        for _ in range(200):
            await asyncio.sleep(0)
        if is_fenced:
            await StreamWriter.claim(world.tier(), STREAM, env=world.env())
            await ledger.step()
        else:
            await ledger.close()

        with pytest.raises(Fenced if is_fenced else Misuse):
            await asyncio.wait_for(task, 60)

    run(scenario)


def test_the_contexts_say_where_each_ledger_is() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(LAG)
        await fill(ledger, 10, 10, 10)
        await ledger.step()
        world.clock.now += 301
        await fill(ledger, 0, 10, 5)
        await trim(world.tier(), STREAM, Retention(before_offset=10), env=world.env())
        before = [(c.ledger_id, c.is_complete, c.is_local) async for c in ledger.contexts()]
        assert before == [
            (0, False, True),  # trimmed on the tier, and still here
            (10, True, True),
            (20, False, True),
            (30, False, True),
            (40, False, True),
        ]
        await ledger.step()

        after = [each async for each in ledger.contexts()]

        assert [(c.ledger_id, c.is_complete, c.is_local) for c in after] == [
            (10, True, False),
            (20, True, True),
            (30, True, True),
            (40, False, True),
        ]
        assert [c.first_offset for c in after] == [10, 20, 30, 40]
        assert [c.next_offset for c in after] == [20, 30, 40, 45]
        assert [bool(c.closed_ms) for c in after] == [False, True, True, False]
        attempts = [c.attempts for c in after]
        assert [len(each) for each in attempts] == [1, 1, 1, 0]
        assert [each for ids in attempts for each in ids] == await world.attempts()
        assert all(c.stored_size_bytes > c.data_size_bytes > 0 for c in after[:3])

    run(scenario)
