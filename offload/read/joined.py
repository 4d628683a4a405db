"""The parts of a stream as one stream: where a position attaches, and reading through them.

`StreamReader` has a reader of each part, in order. The rules for a position over all of them:

    position    attaches
    first       at the beginning of the first part that has records
    last        at the last chunk with messages, in the newest part that has one
    next        at the end of the newest part
    a time      at the first chunk of that time or later, in the order of reading
    an offset   in the oldest part that holds the offset or ends with it. An offset between two parts attaches
                at the beginning of the later one

The end of a reading is the same, in the order of reading from its start on: times may step back, and a chunk
before the start that has the time ends nothing.

Behind a fork two parts hold the same offset. The oldest one counts, because reading from there delivers
everything that reading from the later one would: a caller that kept only an offset may read records twice,
and never leaves one out. A `PartOffset` is exact.

Invariants: a part is read to its end before the next one begins; every step to other offsets is reported,
once, before the first record behind it; a part without records is passed over.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from offload.contracts.events import Event, Skipped
from offload.ground.errors import NotOffloaded
from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position

if TYPE_CHECKING:  # the reader imports this module
    from offload.read.reader import StreamReader

T = TypeVar("T")

__all__ = ["place_of", "reading_end"]


async def place_of(parts: Sequence[StreamReader], position: Position) -> PartOffset:
    """Return the part and the offset at which reading from this position begins.

    Raises `NotOffloaded` for an offset beyond the end of every part.
    """
    match position:
        case AtEdge.NEXT:
            candidates: Sequence[StreamReader] = ()
        case AtEdge.LAST:
            candidates = parts[::-1]
        case AtOffset(offset):
            return await _place_of_offset(parts, offset)
        case AtEdge.FIRST | AtTime():
            candidates = parts
    for part in candidates:
        offset = await part.offset_here(position)
        # Compared with the newest view: looking for a chunk may have replaced the first one.
        if offset < part.manifest.next_offset:
            return PartOffset(part.part, offset)
    return PartOffset(parts[-1].part, parts[-1].manifest.next_offset)


async def reading_end(
    parts: Sequence[StreamReader], start: PartOffset, until: Position | PartOffset
) -> PartOffset | None:
    """Return the first place from `start` on at which a reading ends, or None if no part reaches it.

    Costs what `place_of` does. If a chunk before `start` has the time too, it costs more: the entries from
    there on are walked.
    """
    after = [each for each in parts if each.part >= start.part]
    if not after:
        return None
    if isinstance(until, AtTime):
        for part in after:
            begin = start.offset if part.part == start.part else part.manifest.first_offset
            offset = await part.offset_since(until, begin)
            if offset < part.manifest.next_offset:
                return PartOffset(part.part, max(offset, begin))
        return None
    if isinstance(until, PartOffset):
        end, last = until, after[-1]
        if (end.part, end.offset) > (last.part, last.manifest.next_offset):
            return None
    else:
        try:
            end = await place_of(after, until)
        except NotOffloaded:
            return None
    return max(end, start, key=lambda each: (each.part, each.offset))


async def _place_of_offset(parts: Sequence[StreamReader], offset: int) -> PartOffset:
    for part in parts:
        if offset <= part.manifest.next_offset:
            return PartOffset(part.part, await part.offset_here(AtOffset(offset)))
    if len(parts) == 1:
        return PartOffset(parts[0].part, await parts[0].offset_here(AtOffset(offset)))
    held = ", ".join(f"[{each.manifest.first_offset}, {each.manifest.next_offset})" for each in parts)
    raise NotOffloaded(f"the parts of stream {parts[0].stream!r} have offsets {held}; {offset} is beyond")


def part_numbered(parts: Sequence[StreamReader], number: int) -> StreamReader:
    """Return the reader of a part. Raises `NotOffloaded` if there is none, for example of a deleted part."""
    for part in parts:
        if part.part == number:
            return part
    has = ", ".join(str(each.part) for each in parts)
    raise NotOffloaded(f"stream {parts[0].stream!r} has no part {number}; it has {has}")


async def read_through(
    parts: Sequence[StreamReader],
    start: int | PartOffset,
    emit: Callable[[Event], None],
    read: Callable[[StreamReader, int], AsyncGenerator[T, None]],
) -> AsyncGenerator[T, None]:
    """Yield the messages from a place to the end of the newest part. Close it when done.

    `read` yields those of one part from an offset on.
    """
    if not isinstance(start, PartOffset):
        start = await place_of(parts, AtOffset(start))
    reached: int | None = None
    for part in parts[parts.index(part_numbered(parts, start.part)) :]:
        offset = start.offset
        if reached is not None:
            offset = part.manifest.first_offset
            if offset == part.manifest.next_offset:
                continue
            if offset != reached:
                stream = parts[0].stream
                emit(Skipped(stream=stream, from_offset=reached, to_offset=offset, part=part.part))
        async with aclosing(read(part, offset)) as batches:
            handed: list[T] = []  # as in `StreamReader.messages_here`
            async for batch in batches:
                handed.append(batch)
                del batch
                yield handed.pop()
        reached = part.manifest.next_offset
