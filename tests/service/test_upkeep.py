"""Tests of upkeep: jobs beside a kept writer, one at a time, and never in the way of the followers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from growing_source import BODY_SIZE_BYTES, GrowingStream
from index_world import Keyed
from kit.world import Clock, TierWorld

from offload import MemoryHandle, ObjectStoreOffloader, StreamWriter, build_chunk
from offload.contracts.events import UpkeepFinished
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules, FollowState
from offload.formats.checksums import crc32c
from offload.ground.env import Env
from offload.ground.errors import Denied, StoreDenied, UnsupportedFormat
from offload.index.find import FindReport, find
from offload.index.terms import Spec
from offload.model.part import StreamPart
from offload.service.config import RunConfig
from offload.service.upkeep import FRAGMENTS_MIN, INDEX_CHECK_SECONDS, Upkeep
from offload.store.faults import FaultyStore
from offload.upkeep.clock import CLOCK_AHEAD_SECONDS_MAX
from offload.upkeep.parts import trim_parts
from offload.upkeep.retention import Retention

OFF = dict.fromkeys(("retention", "compact", "index", "sweep", "verify"), "off")
BY = "body:key"


class BodyIsKey(Keyed):
    """A decoder of records that are their own keys."""

    def keys(self, records: Sequence[bytes]) -> list[bytes | None]:
        return [*records]


class World(TierWorld):
    """A tier that is kept open, one follower, and upkeep."""

    def __init__(self, **upkeep: str) -> None:
        super().__init__(clock=Clock(10.0**9))
        self.stream, self.kept = GrowingStream(), self.tier()
        rules = FollowRules(max_lag_seconds=1.0, hold_back_seconds=0.0)
        self.follower = Follower(source=self.stream, offloader=self.kept, rules=rules, env=self.env())
        document = {"source": "memory:", "tier": "memory:", "upkeep": OFF | upkeep}
        rules_of_all = {"max_age": "1d", "index": [BY]}
        self.config = RunConfig.model_validate(document | {"streams": {"*": rules_of_all}})
        self.upkeep = self.with_led(["orders"])

    def env(self) -> Env:
        return replace(self.clock.env(random=0.0), sleep=asyncio.sleep)

    def beside(self, other: World) -> Upkeep:
        """Return this world's upkeep for the tier of the other."""
        self.kept, self.events = other.kept, other.events
        return self.with_led(["orders"])

    def with_led(self, led: list[str]) -> Upkeep:
        return Upkeep(
            config=self.config,
            tier=self.kept,
            tier_for=lambda stream: self.kept,
            led=lambda: led,
            decoder=lambda name: BodyIsKey(),
            ends=lambda: {"orders": self.follower.status.committed_offset},
            env=self.env(),
            emit=self.events.append,
        )

    async def grow(self, fragments: int, *, timestamp_ms: int = 1) -> None:
        """Copy so many fragments, each by its own commit of the kept writer."""
        for _ in range(fragments):
            self.stream.append(timestamp_ms=timestamp_ms)
            for _ in range(4):
                self.clock.now += 0.5
                await self.follower.step()
        assert (self.follower.state, self.follower.status.lag_records) == (FollowState.LEADING, 0)

    async def run_once(self, upkeep: Upkeep | None = None) -> UpkeepFinished:
        """Run the upkeep until its first job has ended."""
        stopping = asyncio.Event()
        running = asyncio.create_task((upkeep or self.upkeep).run(stopping))
        async with asyncio.timeout(60):
            while not (done := self.of(UpkeepFinished)):  # noqa: ASYNC110
                await asyncio.sleep(0)
            stopping.set()
            await running
        self.events.clear()
        return done[0]


@pytest.mark.parametrize("job", ["retention", "compact"])
def test_a_kept_writer_goes_on_after_a_job_has_changed_its_stream(job: str) -> None:
    """The base of its next commit is old then. It stays in its epoch, and nothing is lost or doubled."""

    async def scenario() -> None:
        world = World(**{job: "1h"})
        await world.grow(9)
        before = await world.kept.load_manifest("orders")

        done = await world.run_once()
        changed = await world.kept.load_manifest("orders")
        await world.grow(2)

        after = await world.kept.load_manifest("orders")
        assert (done.job, done.error) == (job, None)
        assert changed.version > before.version
        assert changed.fragments < before.fragments
        assert (after.epoch, after.writer) == (before.epoch, before.writer)
        assert after.next_offset == before.next_offset + 20
        assert after.first_offset == (80 if job == "retention" else 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("job", ["retention", "compact"])
def test_a_job_works_on_all_parts_of_a_stream_that_this_process_leads(job: str) -> None:
    """Otherwise old data would be kept for ever, and small fragments would never be merged."""

    async def scenario() -> None:
        world, part = World(**{job: "1h"}), StreamPart("orders", 2)
        await world.grow(9)
        await world.kept.begin_part(part, before=None)
        writer = await StreamWriter.claim(world.kept, part.name, first_offset=100)
        for offset in range(100, 109):
            timestamp_ms = 10**12 if offset == 108 else 1
            chunk = build_chunk([b"x"], offset=offset, timestamp_ms=timestamp_ms, epoch=1)
            await writer.offload([MemoryHandle([chunk], ledger_id=100)])

        assert (await world.run_once()).error is None

        found = [await world.kept.load_manifest(name) for name in ("orders", part.name)]
        left = [(each.first_offset, each.fragments) for each in found]
        assert left == ([(90, 0), (108, 1)] if job == "retention" else [(0, 2), (100, 2)])

    asyncio.run(scenario())


def test_timestamps_in_the_future_keep_no_older_data_and_are_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One is at the end of a part: the part behind it says that it is old."""

    async def scenario() -> None:
        world, part = World(retention="1h"), StreamPart("orders", 2)
        await world.grow(2)
        await world.grow(1, timestamp_ms=2 * 10**12)
        await world.kept.begin_part(part, before=None)
        writer = await StreamWriter.claim(world.kept, part.name, first_offset=100)

        async def append(offset: int, timestamp_ms: int) -> None:
            chunk = build_chunk([b"x"], offset=offset, timestamp_ms=timestamp_ms, epoch=1)
            await writer.offload([MemoryHandle([chunk], ledger_id=100)])

        for offset, timestamp_ms, left in ((100, 10**12, (20, 1)), (101, 1, (20, 1))):
            await append(offset, timestamp_ms)
            await retain(world)
            first = await world.kept.load_manifest("orders")
            assert (first.first_offset, first.fragments) == left
        world.clock.now += 2 * 86_400
        await append(102, int(1000 * world.clock.now))
        await retain(world)

        found = [await world.kept.load_manifest(name) for name in ("orders", part.name)]
        assert [(each.first_offset, each.fragments) for each in found] == [(30, 0), (102, 1)]

    async def retain(world: World) -> None:
        assert (await world.run_once()).error is None
        world.clock.now += 3600

    asyncio.run(scenario())
    [line] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith("stream 'orders': the fragment at offset 20 has a timestamp in the future, 2033-")


def test_a_verify_reports_damage_and_a_sweep_finds_nothing_to_delete() -> None:
    async def scenario() -> None:
        world = World(verify="2h")
        await world.grow(1)
        assert (await world.run_once(World(sweep="1h").beside(world))).error is None
        [key] = world.data
        del world.objects[key]

        done = await world.run_once()

        assert (done.job, done.streams, key in str(done.error)) == ("verify", 1, True)

    asyncio.run(scenario())


def test_a_verify_asks_for_an_upgrade_if_a_newer_program_wrote_a_root() -> None:
    """It reports no damage: that would raise an alarm in the middle of an upgrade."""

    async def scenario() -> None:
        world = World(verify="2h")
        await world.grow(1)
        key = max(key for key in world.objects if "/root." in key)
        body = world.objects[key][:4] + b"\0\x09" + world.objects[key][6:-4]
        world.objects[key] = body + crc32c(body).to_bytes(4, "big")

        done = await world.run_once()

        assert isinstance(done.error, UnsupportedFormat)
        assert "upgrade the program" in str(done.error)

    asyncio.run(scenario())


def test_a_process_that_leads_nothing_sends_no_request() -> None:
    async def scenario() -> None:
        world = World(retention="1h", compact="1h", sweep="1h")
        await world.grow(1)
        requests = world.kept.metrics.requests.total()
        stopping = asyncio.Event()
        running = asyncio.create_task(world.with_led([]).run(stopping))
        for _ in range(100):
            await asyncio.sleep(0)

        stopping.set()
        await running

        assert (world.kept.metrics.requests.total(), world.events) == (requests, [])

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [Denied("no right"), RuntimeError("a mistake of ours")], ids=repr)
def test_an_error_ends_a_run_and_not_the_upkeep(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World(compact="1h")
        await world.grow(9)

        def fails(*args: Any, **options: Any) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr("offload.service.upkeep.compact", fails)
            failed = await world.run_once()
        last = world.upkeep.as_json()[0]
        world.clock.now += 3600

        done = await world.run_once()

        assert str(error) in str(failed.error)
        assert str(error) in last["last"]["error"]
        assert (done.error, done.objects) == (None, 8)

    asyncio.run(scenario())


@pytest.mark.parametrize("job", ["retention", "compact", "index"])
@pytest.mark.parametrize(
    ("error", "asked"), [(Denied, {"orders", "payments"}), (StoreDenied, {"orders"})], ids=["key", "store"]
)
def test_only_a_store_that_denies_everything_ends_a_run_at_its_first_stream(
    job: str, error: type[Denied], asked: set[str]
) -> None:
    """The run reports the first error."""

    async def scenario() -> None:
        world, denied = World(**{job: "1h"}), list[str]()
        for stream in ("orders", "payments"):
            await StreamWriter.claim(world.kept, stream)

        async def deny(operation: str, key: str) -> None:
            for stream in ("orders", "payments"):
                if stream in key:
                    denied.append(stream)
                    raise error(f"no right to {operation} {key}")

        world.kept = ObjectStoreOffloader(FaultyStore(world.store, before=deny), env=world.env())
        done = await world.run_once(world.with_led(["orders", "payments"]))

        assert set(denied) == asked
        assert type(done.error) is error
        assert "orders" in str(done.error)

    asyncio.run(scenario())


def test_a_stream_without_limits_is_left_out_of_retention() -> None:
    async def scenario() -> None:
        world = World(retention="1h")
        await world.grow(1)
        document = {"source": "memory:", "tier": "memory:", "upkeep": OFF | {"retention": "1h"}}
        world.config = RunConfig.model_validate(document)

        done = await world.run_once(world.with_led(["orders"]))

        assert (done.streams, done.error) == (0, None)

    asyncio.run(scenario())


@pytest.mark.parametrize("job", ["retention", "sweep"])
def test_a_clock_that_jumps_ahead_deletes_nothing_until_it_is_corrected(job: str) -> None:
    """By such a clock all data is old, and every grace is over."""

    async def scenario() -> None:
        world = World(**{job: "1h"})
        await world.grow(9)
        if job == "sweep":
            await trim_parts(world.kept, "orders", Retention(age_seconds_max=1.0), env=world.env())
        before = dict(world.objects)
        world.clock.skew_seconds = CLOCK_AHEAD_SECONDS_MAX + 10

        done = await world.run_once()

        assert isinstance(done.error, Denied)
        assert "has jumped 1.0 hours ahead" in str(done.error)
        assert world.objects == before

        world.clock.skew_seconds = 0
        world.clock.now += 3600
        assert (await world.run_once()).error is None
        assert world.objects != before

    asyncio.run(scenario())


def test_a_limit_of_size_trusts_no_clock_and_applies_after_a_jump() -> None:
    async def scenario() -> None:
        world = World(retention="1h")
        changed = {"streams": {"*": {"max_bytes": "1B"}}, "upkeep": OFF | {"retention": "1h"}}
        world.config = RunConfig.model_validate({"source": "memory:", "tier": "memory:"} | changed)
        upkeep = world.with_led(["orders"])
        await world.grow(9)
        world.clock.skew_seconds = 10.0**9

        assert (await world.run_once(upkeep)).error is None
        assert (await world.kept.load_manifest("orders")).first_offset == 80

    asyncio.run(scenario())


def test_a_run_of_the_index_covers_what_was_committed_before_it() -> None:
    """A find then scans the rest alone, and the kept writer of the stream goes on."""

    async def scenario() -> None:
        world = World(index="10m")
        await world.grow(2)
        first = await world.run_once()
        await world.grow(1)
        behind = await found(world)
        world.clock.now += 600

        second = await world.run_once()

        done = [(each.job, each.streams, each.objects, each.error) for each in (first, second)]
        assert done == [("index", 1, 1, None)] * 2
        assert behind == (30, 10)
        assert await found(world) == (30, 0)

    async def found(world: World) -> tuple[int, int]:
        """Return how many records a find returns, and how many it scans."""
        report, by, term = FindReport(), Spec.parse(BY), b"\1" * BODY_SIZE_BYTES
        async with aclosing(
            find(world.tier(), "orders", [term], by=by, decoder=BodyIsKey(), report=report)
        ) as runs:
            return sum([len(each.run) async for each in runs]), report.scanned

    asyncio.run(scenario())


def test_the_index_of_a_stream_without_new_data_costs_no_request_for_a_day() -> None:
    """Then it is looked at, because index objects may be lost."""

    async def scenario() -> None:
        world, requests = World(index="10m"), list[int]()
        await world.grow(1)
        for seconds in (0, 600, INDEX_CHECK_SECONDS):
            world.clock.now += seconds
            before = world.kept.metrics.requests.total()
            done = await world.run_once()
            requests.append(world.kept.metrics.requests.total() - before)
            assert (done.job, done.error) == ("index", None)
        await world.grow(1)
        world.clock.now += 600

        assert [count > 0 for count in requests] == [True, False, True]
        assert (await world.run_once()).objects == 1

    asyncio.run(scenario())


def test_the_index_is_no_job_unless_some_streams_have_it() -> None:
    config = RunConfig(source="memory:", tier="memory:")
    world = World()
    world.config = config

    assert [each["job"] for each in world.with_led([]).as_json()] == [
        "verify",
        "retention",
        "compact",
        "sweep",
    ]


def test_few_fragments_are_not_worth_a_merge() -> None:
    async def scenario() -> None:
        world = World(compact="1h")
        await world.grow(FRAGMENTS_MIN - 1)

        done = await world.run_once()

        assert (done.error, done.objects) == (None, 0)
        assert (await world.kept.load_manifest("orders")).fragments == FRAGMENTS_MIN - 1

    asyncio.run(scenario())


def test_jobs_run_one_after_another_and_say_when_they_are_due() -> None:
    """Each comes again after its interval, less a tenth, by the random number of this world."""

    async def scenario() -> None:
        world = World(retention="1h", sweep="1d")
        at_once: list[int] = []
        stopping = asyncio.Event()

        def job(name: str) -> Callable[[object], Any]:
            async def run(tally: object) -> None:
                at_once.append(sum(row["running"] for row in world.upkeep.as_json()))
                await asyncio.sleep(0)
                if name == "sweep":
                    stopping.set()

            return run

        for each in world.upkeep._jobs:
            each.run = job(each.name)
        await asyncio.wait_for(world.upkeep.run(stopping), 60)

        rows = {row["job"]: row for row in world.upkeep.as_json()}
        assert at_once == [1, 1]
        assert set(rows) == {"retention", "sweep"}
        assert rows["retention"]["due_in_seconds"] == 3240
        assert rows["retention"]["last"]["error"] is None

    asyncio.run(scenario())


def test_a_job_that_runs_is_cancelled_when_the_process_stops() -> None:
    async def scenario() -> None:
        world, stopping, began = World(sweep="1h"), asyncio.Event(), asyncio.Event()

        async def endless(tally: object) -> None:
            began.set()
            await asyncio.Event().wait()

        world.upkeep._jobs[0].run = endless
        running = asyncio.create_task(world.upkeep.run(stopping))
        await asyncio.wait_for(began.wait(), 60)
        stopping.set()

        await asyncio.wait_for(running, 60)

        assert world.upkeep.as_json()[0]["running"] is False

    asyncio.run(scenario())
