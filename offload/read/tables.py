"""The tables of a stream's fragments, for readers that need no message: which chunks there are, and when.

Each costs one request, and none fetches a chunk. Several requests run ahead of the consumer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import numpy as np

from offload.contracts.catalogue import Catalogue
from offload.contracts.events import Skipped
from offload.ground.errors import Absent
from offload.model.chunk_table import ChunkTable, ChunkType
from offload.model.entry import Entry
from offload.model.manifest import CommittedStream
from offload.model.position import OFFSET_MAX
from offload.read.reader import StreamReader
from offload.read.windows import EntriesAhead

__all__ = ["chunk_tables", "count_messages"]


INDEXES_AHEAD: Final = 4


async def chunk_tables(
    catalogue: Catalogue, reader: StreamReader, offset: int = 0, *, until: int = OFFSET_MAX
) -> AsyncGenerator[ChunkTable, None]:
    """Yield the table of each fragment of the reader's part that has offsets in [offset, until), in order.

    A table is whole: it may begin before `offset`, and end behind `until`. If a fragment was trimmed since,
    the reader emits `Skipped`. Close the generator when done.
    """
    committed = reader.manifest
    entries = EntriesAhead(catalogue.view_of(committed), max(offset, committed.first_offset), until)
    ahead: deque[asyncio.Task[list[ChunkTable]]] = deque()
    is_end = False
    try:
        while True:
            while not is_end and len(ahead) < INDEXES_AHEAD:
                entry = await entries.next()
                is_end = entry is None
                if entry is not None:
                    ahead.append(asyncio.create_task(_tables_of(catalogue, reader, committed, entry)))
            if not ahead:
                return
            found = await ahead[0]
            ahead.popleft()
            for table in found:
                yield table
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)
        await entries.aclose()


async def count_messages(
    catalogue: Catalogue, reader: StreamReader, offset: int = 0, *, until: int = OFFSET_MAX
) -> int:
    """Return the number of messages of the reader's part with offsets in [offset, until).

    The entries have the numbers of whole fragments. A table is fetched only for a fragment that is in the
    range in part and has other records beside messages: two at most. If entries do not count messages
    (`StreamView.counts_messages`), all tables of the range are fetched.
    """
    committed = reader.manifest
    first, until = max(offset, committed.first_offset), min(until, committed.next_offset)
    if not committed.counts_messages:
        async with aclosing(chunk_tables(catalogue, reader, first, until=until)) as tables:
            return sum([_messages_in(table, first, until) async for table in tables])
    if (first, until) == (committed.first_offset, committed.next_offset):
        return committed.messages
    counted = 0
    entries = EntriesAhead(catalogue.view_of(committed), first, until)
    try:
        while first < until and (entry := await entries.next()) is not None:
            begin, end = max(first, entry.first_offset), min(until, entry.next_offset)
            if end - begin == entry.records:
                counted += entry.messages
            elif entry.messages == entry.records:
                counted += end - begin
            elif entry.messages:
                async with aclosing(chunk_tables(catalogue, reader, begin, until=end)) as tables:
                    counted += sum([_messages_in(table, begin, end) async for table in tables])
    finally:
        await entries.aclose()
    return counted


def _messages_in(table: ChunkTable, begin: int, end: int) -> int:
    rows = table[table["type"] == ChunkType.USER]
    firsts, nexts = rows["offset"], rows["offset"] + rows["records"]
    # Unsigned numbers: a chunk outside the range must not count as a huge difference.
    low, high = np.maximum(firsts, np.uint64(begin)), np.minimum(nexts, np.uint64(end))
    return int((high - np.minimum(low, high)).sum())


async def _tables_of(
    catalogue: Catalogue, reader: StreamReader, committed: CommittedStream, entry: Entry
) -> list[ChunkTable]:
    """Return the fragment's table. If it was replaced and swept, return its replacement's, cut to it."""
    view = catalogue.view_of(committed)
    try:
        async with await view.open(entry) as handle:
            return [await handle.table()]
    except Absent as absent:
        newest = (await reader.newer_view(view, absent)).committed
    begin = min(max(entry.first_offset, newest.first_offset), entry.next_offset)
    if begin > entry.first_offset:
        where = {"from_offset": entry.first_offset, "to_offset": begin}
        reader.emit(Skipped(stream=committed.stream, **where))
    if begin == entry.next_offset:
        return []
    again = StreamReader(catalogue, newest, emit=reader.emit)
    async with aclosing(again.windows(begin, until=entry.next_offset)) as windows:
        return [window.rows async for window in windows]
