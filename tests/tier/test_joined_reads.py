"""Tests that a stream and its parts are read as one, compared with a model that is a list of records."""

from __future__ import annotations

import asyncio
from dataclasses import astuple, dataclass, field, replace

import pytest
from campaign import CAMPAIGN
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.world import TierWorld

from offload import (
    AtEdge,
    AtOffset,
    AtTime,
    MemoryHandle,
    NotOffloaded,
    PartOffset,
    Position,
    Retention,
    StreamDeleted,
    StreamReader,
    StreamWriter,
    build_chunk,
    delete_stream,
    trim,
)
from offload.contracts.events import Skipped
from offload.formats.keys import StreamKeys
from offload.ground.errors import AnchorLost
from offload.model.part import StreamPart
from offload.read.joined import reading_end
from offload.upkeep.parts import trim_parts

Record = tuple[int, int, bytes]
"""The part, the offset and the body of a record."""


@dataclass(frozen=True)
class DrawnPart:
    """A part as Hypothesis draws it."""

    step: int
    """The distance from the end of the part before to its first offset: a gap, or below 0 a fork."""
    chunks: list[tuple[int, int]]
    """The number of records and the timestamp of each chunk."""
    trimmed: int
    """How many of its chunks are trimmed."""
    is_deleted: bool


@dataclass
class PartModel:
    """A part, as the model knows it."""

    number: int
    first: int
    next: int
    chunks: list[tuple[int, int, list[Record]]] = field(default_factory=list)
    """The first offset, the timestamp and the records of each live chunk."""

    def records_from(self, offset: int) -> list[Record]:
        return [record for chunk in self.chunks for record in chunk[2] if record[1] >= offset]


@dataclass
class World(TierWorld):
    """A tier with the stream `orders`, and the model of its parts."""

    parts: list[PartModel] = field(default_factory=list)
    """The parts that were not deleted."""
    begun: int = 0
    sizes: dict[Record, int] = field(default_factory=dict)
    """The size of each chunk, by its first record."""

    def __post_init__(self) -> None:
        self.kept = self.tier()

    async def begin(self, first_offset: int) -> PartModel:
        """Begin the next part, empty."""
        self.begun += 1
        part = StreamPart("orders", self.begun)
        if self.begun > 1:
            before = await self.kept.log(StreamPart("orders", self.begun - 1).name).load_newest()
            assert before is not None
            await self.kept.begin_part(part, before=before)
        await StreamWriter.claim(self.kept, part.name, first_offset=first_offset)
        self.parts.append(PartModel(self.begun, first_offset, first_offset))
        return self.parts[-1]

    async def append(self, part: PartModel, count: int, timestamp_ms: int) -> None:
        """Append a chunk to a part, as a fragment of its own."""
        bodies = [b"%d/%d" % (part.number, part.next + k) for k in range(count)]
        chunk = build_chunk(bodies, offset=part.next, timestamp_ms=timestamp_ms, epoch=1)
        writer = await StreamWriter.claim(self.kept, StreamPart("orders", part.number).name)
        await writer.offload([MemoryHandle([chunk])])
        records = [(part.number, part.next + k, body) for k, body in enumerate(bodies)]
        part.chunks.append((part.next, timestamp_ms, records))
        self.sizes[records[0]] = len(chunk)
        part.next += count

    async def build(self, drawn: list[DrawnPart]) -> None:
        """Begin and fill the parts that were drawn, and then trim and delete what they say."""
        end = 5
        for each in drawn:
            part = await self.begin(max(end + each.step, 0))
            for count, timestamp_ms in each.chunks:
                await self.append(part, count, timestamp_ms)
            end = part.next
        for part, each in zip([*self.parts], drawn, strict=True):
            name = StreamPart("orders", part.number).name
            del part.chunks[: each.trimmed]
            part.first = part.chunks[0][0] if part.chunks else part.next
            await trim(self.kept, name, Retention(before_offset=part.first))
            if each.is_deleted:
                await delete_stream(self.kept, name)
                self.parts.remove(part)

    async def reader(self) -> StreamReader:
        return await StreamReader.open(self.kept, "orders", emit=self.events.append)

    def place_of(self, position: Position) -> PartOffset | None:
        """Return where this position attaches, by the rules of `joined`. None if it is beyond the end."""
        chunks = [(part, *chunk) for part in self.parts for chunk in part.chunks]
        match position:
            case AtOffset(offset):
                holding = (part for part in self.parts if offset <= part.next)
                if (part := next(holding, None)) is None:
                    return None
                return PartOffset(part.number, max(offset, part.first))
            case AtEdge.NEXT:
                chunks = []
            case AtEdge.LAST:
                chunks = chunks[-1:]
            case AtTime(timestamp_ms):
                chunks = [chunk for chunk in chunks if chunk[2] >= timestamp_ms]
        if not chunks:
            return PartOffset(self.parts[-1].number, self.parts[-1].next)
        return PartOffset(chunks[0][0].number, chunks[0][1])

    def end_of(self, start: PartOffset, until: Position) -> PartOffset | None:
        """Return where a reading from `start` ends. None if no chunk and no part reaches the end."""
        match until:
            case AtTime(timestamp_ms):
                for part in self.parts:
                    for first, chunk_ms, records in part.chunks:
                        is_behind = (part.number, first + len(records)) > (start.part, start.offset)
                        if is_behind and chunk_ms >= timestamp_ms:
                            return max(PartOffset(part.number, first), start, key=astuple)
                return None
            case AtOffset(offset):
                ends = [part for part in self.parts if part.number >= start.part and offset <= part.next]
                if not ends:
                    return None
                return max(PartOffset(ends[0].number, max(offset, ends[0].first)), start, key=astuple)
            case _:
                place = self.place_of(until)
                assert place is not None
                return max(place, start, key=astuple)

    def read_from(self, place: PartOffset) -> tuple[list[Record], list[Skipped]]:
        """Return the records from a place on, and what a reader reports on the way."""
        [begin] = [part for part in self.parts if part.number == place.part]
        records, skipped, reached = begin.records_from(place.offset), [], begin.next
        for part in self.parts[self.parts.index(begin) + 1 :]:
            if part.chunks:
                if part.first != reached:
                    between = {"from_offset": reached, "to_offset": part.first, "part": part.number}
                    skipped.append(Skipped(stream="orders", **between))
                records, reached = records + part.records_from(0), part.next
        return records, skipped


async def read(reader: StreamReader, start: int | PartOffset) -> list[Record]:
    return [
        (batch.part, batch.offset + k, body)
        async for batch in reader.messages(start)
        for k, body in enumerate(batch.bodies)
    ]


chunks = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), max_size=3)
drawn_parts = st.builds(
    DrawnPart,
    step=st.integers(-6, 6),
    chunks=chunks,
    trimmed=st.integers(0, 2),
    is_deleted=st.sampled_from([False, False, False, True]),
)
positions = st.one_of(
    st.sampled_from(AtEdge), st.builds(AtOffset, st.integers(0, 30)), st.builds(AtTime, st.integers(0, 7))
)


@settings(deadline=None, max_examples=2_000 if CAMPAIGN else 8)
@given(st.lists(drawn_parts, min_size=1, max_size=3), st.lists(positions, min_size=1, max_size=4))
def test_every_position_attaches_in_the_part_that_the_rules_say_and_reads_on(
    drawn: list[DrawnPart], wanted: list[Position]
) -> None:
    """Gaps, forks, empty, trimmed and deleted parts. Each step to other offsets is reported once."""

    async def scenario() -> None:
        world = World()
        await world.build(drawn)
        if not world.parts:
            with pytest.raises(StreamDeleted):
                await world.reader()
            return
        reader = await world.reader()
        for position in [*wanted, *(AtOffset(part.next) for part in world.parts)]:
            place = world.place_of(position)
            if place is None:
                with pytest.raises(NotOffloaded, match="is beyond"):
                    await reader.place_of(position)
                continue
            assert await reader.place_of(position) == place
            world.events.clear()

            assert (await read(reader, place), world.events) == world.read_from(place)

            if isinstance(position, AtOffset):
                assert await read(reader, position.offset) == world.read_from(place)[0]

    asyncio.run(scenario())


@settings(deadline=None, max_examples=2_000 if CAMPAIGN else 8)
@given(st.lists(drawn_parts, min_size=1, max_size=3), positions, st.lists(positions, min_size=1, max_size=4))
@example([DrawnPart(0, [(2, 6), (2, 1), (2, 5), (1, 6)], 0, False)], AtOffset(8), [AtTime(5), AtTime(2)])
@example([DrawnPart(0, [(2, 6), (2, 1)], 0, False)], AtOffset(6), [AtTime(5)])
def test_a_reading_ends_where_its_end_is_met_first(
    drawn: list[DrawnPart], begin: Position, ends: list[Position]
) -> None:
    """Times step back, so chunks before the beginning may have the time of the end too."""

    async def scenario() -> None:
        world = World()
        await world.build([replace(each, is_deleted=False) for each in drawn])
        reader, start = await world.reader(), world.place_of(begin)
        if start is None:
            return
        for until in [*ends, AtEdge.NEXT]:
            end = world.end_of(start, until)

            assert await reading_end(reader.parts, start, until) == end

            wanted = [each for each in world.read_from(start)[0] if end is None or each[:2] < astuple(end)]
            chunks = [batch async for batch in reader.messages(start, until=end)]
            found = [(batch.part, batch.offset + k) for batch in chunks for k in range(len(batch.bodies))]
            assert found[: len(wanted)] == [each[:2] for each in wanted]
            # The chunk that holds the beginning may begin before the end, and hold it too.
            assert all((batch.part, batch.offset) < astuple(end) for batch in chunks[1:] if end is not None)

    asyncio.run(scenario())


turns = st.one_of(st.just("read"), st.integers(-4, 4), st.tuples(st.integers(1, 3), st.integers(0, 6)))


@settings(deadline=None, max_examples=1_000 if CAMPAIGN else 6)
@given(st.lists(turns, max_size=12))
def test_a_reader_that_keeps_part_and_offset_has_each_record_once_across_the_birth_of_parts(
    drawn: list[str | int | tuple[int, int]],
) -> None:
    """Each poll opens a reader where the last one ended. Between polls, data is appended or a part begins."""

    async def scenario() -> None:
        world, got = World(), list[Record]()
        await world.begin(0)
        place = PartOffset(1, 0)
        for turn in [*drawn, "read"]:
            match turn:
                case int(step):
                    await world.begin(max(world.parts[-1].next + step, 0))
                case (count, timestamp_ms):
                    await world.append(world.parts[-1], count, timestamp_ms)
                case _:
                    async for batch in (await world.reader()).messages(place):
                        got += [(batch.part, batch.offset + k, body) for k, body in enumerate(batch.bodies)]
                        place = PartOffset(batch.part, batch.offset + len(batch.bodies))

        wanted, skipped = world.read_from(PartOffset(1, 0))
        assert (got, world.events) == (wanted, skipped)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_recorded", [False, True])
@pytest.mark.parametrize("moment", range(1, 9))
def test_a_reader_that_is_overtaken_by_the_birth_of_a_part_leaves_no_record_out(
    moment: int, is_recorded: bool
) -> None:
    """Before one of its requests, part 1 gets more data, and part 2 its first root.

    If the views were loaded in the order of parts, the end of part 1 would look like a gap.
    """

    async def scenario() -> None:
        world, overtaken = World(), []
        one = await world.begin(0)
        await world.append(one, 3, 1)
        if is_recorded:
            before = await world.kept.load_manifest("orders")
            await world.kept.begin_part(StreamPart("orders", 2), before=before)
        reader_begins = len(world.store.calls)

        async def rival(operation: str, key: str) -> None:
            if not overtaken and len(world.store.calls) >= reader_begins + moment:
                overtaken.append(key)
                await world.append(one, 3, 1)
                await world.append(await world.begin(9), 2, 1)

        world.store.before = rival
        got = await read(await world.reader(), 0)

        wanted = world.read_from(PartOffset(1, 0))[0]
        assert got == wanted[: len(got)]
        assert len(got) >= 3

    asyncio.run(scenario())


@settings(deadline=None, max_examples=1_000 if CAMPAIGN else 6)
@given(
    st.lists(drawn_parts, min_size=2, max_size=3),
    st.none() | st.integers(0, 7),
    st.none() | st.integers(0, 700),
)
@example([DrawnPart(0, [(1, 5)], 0, False), DrawnPart(2, [(1, 1), (1, 6)], 0, False)], 3, None)
def test_a_trim_by_age_and_size_takes_a_prefix_of_all_parts(
    drawn: list[DrawnPart], oldest_ms: int | None, size_bytes: int | None
) -> None:
    """Times may fall from a part to the next: a part is not trimmed while anything before it stays."""

    async def scenario() -> None:
        world = World()
        await world.build([replace(each, trimmed=0, is_deleted=False) for each in drawn])
        chunks = [chunk for part in world.parts for chunk in part.chunks]
        sizes = [world.sizes[records[0]] for _, _, records in chunks]
        old = [oldest_ms is not None and at < oldest_ms for _, at, _ in chunks]
        large = [size_bytes is not None and sum(sizes[row:]) > size_bytes for row in range(len(sizes))]
        gone = max(([*rule, False].index(False) for rule in (old, large)), default=0)
        kept = chunks[min(gone, max(len(chunks) - 1, 0)) :]

        age_seconds = None if oldest_ms is None else (1000 - oldest_ms) / 1000
        limits = Retention(age_seconds_max=age_seconds, size_bytes_max=size_bytes)
        reports = await trim_parts(world.kept, "orders", limits, now_ms=1000)

        assert await read(await world.reader(), PartOffset(1, 0)) == [
            record for _, _, records in kept for record in records
        ]
        assert sum(report.dropped.fragments for report in reports) == len(chunks) - len(kept)

    asyncio.run(scenario())


def test_opening_a_stream_without_parts_costs_one_listing_more_than_its_view() -> None:
    async def scenario() -> None:
        world = World()
        await world.append(await world.begin(0), 3, 1)
        await world.kept.view("orders")
        world.store.calls.clear()
        await world.kept.view("orders")
        of_view = [name for name, _ in world.store.calls]
        world.store.calls.clear()

        await world.reader()

        assert [name for name, _ in world.store.calls] == ["list", *of_view]

    asyncio.run(scenario())


@pytest.mark.parametrize("raw", [None, b"damaged"], ids=["lost", "damaged"])
def test_a_reader_refuses_a_stream_whose_part_lost_its_anchor(raw: bytes | None) -> None:
    """It would end at part 1 otherwise, as if nothing followed. The part's own name says the same."""

    async def scenario() -> None:
        world = World()
        await world.append(await world.begin(0), 3, 1)
        await world.append(await world.begin(5), 3, 1)
        key = StreamKeys("orders-part-2").anchor
        world.objects.pop(key)
        if raw is not None:
            world.objects[key] = raw

        for stream in ("orders", "orders-part-2"):
            with pytest.raises(AnchorLost, match=r"offload rebuild .* orders-part-2"):
                await StreamReader.open(world.tier(), stream)

    asyncio.run(scenario())
