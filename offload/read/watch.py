"""What the readers of a process know of a stream, and waiting for records that it does not have yet.

    watch = StreamWatch(catalogue)
    parts = await watch.parts(stream, max_staleness_seconds=5.0)
    news = await watch.news(stream, number, known)      # returns when there is something newer

A commit of this process is told by `committed`, and wakes the readers of its stream at once, without a
request. Commits of other processes, and parts that begin, are found by looking. One look serves all readers
of a stream. The interval between looks doubles from `SECONDS_MIN` to `SECONDS_MAX` while nothing is found.

Invariants: a waiter is woken by records that it does not know, or by the error of a look; it hears only of
the life of the stream that it reads; nothing looks while nobody waits; a waiter that is cancelled disturbs
no other. A state that is `max_staleness_seconds` old never hides a commit of this process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final
from uuid import UUID

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.events import Event, ManifestCommitted
from offload.ground.env import Env
from offload.ground.errors import StreamDeleted
from offload.model.manifest import CommittedStream
from offload.model.part import part_like
from offload.parts.whole_stream import WholeStream

__all__ = ["News", "StreamWatch"]

SECONDS_MIN: Final = 0.25
SECONDS_MAX: Final = 10.0
"""The bounds of the interval between two looks. A look that finds nothing costs two listings."""

KNOWN_MAX: Final = 1000
"""The number of streams whose state is remembered, those that were asked for last."""


@dataclass(frozen=True, slots=True)
class News:
    """The news of a stream since a reader looked at it."""

    view: StreamView | None = None
    """A newer state of the part that was the newest; None if it has none."""

    parts: Sequence[tuple[int, StreamView]] = ()
    """The parts that have their first commit by now, with their numbers, in order."""

    def __bool__(self) -> bool:
        return self.view is not None or bool(self.parts)

    def tells(self, known: CommittedStream) -> bool:
        """Return True if a reader that has read this state to its end has more to read."""
        grown = self.view is not None and self.view.committed.next_offset > known.next_offset
        return bool(self.parts) or grown


async def look(catalogue: Catalogue, stream: str, newest: int, known: CommittedStream) -> News:
    """Return what is newer than the state `known` of the `newest` part of a stream."""
    later = WholeStream(catalogue, stream, after=newest)
    # A part takes no more data after the next one has its first root, so that one is loaded first.
    begun: list[tuple[int, StreamView]] = []
    with suppress(StreamDeleted):  # of all later parts; this one may live
        begun = await later.views()
    return News(await catalogue.newer_view(known), begun)


class StreamWatch:
    """What the readers of a catalogue know, and the readers that wait. It belongs to one event loop."""

    def __init__(self, catalogue: Catalogue, *, env: Env | None = None) -> None:
        self._catalogue, self._env = catalogue, env or Env()
        self._rooms: dict[tuple[str, UUID], _Waiters] = {}
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def parts(self, stream: str, *, max_staleness_seconds: float) -> Sequence[tuple[int, StreamView]]:
        """Return the parts of a stream as `WholeStream.views` does, or as an earlier call found them.

        The earlier call began less than `max_staleness_seconds` ago, and this process has committed nothing
        to the stream since. Raises as `WholeStream.views` does.
        """
        known = self._known.setdefault(stream, _Known())
        self._known.move_to_end(stream)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        now = self._env.monotonic()
        if now - known.looked_at < max_staleness_seconds:
            return known.parts
        parts = await self._newest_parts(stream, known.parts)
        if now > known.looked_at:  # another call may have begun later, and ended earlier
            # If this process has committed meanwhile, nobody finds `known` any more.
            known.looked_at, known.parts = now, parts
        return parts

    async def _newest_parts(
        self, stream: str, known: Sequence[tuple[int, StreamView]]
    ) -> Sequence[tuple[int, StreamView]]:
        """Return the parts as they are now. If there was one, and it is as before, listings are enough."""
        if len(known) == 1:
            [(number, view)] = known
            with suppress(StreamDeleted):  # perhaps it was begun again
                news = await look(self._catalogue, stream, number, view.committed)
                return [(number, news.view or view), *news.parts]
        return await WholeStream(self._catalogue, stream).views()

    async def news(self, stream: str, newest: int, known: CommittedStream) -> News:
        """Wait until there are records behind the state `known` of the `newest` part, and return where.

        Raises what the look raises, such as `StreamDeleted`, or `TryAgain` if the store does not answer.
        """
        # A stream that is deleted and begun again has the same name, and its offsets hold other records.
        life = known.stream, known.incarnation
        room = self._rooms.setdefault(life, _Waiters())
        if room.latest.tells(known):
            return room.latest
        waiter: asyncio.Future[News] = asyncio.get_running_loop().create_future()
        room.waiters[waiter] = known
        if room.looking is None:
            room.looking = asyncio.ensure_future(self._look(stream, newest, life, room))
        try:
            return await waiter
        finally:
            del room.waiters[waiter]
            if not room.waiters:
                room.looking.cancel()
                self._close(life, room)

    def committed(self, event: Event) -> None:
        """Wake the readers of a stream to which this process has committed. Ignores all other events."""
        if not isinstance(event, ManifestCommitted):
            return
        manifest = event.manifest
        for stream in (manifest.stream, part_like(manifest.stream).first):
            self._known.pop(stream, None)
        if room := self._rooms.get((manifest.stream, manifest.incarnation)):
            room.tell(News(self._catalogue.view_of(manifest)))

    def _close(self, life: tuple[str, UUID], room: _Waiters) -> None:
        if self._rooms.get(life) is room:
            del self._rooms[life]

    async def _look(self, stream: str, newest: int, life: tuple[str, UUID], room: _Waiters) -> None:
        """Look at once, and then again and again. Ends by an error, or cancelled by the last waiter."""
        looks = 0
        seen = min(room.waiters.values(), key=lambda known: known.next_offset)
        while True:
            try:
                news = await look(self._catalogue, stream, newest, seen)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                self._close(life, room)  # a later waiter begins another look
                room.fail(error)
                return
            looks = 0 if news.tells(seen) else looks + 1
            seen = news.view.committed if news.view is not None else seen
            room.tell(news)
            await self._env.sleep(
                self._env.backoff_seconds(looks, base_seconds=SECONDS_MIN, max_seconds=SECONDS_MAX)
            )
            if not room.waiters:  # all were woken, and none has waited again
                return


@dataclass(slots=True, eq=False)
class _Known:
    """The parts of a stream, as the latest look found them."""

    looked_at: float = -inf
    """When that look began."""

    parts: Sequence[tuple[int, StreamView]] = ()


@dataclass(slots=True)
class _Waiters:
    """The readers that wait for news of one life of a part."""

    waiters: dict[asyncio.Future[News], CommittedStream] = field(default_factory=dict)
    looking: asyncio.Future[None] | None = None
    latest: News = field(default_factory=News)

    def tell(self, news: News) -> None:
        """Wake those who learn something from it."""
        if news:
            self.latest = news
        for waiter, known in self.waiters.items():
            if news.tells(known) and not waiter.done():
                waiter.set_result(news)

    def fail(self, error: Exception) -> None:
        """Wake all by an error."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
