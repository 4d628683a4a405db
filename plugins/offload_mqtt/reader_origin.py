"""The origin of a replay that a reader reads: on the disk of a source, on a tier, or on both.

Its messages are not sorted, so each chunk is made into topic records here, as `sorted_ledger` makes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeAlias

import numpy as np

from offload.contracts.events import Event, Skipped
from offload.formats.records import RecordRun
from offload.formats.rows import ValuePool, column_of
from offload.ground.env import Env
from offload.ground.errors import NotOffloaded, StreamDeleted
from offload.model.entry import EntryKind
from offload.model.position import AtEdge, PartOffset
from offload.model.record_columns import RecordBytes
from offload.read.batches import Messages
from offload.read.reader import StreamReader
from offload.two_sides.tiered import TieredReader
from offload_mqtt.origin import OriginTrimmed, ReplayOrigin
from offload_mqtt.sorted_ledger import TopicSource
from offload_mqtt.topic_record import HEAD, TOPIC_SIZE_BYTES_MAX, RecordKind, columns_of

__all__ = ["ReaderOrigin", "topic_records"]

WAIT_SECONDS: Final = 0.5

OpenReader: TypeAlias = Callable[[Callable[[Event], None]], Awaitable[StreamReader | TieredReader]]


class ReaderOrigin(ReplayOrigin):
    """The origin that a reader reads: of a source's disk, of its copy on a tier, or of both."""

    def __init__(self, open_reader: OpenReader, topics: TopicSource, env: Env) -> None:
        """`open_reader` is called once, with a function that takes the events of the reader."""
        self._open, self._topics, self._env = open_reader, topics, env
        self._skips = list[Skipped]()
        self._reader: StreamReader | TieredReader | None = None

    async def next_offset(self) -> int:
        """Return the end of what the reader has."""
        return await (await self._opened()).offset_of(AtEdge.NEXT)

    async def runs(self, offset: int) -> AsyncGenerator[RecordRun, None]:
        """Yield the messages of each chunk, as topic records."""
        reader = await self._opened()
        part = reader.parts[-1].part if reader.parts else 1
        try:
            async with aclosing(reader.messages(PartOffset(part, offset))) as batches:
                async for batch in batches:
                    self._check()
                    yield await asyncio.to_thread(topic_records, batch, self._topics)
        except StreamDeleted:
            raise
        except NotOffloaded:  # the source ends before this offset: it may be a replica that lags
            return
        self._check()

    async def begins_ledger(self, offset: int) -> bool:
        """Ask the source, or else the entries of its copy on the tier."""
        reader = await self._opened()
        if isinstance(reader, TieredReader):
            async with await reader.source.snapshot() as snapshot:
                for each in snapshot.ledgers:
                    if each.first_offset <= offset < each.next_offset:
                        return each.first_offset == offset
        for part in reader.parts[-1:]:
            entries = part.manifest.entries
            ends = entries["first_offset"] + entries["records"]
            row = int(np.searchsorted(ends, np.uint64(offset)))
            if row + 1 < len(entries) and entries["kind"][row] == EntryKind.FRAGMENT:
                is_new = entries["ledger_id"][row] != entries["ledger_id"][row + 1]
                return bool(ends[row] == offset and is_new)
        return True

    async def wait(self) -> None:
        """Return after a short time."""
        await self._env.sleep(WAIT_SECONDS)

    async def _opened(self) -> StreamReader | TieredReader:
        self._skips.clear()
        if self._reader is None:
            self._reader = await self._open(self._told)
        else:
            await self._reader.refresh()
        return self._reader

    def _told(self, event: Event) -> None:
        if isinstance(event, Skipped):
            self._skips.append(event)

    def _check(self) -> None:
        if self._skips:
            raise OriginTrimmed(self._skips[-1].to_offset)


def topic_records(batch: Messages, topics: TopicSource) -> RecordRun:
    """Return the messages of a chunk as topic records, whose origin is their offset."""
    records, count = RecordBytes.of(batch.bodies), len(batch.bodies)
    heads = np.zeros(count, HEAD)
    heads["origin"] = batch.offset + np.arange(count)
    if topics.are_in_records:
        parts = columns_of(records)
        heads["kind"], heads["flags"], heads["time_us"] = parts.kinds, parts.flags, parts.times_us
        names, records = RecordBytes.of(parts.topics), parts.rests
    else:
        heads["kind"], heads["time_us"] = RecordKind.AMQP, batch.timestamp_ms * 1000
        names = _terms(records, topics)
    heads["topic_size"] = names.sizes
    pool = ValuePool(heads.view(np.uint8), np.arange(count) * HEAD.itemsize, np.full(count, HEAD.itemsize))
    pieces = [pool, *(ValuePool(each.data, each.starts, each.sizes) for each in (names, records))]
    joined = column_of(pieces, count)
    starts = joined.offsets[:-1].astype(np.int64)
    sizes = np.diff(joined.offsets).astype(np.int64)
    times_ms = np.full(count, batch.timestamp_ms, np.int64)
    return RecordRun(heads["origin"].astype(np.uint64), times_ms, starts, sizes, joined.data.data)


def _terms(records: RecordBytes, topics: TopicSource) -> RecordBytes:
    """Return the topic of each record. It is empty if the record has none, or one that is too long."""
    found = topics.by.terms(topics.decoder, records)
    rows, at = np.unique(found.rows, return_index=True)
    data = found.values.data
    if topics.are_routing_keys:  # as in `sorted_ledger`
        data = np.where(data == ord("."), np.uint8(ord("/")), data)
    starts, sizes = np.zeros(len(records), np.int64), np.zeros(len(records), np.int64)
    starts[rows] = found.values.offsets[:-1][at]
    sizes[rows] = np.diff(found.values.offsets)[at]
    sizes[sizes > TOPIC_SIZE_BYTES_MAX] = 0
    return RecordBytes(data, starts, sizes)
