"""Tests of anchors whose create or reply was lost: the request is repeated, and the run continues."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from split_tier import split_tier

from offload import ObjectStoreOffloader, StreamWriter
from offload.formats.keys import TIER_ANCHOR
from offload.ground.env import Env
from offload.ground.errors import OutcomeUnknown
from offload.native.anchors import CREATES_MAX
from offload.store.faults import Fault, FaultyStore, Rule
from offload.store.memory import MemoryStore
from offload.upkeep.rebuild.stream import rebuild

STREAM_ANCHOR = "orders/stream.anchor"


async def no_sleep(_: float) -> None:
    await asyncio.sleep(0)


def begun(rules: Sequence[Rule]) -> FaultyStore:
    """Make a place a tier with one stream, under these faults, and return its store."""
    store = FaultyStore(MemoryStore(), rules=rules)
    tier = ObjectStoreOffloader(store, env=Env(sleep=no_sleep))
    asyncio.run(StreamWriter.claim(tier, "orders"))
    assert asyncio.run(ObjectStoreOffloader(store.inner).streams()) == ["orders"]
    return store


@pytest.mark.parametrize("anchor", [TIER_ANCHOR, STREAM_ANCHOR])
@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.FAIL_BEFORE, Fault.DELAY])
def test_a_lost_create_of_an_anchor_is_sent_again(fault: Fault, anchor: str) -> None:
    store = begun([Rule(fault, "create", anchor, nth=1)])

    assert [call.key for call in store.calls if call.operation == "create"].count(anchor) == 2
    assert asyncio.run(store.land()) == 0


@pytest.mark.parametrize("anchor", [TIER_ANCHOR, STREAM_ANCHOR])
@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.DELAY])
def test_a_store_that_never_answers_gets_a_limited_number_of_creates(fault: Fault, anchor: str) -> None:
    rule = Rule(fault, "create", anchor)

    with pytest.raises(OutcomeUnknown):
        begun([rule])

    assert rule.matched == CREATES_MAX


def test_a_lost_reply_of_a_commit_store_s_anchor_leaves_one_tier() -> None:
    """The created anchor is read back with its own uid, and is on both stores."""
    data: dict[str, bytes] = {}
    roots: dict[str, bytes] = {}
    tier = split_tier(data, roots)
    opened = tier._place.open_store
    rules = [Rule(Fault.LOSE_REPLY, "create", TIER_ANCHOR, nth=1)]
    tier._place.open_store = lambda url: FaultyStore(opened(url), rules=rules)

    asyncio.run(StreamWriter.claim(tier, "orders"))

    assert rules[0].matched >= 1
    assert data[TIER_ANCHOR] == roots[TIER_ANCHOR]


def test_a_rebuild_survives_a_lost_reply_to_the_anchor() -> None:
    from offload_conformance.ledgers import ledger_of

    async def main() -> None:
        memory = MemoryStore()
        writer = await StreamWriter.claim(ObjectStoreOffloader(memory), "orders")
        await writer.offload([ledger_of(4)])
        for key in [key for key in memory.objects if "/metadata/" in key or key == STREAM_ANCHOR]:
            del memory.objects[key]
        store = FaultyStore(memory, rules=[Rule(Fault.LOSE_REPLY, "create", STREAM_ANCHOR, nth=1)])

        report = await rebuild(ObjectStoreOffloader(store), "orders", env=Env(sleep=no_sleep))

        assert report.manifest is not None
        assert (await ObjectStoreOffloader(memory).load_manifest("orders")).next_offset == 4

    asyncio.run(main())
