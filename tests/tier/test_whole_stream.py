"""Tests of a stream with its parts as one object: what is left out of it, and what is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from offload import MemoryHandle, StreamWriter, build_chunk, delete_stream
from offload.contracts.catalogue import StreamView
from offload.formats.chunk import CHUNK_HEADER
from offload.ground.errors import BeingRebuilt, StreamDeleted
from offload.model.part import StreamPart
from offload.native.offloader import ObjectStoreOffloader
from offload.parts.whole_stream import WholeStream, part_named
from offload.store.memory import MemoryStore


class Tier(ObjectStoreOffloader):
    """A tier in memory that notes which views are loaded. A stream can be said to be rebuilt."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.loaded: list[str] = []
        self.rebuilt = ""

    async def view(self, stream: str) -> StreamView:
        """Return the view, and note its name."""
        self.loaded.append(stream)
        if stream == self.rebuilt:
            raise BeingRebuilt(f"stream {stream!r} is being rebuilt")
        return await super().view(stream)

    async def begin(self, part: StreamPart, offset: int) -> bytes:
        """Begin a part with one record, and return the header of its chunk."""
        if part.number > 1:
            await self.begin_part(part, before=None)
        writer = await StreamWriter.claim(self, part.name, first_offset=offset)
        chunk = build_chunk([b"x"], offset=offset, timestamp_ms=1, epoch=1)
        await writer.offload([MemoryHandle([chunk])])
        return bytes(chunk[: CHUNK_HEADER.size_bytes])


def run(scenario: Callable[[Tier], Awaitable[None]], parts: int = 3) -> None:
    """Run a scenario on a tier with a stream of so many parts, each with one record behind a gap."""

    async def main() -> None:
        tier = Tier()
        for number in range(1, parts + 1):
            await tier.begin(StreamPart("orders", number), 10 * number)
        await scenario(tier)

    asyncio.run(main())


def test_the_newest_part_is_loaded_first_and_the_views_are_in_order() -> None:
    async def scenario(tier: Tier) -> None:
        tier.loaded.clear()

        views = await WholeStream(tier, "orders").views()

        assert [number for number, _ in views] == [1, 2, 3]
        assert tier.loaded == ["orders-part-3", "orders-part-2", "orders"]

    run(scenario)


def test_a_deleted_part_and_one_without_a_commit_are_left_out() -> None:
    async def scenario(tier: Tier) -> None:
        await tier.begin_part(StreamPart("orders", 4), before=None)
        await delete_stream(tier, "orders-part-2")
        stream = WholeStream(tier, "orders")

        assert await stream.names() == ["orders", "orders-part-2", "orders-part-3", "orders-part-4"]
        assert [number for number, _ in await stream.views()] == [1, 3]

    run(scenario)


def test_a_part_that_is_being_rebuilt_is_an_error_and_not_left_out() -> None:
    """Readers would miss its records, and not know it."""

    async def scenario(tier: Tier) -> None:
        tier.rebuilt = "orders-part-2"

        with pytest.raises(BeingRebuilt):
            await WholeStream(tier, "orders").views()

    run(scenario)


def test_a_stream_of_which_every_part_was_deleted_is_deleted() -> None:
    async def scenario(tier: Tier) -> None:
        for name in ("orders", "orders-part-2"):
            await delete_stream(tier, name)

        with pytest.raises(StreamDeleted):
            await WholeStream(tier, "orders").views()

    run(scenario, parts=2)


def test_the_parts_behind_a_number_are_those_of_the_same_look() -> None:
    async def scenario(tier: Tier) -> None:
        stream = WholeStream(tier, "orders")
        before = await stream.parts()
        await tier.begin(StreamPart("orders", 4), 50)

        later = await (await stream.behind(1)).views()

        assert [part.number for part in before] == [1, 2, 3]
        assert [number for number, _ in later] == [2, 3]
        assert [part.number for part in await WholeStream(tier, "orders", after=3).parts()] == [4]

    run(scenario)


def test_a_part_that_follows_a_restore_has_no_gap_before_it() -> None:
    async def scenario(tier: Tier) -> None:
        header = await tier.begin(StreamPart("restored"), 90)
        await tier.begin(StreamPart("orders", 2, header), 91)

        assert await WholeStream(tier, "orders").gaps() == []

    run(scenario, parts=1)


def test_a_part_is_found_by_its_own_name_with_what_its_record_says() -> None:
    async def scenario(tier: Tier) -> None:
        header = await tier.begin(StreamPart("restored"), 90)
        await tier.begin(StreamPart("orders", 2, header), 91)
        await tier.begin(StreamPart("other-part-2"), 0)

        found = await part_named(tier, "orders-part-2")

        assert found is not None
        assert (found.first, found.number, found.behind) == ("orders", 2, header)
        assert (await WholeStream(tier, "orders").part(2)).behind == header
        assert await part_named(tier, "other-part-2") is None

    run(scenario, parts=1)
