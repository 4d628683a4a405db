"""Tests of shredding: what is destroyed, what stays, and what the result says of it.

A stream `orders` is shredded. Its key is wrapped by the master key `tier-2026`, which it shares with the
stream `bystander`, or each of the two has a master key of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

import pytest
from key_world import LABEL, Service, World, append, fence, is_encrypted, living, read, run
from offload_conformance.ledgers import ledger_of
from rivals import Process, at_every_moment, crash

from offload import Retention, StreamReader, StreamWriter, delete_stream, trim
from offload.contracts.store import Listed
from offload.formats.anchor import KeyObject, TierAnchor
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.ground.errors import (
    Conflict,
    Denied,
    Misuse,
    NoSuchKey,
    NotOffloaded,
    RootsLost,
    StreamDeleted,
    TryAgain,
)
from offload.native.key_objects import store_key, unwrap_key
from offload.native.key_ring import KEPT_SECONDS
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.upkeep.shred import KeyFate, ShreddedKey, plan_shred, planned, shred

OWN: Final = "own:shop"
WEEK: Final = 7 * 86_400.0


async def made(
    label: str | None = OWN, *, service: Service | None = None, world: World | None = None
) -> World:
    """Return a world with the stream `orders`, and with the stream `bystander` under the same label."""
    world = world or World(service=service or Service())
    world.service.waits_seconds = WEEK
    for stream in ("orders", "bystander"):
        await append(world.tier(None if label is None else world.ring(label)), stream=stream)
    return world


def keys_of(world: World, stream: str = "orders") -> list[str]:
    return [name for name in world.key_objects() if name.startswith(f"{stream}/")]


def key_object(world: World, stream: str = "orders") -> KeyObject:
    """Return the newest key object of a stream."""
    name = keys_of(world, stream)[-1]
    return KeyObject.decode(world.objects[name], where=name)


async def shredded(world: World | Process, *, with_service: bool = True) -> list[ShreddedKey]:
    service = world.service if with_service else None
    plan = await plan_shred(world.tier(), "orders", service=service)
    return await shred(world.tier(), plan, service=service)


async def assert_bystander_reads(world: World) -> None:
    assert await read(world.tier(world.ring(None)), "bystander") == 10


async def assert_no_key_is_left(world: World) -> None:
    """Assert that `orders` has no key, and no master key of its own."""
    bystander = key_object(world, "bystander").label
    assert keys_of(world) == []
    assert [label for label in world.service.masters if "shop" in label and label != bystander] == []


async def rests(world: World) -> None:
    pass


async def is_begun_again(world: World) -> None:
    await append(world.tier())


async def is_rebuilt(world: World) -> None:
    await append(world.tier())
    await fence(world)


async def is_live(world: World) -> bool:
    try:
        await world.tier().load_manifest("orders")
    except StreamDeleted:
        return False
    return True


class TestFates:
    """What becomes of each kind of key."""

    def test_a_shared_master_key_stays_and_the_key_goes_without_a_key_service(self) -> None:
        async def scenario(_: World) -> None:
            world = await made(LABEL)
            before, uid = dict(world.objects), UUID(key_object(world).uid)

            rows = await shredded(world, with_service=False)

            assert rows == [ShreddedKey(uid=uid, label=LABEL, own=False, fate=KeyFate.DELETED)]
            assert (keys_of(world), await is_live(world)) == ([], False)
            assert "destroy" not in world.service.calls
            await assert_bystander_reads(world)
            world.objects.update(before)  # an older copy of the bucket
            for name in [name for name in world.objects if name not in before]:
                del world.objects[name]
            assert await read(world.tier(world.ring(None))) == 10

        run(scenario)

    def test_a_master_key_of_its_own_is_destroyed_so_that_no_copy_of_the_bucket_can_be_read(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            before, one = dict(world.objects), key_object(world)

            rows = await shredded(world)

            fate = {"fate": KeyFate.DESTROYED, "seconds": WEEK}
            assert rows == [ShreddedKey(uid=UUID(one.uid), label=one.label, own=True, **fate)]
            assert (keys_of(world), await is_live(world)) == ([], False)
            await assert_bystander_reads(world)
            world.objects.clear()
            world.objects.update(before)
            with pytest.raises(NoSuchKey):
                await read(world.tier(world.ring(None)))

        run(scenario)

    def test_a_second_shred_finds_nothing_to_do(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            await shredded(world)
            objects = dict(world.objects)

            plan = await plan_shred(world.tier(), "orders")

            assert (plan.manifest, plan.keys) == (None, [])
            assert await shred(world.tier(), plan) == []
            assert world.objects == objects

        run(scenario)

    @pytest.mark.parametrize("label", [LABEL, OWN])
    def test_a_stream_that_was_deleted_and_begun_again_loses_the_keys_of_all_lives(self, label: str) -> None:
        async def scenario(_: World) -> None:
            world = await made(label)
            await delete_stream(world.tier(), "orders")
            await append(world.tier(world.ring(label)))
            assert len(keys_of(world)) == 4

            rows = await shredded(world)

            assert [row.fate for row in rows] == [KeyFate.DESTROYED if label == OWN else KeyFate.DELETED] * 2
            assert keys_of(world) == []
            await assert_bystander_reads(world)

        run(scenario)

    def test_an_unfinished_rotation_leaves_a_key_of_which_both_labels_are_reported(self) -> None:
        async def scenario(_: World) -> None:
            world = await made(LABEL, service=Service(LABEL, "new"))
            one = key_object(world)
            raw = await unwrap_key(world.service, one)
            draft = replace(one, generation=2, label="new", wrapped="")
            await store_key(world.store, world.service, draft, raw, world.ring().env, refuse_if_over=living)

            rows = await shredded(world)

            assert [(row.label, row.fate) for row in rows] == [
                ("new", KeyFate.DELETED),
                (LABEL, KeyFate.DELETED),
            ]
            assert keys_of(world) == []

        run(scenario)

    @pytest.mark.parametrize("suffix", [".key", ".copy"])
    @pytest.mark.parametrize("harm", [World.lose, World.damage])
    def test_one_sound_copy_is_enough_to_destroy_the_master_key(self, harm: Any, suffix: str) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            label = key_object(world).label
            harm(world, suffix)

            [row] = await shredded(world)

            assert (row.fate, keys_of(world)) == (KeyFate.DESTROYED, [])
            assert label not in world.service.masters

        run(scenario)

    def test_a_key_without_a_sound_copy_is_deleted_and_reported_as_damaged(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            uid = UUID(key_object(world).uid)
            world.damage()

            assert await shredded(world) == [ShreddedKey(uid=uid, label="", own=False, fate=KeyFate.DAMAGED)]
            assert keys_of(world) == []
            assert "destroy" not in world.service.calls

        run(scenario)

    def test_a_dry_run_names_the_same_keys_and_changes_nothing(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            objects = dict(world.objects)

            rows = planned(await plan_shred(world.tier(), "orders", service=world.service))
            assert world.objects == objects

            assert [replace(row, seconds=WEEK) for row in rows] == await shredded(world)

        run(scenario)


class TestRefusals:
    """What is refused before anything is committed."""

    def test_a_stream_that_is_not_encrypted_is_refused(self) -> None:
        async def scenario(_: World) -> None:
            world = await made(None)

            with pytest.raises(Misuse, match=r"stream 'orders' is not encrypted, .* use `offload delete`"):
                await shredded(world)
            assert await is_live(world)

        run(scenario)

    def test_a_stream_that_was_never_begun_is_refused(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()

            with pytest.raises(NotOffloaded, match="has no stream 'nothing'"):
                await plan_shred(world.tier(), "nothing")

        run(scenario)

    def test_a_master_key_of_its_own_needs_a_key_service(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()

            with pytest.raises(Misuse, match=r"stream 'orders' has a master key of its own; .* add --keys"):
                await shredded(world, with_service=False)
            assert (await is_live(world), len(keys_of(world))) == (True, 2)
            await delete_stream(world.tier(), "orders")
            with pytest.raises(Misuse, match="add --keys"):
                await shredded(world, with_service=False)
            assert len(keys_of(world)) == 2

        run(scenario)

    def test_a_master_key_made_after_the_plan_is_kept_without_a_key_service(self) -> None:
        async def scenario(_: World) -> None:
            world = await made(LABEL)
            plan = await plan_shred(world.tier(), "orders")
            world.lose()
            await append(world.tier(world.ring(OWN)))

            [row] = await shred(world.tier(), plan)

            assert (row.own, row.fate, len(keys_of(world))) == (True, KeyFate.KEPT, 2)
            assert str(row.error).endswith("to destroy that, add --keys")

        run(scenario)

    def test_a_service_without_the_master_key_of_a_live_stream_is_taken_for_another_service(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            right, world.service = world.service, Service()

            with pytest.raises(
                NoSuchKey, match="Nothing was deleted: use the --keys of the stream's writers"
            ):
                await shredded(world)
            assert (await is_live(world), len(keys_of(world))) == (True, 2)

            world.service = right
            assert [row.fate for row in await shredded(world)] == [KeyFate.DESTROYED]

        run(scenario)

    def test_the_keys_of_a_life_that_only_lost_roots_knew_stay(self) -> None:
        async def scenario(_: World) -> None:
            world = await made(LABEL)
            await delete_stream(world.tier(), "orders")
            deleted = {name for name in world.objects if "/metadata/" in name}
            await append(world.tier(world.ring()))
            for name in [name for name in world.objects if name.startswith("orders/metadata/")]:
                if name not in deleted:
                    del world.objects[name]

            with pytest.raises(RootsLost, match="orders"):
                await shredded(world)
            assert len(keys_of(world)) == 4

        run(scenario)

    def test_a_service_that_is_down_deletes_nothing(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            world.service.is_down = True

            with pytest.raises(TryAgain):
                await shredded(world)
            assert (await is_live(world), len(keys_of(world))) == (True, 2)

        run(scenario)

    def test_a_stream_that_is_being_rebuilt_keeps_its_keys(self) -> None:
        """The tombstone was the newest root when the shred was planned."""

        async def scenario(_: World) -> None:
            world = await made()
            plan = await plan_shred(world.tier(), "orders", service=world.service)
            await delete_stream(world.tier(), "orders")
            await fence(world)

            with pytest.raises(Conflict, match="is being rebuilt"):
                await shred(world.tier(), replace(plan, manifest=None), service=world.service)
            assert len(keys_of(world)) == 2

        run(scenario)

    def test_a_stream_that_is_back_since_its_deletion_is_reported(self) -> None:
        """Its roots of the deletion were lost, and the newest one that is left is live."""

        async def scenario(_: World) -> None:
            world = await made()
            before = set(world.objects)
            plan = await plan_shred(world.tier(), "orders", service=world.service)

            async def lose(operation: str, key: str) -> None:
                if operation == "list" and key == StreamKeys("orders").stream_keys:
                    for name in [name for name in world.objects if name not in before]:
                        del world.objects[name]

            world.store.before = lose
            with pytest.raises(Conflict, match="is back since this run deleted it"):
                await shred(world.tier(), plan, service=world.service)

            assert await read(world.tier(world.ring(None))) == 10

        run(scenario)


class Keeping(MemoryStore):
    """A store that answers each deletion with success, and keeps objects whose key ends in `suffix`."""

    suffix = ""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the others."""
        await super().delete([key for key in keys if not (self.suffix and key.endswith(self.suffix))])


class TestReadsBack:
    """A deletion that a store only says it has done."""

    @pytest.mark.parametrize("suffix", [".key", ".copy"])
    @pytest.mark.parametrize("label", [LABEL, OWN])
    def test_a_key_object_that_outlives_its_deletion_is_reported_and_the_next_shred_completes(
        self, suffix: str, label: str
    ) -> None:
        async def scenario(_: World) -> None:
            store = Keeping()
            world = await made(label, world=World(store=FaultyStore(store)))
            store.suffix = suffix

            [row] = await shredded(world)

            # The master key is destroyed all the same, and no later run can report that.
            assert row.fate is (KeyFate.DESTROYED if label == OWN else KeyFate.LEFT)
            [left] = keys_of(world)
            assert str(row.error) == f"the store answered that {left} is deleted, and a read still finds it"
            store.suffix = ""
            [row] = await shredded(world)
            assert row.fate is (KeyFate.MISSING if label == OWN else KeyFate.DELETED)
            assert (row.error, keys_of(world)) == (None, [])

        run(scenario)

    def test_a_key_object_that_cannot_be_read_back_is_not_known_to_be_gone(self) -> None:
        async def scenario(_: World) -> None:
            world = await made(LABEL)

            async def fail(operation: str, key: str) -> None:
                if operation == "get" and key.endswith(".copy") and key not in world.objects:
                    raise TryAgain("the store does not answer")

            world.store.before = fail
            [row] = await shredded(world)

            assert row.fate is KeyFate.LEFT
            assert "it is not known whether orders/keys/" in str(row.error)
            assert str(row.error).endswith("because a read of it failed: the store does not answer")

        run(scenario)

    def test_a_copy_that_the_list_lacks_is_deleted_too(self) -> None:
        async def scenario(_: World) -> None:
            world = await made(LABEL)
            store, plan = world.store, await plan_shred(world.tier(), "orders")
            listed = store.list

            async def without_copies(prefix: str, *, after: str = "") -> AsyncIterator[Listed]:
                async for row in listed(prefix, after=after):
                    if not row.key.endswith(".copy"):
                        yield row

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(FaultyStore, "list", staticmethod(without_copies))
                await shred(world.tier(), plan)

            assert keys_of(world) == []

        run(scenario)


class TestServices:
    """Key services that refuse after the stream was deleted. The next run completes what is left."""

    @pytest.mark.parametrize("is_theirs", [True, False])
    def test_a_forged_key_object_never_destroys_the_master_key_of_another_stream(
        self, is_theirs: bool
    ) -> None:
        """Somebody who can write to the bucket names that key in a key object of `orders`."""

        async def scenario(_: World) -> None:
            world = await made()
            theirs, mine = key_object(world, "bystander"), key_object(world)
            wrapped = (theirs if is_theirs else mine).wrapped
            forged = replace(mine, uid=theirs.uid, label=theirs.label, wrapped=wrapped)
            names = StreamKeys("orders").key_objects(UUID(mine.incarnation), UUID(theirs.uid), 1)
            world.objects.update(dict.fromkeys(names, forged.encode()))

            rows = {row.label: row for row in await shredded(world)}

            assert rows[mine.label].fate is KeyFate.DESTROYED
            assert rows[theirs.label].fate is KeyFate.KEPT
            assert "did not wrap this key" in str(rows[theirs.label].error)
            assert keys_of(world) == sorted(names)
            await assert_bystander_reads(world)

        run(scenario)

    def test_a_forged_copy_does_not_keep_the_master_key_alive(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            one, theirs = key_object(world), key_object(world, "bystander")
            [copy] = [name for name in keys_of(world) if name.endswith(".copy")]
            world.objects[copy] = replace(one, wrapped=theirs.wrapped).encode()

            assert [row.fate for row in await shredded(world)] == [KeyFate.DESTROYED]
            assert (keys_of(world), one.label in world.service.masters) == ([], False)

        run(scenario)

    @pytest.mark.parametrize(
        "error", [TryAgain("the key service is down"), Denied("no permission"), Misuse("destroys no keys")]
    )
    def test_a_key_that_the_service_does_not_destroy_is_kept_for_the_next_run(self, error: Exception) -> None:
        class Refusing(Service):
            async def destroy(self, label: str) -> float:
                raise error

        async def scenario(_: World) -> None:
            world = await made(service=Refusing())
            objects = keys_of(world)

            [row] = await shredded(world)

            assert (row.fate, row.error) == (KeyFate.KEPT, error)
            assert str(error).startswith("stream 'orders': ")
            assert (await is_live(world), keys_of(world)) == (False, objects)
            healed = Service()
            healed.masters = world.service.masters
            world.service = healed
            assert [row.fate for row in await shredded(world)] == [KeyFate.DESTROYED]
            assert keys_of(world) == []

        run(scenario)

    def test_of_two_master_keys_of_an_unfinished_rotation_the_next_run_destroys_the_one_that_is_left(
        self,
    ) -> None:
        """Only the objects of the key name it, so none of them goes before."""

        class Refusing(Service):
            async def destroy(self, label: str) -> float:
                if label == other:
                    raise TryAgain("the key service is down")
                return await super().destroy(label)

        other = ""

        async def scenario(_: World) -> None:
            nonlocal other
            world = await made(service=Refusing())
            one = key_object(world)
            other = f"other-{one.uid}"
            await world.service.create(other)
            raw = await unwrap_key(world.service, one)
            draft = replace(one, generation=2, label=other, wrapped="")
            await store_key(world.store, world.service, draft, raw, world.ring().env, refuse_if_over=living)
            objects = keys_of(world)

            fates = {row.label: row.fate for row in await shredded(world)}
            assert fates == {one.label: KeyFate.DESTROYED, other: KeyFate.KEPT}
            assert keys_of(world) == objects
            healed = Service()
            healed.masters = world.service.masters
            world.service = healed

            fates = {row.label: row.fate for row in await shredded(world)}
            assert fates == {one.label: KeyFate.MISSING, other: KeyFate.DESTROYED}
            assert (keys_of(world), other in healed.masters) == ([], False)

        run(scenario)

    def test_a_shred_killed_at_any_moment_is_completed_by_the_same_command(self) -> None:
        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, shredded, crash):
                await shredded(world)

                assert (await is_live(world), keys_of(world)) == (False, [])
                assert [label for label in world.service.masters if "shop" in label] == [
                    key_object(world, "bystander").label
                ]

        run(scenario)

    def test_a_master_key_that_an_earlier_run_has_destroyed_is_reported_as_missing(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            one = key_object(world)
            await delete_stream(world.tier(), "orders")
            del world.service.masters[one.label]

            rows = await shredded(world)

            assert rows == [ShreddedKey(uid=UUID(one.uid), label=one.label, own=True, fate=KeyFate.MISSING)]
            assert (keys_of(world), world.service.calls.count("destroy")) == ([], 0)

        run(scenario)


class TestRivals:
    """Rivals at each moment of a shred."""

    def test_a_stream_that_is_begun_again_keeps_its_new_key(self) -> None:
        async def rival(world: World) -> None:
            await delete_stream(world.tier(), "orders")
            await append(world.tier(world.ring(OWN)), 5)

        async def work(process: Process) -> None:
            plan = await plan_shred(process.tier(), "orders", service=process.service)
            rows.append([row.fate for row in await shred(process.tier(), plan, service=process.service)])

        rows: list[list[KeyFate]] = []

        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, work, rival):
                if await is_live(world):
                    assert await read(world.tier(world.ring(None))) == 5
                assert len(keys_of(world)) == (2 if await is_live(world) else 0)

        run(scenario)
        assert [fates for fates in rows if KeyFate.KEPT in fates] == []

    def test_a_key_that_a_writer_makes_until_the_deletion_is_destroyed(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            uid = UUID(int=7)
            draft = replace(key_object(world), uid=str(uid), label=f"shop-{uid}", wrapped="")
            plan = await plan_shred(world.tier(), "orders", service=world.service)

            async def write(operation: str, key: str) -> None:
                if operation == "create" and key.startswith(StreamKeys("orders").roots):
                    await world.service.create(draft.label)
                    await store_key(
                        world.store.inner,
                        world.service,
                        draft,
                        bytes(32),
                        world.ring().env,
                        refuse_if_over=living,
                    )

            world.store.before = write
            rows = await shred(world.tier(), plan, service=world.service)

            assert [row.fate for row in rows] == [KeyFate.DESTROYED] * 2
            assert keys_of(world) == []

        run(scenario)

    def test_two_shreds_at_once_leave_no_key(self) -> None:
        async def rival(world: World) -> None:
            await shredded(world)

        async def work(process: Process) -> None:
            with suppress(NoSuchKey):  # its plan was made before the rival's tombstone
                await shredded(process)

        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, work, rival):
                assert (await is_live(world), keys_of(world)) == (False, [])
                await assert_bystander_reads(world)

        run(scenario)

    def test_a_writer_commits_nothing_after_a_shred_at_any_of_its_moments(self) -> None:
        async def rival(world: World) -> None:
            await shredded(world)

        async def work(process: Process) -> None:
            with suppress(StreamDeleted, Denied):
                await append(process.tier(OWN))

        async def scenario(_: World) -> None:
            async for world in at_every_moment(made, work, rival):
                if await is_live(
                    world
                ):  # the writer claimed the stream after the shred, or nobody shredded it
                    assert all(await is_encrypted(world))
                    assert await read(world.tier(world.ring(None))) in (10, 20)
                else:
                    await assert_no_key_is_left(world)

        run(scenario)

    @pytest.mark.parametrize("then", [rests, is_begun_again, is_rebuilt])
    def test_a_writer_that_stalled_before_a_shred_leaves_no_key_behind_it(
        self, then: Callable[[World], Awaitable[None]]
    ) -> None:
        """It lists no key, and makes one for a life that has ended. A retry of it writes nothing either.

        Since the shred, somebody may have begun the stream again, and a rebuild of that life may
        be under way.
        """

        async def scenario(_: World) -> None:
            world = await made()
            tier = world.tier(world.ring(OWN))
            stalled = await StreamWriter.claim(tier, "orders")
            [attempt] = await stalled.prepare([10])
            await shredded(world)
            await then(world)
            before = set(world.objects)

            for _ in range(2):
                with pytest.raises(StreamDeleted):
                    await tier.offload(
                        ledger_of(10, first_offset=10), attempt, manifest=stalled.manifest, extra_metadata={}
                    )

            assert set(world.objects) == before
            await assert_no_key_is_left(world)

        run(scenario)

    @pytest.mark.parametrize("operation", ["list", "delete"])
    def test_a_key_that_could_not_be_taken_back_is_not_used(self, operation: str) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            tier = world.tier(world.ring(OWN))
            stalled = await StreamWriter.claim(tier, "orders")
            [attempt] = await stalled.prepare([10])
            await shredded(world)
            offload = partial(
                tier.offload,
                ledger_of(10, first_offset=10),
                attempt,
                manifest=stalled.manifest,
                extra_metadata={},
            )

            async def nothing(called: str, key: str) -> None:
                pass

            async def fail(called: str, key: str) -> None:
                if keys_of(world) and called == operation:
                    raise TryAgain("the store does not answer")

            world.store.before = fail
            with pytest.raises(TryAgain):
                await offload()
            world.store.before = nothing
            with pytest.raises(StreamDeleted):
                await offload()

            assert [
                name for name in world.objects if name.startswith("orders/data/0000000000000000001")
            ] == []
            await shredded(world)
            await assert_no_key_is_left(world)

        run(scenario)


class TestWhatEachSees:
    """Readers and writers that stand in a stream when it is shredded."""

    def test_a_reader_with_its_key_in_memory_reads_until_its_time_is_over(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            reader = await StreamReader.open(world.tier(world.ring(None)), "orders")
            assert [batch async for batch in reader.messages(0)]
            await shredded(world)

            assert sum([len(batch.bodies) async for batch in reader.messages(0)]) == 10
            world.clock.now = KEPT_SECONDS
            with pytest.raises(
                StreamDeleted, match=r"stream 'orders' of memory://.* was deleted; a sync begins"
            ):
                _ = [batch async for batch in reader.messages(0)]

        run(scenario)

    @pytest.mark.parametrize("label", [LABEL, OWN])
    def test_a_reader_without_the_key_learns_that_the_stream_was_deleted(self, label: str) -> None:
        async def scenario(_: World) -> None:
            world = await made(label)
            reader = await StreamReader.open(world.tier(world.ring(None)), "orders")
            await shredded(world)

            with pytest.raises(StreamDeleted, match=r"stream 'orders' of memory://.* was deleted"):
                _ = [batch async for batch in reader.messages(0)]
            await append(world.tier(world.ring(label)))
            with pytest.raises(StreamDeleted, match="was deleted, and begun again since"):
                _ = [batch async for batch in reader.messages(0)]

        run(scenario)

    def test_a_writer_with_its_key_in_memory_learns_it_by_its_next_commit(self) -> None:
        async def scenario(_: World) -> None:
            world = await made()
            writer = await StreamWriter.claim(world.tier(world.ring(None)), "orders")
            await writer.offload([ledger_of(5, first_offset=10)])
            await shredded(world)

            with pytest.raises(StreamDeleted, match="stream 'orders'"):
                await writer.offload([ledger_of(5, first_offset=15)])

        run(scenario)

    @pytest.mark.parametrize("is_empty", [False, True])
    @pytest.mark.parametrize("is_killed", [False, True])
    def test_a_writer_without_the_key_learns_it_before_it_uploads(
        self, is_empty: bool, is_killed: bool
    ) -> None:
        """If the stream is empty, only its key shows that it is encrypted. A killed shred leaves the key."""

        async def scenario(_: World) -> None:
            world = await made()
            if is_empty:
                await trim(world.tier(), "orders", Retention(before_offset=10))
            tier, ledger = world.tier(world.ring(None)), ledger_of(5, first_offset=10)
            writer = await StreamWriter.claim(tier, "orders")
            [attempt] = await writer.prepare([ledger.ledger_id])
            objects = {name: world.objects[name] for name in keys_of(world)} if is_killed else {}
            await shredded(world)
            world.objects.update(objects)
            data = world.data

            with pytest.raises(StreamDeleted, match=r"'orders' of memory://.* was deleted; a sync begins it"):
                await tier.offload(ledger, attempt, manifest=writer.manifest, extra_metadata={})
            assert world.data == data

        run(scenario)


def test_fragments_from_before_the_encryption_are_counted() -> None:
    async def scenario(_: World) -> None:
        world = await made(None)
        for _number in range(2):
            await append(world.tier())
        await append(world.tier(world.ring(OWN)))

        plan = await plan_shred(world.tier(), "orders", service=world.service)

        assert plan.plain_fragments == 3

    run(scenario)


def test_a_stream_whose_manifest_is_damaged_can_be_shredded() -> None:
    async def scenario(_: World) -> None:
        world = World()
        world.objects[TIER_ANCHOR] = TierAnchor(branching_factor=2).encode()
        for _number in range(3):
            await append(world.tier(world.ring(OWN)))
        for name in [name for name in world.objects if name.endswith(".group")]:
            del world.objects[name]

        plan = await plan_shred(world.tier(), "orders", service=world.service)
        [row] = await shred(world.tier(), plan, service=world.service)

        assert (plan.plain_fragments, row.fate, keys_of(world)) == (None, KeyFate.DESTROYED, [])

    run(scenario)
