"""Tests of the tier's default compression: a tier is made with it, and a writer may name another one."""

from __future__ import annotations

import asyncio

import pytest
from offload_conformance.ledgers import ledger_of
from split_tier import ROOTS, split_tier

from offload import ObjectStoreOffloader, StreamWriter, TierOptions
from offload.formats.anchor import TierAnchor
from offload.formats.keys import TIER_ANCHOR
from offload.model.compression import BlockCodec, Compression
from offload.native.lost_anchors import NO_COMMIT_STORE
from offload.native.place import TierPlan
from offload.store.memory import MemoryStore

Objects = dict[str, bytes]
ZSTD = Compression.parse("zstd:3")
LZ4 = Compression.parse("lz4")
NONE = Compression.parse("none")


def opened(
    objects: Objects, *, planned: Compression | None = None, asked: Compression | None = None
) -> ObjectStoreOffloader:
    return ObjectStoreOffloader(
        MemoryStore(objects=objects),
        options=TierOptions(compression=asked),
        plan=TierPlan(compression=planned),
    )


def appended(tier: ObjectStoreOffloader, *, records: int = 200) -> int:
    """Append a ledger to the stream `a`, and return the codec of its fragment."""

    async def main() -> int:
        writer = await StreamWriter.claim(tier, "a")
        ledger = ledger_of(records, first_offset=writer.manifest.next_offset, body_size_bytes=200)
        await writer.offload([ledger])
        return int(writer.manifest.entries["codec"][-1])

    return asyncio.run(main())


def anchor_of(objects: Objects) -> TierAnchor:
    return TierAnchor.decode(objects[TIER_ANCHOR], where="here")


@pytest.mark.parametrize(("planned", "text"), [(ZSTD, "zstd:3"), (LZ4, "lz4"), (NONE, ""), (None, "")])
def test_a_new_tier_records_the_compression_it_was_made_with(planned: Compression | None, text: str) -> None:
    objects: Objects = {}

    codec = appended(opened(objects, planned=planned))

    assert anchor_of(objects) == TierAnchor(compression=text)
    assert codec == (planned or NONE).codec


@pytest.mark.parametrize("asked", [LZ4, NONE])
def test_a_writer_that_names_a_compression_overrides_the_default_for_itself(asked: Compression) -> None:
    objects: Objects = {}
    appended(opened(objects, planned=ZSTD))

    of_asked = appended(opened(objects, asked=asked))

    assert of_asked == asked.codec
    assert appended(opened(objects)) == BlockCodec.ZSTD


def test_an_existing_tier_keeps_its_anchor_whatever_a_later_plan_says() -> None:
    objects: Objects = {}
    appended(opened(objects))
    before = objects[TIER_ANCHOR]

    codec = appended(opened(objects, planned=ZSTD))

    assert objects[TIER_ANCHOR] == before
    assert codec == BlockCodec.NONE


def test_both_anchors_of_a_tier_with_a_commit_store_have_the_default() -> None:
    data: Objects = {}
    roots: Objects = {}

    codec = appended(split_tier(data, roots, plan=TierPlan(commit_store=ROOTS, compression=ZSTD)))

    assert data[TIER_ANCHOR] == roots[TIER_ANCHOR]
    assert (anchor_of(data).compression, codec) == ("zstd:3", BlockCodec.ZSTD)


@pytest.mark.parametrize(("named", "text"), [(None, ""), (LZ4, "lz4")])
def test_a_restored_anchor_has_the_default_that_the_operator_names_or_none(
    named: Compression | None, text: str
) -> None:
    objects: Objects = {}
    appended(opened(objects, planned=ZSTD))
    del objects[TIER_ANCHOR]

    asyncio.run(opened(objects, planned=named).restore_anchor())

    assert anchor_of(objects) == TierAnchor(compression=text)


@pytest.mark.parametrize("lost", ["data", "commits", "both"])
def test_an_anchor_that_is_left_on_the_other_store_overrides_the_operator(lost: str) -> None:
    data: Objects = {}
    roots: Objects = {}
    appended(split_tier(data, roots, plan=TierPlan(commit_store=ROOTS, compression=ZSTD)))
    for side in {"data": [data], "commits": [roots], "both": [data, roots]}[lost]:
        del side[TIER_ANCHOR]

    plan = TierPlan(commit_store=ROOTS, compression=LZ4)
    asyncio.run(split_tier(data, roots, plan=plan).restore_anchor())

    assert data[TIER_ANCHOR] == roots[TIER_ANCHOR]
    assert anchor_of(data).compression == ("lz4" if lost == "both" else "zstd:3")


def test_a_sound_anchor_is_not_restored_with_another_default() -> None:
    objects: Objects = {}
    appended(opened(objects, planned=ZSTD))
    before = objects[TIER_ANCHOR]
    plan = TierPlan(commit_store=NO_COMMIT_STORE, compression=LZ4)

    restored = asyncio.run(ObjectStoreOffloader(MemoryStore(objects=objects), plan=plan).restore_anchor())

    assert restored is None
    assert objects[TIER_ANCHOR] == before
