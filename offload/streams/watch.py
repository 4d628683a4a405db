"""Waiting for records that a stream does not have yet. Any number of readers wait for the price of one.

    watch = StreamWatch(catalogue)
    news = await watch.news(part, known)        # returns when there is something newer

A commit of this process is told by `committed`, and wakes the readers of its stream at once, without a
request. Commits of other processes, and parts that begin, are found by looking. One look serves all readers
of a stream. The interval between looks doubles from `SECONDS_MIN` to `SECONDS_MAX` while nothing is found.

Invariants: a waiter is woken by records that it does not know, or by the error of a look; nothing looks while
nobody waits; a waiter that is cancelled disturbs no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.events import Event, ManifestCommitted
from offload.env import Env
from offload.errors import StreamDeleted
from offload.model.manifest import CommittedStream
from offload.model.part import StreamPart
from offload.streams.joined import live_parts

__all__ = ["News", "StreamWatch"]

SECONDS_MIN: Final = 0.25
SECONDS_MAX: Final = 10.0
"""The bounds of the interval between two looks. A look that finds nothing costs two listings."""


@dataclass(frozen=True, slots=True)
class News:
    """What became of a stream since a reader looked at it."""

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


async def look(catalogue: Catalogue, part: StreamPart, known: CommittedStream) -> News:
    """Return what is newer than the state `known` of `part`, the newest part of its stream."""
    later = await catalogue.parts(part.first, after=part.number)
    # A part takes no more data after the next one has its first root, so that one is loaded first.
    begun: list[tuple[int, StreamView]] = []
    with suppress(StreamDeleted):  # of all later parts; this one may live
        begun = await live_parts(catalogue, part.first, later) if later else []
    return News(await catalogue.newer_view(known), begun)


class StreamWatch:
    """The readers of a catalogue that wait. It belongs to one event loop."""

    def __init__(self, catalogue: Catalogue, *, env: Env | None = None) -> None:
        self._catalogue, self._env = catalogue, env or Env()
        self._rooms: dict[str, _Room] = {}

    async def news(self, part: StreamPart, known: CommittedStream) -> News:
        """Wait until there are records behind the state `known` of `part`, the newest part, and return where.

        Raises what the look raises, such as `StreamDeleted`, or `TryAgain` if the store does not answer.
        """
        room = self._rooms.setdefault(part.name, _Room())
        if room.latest.tells(known):
            return room.latest
        waiter: asyncio.Future[News] = asyncio.get_running_loop().create_future()
        room.waiters[waiter] = known
        if room.looking is None:
            room.looking = asyncio.ensure_future(self._look(part, room))
        try:
            return await waiter
        finally:
            del room.waiters[waiter]
            if not room.waiters:
                room.looking.cancel()
                if self._rooms.get(part.name) is room:
                    del self._rooms[part.name]

    def committed(self, event: Event) -> None:
        """Wake the readers of a stream to which this process has committed. Ignores all other events."""
        if isinstance(event, ManifestCommitted) and (room := self._rooms.get(event.manifest.stream)):
            room.tell(News(self._catalogue.view_of(event.manifest)))

    async def _look(self, part: StreamPart, room: _Room) -> None:
        """Look at once, and then again and again. Ends by an error, or cancelled by the last waiter."""
        looks = 0
        seen = min(room.waiters.values(), key=lambda known: known.next_offset)
        while True:
            try:
                news = await look(self._catalogue, part, seen)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
                del self._rooms[part.name]  # a later waiter begins another look
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


@dataclass(slots=True)
class _Room:
    """The readers that wait for news of one part."""

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
