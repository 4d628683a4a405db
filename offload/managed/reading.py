"""Reading a managed ledger: from the log and the tier, or from the log alone while the tier is away.

A tier that does not answer must not keep a consumer from records that are on this disk. So a read that begins
in the log begins without the tier then. It ends with `TryAgain`, or goes on with the tier, before it would
leave out a record whose local copy was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from offload.contracts.events import Event, Skipped
from offload.contracts.log import LedgerLog
from offload.env import Env
from offload.errors import Corrupt, Denied, TryAgain
from offload.model.position import AtEdge, AtOffset, PartOffset, Position
from offload.streams.batches import Messages
from offload.streams.choice import ReadPriority, ReadSide
from offload.streams.tiered import TieredReader
from offload.streams.watch import StreamWatch

__all__: list[str] = []

AWAY: Final = (TryAgain, Denied, Corrupt)
"""The errors of a tier that does not answer, refuses, or has lost its roots."""

Start = Position | int | PartOffset


@dataclass(slots=True, kw_only=True)
class Reading:
    """Opens reads of one log and its tier."""

    log: LedgerLog
    priority: ReadPriority
    opened: Callable[[ReadPriority, Callable[[Event], None]], Awaitable[TieredReader]]
    """Opens a reader. It raises one of `AWAY` if the tier may be read, and cannot be."""
    emit: Callable[[Event], None]
    env: Env

    async def messages(
        self, start: Start, watch: StreamWatch | None = None
    ) -> AsyncGenerator[Messages, None]:
        """Yield the messages from a position on; with a watch also what comes later. Close it."""
        at, tries = start, 0
        while True:
            try:
                reader = await self.opened(self.priority, self.emit)
                place = await _place(reader, at)
            except AWAY as error:
                begin = self._local_offset(at)
                if begin is None and (watch is None or not isinstance(error, TryAgain)):
                    raise
                if begin is not None:
                    at, tries = begin, 0
                    async with aclosing(self._local_messages(begin, watch)) as batches:
                        async for batch in batches:
                            yield batch
                            at = batch.offset + len(batch.bodies)
                    if watch is None:
                        return
                await self.env.sleep(self.env.backoff_seconds(tries, base_seconds=0.1))
                tries += 1
                continue
            found = reader.messages(place) if watch is None else reader.follow(place, watch=watch)
            async with aclosing(found):
                async for batch in found:
                    yield batch
            return

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

    async def _local_messages(self, begin: int, watch: StreamWatch | None) -> AsyncGenerator[Messages, None]:
        """Yield messages of the log alone. Ends, or raises `TryAgain`, before one is left out."""
        skips: list[Event] = []

        def note(event: Event) -> None:
            if isinstance(event, Skipped):
                skips.append(event)
            else:
                self.emit(event)

        reader = await self.opened(ReadPriority.LOCAL_ONLY, note)
        found = reader.messages(begin) if watch is None else reader.follow(begin, watch=watch)
        async with aclosing(found):
            async for batch in found:
                if skips:
                    break
                yield batch
        if skips and watch is None:
            raise TryAgain(
                f"stream {self.log.name!r}: local copies were deleted while they were read, and the tier did "
                "not answer: begin again behind the last offset"
            )


async def _place(reader: TieredReader, start: Start) -> PartOffset:
    if isinstance(start, PartOffset):
        return start
    return await reader.place_of(AtOffset(start) if isinstance(start, int) else start)
