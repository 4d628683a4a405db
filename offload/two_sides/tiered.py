"""One reader of a source's disk and the tier: from the first message on either to the newest.

    reader = await TieredReader.open(source_stream, catalogue)
    async for batch in reader.messages(await reader.place_of(AtEdge.FIRST)): ...

A message is on the disk, on the tier, or on both, and both sides change while they are read: the broker
deletes old files, and the tier is trimmed, compacted and extended. `choice` says which side is read next. The
reader changes sides at an exact offset, in both directions, however chunks are cut.

    while the source is read         then
    its files are deleted            the tier is read, at the same offset
    a chunk is damaged               the tier is read, if it has that chunk
    it is gone                       the tier is read; at its end `TryAgain`, or waiting

    while the tier is read           then
    it is trimmed                    the source is read, if it has the offset
    an object is damaged, or the     the source is read, if it has the offset
    store is down

    both                             `Skipped`, if neither has the offset in its newest state

Invariants: offsets ascend in a part, each is delivered once, and every offset that is left out is reported;
all that is delivered of a part belongs to one history (`local_side`, `tier_side`), or else `Diverged` is
raised; a read that ends leaves no file open and no task behind.

The records of the source count as the newest part of the stream. docs/adr/0030-tiered-reader.md has
the reasons.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, TypeVar

from offload.cache.block_cache import BlockCache
from offload.contracts.catalogue import Catalogue
from offload.contracts.chunks import StoredChunk
from offload.contracts.events import Event
from offload.contracts.source import SourceStream
from offload.ground.env import Env
from offload.ground.errors import NotOffloaded, OffloadError, TryAgain
from offload.model.chunk_table import ChunkType
from offload.model.manifest import CommittedStream
from offload.model.position import AtEdge, AtOffset, PartOffset, Position, check_place, check_position
from offload.read.batches import Messages, messages_in
from offload.read.joined import part_numbered
from offload.read.reader import IN_FLIGHT, StreamReader, warn_of_skips
from offload.read.watch import StreamWatch
from offload.two_sides.choice import NOTHING, ReadPriority, ReadSide
from offload.two_sides.handover import Crossing, Following
from offload.two_sides.local_side import TRIES, Believed, LocalSide
from offload.two_sides.tier_side import TierSide

__all__ = ["TieredReader"]

T = TypeVar("T")

READ_HOLD_BACK_SECONDS: Final = 0.5


class TieredReader:
    """A reader of one stream of a source and of its copy on a tier. It belongs to one event loop.

    It has the methods of `StreamReader` for messages. `emit` is called with each `Skipped` and `DamageFound`.
    Nothing is open between two reads.
    """

    def __init__(
        self,
        source: SourceStream,
        tier: TierSide,
        *,
        priority: ReadPriority,
        hold_back_seconds: float,
        env: Env,
        emit: Callable[[Event], None],
        watch: StreamWatch | None = None,
    ) -> None:
        """Use `open`."""
        self.source, self.priority, self.emit = source, priority, emit
        self.records: Final = {ReadSide.LOCAL: 0, ReadSide.TIER: 0}
        """How many messages were delivered from each side."""
        self._tier, self._env, self._watch = tier, env, watch
        # Of the reader, not of a read: what an earlier read saw arrive need not be held back for the whole
        # time again.
        self._believed = Believed(source, hold_back_seconds, env)

    @classmethod
    async def open(
        cls,
        source: SourceStream,
        catalogue: Catalogue,
        *,
        stream: str = "",
        priority: ReadPriority = ReadPriority.LOCAL_FIRST,
        hold_back_seconds: float = READ_HOLD_BACK_SECONDS,
        in_flight: int = IN_FLIGHT,
        cache: BlockCache | None = None,
        watch: StreamWatch | None = None,
        env: Env | None = None,
        emit: Callable[[Event], None] = warn_of_skips,
    ) -> TieredReader:
        """Return a reader of the newest states. `stream` is the name on the tier, by default the source's.

        Data counts when the broker vouches for it, or else after `hold_back_seconds` in the source. The tier
        need not have the stream yet. `in_flight`, `cache` and `watch` are as for `StreamReader.open`. Raises
        `StreamDeleted` if the stream was deleted on the tier, and `NotOffloaded` if only the tier is read and
        does not have it.
        """
        tier = TierSide(catalogue, stream or source.name, in_flight=in_flight, emit=emit, cache=cache)
        if ReadSide.TIER in priority.sides and not await tier.open() and ReadSide.LOCAL not in priority.sides:
            assert tier.absent is not None
            raise tier.absent
        return cls(
            source,
            tier,
            priority=priority,
            hold_back_seconds=hold_back_seconds,
            env=env or Env(),
            emit=emit,
            watch=watch,
        )

    @property
    def stream(self) -> str:
        """The name of the stream on the tier."""
        return self._tier.stream

    @property
    def parts(self) -> Sequence[StreamReader]:
        """The readers of the parts that are on the tier, in order. They read the tier alone."""
        return self._tier.parts

    @property
    def committed(self) -> CommittedStream | None:
        """The newest state of the newest part on the tier that this reader knows. None if there is none."""
        return self._tier.manifest

    async def refresh(self) -> bool:
        """Take the newest state of the tier. Return True if it is newer. See `StreamReader.refresh`."""
        return ReadSide.TIER in self.priority.sides and await self._tier.refresh()

    async def place_of(self, position: Position, *, part: int | None = None) -> PartOffset:
        """Return the place at which reading from a position begins. `joined` has the rules for parts.

        What only the source has comes behind what the tier has. With `part`, the position is one in that
        part. An offset that neither side has any more becomes the first one. Raises `NotOffloaded` for an
        offset beyond the end of both sides, and `Misuse` for what is no position.
        """
        check_position(position)
        newest = self._tier.newest
        # What the source has counts as the newest part, so it has no say about an older one.
        if part is not None and part != newest:
            return PartOffset(part, await part_numbered(self.parts, part).offset_here(position))
        on_tier = await self._place_on_tier(position, part)
        # An older part lies before all that the source has, so no file is opened for it. The last message is
        # an exception: it is in an older part also if the tier's newest part has no message, and the source
        # has one.
        is_before = on_tier is not None and on_tier.part != newest and position is not AtEdge.LAST
        if on_tier is not None and (is_before or ReadSide.LOCAL not in self.priority.sides):
            return on_tier
        async with aclosing(self._local_side()) as local:
            found = await self._offset_in_source(position, on_tier, local)
        return on_tier if found is None and on_tier is not None else PartOffset(newest, found or 0)

    async def offset_of(self, position: Position) -> int:
        """Return the offset of `place_of`."""
        return (await self.place_of(position)).offset

    def messages(self, start: int | PartOffset) -> AsyncGenerator[Messages, None]:
        """Yield the messages from an offset or a place on, up to the newest that the source has now.

        Data that the broker does not vouch for within the hold-back is left out. This is a generator, so it
        ends if a wait for it is cancelled. Begin again behind the last offset. An offset that neither side
        has any more becomes the first one, without an event; a `PartOffset` there is reported as `Skipped`.
        Raises `Misuse` for what is no offset, `NotOffloaded` for one beyond the end, `Diverged` if the sides
        have different histories, and `TryAgain` at the end of the tier if the source is gone for now.
        """
        check_place(start)
        return self._read(start, None, self._messages)

    def chunks(self, start: int | PartOffset) -> AsyncGenerator[StoredChunk, None]:
        """Yield the stored chunks, of any type, from the one that holds an offset or a place on.

        A chunk is whole, and may begin before `start`. It may also repeat records of the chunk before, if the
        source cuts its chunks in other places than the tier: then its offset is lower than the end of that
        chunk. Otherwise as `messages`.
        """
        check_place(start)
        return self._read(start, None, self._chunk)

    def follow(
        self,
        start: int | PartOffset,
        *,
        watch: StreamWatch | None = None,
        caught_up: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[Messages, None]:
        """Yield the messages from an offset or a place on, and then what comes later, on either side.

        Never ends by itself, and waits for a source or a store that is gone. Otherwise as `messages`.
        `watch` and `caught_up` are as for `StreamReader.follow`.
        """
        check_place(start)
        return self._read(start, self._following(watch, caught_up), self._messages)

    def follow_chunks(
        self,
        start: int | PartOffset,
        *,
        watch: StreamWatch | None = None,
        caught_up: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[StoredChunk, None]:
        """Yield the chunks from an offset or a place on, as `chunks` does, and then what comes later.

        Everything else is as in `follow`.
        """
        check_place(start)
        return self._read(start, self._following(watch, caught_up), self._chunk)

    def _following(self, watch: StreamWatch | None, caught_up: Callable[[], None]) -> Following:
        watch = watch or self._watch or StreamWatch(self._tier.catalogue, env=self._env)
        return Following(watch, caught_up)

    def _chunk(self, chunk: StoredChunk, offset: int, side: ReadSide) -> StoredChunk:
        if chunk.type == ChunkType.USER:
            self.records[side] += chunk.next_offset - max(chunk.offset, offset)
        return chunk

    def _messages(self, chunk: StoredChunk, offset: int, side: ReadSide) -> Messages | None:
        """Return the messages of a chunk from an offset on."""
        batch = messages_in(chunk)
        if batch is None:
            return None
        if batch.offset < offset:
            batch = replace(batch, offset=offset, bodies=batch.bodies[offset - batch.offset :])
        self.records[side] += len(batch.bodies)
        return batch

    async def _read(
        self,
        start: int | PartOffset,
        waiting: Following | None,
        take: Callable[[StoredChunk, int, ReadSide], T | None],
    ) -> AsyncGenerator[T, None]:
        place = start if isinstance(start, PartOffset) else await self.place_of(AtOffset(start))
        # If the tier is not read, nobody knows of parts: the source counts as the first one.
        crossing = Crossing(
            place=place if ReadSide.TIER in self.priority.sides else PartOffset(1, place.offset),
            tier=self._tier,
            local=self._local_side(),
            sides=self.priority.sides,
            env=self._env,
            emit=self.emit,
            take=take,
            waiting=waiting,
        )
        async with aclosing(crossing.run()) as taken:
            handed = list[T]()  # as in `StreamReader.messages_here`
            async for each in taken:
                handed.append(each)
                del each
                yield handed.pop()

    def _local_side(self) -> LocalSide:
        return LocalSide(source=self.source, tier=self._tier, believed=self._believed)

    async def _place_on_tier(self, position: Position, part: int | None) -> PartOffset | None:
        """Return the place on the tier; None if the tier does not have the stream, or ends before it."""
        reader = self._tier.reader
        if reader is None:
            return None
        parts = reader.parts if part is None else reader.parts[-1:]
        if ReadSide.LOCAL in self.priority.sides and isinstance(position, AtOffset):
            offset = position.offset
            # The reader would raise for an offset beyond its end, but the source may have it.
            if all(each.manifest.next_offset < offset for each in parts):
                return None
        if part is None:
            return await reader.place_of(position)
        return PartOffset(part, await parts[-1].offset_here(position))

    async def _offset_in_source(
        self, position: Position, on_tier: PartOffset | None, local: LocalSide
    ) -> int | None:
        """Return the offset in the newest part, as the source has it too. None: that of the tier counts."""
        for tries_left in reversed(range(TRIES)):
            # Anew: if the files of a snapshot are gone and the mark is as before, a look would keep that
            # snapshot.
            await local.look(None, anew=True)
            # A source that is gone, or that ends before the tier with another history, proves nothing. The
            # place on the tier counts, if there is one.
            if not local.is_open or local.extent is NOTHING:
                if on_tier is None:
                    raise self._beyond(position, local)
                return None
            try:
                return await self._attached(position, on_tier, local)
            except TryAgain:  # the broker deleted a file between the look and the read
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _attached(self, position: Position, on_tier: PartOffset | None, local: LocalSide) -> int | None:
        end = self._tier.extent(self._tier.newest).end
        if isinstance(position, AtOffset):
            # Not the extent of the source: an offset that is still held back exists already.
            if position.offset > max(end, local.next_offset):
                raise self._beyond(position, local)
            if on_tier is not None and on_tier.offset <= position.offset:
                return None
            begin = max(position.offset, local.extent.first)  # the source may have what was trimmed
            return begin if on_tier is None else min(begin, on_tier.offset)
        if position is AtEdge.NEXT:
            return max(end, local.next_offset)
        found = await local.attach(position)
        # A place at its end means that the tier found nothing, so it must not hide what the source found.
        if on_tier is None or (on_tier.part == self._tier.newest and on_tier.offset == end):
            return found
        if position is AtEdge.LAST:
            # The source may end before the tier, and at its own end it has found no message.
            return found if end <= found < local.next_offset else None
        # A side whose begin is deleted finds a later chunk, or a later one of the same time. The other is
        # right.
        return min(found, on_tier.offset)

    def _beyond(self, position: Position, local: LocalSide) -> OffloadError:
        # Before the verdict: a source that is gone for now may have the offset, and the caller may try again.
        if local.error is not None:
            return TryAgain(f"stream {self.stream!r}: the source is gone for now: {local.error}")
        on_tier = [f"[{each.manifest.first_offset}, {each.manifest.next_offset})" for each in self.parts]
        has = f"offsets [{local.extent.first}, {local.next_offset}) in the source"
        if on_tier:
            has = f"{has} and {', '.join(on_tier)} on the tier"
        beyond = f"{position.offset} is beyond" if isinstance(position, AtOffset) else "nothing is there"
        return NotOffloaded(f"stream {self.stream!r} has {has}; {beyond}")
