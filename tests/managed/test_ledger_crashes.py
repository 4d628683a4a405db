"""A process that ends at any request, and at any call of its log, loses nothing that was acknowledged.

The points of one scenario are counted first. Then it runs once for each point, ends there, and another
process opens what is left.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from campaign import few
from managed_world import STREAM, Crash, CrashingLog, Points, World, bodies

from offload.managed.ledger import LedgerState, ManagedLedger
from offload.managed.policy import LedgerPolicy

POLICY = LedgerPolicy(
    offload_size_bytes=0,
    deletion_lag_seconds=60,
    roll_seconds=100,
    retention_seconds=400,
)


class Run:
    """One run of the scenario, in a world of its own."""

    def __init__(self, points: Points) -> None:
        self.world, self.points = World(), points
        self.acknowledged: list[bytes] = []
        self.cursor = 0
        self.deletable = 0
        self.is_deleted = False

        async def request(_operation: str, _key: str) -> None:
            points.point()

        self.world.store.before = self.world.store.after = request

    async def open(self) -> ManagedLedger:
        """Open the ledger, as a process that has just started."""
        return await self.world.open(
            POLICY, log=CrashingLog(STREAM, disk=self.world.disk, points=self.points)
        )

    async def append(self, ledger: ManagedLedger, count: int) -> None:
        """Append records, and count those that were acknowledged."""
        for _ in range(count):
            body = str(len(self.acknowledged)).encode()
            assert await ledger.append([body]) == len(self.acknowledged)
            self.acknowledged.append(body)

    async def scenario(self) -> None:
        """Append, seal, offload, delete copies, retain, read, restart, and delete all."""
        ledger = await self.open()
        ledger.open_cursor("a")
        await self.append(ledger, 3)
        await ledger.roll()
        await self.append(ledger, 2)
        await ledger.step()
        ledger.acknowledge("a", 3)
        self.cursor = 3
        self.world.clock.now += 101  # the open ledger is old, and the first copy goes
        await ledger.step()
        await self.append(ledger, 2)
        await ledger.roll()
        await self.append(ledger, 1)
        await ledger.offload_prefix(7)
        assert len(await bodies(ledger)) == 8
        self.world.clock.now += 350  # retention takes what the cursor has passed
        self.deletable = 3
        await ledger.step()
        await ledger.close()
        ledger = await self.open()
        await self.append(ledger, 2)
        self.world.clock.now += 101
        await ledger.step()
        self.is_deleted = True
        await ledger.delete()

    async def check(self) -> None:
        """Let another process finish, and compare what consumers get with what was acknowledged."""
        self.points.at = None
        ledger = await self.open()
        ended = ledger.next_offset
        if self.is_deleted:
            await ledger.step()
            await ledger.delete()
            assert ledger.state is LedgerState.CLOSED
            assert self.world.disk.ledgers == []
            assert await self.world.complete() == []
            return
        # A record that was not acknowledged may be there, as the last one.
        assert ended in (len(self.acknowledged), len(self.acknowledged) + 1)
        assert ledger.cursors.get("a", 0) <= self.cursor
        await ledger.append([b"next"])
        await ledger.roll()
        await ledger.step()
        assert ledger.error is None
        self.world.clock.now += 61
        await ledger.step()
        assert self.world.local() == [ledger.next_offset]
        found: list[bytes] = []
        first = None
        async for batch in ledger.read(0):
            first = batch.offset if first is None else first
            assert batch.offset == first + len(found)
            found += batch.bodies
        assert first is not None
        assert first <= self.deletable
        assert found[: len(self.acknowledged) - first] == self.acknowledged[first:]
        assert found[-1] == b"next"
        assert len(found) == ledger.next_offset - first


def crashed_at(point: int | None) -> Run:
    """Run the scenario up to a point. Return the run."""
    run = Run(Points(point))
    with suppress(Crash):
        asyncio.run(run.scenario())
    return run


POINTS = crashed_at(None).points.count


def test_the_scenario_has_all_kinds_of_requests_and_calls() -> None:
    run = crashed_at(None)

    assert POINTS > 150
    assert {call.operation for call in run.world.store.calls} >= {"create", "put", "get", "list"}
    assert run.world.disk.ledgers == []


@few("points at which an owner ends; make test has two of ten", 5)
@pytest.mark.parametrize("part", range(10))
def test_a_process_that_ends_at_any_point_loses_no_acknowledged_record(part: int) -> None:
    for point in range(1 + part, POINTS + 1, 10):
        run = crashed_at(point)
        assert run.points.count >= point, "the scenario got shorter"
        asyncio.run(run.check())
