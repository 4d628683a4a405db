"""Tests of streams that share a log: one pass of the log feeds all of them.

The log is a real file of 2 MiB, which is read in blocks of 16 KiB. The source keeps 1.25 MiB of them. A read
that does not follow the one before is a jump.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from kit.world import Clock, TierWorld
from shared_log import BLOCK_SIZE_BYTES, LogFile, LogSource, QueueStream

from offload import sync
from offload.contracts.events import CopyBegun, Event
from offload.copy import sync as sync_module
from offload.copy.log_order import LogPlace, LogTurns
from offload.entries.ledger import EntryLedgerStream
from offload.follow.dispatcher import Dispatcher
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules
from offload.ground.env import Env
from offload.ground.errors import Denied, Diverged, OffloadError, TryAgain

STREAMS: Final = 64
LOG_SIZE_BYTES: Final = 2 * 2**20
RECORD_SIZE_BYTES: Final = 256
WINDOW_SIZE_BYTES: Final = 2**19
KEPT_SIZE_BYTES: Final = 5 * 2**18
SPEED: Final = 100.0
RULES: Final = FollowRules(max_lag_seconds=5.0, hold_back_seconds=0.0)


@dataclass
class World(TierWorld):
    """A log of 64 streams beside the tier."""

    source: LogSource = field(kw_only=True)

    @classmethod
    def of(cls, folder: Path, *, streams: int = STREAMS, is_ordered: bool = True) -> World:
        """Write the log: records of 256 bytes, each of a stream that is drawn."""
        path = folder / "log"
        path.unlink(missing_ok=True)
        log = LogFile(path, kept_blocks=KEPT_SIZE_BYTES // BLOCK_SIZE_BYTES)
        source = LogSource(log, is_ordered=is_ordered, window_size_bytes=WINDOW_SIZE_BYTES)
        source.held = [QueueStream(f"queue-{number:02}", source) for number in range(streams)]
        draw = random.Random(7)
        count = LOG_SIZE_BYTES // RECORD_SIZE_BYTES
        numbers = [draw.randrange(streams) for _ in range(count)]
        records = [
            (number, rank.to_bytes(8, "big") * (RECORD_SIZE_BYTES // 8))
            for rank, number in enumerate(numbers)
        ]
        source.write(records, timestamps_ms=range(count))
        return cls(source=source)

    async def sync(self) -> dict[str, OffloadError | None]:
        """Sync once. Return the error of each stream, in the order of the reports."""
        return {each.stream: each.error async for each in sync(self.source, self.tier())}

    async def follow(self, wanted: int, *, turns_max: int = 4) -> None:
        """Follow until so many streams are copied whole."""
        env = Env(
            monotonic=lambda: asyncio.get_running_loop().time() * SPEED,
            sleep=lambda seconds: asyncio.sleep(seconds / SPEED),
        )
        plan, stopping = (self.tier(), RULES), asyncio.Event()
        following = Dispatcher(source=self.source, plan_of=lambda stream: plan, env=env, turns_max=turns_max)
        running = asyncio.create_task(following.run(stopping))
        async with asyncio.timeout(120):
            while sum(each.lag_records == 0 for each in following.statuses) < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        stopping.set()
        await running

    async def differing(self) -> list[str]:
        """Return the streams whose records on the tier are not those of the log."""
        raw, found = self.source.log.path.read_bytes(), list[str]()
        for each in self.source.held:
            written = [
                raw[position : position + size]
                for position, size in zip(each.queue.positions, each.queue.sizes, strict=True)
            ]
            copied = list[bytes]()
            with suppress(LookupError):
                copied = [body for _, body in await self.records(each.name)]
            if copied != written:
                found.append(each.name)
        return found


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a chunk of one stream span some 256 KiB of the log."""
    monkeypatch.setitem(EntryLedgerStream.__init__.__kwdefaults__, "chunk_size_bytes", 2**12)


def test_a_sync_reads_a_log_of_64_streams_in_one_pass(tmp_path: Path) -> None:
    async def jumps(*, is_ordered: bool) -> tuple[int, int]:
        world = World.of(tmp_path, is_ordered=is_ordered)
        assert set((await world.sync()).values()) == {None}
        assert await world.differing() == []
        return len(world.source.log.reads), world.source.log.jumps

    before = asyncio.run(jumps(is_ordered=False))
    after = asyncio.run(jumps(is_ordered=True))
    assert before[0] > 8 * after[0]
    assert before[1] > 8 * after[1]


def test_followers_read_a_log_of_64_streams_in_one_pass(tmp_path: Path) -> None:
    async def jumps(*, is_ordered: bool) -> tuple[int, int]:
        world = World.of(tmp_path, is_ordered=is_ordered)
        await world.follow(STREAMS)
        assert await world.differing() == []
        return len(world.source.log.reads), world.source.log.jumps

    before = asyncio.run(jumps(is_ordered=False))
    after = asyncio.run(jumps(is_ordered=True))
    assert before[0] > 8 * after[0]
    assert before[1] > 8 * after[1]


@pytest.mark.parametrize("error", [TryAgain("the log was cut"), Denied("no rights")])
def test_a_stream_that_fails_stops_no_other_stream_of_its_log(tmp_path: Path, error: OffloadError) -> None:
    async def scenario() -> None:
        world = World.of(tmp_path, streams=8)
        first, middle = world.source.held[0], world.source.held[5]
        first.error = error
        middle.position_error = error

        errors = await world.sync()
        assert [name for name, each in errors.items() if each is not None] == [first.name, middle.name]
        assert [*errors] == [each.name for each in world.source.held]
        assert await world.differing() == [first.name, middle.name]

        middle.position_error = None
        await world.follow(7)
        assert await world.differing() == [first.name]

    asyncio.run(scenario())


def test_a_stream_without_a_position_stops_no_other_follower_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of a source. The turns of all streams compare the positions."""

    async def nowhere(offset: int) -> int:
        return None  # type: ignore[return-value]

    async def scenario() -> None:
        world = World.of(tmp_path, streams=4)
        monkeypatch.setattr(world.source.held[1], "log_position", nowhere)

        async with asyncio.timeout(60):
            await world.follow(3, turns_max=1)

        assert await world.differing() == [world.source.held[1].name]

    asyncio.run(scenario())


def test_a_damaged_record_costs_the_rest_of_its_stream_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.of(tmp_path, streams=8)
        damaged = world.source.held[5]
        damaged.queue.damaged = len(damaged.queue.positions) // 2

        errors = await world.sync()

        assert [name for name, each in errors.items() if each is not None] == [damaged.name]
        assert await world.differing() == [damaged.name]
        committed = (await world.tier().load_manifest(damaged.name)).next_offset
        assert len(damaged.queue.positions) // 4 < committed <= damaged.queue.damaged
        damaged.queue.damaged = None
        assert set((await world.sync()).values()) == {None}
        assert await world.differing() == []

    asyncio.run(scenario())


def test_records_that_change_between_two_windows_are_a_fork(tmp_path: Path) -> None:
    """The broker lost the records that the first turn copied, and gave their offsets to others."""

    async def scenario() -> None:
        world = World.of(tmp_path, streams=8)
        forked = world.source.held[5]

        def fork(listing: int) -> None:
            # The first listing is for the place in the log, and the second for the window.
            if listing == 3:
                forked.queue.positions[:] = [forked.queue.positions[0]] * len(forked.queue.positions)

        forked.on_listing = fork

        errors = await world.sync()

        assert [name for name, each in errors.items() if each is not None] == [forked.name]
        assert isinstance(errors[forked.name], Diverged)

    asyncio.run(scenario())


def test_a_sync_ends_beside_a_broker_that_writes_as_fast(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.of(tmp_path, streams=2)
        ends = {each.name: len(each.queue.positions) for each in world.source.held}
        count = 2 * WINDOW_SIZE_BYTES // RECORD_SIZE_BYTES

        def write(listing: int) -> None:
            records = [(number % 2, b"x" * RECORD_SIZE_BYTES) for number in range(count)]
            world.source.write(records, timestamps_ms=range(count))

        world.source.held[0].on_listing = write

        async with asyncio.timeout(30):
            assert set((await world.sync()).values()) == {None}

        for name, end in ends.items():
            assert (await world.tier().load_manifest(name)).next_offset >= end

    asyncio.run(scenario())


def test_a_sync_that_has_nothing_new_reads_nothing_but_last_chunks(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.of(tmp_path, streams=8)
        await world.sync()
        roots = {
            name: (await world.tier().load_manifest(name)).version for name in await world.tier().streams()
        }

        assert set((await world.sync()).values()) == {None}

        assert roots == {
            name: (await world.tier().load_manifest(name)).version for name in await world.tier().streams()
        }

    asyncio.run(scenario())


def test_first_turns_are_taken_in_the_order_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the streams have another order than their records."""
    monkeypatch.setattr(sync_module, "STREAMS_AT_ONCE", 1)

    async def scenario() -> None:
        world = World.of(tmp_path, streams=8)
        by_log = sorted(world.source.held, key=lambda each: each.queue.positions[0])
        assert by_log != world.source.held
        begun = list[str]()

        def listen(event: Event) -> None:
            if isinstance(event, CopyBegun):
                begun.append(event.stream)

        assert [each.error async for each in sync(world.source, world.tier(), emit=listen)] == [None] * 8

        # A turn is free when the first one asks. The last one asks when the round has begun.
        inner = [each.name for each in world.source.held[1:-1]]
        assert begun[1:7] == [each.name for each in by_log if each.name in inner]

    asyncio.run(scenario())


def test_a_follower_asks_for_its_turn_at_the_place_of_its_first_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World.of(tmp_path, streams=8)
        places = list[LogPlace | None]()

        class Asked(LogTurns):
            def turn(self, place: LogPlace | None) -> AbstractAsyncContextManager[None]:
                places.append(place)
                return super().turn(place)

        stream, turns, clock = world.source.held[3], Asked(1), Clock()
        follower = Follower(source=stream, offloader=world.tier(), rules=RULES, env=clock.env())
        for _ in range(10):
            clock.now += await follower.step(turns)

        asked = [position for _, position in filter(None, places)]
        assert asked[0] == stream.queue.positions[0]
        assert [position // WINDOW_SIZE_BYTES for position in asked] == [0, 1, 2, 3]
        assert set(asked) < set(stream.queue.positions)

    asyncio.run(scenario())


class TestTurns:
    """Turns: order, bound, and what becomes of one whose holder fails or gives up."""

    @staticmethod
    async def taken(turns: LogTurns, places: list[tuple[str, int] | None]) -> list[int]:
        """Ask for a turn at each place while one turn is taken. Return the numbers in the order of turns."""
        order = list[int]()

        async def take(number: int, place: tuple[str, int] | None) -> None:
            async with turns.turn(place):
                order.append(number)
                await asyncio.sleep(0)

        async with turns.turn(None):
            tasks = [asyncio.create_task(take(number, place)) for number, place in enumerate(places)]
            await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
        return order

    def test_turns_without_a_log_are_given_in_the_order_in_which_they_were_asked_for(self) -> None:
        assert asyncio.run(self.taken(LogTurns(1), [None] * 9)) == [*range(9)]

    def test_the_streams_of_a_log_take_their_turns_in_its_order(self) -> None:
        places: list[tuple[str, int] | None] = [("a", 9), ("b", 2), None, ("a", 3), ("b", 1), ("a", 5)]
        assert asyncio.run(self.taken(LogTurns(1), places)) == [2, 3, 5, 0, 4, 1]

    def test_who_comes_later_waits_for_the_next_round_however_far_behind_it_is(self) -> None:
        async def scenario() -> list[str]:
            turns, order = LogTurns(1), list[str]()

            async def copy(name: str, position: int, rounds: int) -> None:
                for number in range(rounds):
                    async with turns.turn(("log", position + number)):
                        order.append(name)
                        await asyncio.sleep(0)

            async with turns.turn(None):
                tasks = [
                    asyncio.create_task(copy("behind", 0, 4)),
                    asyncio.create_task(copy("new", 10**9, 2)),
                ]
                await asyncio.sleep(0.01)
            await asyncio.gather(*tasks)
            return order

        assert asyncio.run(scenario()) == ["behind", "new", "behind", "new", "behind", "behind"]

    def test_no_more_turns_are_taken_at_once_than_there_are(self) -> None:
        async def scenario() -> int:
            turns, running, most = LogTurns(3), 0, 0

            async def copy(number: int) -> None:
                nonlocal running, most
                async with turns.turn(("log", number) if number % 2 else None):
                    running += 1
                    most = max(most, running)
                    await asyncio.sleep(0.001)
                    running -= 1

            await asyncio.gather(*(copy(number) for number in range(40)))
            return most

        assert asyncio.run(scenario()) == 3

    @pytest.mark.parametrize("moment", ["waiting", "given", "taken"])
    def test_a_turn_that_is_cancelled_is_given_on(self, moment: str) -> None:
        async def scenario() -> None:
            turns, entered = LogTurns(1), asyncio.Event()

            async def take() -> None:
                async with turns.turn(("log", 1)):
                    entered.set()
                    await asyncio.sleep(3600)

            async with turns.turn(None):
                task = asyncio.create_task(take())
                await asyncio.sleep(0.01)
                if moment == "waiting":
                    task.cancel()
                    await asyncio.sleep(0.01)
            if moment == "taken":
                await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(5), turns.turn(None):
                pass

        asyncio.run(scenario())

    def test_a_turn_whose_copy_fails_is_given_on(self) -> None:
        async def scenario() -> None:
            turns = LogTurns(1)
            for _ in range(3):
                with pytest.raises(Denied):
                    async with asyncio.timeout(5), turns.turn(("log", 0)):
                        raise Denied("no rights")

        asyncio.run(scenario())
