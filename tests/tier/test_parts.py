"""Tests of the record of parts on a tier: who begins one, and which streams count as parts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from offload_conformance.ledgers import ledger_of

from offload import ObjectStoreOffloader, StreamWriter
from offload.copy.next_part import PartOnTier
from offload.formats.anchor import StreamAnchor
from offload.formats.keys import STREAM_SIZE_BYTES_MAX, StreamKeys
from offload.ground.errors import AnchorLost, Conflict, Misuse, StreamDeleted
from offload.model.manifest import Manifest
from offload.model.part import StreamPart
from offload.native.place import TierPlan
from offload.store.faults import FaultyStore
from offload.store.memory import MemoryStore
from offload.upkeep.retention import delete_stream


@dataclass
class Tier:
    """A tier in memory, and the number of its requests."""

    objects: dict[str, bytes] = field(default_factory=dict)
    hashed: bool = False

    def __post_init__(self) -> None:
        self.store = FaultyStore(MemoryStore(objects=self.objects))
        self.offloader = ObjectStoreOffloader(self.store, plan=TierPlan(hashed_keys=self.hashed))

    async def write(self, stream: str, *, first_offset: int = 0) -> Manifest:
        """Begin a stream with a ledger of 10 records, or continue it."""
        writer = await StreamWriter.claim(self.offloader, stream, first_offset=first_offset)
        await writer.offload([ledger_of(10, first_offset=writer.manifest.next_offset)])
        return writer.manifest

    async def begin(self, first: str, number: int, *, first_offset: int = 100) -> StreamPart:
        """Begin a part of a stream, with data."""
        part = StreamPart(first, number)
        await self.offloader.begin_part(part, before=await self.offloader.load_manifest(first))
        await self.write(part.name, first_offset=first_offset)
        return part


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("first", ["orders", "a/ü", "x" * 300, "y" * (STREAM_SIZE_BYTES_MAX - 7)])
def test_the_parts_of_a_stream_are_found_in_order(first: str, hashed: bool) -> None:
    async def scenario() -> None:
        tier = Tier(hashed=hashed)
        await tier.write(first)
        parts = [await tier.begin(first, number) for number in range(2, 5)]

        assert await tier.offloader.parts(first) == parts
        assert await tier.offloader.parts(first, after=3) == parts[2:]
        assert await tier.offloader.parts(first, after=-1) == parts
        assert await tier.offloader.parts(parts[0].name) == []

    asyncio.run(scenario())


def test_a_stream_that_is_only_named_like_a_part_is_none_and_hides_none() -> None:
    """Its name is taken, so the next part has the next number."""

    async def scenario() -> None:
        tier = Tier()
        before = await tier.write("orders")
        await tier.write("orders-part-2")
        stranger = dict(tier.objects)

        with pytest.raises(Conflict, match="is not part 2 of 'orders'"):
            await tier.offloader.begin_part(StreamPart("orders", 2), before=before)
        assert tier.objects == stranger

        assert await tier.offloader.parts("orders") == []
        part = await tier.begin("orders", 3)
        assert await tier.offloader.parts("orders") == [part]

    asyncio.run(scenario())


def test_a_stream_without_parts_costs_one_listing() -> None:
    async def scenario() -> None:
        tier = Tier()
        await tier.write("orders")
        tier.store.calls.clear()

        assert await tier.offloader.parts("orders") == []

        assert [name for name, _ in tier.store.calls] == ["list"]

    asyncio.run(scenario())


def test_the_longest_name_of_a_stream_has_no_parts() -> None:
    async def scenario() -> None:
        tier, name = Tier(), "x" * STREAM_SIZE_BYTES_MAX
        before = await tier.write(name)

        assert await tier.offloader.parts(name) == []
        with pytest.raises(Misuse, match="a stream name has 1 to 4096 bytes, not 4103"):
            await tier.offloader.begin_part(StreamPart(name, 2), before=before)

    asyncio.run(scenario())


def test_a_claim_of_a_part_keeps_its_anchor() -> None:
    async def scenario() -> None:
        tier = Tier()
        await tier.write("orders")
        part = await tier.begin("orders", 2)
        await tier.write(part.name)
        await tier.offloader.begin_part(part, before=await tier.offloader.load_manifest("orders"))

        assert tier.objects[StreamKeys("orders-part-2").anchor] == StreamAnchor.of(part).encode()
        assert (await tier.offloader.load_manifest(part.name)).next_offset == 120

    asyncio.run(scenario())


@pytest.mark.parametrize("raw", [None, b"damaged"], ids=["lost", "damaged"])
def test_a_part_whose_anchor_is_lost_is_neither_overlooked_nor_taken(raw: bytes | None) -> None:
    """If it were overlooked, readers would lose it without a word, and all parts behind it."""

    async def scenario() -> None:
        tier = Tier()
        before = await tier.write("orders")
        for number in (2, 3):
            await tier.begin("orders", number)
        del tier.objects[StreamKeys("orders-part-2").anchor]
        if raw is not None:
            tier.objects[StreamKeys("orders-part-2").anchor] = raw
        damaged = dict(tier.objects)

        with pytest.raises(AnchorLost, match="offload rebuild"):
            await tier.offloader.parts("orders")
        with pytest.raises(AnchorLost, match="offload rebuild"):
            await tier.offloader.begin_part(StreamPart("orders", 2), before=before)

        assert tier.objects == damaged

    asyncio.run(scenario())


def test_a_deleted_part_keeps_its_number_and_hides_none_before_it() -> None:
    async def scenario() -> None:
        tier, first = Tier(), StreamPart("orders")
        await tier.write("orders")
        kept, part = await tier.begin("orders", 2), await tier.begin("orders", 3)
        await delete_stream(tier.offloader, part.name)

        assert await tier.offloader.parts("orders") == [kept, part]
        assert await PartOnTier(tier.offloader, first).newest() == PartOnTier(tier.offloader, kept)
        assert await PartOnTier(tier.offloader, kept).newest() is None
        with pytest.raises(StreamDeleted):
            await tier.offloader.load_manifest(part.name)

    asyncio.run(scenario())


def test_files_of_strangers_under_the_name_of_a_part_are_no_stream() -> None:
    async def scenario() -> None:
        tier = Tier()
        await tier.write("orders")
        tier.objects |= {"orders-part-2/readme.txt": b"", "orders-part-3/data": b""}

        assert await tier.offloader.parts("orders") == []

    asyncio.run(scenario())
