"""Several spans of an object from one reply, for a reader that says what it will read next (`Span.follows`).

A read with a hint sends one request for its span and for everything that follows. The reply stays open. A
later read that begins where the one before ended gets its bytes from there.

    reads = LongReads(ask, BufferPool(), connections_max=32)
    await reads.get("key", Span(0, 10, follows=20))     # one request for 30 bytes
    await reads.get("key", Span(10, 20))                # none

Invariants:

- A read returns the bytes of its own span, clipped at the object's end, whatever other reads do.
- The bytes of a reply are used in order, each once. If a read fails or is cancelled, its reply ends, and the
  reads that waited for it send requests of their own.
- A forked child forgets the replies of its parent. The parent still uses them.
- Nothing is repeated here: an error is raised by the read that met it.
- At most half of the connections hold replies that nobody reads, `KEPT_REPLIES_MAX` at most, each for
  `IDLE_SECONDS`. So other requests need not wait for a reader that pauses. With a single connection, hints
  are ignored.

Bytes go from the socket into memory of the pool, and to the consumer as a view of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from offload.contracts.store import Buffer, Span
from offload.ground.errors import TryAgain
from offload.store.buffers import POOLED_SIZE_BYTES_MIN, BufferPool
from offload.store.metrics import note_shared_reply
from offload_cloud.ranges import WHOLE, answered

__all__ = ["LongReads", "OpenReply", "RangeReply", "range_reply"]

IDLE_SECONDS: Final = 5.0
KEPT_REPLIES_MAX: Final = 16
"""The replies of a store that may be open while nobody reads them. The server would end them some time."""


class OpenReply(Protocol):
    """The body of a reply, while it arrives."""

    async def readinto(self, buffer: memoryview) -> None:
        """Receive exactly as many bytes as `buffer` has, or raise."""

    def close(self) -> None:
        """End the reply. Idempotent."""


@dataclass(frozen=True, slots=True)
class RangeReply:
    """A reply with the bytes of an object from `start` to `stop`.

    It may begin before the span that was asked for, because some servers ignore ranges.
    """

    body: OpenReply
    start: int
    stop: int


def range_reply(
    body: OpenReply,
    span: Span,
    *,
    status: int,
    content_range: str | None,
    size_bytes: int | None,
    where: str,
) -> RangeReply:
    """Return the reply to a request for `span` by its head. `size_bytes` is None if it does not say its size.

    Raises `TryAgain` and closes `body` if it is about other bytes.
    """
    if status == WHOLE and size_bytes is not None:
        return RangeReply(body, 0, size_bytes)
    try:
        found = answered(span, status=status, content_range=content_range, size_bytes=size_bytes, where=where)
    except TryAgain:
        body.close()
        raise
    return RangeReply(body, *found)


Ask = Callable[[str, Span], Awaitable[RangeReply | None]]
"""Sends a request for a span of a key, and returns its reply, which may end before the span does, because the
object ends there. None for a span beyond the end."""


class LongReads:
    """Reads of spans, of which several may share a reply. They belong to one event loop."""

    def __init__(self, ask: Ask, buffers: BufferPool, *, connections_max: int) -> None:
        self._ask, self._buffers = ask, buffers
        self._kept_max = min(connections_max // 2, KEPT_REPLIES_MAX)
        self._runs: dict[str, list[_SharedReply]] = {}
        self._idle: dict[_SharedReply, asyncio.TimerHandle] = {}
        self._process = os.getpid()

    async def get(self, key: str, span: Span) -> Buffer:
        """Return the bytes of a span that is not empty."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self.close()  # a reply closes the child's copy of its socket
        if not self._kept_max:
            span = replace(span, follows=0)
        run = self._run_before(key, span)
        if run is None:
            return await self._begin(key, span)
        try:
            await run.turn.acquire()
        except asyncio.CancelledError:
            self._drop(run)  # nobody takes the bytes of this read, so nobody gets those behind it
            raise
        try:
            if run.reply is not None:
                assert run.position == span.start, "a read that fails or is cancelled ends its run"
                note_shared_reply()
                return await self._take(run, span.length)
        finally:
            run.turn.release()
        # Without the hint, because the reads before this one may be repeated, with the same hint.
        return await self._begin(key, replace(span, follows=0))

    def close(self) -> None:
        """End all replies that are open, and release the memory that waits for a read."""
        self._buffers.clear()
        for runs in list(self._runs.values()):
            for run in list(runs):
                self._end(run)

    def _run_before(self, key: str, span: Span) -> _SharedReply | None:
        """Return the run whose next bytes are those of the span, and take these bytes from it."""
        for run in self._runs.get(key, ()):
            if run.next_start == span.start and span.start + span.length <= run.stop:
                run.next_start += span.length
                return run
        return None

    async def _begin(self, key: str, span: Span) -> Buffer:
        end = span.start + span.length
        run = _SharedReply(key, span.start, next_start=end, stop=end + span.follows)
        if span.follows:
            # Known before its reply, so that reads that are already on their way find it.
            self._runs.setdefault(key, []).append(run)
        async with run.turn:
            try:
                run.reply = await self._ask(key, Span(span.start, span.length + span.follows))
                if run.reply is not None:
                    await _skip(run.reply, span.start)
            except BaseException:
                self._end(run)
                raise
            if run.reply is None or run.reply.stop <= span.start:
                self._end(run)
                return b""
            return await self._take(run, span.length)

    async def _take(self, run: _SharedReply, length: int) -> Buffer:
        """Receive the next bytes of a run, whose turn the caller has."""
        reply = run.reply
        assert reply is not None
        if (timer := self._idle.pop(run, None)) is not None:
            timer.cancel()
        # Not more than the reply has: a span may be longer than the object.
        size_bytes = min(length, reply.stop - run.position)
        is_large = size_bytes >= POOLED_SIZE_BYTES_MIN
        memory = self._buffers.take(size_bytes) if is_large else memoryview(bytearray(size_bytes))
        try:
            await reply.body.readinto(memory)
        except BaseException:
            self._end(run)
            raise
        run.position += size_bytes
        if run.is_dropped or run.position in {run.stop, reply.stop}:
            self._end(run)
        elif run.next_start == run.position:
            self._keep(run)
        return memory.toreadonly() if is_large else bytes(memory)

    def _keep(self, run: _SharedReply) -> None:
        """Leave a reply open for the read that may come next."""
        if len(self._idle) >= self._kept_max:
            self._end(next(iter(self._idle)))
        self._idle[run] = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end, run)

    def _drop(self, run: _SharedReply) -> None:
        """End a run, or let the read that has its turn end it."""
        if run.turn.locked():
            run.is_dropped = True
        else:
            self._end(run)

    def _end(self, run: _SharedReply) -> None:
        if (timer := self._idle.pop(run, None)) is not None:
            timer.cancel()
        runs = self._runs.get(run.key, [])
        if run in runs:
            runs.remove(run)
            if not runs:
                del self._runs[run.key]
        run.is_dropped = True  # also if its reply is still to come
        reply, run.reply = run.reply, None
        if reply is not None:
            reply.body.close()


async def _skip(reply: RangeReply, start: int) -> None:
    """Drop the bytes of a reply before `start`."""
    before = min(start, reply.stop) - reply.start
    memory = memoryview(bytearray(min(before, POOLED_SIZE_BYTES_MIN)))
    while before > 0:
        await reply.body.readinto(memory[:before])
        before -= min(before, len(memory))


class _SharedReply:
    """A reply, and the reads that take turns with it."""

    __slots__ = ("is_dropped", "key", "next_start", "position", "reply", "stop", "turn")

    def __init__(self, key: str, position: int, *, next_start: int, stop: int) -> None:
        self.key, self.position, self.stop = key, position, stop
        self.next_start = next_start
        """The first byte that no read has asked for."""

        self.turn = asyncio.Lock()  # reads get it in the order in which they asked
        self.reply: RangeReply | None = None
        self.is_dropped = False
