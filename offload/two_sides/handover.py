"""One read across a disk and a tier: a place that moves forward, and steps that `choice` names.

Each round asks what both sides have, and reads, skips, waits or ends. The extent of a side may be out of
date: a step that could leave out or repeat something is taken only after both sides were looked at again.

Invariants: `place` moves when a whole chunk was delivered, and never back within a part; a side continues a
chunk that the other has delivered only after a comparison (`Delivered`), as far as both reach back to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from offload.contracts.chunks import StoredChunk
from offload.contracts.events import DamageFound, Event, Skipped
from offload.formats.chunk import ChunkHeader
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Diverged, Divergence, NotOffloaded, OffloadError, TryAgain
from offload.model.part import part_name
from offload.model.position import OFFSET_MAX, PartOffset
from offload.read.watch import SECONDS_MAX, SECONDS_MIN, StreamWatch
from offload.two_sides.choice import Extent, Read, ReadSide, SkipTo, next_step
from offload.two_sides.local_side import ADVICE, Delivered, LocalSide
from offload.two_sides.tier_side import TierSide

LOOK_SECONDS_MIN: Final = 0.05
LOOK_SECONDS_MAX: Final = 1.0
"""The bounds of the interval between two looks at a source that has nothing new. A look lists its files."""

T = TypeVar("T")

_Step = Read | SkipTo | None


@dataclass(frozen=True, slots=True)
class Following:
    """How a read waits for later records."""

    watch: StreamWatch
    caught_up: Callable[[], None]


@dataclass(slots=True, kw_only=True)
class Crossing(Generic[T]):
    """A read from `place` on. `run` does it, once."""

    place: PartOffset
    tier: TierSide
    local: LocalSide
    sides: tuple[ReadSide, ...]
    env: Env
    emit: Callable[[Event], None]
    take: Callable[[StoredChunk, int, ReadSide], T | None]
    """Makes of a chunk what is delivered, if anything, from this offset on."""
    waiting: Following | None
    """None: the read ends with what there is when it begins."""

    _target: PartOffset | None = None
    _delivered: Delivered | None = None
    _confirmed: PartOffset | None = None
    """The place at which both sides were looked at again."""
    _is_tier_stale: bool = True
    """True if the tier may have grown since it was looked at last."""
    _side: ReadSide | None = None
    """The side that was read last. None behind a hole."""
    _idle: int = 0
    """How many waits there were since the last message."""
    _news: asyncio.Task[None] | None = None
    """The wait for news of the tier. It continues while messages are delivered."""
    _told: list[OffloadError] = field(default_factory=list)
    """The damage that was reported."""

    async def run(self) -> AsyncGenerator[T, None]:
        """Yield what `take` makes of the chunks. Close it."""
        try:
            async with aclosing(self._run()) as taken:
                handed = list[T]()  # as in `StreamReader.messages_here`
                async for each in taken:
                    handed.append(each)
                    del each
                    yield handed.pop()
        finally:
            news, self._news = self._news, None
            if news is not None:
                news.cancel()
                await asyncio.gather(news, return_exceptions=True)

    async def _run(self) -> AsyncGenerator[T, None]:
        async with aclosing(self.local):
            if self.waiting is None:
                if ReadSide.LOCAL in self.sides:
                    await self.local.look(None)
                self._aim()
            while not self._is_done:
                try:
                    step = await self._next_step()
                except TryAgain:
                    if self.waiting is None:
                        raise
                    await self._pause()
                    continue
                if isinstance(step, Read):
                    self._confirmed = None
                    async with aclosing(self._chunks(step)) as chunks:
                        async for chunk in chunks:
                            handed = self._taken(chunk, step.side)
                            passed = self._passed(chunk, step.side)
                            del chunk  # as in `StreamReader.messages_here`
                            while handed:
                                yield handed.pop()
                            self._delivered, self.place = passed
                elif isinstance(step, SkipTo):
                    self._skip(step.offset)
                elif not await self._rest():
                    return

    @property
    def _is_newest(self) -> bool:
        return self.place.part == self.tier.newest

    @property
    def _is_done(self) -> bool:
        """True if a read that does not wait has delivered what there was when it began."""
        at, target = self.place, self._target
        return target is not None and (at.part, at.offset) >= (target.part, target.offset)

    @property
    def _reads_source(self) -> bool:
        return ReadSide.LOCAL in self.sides and self._is_newest

    def _aim(self) -> None:
        """Decide where a read ends that does not wait: with what both sides have at the first look."""
        newest = self.tier.newest
        if ReadSide.LOCAL in self.sides and self.local.error is not None:
            end = OFFSET_MAX  # decided when the source is back
        else:
            end = max(self.tier.extent(newest).end, self.local.next_offset)
        self._target = PartOffset(newest, end)

    # What to do next.

    async def _next_step(self) -> _Step:
        """Return what to do at this place. Raises the error that keeps both sides from being read."""
        while True:
            await self._carry_over()
            extents = await self._extents()
            found = step = next_step(extents, self.place.offset)
            if isinstance(step, SkipTo):
                step = self._up_to_held_back(step)
            if self._is_doubtful(step):
                self._confirmed = self.place
                await self._look_again(step)
            elif isinstance(found, SkipTo) and await self._has_come(found, extents):
                self._confirmed = None
            elif isinstance(step, Read) and step.side is ReadSide.LOCAL and not self.local.is_open:
                await self.local.look(self._delivered, anew=True)
            else:
                break
        failed = [error for _, extent in extents if (error := extent.failed_at(self.place.offset))]
        for error in failed:
            self._tell(error)
        if not isinstance(step, Read):
            self._refuse(step, failed)
        return step

    def _up_to_held_back(self, step: SkipTo) -> SkipTo | None:
        """Return the step, if it leaves out nothing that the source has and that may be read soon."""
        at = self.place.offset
        held = self.local.held_back_from(at) if self._reads_source else None
        if held is None or step.offset <= held:
            return step
        return SkipTo(held) if held > at else None

    async def _extents(self) -> list[tuple[ReadSide, Extent]]:
        on_tier = self.tier.extent(self.place.part)
        if not self._reads_source:
            return [(ReadSide.TIER, on_tier)]
        at = self.place.offset
        if self.sides[0] is ReadSide.TIER and on_tier.from_(at) == at:
            return [(ReadSide.TIER, on_tier)]  # the source is not asked while nothing of it is needed
        await self.local.look(self._delivered)
        if self._target is not None and self._target.offset == OFFSET_MAX:
            self._aim()
        found = {ReadSide.LOCAL: self.local.extent, ReadSide.TIER: on_tier}
        return [(side, found[side]) for side in self.sides]

    def _is_doubtful(self, step: _Step) -> bool:
        """Return whether newer states of the sides may lead to another step."""
        if self._confirmed == self.place or not self._is_newest:
            return False
        match step:
            case Read(side=ReadSide.LOCAL):
                return self.sides[0] is ReadSide.TIER and self._is_tier_stale
            case Read():
                return False
            case SkipTo():
                return True
        if self.waiting is None:
            return True
        return self._reads_source and (self.local.damage is not None or self._is_beyond)

    @property
    def _is_beyond(self) -> bool:
        """True if the read began at an offset that no side has reached."""
        return self._delivered is None and self.place.offset > max(self._ends)

    @property
    def _ends(self) -> tuple[int, int]:
        return self.local.next_offset, self.tier.extent(self.place.part).end

    async def _look_again(self, step: _Step) -> None:
        if ReadSide.TIER in self.sides:
            try:
                await self.tier.refresh()
            except TryAgain:
                if not isinstance(step, Read):
                    raise  # what the tier has now decides whether something is left out
            self._is_tier_stale = False
        if self._reads_source:
            await self.local.look(self._delivered, anew=True)

    async def _has_come(self, step: SkipTo, extents: list[tuple[ReadSide, Extent]]) -> bool:
        """Return whether the tier has got what the step leaves out, since the source was looked at.

        A broker may delete its files right after a copy, between the looks at the tier and at the source.
        What the source has lost never comes back, so a look at the tier behind that one is enough.
        """
        if ReadSide.TIER not in self.sides or not self._reads_source:
            return False
        await self.tier.refresh()
        if not self._is_newest:
            return True
        on_tier = self.tier.extent(self.place.part)
        newest = [(side, on_tier if side is ReadSide.TIER else extent) for side, extent in extents]
        return next_step(newest, self.place.offset) != step

    def _refuse(self, step: SkipTo | None, failed: list[OffloadError]) -> None:
        """Raise the error because of which no side has this offset, if there is one."""
        if failed:
            raise failed[0]
        at = self.place.offset
        if not self._reads_source:
            self._refuse_cut(step)
            return
        gone, damage = self.local.error, self.local.damage
        # A source that is gone may have the offset when it is back, so nothing is skipped meanwhile.
        if gone is not None and (step is not None or self.waiting is None or isinstance(gone, Corrupt)):
            self._tell(gone)
            if isinstance(gone, Corrupt):
                raise gone
            raise TryAgain(
                f"stream {self.tier.stream!r}: the source is gone for now, at offset {at}: {gone}"
            ) from gone
        if step is None and damage is not None and at >= self.local.next_offset:
            self._tell(damage)
            raise damage
        if gone is None and self._is_beyond:
            raise NotOffloaded(
                f"stream {self.tier.stream!r} ends at offset {max(self._ends)}, before {at}, where reading "
                "began: begin again at an earlier offset"
            )
        self._refuse_cut(step)

    def _refuse_cut(self, step: SkipTo | None) -> None:
        """Raise `NotOffloaded` if the tier lost what was read from it."""
        end, at = self.tier.extent(self.place.part).end, self.place.offset
        if step is None and self._delivered is not None and not self._delivered.is_local and end < at:
            raise NotOffloaded(
                f"stream {self.tier.stream!r} ends at offset {end} now, before {at}, which was read: a "
                "rebuild has cut it"
            )

    async def _carry_over(self) -> None:
        """Follow the source's data into the part that began behind it."""
        if (
            self._is_newest
            or not self.tier.parts
            or self.place.offset <= self.tier.extent(self.place.part).end
        ):
            return
        newest = self.tier.newest
        if self._delivered is not None and self._delivered.is_local:
            await self.tier.check_holds(newest, self._delivered.chunk)
        if self._target is not None and self._target.part == self.place.part:
            self._target = PartOffset(newest, self._target.offset)
        self.place = PartOffset(newest, self.place.offset)

    # Reading.

    def _chunks(self, step: Read) -> AsyncGenerator[StoredChunk, None]:
        until = step.until
        if self._target is not None and self._target.part == self.place.part:
            until = min(until, self._target.offset)
        if step.side is ReadSide.LOCAL:
            return self.local.chunks(self.place.part, self.place.offset, until)
        return self._tier_chunks(until)

    async def _tier_chunks(self, until: int) -> AsyncGenerator[StoredChunk, None]:
        await self.local.aclose()  # it is not needed for a while, and holds a file
        self._is_tier_stale = True
        try:
            await self._check_on_tier()
            async with aclosing(self.tier.chunks(self.place.part, self.place.offset, until)) as chunks:
                handed = list[StoredChunk]()  # as in `StreamReader.messages_here`
                async for chunk in chunks:
                    handed.append(chunk)
                    del chunk
                    yield handed.pop()
        except (Corrupt, TryAgain) as error:
            if not self._reads_source:
                raise
            self.tier.fail(self.place.part, self.place.offset, error)

    async def _check_on_tier(self) -> None:
        last = self._delivered
        if last is not None and last.is_local and await self.tier.check_holds(self.place.part, last.chunk):
            self._delivered = replace(last, is_local=False)

    def _taken(self, chunk: StoredChunk, side: ReadSide) -> list[T]:
        """Return what is delivered of a chunk: nothing if `take` wants nothing of it."""
        if self._side is not side:
            self._side = side
            self._check_epoch(chunk)
        taken = self.take(chunk, self.place.offset, side)
        return [] if taken is None else [taken]

    def _passed(self, chunk: StoredChunk, side: ReadSide) -> tuple[Delivered, PartOffset]:
        """Return what is known when all of a chunk was delivered."""
        self._idle, is_local = 0, side is ReadSide.LOCAL
        kept = chunk.raw if is_local and self.local.compares_records else chunk.header
        return Delivered(bytes(kept), is_local), PartOffset(self.place.part, chunk.next_offset)

    def _check_epoch(self, chunk: StoredChunk) -> None:
        """Raise `Diverged` if an older leader wrote what comes behind a hole, or from the other side.

        There may be no chunk that can be compared. But epochs only rise in one history.
        """
        found = ChunkHeader.decode(bytes(chunk.header), where=chunk.where)
        last = None if self._delivered is None else self._delivered.header
        if last is not None and found.epoch < last.epoch:
            raise Diverged(
                f"stream {self.tier.stream!r}: the chunk at offset {found.offset} has leader epoch "
                f"{found.epoch}, but the chunk that was read before has {last.epoch}; {ADVICE}",
                kind=Divergence.FORK,
            )

    def _skip(self, offset: int) -> None:
        name = part_name(self.tier.stream, self.place.part)
        self.emit(Skipped(stream=name, from_offset=self.place.offset, to_offset=offset))
        self.place, self._side = PartOffset(self.place.part, offset), None

    def _tell(self, error: OffloadError) -> None:
        if isinstance(error, Corrupt) and not any(error is each for each in self._told):
            self._told = [*self._told[-1:], error]
            self.emit(DamageFound(damage=error))

    # At the end of what there is.

    async def _rest(self) -> bool:
        """Go to the next part, or wait for more. Return False if the read is over."""
        self._confirmed = None
        if not self._is_newest:
            await self._enter_next_part()
            return True
        if self.waiting is not None:
            self.waiting.caught_up()
            await self._wait(self.waiting.watch)
            return True
        seconds = self.local.believed.pending_seconds
        if not self._reads_source or self.local.extent.end == self.local.next_offset or seconds is None:
            return False
        await self.local.aclose()
        await self.env.sleep(seconds)
        return True

    async def _enter_next_part(self) -> None:
        later = [part for part in self.tier.parts if part.part > self.place.part]
        has = [part for part in later if part.manifest.first_offset < part.manifest.next_offset]
        entered = (has or later)[0]
        number, first = entered.part, entered.manifest.first_offset
        if ReadSide.LOCAL in self.sides and number == self.tier.newest:
            await self.local.look(None)  # it may have what was trimmed from the tier
            begin = self.local.extent.from_(0)
            first = first if begin is None else min(first, begin)
        if first != self.place.offset:
            reached = self.place.offset
            self.emit(Skipped(stream=self.tier.stream, from_offset=reached, to_offset=first, part=number))
        self.place, self._delivered, self._side = PartOffset(number, first), None, None

    async def _pause(self) -> None:
        await self.local.aclose()
        self.tier.forgive()
        self._confirmed = None
        await self.env.sleep(
            self.env.backoff_seconds(self._idle, base_seconds=SECONDS_MIN, max_seconds=SECONDS_MAX)
        )
        self._idle += 1

    async def _wait(self, watch: StreamWatch) -> None:
        """Wait until one side has something new, or may have."""
        await self.local.aclose()
        if ReadSide.TIER in self.sides and self._news is None:
            self._news = asyncio.create_task(self._tier_news(watch))
        local = asyncio.create_task(self._local_news()) if ReadSide.LOCAL in self.sides else None
        try:
            waits = [task for task in (local, self._news) if task is not None]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if local is not None:
                local.cancel()
                await asyncio.gather(local, return_exceptions=True)
        if local is not None and not local.cancelled():
            local.result()
        if self._news is not None and self._news.done():
            news, self._news = self._news, None
            news.result()
            try:
                await self.tier.refresh()
            except TryAgain:
                if local is None:
                    raise

    async def _local_news(self) -> None:
        while True:
            if self.local.believed.pending_seconds is None and await self.local.changed():
                return
            seconds = self.env.backoff_seconds(
                self._idle, base_seconds=LOOK_SECONDS_MIN, max_seconds=LOOK_SECONDS_MAX
            )
            self._idle += 1
            pending = self.local.believed.pending_seconds
            await self.env.sleep(seconds if pending is None else min(seconds, pending))
            if await self.local.has_news():
                return

    async def _tier_news(self, watch: StreamWatch) -> None:
        """Wait until the tier has something new. Raises `StreamDeleted`."""
        # It continues while messages of the source are delivered. Otherwise each of them would begin another
        # wait, and each wait begins with a look at the tier.
        while (known := self.tier.manifest) is not None:
            try:
                await watch.news(self.tier.stream, self.tier.newest, known)
            except TryAgain:
                if ReadSide.LOCAL not in self.sides:
                    raise
                await self.env.sleep(SECONDS_MAX)
            else:
                return
        await self.env.sleep(SECONDS_MAX)  # then the caller looks whether the tier has the stream
