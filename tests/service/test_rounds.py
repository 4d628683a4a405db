"""Tests of the verify of `offload run`: it reads every byte in each interval, across lives of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
from growing_source import GrowingSource, GrowingStream
from kit.world import Clock, TierWorld

from offload import TierOptions
from offload.contracts.events import DamageFound, UpkeepFinished
from offload.copy.sync import sync
from offload.formats.keys import VERIFY_NOTES
from offload.formats.verify_notes import MARK_MS, MARKS_MAX, VerifyNotes
from offload.ground.env import Env
from offload.ground.errors import Denied, OffloadError, TryAgain
from offload.service.config import RunConfig
from offload.service.rounds import FOREIGN_SECONDS, VerifyRounds
from offload.upkeep.sweep.tier import sweep
from offload.upkeep.verify.tier import verify

DAY = 86_400.0


@dataclass
class World(TierWorld):
    """A tier of 12 fragments."""

    clock: Clock = field(default_factory=lambda: Clock(10.0**9))

    def env(self) -> Env:
        return replace(self.clock.env(random=0.0), sleep=asyncio.sleep)

    def options(self) -> TierOptions:
        return TierOptions(fragment_size_bytes=1)

    def process(self, identity: str | None = None) -> VerifyRounds:
        """Return the verify of a process that is started now."""
        return VerifyRounds(
            config=RunConfig.model_validate({"source": "memory:", "tier": "memory:"}),
            interval_seconds=7 * DAY,
            tier=self.tier(),
            env=self.env(),
            emit=self.events.append,
            identity=identity,
        )

    async def filled(self) -> World:
        """Copy a stream to the tier."""
        stream = GrowingStream()
        stream.append(12)
        [report] = [each async for each in sync(GrowingSource([stream]), self.tier())]
        assert report.error is None
        return self

    def read(self) -> set[str]:
        """Return the fragments that were read since the last call."""
        return {*self.fragments_read()}

    def finished(self) -> list[UpkeepFinished]:
        """Return the runs that have ended."""
        return self.of(UpkeepFinished)

    def notes(self) -> VerifyNotes:
        """Return the notes on the tier."""
        notes = VerifyNotes.decode(self.objects[VERIFY_NOTES])
        assert notes is not None
        return notes


def run(scenario: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(await World().filled())

    asyncio.run(main())


async def killed_at(world: World, process: VerifyRounds, key: str) -> None:
    """Run a process until it reads this object, and then stop it."""
    reached = asyncio.Event()

    async def before(operation: str, found: str) -> None:
        if (operation, found) == ("get", key):
            reached.set()
            await asyncio.Event().wait()

    world.store.before = before
    working = asyncio.create_task(process.run())
    await asyncio.wait_for(reached.wait(), 60)
    world.store.before = nothing
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def nothing(operation: str, key: str) -> None:
    """Let a request pass."""


def test_a_flipped_byte_is_found_in_the_next_round_and_reported_at_once() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        await process._turn()
        assert [done.error for done in world.finished()] == [None]
        world.flip(world.data[3])
        before: list[int] = []
        world.clock.now += 6 * DAY
        assert await process._turn() == 600.0, "it looks again, and sees what other processes have read"
        assert len(world.finished()) == 1, "the round before is not a period old"

        world.clock.now += 1 * DAY
        world.store.before = lambda operation, key: _note(before, world, key)
        await process._turn()

        assert world.finished()[-1].error is not None
        [damage] = [event.damage for event in world.of(DamageFound)]
        assert damage.where == world.data[3]
        assert before == [1], "it was reported before the last fragment was read"

    run(scenario)


async def _note(before: list[int], world: World, key: str) -> None:
    """Note how many damages were reported when the first request for the last fragment is sent."""
    if key == world.data[-1] and not before:
        for _ in range(1000):
            await asyncio.sleep(0)
        before.append(world.told(DamageFound))


def test_a_process_that_is_started_again_reads_only_the_rest_of_the_round() -> None:
    async def scenario(world: World) -> None:
        world.read()
        await killed_at(world, world.process(), world.data[6])
        first = world.read()
        reached = world.notes().reached

        await world.process()._turn()

        assert reached in world.data
        assert world.read() == {key for key in world.data if key > reached}
        assert first < {*world.data}
        assert [done.error for done in world.finished()] == [None]
        assert world.notes().ended_ms is not None

    run(scenario)


def test_another_process_leaves_a_round_alone_until_its_notes_are_old() -> None:
    async def scenario(world: World) -> None:
        await killed_at(world, world.process(), world.data[6])
        world.objects[VERIFY_NOTES] = replace(world.notes(), by="a process that was killed").encode()
        world.read()

        other = world.process()
        await other._turn()
        assert (world.read(), world.finished()) == (set(), [])

        world.clock.now += FOREIGN_SECONDS
        await other._turn()
        assert len(world.finished()) == 1

    run(scenario)


def test_the_next_life_of_a_killed_process_goes_on_at_once() -> None:
    async def scenario(world: World) -> None:
        await killed_at(world, world.process("an instance"), world.data[6])
        world.objects[VERIFY_NOTES] = replace(world.notes(), by="an instance").encode()

        await world.process("an instance")._turn()

        assert len(world.finished()) == 1

    run(scenario)


def test_of_two_processes_that_begin_at_once_the_one_that_notes_it_last_reads() -> None:
    async def scenario(world: World) -> None:
        process, other = world.process("one"), world.process("other")
        await process._load(0)
        is_first = True

        async def after(operation: str, key: str) -> None:
            nonlocal is_first
            if (operation, key) == ("put", VERIFY_NOTES) and is_first:
                is_first = False
                world.objects[VERIFY_NOTES] = replace(world.notes(), by="other").encode()

        world.store.after = after
        await process._turn()
        assert world.finished() == []
        await other._turn()
        assert len(world.finished()) == 1

    run(scenario)


def test_an_outage_ends_a_run_and_the_next_one_goes_on_with_the_round() -> None:
    async def scenario(world: World) -> None:
        async def before(operation: str, key: str) -> None:
            if key == world.data[6]:
                raise TryAgain("the store is down")

        process, world.store.before = world.process(), before
        await process._turn()
        world.store.before = nothing
        reached = world.notes().reached
        world.read()
        await process._turn()

        assert [type(done.error) for done in world.finished()] == [TryAgain, type(None)]
        assert world.read() == {key for key in world.data if key > reached}

    run(scenario)


def test_a_place_without_a_tier_is_no_error() -> None:
    """A process is started before its first copy. It looks again in ten minutes, or in one interval."""

    async def scenario() -> None:
        world = World()
        process = world.process()
        slept = list[float]()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            raise asyncio.CancelledError

        process.env = replace(world.env(), sleep=sleep)
        process.interval_seconds = 60.0
        with pytest.raises(asyncio.CancelledError):
            await process.run()

        assert (slept, world.events) == ([60.0], [])

    asyncio.run(scenario())


def test_notes_that_cannot_be_written_or_read_only_cost_another_read() -> None:
    async def scenario(world: World) -> None:
        async def before(operation: str, key: str) -> None:
            if (operation, key) == ("put", VERIFY_NOTES):
                raise TryAgain("the store is down")

        process, world.store.before = world.process(), before
        await process._turn()
        assert [done.error for done in world.finished()] == [None]
        assert VERIFY_NOTES not in world.objects

        world.store.before = nothing
        world.objects[VERIFY_NOTES] = b"not our notes"
        await world.process()._turn()
        assert [done.error for done in world.finished()] == [None, None]

    run(scenario)


def test_the_age_is_that_of_the_fragment_that_waits_the_longest() -> None:
    async def scenario(world: World) -> None:
        process = world.process()
        await process._turn()
        world.clock.now += 100
        assert process.oldest_seconds == 100
        assert world.process().oldest_seconds is None, "a process that has not looked does not know"
        world.clock.now += 7 * DAY
        await killed_at(world, process, world.data[6])
        again = world.process()
        assert (await again._load(0)).oldest_ms == 1000 * 10**9, "the rest was read a week ago"

    run(scenario)


def test_the_notes_are_explained_by_a_verify_and_left_by_a_sweep() -> None:
    async def scenario(world: World) -> None:
        await world.process()._turn()

        report = await verify(world.tier())
        [row] = [row for row in report.unreferenced if row.key == VERIFY_NOTES]
        assert row.reason == "how far the verify of offload run has read the tier"
        swept = await sweep(world.tier(), env=world.env(), grace_seconds=0)
        assert swept.strangers == {}
        assert VERIFY_NOTES in world.objects

    run(scenario)


class TestNotes:
    def test_they_come_back_from_their_bytes(self) -> None:
        notes = VerifyNotes(since_ms=5, by="a").begun(10).reaching("k", 10 + MARK_MS)

        assert VerifyNotes.decode(notes.encode()) == notes
        assert VerifyNotes.decode(replace(notes, ended_ms=9, before=notes.marks).encode()) is not None

    @pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"{", b'{"format_version": 2}', b"\xff"])
    def test_anything_else_is_no_note(self, raw: bytes) -> None:
        assert VerifyNotes.decode(raw) is None

    def test_the_age_of_the_rest_is_that_of_the_round_before(self) -> None:
        first = VerifyNotes(since_ms=0).begun(1000)
        assert first.oldest_ms == 0, "nothing was ever read behind here"
        for number in range(10):
            first = first.reaching(f"k{number}", 1000 + MARK_MS * (number + 1))
        ended = replace(first, ended_ms=10**7)
        assert ended.oldest_ms == 1000

        second = ended.begun(2 * 10**7)
        assert second.oldest_ms == 1000
        assert second.reaching("k4", 2 * 10**7).oldest_ms == 1000 + MARK_MS * 5

    def test_their_size_is_bounded_and_the_age_never_too_low(self) -> None:
        notes, at_ms = VerifyNotes(since_ms=0).begun(0), dict[str, int]()
        for number in range(1, 10_000):
            key = f"{number:06}"
            at_ms[key] = MARK_MS * number
            notes = notes.reaching(key, at_ms[key])
        assert len(notes.marks) <= MARKS_MAX

        second = replace(notes, ended_ms=10**10).begun(10**10)
        for key in ("000001", "000500", "009999"):
            assert second.reaching(key, 10**10).oldest_ms <= at_ms[key]


def test_notes_that_cannot_be_read_are_told_once_for_each_class_of_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: World) -> None:
        errors: list[OffloadError | None] = [
            TryAgain("down"),
            TryAgain("still down"),
            Denied("no right"),
            None,
        ]
        errors.append(Denied("no right again"))
        over = asyncio.Event()

        async def fail(operation: str, key: str) -> None:
            if (operation, key) == ("get", VERIFY_NOTES) and (error := errors.pop(0)) is not None:
                raise error

        async def sleep(seconds: float) -> None:
            if not errors:
                over.set()
                await asyncio.Event().wait()

        world.store.before = fail
        # No round is due yet: only notes are read.
        process = replace(world.process(), env=replace(world.env(), sleep=sleep, random=lambda: 0.5))
        running = asyncio.ensure_future(process.run())
        await asyncio.wait_for(over.wait(), 60)
        running.cancel()

        assert caplog.text.count("cannot be read") == 3

    run(scenario)
