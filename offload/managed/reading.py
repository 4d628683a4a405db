"""Reading a managed ledger: from the log as long as it has the records, else from the log and the tier.

A tier that does not answer must not keep a consumer from records that are on this disk. So a read that
prefers the log, and begins in it, sends the tier no request. It turns to the tier at a local copy that was
deleted meanwhile, or that is damaged. A follower returns to the log alone when it has passed that place.

    the reader is at an offset that            it reads
    the log has                                the log alone, if that is preferred
    the log does not have, or damaged          both sides, by `TieredReader`, which compares them
    the log has, and the tier does not answer  the log alone, whatever is preferred

Invariants: no record is left out unless neither side has it, and that is reported; no record of the tier is
delivered that contradicts the log, or that is beyond its end: another process has written it then.

The log of an owner is one history: it only grows and loses its oldest ledgers. So records that follow others
in the log need no comparison with the tier.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from offload.contracts.events import DamageFound, Event, Skipped
from offload.contracts.log import LedgerLog
from offload.ground.env import Env
from offload.ground.errors import Corrupt, Denied, TryAgain
from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position
from offload.read.batches import Messages
from offload.read.watch import StreamWatch
from offload.two_sides.choice import ReadPriority, ReadSide
from offload.two_sides.tiered import TieredReader

__all__: list[str] = []

AWAY: Final = (TryAgain, Denied, Corrupt)
"""The errors of a tier that does not answer, refuses, or has lost its roots."""

Start = Position | int | PartOffset


class _LeftOut(Exception):
    """The log alone does not have the next record any more."""


class _Outdated(Exception):
    """The reader has a state of the tier that cannot be compared any more."""


@dataclass(slots=True, kw_only=True)
class Reading:
    """Opens reads of one log and its tier."""

    log: LedgerLog
    priority: ReadPriority
    opened: Callable[[ReadPriority, Callable[[Event], None]], Awaitable[TieredReader]]
    """Opens a reader. It raises one of `AWAY` if the tier may be read, and cannot be."""
    is_doubtful: Callable[[], bool]
    """Returns True if the tier is known to have another history than the log."""
    agreed: Callable[[TieredReader], Awaitable[bool]]
    """Asks whether the log continues what a reader sees on the tier. Raises `Fenced` or `Diverged` if not.

    Returns False if the reader sees records that were trimmed before they were compared: open another one.
    """
    emit: Callable[[Event], None]
    env: Env

    async def messages(
        self, start: Start, watch: StreamWatch | None = None
    ) -> AsyncGenerator[Messages, None]:
        """Yield the messages from a position on; with a watch also what comes later. Close it."""
        at, tries = start, 0
        while True:
            begin = await self._in_log(at) if self._prefers_log else None
            if begin is not None:
                at, tries = begin, 0
                try:
                    async with aclosing(self._local_messages(begin, watch)) as batches:
                        async for batch in batches:
                            yield batch
                            at = batch.offset + len(batch.bodies)
                    return
                except (_LeftOut, Corrupt, TryAgain):
                    pass  # the tier may have it
            try:
                reader = await self.opened(self.priority, self.emit)
                place = await _place(reader, at)
            except AWAY as error:
                begin = None if self._prefers_log else self._local_offset(at)
                if begin is None and (watch is None or not isinstance(error, TryAgain)):
                    raise
                if begin is not None:
                    at, tries = begin, 0
                    try:
                        async with aclosing(self._local_messages(begin, watch, self.emit)) as batches:
                            async for batch in batches:
                                yield batch
                                at = batch.offset + len(batch.bodies)
                    except _LeftOut:
                        if watch is None:
                            raise self._deleted_meanwhile() from None
                    if watch is None:
                        return
                await self.env.sleep(self.env.backoff_seconds(tries, base_seconds=0.1))
                tries += 1
                continue
            at = place
            try:
                async with aclosing(self._tiered_messages(reader, place, watch)) as batches:
                    async for batch in batches:
                        yield batch
                        at = PartOffset(batch.part, batch.offset + len(batch.bodies))
            except _Outdated:
                continue
            if watch is None:
                return

    @property
    def _prefers_log(self) -> bool:
        return self.priority is ReadPriority.LOCAL_FIRST and not self.is_doubtful()

    async def _tiered_messages(
        self, reader: TieredReader, place: PartOffset, watch: StreamWatch | None
    ) -> AsyncGenerator[Messages, None]:
        """Yield the messages of both sides. With a watch, end behind the first one that the log has."""
        found = reader.messages(place) if watch is None else reader.follow(place, watch=watch)
        checked, from_log = None, 0
        async with aclosing(found):
            async for batch in found:
                is_local = reader.records[ReadSide.LOCAL] > from_log
                from_log = reader.records[ReadSide.LOCAL]
                end = batch.offset + len(batch.bodies)
                if not is_local and self._may_contradict(end) and checked is not (seen := reader.committed):
                    if not await self.agreed(reader):
                        raise _Outdated
                    checked = seen
                yield batch
                if is_local and watch is not None and self._prefers_log:
                    return

    def _may_contradict(self, end: int) -> bool:
        """Return whether a record of the tier before `end` may be another one than that of the log."""
        # Also if the log is preferred: `TieredReader` leaves a source alone that ends before the tier with
        # another history, because it may be a replica that lags. The log of an owner is none.
        is_local = ReadSide.LOCAL in self.priority.sides
        return end > (self.log.first_offset if is_local else self.log.next_offset)

    async def _in_log(self, start: Start) -> int | None:
        """Return the offset at which a read of the log alone begins. None: the tier must be asked."""
        offset = self._local_offset(start)
        is_empty = self.log.first_offset == self.log.committed_offset
        has_first = self.log.first_offset == 0
        is_here = start is AtEdge.LAST or (has_first and (start is AtEdge.FIRST or isinstance(start, AtTime)))
        if offset is not None or is_empty or not is_here or isinstance(start, int | PartOffset):
            return offset
        try:
            return await (await self.opened(ReadPriority.LOCAL_ONLY, self.emit)).offset_of(start)
        except AWAY:
            return None  # the tier may know it

    def _local_offset(self, start: Start) -> int | None:
        """Return the offset if the log has it now, or ends there."""
        if ReadSide.LOCAL not in self.priority.sides:
            return None
        if start is AtEdge.NEXT:
            return self.log.committed_offset
        offset = start if isinstance(start, int) else getattr(start, "offset", None)
        is_plain = isinstance(start, int | AtOffset) or (isinstance(start, PartOffset) and start.part == 1)
        if not is_plain or offset is None:
            return None
        return offset if self.log.first_offset <= offset <= self.log.committed_offset else None

    async def _local_messages(
        self, begin: int, watch: StreamWatch | None, damaged: Callable[[Event], None] = lambda event: None
    ) -> AsyncGenerator[Messages, None]:
        """Yield messages of the log alone. Raises `_LeftOut` before one is left out.

        `damaged` is called with the damage that is met.
        """

        def note(event: Event) -> None:
            if isinstance(event, Skipped):
                raise _LeftOut
            if isinstance(event, DamageFound):
                damaged(event)
            else:
                self.emit(event)

        reader = await self.opened(ReadPriority.LOCAL_ONLY, note)
        found = reader.messages(begin) if watch is None else reader.follow(begin, watch=watch)
        async with aclosing(found):
            async for batch in found:
                yield batch

    def _deleted_meanwhile(self) -> TryAgain:
        return TryAgain(
            f"stream {self.log.name!r}: local copies were deleted while they were read, and the tier did "
            "not answer: begin again behind the last offset"
        )


async def _place(reader: TieredReader, start: Start) -> PartOffset:
    """Return where a read begins. It is not moved behind trimmed offsets, so that the reader reports them."""
    if isinstance(start, PartOffset):
        return start
    position = AtOffset(start) if isinstance(start, int) else start
    place = await reader.place_of(position)
    if isinstance(position, AtOffset) and position.offset < place.offset:
        return PartOffset(place.part, position.offset)
    return place
