"""What appends do while the tier is away, and what bounds the memory of appends that are under way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest
from managed_world import World, bodies, fill, run

from offload.contracts.events import AppendsHeld
from offload.ground.errors import Misuse, Throttled
from offload.managed.budget import ByteBudget
from offload.managed.policy import LedgerPolicy, WhenFull
from offload.store.faults import Fault, Rule

BOUND = 2000
POLICY = LedgerPolicy(
    roll_size_bytes=500, roll_seconds=None, deletion_lag_seconds=10_000, local_size_bytes_max=BOUND
)


async def turns(count: int = 50) -> None:
    """Let other tasks go on."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_blocked_append_goes_on_when_the_tier_is_back() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(POLICY)
        world.store.rules = [Rule(Fault.FAIL_BEFORE)]
        records = []
        while ledger.size_bytes <= BOUND:
            records += await fill(ledger, 1, size_bytes=100)
        blocked = [asyncio.create_task(ledger.append([f"blocked {n}".encode()])) for n in range(3)]
        await ledger.step()
        await turns()
        assert not any(task.done() for task in blocked)
        assert world.told(AppendsHeld) == 1
        world.store.rules = []
        world.clock.now += 100

        await ledger.step()
        offsets = await asyncio.gather(*blocked)

        assert sorted(offsets) == [len(records), len(records) + 1, len(records) + 2]
        assert ledger.size_bytes <= BOUND
        assert (await bodies(ledger))[: len(records)] == records

    run(scenario)


def test_appends_that_wake_together_do_not_pass_the_bound_by_more_than_one() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(POLICY)
        while ledger.size_bytes <= BOUND:
            await fill(ledger, 1, size_bytes=100)
        size = 600
        blocked = [asyncio.create_task(ledger.append([b"x" * size])) for _ in range(20)]
        await turns()

        await ledger.step()
        await turns()

        assert 0 < sum(task.done() for task in blocked) < 20
        assert ledger.size_bytes <= BOUND + size + 100
        for _ in range(30):
            await ledger.step()
            await turns()
        assert len({task.result() for task in blocked}) == 20

    run(scenario)


def test_a_rejected_append_writes_nothing_and_names_the_reason() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(replace(POLICY, when_full=WhenFull.REJECT))
        world.store.rules = [Rule(Fault.DENY)]
        while ledger.size_bytes <= BOUND:
            await fill(ledger, 1, size_bytes=100)
        await ledger.step()
        end = ledger.next_offset

        with pytest.raises(Throttled, match=f"above its bound of {BOUND}.*denied on purpose"):
            await ledger.append([b"more"])

        assert ledger.next_offset == end
        world.store.rules = []
        world.clock.now += 400
        await ledger.step()
        assert await ledger.append([b"more"]) == end

    run(scenario)


def test_a_log_that_grows_takes_appends_and_says_once_that_it_does() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(replace(POLICY, when_full=WhenFull.GROW))
        world.store.rules = [Rule(Fault.FAIL_BEFORE)]

        for _ in range(10):
            await fill(ledger, 5, size_bytes=100)
            await ledger.step()

        assert ledger.size_bytes > 2 * BOUND
        assert world.told(AppendsHeld) == 1
        world.store.rules = []
        world.clock.now += 100
        await ledger.step()
        assert ledger.size_bytes <= BOUND
        world.store.rules = [Rule(Fault.FAIL_BEFORE)]
        for _ in range(10):
            await fill(ledger, 5, size_bytes=100)
        assert world.told(AppendsHeld) == 2

    run(scenario)


def test_a_blocked_append_can_be_cancelled_alone() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(POLICY)
        while ledger.size_bytes <= BOUND:
            await fill(ledger, 1, size_bytes=100)
        first, second = (asyncio.create_task(ledger.append([b"blocked"])) for _ in range(2))
        await turns()

        first.cancel()
        await turns()

        assert first.cancelled()
        assert not second.done()
        end = ledger.next_offset
        await ledger.step()
        assert await second == end

    run(scenario)


def test_closing_refuses_appends_that_are_blocked() -> None:
    async def scenario(world: World) -> None:
        ledger = await world.open(POLICY)
        while ledger.size_bytes <= BOUND:
            await fill(ledger, 1, size_bytes=100)
        blocked = [asyncio.create_task(ledger.append([b"blocked"])) for _ in range(3)]
        await turns()

        await ledger.close()

        for task in blocked:
            with pytest.raises(Misuse, match="was closed"):
                await task

    run(scenario)


def test_a_budget_lets_callers_in_in_the_order_of_asking() -> None:
    async def scenario() -> None:
        budget, order = ByteBudget(10), []

        async def take(name: str, size_bytes: int) -> None:
            async with budget.take(size_bytes):
                order.append(name)
                await turns(3)

        await asyncio.gather(take("a", 6), take("large", 8), take("small", 1), take("b", 4))

        assert order == ["a", "large", "small", "b"]
        assert budget.used_size_bytes == 0

    asyncio.run(scenario())


def test_what_is_larger_than_the_budget_enters_alone() -> None:
    async def scenario() -> None:
        budget, inside = ByteBudget(10), 0

        async def take(size_bytes: int) -> None:
            nonlocal inside
            async with budget.take(size_bytes):
                inside += 1
                assert size_bytes <= 10 or inside == 1
                await turns(3)
                inside -= 1

        await asyncio.gather(take(5), take(100), take(5), take(100))

        assert budget.used_size_bytes == 0
        with pytest.raises(Misuse):
            ByteBudget(0)

    asyncio.run(scenario())


def test_a_caller_that_gives_up_its_turn_lets_in_who_waits_behind_it() -> None:
    """The large one was too large for what is left, and the small one is not."""

    async def scenario() -> None:
        budget, leave = ByteBudget(10), asyncio.Event()

        async def take(size_bytes: int) -> None:
            async with budget.take(size_bytes):
                await leave.wait()

        inside, large, small = (asyncio.create_task(take(size_bytes)) for size_bytes in (6, 8, 3))
        await turns()
        assert budget.used_size_bytes == 6
        large.cancel()
        await turns()

        assert budget.used_size_bytes == 9

        leave.set()
        await asyncio.gather(inside, small)

    asyncio.run(scenario())


def test_callers_of_a_budget_that_are_cancelled_at_any_time_take_nothing_with_them() -> None:
    async def scenario(seed: int) -> None:
        random, budget, inside = Random(seed), ByteBudget(10), 0

        async def take(size_bytes: int) -> None:
            nonlocal inside
            async with budget.take(size_bytes):
                inside += size_bytes
                assert inside <= max(10, size_bytes)
                try:
                    await turns(random.randrange(4))
                finally:
                    inside -= size_bytes

        tasks = []
        for _ in range(40):
            tasks.append(asyncio.create_task(take(random.randrange(1, 14))))
            await turns(random.randrange(2))
            if random.random() < 0.5:
                random.choice(tasks).cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)

        assert all(each is None or isinstance(each, asyncio.CancelledError) for each in results)
        assert budget.used_size_bytes == 0
        async with budget.take(10):
            pass

    for seed in range(30):
        asyncio.run(scenario(seed))
