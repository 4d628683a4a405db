"""Tests of readers that wait for what comes later: one look finds whatever happened, and wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

import pytest
from campaign import CAMPAIGN
from kit.world import Clock, TierWorld
from offload_conformance import ledger_of
from row_choices import Offsets

from offload import (
    AtOffset,
    AtTime,
    MemoryHandle,
    Misuse,
    ObjectStoreOffloader,
    Retention,
    StreamDeleted,
    StreamReader,
    StreamWriter,
    TryAgain,
    build_chunk,
    delete_stream,
    trim,
)
from offload.contracts.catalogue import StreamView
from offload.contracts.events import Event, Skipped
from offload.ground.env import Env
from offload.model.part import StreamPart
from offload.model.position import PartOffset
from offload.read import watch as watch_module
from offload.read.reader import Messages
from offload.read.watch import StreamWatch
from offload.store.faults import Fault, Rule

STREAM = "orders"
LATER_MS = 2_000_000_000_000
READERS = 1_000 if CAMPAIGN else 60


class World(TierWorld):
    """A tier with a stream of ten records, a process that writes and one whose readers wait."""

    def __init__(self) -> None:
        super().__init__(clock=Clock(0.0))
        self.ours = ObjectStoreOffloader(self.store, emit=self.tell)
        self.followed: list[AsyncGenerator[Messages, None]] = []
        self.slept: list[float] = []
        self.looks = asyncio.Semaphore(0)
        """One for each look that may follow another: time passes only in tests that release it."""
        self.watch = StreamWatch(self.ours, env=Env(sleep=self.sleep, monotonic=lambda: self.clock.now))

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self.watch.committed(event)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.looks.acquire()

    async def append(self, records: int = 5) -> None:
        writer = await StreamWriter.claim(self.others(), STREAM)
        await writer.offload([ledger_of(records, first_offset=writer.manifest.next_offset)])

    async def append_at(self, timestamp_ms: int, records: int) -> None:
        writer = await StreamWriter.claim(self.others(), STREAM)
        begin = writer.manifest.next_offset
        chunks = [
            build_chunk([b"late"], offset=offset, timestamp_ms=timestamp_ms, epoch=1)
            for offset in range(begin, begin + records)
        ]
        await writer.offload([MemoryHandle(chunks)])

    async def reader(self) -> StreamReader:
        return await StreamReader.open(self.ours, STREAM, emit=self.events.append)

    def at_the_end(self, reader: StreamReader) -> AsyncGenerator[Messages, None]:
        """Return what a reader gets from the end on."""
        self.followed.append(reader.follow(PartOffset(1, reader.manifest.next_offset), watch=self.watch))
        return self.followed[-1]

    def listings(self) -> int:
        """Return how many listings there were since the last call."""
        return self.requests()["list"]

    def skips(self) -> list[tuple[int, int]]:
        return [(event.from_offset, event.to_offset) for event in self.of(Skipped)]


def run(act: Callable[[World], Awaitable[None]]) -> None:
    async def scenario() -> None:
        world = World()
        await world.append(10)
        async with asyncio.timeout(30):
            await act(world)
            for each in world.followed:
                await each.aclose()
            await asyncio.sleep(0)  # the look that was cancelled ends
        assert asyncio.all_tasks() == {asyncio.current_task()}, "something looks although nobody waits"

    asyncio.run(scenario())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition is about what the code did, which sets no event
        await asyncio.sleep(0)


def test_a_reader_goes_on_with_what_another_process_commits() -> None:
    async def act(world: World) -> None:
        reader = await world.reader()
        async with aclosing(reader.follow(9, watch=world.watch)) as batches:
            assert (await anext(batches)).offset == 9
            waiting = asyncio.ensure_future(anext(batches))
            await until(lambda: bool(world.slept))
            await world.append()
            world.looks.release()
            assert (await waiting).offset == 10

    run(act)


def test_many_readers_wait_for_the_price_of_one() -> None:
    async def act(world: World) -> None:
        readers = [await world.reader() for _ in range(READERS)]
        followed = [world.at_the_end(reader) for reader in readers]
        world.listings()
        waiting = [asyncio.ensure_future(anext(batches)) for batches in followed]
        await until(lambda: bool(world.slept))
        assert world.listings() == 2  # of the next part, and of roots
        await world.append()
        world.looks.release()
        assert {batch.offset for batch in await asyncio.gather(*waiting)} == {10}
        assert world.listings() <= 4  # another look, and the root that it found

    run(act)


def test_a_commit_of_this_process_wakes_at_once_and_costs_nothing() -> None:
    async def act(world: World) -> None:
        writer = await StreamWriter.claim(world.ours, STREAM)
        waiting = asyncio.ensure_future(anext(world.at_the_end(await world.reader())))
        await until(lambda: bool(world.slept))
        await writer.offload([ledger_of(5, first_offset=10)])
        assert (await waiting).offset == 10
        assert len(world.slept) == 1  # no second look

    run(act)


def test_the_interval_between_looks_grows_while_nothing_is_found() -> None:
    async def act(world: World) -> None:
        waiting = asyncio.ensure_future(anext(world.at_the_end(await world.reader())))
        for looks in range(1, 12):
            await until(lambda looks=looks: len(world.slept) == looks)  # type: ignore[misc]
            world.looks.release()
        await until(lambda: len(world.slept) == 12)
        waiting.cancel()
        await asyncio.wait([waiting])

        assert world.slept[0] <= 0.5
        assert all(5 <= seconds <= 10 for seconds in world.slept[8:])

    run(act)


def test_offsets_that_are_trimmed_while_a_reader_waits_are_reported() -> None:
    async def act(world: World) -> None:
        async with aclosing(world.at_the_end(await world.reader())) as batches:
            waiting = asyncio.ensure_future(anext(batches))
            await until(lambda: bool(world.slept))
            for _ in range(2):
                await world.append()
            await trim(world.others(), STREAM, Retention(before_offset=15))
            world.looks.release()
            assert (await waiting).offset == 15
        assert world.skips() == [(10, 15)]

    run(act)


def test_a_part_that_begins_is_read_behind_the_one_before() -> None:
    async def act(world: World) -> None:
        reader = await world.reader()
        async with aclosing(world.at_the_end(reader)) as batches:
            waiting = asyncio.ensure_future(anext(batches))
            await until(lambda: bool(world.slept))
            await world.append(1)
            part = StreamPart(STREAM, 2)
            await world.others().begin_part(part, before=await world.others().load_manifest(STREAM))
            writer = await StreamWriter.claim(world.others(), part.name, first_offset=20)
            await writer.offload([ledger_of(5, first_offset=20)])
            world.looks.release()
            first, second = await waiting, await anext(batches)
        assert [(each.part, each.offset) for each in (first, second)] == [(1, 10), (2, 20)]
        assert world.skips() == [(11, 20)]
        assert [each.part for each in reader.parts] == [1, 2]

    run(act)


@pytest.mark.parametrize("end", [AtOffset(17), AtTime(LATER_MS), PartOffset(1, 17)])
@pytest.mark.parametrize("wanted", [(), range(20)])
def test_a_reader_ends_when_the_stream_reaches_its_end_even_if_nothing_there_is_wanted(
    wanted: Sequence[int], end: AtOffset | AtTime | PartOffset
) -> None:
    """The end is ahead of the stream when the reader begins to wait."""

    async def act(world: World) -> None:
        reader, got = await world.reader(), list[int]()

        async def read() -> None:
            found = reader.follow(8, until=end, watch=world.watch, rows_of=Offsets(wanted, hasty=False))
            async with aclosing(found) as batches:
                async for batch in batches:
                    got.extend(range(batch.offset, batch.offset + len(batch.bodies)))

        reading = asyncio.ensure_future(read())
        await until(lambda: bool(world.slept))
        assert not reading.done()
        await world.append_at(LATER_MS - 1, 7)
        await world.append_at(LATER_MS, 1)
        world.looks.release()
        await reading
        assert got == [each for each in wanted if 8 <= each < 17]

    run(act)


def test_a_deletion_ends_every_reader_that_waits() -> None:
    async def act(world: World) -> None:
        waiting = [asyncio.ensure_future(anext(world.at_the_end(await world.reader()))) for _ in "abc"]
        await until(lambda: bool(world.slept))
        await delete_stream(world.others(), STREAM)
        world.looks.release()
        for each in waiting:
            with pytest.raises(StreamDeleted):
                await each

    run(act)


def test_a_store_that_fails_ends_the_wait_and_the_next_wait_looks_again() -> None:
    async def act(world: World) -> None:
        reader = await world.reader()
        waiting = asyncio.ensure_future(anext(world.at_the_end(reader)))
        await until(lambda: bool(world.slept))
        world.store.rules.append(Rule(Fault.FAIL_BEFORE, "list"))
        world.looks.release()
        with pytest.raises(TryAgain):
            await waiting
        world.store.rules.clear()
        await world.append()
        assert (await anext(world.at_the_end(reader))).offset == 10

    run(act)


def test_a_reader_that_gives_up_disturbs_no_other() -> None:
    async def act(world: World) -> None:
        first, second = [asyncio.ensure_future(anext(world.at_the_end(await world.reader()))) for _ in "ab"]
        await until(lambda: bool(world.slept))
        first.cancel()
        await asyncio.wait([first])
        await world.append()
        world.looks.release()
        assert (await second).offset == 10

    run(act)


def test_a_refreshed_reader_knows_the_newest_state() -> None:
    async def act(world: World) -> None:
        reader = await world.reader()
        assert not await reader.refresh()
        await world.append()
        assert await reader.refresh()
        assert reader.manifest.next_offset == 15
        await delete_stream(world.others(), STREAM)
        with pytest.raises(StreamDeleted):
            await reader.refresh()
        writer = await StreamWriter.claim(world.others(), STREAM)
        await writer.offload([ledger_of(20)])
        with pytest.raises(StreamDeleted, match="while it was read"):
            await reader.refresh()

    run(act)


def test_a_stream_that_this_process_begins_again_is_never_taken_for_its_earlier_life() -> None:
    """A reader of the earlier life gets an error, and one of the new life waits undisturbed."""

    async def act(world: World) -> None:
        old = asyncio.ensure_future(anext(world.at_the_end(await world.reader())))
        await until(lambda: bool(world.slept))
        await delete_stream(world.ours, STREAM)
        writer = await StreamWriter.claim(world.ours, STREAM)
        await writer.offload([ledger_of(20)])
        new = asyncio.ensure_future(anext(world.at_the_end(await world.reader())))
        await until(lambda: len(world.slept) == 2)
        world.looks.release()
        with pytest.raises(StreamDeleted, match="while it was read"):
            await old
        await writer.offload([ledger_of(5, first_offset=20)])
        assert (await new).offset == 20

    run(act)


class TestStaleness:
    """What a reader that allows old views costs, and what it never misses."""

    @staticmethod
    async def opened(world: World, max_staleness_seconds: float) -> tuple[int, int]:
        """Return the end of a reader's view, and the requests of its opening."""
        world.store.calls.clear()
        reader = await StreamReader.open(
            world.ours, STREAM, watch=world.watch, max_staleness_seconds=max_staleness_seconds
        )
        return reader.manifest.next_offset, len(world.store.calls)

    def test_an_opening_sends_nothing_while_the_last_one_is_recent_enough(self) -> None:
        async def act(world: World) -> None:
            await self.opened(world, 0.0)
            await world.append()
            world.clock.now = 4.9
            assert await self.opened(world, 5.0) == (10, 0)
            world.clock.now = 5.0
            end, requests = await self.opened(world, 5.0)
            assert (end, requests > 0) == (15, True)

        run(act)

    def test_an_opening_of_a_stream_that_is_as_before_lists_and_reads_no_object(self) -> None:
        async def act(world: World) -> None:
            await self.opened(world, 0.0)
            assert (await self.opened(world, 0.0))[0] == 10
            assert {operation for operation, _ in world.store.calls} == {"list"}

        run(act)

    def test_an_opening_finds_the_next_life_of_a_stream(self) -> None:
        async def act(world: World) -> None:
            await self.opened(world, 0.0)
            await delete_stream(world.others(), STREAM)
            with pytest.raises(StreamDeleted):
                await self.opened(world, 0.0)
            await world.append(3)
            assert (await self.opened(world, 0.0))[0] == 3

        run(act)

    def test_a_view_is_as_old_as_the_beginning_of_its_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def act(world: World) -> None:
            views = world.ours.view

            async def slow(stream: str) -> StreamView:
                view = await views(stream)
                world.clock.now += 3.0
                return view

            monkeypatch.setattr(world.ours, "view", slow)
            await self.opened(world, 5.0)
            assert (await self.opened(world, 3.5))[1] == 0
            assert (await self.opened(world, 3.0))[1] > 0

        run(act)

    def test_by_default_every_opening_looks(self) -> None:
        async def act(world: World) -> None:
            await self.opened(world, 5.0)
            await world.append()
            end, requests = await self.opened(world, 0.0)
            assert (end, requests > 0) == (15, True)

        run(act)

    def test_a_commit_of_this_process_is_seen_behind_an_opening_that_it_overtook(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def act(world: World) -> None:
            writer = await StreamWriter.claim(world.ours, STREAM)
            assert (await self.opened(world, 5.0))[0] == 10
            await writer.offload([ledger_of(5, first_offset=10)])
            assert (await self.opened(world, 5.0))[0] == 15
            await writer.offload([ledger_of(5, first_offset=15)])
            views = world.ours.view

            async def overtaken(stream: str) -> StreamView:
                view = await views(stream)
                await writer.offload([ledger_of(5, first_offset=20)])
                return view

            with monkeypatch.context() as patched:
                patched.setattr(world.ours, "view", overtaken)
                assert (await self.opened(world, 5.0))[0] == 20
            assert (await self.opened(world, 5.0))[0] == 25

        run(act)

    def test_a_part_that_this_process_begins_is_seen(self) -> None:
        async def act(world: World) -> None:
            await self.opened(world, 5.0)
            part = StreamPart(STREAM, 2)
            await world.ours.begin_part(part, before=await world.ours.load_manifest(STREAM))
            writer = await StreamWriter.claim(world.ours, part.name, first_offset=20)
            await writer.offload([ledger_of(5, first_offset=20)])
            reader = await StreamReader.open(world.ours, STREAM, watch=world.watch, max_staleness_seconds=5.0)
            assert [each.part for each in reader.parts] == [1, 2]

        run(act)

    def test_the_memory_of_streams_has_a_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch_module, "KNOWN_MAX", 2)

        async def act(world: World) -> None:
            for stream in ("a", "b"):
                writer = await StreamWriter.claim(world.others(), stream)
                await writer.offload([ledger_of(1)])
            for stream in (STREAM, "a", STREAM, "b"):
                await StreamReader.open(world.ours, stream, watch=world.watch)
            assert (await self.opened(world, 5.0))[1] == 0
            await StreamReader.open(world.ours, "a", watch=world.watch)
            await StreamReader.open(world.ours, "b", watch=world.watch)
            assert (await self.opened(world, 5.0))[1] > 0

        run(act)

    def test_views_are_remembered_by_a_watch_only(self) -> None:
        async def act(world: World) -> None:
            with pytest.raises(Misuse, match="needs a watch"):
                await StreamReader.open(world.ours, STREAM, max_staleness_seconds=5.0)

        run(act)
