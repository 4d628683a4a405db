"""Tests of the end of a stream with parts: after a deletion or a shred no part lives, and none ever begins.

A stream `orders` has two parts, each with a master key of its own. A follower with `on_gap = "new-part"` runs
beside the deletion, and begins a third part when it finds the second one gone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Protocol

import pytest
from growing_source import GrowingStream
from key_world import Service, World, run
from kit.world import Clock
from rivals import Act, Process, at_every_moment, nothing

from offload import ObjectStoreOffloader, StreamWriter
from offload.copy.next_part import PartOnTier
from offload.follow.follower import Follower
from offload.follow.rules import FollowRules
from offload.ground.errors import Conflict, Denied, NotOffloaded, OffloadError, StreamDeleted
from offload.model.part import StreamPart
from offload.upkeep.parts import delete_parts, live_manifests
from offload.upkeep.shred import plan_parts, shred

OWN: Final = "own:shop"
RULES: Final = FollowRules(max_lag_seconds=10.0, hold_back_seconds=0.0, new_part=True)


class End(Protocol):
    """Ends the stream. `meanwhile` is awaited between the look and the first change."""

    async def __call__(self, world: World | Process, *, meanwhile: Act = nothing) -> None: ...


async def deleted(world: World | Process, *, meanwhile: Act = nothing) -> None:
    tier = world.tier()
    seen = await live_manifests(tier, "orders")
    await meanwhile()
    await delete_parts(tier, "orders", seen)


async def shredded(world: World | Process, *, meanwhile: Act = nothing) -> None:
    tier = world.tier()
    plans = await plan_parts(tier, "orders", service=world.service)
    await meanwhile()
    for plan in reversed(plans):
        await shred(tier, plan, service=world.service)


def source_behind_a_gap() -> GrowingStream:
    """Return a source that does not continue what is committed, and whose records are due."""
    source = GrowingStream(first_offset=100, next_offset=100, epoch=2)
    source.append(2)
    source.roll()
    source.append()
    return source


async def follow(tier: ObjectStoreOffloader, source: GrowingStream, *, steps: int = 4) -> None:
    """Let a process that has just started follow a source, and end cleanly."""
    clock = Clock()
    follower = Follower(source=source, offloader=tier, rules=RULES, env=clock.env())
    for _ in range(steps):
        clock.now += await follower.step()
    with suppress(OffloadError):
        await follower.release()


async def made() -> World:
    """Return a world with a stream of two parts."""
    world = World(service=Service())
    source = GrowingStream()
    source.append(2)
    source.roll()
    await follow(world.tier(world.ring(OWN)), source)
    await follow(world.tier(world.ring(OWN)), source_behind_a_gap())
    assert [part.number for part in await world.tier().parts("orders")] == [2]
    return world


async def assert_over(world: World) -> None:
    """Assert that no part lives, that none begins when a follower goes on, and that no key is left."""
    await follow(world.tier(world.ring(OWN)), source_behind_a_gap())
    assert await live_manifests(world.tier(), "orders") == []


def own_masters(world: World) -> list[str]:
    return [label for label in world.service.masters if "shop" in label]


@pytest.mark.parametrize("end", [deleted, shredded])
class TestTheEnd:
    """A deletion and a shred end in the same way."""

    def test_a_part_that_begins_at_any_moment_is_found_or_refused(self, end: End) -> None:
        is_done: list[bool] = []

        async def rival(world: World) -> None:
            await follow(world.tier(world.ring(OWN)), source_behind_a_gap())

        async def work(process: Process) -> None:
            is_done.append(False)
            with suppress(Conflict):
                await end(process)
                is_done[-1] = True

        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, work, rival):
                if is_done[-1]:
                    await assert_over(world)
                    assert end is deleted or own_masters(world) == []
                else:
                    assert await live_manifests(world.tier(), "orders") != []

        run(scenario)
        assert set(is_done) == {True, False}

    def test_a_part_that_nobody_has_seen_keeps_all_parts(self, end: End) -> None:
        """What a person agreed to delete is another stream than the one that is there."""

        async def scenario(_: World) -> None:
            world = await made()
            tier, masters = world.tier(world.ring(OWN)), own_masters(world)

            async def begin() -> None:
                before = await tier.load_manifest("orders-part-2")
                await tier.begin_part(StreamPart("orders", 3), before=before)
                await StreamWriter.claim(tier, "orders-part-3", first_offset=200)

            with pytest.raises(Conflict, match="'orders-part-3' was begun meanwhile as a part"):
                await end(world, meanwhile=begin)

            names = [each.stream for each in await live_manifests(tier, "orders")]
            assert names == ["orders", "orders-part-2", "orders-part-3"]
            assert own_masters(world) == masters

        run(scenario)

    def test_a_part_that_is_begun_between_two_steps_keeps_the_parts_that_are_left(self, end: End) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            process = Process(world)

            async def begin(operation: str, key: str) -> None:
                # Behind the tombstone of the second part.
                if operation == "create" and key.startswith("orders-part-2/metadata/root."):
                    tier = world.tier(world.ring(OWN))
                    await tier.begin_part(StreamPart("orders", 3), before=None)
                    await StreamWriter.claim(tier, "orders-part-3", first_offset=200)

            process.store.after = begin
            with pytest.raises(Conflict, match="'orders-part-3' was begun meanwhile as a part"):
                await end(process)

            names = [each.stream for each in await live_manifests(world.tier(), "orders")]
            assert names == ["orders", "orders-part-3"]

        run(scenario)

    def test_a_process_that_stalls_while_it_begins_a_part_begins_none_behind_the_end(self, end: End) -> None:
        async def act(world: World) -> None:
            with suppress(Conflict):
                await end(world)
                return
            await end(world)  # it has begun a part until now, which the first run did not see

        async def work(process: Process) -> None:
            await follow(process.tier(OWN), source_behind_a_gap())

        async def made_with_one_part() -> World:
            world = World(service=Service())
            source = GrowingStream()
            source.append(2)
            await follow(world.tier(world.ring(OWN)), source)
            return world

        async def scenario(_: World) -> None:
            *stalled, (undisturbed, _) = [
                (world, own_masters(world)) async for world in at_every_moment(made_with_one_part, work, act)
            ]
            for world, masters in stalled:
                assert await live_manifests(world.tier(), "orders") == []
                assert end is deleted or masters == []
            assert len(await live_manifests(undisturbed.tier(), "orders")) == 2

        run(scenario)

    def test_a_part_that_a_crash_left_without_a_root_gets_a_tombstone(self, end: End) -> None:
        async def scenario(world: World) -> None:
            world = await made()
            tier = world.tier(world.ring(OWN))

            async def begin(part: StreamPart) -> None:
                await tier.begin_part(part, before=None)

            await PartOnTier(tier, StreamPart("orders", 2)).record_next(begin)
            await end(world)

            with pytest.raises(StreamDeleted):
                await world.tier().load_manifest("orders-part-3")
            await end(world)  # a second run finds nothing to do

        run(scenario)

    def test_a_part_that_is_claimed_while_it_gets_a_tombstone_keeps_its_writer(self, end: End) -> None:
        """A crash left it without a root, and its process has come back."""

        async def scenario(_: World) -> None:
            world = await made()
            tier, process, writers = world.tier(world.ring(OWN)), Process(world), list[StreamWriter]()

            async def begin(part: StreamPart) -> None:
                await tier.begin_part(part, before=None)

            async def claim(operation: str, key: str) -> None:
                if operation == "create" and key.startswith("orders-part-3/metadata/root.") and not writers:
                    writers.append(await StreamWriter.claim(tier, "orders-part-3", is_new=True))

            await PartOnTier(tier, StreamPart("orders", 2)).record_next(begin)
            process.store.before = claim
            with pytest.raises(Conflict, match="'orders-part-3' was begun meanwhile as a part"):
                await end(process)

            [live] = await live_manifests(tier, "orders")
            assert live.writer == writers[0].writer

        run(scenario)


def test_a_deletion_is_done_although_the_stream_is_begun_again_right_behind_it() -> None:
    async def scenario(_: World) -> None:
        world = await made()
        process, writers = Process(world), list[StreamWriter]()

        async def begin(operation: str, key: str) -> None:
            # Behind the tombstone of the first part.
            if operation == "create" and key.startswith("orders/metadata/root.") and not writers:
                writers.append(await StreamWriter.claim(world.tier(world.ring(OWN)), "orders"))

        process.store.after = begin
        await deleted(process)

        [live] = await live_manifests(world.tier(), "orders")
        assert live.writer == writers[0].writer

    run(scenario)


def test_a_process_without_a_key_service_begins_no_part_of_an_encrypted_stream() -> None:
    """The first fragment of the part would be plain."""

    async def scenario(_: World) -> None:
        world = await made()
        before = await world.tier().load_manifest("orders-part-2")

        with pytest.raises(Denied):
            await ObjectStoreOffloader(world.store).begin_part(StreamPart("orders", 3), before=before)

        assert [part.number for part in await world.tier().parts("orders")] == [2]

    run(scenario)


def test_a_stream_that_is_begun_again_keeps_the_parts_of_its_new_life() -> None:
    async def scenario(_: World) -> None:
        async def rival(world: World) -> None:
            with suppress(NotOffloaded, Conflict):
                await deleted(world)
            await made_again(world)

        async def work(process: Process) -> None:
            with suppress(Conflict):
                await deleted(process)

        async for world in at_every_moment(made, work, rival):
            names = [each.stream for each in await live_manifests(world.tier(), "orders")]
            assert names in ([], ["orders"], ["orders", "orders-part-2"])

    async def made_again(world: World) -> None:
        await StreamWriter.claim(world.tier(world.ring(OWN)), "orders")

    run(scenario)
