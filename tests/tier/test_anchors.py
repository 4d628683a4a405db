"""Tests of lost anchors: objects, the other store or the operator provide the data to restore them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from offload_conformance.ledgers import ledger_of
from split_tier import ROOTS, split_tier

from offload import ObjectStoreOffloader, StreamWriter
from offload.formats.anchor import StreamAnchor, TierAnchor
from offload.formats.keys import TIER_ANCHOR, StreamKeys
from offload.ground.errors import Corrupt, Misuse, NotOffloaded
from offload.native.lost_anchors import NO_COMMIT_STORE
from offload.native.place import TierPlan
from offload.store.hashed import folder_of
from offload.store.memory import MemoryStore
from offload.upkeep.rebuild.stream import rebuild

Objects = dict[str, bytes]
KEYS = StreamKeys("a")
"""A stream name that is also the name of a folder of hashed keys."""


def plain(objects: Objects, plan: TierPlan) -> ObjectStoreOffloader:
    return ObjectStoreOffloader(MemoryStore(objects=objects), plan=plan)


async def fill(tier: ObjectStoreOffloader) -> None:
    writer = await StreamWriter.claim(tier, "a")
    await writer.offload([ledger_of(10)])


def restored(tier: ObjectStoreOffloader) -> TierAnchor | None:
    return asyncio.run(tier.restore_anchor())


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_the_anchor_of_a_tier_is_restored_as_it_was(hashed: bool, damaged: bool) -> None:
    objects: Objects = {}
    asyncio.run(fill(plain(objects, TierPlan(hashed_keys=hashed))))
    before = objects.pop(TIER_ANCHOR)
    if damaged:
        objects[TIER_ANCHOR] = before[:-3]

    restored(plain(objects, TierPlan()))

    assert objects[TIER_ANCHOR] == before
    assert restored(plain(objects, TierPlan())) is None, "nothing is lost"


def test_the_operator_names_the_commit_store_if_no_root_is_left() -> None:
    objects: Objects = {}
    asyncio.run(fill(plain(objects, TierPlan())))
    before = objects[TIER_ANCHOR]
    for key in [key for key in objects if not key.startswith(KEYS.data)]:
        del objects[key]

    with pytest.raises(Misuse, match="--commit-store URL"):
        restored(plain(objects, TierPlan()))
    assert TIER_ANCHOR not in objects

    restored(plain(objects, TierPlan(commit_store=NO_COMMIT_STORE)))

    assert objects[TIER_ANCHOR] == before


def test_a_folder_of_foreign_files_gets_no_anchor() -> None:
    objects: Objects = {"a/b": b""}

    with pytest.raises(NotOffloaded, match="no objects of a tier"):
        restored(plain(objects, TierPlan()))

    assert list(objects) == ["a/b"]


@pytest.mark.parametrize("lost", ["data", "commits", "both"])
def test_a_tier_with_a_commit_store_gets_its_anchors_back(lost: str) -> None:
    data: Objects = {}
    roots: Objects = {}
    asyncio.run(fill(split_tier(data, roots)))
    before = data[TIER_ANCHOR]
    for side in {"data": [data], "commits": [roots], "both": [data, roots]}[lost]:
        del side[TIER_ANCHOR]

    restored(split_tier(data, roots, plan=TierPlan(commit_store=ROOTS)))

    assert data[TIER_ANCHOR] == roots[TIER_ANCHOR]
    assert data[TIER_ANCHOR] == before or lost == "both"
    assert asyncio.run(split_tier(data, roots).load_manifest("a")).next_offset == 10


def test_the_commit_store_of_another_tier_is_refused() -> None:
    data: Objects = {}
    roots: Objects = {}
    asyncio.run(fill(split_tier(data, roots)))
    theirs = TierAnchor(commit_store=ROOTS, data_store="memory://theirs", uid="1").encode()
    roots[TIER_ANCHOR] = theirs
    del data[TIER_ANCHOR]

    with pytest.raises(Misuse, match="is not the commit store of"):
        restored(split_tier(data, roots, plan=TierPlan(commit_store=ROOTS)))

    assert (TIER_ANCHOR in data, roots[TIER_ANCHOR]) == (False, theirs)


def test_a_commit_store_of_a_tier_that_was_made_again_is_refused() -> None:
    """Both anchors name both stores, and differ only in their uids."""
    data: Objects = {}
    roots: Objects = {}
    asyncio.run(fill(split_tier(data, roots)))
    roots[TIER_ANCHOR] = replace(TierAnchor.decode(roots[TIER_ANCHOR], where=""), uid="other").encode()
    before = dict(data), dict(roots)

    with pytest.raises(Misuse, match="the anchors differ"):
        restored(split_tier(data, roots, plan=TierPlan(commit_store=ROOTS)))

    assert (data, roots) == before


def test_a_store_that_holds_data_is_refused_as_commit_store() -> None:
    data: Objects = {}
    roots: Objects = {"somebody/else": b""}
    asyncio.run(fill(split_tier(data, roots)))
    del roots[TIER_ANCHOR]

    with pytest.raises(Misuse, match="is no commit store: it holds 'somebody/else'"):
        restored(split_tier(data, roots, plan=TierPlan(commit_store=ROOTS)))


@pytest.mark.parametrize("raw", [None, b"ledger"], ids=["lost", "damaged"])
def test_the_anchor_of_a_stream_is_restored_beside_a_sound_manifest(raw: bytes | None) -> None:
    objects: Objects = {}
    asyncio.run(fill(plain(objects, TierPlan())))
    before, newest = dict(objects), objects.pop(KEYS.anchor)
    if raw is not None:
        objects[KEYS.anchor] = raw

    report = asyncio.run(rebuild(plain(objects, TierPlan()), "a"))

    assert report.anchor_restored
    assert not report.as_json()["committed"]
    assert objects == before
    assert newest == StreamAnchor(stream="a").encode()


def test_an_anchor_of_another_stream_is_left_alone() -> None:
    objects: Objects = {}
    asyncio.run(fill(plain(objects, TierPlan())))
    objects[KEYS.anchor] = theirs = StreamAnchor(stream="b").encode()

    with pytest.raises(Corrupt, match="anchor"):
        asyncio.run(rebuild(plain(objects, TierPlan()), "a"))

    assert objects[KEYS.anchor] == theirs


def test_a_copy_of_a_tier_among_foreign_files_gets_no_anchor() -> None:
    """If the folder were the stream's, the keys would be hashed."""
    tier: Objects = {}
    asyncio.run(fill(plain(tier, TierPlan())))
    stranger = next(folder for folder in "0123456789abcdef" if folder != folder_of("a"))
    objects = {f"{stranger}/{key}": raw for key, raw in tier.items()}

    with pytest.raises(NotOffloaded, match="no objects of a tier"):
        restored(plain(objects, TierPlan()))
