"""Tests of dispatchers: all streams advance, new ones are found, and a stop loses nothing.

The clock is that of the event loop, and runs a hundred times as fast.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from growing_source import GrowingSource, GrowingStream

from offload import ObjectStoreOffloader, SourceStream, TierOptions, sync
from offload.contracts.events import Event, RecordsLost
from offload.contracts.store import Body
from offload.follow.dispatcher import Dispatcher
from offload.follow.gaps import SeenTail
from offload.follow.rules import FollowRules
from offload.ground.env import Env
from offload.ground.errors import Denied, NotOffloaded, OffloadError, TryAgain
from offload.service.metrics import ServiceMetrics
from offload.store.memory import MemoryStore

SPEED = 100.0
RULES = FollowRules(max_lag_seconds=5.0, hold_back_seconds=0.0)


def fast() -> Env:
    """Return a clock that runs faster than the test."""
    return Env(
        monotonic=lambda: asyncio.get_running_loop().time() * SPEED,
        sleep=lambda seconds: asyncio.sleep(seconds / SPEED),
    )


def dispatcher(source: GrowingSource, store: MemoryStore, **changes: Any) -> Dispatcher:
    plan = ObjectStoreOffloader(store, options=TierOptions(uploads_max=4)), RULES
    options: dict[str, Any] = {"plan_of": lambda stream: plan, "env": fast(), "discover_seconds": 5.0}
    return Dispatcher(source=source, **(options | changes))


@dataclass
class LostSource(GrowingSource):
    """A source that cannot be listed as long as it has an error."""

    error: OffloadError | None = None
    looks: int = 0

    async def streams(self) -> Sequence[SourceStream]:
        """Raise the error, or list no stream."""
        self.looks += 1
        if self.error is not None:
            raise self.error
        return []


async def until(met: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    """Wait until a condition is met."""
    async with asyncio.timeout(seconds):
        while not await met():  # noqa: ASYNC110 - the store has no event to wait for
            await asyncio.sleep(0.01)


async def ends(store: MemoryStore) -> dict[str, int]:
    """Return the next offset of each stream of the tier."""
    tier = ObjectStoreOffloader(store)
    try:
        return {name: (await tier.load_manifest(name)).next_offset for name in await tier.streams()}
    except LookupError:
        return {}


def test_all_streams_advance_and_a_clean_stop_leaves_no_attempt_running() -> None:
    async def scenario() -> None:
        source, store, stopping = GrowingSource(), MemoryStore(), asyncio.Event()
        source.held = [GrowingStream(name=f"s{number}") for number in range(10)]
        running = asyncio.create_task(dispatcher(source, store).run(stopping))
        for round_number in range(1, 4):
            for stream in source.held:
                stream.append()
            wanted = {stream.name: 10 * round_number for stream in source.held}

            async def met(wanted: dict[str, int] = wanted) -> bool:
                return await ends(store) == wanted

            await until(met)
        stopping.set()
        await running

        tier = ObjectStoreOffloader(store)
        assert {name: (await tier.load_manifest(name)).running for name in await tier.streams()} == {
            stream.name: () for stream in source.held
        }

    asyncio.run(scenario())


def test_streams_are_found_and_forgotten_while_it_runs() -> None:
    async def scenario() -> None:
        source, store, stopping = GrowingSource(), MemoryStore(), asyncio.Event()
        following = dispatcher(source, store)
        running = asyncio.create_task(following.run(stopping))
        await asyncio.sleep(0.1)
        source.held = [GrowingStream(name="late")]
        source.held[0].append()

        async def copied() -> bool:
            return await ends(store) == {"late": 10}

        await until(copied)
        await forgotten(source, following)
        stopping.set()
        await running

    asyncio.run(scenario())


async def forgotten(source: GrowingSource, following: Dispatcher) -> None:
    """Delete all streams of the source, and wait until nothing follows them."""
    source.held = []

    async def is_idle() -> bool:
        return not following.statuses

    await until(is_idle)


def test_records_of_a_deleted_stream_that_were_never_copied_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are gone with the stream, and nothing else would ever tell."""
    events: list[Event] = []

    async def scenario() -> None:
        source, store, stopping = GrowingSource(), MemoryStore(), asyncio.Event()
        source.held = [GrowingStream(name="copied"), GrowingStream(name="seen")]
        for stream in source.held:
            stream.append()
        patient = ObjectStoreOffloader(store), replace(RULES, max_lag_seconds=500.0)
        hasty = ObjectStoreOffloader(store), RULES
        following = dispatcher(
            source, store, plan_of=lambda name: patient if name == "seen" else hasty, emit=events.append
        )
        running = asyncio.create_task(following.run(stopping))

        async def copied() -> bool:
            lags = {status.stream: status.lag_records for status in following.statuses}
            return lags == {"copied": 0, "seen": 10}

        await until(copied)
        held = source.held
        await forgotten(source, following)
        assert following.lost_tails == {"seen": 10}
        metrics = ServiceMetrics(lambda: following.statuses, lost_tails=lambda: following.lost_tails)
        assert b'offload_lost_records_total{stream="seen"} 10.0' in metrics.text()
        named = ServiceMetrics(list, lost_tails=lambda: {"__orders_1795954158560201918": 3})
        assert b'offload_lost_records_total{stream="orders"} 3.0' in named.text(), "as the other metrics"

        source.held = held

        async def is_back() -> bool:
            return not following.lost_tails

        await until(is_back)
        stopping.set()
        await running

    asyncio.run(scenario())

    gone = "stream {!r} is not in the source any more: it is not followed"
    assert [line.getMessage() for line in caplog.records] == [gone.format("copied"), gone.format("seen")]
    [lost] = [event for event in events if isinstance(event, RecordsLost)]
    assert (lost.stream, lost.from_offset, lost.to_offset, lost.records) == ("seen", 0, 10, 10)


def test_the_tail_of_a_stream_that_is_deleted_while_no_process_runs_is_counted_and_reported_once() -> None:
    """The process before noted what it saw. What another process has copied since is not lost."""
    events, noted = list[Event](), dict[str, SeenTail]()

    def note(tails: Mapping[str, SeenTail]) -> None:
        noted.clear()
        noted.update(tails)

    async def life(source: GrowingSource, store: MemoryStore, met: Callable[[Dispatcher], bool]) -> None:
        plan = ObjectStoreOffloader(store), replace(RULES, max_lag_seconds=500.0)
        options: dict[str, Any] = {"note_tails": note, "emit": events.append, "tails": dict(noted)}
        following, stopping = dispatcher(source, store, plan_of=lambda _: plan, **options), asyncio.Event()
        running = asyncio.create_task(following.run(stopping))

        async def is_met() -> bool:
            return met(following)

        await until(is_met)
        stopping.set()
        await running

    async def scenario() -> None:
        source, store = GrowingSource(), MemoryStore()
        source.held = [GrowingStream(name=name) for name in ("copied", "gone", "there")]
        for stream in source.held:
            stream.append()
        await life(source, store, lambda _: len(noted) == 3)
        async for _ in sync(GrowingSource(source.held[:1]), ObjectStoreOffloader(store)):
            pass
        del source.held[:2]
        for _ in range(2):
            await life(source, store, lambda process: process.lost_tails == {"gone": 10})
        assert noted == {"gone": SeenTail(0, 10, is_told=True), "there": SeenTail(0, 10)}

    asyncio.run(scenario())

    [lost] = [event for event in events if isinstance(event, RecordsLost)]
    assert (lost.stream, lost.from_offset, lost.to_offset, lost.records) == ("gone", 0, 10, 10)


def test_streams_of_a_folder_that_is_gone_are_not_lost() -> None:
    """An unmounted folder still has them."""

    async def scenario() -> None:
        source, store, stopping = UnlistedSource(), MemoryStore(), asyncio.Event()
        source.held = [GrowingStream(name="orders")]
        source.held[0].append()
        patient = ObjectStoreOffloader(store), replace(RULES, max_lag_seconds=500.0)
        following = dispatcher(source, store, plan_of=lambda name: patient)
        running = asyncio.create_task(following.run(stopping))

        async def is_seen() -> bool:
            return [status.lag_records for status in following.statuses] == [10]

        await until(is_seen)
        source.error = NotOffloaded("the folder is gone")
        await forgotten(source, following)
        stopping.set()
        await running

        assert following.lost_tails == {}

    asyncio.run(scenario())


class UnlistedSource(GrowingSource):
    """A source whose streams cannot be listed while it has an `error`."""

    error: OffloadError | None = None

    async def streams(self) -> Sequence[SourceStream]:
        """Return the streams, or raise the error."""
        if self.error is not None:
            raise self.error
        return await super().streams()


def test_a_failed_listing_ends_no_follower_and_its_error_clears_later() -> None:
    async def scenario() -> None:
        source, store, stopping = UnlistedSource(), MemoryStore(), asyncio.Event()
        source.held = [GrowingStream(name="orders")]
        following = dispatcher(source, store)
        running = asyncio.create_task(following.run(stopping))

        async def is_found() -> bool:
            return bool(following.statuses)

        async def has_listed() -> bool:
            return following.error is source.error

        async def is_copied() -> bool:
            return await ends(store) == {"orders": 10}

        await until(is_found)
        source.error = TryAgain("the broker is busy")
        await until(has_listed)
        source.held[0].append()
        await until(is_copied)
        assert [status.stream for status in following.statuses] == ["orders"]

        source.error = None
        await until(has_listed)
        stopping.set()
        await running

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [Denied("no right"), RuntimeError("a mistake of ours")], ids=repr)
def test_a_stream_that_fails_stops_no_other(error: Any) -> None:
    async def scenario() -> None:
        source, store, stopping = GrowingSource(), MemoryStore(), asyncio.Event()
        source.held = [GrowingStream(name="bad", error=error), GrowingStream(name="good")]
        source.held[1].append()
        following = dispatcher(source, store)
        running = asyncio.create_task(following.run(stopping))

        async def copied() -> bool:
            return await ends(store) == {"good": 10}

        await until(copied)
        assert [status.state for status in following.statuses] == ["paused", "leading"]
        stopping.set()
        await running

    asyncio.run(scenario())


def test_the_looks_of_three_streams_begin_at_once_and_are_spread_over_the_time_between_two() -> None:
    async def scenario() -> None:
        source, stopping, slept, draws = GrowingSource(), asyncio.Event(), list[float](), [0.1, 0.5, 0.9]
        source.held = [GrowingStream(name=f"s{number}") for number in range(3)]
        rules = replace(RULES, max_lag_seconds=50.0)

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if seconds >= 0.03:
                await stopping.wait()

        env = replace(fast(), sleep=sleep, random=iter(draws).__next__)
        tier = ObjectStoreOffloader(MemoryStore())
        following = dispatcher(source, MemoryStore(), env=env, plan_of=lambda stream: (tier, rules))
        running = asyncio.create_task(following.run(stopping))

        async def all_sleep() -> bool:
            return len(slept) == 7

        await until(all_sleep)
        stopping.set()
        await running
        assert {draw * seconds for draw in draws for seconds in (0.03, rules.look_seconds)} <= set(slept)

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [NotOffloaded("the folder does not exist"), Denied("no right")])
def test_the_log_says_once_that_a_source_is_lost_and_once_that_it_is_back(
    error: OffloadError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        source, stopping = LostSource(error=error), asyncio.Event()
        running = asyncio.create_task(dispatcher(source, MemoryStore()).run(stopping))

        async def looked_often() -> bool:
            return source.looks > 3

        await until(looked_often)
        source.error, source.looks = None, 0
        await until(looked_often)
        stopping.set()
        await running

    asyncio.run(scenario())

    assert [(line.levelname, line.getMessage()) for line in caplog.records] == [
        ("ERROR", f"cannot list the streams of memory://source: {error}"),
        ("INFO", "the streams of memory://source can be listed again"),
    ]


def test_a_stream_without_a_plan_is_left_out() -> None:
    async def scenario() -> None:
        source, store, stopping = GrowingSource(), MemoryStore(), asyncio.Event()
        source.held = [GrowingStream(name="in"), GrowingStream(name="out")]
        for stream in source.held:
            stream.append()
        plan_of = {"in": (ObjectStoreOffloader(store), RULES)}.get
        running = asyncio.create_task(dispatcher(source, store, plan_of=plan_of).run(stopping))

        async def copied() -> bool:
            return await ends(store) == {"in": 10}

        await until(copied)
        await asyncio.sleep(0.2)
        stopping.set()
        await running
        assert await ends(store) == {"in": 10}

    asyncio.run(scenario())


class SlowStore(MemoryStore):
    """A store whose uploads wait for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.at_once = self.at_once_max = 0

    async def put(self, key: str, data: bytes | Body) -> None:
        """Put an object once the test says so."""
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            await self.go.wait()
            await super().put(key, data)
        finally:
            self.at_once -= 1


def test_a_stop_commits_what_is_in_flight() -> None:
    async def scenario() -> None:
        source, stopping = GrowingSource(held=[GrowingStream()]), asyncio.Event()
        source.held[0].append()
        store = SlowStore()
        running = asyncio.create_task(dispatcher(source, store).run(stopping))

        async def uploading() -> bool:
            return store.at_once == 1

        await until(uploading)
        stopping.set()
        await asyncio.sleep(0.05)
        assert not running.done()
        store.go.set()
        await running

        assert await ends(store) == {"orders": 10}

    asyncio.run(scenario())


def test_streams_that_wait_for_a_turn_hold_no_snapshot_and_begin_nothing_after_a_stop() -> None:
    async def scenario() -> None:
        source, stopping = GrowingSource(), asyncio.Event()
        source.held = [GrowingStream(name=f"s{number}") for number in range(6)]
        for stream in source.held:
            stream.append()
        store = SlowStore()
        running = asyncio.create_task(dispatcher(source, store, turns_max=1).run(stopping))

        async def all_wait() -> bool:
            return store.at_once == 1 and all(stream.snapshots for stream in source.held)

        await until(all_wait)
        await asyncio.sleep(0.1)
        assert sum(stream.snapshots_open for stream in source.held) == 1
        stopping.set()
        await asyncio.sleep(0.05)
        store.go.set()
        await running

        assert len(await ends(store)) == 1

    asyncio.run(scenario())


def test_a_stop_that_takes_too_long_is_cut_short() -> None:
    async def scenario() -> None:
        source, stopping = GrowingSource(held=[GrowingStream()]), asyncio.Event()
        source.held[0].append()
        store = SlowStore()
        running = asyncio.create_task(dispatcher(source, store, stop_seconds=0.05).run(stopping))

        async def uploading() -> bool:
            return store.at_once == 1

        await until(uploading)
        stopping.set()

        with pytest.raises(TimeoutError):
            await running

    asyncio.run(scenario())


def test_no_more_streams_are_copied_at_once_than_there_are_turns() -> None:
    async def scenario() -> None:
        source, stopping = GrowingSource(), asyncio.Event()
        source.held = [GrowingStream(name=f"s{number}") for number in range(12)]
        for stream in source.held:
            stream.append()
        store = SlowStore()
        running = asyncio.create_task(dispatcher(source, store, turns_max=3).run(stopping))

        async def uploading() -> bool:
            return store.at_once == 3

        await until(uploading)
        await asyncio.sleep(0.2)
        assert store.at_once_max == 3
        store.go.set()

        async def copied() -> bool:
            return len(await ends(store)) == 12

        await until(copied)
        stopping.set()
        await running

    asyncio.run(scenario())
