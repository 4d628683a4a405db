"""The patience of requests with a failing store: they share it, any answer renews it, and no wait is silent.

The clock moves only when all tasks sleep, so minutes take no time.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from itertools import count, pairwise
from random import Random
from typing import Any, Self

import pytest

from offload.contracts.events import Event, Waiting
from offload.contracts.store import Body, Buffer, Listed, Span, Suffix
from offload.ground.errors import (
    AlreadyExists,
    Denied,
    Misuse,
    NotFound,
    OffloadError,
    OutcomeUnknown,
    Throttled,
    TryAgain,
)
from offload.store.memory import MemoryStore
from offload.store.retry import NOTICE_SECONDS, RetryingStore, RetryPolicy

PATIENCE_SECONDS = RetryPolicy().patience_seconds


class Clock:
    """A clock that wakes sleepers in their order, each when all others sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._numbers), woken))
        await woken

    async def run(self, *work: Coroutine[Any, Any, Any]) -> list[Any]:
        """Return the result or error of each, once all have ended."""
        gathered = asyncio.ensure_future(asyncio.gather(*work, return_exceptions=True))
        while True:
            for _ in range(20):
                await asyncio.sleep(0)
            if gathered.done():
                return list(gathered.result())
            self.now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)


class Sick(MemoryStore):
    """A store that answers until it falls ill, and again from `well_at` on. In between it raises `error`."""

    def __init__(self, clock: Clock, error: OffloadError, *, well_at: float = 10**9) -> None:
        super().__init__(objects={"key": b"data"})
        self.clock, self.error, self.well_at = clock, error, well_at
        self.asked: Counter[str] = Counter()
        self.asked_at_last = -1.0
        self.spared: set[str] = set()
        """Keys whose requests succeed although the store is ill."""

    async def get(self, key: str, span: object = None) -> bytes:
        self.asked[key] += 1
        self.asked_at_last = self.clock.now
        if self.clock.now < self.well_at and key not in self.spared:
            raise self.error
        return b"data"

    async def create(self, key: str, data: bytes) -> None:
        self.asked[key] += 1
        if self.clock.now < self.well_at:
            raise self.error
        await super().create(key, data)


SLOW_DOWN = Throttled("mem://: cannot read 'key': SlowDown: on purpose")
GONE = TryAgain("mem://: cannot read 'key': nothing answers")


def patient(
    store: Sick, policy: RetryPolicy | None = None, *, heard: list[Event] | None = None
) -> RetryingStore:
    events = [] if heard is None else heard
    return RetryingStore(
        store,
        policy=policy,
        clock=lambda: store.clock.now,
        sleep=store.clock.sleep,
        random=Random(7).random,
        emit=events.append,
    )


@pytest.mark.parametrize("error", [SLOW_DOWN, GONE])
@pytest.mark.parametrize("seconds", [5, 20, 30, 90])
def test_a_store_that_recovers_within_the_patience_costs_no_request(
    error: OffloadError, seconds: float
) -> None:
    clock = Clock()
    store = Sick(clock, error, well_at=seconds)
    retrying = patient(store)

    read, created = asyncio.run(clock.run(retrying.get("key"), retrying.create("new", b"new")))

    assert (read, created) == (b"data", None)
    assert seconds <= clock.now < seconds + RetryPolicy().pause_seconds_max
    assert store.asked["key"] < 60


def test_when_patience_is_spent_all_waiting_requests_fail_at_the_same_moment() -> None:
    clock = Clock()
    store = Sick(clock, SLOW_DOWN)
    retrying = patient(store)
    ended: list[float] = []

    async def ask(number: int) -> None:
        await clock.sleep(number)  # some of them begin later
        try:
            await retrying.get(f"{number}")
        finally:
            ended.append(clock.now)

    results = asyncio.run(clock.run(*(ask(number) for number in range(20))))

    assert results == [SLOW_DOWN] * 20
    assert set(ended) == {PATIENCE_SECONDS}
    assert store.asked_at_last < PATIENCE_SECONDS, "nobody asks once more, at the end, all at once"


def test_any_answer_renews_the_patience_of_all_requests() -> None:
    clock = Clock()
    store = Sick(clock, SLOW_DOWN, well_at=250)
    store.spared = {"other"}
    retrying = patient(store)

    async def others() -> None:
        for _ in range(3):
            await clock.sleep(100)
            await retrying.get("other")

    read, _ = asyncio.run(clock.run(retrying.get("key"), others()))

    assert read == b"data"


@pytest.mark.parametrize("answer", [NotFound("key"), AlreadyExists("key")])
def test_an_absent_object_and_a_lost_create_are_answers_too(answer: OffloadError) -> None:
    clock = Clock()
    store = Sick(clock, SLOW_DOWN, well_at=150)

    class Answers(Sick):
        async def create(self, key: str, data: bytes) -> None:
            raise answer

    store.__class__ = Answers
    retrying = patient(store)

    async def asks() -> None:
        await clock.sleep(60)
        await retrying.create("new", b"")

    read, raised = asyncio.run(clock.run(retrying.get("key"), asks()))

    assert (read, raised) == (b"data", answer)


def test_a_request_that_fails_while_all_others_are_answered_ends() -> None:
    """Otherwise a process would request one broken object for as long as it runs."""
    clock = Clock()
    store = Sick(clock, GONE)
    store.spared = {"other"}
    retrying = patient(store)

    async def scenario() -> OffloadError:
        failing = asyncio.ensure_future(retrying.get("key"))
        while not failing.done():
            await clock.sleep(1)
            await retrying.get("other")
        return failing.exception()  # type: ignore[return-value]

    assert asyncio.run(clock.run(scenario())) == [GONE]
    assert store.asked["key"] == RetryPolicy().attempts_max


def test_after_patience_was_spent_each_request_gets_one_attempt_until_the_store_answers() -> None:
    """A sync of many streams does not wait for each stream in turn."""
    clock = Clock()
    store = Sick(clock, GONE, well_at=200)
    retrying = patient(store)

    async def scenario() -> list[float]:
        times = []
        for number in range(3):
            with pytest.raises(TryAgain):
                await retrying.get(f"{number}")
            times.append(clock.now)
        store.well_at = clock.now + 30
        clock.now += 29  # the store is still ill, and the request fails
        with pytest.raises(TryAgain):
            await retrying.get("last")
        clock.now += 2
        await retrying.get("key")  # this is an answer
        store.well_at = clock.now + 60
        await retrying.get("key")
        return times

    [times] = asyncio.run(clock.run(scenario()))

    assert times == [PATIENCE_SECONDS] * 3
    assert store.asked["1"] == store.asked["2"] == 1


def test_an_earlier_failure_does_not_shorten_the_patience_of_a_later_one() -> None:
    clock = Clock()
    store = Sick(clock, GONE)
    retrying = patient(store)

    async def scenario() -> bytes:
        with pytest.raises(TryAgain):
            await retrying.get("key")
        clock.now += 3600  # no request was made meanwhile
        store.well_at = clock.now + 100
        return await retrying.get("key")

    assert asyncio.run(clock.run(scenario())) == [b"data"]


def test_an_attempt_that_took_longer_than_the_patience_is_followed_by_another() -> None:
    """One stalled connection alone never ends a command."""
    clock = Clock()

    class Stalls(Sick):
        async def get(self, key: str, span: object = None) -> bytes:
            self.asked[key] += 1
            if self.asked[key] == 1:
                await clock.sleep(600)
                raise GONE
            return b"data"

    store = Stalls(clock, GONE)

    assert asyncio.run(clock.run(patient(store).get("key"))) == [b"data"]


@pytest.mark.parametrize("error", [Denied("no"), NotFound("key"), Misuse("no")])
def test_an_error_that_waiting_cannot_cure_is_raised_at_once(error: OffloadError) -> None:
    clock = Clock()
    store = Sick(clock, error)

    assert asyncio.run(clock.run(patient(store).get("key"))) == [error]
    assert (clock.now, store.asked["key"]) == (0.0, 1)


def test_a_create_of_unknown_outcome_is_raised_at_once_for_the_protocol_to_resolve() -> None:
    clock = Clock()
    store = Sick(clock, unknown := OutcomeUnknown("timed out"))

    assert asyncio.run(clock.run(patient(store).create("new", b""))) == [unknown]
    assert (clock.now, store.asked["new"]) == (0.0, 1)


def test_patience_is_as_long_as_the_policy_says() -> None:
    clock = Clock()

    asyncio.run(clock.run(patient(Sick(clock, GONE), RetryPolicy(patience_seconds=7)).get("key")))

    assert clock.now == 7


def test_a_waiting_request_is_announced_every_few_seconds_with_cause_and_end() -> None:
    clock = Clock()
    heard: list[Event] = []
    retrying = patient(Sick(clock, SLOW_DOWN), heard=heard)

    asyncio.run(clock.run(*(retrying.get(f"{number}") for number in range(30))))

    waited = []
    for event in heard:
        assert isinstance(event, Waiting)
        assert (event.url, event.error, event.patience_seconds) == ("memory://", SLOW_DOWN, PATIENCE_SECONDS)
        waited.append(event.waited_seconds)
    pauses = [after - before for before, after in pairwise(waited)]
    assert waited[0] < NOTICE_SECONDS
    assert min(pauses) >= NOTICE_SECONDS
    assert max(pauses) < 2 * NOTICE_SECONDS


class Silent(MemoryStore):
    """A store that answers nothing until a first event is heard."""

    def __init__(self) -> None:
        super().__init__(objects={"key": b"data"})
        self.heard = asyncio.Event()
        self.events: list[Event] = []

    def hear(self, event: Event) -> None:
        self.events.append(event)
        self.heard.set()

    async def get(self, key: str, span: Span | Suffix | None = None) -> Buffer:
        """Wait."""
        await self.heard.wait()
        return await super().get(key, span)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
        """Wait."""
        await self.heard.wait()
        async for row in super().list(prefix, after=after):
            yield row


@pytest.mark.parametrize("operation", ["get", "list"])
def test_a_store_that_does_not_answer_is_announced_before_anything_fails(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr("offload.store.retry.SILENT_SECONDS", 0.01)

    async def scenario() -> None:
        silent = Silent()
        store = RetryingStore(silent, emit=silent.hear)

        if operation == "get":
            assert bytes(await store.get("key")) == b"data"
        else:
            assert [row.key async for row in store.list("")] == ["key"]

        event = silent.events[0]
        assert isinstance(event, Waiting)
        assert (event.url, str(event.error)) == ("memory://", "memory://: no answer yet")
        assert event.waited_seconds >= 0.01

    asyncio.run(scenario())


def test_a_request_that_succeeds_at_the_second_attempt_is_not_announced() -> None:
    clock = Clock()
    heard: list[Event] = []

    asyncio.run(clock.run(patient(Sick(clock, GONE, well_at=0.01), heard=heard).get("key")))

    assert heard == []


def test_a_long_pause_that_the_store_asks_for_is_announced_when_it_begins() -> None:
    clock = Clock()
    heard: list[Event] = []
    store = Sick(clock, asks := Throttled("SlowDown", 40.0), well_at=1)

    asyncio.run(clock.run(patient(store, heard=heard).get("key")))

    [event] = heard
    assert isinstance(event, Waiting)
    assert (event.waited_seconds, event.error) == (0.0, asks)
    assert (clock.now >= 40, store.asked["key"]) == (True, 2)


def test_a_request_does_not_wait_for_a_pause_longer_than_its_patience() -> None:
    clock = Clock()
    store = Sick(clock, asks := Throttled("SlowDown", 365 * 24 * 3600.0))

    assert asyncio.run(clock.run(patient(store).get("key"))) == [asks]
    assert (clock.now, store.asked["key"]) == (0, 1)


def test_an_empty_listing_is_an_answer_too() -> None:
    clock = Clock()
    store = Sick(clock, SLOW_DOWN, well_at=150)
    retrying = patient(store)

    async def lists() -> list[str]:
        await clock.sleep(60)
        return [row.key async for row in retrying.list("nothing/")]

    assert asyncio.run(clock.run(retrying.get("key"), lists())) == [b"data", []]


def test_a_waiting_request_can_be_cancelled_at_once() -> None:
    clock = Clock()
    store = Sick(clock, Throttled("SlowDown", 100.0))

    async def scenario() -> bool:
        waiting = asyncio.ensure_future(patient(store).get("key"))
        await clock.sleep(5)
        waiting.cancel()
        await asyncio.wait([waiting])
        return waiting.cancelled()

    assert asyncio.run(clock.run(scenario())) == [True]
    assert clock.now == 5


def test_a_put_that_waits_never_holds_two_copies_of_its_bytes() -> None:
    clock = Clock()
    alive: list[int] = []

    class Counted(bytes):
        living = 0

        def __new__(cls, data: bytes) -> Self:
            cls.living += 1
            return super().__new__(cls, data)

        def __del__(self) -> None:
            Counted.living -= 1

    class Gathers(MemoryStore):
        async def put(self, key: str, body: Body) -> None:
            windows = [window async for window in body.windows()]
            alive.append(Counted.living)
            if len(alive) < 5:
                raise TryAgain("not now")
            await super().put(key, Body.of(b"".join(windows)))

    async def windows() -> AsyncIterator[bytes]:
        yield Counted(b"first")
        yield Counted(b"second")

    retrying = RetryingStore(Gathers(), clock=lambda: clock.now, sleep=clock.sleep)
    gc.disable()  # an object that only the cycle collector would free counts as held
    try:
        asyncio.run(clock.run(retrying.put("key", Body(size_bytes=11, windows=windows))))
    finally:
        gc.enable()

    assert alive == [2] * 5


@pytest.mark.parametrize("error", [TryAgain("the source is busy"), OutcomeUnknown("the source is gone")])
def test_an_error_of_a_body_is_raised_at_once_and_costs_the_store_no_patience(error: OffloadError) -> None:
    """A healthy store is not retried because the source fails."""
    clock = Clock()
    store = Sick(clock, GONE)

    async def windows() -> AsyncIterator[bytes]:
        yield b"half"
        raise error

    [raised] = asyncio.run(clock.run(patient(store).put("other", Body(size_bytes=8, windows=windows))))

    assert (raised, clock.now) == (error, 0.0)
    assert "other" not in store.objects
