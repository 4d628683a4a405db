"""Tests of a rebuild beside key objects: it makes no key, needs none, and says which are lost."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from key_world import World, append, read, run

from offload import Retention, delete_stream, trim
from offload.formats.anchor import KeyObject
from offload.formats.keys import StreamKeys
from offload.ground.errors import Denied
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.sweep.tier import sweep

KEYS = StreamKeys("orders")


def lose_roots(world: World) -> None:
    for key in [key for key in world.objects if key.startswith(KEYS.roots)]:
        del world.objects[key]


def test_a_rebuild_asks_no_key_service_and_leaves_the_keys_as_they_are() -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await append(world.tier(world.ring()))
        lose_roots(world)
        before = {key: world.objects[key] for key in world.key_objects()}
        world.service.calls.clear()

        report = await rebuild(world.tier(), "orders")

        assert (report.manifest is not None, dict(report.lost_keys)) == (True, {})
        assert {key: world.objects[key] for key in world.key_objects()} == before
        assert world.service.calls == []
        await sweep(world.store, grace_seconds=0)
        assert await read(world.tier(world.ring(None))) == 30

    run(scenario)


def test_a_rebuild_brings_back_a_deleted_life_with_its_keys() -> None:
    """A sweep that noted them while the stream was deleted does not delete them afterwards."""

    async def scenario(world: World) -> None:
        tier = world.tier(world.ring())
        await append(tier)
        life = (await tier.load_manifest("orders")).incarnation
        await delete_stream(tier, "orders")
        await append(tier, 5)
        await delete_stream(tier, "orders")
        await sweep(world.store)

        report = await rebuild(world.tier(), "orders", incarnation=life)
        await sweep(world.store, grace_seconds=0)

        assert report.incarnation == life
        assert {KEYS.parse_key_object(key)[0] for key in world.key_objects()} == {life}  # type: ignore[index]
        assert await read(world.tier(world.ring(None))) == 10

    run(scenario)


@pytest.mark.parametrize("suffix", ["", ".key"])
def test_a_rebuild_names_the_keys_that_are_lost_and_rebuilds_nevertheless(suffix: str) -> None:
    async def scenario(world: World) -> None:
        for _ in range(2):
            await append(world.tier(world.ring()))
        [uid] = {KeyObject.decode(world.objects[key], where=key).uid for key in world.key_objects()}
        world.lose(suffix)
        lose_roots(world)

        looked = await rebuild(world.tier(), "orders", dry_run=True)
        report = await rebuild(world.tier(), "orders")

        lost = {} if suffix else {UUID(uid): 2}
        assert (looked.lost_keys, report.lost_keys) == (lost, lost)
        assert report.is_complete
        rows = [] if suffix else [{"key": uid, "fragments": 2}]
        assert json.loads(json.dumps(report.as_json()))["lost_keys"] == rows

    run(scenario)


def test_a_fence_is_above_the_roots_that_key_objects_mention() -> None:
    """Of the newest life, only the key is left. It proves nothing any more once the stream is rebuilt."""

    async def scenario(world: World) -> None:
        tier = world.tier(world.ring())
        await append(tier)
        [first, _] = world.key_objects()
        found = KeyObject.decode(world.objects[first], where=first)
        life, uid = UUID(int=7), UUID(int=8)
        far = KeyObject(
            **{name: getattr(found, name) for name in ("stream", "generation", "label", "own", "wrapped")},
            base_version=2**40,
            incarnation=str(life),
            uid=str(uid),
        )
        world.objects[KEYS.key_objects(life, uid, 1)[0]] = far.encode()
        lose_roots(world)

        await rebuild(world.tier(), "orders")
        report = await sweep(world.store, grace_seconds=0)

        assert report.errors == []
        assert len(world.key_objects()) == 2
        assert await read(world.tier(world.ring(None))) == 10

    run(scenario)


def test_trim_delete_and_sweep_need_no_keys() -> None:
    async def scenario(world: World) -> None:
        for _ in range(3):
            await append(world.tier(world.ring()))
        world.service.calls.clear()
        world.lose()  # not even the key objects

        await trim(world.tier(), "orders", Retention(before_offset=10))
        await sweep(world.store, grace_seconds=0)
        with pytest.raises(Denied, match="both copies of its key"):
            await read(world.tier(world.ring(None)))
        await delete_stream(world.tier(), "orders")
        await sweep(world.store, grace_seconds=0)

        assert (world.data, world.service.calls) == ([], [])

    run(scenario)
