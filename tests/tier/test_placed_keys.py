"""Tests of key objects on tiers with hashed keys or a commit store: upkeep finds them there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from key_world import LABEL, World, append, read, run

from offload import ObjectStoreOffloader, delete_stream, verify
from offload.formats.anchor import TierAnchor
from offload.native.key_ring import KeyRing
from offload.native.place import TierPlan
from offload.store.memory import MemoryStore
from offload.upkeep.rebuild.stream import rebuild
from offload.upkeep.rotate import rotate
from offload.upkeep.sweep.tier import sweep

PLANS = {
    "hashed": TierPlan(hashed_keys=True),
    "split": TierPlan(commit_store="memory://roots"),
    "both": TierPlan(hashed_keys=True, commit_store="memory://roots"),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_upkeep_finds_the_keys_of_an_arranged_tier(plan: TierPlan) -> None:
    async def scenario(world: World) -> None:
        roots = MemoryStore(name="roots")
        stores = (world.objects, roots.objects)

        def tier(ring: KeyRing | None = None) -> ObjectStoreOffloader:
            return ObjectStoreOffloader(world.store, ring=ring, plan=plan, open_store=lambda url: roots)

        def found() -> list[str]:
            return [key for objects in stores for key in objects if "/keys/" in key]

        def lose(is_lost: Callable[[str], bool]) -> None:
            for objects in stores:
                for key in [key for key in objects if is_lost(key)]:
                    del objects[key]

        for _ in range(2):
            await append(tier(world.ring()))
        for ring in (None, world.ring(None)):
            report = await verify(tier(ring))
            assert (report.damages, report.unreferenced) == ([], [])

        lose(lambda key: key.endswith(".key"))
        assert len((await verify(tier())).damages) == 1
        async for done in rotate(tier(), LABEL, service=world.service):
            assert done.rotated == 1
        assert (await verify(tier())).damages == []

        lose(lambda key: "/metadata/root." in key)
        assert (await rebuild(tier(), "orders")).lost_keys == {}
        assert await read(tier(world.ring(None))) == 20

        await delete_stream(tier(), "orders")
        assert len(found()) == 2
        await sweep(tier(), grace_seconds=0)
        assert found() == []

    run(scenario)


@pytest.mark.parametrize("hashed", [False, True])
def test_a_key_object_shows_where_the_roots_of_a_tier_were(*, hashed: bool) -> None:
    """Roots and anchors are lost. A commit store would hold the key objects, and they are beside the data."""

    async def scenario(world: World) -> None:
        plan = TierPlan(hashed_keys=hashed)
        await append(ObjectStoreOffloader(world.store, ring=world.ring(), plan=plan))
        for key in [key for key in world.objects if key.endswith("anchor") or "/metadata/" in key]:
            del world.objects[key]

        assert await world.tier().restore_anchor() == TierAnchor(hashed_keys=hashed)
        await rebuild(world.tier(), "orders")

        assert await read(world.tier(world.ring(None))) == 10

    run(scenario)
