"""A subscription: the chunks of one stream on their way to one consumer, as its credit allows.

A subscription is a task. It waits for credit and for room in the outbox, takes the next chunk from its
reader, and sends it as one frame: a head, the 48 bytes of the chunk's header, and its entries. Nothing is
decoded.

Invariants: nothing is sent without credit; a chunk is sent once, and the offsets of a subscription ascend; a
chunk that is damaged ends the subscription behind all sound chunks before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import lru_cache
from typing import Final

from offload.contracts.chunks import StoredChunk
from offload.contracts.listener import ListenerCounts, ServedStream
from offload.formats.bloom import filter_bits
from offload.ground.env import Env
from offload.ground.errors import Corrupt, NotOffloaded, OffloadError, TryAgain
from offload.model.chunk_table import ChunkType
from offload.model.position import AtEdge, AtOffset, AtTime, PartOffset, Position
from offload_rabbitmq.server.outbox import Outbox
from offload_rabbitmq.stream_frames import SIZE, Key, head_of
from offload_rabbitmq.stream_wire import OffsetKind, OffsetSpec

CREDIT_MAX: Final = 65_535
STILL_SECONDS: Final = 5.0
"""A consumer that takes nothing for so long has no reader: it is opened again at the next chunk."""

RETRY_SECONDS_MIN: Final = 0.5
RETRY_SECONDS_MAX: Final = 30.0

_HEADS: Final = {version: head_of(Key.DELIVER, version) for version in (1, 2)}
_POSITIONS: Final[Mapping[OffsetKind, AtEdge]] = {
    OffsetKind.FIRST: AtEdge.FIRST,
    OffsetKind.LAST: AtEdge.LAST,
    OffsetKind.NEXT: AtEdge.NEXT,
}

_log: Final = logging.getLogger(__name__)


class ChunkFilterOf:
    """The filter of a subscription: a test of each chunk's own bloom filter."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        found = [value.encode() for name, value in properties.items() if name.startswith("filter.")]
        self._values: Final = [value for value in found if value]
        self._is_unfiltered = properties.get("match-unfiltered") == "true"

    def wants(self, chunk: StoredChunk) -> bool:
        """Return True if a consumer may want a message of the chunk."""
        if not self._values:
            return True
        size_bytes = len(chunk.filter)
        if not size_bytes:
            return self._is_unfiltered
        if self._is_unfiltered and chunk.filter[0] & 0x80:
            return True
        return any(_has(chunk.filter, _bits(value, size_bytes)) for value in self._values)


@lru_cache(maxsize=4096)
def _bits(value: bytes, size_bytes: int) -> tuple[int, int]:
    return filter_bits(value, size_bytes)


def _has(bloom: memoryview, bits: tuple[int, int]) -> bool:
    return all(bloom[bit // 8] & 0x80 >> bit % 8 for bit in bits)


class Subscription:
    """One subscription of a connection. `start` begins it."""

    def __init__(
        self,
        number: int,
        name: str,
        *,
        offset: OffsetSpec,
        credit: int,
        version: int,
        wanted: ChunkFilterOf,
        outbox: Outbox,
        counts: ListenerCounts,
        env: Env,
    ) -> None:
        """`name` is the stream as the client calls it. `version` is that of its frames of `DELIVER`."""
        self.number, self.name = number, name
        self._offset, self._credit, self._version = offset, credit, version
        self._wanted, self._outbox, self._counts, self._env = wanted, outbox, counts, env
        self._waiting: asyncio.Future[None] | None = None
        """Set while nothing may be sent."""

        self._place: PartOffset | None = None
        """Where to read on. None as long as nothing was read."""

        self._failures = 0
        self._last_chunk: asyncio.Future[PartOffset] | None = None

    def start(
        self, reader: ServedStream, ended: Callable[[Subscription, Exception | None], None]
    ) -> asyncio.Task[None]:
        """Begin to deliver. `ended` is called at the end, with the error if there is one."""
        self._counts.subscriptions += 1
        self._task = asyncio.create_task(self._deliver(reader))

        def settle(task: asyncio.Task[None]) -> None:
            self._counts.subscriptions -= 1
            if not task.cancelled():
                error = task.exception()
                ended(self, error if isinstance(error, Exception) else None)

        self._task.add_done_callback(settle)
        return self._task

    def cancel(self) -> None:
        """End without a word."""
        self._task.cancel()

    def give_credit(self, amount: int) -> None:
        """Allow so many chunks more. A negative amount, and what is beyond the greatest one, do not count."""
        signed = amount - 2**16 if amount >= 2**15 else amount
        self._credit = min(self._credit + max(signed, 0), CREDIT_MAX)
        self.wake()

    def wake(self) -> None:
        """Look again whether a chunk may be sent."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _deliver(self, reader: ServedStream) -> None:
        try:
            while True:
                try:
                    if self._place is None:
                        self._place = await _place_of(reader, self._offset)
                    await self._may_send()
                    async with aclosing(reader.follow_chunks(self._place)) as chunks:
                        await self._pass_on(chunks, self._place, reader)
                except TryAgain as error:
                    await self._pause(error)
        finally:
            if self._last_chunk is not None:
                self._last_chunk.cancel()

    async def _pass_on(
        self, chunks: AsyncGenerator[StoredChunk, None], place: PartOffset, reader: ServedStream
    ) -> None:
        """Send chunks. Returns if the consumer takes nothing for long, or raises what the reader raises."""
        part, reached = place.part, place.offset
        try:
            while True:
                chunk = await anext(chunks)
                if chunk.part != part and chunk.offset < reached:
                    await self._stand_at(reached, chunk)
                has_written = False
                if chunk.type == ChunkType.USER and self._wanted.wants(chunk):
                    has_written = self._send(chunk, reader)
                part, reached, self._failures = chunk.part, chunk.next_offset, 0
                del chunk  # nothing is held while this waits
                if has_written:
                    await self._env.sleep(0)
                if (not self._credit or self._outbox.is_full) and not await self._may_send(STILL_SECONDS):
                    return
        finally:
            self._place = PartOffset(part, reached)

    async def _pause(self, error: TryAgain) -> None:
        """Wait before another try, longer after each that failed."""
        if not self._failures:
            _log.warning("stream %r is tried again: %s", self.name, error)
        self._failures += 1
        seconds = self._env.backoff_seconds(
            self._failures, base_seconds=RETRY_SECONDS_MIN, max_seconds=RETRY_SECONDS_MAX
        )
        await self._env.sleep(seconds)

    def _send(self, chunk: StoredChunk, reader: ServedStream) -> bool:
        self._credit -= 1
        layout = _HEADS[self._version]
        # The header and the entries are neighbours, unless there is a filter.
        has_filter = chunk.data_at > chunk.filter_at
        sections = (chunk.header, chunk.data) if has_filter else (chunk.raw[: chunk.trailer_at],)
        size_bytes = layout.size - SIZE.size + sum(map(len, sections))
        fields = [size_bytes, Key.DELIVER, self._version, self.number]
        if self._version > 1:
            fields.append(self._committed(chunk, reader))
        self._counts.delivered_chunks += 1
        self._counts.delivered_bytes += size_bytes
        return self._outbox.send(layout.pack(*fields), *sections)

    def _committed(self, chunk: StoredChunk, reader: ServedStream) -> int:
        """Return the id of the last committed chunk, as far as it is known without waiting for it."""
        if self._last_chunk is None:
            self._last_chunk = asyncio.ensure_future(reader.place_of(AtEdge.LAST))
        known = self._last_chunk
        if known.done() and not known.cancelled() and known.exception() is None:
            return max(known.result().offset, chunk.offset)
        return chunk.offset

    async def _may_send(self, seconds: float | None = None) -> bool:
        """Wait until a chunk may be sent. Return False if that takes longer than `seconds`."""
        if self._credit and not self._outbox.is_full:
            return True
        self._outbox.flush()  # now, and not when the loop comes around: the client answers with credit
        loop = asyncio.get_running_loop()
        # One timer for all turns: a consumer that gives one credit at a time waits for each chunk.
        late = None if seconds is None else loop.call_later(seconds, self.wake)
        end = None if late is None else late.when()
        try:
            while not self._credit or self._outbox.is_full:
                self._waiting = loop.create_future()
                await self._waiting
                if end is not None and loop.time() >= end:
                    break
        finally:
            self._waiting = None
            if late is not None:
                late.cancel()
        return bool(self._credit) and not self._outbox.is_full

    async def _stand_at(self, reached: int, chunk: StoredChunk) -> None:
        """Wait for ever, because the next part repeats offsets."""
        _log.warning(
            "stream %r ends at offset %d for consumers: part %d begins at offset %d again, and is served by "
            "its own name",
            self.name,
            reached,
            chunk.part,
            chunk.offset,
        )
        await asyncio.Event().wait()


async def _place_of(reader: ServedStream, spec: OffsetSpec) -> PartOffset:
    """Return the place at which a consumer attaches. An offset beyond the end is the end."""
    position: Position = _POSITIONS.get(spec.kind, AtEdge.NEXT)
    if spec.kind is OffsetKind.OFFSET:
        position = AtOffset(spec.value)
    elif spec.kind is OffsetKind.TIMESTAMP:
        position = AtTime(spec.value)
    try:
        return await reader.place_of(position)
    except NotOffloaded:
        if not isinstance(position, AtOffset):
            raise
        return await reader.place_of(AtEdge.NEXT)


def explain(name: str, error: Exception) -> str:
    """Return a line of the log about a stream that can be delivered no more."""
    if isinstance(error, Corrupt):
        return f"stream {name!r} is damaged, and its consumers are told that it is not available: {error}"
    if isinstance(error, OffloadError):
        return f"stream {name!r} is not available: {error}"
    return f"stream {name!r}: {error!r}"
