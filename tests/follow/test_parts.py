"""Tests of streams that go on in new parts: who begins one, and that nothing of a source is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from campaign import CAMPAIGN
from growing_source import GrowingSource, GrowingStream
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.world import TierWorld

from offload import (
    MemoryHandle,
    StreamReader,
    StreamWriter,
    build_chunk,
    delete_stream,
)
from offload import sync as sync_all
from offload.contracts.events import Event, PartBegun, StreamPaused
from offload.copy.next_part import PartOnTier
from offload.copy.sync import StreamReport
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules, FollowState
from offload.formats.chunk import ChunkHeader
from offload.formats.keys import StreamKeys
from offload.formats.root import encode_root
from offload.ground.errors import BeingRebuilt, Conflict, Diverged, Divergence, Fenced, NotOffloaded
from offload.model.manifest import Manifest, StreamState
from offload.model.part import StreamPart
from offload.store.faults import Fault, Rule
from offload.upkeep.parts import delete_parts, live_manifests

LAG = 10.0
RULES = FollowRules(max_lag_seconds=LAG, hold_back_seconds=1.0, takeover_seconds=30.0, new_part=True)
RECORDS = 10

Log = dict[int, bytes]
"""The record at each offset."""


@dataclass
class Replica(GrowingStream):
    """A replica of a stream. Each chunk is a ledger, and each record has other bytes than every other."""

    numbers: Any = field(default_factory=count)

    def __post_init__(self) -> None:
        self.ledgers = []
        self.epoch = 0

    @property
    def chunks(self) -> list[bytes]:
        """All chunks."""
        return [chunk for [chunk] in self.ledgers]

    @chunks.setter
    def chunks(self, chunks: list[bytes]) -> None:
        self.ledgers = [[chunk] for chunk in chunks]
        self._handles.clear()
        if chunks:
            last = ChunkHeader.decode(chunks[-1], where="here")
            self.first_offset = ChunkHeader.decode(chunks[0], where="here").offset
            self.next_offset, self.epoch = last.offset + RECORDS, last.epoch
        else:
            self.first_offset, self.next_offset, self.epoch = 0, 0, 0

    def write(self, epoch: int, chunks: int = 1) -> None:
        """Append new records, as a leader of this epoch."""
        for _ in range(chunks):
            bodies = [b"%d" % next(self.numbers) for _ in range(RECORDS)]
            chunk = build_chunk(bodies, offset=self.next_offset, timestamp_ms=1, epoch=epoch)
            self.chunks = [*self.chunks, chunk]

    def drop(self, chunks: int = 1) -> None:
        """Delete the oldest chunks, as the broker's retention does. The newest stays."""
        self.chunks = self.chunks[min(chunks, len(self.ledgers) - 1) :]

    def fetch(self, leader: Replica, chunks: int = 1000) -> None:
        """Cut what the leader does not have, as osiris does, and fetch so many chunks of the leader."""
        theirs = leader.chunks
        shared = [row for row, chunk in enumerate(self.chunks) if chunk in theirs]
        own = self.chunks[: shared[-1] + 1] if shared else []
        begin = theirs.index(own[-1]) + 1 if own else 0
        self.chunks = [*own, *theirs[begin : begin + chunks]]

    async def mark(self) -> Hashable:
        """Return the extent and the newest chunk: a cut log may grow to the same extent again."""
        return self.first_offset, self.next_offset, *self.chunks[-1:]

    def log(self) -> Log:
        """Return all records."""
        return dict(record for chunk in self.chunks for record in records_of(chunk))


def records_of(chunk: bytes) -> list[tuple[int, bytes]]:
    """Return the offsets and bodies of a chunk of this module."""
    first = ChunkHeader.decode(chunk, where="here").offset
    found, at = list[tuple[int, bytes]](), 48 + chunk[40]
    for offset in range(first, first + RECORDS):
        size = int.from_bytes(chunk[at : at + 4], "big") & 0x7FFFFFFF
        found.append((offset, chunk[at + 4 : at + 4 + size]))
        at += 4 + size
    return found


@dataclass
class World(TierWorld):
    """Replicas of one stream, and a process beside each of them."""

    rules: FollowRules = RULES

    def __post_init__(self) -> None:
        numbers = count()
        self.replicas = [Replica(numbers=numbers) for _ in range(3)]
        self.followers = [self.process(replica) for replica in self.replicas]
        self.leader, self.epoch = self.replicas[0], 1

    def process(self, replica: Replica) -> Follower:
        """Return a follower in a process of its own."""
        return Follower(
            source=replica,
            offloader=self.tier(),
            rules=self.rules,
            env=self.clock.env(),
            emit=lambda event: self.heard(event, replica),
        )

    def heard(self, event: Event, replica: Replica) -> None:
        """Note an event of the process beside a replica."""
        self.events.append(event)
        if isinstance(event, PartBegun):
            assert event.first_offset == replica.first_offset, "the part gets all that the source still has"

    async def run(self, number: int, *, seconds: float = 3 * LAG) -> None:
        """Let the process beside a replica look again and again for so long."""
        end = self.clock.now + seconds
        while self.clock.now <= end:
            self.clock.now += max(await self.followers[number].step(), 0.5)

    def restart(self, number: int) -> None:
        """Kill the process beside a replica, and start it again."""
        self.followers[number] = self.process(self.replicas[number])

    async def parts(self) -> list[StreamPart]:
        """Return all parts, the first one included."""
        with suppress(NotOffloaded):
            return [StreamPart("orders"), *await self.tier().parts("orders")]
        return []

    async def manifest(self, part: StreamPart) -> Manifest | None:
        """Return the newest manifest of a part."""
        try:
            return await self.tier().load_manifest(part.name)
        except NotOffloaded:
            return None

    async def logs(self) -> list[Log]:
        """Return the records of each part. A part reads without a hole."""
        found = []
        for part in await self.parts():
            manifest, log = await self.manifest(part), Log()
            if manifest is not None:
                reader = StreamReader(self.tier(), manifest)  # of this part alone
                async for batch in reader.messages(manifest.first_offset):
                    log |= {batch.offset + row: bytes(body) for row, body in enumerate(batch.bodies)}
                assert list(log) == list(range(manifest.first_offset, manifest.next_offset))
            found.append(log)
        return found

    def begun(self) -> list[int]:
        """Return the numbers of the parts that were begun, in order."""
        return [event.part for event in self.of(PartBegun)]

    async def sync(self, replica: Replica, *, new_part: bool = False) -> StreamReport:
        """Sync a replica to the tier."""
        [report] = [
            report
            async for report in sync_all(
                GrowingSource([replica]),
                self.tier(),
                new_part=new_part,
                env=self.clock.env(),
                emit=lambda event: self.heard(event, replica),
            )
        ]
        return report


def run(scenario: Callable[[World], Awaitable[None]], rules: FollowRules = RULES) -> None:
    asyncio.run(scenario(World(rules=rules)))  # type: ignore[arg-type]  # a coroutine function


async def with_gap(world: World) -> Replica:
    """Copy 2 chunks, and let the broker delete the third before it is copied."""
    source = world.replicas[0]
    source.write(1, 2)
    await world.run(0)
    source.write(1, 3)
    source.drop(3)
    return source


class TestWhoBeginsAPart:
    def test_a_gap_begins_a_part_with_all_that_the_source_still_has(self) -> None:
        async def scenario(world: World) -> None:
            source = await with_gap(world)
            await world.run(0)
            source.write(1)
            await world.run(0)

            first, second = await world.logs()
            assert (list(first), second) == (list(range(20)), source.log())
            [event] = [event for event in world.events if isinstance(event, PartBegun)]
            assert event == PartBegun(stream="orders", part=2, first_offset=30, ended_offset=20)
            assert world.followers[0].status.part == 2

        run(scenario)

    def test_the_first_data_of_a_part_fences_the_writer_of_the_part_right_before_it(self) -> None:
        async def scenario(world: World) -> None:
            source = await with_gap(world)
            assert (await world.sync(source, new_part=True)).part == StreamPart("orders", 2)
            writer = await StreamWriter.claim(world.tier(), "orders-part-2")
            await world.tier().begin_part(StreamPart("orders", 3), before=None)
            source.write(1, 3)
            source.drop(4)

            assert (await world.sync(source)).part == StreamPart("orders", 3)

            with pytest.raises(Fenced):
                await writer.prepare([1])

        run(scenario)

    def test_a_gap_pauses_a_follower_by_default(self) -> None:
        async def scenario(world: World) -> None:
            await with_gap(world)
            before = dict(world.objects)
            await world.run(0)

            assert world.followers[0].state is FollowState.PAUSED
            assert world.objects == before

        run(scenario, replace(RULES, new_part=False))

    def test_a_follower_that_pauses_goes_on_in_a_part_that_a_sync_began(self) -> None:
        async def scenario(world: World) -> None:
            source = await with_gap(world)
            await world.run(0)
            assert (await world.sync(source, new_part=True)).error is None
            source.write(1)
            await world.run(0, seconds=400)

            assert (await world.logs())[1] == source.log()

        run(scenario, replace(RULES, new_part=False))

    def test_a_new_leader_that_cut_the_log_begins_a_part(self) -> None:
        async def scenario(world: World) -> None:
            old, new = world.replicas[:2]
            old.write(1)
            new.fetch(old)
            old.write(1)
            await world.run(0)
            new.write(2, 2)
            await world.run(1, seconds=120)

            assert (await world.logs())[1] == new.log()
            assert world.begun() == [2]

        run(scenario)

    def test_a_source_that_ends_before_the_tier_begins_none(self) -> None:
        async def scenario(world: World) -> None:
            source, lagging = world.replicas[:2]
            source.write(1)
            lagging.fetch(source)
            source.write(1, 2)
            await world.run(0)
            await world.followers[0].release()
            await world.run(1, seconds=200)

            report = await world.sync(lagging, new_part=True)

            assert isinstance(report.error, Diverged)
            assert report.error.kind is Divergence.BEHIND
            assert "no new part was begun, because the source may be a replica that lags" in str(report.error)
            assert world.begun() == []

        run(scenario)

    def test_a_replica_with_a_stale_tail_begins_none_although_the_root_has_an_older_epoch(self) -> None:
        """The root has the epoch of the last claim. Since then, the tier got a chunk of a later leader."""

        async def scenario(world: World) -> None:
            source, stale = world.replicas[:2]
            source.write(1)
            stale.fetch(source)
            await world.run(0)
            source.write(5)
            await world.run(0)
            stale.write(3, 2)
            await world.followers[0].release()
            before = await world.manifest(StreamPart("orders"))
            assert before is not None
            assert before.source_epoch == 1
            await world.run(1, seconds=200)

            report = await world.sync(stale, new_part=True)

            assert "the source's leader epoch 3 is behind 5, which is on the tier" in str(report.error)
            assert world.begun() == []
            after = await world.manifest(StreamPart("orders"))
            assert after is not None
            assert after.version == before.version

        run(scenario)

    def test_a_standby_with_a_gap_begins_none_while_another_process_leads(self) -> None:
        async def scenario(world: World) -> None:
            source, short = world.replicas[:2]
            source.write(1, 3)
            await world.run(0, seconds=LAG)
            for _ in range(10):
                source.write(1)
                short.fetch(source)
                short.drop(1000)
                await world.run(1, seconds=1)
                await world.run(0, seconds=LAG)

            assert world.begun() == []
            assert await world.logs() == [source.log()]

        run(scenario)

    def test_uploads_of_a_crashed_writer_that_close_the_gap_are_adopted(self) -> None:
        """Then no part is needed, and nothing is lost."""

        async def scenario(world: World) -> None:
            source = world.replicas[0]
            source.write(1, 2)
            await world.run(0)
            source.write(1, 2)
            whole = source.log()
            assert await crash_at(world, 0, "create", 2), "both chunks are uploaded"
            source.drop(3)
            source.write(1)
            await world.run(0, seconds=120)

            [log] = await world.logs()
            assert log == whole | source.log()

        run(scenario)

    def test_a_replica_behind_the_epoch_of_uploads_that_were_adopted_begins_none(self) -> None:
        """They do not close its gap, and show that a later leader wrote before it."""

        async def scenario(world: World) -> None:
            source, stale = world.replicas[:2]
            source.write(1, 2)
            stale.fetch(source)
            await world.run(0)
            source.write(5, 2)
            assert await crash_at(world, 0, "create", 2), "both chunks are uploaded"
            stale.write(3, 4)
            stale.drop(5)

            report = await world.sync(stale, new_part=True)

            assert "the source's leader epoch 3 is behind 5, which is on the tier" in str(report.error)
            assert world.begun() == []
            assert await world.logs() == [source.log()]

        run(scenario)

    def test_a_deleted_part_is_not_written_again(self) -> None:
        async def scenario(world: World) -> None:
            source = await with_gap(world)
            await world.run(0)
            await delete_stream(world.tier(), "orders-part-2")
            source.write(1)
            report = await world.sync(source)
            assert isinstance(report.error, Diverged)

            assert (await world.sync(source, new_part=True)).part == StreamPart("orders", 3)
            assert (await world.logs())[1:] == [{}, source.log()]

        run(scenario)

    def test_a_follower_whose_part_is_deleted_goes_on_in_the_next_one(self) -> None:
        """A process that is started then does so too. Only the deletion of the whole stream is final."""

        async def scenario(world: World) -> None:
            source = await with_gap(world)
            await world.run(0)
            await delete_stream(world.tier(), "orders-part-2")
            source.write(1)
            await world.run(0, seconds=700)

            assert world.begun() == [2, 3]
            assert (await world.logs())[1:] == [{}, source.log()]

        run(scenario)


class Killed(BaseException):
    """The process is gone."""


async def crash_at(world: World, number: int, operation: str, nth: int) -> bool:
    """Run the process beside a replica until its nth request of a kind, at which it is killed.

    Returns False if it ended before. The request is not sent.
    """
    seen = 0

    async def before(found: str, key: str) -> None:
        nonlocal seen
        if operation in (found, "any"):
            seen += 1
            if seen == nth:
                raise Killed

    world.store.before = before
    try:
        await world.run(number)
    except Killed:
        world.restart(number)
        return True
    finally:
        world.store.before = _nothing
    return False


async def _nothing(operation: str, key: str) -> None:
    pass


def test_a_crash_at_any_request_of_the_beginning_loses_nothing() -> None:
    """The next process, beside the same replica or another one, ends what was begun."""

    async def scenario(world: World, nth: int, heir: int) -> bool:
        source = await with_gap(world)
        world.replicas[1].fetch(source)
        crashed = await crash_at(world, 0, "any", nth)
        source.write(1)
        world.replicas[1].fetch(source)
        await world.run(heir, seconds=200)

        parts = await world.logs()
        assert list(parts[0]) == list(range(20))
        assert parts[1:] == [source.log()]
        assert set(world.begun()) == {2}
        return crashed

    for heir in (0, 1):
        for nth in count(1, 1 if CAMPAIGN else 7):
            if not asyncio.run(scenario(World(), nth, heir)):
                break
        assert nth > 20, "the test has tried the requests of every step"


def test_of_several_replicas_at_once_one_begins_a_part() -> None:
    async def scenario(world: World) -> None:
        source = await with_gap(world)
        for replica in world.replicas[1:]:
            replica.fetch(source)
        await world.followers[0].release()
        world.followers = [world.process(replica) for replica in world.replicas]
        for _ in range(40):
            await asyncio.gather(*(each.step() for each in world.followers))
            world.clock.now += 1

        assert (await world.logs())[1:] == [source.log()]
        assert [each.state for each in world.followers].count(FollowState.LEADING) == 1

    run(scenario)


class TestOnlyTheNewestPartGrows:
    def test_a_writer_that_claims_while_a_part_is_recorded_is_fenced(self) -> None:
        """It looked for a later part before the record was there."""

        async def scenario(world: World) -> None:
            source, rivals = await with_gap(world), list[StreamWriter]()

            async def before(operation: str, key: str) -> None:
                if operation == "create" and key == StreamKeys("orders-part-2").anchor and not rivals:
                    rivals.append(await StreamWriter.claim(world.tier(), "orders"))

            world.store.before = before
            await world.run(0, seconds=100)

            [rival] = rivals
            with pytest.raises(Fenced):
                await rival.offload([MemoryHandle(source.chunks[:1])])
            assert (await world.logs())[1] == source.log()

        run(scenario)

    def test_a_part_that_a_rival_records_during_the_claim_is_not_recorded_twice(self) -> None:
        async def scenario(world: World) -> None:
            source, rival = await with_gap(world), world.tier()

            async def before(operation: str, key: str) -> None:
                if operation == "create" and StreamKeys("orders").parse_root(key) is not None:
                    world.store.before = _nothing
                    await rival.begin_part(StreamPart("orders", 2), before=None)

            world.store.before = before
            report = await world.sync(source, new_part=True)

            assert (report.error, report.part) == (None, StreamPart("orders", 2))
            assert await world.parts() == [StreamPart("orders"), StreamPart("orders", 2)]

        run(scenario)

    def test_a_part_that_is_deleted_before_its_first_root_is_not_begun_by_a_sync_that_stalled(self) -> None:
        async def scenario(world: World) -> None:
            source, tier = await with_gap(world), world.tier()

            async def before(operation: str, key: str) -> None:
                if operation == "create" and StreamKeys("orders-part-2").parse_root(key) is not None:
                    world.store.before = _nothing
                    await delete_parts(tier, "orders", await live_manifests(tier, "orders"))

            world.store.before = before
            report = await world.sync(source, new_part=True)

            assert isinstance(report.error, Conflict)
            assert await live_manifests(tier, "orders") == []

        run(scenario)

    def test_a_part_that_is_closed_adopts_no_uploads_of_a_crashed_writer(self) -> None:
        """The source of the next part does not have them, so nobody can compare them."""

        async def scenario(world: World) -> None:
            source, tier = world.replicas[0], world.tier()
            source.write(1, 4)
            writer = await StreamWriter.claim(tier, "orders")
            await writer.offload([MemoryHandle(source.chunks[:2])])
            [attempt] = await writer.prepare([20])
            crashed = MemoryHandle(source.chunks[2:])
            await tier.offload(crashed, attempt, manifest=writer.manifest, extra_metadata={})
            source.write(1, 2)
            source.drop(5)
            await tier.begin_part(StreamPart("orders", 2), before=None)

            report = await world.sync(source)

            assert (report.error, report.part.number) == (None, 2)
            first, second = await world.logs()
            assert (list(first), second) == (list(range(20)), source.log())

        run(scenario)

    def test_a_part_is_not_begun_while_the_part_before_is_rebuilt(self) -> None:
        """A rebuild may bring a writer's work back, and no claim fences that writer now."""

        async def scenario(world: World) -> None:
            source, tier = await with_gap(world), world.tier()
            await tier.begin_part(StreamPart("orders", 2), before=None)
            newest = await tier.load_manifest("orders")
            fence = replace(newest, version=newest.version + 1, state=StreamState.REBUILDING)
            world.objects[StreamKeys("orders").root(fence.version)] = encode_root(fence)

            report = await world.sync(source)

            assert isinstance(report.error, BeingRebuilt)
            assert await world.manifest(StreamPart("orders", 2)) is None

        run(scenario)

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_process_that_waits_looks_for_a_later_part_whenever_the_root_is_new(self, fails: bool) -> None:
        """It would claim a part that another process has closed, only to find that out.

        A look that fails is no look.
        """

        async def scenario(world: World) -> None:
            source, other = world.replicas[0], world.replicas[1]
            source.write(1, 2)
            other.fetch(source)
            await world.run(0)
            await world.followers[0].release()
            await world.run(1)
            source.write(1, 3)
            other.fetch(source)
            source.drop(3)
            world.restart(0)
            assert (await world.sync(source, new_part=True)).part == StreamPart("orders", 2)
            closed = await world.tier().load_manifest("orders")
            if fails:
                world.store.rules = [Rule(Fault.FAIL_BEFORE, "list", "orders-part-2/", nth=1)]

            await world.run(1)

            assert world.followers[1].status.part == 2
            assert (await world.tier().load_manifest("orders")).version == closed.version

        run(scenario)

    def test_a_part_is_not_begun_behind_a_writer_that_committed_since_the_comparison(self) -> None:
        """The end of the part was compared with the source. It has another end now."""

        async def scenario(world: World) -> None:
            source, part = await with_gap(world), StreamPart("orders")
            compared = await world.tier().load_manifest("orders")
            rival = await StreamWriter.claim(world.tier(), "orders")
            stopped = Diverged("a gap", kind=Divergence.GAP)
            env, emit = world.clock.env(), world.events.append
            async with await source.snapshot() as snapshot:
                with pytest.raises(Conflict):
                    await PartOnTier(world.tier(), part).begin_next(
                        compared, stopped, snapshot, taken=(), env=env, emit=emit
                    )

            assert await world.parts() == [part]
            await rival.prepare([0])  # it is not fenced

        run(scenario)

    def test_a_replica_that_continues_the_part_before_is_copied_to_the_newest(self) -> None:
        async def scenario(world: World) -> None:
            whole = world.replicas[1]
            source = world.replicas[0]
            source.write(1, 2)
            await world.run(0)
            source.write(1, 3)
            whole.fetch(source)
            source.drop(3)
            await world.run(0)
            source.write(1)
            whole.fetch(source)
            before = (await world.logs())[0]

            report = await world.sync(whole)

            assert (report.error, report.part.number) == (None, 2)
            assert await world.logs() == [before, source.log()]

        run(scenario)

    @pytest.mark.parametrize("follows", [True, False])
    def test_a_stream_goes_on_in_a_part_that_was_copied_to_the_tier_alone(self, follows: bool) -> None:
        """Behind records in the first part, readers would get those of the copied part once more."""

        async def scenario(world: World) -> None:
            source, tier, part = world.replicas[0], world.tier(), StreamPart("orders", 2)
            source.write(1, 2)
            await tier.open(create=True)
            await tier.begin_part(part, before=None)
            writer = await StreamWriter.claim(tier, part.name)
            await writer.offload([MemoryHandle(source.chunks)])
            await writer.release()
            source.write(1, 2)

            if follows:
                await world.run(0, seconds=100)
            else:
                await world.sync(source)

            assert await world.logs() == [{}, source.log()]

        run(scenario)

    def test_a_part_that_a_crash_left_without_data_does_not_hide_older_records(self) -> None:
        """It would begin behind what this source still has."""

        async def scenario(world: World) -> None:
            source = await with_gap(world)
            tier, part = world.tier(), StreamPart("orders", 2)
            await tier.begin_part(part, before=await tier.load_manifest("orders"))
            await StreamWriter.claim(tier, part.name, first_offset=40)

            report = await world.sync(source, new_part=True)

            assert (report.error, report.part.number) == (None, 3)
            assert (await world.logs())[1:] == [{}, source.log()]

        run(scenario)


class TestNames:
    def test_a_stream_of_its_own_that_is_named_like_a_part_gets_no_records_of_another(self) -> None:
        async def scenario(world: World) -> None:
            stranger = Replica(name="orders-part-2")
            stranger.write(1, 5)
            assert (await world.sync(stranger)).error is None
            source = await with_gap(world)
            await world.run(0)

            assert world.begun() == [3]
            assert (await world.sync(stranger)).error is None
            tier = await StreamReader.open(world.tier(), "orders-part-2")
            assert [body async for batch in tier.messages(0) for body in batch.bodies] == [
                *stranger.log().values()
            ]
            assert (await world.logs())[1] == source.log()

        run(scenario)

    def test_a_stream_of_the_source_whose_name_a_part_has_is_refused(self) -> None:
        async def scenario(world: World) -> None:
            source = await with_gap(world)
            await world.run(0)
            stranger = Replica(name="orders-part-2")
            stranger.chunks = source.chunks
            stranger.write(1)

            for new_part in (False, True):
                report = await world.sync(stranger, new_part=new_part)
                assert "has the name of part 2 of stream 'orders' on the tier" in str(report.error)
            assert (await world.logs())[1] == source.log()

        run(scenario)

    def test_a_part_waits_for_a_stream_of_the_source_that_needs_its_name(self) -> None:
        async def scenario(world: World) -> None:
            source = await with_gap(world)
            stranger = Replica(name="orders-part-2")
            stranger.write(1, 5)
            both = GrowingSource([source, stranger])

            async def sync(*only: str) -> list[StreamReport]:
                return [report async for report in sync_all(both, world.tier(), only=only, new_part=True)]

            [waiting] = await sync("orders")  # alone: beside it, the stranger may be copied sooner
            [copied, goes_on] = await sync("orders-part-2") + await sync("orders")

            assert "the source has a stream 'orders-part-2': copy that stream first" in str(waiting.error)
            assert (copied.part, copied.error) == (StreamPart("orders-part-2"), None)
            assert (goes_on.part, goes_on.error) == (StreamPart("orders", 3), None)

        run(scenario)

    def test_a_stream_with_the_longest_name_pauses_with_the_reason(self) -> None:
        async def scenario(world: World) -> None:
            for replica in world.replicas:
                replica.name = "x" * 4096  # type: ignore[misc]
            world.followers = [world.process(replica) for replica in world.replicas]
            await with_gap(world)
            await world.run(0)

            [event] = [event for event in world.events if isinstance(event, StreamPaused)]
            assert "a stream name has 1 to 4096 bytes" in str(event.error)

        run(scenario)


STEPS = st.tuples(
    st.sampled_from(["write", "fetch", "drop", "elect", "run", "run", "run", "wait", "restart", "sync"]),
    st.integers(0, 2),
    st.integers(1, 4),
)


@settings(max_examples=1000 if CAMPAIGN else 6, deadline=None)
@given(steps=st.lists(STEPS, min_size=5, max_size=40))
def test_nothing_of_a_source_is_left_out_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    """Three replicas of a stream, of which any may lead, lag, delete old data, or be followed."""

    async def scenario(world: World) -> None:
        judge = Judge(world)
        for step, number, amount in steps:
            await judge.take(step, number, amount)
            await judge.check()
        await judge.check_the_end()

    run(scenario)


@dataclass
class Judge:
    """Takes the steps of a walk, and checks the tier after each."""

    world: World
    known: dict[int, set[bytes]] = field(default_factory=dict)
    """All records that any replica ever had, by offset."""
    closed: list[Log] = field(default_factory=list)
    """The parts that must not change any more."""

    async def take(self, step: str, number: int, amount: int) -> None:
        """Take one step of a walk."""
        world = self.world
        replica = world.replicas[number]
        if step == "write":
            world.leader.write(world.epoch, amount)
        elif step == "fetch" and replica is not world.leader:
            replica.fetch(world.leader, amount)
        elif step == "drop" and replica.chunks:
            replica.drop(amount)
        elif step == "elect":
            world.leader, world.epoch = replica, world.epoch + 1
        elif step == "run":
            await self.run(number, seconds=10 * amount)
        elif step == "wait":
            world.clock.now += 30 * amount
        elif step == "restart":
            world.restart(number)
        elif step == "sync":
            await self.sync(number)
        for each in world.replicas:
            for offset, body in each.log().items():
                self.known.setdefault(offset, set()).add(body)

    async def run(self, number: int, *, seconds: float) -> None:
        """Let a process look. What it leads is on the tier afterwards."""
        world, before = self.world, await self.newest()
        await world.run(number, seconds=seconds)
        await self.check_who_began(number, before)
        follower = world.followers[number]
        if follower.state is FollowState.LEADING and follower.status.lag_records == 0:
            await self.check_copied(number)

    async def sync(self, number: int) -> None:
        """Sync a replica, as an operator does."""
        before = await self.newest()
        report = await self.world.sync(self.world.replicas[number], new_part=True)
        await self.check_who_began(number, before)
        if report.error is None and self.world.replicas[number].chunks:
            await self.check_copied(number)

    async def newest(self) -> tuple[int, Log]:
        """Return the number of parts, and the newest log that is not empty."""
        logs = await self.world.logs()
        return len(logs), next((log for log in reversed(logs) if log), {})

    async def check_who_began(self, number: int, before: tuple[int, Log]) -> None:
        """No part is begun by a replica whose log the tier has already, or continues it."""
        parts, newest = before
        own = self.world.replicas[number].log()
        if len(await self.world.parts()) > parts and newest:
            end = max(newest)
            assert max(own) >= end, "the source ends before the tier"
            assert own.get(end) != newest[end], "the source continues the tier"

    async def check_copied(self, number: int) -> None:
        """The newest part has what the source has, from its own beginning on."""
        own, newest = self.world.replicas[number].log(), (await self.newest())[1]
        begin = min(newest)
        assert {pair for pair in own.items() if pair[0] >= begin} <= set(newest.items())

    async def check(self) -> None:
        """Each record on the tier was in a replica, and only the newest part has changed."""
        logs = await self.world.logs()
        for log in logs:
            assert all(body in self.known[offset] for offset, body in log.items())
        last = max((row for row, log in enumerate(logs) if log), default=0)
        assert logs[: len(self.closed)] == self.closed
        self.closed = logs[:last]

    async def check_the_end(self) -> None:
        """The leader of the broker is followed at last, in at most one part more."""
        world = self.world
        number = [replica is world.leader for replica in world.replicas].index(True)
        _, newest = await self.newest()
        while not newest or world.leader.next_offset <= max(newest) + 1:
            world.leader.write(world.epoch)
            if not newest:
                break
        world.leader.write(world.epoch)
        world.restart(number)
        for offset, body in world.leader.log().items():
            self.known.setdefault(offset, set()).add(body)
        await world.run(number, seconds=800)
        assert world.followers[number].status.lag_records == 0
        await self.check_copied(number)
        await self.check()
