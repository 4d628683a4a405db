"""The managed ledgers of one process: no wake-up is lost, nothing spins, and errors stay where they are."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from campaign import few

from offload import ManagedLedgers, ObjectStoreOffloader
from offload.ground.env import Env
from offload.ground.errors import Misuse, TryAgain
from offload.log.memory_log import MemoryDisk, MemoryLog
from offload.managed.ledger import LedgerState, ManagedLedger
from offload.managed.policy import LedgerPolicy
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore

POLICY = LedgerPolicy(offload_size_bytes=0, deletion_lag_seconds=60, roll_seconds=None)


@dataclass
class Timers:
    """A clock that goes on only when a test says so. Sleepers wait for it."""

    now: float = 1000.0
    sleeping: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    wakes: int = 0
    active: ManagedLedgers | None = None
    """The ledgers that use this clock now."""
    retrying: int = 0
    """How many calls of the tier wait for this clock."""

    def env(self) -> Env:
        """Return the clock as an environment."""
        return Env(
            monotonic=lambda: self.now,
            now_ms=lambda: int(self.now * 1000),
            sleep=self._sleep,
            random=lambda: 0.5,
        )

    async def _sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self.sleeping, (self.now + seconds, id(future), future))
        await future
        self.wakes += 1

    async def go_on(self, seconds: float) -> None:
        """Let time pass, from one sleeper to the next."""
        end = self.now + seconds
        await self.settle()
        while self.sleeping and self.sleeping[0][0] <= end:
            at, _, future = heapq.heappop(self.sleeping)
            if not future.done():
                self.now = max(self.now, at)
                future.set_result(None)
                await self.settle()
        self.now = end

    async def settle(self) -> None:
        """Let all tasks go on that can, also those that wait for threads."""
        quiet = 0
        for _ in range(20_000):
            for _ in range(20):
                await asyncio.sleep(0)
            # Work that waits for a thread goes on by itself, and work that waits for this clock does not.
            idle = self.active is None or len(self.active._working) <= self.retrying
            # A thread may have ended just now, and the next step of its ledger has yet to begin.
            quiet = quiet + 1 if idle else 0
            if quiet == 3:
                return
            if not idle:
                await asyncio.sleep(0.001)
        raise AssertionError("work did not end")

    async def _retry(self, seconds: float) -> None:
        self.retrying += 1
        try:
            await self._sleep(seconds)
        finally:
            self.retrying -= 1


@dataclass
class Process:
    """A process with managed ledgers over memory."""

    timers: Timers = field(default_factory=Timers)
    store: FaultyStore = field(default_factory=lambda: FaultyStore(MemoryStore()))
    disks: dict[str, MemoryDisk] = field(default_factory=dict)

    def ledgers(self, policy: LedgerPolicy = POLICY, **options: int) -> ManagedLedgers:
        """Return its ledgers, to be entered."""
        env = replace(self.timers.env(), sleep=self.timers._retry)
        tier = ObjectStoreOffloader(self.store, env=env)
        self.timers.active = ManagedLedgers(tier, policy=policy, env=self.timers.env(), **options)
        return self.timers.active

    def log(self, name: str) -> MemoryLog:
        """Return the log of a stream."""
        return MemoryLog(name, disk=self.disks.setdefault(name, MemoryDisk()))

    def local(self, name: str) -> list[int]:
        """Return the ids of the ledgers of a stream on the disk."""
        return [each.facts.ledger_id for each in self.disks[name].ledgers]


def run(scenario: Callable[[Process], object]) -> None:
    """Run a scenario, and check that no task is left."""

    async def whole() -> None:
        process = Process()
        await scenario(process)  # type: ignore[misc]  # a coroutine function
        await process.timers.settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())


def test_what_is_sealed_goes_at_once_and_its_copy_after_the_lag() -> None:
    async def scenario(process: Process) -> None:
        async with process.ledgers() as ledgers:
            ledger = await ledgers.open(process.log("a"))
            await ledger.append([b"one"])
            await ledger.roll()
            await process.timers.go_on(1)
            assert process.local("a") == [0, 1]
            await process.timers.go_on(58)
            assert process.local("a") == [0, 1]

            await process.timers.go_on(2)

            assert process.local("a") == [1]
            assert [body for batch in [b async for b in ledger.read(0)] for body in batch.bodies] == [b"one"]

    run(scenario)


def test_a_copy_that_was_offloaded_by_hand_goes_after_its_lag_too() -> None:
    async def scenario(process: Process) -> None:
        by_hand = replace(POLICY, offload_size_bytes=None)
        async with process.ledgers(by_hand) as ledgers:
            ledger = await ledgers.open(process.log("a"))
            await ledger.append([b"one"])
            await ledger.roll()
            await process.timers.go_on(1)
            await ledger.offload_prefix(1)
            await process.timers.go_on(61)
            assert process.local("a") == [1]

    run(scenario)


def test_a_lag_that_ended_while_the_process_was_away_costs_one_deletion_and_no_spinning() -> None:
    async def scenario(process: Process) -> None:
        by_hand = replace(POLICY, offload_size_bytes=None)
        async with process.ledgers(by_hand) as ledgers:
            ledger = await ledgers.open(process.log("a"))
            await ledger.append([b"one"])
            await ledger.roll()
            await ledger.offload_prefix(1)
        process.timers.now += 1000
        async with process.ledgers(by_hand) as ledgers:
            await ledgers.open(process.log("a"))
            before = process.timers.wakes
            await process.timers.go_on(600)
            assert process.local("a") == [1]
            assert process.timers.wakes - before < 10

    run(scenario)


def test_idle_ledgers_send_no_request_and_wake_at_most_once_an_hour() -> None:
    async def scenario(process: Process) -> None:
        async with process.ledgers() as ledgers:
            for number in range(50):
                ledger = await ledgers.open(process.log(str(number)))
                await ledger.append([b"one"])
                await ledger.roll()
            await process.timers.go_on(100)
        async with process.ledgers() as ledgers:
            before = len(process.store.calls)
            steps = count_steps(process)
            for number in range(50):
                await ledgers.open(process.log(str(number)))
            opened = len(process.store.calls) - before
            await process.timers.go_on(3 * 3600 + 1)
            assert len(process.store.calls) - before == opened
            assert steps() <= 50 * 5

    def count_steps(process: Process) -> Callable[[], int]:
        before = process.timers.wakes
        return lambda: process.timers.wakes - before

    run(scenario)


def test_a_change_while_a_ledger_works_is_not_forgotten() -> None:
    async def scenario(process: Process) -> None:
        async with process.ledgers() as ledgers:
            ledger = await ledgers.open(process.log("a"))
            await ledger.append([b"one"])
            reached, go_on = asyncio.Event(), asyncio.Event()

            async def pause(operation: str, key: str) -> None:
                if operation == "put" and "fragment" in key and not reached.is_set():
                    reached.set()
                    await go_on.wait()

            process.store.before = pause
            await ledger.roll()
            await reached.wait()
            await ledger.append([b"two"])
            await ledger.roll()
            go_on.set()
            await process.timers.settle()

            assert (await ledger.tier.load_manifest("a")).next_offset == 2

    run(scenario)


def test_a_ledger_never_works_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    working: set[str] = set()
    most = 0
    step = ManagedLedger.step

    async def watched(self: ManagedLedger) -> float:
        nonlocal most
        assert self.name not in working
        working.add(self.name)
        most = max(most, len(working))
        try:
            await asyncio.sleep(0)
            return await step(self)
        finally:
            working.discard(self.name)

    monkeypatch.setattr(ManagedLedger, "step", watched)

    async def scenario(process: Process) -> None:
        async with process.ledgers(turns_max=3) as ledgers:
            opened = [await ledgers.open(process.log(str(number))) for number in range(10)]
            for _ in range(5):
                for ledger in opened:
                    await ledger.append([b"x"])
                    await ledger.roll()
                    ledgers._wake(ledger, 0.0)
                await process.timers.settle()

    run(scenario)
    assert most == 3


def test_an_error_of_one_ledger_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    step = ManagedLedger.step

    async def bad(self: ManagedLedger) -> float:
        if self.name == "bad":
            raise OSError("a log that breaks its contract")
        return await step(self)

    monkeypatch.setattr(ManagedLedger, "step", bad)

    async def scenario(process: Process) -> None:
        process.store.rules = [Rule(Fault.DENY, "*", "denied/*")]
        async with process.ledgers() as ledgers:
            for name in ("bad", "denied", "good"):
                ledger = await ledgers.open(process.log(name))
                await ledger.append([b"one"])
                await ledger.roll()
            await process.timers.go_on(5)
            assert (await ledger.tier.load_manifest("good")).next_offset == 1

    run(scenario)


def test_a_name_is_open_once_and_again_after_it_was_closed() -> None:
    async def scenario(process: Process) -> None:
        async with process.ledgers() as ledgers:
            both = await asyncio.gather(
                ledgers.open(MemoryLog("a")), ledgers.open(MemoryLog("a")), return_exceptions=True
            )
            assert sum(isinstance(each, Misuse) for each in both) == 1
            (ledger,) = [each for each in both if isinstance(each, ManagedLedger)]
            await ledger.close()
            assert ledgers.ledgers == {}

            again = await ledgers.open(MemoryLog("a"))

            assert ledgers.ledgers == {"a": again}
            assert again.state is LedgerState.OPEN
            await process.timers.settle()
            assert ledgers._ledgers == {"a": again}
        with pytest.raises(Misuse):
            await ledgers.open(MemoryLog("b"))

    run(scenario)


def test_the_end_closes_every_log_although_one_cannot_be_closed() -> None:
    class BadLog(MemoryLog):
        async def aclose(self) -> None:
            raise TryAgain("the disk does not answer")

    async def opened(process: Process, logs: list[MemoryLog]) -> None:
        async with process.ledgers() as ledgers:
            for log in logs:
                await ledgers.open(log)

    async def scenario(process: Process) -> None:
        good = [MemoryLog("a"), MemoryLog("c")]
        with pytest.raises(TryAgain):
            await opened(process, [good[0], BadLog("b"), good[1]])
        for log in good:
            with pytest.raises(Misuse):
                await log.append([b"x"], timestamp_ms=0)

    run(scenario)


def test_ledgers_that_are_woken_every_second_leave_no_old_moments_behind() -> None:
    async def scenario(process: Process) -> None:
        async with process.ledgers() as ledgers:
            ledger = await ledgers.open(process.log("a"))
            await ledger.append([b"x"] * 2000)
            ledger.open_cursor("c", 0)
            for number in range(1000):
                ledger.acknowledge("c", number)
                process.timers.now += 2
                for timer in process.timers.sleeping:
                    if not timer[2].done():
                        timer[2].set_result(None)
                process.timers.sleeping.clear()
                for _ in range(12):
                    await asyncio.sleep(0)
            assert len(ledgers._heap) < 200
            assert b'"c": 9' in process.disks["a"].notes["cursors"]

    run(scenario)


@few("seeds of schedules of an owner; make test has five of twenty", 4)
@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_end_with_everything_on_the_tier_and_no_copy(seed: int) -> None:
    """Ledgers come, go, fail and wake in any order. Once all is calm, nothing was forgotten."""

    async def scenario(process: Process) -> None:
        random = Random(seed)
        process.store.random = random
        count: dict[str, int] = {}
        async with process.ledgers(replace(POLICY, roll_seconds=100), turns_max=2) as ledgers:
            for _ in range(120):
                name = random.choice("abcde")
                ledger = ledgers.ledgers.get(name)
                match random.randrange(7):
                    case 0 if ledger is None:
                        ledger = await opened(ledgers, process, name)
                    case 1 | 2 if ledger is not None:
                        await ledger.append([b"x"])
                        count[name] = count.get(name, 0) + 1
                    case 3 if ledger is not None:
                        await ledger.roll()
                    case 4:
                        await process.timers.go_on(random.choice([0.5, 5, 70]))
                    case 5 if ledger is not None and random.random() < 0.3:
                        await ledger.close()
                    case 6:
                        process.store.chances = random.choice(
                            [{}, {Fault.FAIL_BEFORE: 0.2, Fault.LOSE_REPLY: 0.1}]
                        )
            process.store.chances = {}
            for name in count:
                if name not in ledgers.ledgers:
                    await opened(ledgers, process, name)
            await process.timers.go_on(500)
            for name, records in count.items():
                assert ledgers.ledgers[name].error is None
                assert (await ledgers.ledgers[name].tier.load_manifest(name)).next_offset == records
                assert process.local(name) == [records]
        assert process.timers.wakes < 5000

    async def opened(ledgers: ManagedLedgers, process: Process, name: str) -> ManagedLedger:
        while True:
            try:
                return await ledgers.open(process.log(name))
            except TryAgain:
                process.store.chances = {}

    run(scenario)


def test_two_ledgers_share_one_source_by_name() -> None:
    async def scenario(process: Process) -> None:
        async with process.ledgers() as ledgers:
            for name in ("b", "a"):
                await ledgers.open(process.log(name))
            assert [stream.name for stream in await ledgers.source.streams()] == ["a", "b"]

    run(scenario)
