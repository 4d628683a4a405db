"""Restoring a stream with parts into one stream: every record of every part, in order and once.

The parts are of odd shapes: behind a gap, repeating offsets, without messages, without records, trimmed,
deleted, recorded and not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from campaign import CAMPAIGN
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.world import TierWorld
from odd_archives import STREAM, damage, odd_chunks
from offload_rabbitmq.stream_target import open_url
from stream_broker import StreamBroker, running

from offload import MemoryHandle, StreamReader, StreamWriter
from offload.ground.errors import Corrupt, Diverged, NoSpace, TryAgain
from offload.model.part import StreamPart
from offload.model.position import OFFSET_MAX, AtEdge, AtOffset, PartOffset, Position
from offload.restore.archived_parts import ArchivedParts, archived_parts
from offload.restore.read_back import Comparison, OffsetMap
from offload.restore.target import Restored, publish
from offload.upkeep.retention import Retention, delete_stream, trim

Shape = tuple[list[str], int]
"""The chunks of a part, and the step from the end of the part before to its first offset."""

KINDS = st.lists(st.sampled_from(["plain", "batch", "tracking"]), max_size=4)
SHAPES = st.lists(st.tuples(KINDS, st.sampled_from([0, 3, 40, -2, -50])), min_size=1, max_size=4)
GAP: list[Shape] = [(["plain", "batch"], 0), (["plain", "tracking"], 10)]


@dataclass
class World(TierWorld):
    """A tier with a stream, the broker into which it is restored, and processes that may be killed."""

    broker: StreamBroker = field(kw_only=True)
    parts: list[StreamPart] = field(default_factory=list)
    messages: list[tuple[int, int, bytes]] = field(default_factory=list)
    """The part, the offset and the body of each message on the tier."""

    end: int = 0

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.messages]

    async def add(self, shape: Shape) -> None:
        """Archive one part more."""
        kinds, step = shape
        part = self.parts[-1].following if self.parts else StreamPart(STREAM)
        first = max(self.end + step, 0)
        if self.parts:
            await self.tier().begin_part(part, before=None)
        await StreamWriter.claim(self.tier(), part.name, is_new=True, first_offset=first)
        self.parts.append(part)
        self.end = first
        if kinds:
            await self.grow(kinds)

    async def grow(self, kinds: list[str]) -> None:
        """Archive more of the newest part."""
        part = self.parts[-1]
        chunks, messages = odd_chunks(kinds, first_offset=self.end)
        writer = await StreamWriter.claim(self.tier(), part.name)
        await writer.offload([MemoryHandle(chunks)])
        self.end = writer.manifest.next_offset
        # Bodies of the parts are the same ones at the same offsets: only their order tells them apart.
        self.messages += [(part.number, offset, body) for offset, body in messages]

    async def archived(
        self, position: Position = AtEdge.FIRST, *, until: int = OFFSET_MAX, stream: str = STREAM
    ) -> ArchivedParts:
        reader = await StreamReader.open(self.tier(), stream)
        return await archived_parts(self.tier(), reader, position, until=until)

    async def restore(
        self, parts: ArchivedParts | None = None, *, pace: Callable[[int], Awaitable[None]] | None = None
    ) -> list[Restored]:
        """Restore as one run of the command does."""
        parts, target = parts or await self.archived(), open_url(self.broker.url, self.broker.arguments or {})
        try:
            return await publish(parts.archives, target, pace=pace or at_once, tell=str, show=str)
        finally:
            await target.aclose()

    async def map(self, parts: ArchivedParts | None = None) -> OffsetMap:
        target = open_url(self.broker.url, {})
        return await Comparison((parts or await self.archived()).archives, target).map()


def run(shapes: Sequence[Shape], scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run a scenario in a world with a stream of these parts."""

    async def main() -> None:
        async with running(StreamBroker()) as broker:
            world = World(broker=broker)
            for shape in shapes:
                await world.add(shape)
            await scenario(world)

    asyncio.run(main())


async def at_once(count: int) -> None:
    """Let any number of messages pass."""


@settings(max_examples=300 if CAMPAIGN else 4, deadline=None)
@given(SHAPES, st.lists(st.integers(0, 14), max_size=2))
@example(GAP, [8])  # between the two parts
@example(GAP, [10])  # within the second one
@example([([], 0), (["plain"], 5), ([], 5), (["tracking"], 0), (["plain"], -8)], [3, 1])
def test_a_killed_restore_publishes_every_message_of_every_part_once(
    shapes: list[Shape], kills: list[int]
) -> None:
    async def scenario(world: World) -> None:
        for world.broker.dies_after in kills:
            with suppress(TryAgain):
                await world.restore()
            assert world.broker.bodies == world.bodies[: len(world.broker.bodies)]
        world.broker.dies_after = None

        done = await world.restore()
        again = await world.restore()

        assert world.broker.bodies == world.bodies
        assert sum(each.messages for each in again) == 0
        ends = [(each.stream, each.first_offset, each.next_offset) for each in done]
        with_records = [
            (manifest.stream, manifest.first_offset, manifest.next_offset)
            for manifest in [await world.tier().load_manifest(part.name) for part in world.parts]
            if manifest.fragments
        ]
        assert ends == (with_records or [(world.parts[-1].name, world.end, world.end)])

    run(shapes, scenario)


@settings(max_examples=200 if CAMPAIGN else 4, deadline=None)
@given(SHAPES)
@example(GAP)
def test_the_map_leads_from_every_offset_of_every_part_to_the_same_message(shapes: list[Shape]) -> None:
    async def scenario(world: World) -> None:
        await world.restore()

        found = await world.map()

        new, old = dict(world.broker.stored), {(part, offset): body for part, offset, body in world.messages}
        rows = [(run.part, run.old + k, run.new + k) for run in found.runs() for k in range(run.count)]
        assert [(part, offset) for part, offset, _ in rows] == [(p, o) for p, o, _ in world.messages]
        assert all(new[target] == old[part, offset] for part, offset, target in rows)

    run(shapes, scenario)


def test_an_offset_in_a_gap_leads_to_the_last_message_before_it() -> None:
    """A consumer may have processed what the archive lacks. It continues behind the gap."""

    async def scenario(world: World) -> None:
        await world.restore()

        found = await world.map()

        assert [found.new_of(offset, 2) for offset in (2, 7, 8, 17, 18, 20)] == [2, 7, 7, 7, 8, 10]
        assert found.consumers == {b"app": PartOffset(2, 19)}

    run(GAP, scenario)


def test_an_offset_of_another_history_leads_to_no_message_of_the_part_before() -> None:
    async def scenario(world: World) -> None:
        await world.restore()

        found = await world.map()

        assert [found.new_of(offset, 2) for offset in (2, 6)] == [None, 8]
        assert found.new_of(2, 1) == 2

    run([(["plain", "batch"], 0), (["plain"], -2)], scenario)


def test_two_restores_at_once_publish_every_message_once() -> None:
    """One may begin the second part while the other one still publishes the first."""

    async def scenario(world: World) -> None:
        async def now_and_then(count: int) -> None:
            await asyncio.sleep(0)

        async def slowly(count: int) -> None:
            await asyncio.sleep(0.002)

        await asyncio.gather(*(world.restore(pace=pace) for pace in (now_and_then, slowly, now_and_then)))

        assert world.broker.bodies == world.bodies

    run([(["plain", "batch"] * 6, 0), (["plain"] * 6, 5), (["batch"] * 3, -20)], scenario)


def test_a_restore_goes_on_with_what_was_archived_since() -> None:
    """The newest part grew, and another part was begun. The first restore ended within the stream."""

    async def scenario(world: World) -> None:
        await world.restore()
        await world.grow(["batch"])
        await world.add((["plain"], 7))

        first, second, third = await world.restore()

        assert world.broker.bodies == world.bodies
        assert (first.messages, second.messages, third.messages) == (0, 5, 3)
        assert (second.written_from, third.written_from) == (21, 34)

    run(GAP, scenario)


@pytest.mark.parametrize(("kept", "text"), [(9, "from 19 on"), (5, "from 5 on")])
def test_a_restore_reports_that_the_target_lost_messages_of_a_part(kept: int, text: str) -> None:
    async def scenario(world: World) -> None:
        await world.restore()
        del world.broker.stored[kept:]

        with pytest.raises(Diverged, match=f"has lost messages: .*{text}"):
            await world.restore()

        assert len(world.broker.stored) == kept

    run(GAP, scenario)


def test_the_target_must_hold_all_parts() -> None:
    async def scenario(world: World) -> None:
        size = sum([(await world.tier().load_manifest(part.name)).data_size_bytes for part in world.parts])
        world.broker.arguments = {"max-length-bytes": str(size), "stream-max-segment-size-bytes": "1"}

        with pytest.raises(NoSpace, match=f"the archive has {size} bytes"):
            await world.restore()

    run(GAP, scenario)


def test_nothing_is_written_behind_a_part_that_was_restored_alone() -> None:
    async def scenario(world: World) -> None:
        await world.restore(await world.archived(stream="orders-part-2"))
        before = [*world.broker.stored]

        with pytest.raises(Diverged, match="has another message at offset 0"):
            await world.restore()

        assert world.broker.stored == before

    run(GAP, scenario)


@pytest.mark.parametrize(
    ("position", "until", "expected"),
    [
        (AtEdge.FIRST, 8, [(1, 0, 8)]),
        (AtEdge.FIRST, 12, [(1, 0, 8)]),
        (AtEdge.FIRST, 20, [(1, 0, 8), (2, 18, 20)]),
        (AtOffset(4), OFFSET_MAX, [(1, 4, 8), (2, 18, 22)]),
        (AtOffset(8), OFFSET_MAX, [(2, 18, 22)]),
        (AtOffset(19), 5, [(2, 19, 19)]),
        (AtEdge.NEXT, OFFSET_MAX, [(2, 22, 22)]),
    ],
)
def test_a_restore_begins_and_ends_in_any_part(
    position: Position, until: int, expected: list[tuple[int, int, int]]
) -> None:
    async def scenario(world: World) -> None:
        parts = await world.archived(position, until=until)

        done = await world.restore(parts)

        assert [(each.part, each.first_offset, each.next_offset) for each in done] == expected
        wanted = [
            body
            for part, offset, body in world.messages
            if any(part == p and begin <= offset < end for p, begin, end in expected)
        ]
        assert world.broker.bodies == wanted
        assert [gap.part for gap in parts.gaps] == ([2] if len(expected) > 1 else [])

    run(GAP, scenario)


@pytest.mark.parametrize("change", ["trimmed", "deleted"])
def test_a_first_part_that_retention_took_is_left_out(change: str) -> None:
    async def scenario(world: World) -> None:
        if change == "deleted":
            await delete_stream(world.tier(), STREAM)
        else:
            await trim(world.tier(), STREAM, Retention(before_offset=8))

        parts = await world.archived()
        await world.restore(parts)

        assert world.broker.bodies == [body for part, _, body in world.messages if part == 2]
        assert parts.gaps == []

    run(GAP, scenario)


def test_damage_in_a_later_part_stops_the_restore_before_it_or_is_left_out() -> None:
    async def scenario(world: World) -> None:
        damage(world.objects, b"message 9")
        parts = await world.archived()

        with pytest.raises(Corrupt):
            await world.restore(parts)
        assert world.broker.bodies == world.bodies[:8]

        for archive in parts.archives:
            archive.skip_damage = True
        for _ in range(2):
            done = await world.restore(parts)
            assert world.broker.bodies == world.bodies[:8] + world.bodies[11:]
            holes = [(each.part, hole) for each in done for hole in each.skipped]
            assert [(part, hole.first_offset, hole.next_offset) for part, hole in holes] == [(2, 18, 21)]

    run([*GAP, (["plain"], 0)], scenario)
