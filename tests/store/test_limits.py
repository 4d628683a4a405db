"""Limits on requests to a store: concurrent turns that adapt, and separate rates of bytes and requests.

Writing and reading have limits of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_conformance.asynchronous import Asynchronous, Run

from offload.contracts.opening import RequestLimits
from offload.contracts.store import Body
from offload.ground.errors import Misuse, Throttled, TryAgain
from offload.store.limit import LimitedStore
from offload.store.memory import MemoryStore
from offload.store.rate import Rate
from offload.store.retry import RetryingStore, RetryPolicy
from offload.store.turns import COOLDOWN_SECONDS, Turns


class Clock:
    """Time that passes only when a task sleeps."""

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
    def test_throttling_halves_the_bound_once_per_cooldown(self) -> None:
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

    def test_as_many_successes_as_the_bound_raise_it_by_about_one(self) -> None:
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
        """It holds for any order of requests, ends, cancellations, throttling and successes."""
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
                if len(steps) % 2:  # otherwise several steps happen before any task runs
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
            await turns.__aexit__()  # the first task now has the turn, and has not run yet
            first.cancel()
            return await asyncio.wait_for(second, 60)

        assert run(scenario()) == "had a turn"


class TestRate(Asynchronous):
    def test_a_request_waits_for_the_units_that_the_last_one_used(self, run: Run) -> None:
        clock = Clock()
        rate = Rate(10, clock=clock, sleep=clock.sleep)

        async def scenario() -> None:
            for units in (50, 10, 10):
                await rate.take(units)

        run(scenario())

        assert clock.slept == [5.0, 1.0]

    def test_an_idle_rate_saves_nothing_up(self, run: Run) -> None:
        clock = Clock()
        rate = Rate(10, clock=clock, sleep=clock.sleep)

        async def scenario() -> None:
            clock.now += 1000
            await rate.take(10)
            await rate.take(10)

        run(scenario())

        assert clock.slept == [1.0]

    def test_a_missing_rate_causes_no_wait(self, run: Run) -> None:
        clock = Clock()

        run(Rate(None, clock=clock, sleep=clock.sleep).take(10**18))

        assert clock.slept == []


class TestLimitedStoreRates(Asynchronous):
    def test_bytes_up_and_bytes_down_have_separate_rates(self, run: Run) -> None:
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

    def test_a_body_of_unknown_size_pays_for_the_bytes_that_it_has(self, run: Run) -> None:
        """Its bound may be many times larger. Only the windows show the size, so the next request pays."""
        clock = Clock()
        limits = RequestLimits(up_bytes_per_second_max=100, up_requests_per_second_max=1000)
        store = LimitedStore(MemoryStore(), limits, clock=clock, sleep=clock.sleep)

        async def windows() -> AsyncIterator[bytes]:
            for size_bytes in (16, 400, 84):
                yield b"x" * size_bytes

        body = Body(size_bytes=100_000, windows=windows, is_bound=True)

        async def scenario() -> list[float]:
            times = []
            for key in ("a", "b", "c"):
                await store.put(key, body)
                times.append(round(clock.now, 2))
            return times

        assert run(scenario()) == [0.0, 5.0, 10.0]

    def test_a_put_of_unknown_size_that_fails_pays_for_what_it_sent(self, run: Run) -> None:
        class Breaks(MemoryStore):
            async def put(self, key: str, body: Body) -> None:
                async for _ in body.windows():
                    raise TryAgain("the connection broke")

        clock = Clock()
        limits = RequestLimits(up_bytes_per_second_max=100)
        store = LimitedStore(Breaks(), limits, clock=clock, sleep=clock.sleep)

        async def scenario() -> None:
            with pytest.raises(TryAgain):
                await store.put("a", replace(Body.of(b"x" * 500), size_bytes=100_000, is_bound=True))
            await store.create("b", b"")

        run(scenario())

        assert clock.now == 5.0

    def test_requests_have_a_rate_and_parts_count(self, run: Run) -> None:
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

    def test_successes_raise_a_lowered_bound_again(self, run: Run) -> None:
        store = LimitedStore(MemoryStore(), RequestLimits(up_requests_max=8))
        store.up.turns.throttled()

        for number in range(100):
            run(store.create(str(number), b""))

        assert store.up.turns.bound == 8


class TestRetryAfter(Asynchronous):
    def test_a_retry_waits_at_least_as_long_as_the_store_asks(self, run: Run) -> None:
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

    def test_a_store_that_asks_for_too_long_a_pause_gets_no_second_request(self, run: Run) -> None:
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
def test_the_error_about_a_limit_that_is_not_positive_names_it(options: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match=next(iter(options))):
        RequestLimits.of(options)


def test_limits_may_be_text_or_numbers() -> None:
    text = {"up_requests_max": "4", "up_bytes_per_second_max": "1e6", "deadline_seconds": 5}

    assert RequestLimits.of(text) == RequestLimits(
        up_requests_max=4, up_bytes_per_second_max=1e6, deadline_seconds=5
    )
