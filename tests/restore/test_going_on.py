"""The archive goes on behind a published restore: readers get the old messages, then the new ones, once each.

The walks kill restores, lose replies of the tier, let others publish, sync the target in between, and let its
retention delete what was restored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from campaign import CAMPAIGN
from growing_source import GrowingSource, GrowingStream
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.world import TierWorld
from odd_archives import STREAM, odd_chunks
from offload_rabbitmq.stream_target import open_url
from stream_broker import StreamBroker, running

from offload import MemoryHandle, ObjectStoreOffloader, StreamReader, StreamWriter, delete_stream
from offload import sync as sync_all
from offload.contracts.events import Event
from offload.copy.after_restore import begin_behind, restored_part
from offload.copy.next_part import PartOnTier
from offload.copy.sync import StreamReport
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules
from offload.formats.chunk import ChunkHeader
from offload.ground.errors import Conflict, Diverged, Divergence, NotOffloaded, TryAgain
from offload.model.part import StreamPart
from offload.model.position import AtEdge
from offload.restore.archived_parts import ArchivedParts, archived_parts
from offload.restore.read_back import Comparison
from offload.restore.target import publish
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.upkeep.parts import link_copy
from offload.upkeep.retention import Retention, trim

KINDS = ["plain", "batch", "tracking", "plain", "batch"]


class Killed(Exception):
    """The process ends at this request."""


def silent(event: Event) -> None:
    """Hear nothing."""


@dataclass
class World(TierWorld):
    """A tier that has an archive, the broker into which it is restored, and processes that may be killed."""

    broker: StreamBroker = field(kw_only=True)
    kinds: list[str] = field(default_factory=lambda: list(KINDS))
    later: list[str] = field(default_factory=list)
    """The chunks of a second part of the archive, behind a gap."""
    new: list[bytes] = field(default_factory=list)
    """The messages that others published behind the restored ones."""

    def __post_init__(self) -> None:
        self.chunks, messages = odd_chunks(self.kinds)
        later, more = odd_chunks(self.later, first_offset=99)
        self.later_chunks = later
        self.old = [body for _, body in messages + more]
        self.numbers = count()

    def tier(self, dies_after: int | None = None) -> ObjectStoreOffloader:
        """Return the tier, as a process opens it that dies after so many more mutations."""
        left = count(-1 if dies_after is None else dies_after, -1)

        async def die(operation: str, key: str) -> None:
            if dies_after is not None and operation in ("put", "create", "delete") and next(left) <= 0:
                raise Killed

        return ObjectStoreOffloader(FaultyStore(self.store, before=die), env=self.clock.env())

    async def archive(self) -> None:
        """Archive the old stream. Its leader had epoch 7, and that of the target has epoch 1."""
        writer = await StreamWriter.claim(self.tier(), STREAM, source_epoch=7)
        await writer.offload([MemoryHandle(self.chunks)])
        if self.later:
            part = StreamPart(STREAM, 2)
            await self.tier().begin_part(part, before=writer.manifest)
            writer = await StreamWriter.claim(
                self.tier(), part.name, is_new=True, first_offset=99, source_epoch=7
            )
            await writer.offload([MemoryHandle(self.later_chunks)])

    async def archived(self, stream: str = STREAM) -> ArchivedParts:
        """Return what is restored."""
        reader = await StreamReader.open(self.tier(), stream, emit=silent)
        return await archived_parts(self.tier(), reader, AtEdge.FIRST)

    async def restore(self, *, dies_after: int | None = None, stream: str = STREAM) -> StreamPart:
        """Restore with `--new-part`, as one run of the command does."""
        tier, target = self.tier(dies_after), open_url(self.broker.url, {})
        parts = await self.archived(stream)
        try:
            await publish(parts.archives, target, pace=at_once, tell=str, show=str, is_followed=True)
            comparison = Comparison(parts.archives, target, is_followed=True)
            await comparison.map()
        finally:
            await target.aclose()
        header, env = comparison.last_header, self.clock.env()
        part, committed = restored_part(parts.live, header)
        begun = await begin_behind(PartOnTier(tier, part), committed, header, env=env, emit=silent)
        return begun.recorded

    def source(self, name: str = STREAM) -> GrowingStream:
        """Return the folder of the target, under the name of the archived stream."""
        source = GrowingStream(name=name)  # type: ignore[call-arg]  # a field instead of a property
        chunks = self.broker.log()
        source.ledgers = [[chunk] for chunk in chunks]
        if chunks:
            source.first_offset = ChunkHeader.decode(chunks[0], where="here").offset
        source.next_offset = self.broker.next_offset
        return source

    def publish(self, amount: int) -> None:
        """Let others publish new messages to the target."""
        bodies = [b"new %d" % next(self.numbers) for _ in range(amount)]
        self.new += bodies
        self.broker.append(bodies)

    async def sync(
        self, source: GrowingStream | None = None, *, dies_after: int | None = None, new_part: bool = False
    ) -> StreamReport:
        """Sync the target, or another source, to the tier."""
        tier, streams = self.tier(dies_after), GrowingSource([source or self.source()])
        env = self.clock.env()
        [report] = [report async for report in sync_all(streams, tier, new_part=new_part, env=env)]
        return report

    async def read(self) -> list[bytes]:
        """Return what a reader of the stream gets."""
        reader = await StreamReader.open(self.tier(), STREAM, emit=silent)
        found = list[bytes]()
        async with aclosing(reader.messages(await reader.place_of(AtEdge.FIRST))) as batches:
            async for batch in batches:
                found += [bytes(body) for body in batch.bodies]
        return found


def run(
    scenario: Callable[[World], Awaitable[None]],
    kinds: list[str] | None = None,
    later: Sequence[str] = (),
) -> None:
    """Run a scenario in a world with an archive."""

    async def main() -> None:
        async with running(StreamBroker()) as broker:
            world = World(broker=broker, kinds=kinds or list(KINDS), later=[*later])
            await world.archive()
            await scenario(world)

    asyncio.run(main())


async def at_once(amount: int) -> None:
    """Let any number of messages pass."""


STEPS = st.lists(
    st.tuples(st.sampled_from(["restore", "publish", "sync"]), st.none() | st.integers(0, 12)),
    max_size=8,
)


@settings(max_examples=500 if CAMPAIGN else 5, deadline=None)
@given(
    st.lists(st.sampled_from(["plain", "batch", "tracking"]), min_size=1, max_size=7).filter(
        lambda kinds: {*kinds} != {"tracking"}
    ),
    st.lists(st.sampled_from(["plain", "batch", "tracking"]), max_size=3),
    STEPS,
    STEPS,
)
def test_readers_get_the_old_and_then_the_new_messages_once_whatever_is_killed(
    kinds: list[str],
    later: list[str],
    before: list[tuple[str, int | None]],
    steps: list[tuple[str, int | None]],
) -> None:
    """Restores are killed at any message and any request, and others publish from then on."""
    following = StreamPart(STREAM, 3 if later else 2)

    async def scenario(world: World) -> None:
        for step, amount in before:
            if step == "restore":
                world.broker.dies_after = amount
            with suppress(TryAgain, Killed):
                await world.restore(dies_after=amount)
            world.broker.dies_after = None
            assert await world.read() == world.old
            if world.broker.bodies == world.old:
                break
        else:
            # Nobody may publish before all restored messages are confirmed.
            with suppress(Killed):
                await world.restore(dies_after=0)

        for step, amount in steps:
            if step == "publish":
                world.publish(1 + (amount or 0))
            with suppress(Killed):
                if step == "restore":
                    await world.restore(dies_after=amount)
                elif step == "sync" and following in await world.tier().parts(STREAM):
                    assert (await world.sync(dies_after=amount)).error is None
            found = await world.read()
            assert found == [*world.old, *world.new][: len(found)]
            assert len(found) >= len(world.old)

        part = await world.restore()
        world.publish(3)
        report = await world.sync()

        assert (part, report.part, report.error) == (following, following, None)
        assert await world.read() == [*world.old, *world.new]

    run(scenario, kinds, later)


def test_a_part_that_is_recorded_and_never_begun_does_not_keep_the_stream_from_going_on() -> None:
    """Its source was lost between the two steps. If it comes back, it is refused."""

    async def scenario(world: World) -> None:
        manifest = await world.tier().load_manifest(STREAM)
        await world.tier().begin_part(StreamPart(STREAM, 2), before=manifest)

        part = await world.restore()
        world.publish(2)
        report = await world.sync()

        assert (part.number, report.part.number, report.error) == (3, 3, None)
        assert await world.read() == [*world.old, *world.new]

    run(scenario)


def test_the_offsets_of_a_part_behind_a_restore_do_not_continue_those_before() -> None:
    """Also if they are higher ones: a consumer's offset below them is one of the restored stream."""

    async def scenario(world: World) -> None:
        world.broker.tracks_every = 1
        await world.restore()
        world.publish(2)
        await world.sync()

        first, second = (await world.archived()).archives

        assert second.start >= first.end
        assert not second.is_continued

    run(scenario)


def test_a_target_behind_which_the_stream_has_gone_on_gets_none_of_its_messages_again() -> None:
    """Without `--new-part`, the part that continues the target would be published to it again."""

    async def scenario(world: World) -> None:
        await world.restore()
        world.publish(4)
        await world.sync()
        target, parts = open_url(world.broker.url, {}), await world.archived()
        before = [*world.broker.stored]

        with pytest.raises(Diverged, match=r"continues as 'orders-part-3': to complete .* add --new-part"):
            await publish(parts.archives, target, pace=at_once, tell=str, show=str)
        await target.aclose()
        assert await world.restore() == StreamPart(STREAM, 3)

        assert world.broker.stored == before

    run(scenario, later=["plain"])


@pytest.mark.parametrize("requests", range(8))
def test_a_sync_completes_a_part_that_a_killed_restore_recorded(requests: int) -> None:
    async def scenario(world: World) -> None:
        with suppress(Killed):
            await world.restore(dies_after=requests)
        world.publish(5)
        if not await world.tier().parts(STREAM):
            await world.restore()

        report = await world.sync()

        assert (report.part.number, report.error) == (2, None)
        assert await world.read() == [*world.old, *world.new]

    run(scenario)


def test_a_repeated_restore_begins_a_part_that_a_killed_one_recorded() -> None:
    """Others find it begun, and need no header of a chunk."""

    async def scenario(world: World) -> None:
        tier, requests = world.tier(), count()
        while not await tier.parts(STREAM):
            with suppress(Killed):
                await world.restore(dies_after=next(requests))
        with pytest.raises(NotOffloaded):
            await tier.load_manifest("orders-part-2")

        part = await world.restore()

        manifest = await tier.load_manifest(part.name)
        assert (part.number, manifest.next_offset) == (2, world.broker.next_offset)

    run(scenario)


def test_restores_and_syncs_at_once_begin_one_part() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Killed):
            await world.restore(dies_after=0)
        world.publish(5)

        done = await asyncio.gather(
            *(world.restore() for _ in range(3)), world.sync(), world.sync(), return_exceptions=True
        )
        assert all(isinstance(each, Conflict | TryAgain | StreamReport | StreamPart) for each in done), done
        await world.restore()
        await world.sync()

        assert [part.number for part in await world.tier().parts(STREAM)] == [2]
        assert await world.read() == [*world.old, *world.new]

    run(scenario)


def test_a_rival_that_begins_the_part_at_any_moment_leaves_one_part() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Killed):
            await world.restore(dies_after=0)
        committed = (await StreamReader.open(world.tier(), STREAM)).manifest
        header, env = world.broker.chunks()[-1][:48], world.clock.env()
        before = dict(world.objects)
        moments = 0
        while True:
            world.objects.clear()
            world.objects.update(before)
            left = count(moments, -1)

            async def rival(operation: str, key: str, left: count[int] = left) -> None:
                if next(left) == 0:
                    await world.tier().begin_part(StreamPart(STREAM, 2, header), before=None)

            late = ObjectStoreOffloader(FaultyStore(world.store, before=rival), env=env)
            with suppress(Conflict, TryAgain):
                await begin_behind(PartOnTier.first(late, STREAM), committed, header, env=env, emit=silent)
            assert [part.number for part in await world.tier().parts(STREAM)] == [2], moments
            if next(left) >= 0:  # the rival came too late
                break
            moments += 1
        assert moments > 5

    run(scenario)


def test_a_restore_that_finds_another_part_begun_meanwhile_begins_none() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Killed):
            await world.restore(dies_after=0)
        committed = (await StreamReader.open(world.tier(), STREAM)).manifest

        async def rival(operation: str, key: str) -> None:
            if operation == "create" and key == "orders-part-2/stream.anchor":
                await world.tier().begin_part(StreamPart(STREAM, 2), before=None)

        late = ObjectStoreOffloader(FaultyStore(world.store, before=rival), env=world.clock.env())
        header, env = world.broker.chunks()[-1][:48], world.clock.env()
        with pytest.raises(Conflict, match="continues as 'orders-part-2' meanwhile"):
            await begin_behind(PartOnTier.first(late, STREAM), committed, header, env=env, emit=silent)

        assert [part.number for part in await world.tier().parts(STREAM)] == [2]

    run(scenario)


def test_a_copy_of_a_tier_keeps_the_chunk_behind_which_a_part_begins() -> None:
    async def scenario(world: World) -> None:
        part = await world.restore()
        copy = ObjectStoreOffloader(MemoryStore(), env=world.clock.env())

        await link_copy(world.tier(), copy, part.name)

        assert [each.behind for each in await copy.parts(STREAM)] == [part.behind]

    run(scenario)


def test_a_follower_goes_on_behind_the_restore() -> None:
    rules = FollowRules(max_lag_seconds=10.0, hold_back_seconds=1.0, takeover_seconds=30.0)

    async def scenario(world: World) -> None:
        await world.restore()
        world.publish(5)
        follower = Follower(
            source=world.source(), offloader=world.tier(), rules=rules, env=world.clock.env(), emit=silent
        )
        for _ in range(40):
            world.clock.now += max(await follower.step(), 0.5)

        assert await world.read() == [*world.old, *world.new]
        assert follower.status.part == 2

    run(scenario)


def test_the_source_of_the_old_stream_is_refused_and_changes_no_reader() -> None:
    """Its log has other chunks where the new part begins."""

    async def scenario(world: World) -> None:
        await world.restore()
        old = world.source()
        old.ledgers, old.epoch = [odd_chunks([*KINDS, "plain", "plain"])[0]], 7
        old.first_offset, old.next_offset = 0, MemoryHandle(old.ledgers[0]).next_offset

        report = await world.sync(old)

        assert isinstance(report.error, Diverged)
        assert report.error.kind is Divergence.FORK
        assert await world.read() == world.old

    run(scenario)


@pytest.mark.parametrize(("first", "kind"), [(-3, None), (-2, None), (-1, Divergence.GAP)])
def test_retention_may_delete_restored_messages_and_a_deleted_new_one_is_a_gap(
    first: int, kind: Divergence | None
) -> None:
    """The target still has its last restored chunk and two new ones, or fewer."""

    async def scenario(world: World) -> None:
        await world.restore()
        world.publish(3)
        world.publish(2)
        begins = ChunkHeader.decode(world.broker.chunks()[first], where="here").offset
        world.broker.stored = [each for each in world.broker.stored if each[0] >= begins]

        error = (await world.sync()).error
        assert (error.kind if isinstance(error, Diverged) else error) is kind
        assert (await world.sync(new_part=True)).error is None

        assert await world.read() == [*world.old, *world.new[3 if kind else 0 :]]

    run(scenario)


def test_a_chunk_with_restored_and_new_messages_is_refused() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(Killed):
            await world.restore(dies_after=0)
        world.broker.publish("", [(0, b"in the same chunk")])

        with pytest.raises(Diverged, match="another publisher wrote to it"):
            await world.restore()

        assert await world.tier().parts(STREAM) == []

    run(scenario, ["plain"])


def test_an_archive_that_grew_is_restored_once_more_before_it_goes_on() -> None:
    async def scenario(world: World) -> None:
        tier = world.tier()
        reader = await StreamReader.open(tier, STREAM)
        chunks, messages = odd_chunks(["plain"], first_offset=reader.manifest.next_offset)
        writer = await StreamWriter.claim(world.tier(), STREAM)
        await writer.offload([MemoryHandle(chunks)])

        with pytest.raises(TryAgain, match="has grown to offset"):
            await begin_behind(
                PartOnTier.first(tier, STREAM),
                reader.manifest,
                chunks[0][:48],
                env=world.clock.env(),
                emit=silent,
            )
        assert await tier.parts(STREAM) == []
        await world.restore()

        assert world.broker.bodies == [*world.old, *[body for _, body in messages]]

    run(scenario)


def test_an_archive_that_was_deleted_and_begun_again_does_not_go_on_behind_the_restored_one() -> None:
    """The new life ends at the same offset, and has other messages."""

    async def scenario(world: World) -> None:
        tier = world.tier()
        restored = (await StreamReader.open(tier, STREAM)).manifest
        await delete_stream(tier, STREAM)
        await world.archive()
        assert (await tier.load_manifest(STREAM)).next_offset == restored.next_offset

        with pytest.raises(Diverged, match="was deleted and begun again while it was restored"):
            await begin_behind(
                PartOnTier.first(tier, STREAM),
                restored,
                world.chunks[-1][:48],
                env=world.clock.env(),
                emit=silent,
            )

        assert await tier.parts(STREAM) == []

    run(scenario)


def test_another_target_of_a_restore_takes_the_place_of_one_that_was_not_used() -> None:
    async def scenario(world: World) -> None:
        await world.restore()
        first, world.broker = world.broker, StreamBroker(chunk_messages=3)
        async with running(world.broker):
            part = await world.restore()
            world.publish(2)
            assert (await world.sync()).error is None

            assert part == StreamPart(STREAM, 3)
            assert await world.read() == [*world.old, *world.new]

            world.broker = first
            with pytest.raises(Diverged, match="'orders-part-3': restore that part"):
                await world.restore()  # a sync of this target would be refused

    run(scenario)


def test_a_part_that_lost_its_data_to_retention_goes_on_where_its_source_begins_now() -> None:
    """Neither side has the chunk any more behind which the part begins."""

    async def scenario(world: World) -> None:
        part = await world.restore()
        world.publish(3)
        await world.sync()
        end = (await world.tier().load_manifest(part.name)).next_offset
        await trim(world.tier(), part.name, Retention(before_offset=end))
        world.publish(2)
        world.broker.stored = [each for each in world.broker.stored if each[0] >= end]

        report = await world.sync()

        assert (report.part, report.error) == (part, None)
        manifest = await world.tier().load_manifest(part.name)
        assert (manifest.first_offset, manifest.next_offset) == (end, end + 2)

    run(scenario)


def test_a_part_that_lost_its_data_to_retention_is_not_taken_for_one_that_was_not_used() -> None:
    """The stream goes on behind it: its own source is refused from then on."""

    async def scenario(world: World) -> None:
        part = await world.restore()
        world.publish(3)
        await world.sync()
        end = (await world.tier().load_manifest(part.name)).next_offset
        await trim(world.tier(), part.name, Retention(before_offset=end))
        source, world.broker = world.source(), StreamBroker(chunk_messages=3)
        async with running(world.broker):
            following, world.new = await world.restore(), []
            world.publish(2)
            assert (await world.sync()).error is None

        assert following == StreamPart(STREAM, 3)
        assert isinstance((await world.sync(source)).error, Diverged)
        assert await world.read() == [*world.old, *world.new]

    run(scenario)


def test_the_newest_part_is_restored_by_its_name_and_goes_on_as_the_next() -> None:
    async def scenario(world: World) -> None:
        await world.restore()
        world.publish(5)
        await world.sync()
        world.broker = StreamBroker()
        async with running(world.broker):
            part = await world.restore(stream="orders-part-2")
            world.publish(2)
            report = await world.sync()

        assert (part.number, report.part.number, report.error) == (3, 3, None)
        assert await world.read() == [*world.old, *world.new]

    run(scenario)


def test_the_record_of_a_part_names_the_chunk_for_later_processes() -> None:
    async def scenario(world: World) -> None:
        part = await world.restore()
        [listed] = await world.tier().parts(STREAM)
        last = world.broker.chunks()[-1]

        assert listed.behind == part.behind == last[:48]
        assert replace(listed, behind=b"") == listed  # the chunk is no part of the name

    run(scenario)
