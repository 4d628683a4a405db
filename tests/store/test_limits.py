"""How a store is spared: turns that it lowers itself, rates of bytes and requests, up and down apart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_conformance.asynchronous import Asynchronous, Run

from offload.contracts.opening import RequestLimits
from offload.contracts.store import Body
from offload.errors import Misuse, Throttled, TryAgain
from offload.store.limit import LimitedStore
from offload.store.memory import MemoryStore
from offload.store.rate import Rate
from offload.store.retry import RetryingStore, RetryPolicy
from offload.store.turns import COOLDOWN_SECONDS, Turns


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class TestTurns(Asynchronous):
    def test_a_throttled_store_halves_the_bound_once_in_a_while(self) -> None:
        clock = Clock()
        turns = Turns(32, clock)

        bounds = []
        for seconds in (0, 0.1, COOLDOWN_SECONDS, 0, COOLDOWN_SECONDS):
            clock.now += seconds
            turns.throttled()
            bounds.append(turns.bound)

        assert bounds == [16, 16, 8, 8, 4]

    def test_the_bound_never_falls_below_one(self) -> None:
        clock = Clock()
        turns = Turns(3, clock)

        for _ in range(10):
            clock.now += COOLDOWN_SECONDS
            turns.throttled()

        assert turns.bound == 1

    def test_a_bound_s_worth_of_successes_raises_it_by_about_one_up_to_the_maximum(self) -> None:
        turns = Turns(8, Clock())
        turns.throttled()
        for _ in range(5):
            turns.succeeded()
        assert turns.bound == 5

        for _ in range(1000):
            turns.succeeded()
        assert turns.bound == 8

    @given(st.lists(st.sampled_from(["ask", "end", "cancel", "throttle", "succeed"]), max_size=60))
    def test_no_turn_is_lost_and_none_is_given_twice(self, steps: list[str]) -> None:
        """Whatever is asked, cancelled, throttled and ended in whatever order."""
        clock = Clock()
        turns = Turns(3, clock)
        running = 0

        async def hold(end: asyncio.Event) -> None:
            nonlocal running
            async with turns:
                running += 1
                try:
                    await end.wait()
                finally:
                    running -= 1

        async def scenario() -> None:
            held: list[tuple[asyncio.Task[None], asyncio.Event]] = []
            for step in steps:
                clock.now += COOLDOWN_SECONDS
                if step == "ask":
                    end = asyncio.Event()
                    held.append((asyncio.create_task(hold(end)), end))
                elif step == "end" and held:
                    held.pop(0)[1].set()
                elif step == "cancel" and held:
                    held.pop(len(held) // 2)[0].cancel()
                elif step == "throttle":
                    turns.throttled()
                elif step == "succeed":
                    turns.succeeded()
                if len(steps) % 2:  # else several steps happen before any task runs
                    await asyncio.sleep(0)
                assert running <= 3
            for _, end in held:
                end.set()
            await asyncio.wait_for(asyncio.gather(*(task for task, _ in held)), 60)
            async with asyncio.timeout(60), turns:
                assert running == 0

        with asyncio.Runner() as runner:
            runner.run(scenario())

    def test_a_turn_that_was_given_to_a_cancelled_waiter_goes_to_the_next(self, run: Run) -> None:
        turns = Turns(1, Clock())

        async def take() -> str:
            async with turns:
                return "had a turn"

        async def scenario() -> str:
            await turns.__aenter__()
            first, second = asyncio.create_task(take()), asyncio.create_task(take())
            await asyncio.sleep(0)
            await turns.__aexit__()  # the turn is the first one's now, which has not run yet
            first.cancel()
            return await asyncio.wait_for(second, 60)

        assert run(scenario()) == "had a turn"


class TestRate(Asynchronous):
    def test_what_was_used_is_waited_for_by_the_next(self, run: Run) -> None:
        clock = Clock()
        rate = Rate(10, clock=clock, sleep=clock.sleep)

        async def scenario() -> None:
            for units in (50, 10, 10):
                await rate.take(units)

        run(scenario())

        assert clock.slept == [5.0, 1.0]

    def test_nothing_is_saved_up_while_nobody_asks(self, run: Run) -> None:
        clock = Clock()
        rate = Rate(10, clock=clock, sleep=clock.sleep)

        async def scenario() -> None:
            clock.now += 1000
            await rate.take(10)
            await rate.take(10)

        run(scenario())

        assert clock.slept == [1.0]

    def test_no_rate_is_no_wait(self, run: Run) -> None:
        clock = Clock()

        run(Rate(None, clock=clock, sleep=clock.sleep).take(10**18))

        assert clock.slept == []


class TestLimitedStoreRates(Asynchronous):
    def test_bytes_up_and_bytes_down_have_rates_of_their_own(self, run: Run) -> None:
        clock = Clock()
        limits = RequestLimits(up_bytes_per_second_max=100, down_bytes_per_second_max=1000)
        store = LimitedStore(MemoryStore(), limits, clock=clock, sleep=clock.sleep)

        async def scenario() -> list[float]:
            await store.put("a", Body.of(b"x" * 500))
            await store.create("b", b"x" * 100)
            up = clock.now
            await store.get("a")
            await store.get("a")
            return [up, clock.now - up]

        assert run(scenario()) == [5.0, 0.5]

    def test_requests_have_rates_too_and_parts_count(self, run: Run) -> None:
        clock = Clock()
        limits = RequestLimits(up_requests_per_second_max=2)
        store = LimitedStore(MemoryStore(), limits, clock=clock, sleep=clock.sleep)

        async def scenario() -> None:
            upload = await store.start_upload("a")
            await upload.put_part(1, b"x")
            await upload.put_part(2, b"x")
            await upload.complete()
            await store.get("a")

        run(scenario())

        assert clock.now == 1.0

    def test_a_throttled_request_lowers_the_bound_of_its_own_direction(self, run: Run) -> None:
        class Throttles(MemoryStore):
            async def put(self, key: str, body: Body) -> None:
                raise Throttled("slow down", 3.0)

        store = LimitedStore(Throttles(), RequestLimits(up_requests_max=8, down_requests_max=8))

        with pytest.raises(Throttled):
            run(store.put("a", Body.of(b"")))

        assert (store.up.turns.bound, store.down.turns.bound) == (4, 8)

    def test_a_success_raises_the_bound_again(self, run: Run) -> None:
        store = LimitedStore(MemoryStore(), RequestLimits(up_requests_max=8))
        store.up.turns.throttled()

        for number in range(100):
            run(store.create(str(number), b""))

        assert store.up.turns.bound == 8


class TestRetryAfter(Asynchronous):
    def test_a_store_that_says_for_how_long_is_left_alone_at_least_so_long(self, run: Run) -> None:
        clock = Clock()
        errors: list[TryAgain] = [Throttled("slow down", 7.0), Throttled("slow down"), TryAgain("hm")]

        class Throttles(MemoryStore):
            async def get(self, key: str, span: object = None) -> bytes:
                if errors:
                    raise errors.pop(0)
                return b"there"

        policy = RetryPolicy(pause_seconds_first=0.1)
        store = RetryingStore(Throttles(), policy=policy, clock=clock, sleep=clock.sleep, random=lambda: 0.5)

        assert run(store.get("key")) == b"there"
        assert clock.slept == [pytest.approx(7.05), pytest.approx(0.1), pytest.approx(0.2)]

    def test_a_store_that_wants_more_time_than_there_is_gets_no_second_request(self, run: Run) -> None:
        asked = []

        class Throttles(MemoryStore):
            async def get(self, key: str, span: object = None) -> bytes:
                asked.append(key)
                raise Throttled("slow down", 3600)

        with pytest.raises(Throttled):
            run(RetryingStore(Throttles()).get("key"))

        assert asked == ["key"]


@pytest.mark.parametrize(
    "options",
    [
        {"up_requests_max": "0"},
        {"up_requests_max": "many"},
        {"down_bytes_per_second_max": "-1"},
        {"down_bytes_per_second_max": "nan"},
        {"deadline_seconds": "inf"},
        {"up_requests_max": "1.5"},
    ],
)
def test_a_limit_that_is_no_number_above_zero_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(options))):
        RequestLimits.of(options)


def test_limits_come_as_text_or_as_numbers() -> None:
    text = {"up_requests_max": "4", "up_bytes_per_second_max": "1e6", "deadline_seconds": 5}

    assert RequestLimits.of(text) == RequestLimits(
        up_requests_max=4, up_bytes_per_second_max=1e6, deadline_seconds=5
    )
