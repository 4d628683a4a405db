"""Tests of the deletion of an attempt that is not garbage, or may not be."""

from __future__ import annotations

import pytest
from key_world import World, fence, run
from offload_conformance import ledger_of

from offload import ObjectStoreOffloader, StreamWriter, TierOptions
from offload.formats.keys import StreamKeys
from offload.ground.errors import Conflict
from offload.model.attempt import Attempt
from offload.store.faults import FaultyStore
from offload.upkeep.retention import Retention, trim

SMALL = TierOptions(fragment_size_bytes=1)
"""Each chunk is a fragment."""


async def committed(tier: ObjectStoreOffloader) -> Attempt:
    """Begin the stream `orders` with one attempt of several fragments, and return the attempt."""
    writer = await StreamWriter.claim(tier, "orders")
    (attempt,) = await writer.prepare([0])
    receipt = await tier.offload(ledger_of(3), attempt, manifest=writer.manifest, extra_metadata={})
    assert len(receipt.entries) > 1
    await writer.append([receipt])
    return attempt


def test_an_attempt_of_which_only_the_last_fragment_is_named_is_not_deleted() -> None:
    async def scenario(world: World) -> None:
        tier = ObjectStoreOffloader(world.store, options=SMALL)
        attempt = await committed(tier)
        manifest = await tier.load_manifest("orders")
        await trim(tier, "orders", Retention(before_offset=manifest.next_offset - 1))
        assert (await tier.load_manifest("orders")).fragments == 1
        before = dict(world.objects)

        with pytest.raises(Conflict, match="still names attempt"):
            await tier.delete_offloaded(attempt)

        assert world.objects == before

    run(scenario)


def test_an_attempt_is_not_deleted_if_a_rebuild_begins_meanwhile() -> None:
    """Its fence may name nothing yet, and the rebuild may bring the fragments back."""

    async def scenario(world: World) -> None:
        async def rebuild(operation: str, key: str) -> None:
            if (operation, key) == ("list", StreamKeys("orders").data):
                await fence(world)

        attempt = await committed(ObjectStoreOffloader(world.store, options=SMALL))
        tier = ObjectStoreOffloader(FaultyStore(world.store.inner, before=rebuild))

        with pytest.raises(Conflict, match="is being rebuilt"):
            await tier.delete_offloaded(attempt)

        assert len([key for key in world.objects if key.endswith(".fragment")]) > 1

    run(scenario)
