"""Reading from a place to an end, for all that shows messages: the command line, and a service.

Invariant: nothing behind the end is fetched, unless only a message itself can show where the end is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

import numpy as np

from offload.formats.records import RecordRun
from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position
from offload.model.record_columns import RecordBytes
from offload.read import joined
from offload.read.batches import PartRun
from offload.read.reader import Messages, StreamReader
from offload.showing.message_output import MessageOutput
from offload.two_sides.tiered import TieredReader

__all__ = ["AnyReader", "ReadingEnd", "end_of_reading", "messages_shown", "runs_to_show"]

AnyReader: TypeAlias = StreamReader | TieredReader

ReadingEnd: TypeAlias = AtOffset | AtTime | PartOffset | None
"""Where reading ends: before this place, or where this offset or time is met first."""


async def end_of_reading(reader: AnyReader, end: Position | None) -> ReadingEnd:
    """Return where reading ends. The edges of the stream are those of now."""
    return await reader.place_of(end) if isinstance(end, AtEdge) else end


async def runs_to_show(
    reader: AnyReader, place: PartOffset, until: ReadingEnd, output: MessageOutput, *, follow: bool
) -> AsyncGenerator[PartRun, None]:
    """Yield the messages from a place on. The last run may reach beyond the end. Close it."""
    # The end is looked up: nothing behind it is fetched, and a filter may hide the message that shows it.
    if isinstance(reader, StreamReader) and follow:
        found = _runs_of(reader.follow(place, until=until, caught_up=output.flush, rows_of=output.chosen))
    elif isinstance(reader, StreamReader):
        end = None if until is None else await joined.reading_end(reader.parts, place, until)
        found = reader.runs(place, until=end, rows_of=output.chosen)
    else:
        found = _runs_of(reader.follow(place, caught_up=output.flush) if follow else reader.messages(place))
    async with aclosing(found) as runs:
        async for each in runs:
            yield each


async def messages_shown(
    found: AsyncGenerator[PartRun, None], until: ReadingEnd, limit: int | None, output: MessageOutput
) -> AsyncGenerator[int, None]:
    """Write messages up to the end, and at most `limit`. Yield the number of each run. Close it.

    What the output kept is written at the end, also before an error: messages before damage are sound.
    """
    left = limit
    try:
        async with aclosing(found) as runs:
            while left != 0 and (each := await anext(runs, None)) is not None:
                wanted = _wanted(each, until)
                run = each.run.rows(0, len(each.run) if wanted is None else wanted)
                printed = output.write(PartRun(each.part, run), left)
                yield printed
                if wanted is not None:
                    break
                left = None if left is None else left - printed
    finally:
        output.flush()


async def _runs_of(found: AsyncGenerator[Messages, None]) -> AsyncGenerator[PartRun, None]:
    async with aclosing(found) as batches:
        async for batch in batches:
            records = RecordBytes.of(batch.bodies)
            offsets = np.arange(len(records), dtype=np.uint64) + np.uint64(batch.offset)
            times = np.full(len(records), batch.timestamp_ms, np.int64)
            run = RecordRun(offsets, times, records.starts, records.sizes, records.data.data)
            yield PartRun(batch.part, run)


def _wanted(each: PartRun, until: ReadingEnd) -> int | None:
    """Return how many messages of a run come before the end; None if the end is not reached."""
    run = each.run
    match until:
        case PartOffset(part) if each.part > part:
            return 0
        case AtTime(timestamp_ms):
            reached = np.flatnonzero(run.timestamps_ms >= timestamp_ms)
            return int(reached[0]) if len(reached) else None
        case AtOffset(offset):
            pass
        case PartOffset(part, offset) if each.part == part:
            pass
        case _:
            return None
    return int(np.searchsorted(run.offsets, np.uint64(offset))) if offset <= run.offsets[-1] + 1 else None
