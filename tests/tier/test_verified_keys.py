"""Tests of a verify of key objects: a key that is half lost is damage while it can still be cured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch
from uuid import UUID

import pytest
from campaign import few
from key_world import LABEL, Service, World, append, run

from offload import Retention, delete_stream, trim, verify
from offload.formats.anchor import KeyObject
from offload.formats.keys import StreamKeys
from offload.ground.errors import Corrupt, RootsLost, TryAgain
from offload.native.key_ring import KEPT_SECONDS
from offload.native.stream_key import StreamEncryption
from offload.store.faults import Fault, FaultyStore, Rule
from offload.upkeep.rotate import rotate
from offload.upkeep.sweep.tier import sweep
from offload.upkeep.verify.report import VerifyLevel, VerifyReport
from offload.upkeep.verify.tier import OBJECTS_AT_ONCE

KEYS: Final = StreamKeys("orders")
LOWER: Final = (VerifyLevel.MANIFEST, VerifyLevel.CHECKSUM)

each_level = pytest.mark.parametrize("level", VerifyLevel)


async def verified(
    world: World, level: VerifyLevel = VerifyLevel.BYTES, *, keys: bool = False, **options: Any
) -> VerifyReport:
    return await verify(world.tier(world.ring(None) if keys else None), level=level, **options)


def decoded(world: World, suffix: str = "") -> list[KeyObject]:
    return [KeyObject.decode(world.objects[key], where=key) for key in world.key_objects(suffix)]


def store_key(world: World, found: KeyObject, *suffixes: str, **changes: Any) -> list[str]:
    """Store a variant of a key object under the names that it belongs under."""
    made = replace(found, **changes)
    names = KEYS.key_objects(UUID(made.incarnation), UUID(made.uid), made.generation)
    stored = [name for name in names if not suffixes or name.endswith(suffixes)]
    world.objects.update(dict.fromkeys(stored, made.encode()))
    return stored


def assert_sound(report: VerifyReport) -> None:
    assert (report.damages, report.unreferenced) == ([], [])


def damage_of(report: VerifyReport) -> Corrupt:
    [damage] = report.damages
    return damage


def refusal_of(report: VerifyReport) -> str:
    assert report.damages == []
    [row] = report.unchecked.values()
    return row.reason


def reason_of(report: VerifyReport) -> str:
    assert report.damages == []
    [reason] = {each.reason for each in report.unreferenced}
    return reason


@each_level
@pytest.mark.parametrize("keys", [False, True])
def test_the_keys_of_a_sound_stream_are_counted_and_explained_no_more(
    level: VerifyLevel, *, keys: bool
) -> None:
    async def scenario(world: World) -> None:
        await append(world.tier())
        plain = (await verified(world, level)).objects
        await append(world.tier(world.ring()), stream="orders")
        encrypted = await verified(world, level, keys=keys)

        assert_sound(encrypted)
        # One more fragment, and the copies. Superseded roots count at the level `bytes` only.
        more = 3 if level is not VerifyLevel.BYTES else 3 + 3
        assert encrypted.objects == plain + more
        assert world.service.calls.count("unwrap") == 1 + keys * (1 + (level is VerifyLevel.BYTES))

    run(scenario)


@each_level
def test_a_lost_object_is_damage_with_the_command_that_makes_it_anew(level: VerifyLevel) -> None:
    async def scenario(world: World) -> None:
        await append(world.tier(world.ring()))
        world.lose(".key")
        [copy] = world.key_objects()

        damage = damage_of(await verified(world, level))

        assert (damage.where, damage.stream) == (copy, "orders")
        assert damage.expected == copy.replace(".copy", ".key")
        command = f"offload rotate {world.store.url} --stream orders --encrypt {LABEL} --keys URL"
        assert str(damage).endswith(f"found nothing; to write both copies again, run: {command}")
        [done] = [each async for each in rotate(world.tier(), LABEL, service=world.service)]
        assert done.error is None
        assert_sound(await verified(world, level))

    run(scenario)


@each_level
def test_a_lost_copy_is_damage(level: VerifyLevel) -> None:
    async def scenario(world: World) -> None:
        await append(world.tier(world.ring()))
        world.lose(".copy")

        damage = damage_of(await verified(world, level))

        assert damage.where == world.key_objects()[0]
        assert str(damage.expected).endswith(".copy")
        assert "found nothing; to write both copies again" in str(damage)

    run(scenario)


@each_level
def test_copies_that_differ_are_damage(level: VerifyLevel) -> None:
    async def scenario(world: World) -> None:
        await append(world.tier(world.ring()))
        [found] = decoded(world, ".copy")
        store_key(world, found, ".copy", wrapped="d3JhcHBlZA==")

        damage = damage_of(await verified(world, level))

        copy, key = world.key_objects()
        assert damage.where == key
        assert f"expected the bytes of {copy}, found others; to write both copies again" in str(damage)

    run(scenario)


@each_level
@pytest.mark.parametrize("suffix", [".key", ".copy"])
def test_a_damaged_object_is_damage_and_its_twin_is_not(level: VerifyLevel, suffix: str) -> None:
    async def scenario(world: World) -> None:
        await append(world.tier(world.ring()))
        world.damage(suffix)

        damage = damage_of(await verified(world, level, keys=True))

        assert damage.where.endswith(suffix)
        assert f"run: offload rotate {world.store.url} --stream orders --encrypt {LABEL} " in str(damage)

    run(scenario)


@pytest.mark.parametrize(("keys", "label"), [(True, LABEL), (False, "LABEL")])
def test_no_command_is_printed_that_gives_the_key_to_a_forged_label(*, keys: bool, label: str) -> None:
    """Whoever writes to the bucket would have the operator wrap the key by a master key of their choice."""

    async def scenario(world: World) -> None:
        await append(world.tier(world.ring()))
        [found] = decoded(world, ".key")
        store_key(world, found, ".key", label="other")

        report = await verified(world, keys=keys)

        assert str(damage_of(report)).endswith(f" --encrypt {label} --keys URL")
        assert report.unchecked == {}

    run(scenario, service=Service(LABEL, "other"))


def test_an_object_under_the_name_of_another_is_damage() -> None:
    async def scenario(world: World) -> None:
        await append(world.tier(world.ring()))
        await append(world.tier(world.ring()), stream="other")
        mine, theirs = world.key_objects(".key")
        world.objects[mine] = world.objects[theirs]

        assert damage_of(await verified(world)).where == mine

    run(scenario)


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("harm", [World.lose, World.damage])
def test_fragments_whose_key_is_lost_are_damage(harm: Callable[[World], None], *, keys: bool) -> None:
    async def scenario(world: World) -> None:
        for _ in range(2):
            await append(world.tier(world.ring()))
        [uid] = {each.uid for each in decoded(world)}
        harm(world)

        report = await verified(world, keys=keys)

        fragments = [damage for damage in report.damages if damage.where.endswith(".fragment")]
        assert [damage.where for damage in fragments] == sorted(world.data)
        assert all(f"key {uid} is lost" in str(damage) for damage in fragments)
        assert len(report.damages) == 2 + len(world.key_objects())

    run(scenario)


def test_a_lost_key_is_no_damage_of_fragments_that_nothing_names() -> None:
    async def scenario(world: World) -> None:
        tier = world.tier(world.ring())
        await append(tier)
        await append(tier)
        await trim(tier, "orders", Retention(before_offset=10))
        world.lose()

        report = await verified(world)

        assert damage_of(report).where == sorted(world.data)[1]

    run(scenario)


def test_a_key_proves_that_the_roots_of_its_life_are_lost() -> None:
    """The stream was begun again. Of the new life, a lagging replica has the key alone."""

    async def scenario(world: World) -> None:
        tier = world.tier(world.ring())
        await append(tier)
        await delete_stream(tier, "orders")
        before = set(world.objects)
        await append(tier)
        keys = set(world.key_objects()) - before
        for key in world.objects.keys() - before - keys:
            del world.objects[key]

        report = await verified(world)
        [error] = (await sweep(world.store, grace_seconds=0)).errors

        assert {damage.where for damage in report.damages} == keys
        assert isinstance(error, RootsLost)
        assert keys <= set(world.key_objects())

    run(scenario)


@each_level
def test_keys_of_a_deleted_life_are_explained(level: VerifyLevel) -> None:
    async def scenario(world: World) -> None:
        tier = world.tier(world.ring())
        await append(tier)
        await delete_stream(tier, "orders")
        await append(tier)
        await delete_stream(tier, "orders")
        report = await verified(world, level, keys=True)

        reasons = [each.reason for each in report.unreferenced if "/keys/" in each.key]
        assert report.damages == []
        assert reasons == ["left by a deleted life of the stream; a sweep deletes it"] * 4

        await append(tier)
        report = await verified(world, level)
        assert [each.reason for each in report.unreferenced if "/keys/" in each.key] == reasons

        await sweep(world.store, grace_seconds=0)
        assert_sound(await verified(world, level, keys=True))

    run(scenario)


def test_a_key_with_its_own_master_key_names_the_command_that_destroys_it() -> None:
    async def scenario(world: World) -> None:
        tier = world.tier(world.ring(f"own:{LABEL}"))
        await append(tier)
        await delete_stream(tier, "orders")
        await sweep(world.store, grace_seconds=0)

        report = await verified(world)

        assert len(world.key_objects()) == 2
        label = decoded(world)[0].label
        assert f"whose own master key '{label}' still exists; `offload shred` destroys both" in reason_of(
            report
        )

    run(scenario)


@each_level
@pytest.mark.parametrize("newer", [(), (".copy",)], ids=["whole", "begun"])
def test_an_unfinished_rotation_is_explained(level: VerifyLevel, newer: tuple[str, ...]) -> None:
    async def scenario(world: World) -> None:
        await append(world.tier(world.ring()))
        [found] = decoded(world, ".key")
        begun = store_key(world, found, *newer, generation=2)
        older = KEYS.key_objects(UUID(found.incarnation), UUID(found.uid), 1)

        report = await verified(world, level, keys=True)

        assert "a rotation of this key is under way, or did not finish" in reason_of(report)
        assert sorted(each.key for each in report.unreferenced) == sorted(begun if newer else older)

        del world.objects[older[0]]
        report = await verified(world, level)
        if newer:  # nothing is whole any more
            assert [damage.where for damage in report.damages] == [older[1], *begun]
        else:
            assert [each.key for each in report.unreferenced] == [older[1]]

    run(scenario)


class TestHalfMadeKeys:
    """A crash between the two copies leaves a key that no fragment needs."""

    @each_level
    def test_a_crash_while_a_stream_gets_its_first_key_is_no_damage(self, level: VerifyLevel) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier())
            world.store.rules = [Rule(Fault.FAIL_BEFORE, "create", "*.key")]
            with pytest.raises(TryAgain):
                await append(world.tier(world.ring()))
            world.store.rules = []

            assert "a key that no fragment needs" in _keys_of(await verified(world, level))

            await append(world.tier(world.ring()))
            reason = _keys_of(await verified(world, level))
            told = "no fragment needs" if level is VerifyLevel.BYTES else "--level bytes` finds out"
            assert told in reason

        run(scenario)

    def test_the_only_copy_of_a_key_that_older_fragments_need_is_damage(self) -> None:
        """The newest fragment is under another key, which a writer made when it found the first half lost."""

        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            [first] = decoded(world, ".key")
            world.lose(".key")
            await append(world.tier(world.ring()))

            assert first.uid in damage_of(await verified(world)).where
            for level in LOWER:
                assert "--level bytes` finds out" in _keys_of(await verified(world, level))

        run(scenario)

    @each_level
    def test_an_object_without_its_copy_is_damage_even_if_another_key_is_newer(
        self, level: VerifyLevel
    ) -> None:
        """The copy is made first, so no crash leaves the object alone."""

        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            world.lose(".copy")
            [lone] = world.key_objects()
            await append(world.tier(world.ring()))

            assert damage_of(await verified(world, level)).where == lone

        run(scenario)


def _keys_of(report: VerifyReport) -> str:
    assert report.damages == []
    [reason] = {each.reason for each in report.unreferenced if "/keys/" in each.key}
    return reason


class TestKeyServices:
    """What a verify says of the key service."""

    @each_level
    def test_a_refused_key_is_no_damage_and_is_reported_once(self, level: VerifyLevel) -> None:
        async def scenario(world: World) -> None:
            for _ in range(3):
                await append(world.tier(world.ring()))
            await append(world.tier(world.ring()), stream="other")
            world.service.masters.clear()
            world.service.calls.clear()

            report = await verified(world, level, keys=True)

            assert report.damages == []
            assert [*report.unchecked] == world.key_objects(".key")
            assert {row.stream for row in report.unchecked.values()} == {"orders", "other"}
            assert all("the key service has no key" in row.reason for row in report.unchecked.values())
            assert report.not_opened == (4 if level is VerifyLevel.BYTES else 0)
            assert world.service.calls == ["unwrap"] * 2

        run(scenario)

    @pytest.mark.parametrize("loss", [False, True])
    def test_a_key_that_is_lost_or_refused_in_the_middle_of_a_verify_is_reported(self, *, loss: bool) -> None:
        """A verify of a large tier asks again for a key whose time in memory is over."""

        async def scenario(world: World) -> None:
            for _ in range(OBJECTS_AT_ONCE + 1):
                await append(world.tier(world.ring()))
            last = world.data[-1]

            async def end(operation: str, key: str) -> None:
                if (operation, key) == ("get", last):
                    world.clock.now = KEPT_SECONDS
                    if loss:
                        world.lose()
                    else:
                        world.service.masters.clear()

            world.store.before = end
            report = await verified(world, keys=True)
            damages = {damage.where: str(damage) for damage in report.damages}

            if loss:
                assert "is lost" in damages[last]
            else:
                assert damages == {}
                [row] = report.unchecked.values()
                assert "has no key" in row.reason
                assert report.not_opened == 1

        run(scenario)

    def test_the_only_copy_of_a_key_is_asked_of_the_service_too(self) -> None:
        """Somebody has put a plain fragment behind the encrypted one, so the key seems to be unused."""

        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            [key] = decoded(world, ".key")
            world.lose(".key")
            with patch.object(StreamEncryption, "_is_encrypted", return_value=False):
                await append(world.tier())
            store_key(world, key, ".copy", label="other")

            assert "did not wrap this key" in refusal_of(await verified(world, keys=True))

        run(scenario, service=Service(LABEL, "other"))

    def test_a_service_that_is_down_ends_the_verify_and_is_no_damage(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            world.service.is_down = True

            with pytest.raises(TryAgain):
                await verified(world, keys=True)
            assert_sound(await verified(world))

        run(scenario)

    def test_a_key_object_that_was_rewritten_is_found_by_the_service(self) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier(world.ring()))
            for found in decoded(world, ".key"):
                store_key(world, found, label="other")

            assert_sound(await verified(world))
            assert "did not wrap this key" in refusal_of(await verified(world, keys=True))

        run(scenario, service=Service(LABEL, "other"))


async def first_sync(world: World) -> None:
    await append(world.tier(world.ring()))


async def rotation(world: World) -> None:
    async for done in rotate(world.tier(), "other", service=world.service):
        assert done.error is None


async def end_of_the_stream(world: World) -> None:
    await delete_stream(world.tier(), "orders")
    await sweep(world.store, grace_seconds=0)


async def new_life(world: World) -> None:
    await end_of_the_stream(world)
    await append(world.tier(world.ring("other")))


class TestBesideOthers:
    """Another process stands at each of its requests in turn, or does all of its work between two of ours."""

    @few("processes beside a verify of keys; make test has three of eight", 3)
    @pytest.mark.parametrize("keys", [False, True])
    @pytest.mark.parametrize("other", [first_sync, rotation, end_of_the_stream, new_life])
    def test_a_verify_beside_another_process_reports_no_damage(
        self, other: Callable[[World], Awaitable[None]], *, keys: bool
    ) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier())
            if other is not first_sync:
                await append(world.tier(world.ring()))
            stores = [_sharing(world) for _ in range(2)]

            async def verify_beside(operation: str, key: str) -> None:
                for level in (VerifyLevel.BYTES, VerifyLevel.MANIFEST):
                    assert (await verified(stores[1], level, keys=keys)).damages == []

            stores[0].store.before = verify_beside
            await other(stores[0])

        run(scenario, service=Service(LABEL, "other"))

    @few("processes in the middle of a verify of keys; make test has three of twelve", 5)
    @each_level
    @pytest.mark.parametrize("other", [first_sync, rotation, end_of_the_stream, new_life])
    def test_another_process_in_the_middle_of_a_verify_causes_no_damage(
        self, other: Callable[[World], Awaitable[None]], level: VerifyLevel
    ) -> None:
        async def scenario(world: World) -> None:
            await append(world.tier())
            if other is not first_sync:
                await append(world.tier(world.ring()))
            before, requests, at = dict(world.objects), 1, 0
            while at <= requests:
                at += 1
                world.objects.clear()
                world.objects.update(before)
                mine, theirs = _sharing(world), _sharing(world)

                mine.store.before = partial(_work, other, mine, theirs, at)
                assert (await verified(mine, level, keys=True)).damages == []
                requests = len(mine.store.calls)

        run(scenario, service=Service(LABEL, "other"))


async def _work(
    other: Callable[[World], Awaitable[None]], mine: World, theirs: World, at: int, operation: str, key: str
) -> None:
    """Do all of the other's work before request number `at` of ours. It takes longer than keys are kept."""
    if len(mine.store.calls) == at:
        await other(theirs)
        mine.clock.now += KEPT_SECONDS


def _sharing(world: World) -> World:
    """Return the world of another process on the same store."""
    return replace(world, store=FaultyStore(world.store.inner))
