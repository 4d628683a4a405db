"""Random histories of one managed ledger, compared with a plain list of the acknowledged records.

Processes end at any request, replies are lost, requests arrive late or are denied, and clocks go on. After
each rule, the disk and the tier are read by other means than the ledger's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

from campaign import CAMPAIGN
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from managed_world import STREAM, Crash, CrashingLog, Points, World

from offload import StreamReader
from offload.ground.errors import NotOffloaded, OffloadError
from offload.managed.ledger import LedgerState, ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.model.position import AtEdge
from offload.store.faults import Fault, Rule
from offload.two_sides.choice import ReadPriority

RETENTION_SECONDS = 500.0
POLICIES = {
    "keeps all": LedgerPolicy(deletion_lag_seconds=60, roll_seconds=100),
    "by hand": LedgerPolicy(offload_size_bytes=None, deletion_lag_seconds=60, roll_seconds=None),
    "retains by age": LedgerPolicy(
        deletion_lag_seconds=100, roll_seconds=200, retention_seconds=RETENTION_SECONDS
    ),
    "retains by size": LedgerPolicy(deletion_lag_seconds=100, roll_seconds=100, retention_size_bytes=1500),
    "local retention": LedgerPolicy(
        offload_size_bytes=None, deletion_lag_seconds=None, retention_seconds=RETENTION_SECONDS
    ),
}


class LedgerMachine(RuleBasedStateMachine):
    """One stream, and the process that has it open."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.world, self.points = World(), Points()
        self.records: list[tuple[int, bytes]] = []
        """The time and the body of each acknowledged record, in order."""
        self.cursors: dict[str, int] = {}
        self.highest: dict[str, int] = {}
        """The highest position of each cursor that ever was. One that was dropped may come back."""
        self.deletable = 0
        """Every offset below this one may have been deleted by retention."""
        self.world.store.before = self._request
        self.world.store.after = self._request
        self.ledger: ManagedLedger

    async def _request(self, _operation: str, _key: str) -> None:
        self.points.point()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a call of the process, which may raise an error of the store. If it ends, begin another."""
        try:
            return self.runner.run(coroutine)
        except NotOffloaded:
            raise  # nothing of the stream is ever deleted here
        except OffloadError:
            pass
        except Crash:
            self.restart()
        return None

    def restart(self) -> None:
        """Drop the process, and open the ledger as the next one does, until the store lets it."""
        self.points.at = None
        while True:
            log = CrashingLog(STREAM, disk=self.world.disk, points=self.points)
            try:
                self.ledger = self.runner.run(self.world.open(self.policy, log=log))
            except OffloadError:
                self.world.store.rules = []
            else:
                break
        found = self.ledger.cursors
        assert all(found[name] <= self.highest[name] for name in found)
        self.cursors = dict(found)

    @initialize(name=st.sampled_from(sorted(POLICIES)), priority=st.sampled_from([*ReadPriority][:2]))
    def begin(self, name: str, priority: ReadPriority) -> None:
        base = POLICIES[name]
        self.policy = LedgerPolicy(
            **{each: getattr(base, each) for each in base.__slots__ if each != "read_priority"},
            read_priority=priority,
        )
        self.restart()

    def may_delete(self) -> None:
        """Note what retention may delete now."""
        if self.policy.retains_for_ever:
            return
        limit = min(self.cursors.values(), default=len(self.records))
        if self.policy.retention_seconds is not None:
            newest_ms = self.now_ms - RETENTION_SECONDS * 1000
            limit = min(limit, next((n for n, (ms, _) in enumerate(self.records) if ms > newest_ms), limit))
        self.deletable = max(self.deletable, limit)

    @property
    def now_ms(self) -> int:
        return self.world.env().now_ms()

    @rule(count=st.integers(1, 5), size_bytes=st.integers(0, 200))
    def append(self, count: int, size_bytes: int) -> None:
        begin = len(self.records)
        bodies = [f"{begin + rank}".encode() + b"." * size_bytes for rank in range(count)]
        offset = self.run(self.ledger.append(bodies))
        if offset is None:  # it was not acknowledged; a process that ended may have written it
            kept = self.ledger.next_offset - begin
            assert kept in (0, count)
            bodies = bodies[:kept]
        else:
            assert offset == begin
        self.records += [(self.now_ms, body) for body in bodies]

    @rule()
    def roll(self) -> None:
        self.run(self.ledger.roll())

    @rule()
    def step(self) -> None:
        self.may_delete()
        self.run(self.ledger.step())

    @rule(part=st.floats(0, 1))
    def offload_prefix(self, part: float) -> None:
        first, end = self.ledger.log.first_offset, self.ledger.next_offset
        if first < end:
            self.run(self.ledger.offload_prefix(min(first + int(part * (end - first)), end - 1)))

    @rule()
    def plan(self) -> None:
        self.run(self.ledger.plan())

    @rule(name=st.sampled_from("ab"), part=st.floats(0, 1))
    def acknowledge(self, name: str, part: float) -> None:
        if name not in self.cursors:
            self.cursors[name] = self.ledger.open_cursor(name)
        at = int(part * self.ledger.next_offset)
        self.ledger.acknowledge(name, at)
        self.cursors[name] = max(self.cursors[name], at)
        self.highest[name] = max(self.highest.get(name, 0), self.cursors[name])
        assert self.ledger.cursors == self.cursors

    @rule(name=st.sampled_from("ab"))
    def drop_cursor(self, name: str) -> None:
        self.ledger.drop_cursor(name)
        self.cursors.pop(name, None)
        self.may_delete()

    @rule(seconds=st.sampled_from([1, 61, 101, 301, 501]))
    def wait(self, seconds: int) -> None:
        self.world.clock.now += seconds

    @rule(seconds=st.sampled_from([-100, 100, 3000, 10_000]))
    def jump(self, seconds: int) -> None:
        if self.policy.retention_seconds is None:
            self.world.clock.skew_seconds += seconds

    @rule(
        fault=st.sampled_from([Fault.FAIL_BEFORE, Fault.LOSE_REPLY, Fault.DELAY, Fault.DENY, Fault.CUT]),
        nth=st.integers(1, 12),
    )
    def trouble(self, fault: Fault, nth: int) -> None:
        self.world.store.rules = [Rule(fault, nth=nth)]

    @rule()
    def calm(self) -> None:
        self.world.store.rules = []

    @rule()
    def land(self) -> None:
        self.runner.run(self.world.store.land())

    @rule(points=st.integers(1, 60))
    def crash_soon(self, points: int) -> None:
        self.points.at = self.points.count + points

    @rule()
    def crash(self) -> None:
        self.restart()

    @rule()
    def close(self) -> None:
        self.points.at = None
        self.runner.run(self.ledger.close())
        saved = not isinstance(self.ledger.error, OffloadError)
        before = dict(self.cursors)
        self.restart()
        assert not saved or self.cursors == before

    @rule(part=st.floats(0, 1), priority=st.sampled_from([*ReadPriority]))
    def read(self, part: float, priority: ReadPriority) -> None:
        start = int(part * len(self.records))
        self.run(self._read(start, priority))

    async def _read(self, start: int, priority: ReadPriority) -> None:
        try:
            reader = await self.ledger._reader(priority, lambda event: None)
        except NotOffloaded:
            assert priority is ReadPriority.TIER_ONLY
            assert await self.world.complete() == []
            return
        found: list[bytes] = []
        end = len(self.records)
        if priority is ReadPriority.TIER_ONLY:
            end = reader.parts[-1].manifest.next_offset
        first = None
        try:
            async with aclosing(reader.messages(start)) as batches:
                async for batch in batches:
                    first = batch.offset if first is None else first
                    assert batch.offset == first + len(found)
                    found += batch.bodies
        except NotOffloaded:
            assert start > end or (priority is ReadPriority.LOCAL_ONLY and self._is_local_empty)
            return
        if first is None:
            assert start >= end or (priority is ReadPriority.LOCAL_ONLY and self._is_local_empty)
        else:
            is_whole = priority in (ReadPriority.LOCAL_FIRST, ReadPriority.TIER_FIRST)
            assert first == start or not is_whole or first <= self.deletable
            assert found == [body for _, body in self.records[first:end]]

    @property
    def _is_local_empty(self) -> bool:
        return self.ledger.log.first_offset == self.ledger.next_offset

    @invariant()
    def every_record_is_on_the_disk_or_on_the_tier(self) -> None:
        if not hasattr(self, "policy"):
            return
        assert self.ledger.state is LedgerState.OPEN, self.ledger.error
        assert self.ledger.next_offset == len(self.records)
        self.runner.run(self._compared())

    async def _compared(self) -> None:
        store = self.world.store
        rules, store.rules, at, self.points.at = store.rules, [], self.points.at, None
        first, end = self.world.disk.ledgers[0].facts.first_offset, 0
        bodies = [body for _, body in self.records]
        try:
            reader = await StreamReader.open(self.world.tier(), STREAM)
        except NotOffloaded:
            pass
        else:
            found: list[bytes] = []
            begin = reader.manifest.first_offset
            async for batch in reader.messages(await reader.place_of(AtEdge.FIRST)):
                found += batch.bodies
            end = begin + len(found)
            assert found == bodies[begin:end]
            assert begin <= self.deletable
            first = min(first, begin) if end >= first else first
        finally:
            store.rules, self.points.at = rules, at
        assert first <= self.deletable, "a local copy went that the tier does not have"

    def teardown(self) -> None:
        self.runner.close()


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=1000 if CAMPAIGN else 6, stateful_step_count=40)
