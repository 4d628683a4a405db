"""The place of a time among the records of a chunk, by a decoder that knows the times of records.

A tier knows one time for each chunk. A reader finds the first chunk of a time or later, and this module finds
the record in it. It looks in that chunk alone.

Invariants: no record is left out that has the time or a later one by its own time, unless a record before the
chunk has it; a record without a time of its own has that of its chunk; if no record of the chunk has the
time, reading begins with the chunk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

import numpy as np

from offload.contracts.decoder import Decoder
from offload.model.position import AtTime, PartOffset
from offload.model.record_columns import RecordBytes
from offload.read.batches import Messages

__all__ = ["record_place"]


class MessageReader(Protocol):
    """A reader of messages from a place on: `StreamReader` and `TieredReader`."""

    def messages(self, start: PartOffset) -> AsyncGenerator[Messages, None]:
        """Yield the messages chunk by chunk."""
        ...


async def record_place(
    reader: MessageReader, time: AtTime, place: PartOffset, *, decoder: Decoder
) -> PartOffset:
    """Return the place of the first record in the chunk at `place` whose time is this one or later.

    `place` is what the reader's `place_of` returned for `time`. It is returned itself if the decoder has no
    times, if no record of the chunk has such a time, and at the end of the stream. Reads one chunk.
    """
    if not decoder.has_timestamps:
        return place
    async with aclosing(reader.messages(place)) as batches:
        async for batch in batches:
            times = await asyncio.to_thread(decoder.timestamps, RecordBytes.of(batch.bodies))
            rows = np.flatnonzero(np.where(times < 0, batch.timestamp_ms, times) >= time.timestamp_ms)
            return PartOffset(batch.part, batch.offset + int(rows[0])) if len(rows) else place
    return place
