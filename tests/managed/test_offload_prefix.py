"""Claims of Pulsar's OffloadPrefixTest, on managed ledgers. Each test names the one that it follows.

Ledger ids are first offsets here: ledgers of 10 records have the ids 0, 10, 20.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from managed_world import MANUAL, STREAM, World, bodies, fill, run

from offload import StreamWriter
from offload.ground.errors import AlreadyRunning, Denied, Fenced, Misuse, NotOffloaded, OutcomeUnknown
from offload.log.memory_log import MemoryLog
from offload.managed.ledger import LedgerState
from offload.managed.policy import LedgerPolicy
from offload.store.faults import Fault, Rule


def test_a_prefix_takes_all_sealed_ledgers_before_the_position() -> None:
    """testOffload."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        records = await fill(ledger, 10, 10, 5)

        assert await ledger.offload_prefix(24) == 20
        assert await world.complete() == [0, 10]
        assert await bodies(ledger) == records

    run(scenario)


@pytest.mark.parametrize("position", [-1, 25, 26, 2**63])
def test_a_position_that_is_no_record_is_misuse_and_nothing_is_offloaded(position: int) -> None:
    """testPositionOutOfRange."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 10, 10, 5)

        with pytest.raises(Misuse, match="no record of the log"):
            await ledger.offload_prefix(position)

        assert await world.complete() == []

    run(scenario)


def test_the_ledger_that_holds_the_position_stays_even_at_its_last_record() -> None:
    """testPositionOnEdgeOfLedger."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 10, 10, 1)

        assert await ledger.offload_prefix(19) == 10
        assert await world.complete() == [0]
        assert await ledger.offload_prefix(20) == 20
        assert await world.complete() == [0, 10]

    run(scenario)


def test_the_beginning_of_an_empty_open_ledger_is_a_position() -> None:
    """testPositionOnLastEmptyLedger."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 10, 10, 0)

        assert await ledger.offload_prefix(20) == 20
        assert await world.complete() == [0, 10]

    run(scenario)


def test_a_new_ledger_has_no_position_and_then_one() -> None:
    """testOffloadNewML."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        with pytest.raises(Misuse):
            await ledger.offload_prefix(0)

        await ledger.append([b"one"])

        assert await ledger.offload_prefix(0) == 0
        assert await world.complete() == []

    run(scenario)


def test_a_prefix_that_is_offloaded_already_sends_no_request() -> None:
    """testOffloadSamePositionTwice."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 10, 10, 5)
        await ledger.offload_prefix(24)
        before = len(world.store.calls)

        assert await ledger.offload_prefix(24) == 20
        assert await ledger.offload_prefix(5) == 0
        assert len(world.store.calls) == before

    run(scenario)


def test_a_closed_ledger_offloads_nothing() -> None:
    """testOffloadClosedManagedLedger."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 10, 5)
        await ledger.close()

        with pytest.raises(Misuse, match="was closed"):
            await ledger.offload_prefix(12)

        assert await world.complete() == []

    run(scenario)


def test_a_claim_by_another_process_fences_the_ledger() -> None:
    """testOffloadFenced."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 10, 10, 5)
        await ledger.offload_prefix(10)
        await StreamWriter.claim(world.tier(), STREAM, env=world.env())

        with pytest.raises(Fenced):
            await ledger.offload_prefix(24)

        assert ledger.state is LedgerState.FENCED
        with pytest.raises(Fenced):
            await ledger.append([b"more"])
        assert await world.complete() == [0]

    run(scenario)


@pytest.mark.parametrize("failing", [0, 10, 20])
def test_an_error_is_reported_and_the_ledgers_before_it_are_complete(failing: int) -> None:
    """testOffloadThreeFirst/Second/ThirdFails. Unlike Pulsar's, a tier has no hole: those behind it wait."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        records = await fill(ledger, 10, 10, 10, 5)
        world.store.rules = [Rule(Fault.DENY, "put", f"*/data/{failing:020}.*")]

        with pytest.raises(Denied):
            await ledger.offload_prefix(34)

        assert await world.complete() == [each for each in (0, 10, 20) if each < failing]
        world.store.rules = []
        assert await ledger.offload_prefix(34) == 30
        assert await world.complete() == [0, 10, 20]
        assert await bodies(ledger) == records

    run(scenario)


def test_a_retry_after_a_failure_is_another_attempt() -> None:
    """testOffloadConflict. The objects of the failed attempt belong to the sweep."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 10, 5)
        world.store.rules = [Rule(Fault.LOSE_REPLY, "put", "*.fragment", nth=1)]
        with pytest.raises(OutcomeUnknown):  # the object is there, and nobody knows it
            await ledger.offload_prefix(12)
        (left,) = world.data

        await ledger.offload_prefix(12)

        (attempt,) = await world.attempts()
        assert await world.complete() == [0]
        assert str(attempt) not in left
        assert left in world.objects

    run(scenario)


def test_a_commit_in_doubt_deletes_no_object() -> None:
    """testFailByZk, testNoCleanupOffloadLedgerWhenMetadataExceptionHappens."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        records = await fill(ledger, 10, 5)
        # The claim and the announcement pass; the commit of the fragment does not, however often it is tried.
        world.store.rules = [Rule(Fault.FAIL_BEFORE, "create", "*/root.00000000000000000003.*")]
        with pytest.raises(OutcomeUnknown):
            await ledger.offload_prefix(12)

        assert await world.complete() == []
        assert [call for call in world.store.calls if call.operation == "delete"] == []
        world.store.rules = []
        await ledger.offload_prefix(12)
        assert await world.complete() == [0]
        assert await bodies(ledger) == records

    run(scenario)


def test_one_offload_runs_at_a_time() -> None:
    """manualTriggerWhileAutoInProgress."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=None))
        await fill(ledger, 10, 10, 5)
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def pause(operation: str, key: str) -> None:
            if operation == "put" and "fragment" in key:
                reached.set()
                await go_on.wait()

        world.store.before = pause
        automatic = asyncio.create_task(ledger.step())
        await reached.wait()
        with pytest.raises(AlreadyRunning):
            await ledger.offload_prefix(24)
        go_on.set()
        await automatic

        assert await ledger.offload_prefix(24) == 20
        assert await world.complete() == [0, 10]

    run(scenario)


def test_triggers_wait_for_a_manual_offload_and_then_take_what_came_meanwhile() -> None:
    """autoTriggerWhileManualInProgress, multipleAutoTriggers."""

    async def scenario(world: World) -> None:
        ledger = await world.open(LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=None))
        await fill(ledger, 10, 5)
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def pause(operation: str, key: str) -> None:
            if operation == "put" and "fragment" in key:
                reached.set()
                await go_on.wait()

        world.store.before = pause
        manual = asyncio.create_task(ledger.offload_prefix(12))
        await reached.wait()
        steps = [asyncio.create_task(ledger.step()) for _ in range(3)]
        await ledger.roll()
        await fill(ledger, 10, 10, 1)
        go_on.set()
        await asyncio.gather(manual, *steps)

        assert await world.complete() == [0, 10, 15, 25]

    run(scenario)


def test_an_empty_ledger_is_never_sealed() -> None:
    """testDontOffloadEmpty. A ledger of zero records cannot be on the tier, so the log never makes one."""

    async def scenario(world: World) -> None:
        ledger = await world.open()
        await fill(ledger, 10)
        for _ in range(3):
            await ledger.roll()

        assert world.local() == [0, 10]

    run(scenario)


SIZE = 10 * (48 + 4 + 10)
"""The bytes of a ledger of 10 records, each in a chunk of its own."""


@pytest.mark.parametrize(
    ("size_bytes", "age_seconds", "taken"),
    [
        (None, None, []),
        (0, None, [0, 10, 20]),
        (None, 0, [0, 10, 20]),
        (SIZE - 1, None, [0, 10, 20]),
        (SIZE, None, [0, 10]),
        (2 * SIZE, None, [0]),
        (3 * SIZE, None, []),
        (None, 150, [0, 10]),
        (None, 250, [0]),
        (None, 1000, []),
        (3 * SIZE, 250, [0]),
        (2 * SIZE, 1000, [0]),
        (10**9, 10**9, []),
    ],
)
def test_triggers_take_ledgers_by_size_or_by_age(
    size_bytes: int | None, age_seconds: float | None, taken: list[int]
) -> None:
    """testAutoTriggerOffload, offloadAsSoonAsClosed. The sum at the threshold keeps the ledger."""

    async def scenario(world: World) -> None:
        policy = LedgerPolicy(
            offload_size_bytes=size_bytes,
            offload_age_seconds=age_seconds,
            deletion_lag_seconds=None,
            roll_seconds=None,
        )
        ledger = await world.open(policy)
        for _ in range(3):
            await fill(ledger, 10)
            await ledger.roll()
            world.clock.now += 100

        await ledger.step()

        assert await world.complete() == taken

    run(scenario)


def test_the_interval_since_the_last_offload_takes_all_that_is_sealed() -> None:
    async def scenario(world: World) -> None:
        policy = LedgerPolicy(offload_size_bytes=None, offload_interval_seconds=60, deletion_lag_seconds=None)
        ledger = await world.open(policy)
        await fill(ledger, 10, 10, 1)
        assert await ledger.step() == 60
        assert await world.complete() == []
        world.clock.now += 60

        await ledger.step()

        assert await world.complete() == [0, 10]
        await ledger.roll()
        assert await ledger.step() == 60
        assert await world.complete() == [0, 10]

    run(scenario)


def test_ledgers_without_triggers_stay_local() -> None:
    """testNullOffloader."""

    async def scenario(world: World) -> None:
        ledger = await world.open(MANUAL)
        records = await fill(ledger, 10, 10, 5)

        await ledger.step()

        assert await world.complete() == []
        assert await bodies(ledger) == records
        with pytest.raises(NotOffloaded):
            await world.tier().load_manifest(STREAM)

    run(scenario)


def test_a_ledger_is_not_old_because_the_one_before_it_was() -> None:
    """An append that began before a roll fills the next ledger: its record is new."""
    gate = asyncio.Event()

    class SlowLog(MemoryLog):
        async def append(self, records: Sequence[bytes], *, timestamp_ms: int) -> int:
            await gate.wait()
            return await super().append(records, timestamp_ms=timestamp_ms)

    async def scenario(world: World) -> None:
        ledger = await world.open(replace(MANUAL, roll_seconds=100), log=SlowLog(STREAM, disk=world.disk))
        gate.set()
        await ledger.append([b"a"])
        gate.clear()
        world.clock.now += 90
        under_way = asyncio.create_task(ledger.append([b"b"]))
        await asyncio.sleep(0)
        await ledger.roll()
        gate.set()
        await under_way

        world.clock.now += 20
        await ledger.step()
        assert world.local() == [0, 1]
        world.clock.now += 100
        await ledger.step()

        assert world.local() == [0, 1, 2]

    run(scenario)
