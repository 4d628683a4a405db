"""A queue in memory: the whole contract of `BackingQueue` except durability, and nothing more.

    messages   {tag: (body, properties)}   all of them, in the order of tags
    ready      a heap of tags              the lowest is the head
    unacked    a set of tags

Invariants: `ready` and `unacked` have each tag of `messages` once, between them. `fetch` takes the lowest
tag. So a ready tag at or below `given`, the highest tag that was ever delivered, was requeued.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count as numbers

from offload.ground.env import Env
from offload.ground.errors import Misuse
from offload_queue.backing_queue import (
    BackingQueue,
    HeldMessage,
    MessageProperties,
    PublishedMessages,
    QueueDelivery,
    QueueRates,
)
from offload_queue.rates import RateMeter

__all__ = ["MemoryPlace", "MemoryQueue"]


@dataclass
class MemoryPlace:
    """The messages of one queue, for as long as a test needs them: its queue may be closed, or lost."""

    messages: dict[int, tuple[bytes, MessageProperties]] = field(default_factory=dict)
    tags: Iterator[int] = field(default_factory=numbers)
    """The tags that were never used. The levels of one `PriorityQueue` share them."""
    given: int = -1
    is_open: bool = False
    """True after a queue was opened and not closed. The next one then begins as after a crash."""


class MemoryQueue(BackingQueue):
    """The messages of a `MemoryPlace`. A queue without one forgets its messages when nobody refers to it."""

    __slots__ = ("_is_closed", "_place", "_rates", "_ready", "_unacked")

    def __init__(self, place: MemoryPlace | None = None, *, env: Env | None = None) -> None:
        self._place = place = place or MemoryPlace()
        if place.is_open:
            place.given = max(place.messages, default=place.given)
        place.is_open, self._is_closed = True, False
        self._ready, self._unacked = sorted(place.messages), set[int]()
        self._rates = RateMeter(env or Env())

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        """See `BackingQueue.put`."""
        place = self._kept()
        if properties is None:
            properties = [MessageProperties()] * len(bodies)
        if len(bodies) != len(properties):
            raise Misuse(f"{len(bodies)} bodies have {len(properties)} properties: give one item for each")
        if delivered and self._ready:
            raise Misuse("only an empty queue takes messages that were delivered already")
        tags = [next(place.tags) for _ in bodies]
        place.messages.update(zip(tags, zip(bodies, properties, strict=True), strict=True))
        if delivered:
            self._unacked.update(tags)
            place.given = max([place.given, *tags])
        else:
            self._ready += tags  # above all that are there, so the list is a heap still
        self._rates.published += len(tags)
        confirmed = asyncio.get_running_loop().create_future()
        confirmed.set_result(None)
        return PublishedMessages(tags, confirmed)

    async def fetch(self, count: int = 1, *, ack_required: bool = True) -> Sequence[QueueDelivery]:
        """See `BackingQueue.fetch`."""
        place = self._kept()
        tags = [heappop(self._ready) for _ in range(min(count, len(self._ready)))]
        found = self._deliveries(tags)
        place.given = max([place.given, *tags])
        self._unacked.update(tags)
        if not ack_required:
            self._forget(tags)
        self._rates.fetched += len(tags)
        return found

    async def drop(self, count: int = 1, *, ack_required: bool = False) -> Sequence[int]:
        """See `BackingQueue.drop`."""
        return [each.tag for each in await self.fetch(count, ack_required=ack_required)]

    async def ack(self, tags: Sequence[int]) -> Sequence[int]:
        """See `BackingQueue.ack`."""
        found = self._taken(tags)
        self._forget(found)
        self._rates.acked += len(found)
        return found

    async def requeue(self, tags: Sequence[int]) -> Sequence[int]:
        """See `BackingQueue.requeue`."""
        found = self._taken(tags)
        self._unacked.difference_update(found)
        for tag in found:
            heappush(self._ready, tag)
        return found

    async def ackfold(self, tags: Sequence[int]) -> Sequence[QueueDelivery]:
        """See `BackingQueue.ackfold`."""
        return self._deliveries(self._taken(tags))

    async def fold(self) -> AsyncGenerator[HeldMessage, None]:
        """See `BackingQueue.fold`."""
        found = self._deliveries(self._kept().messages)
        for held in [HeldMessage(each, each.tag in self._unacked) for each in found]:
            yield held

    async def dropwhile(self, condition: Callable[[MessageProperties], bool]) -> MessageProperties | None:
        """See `BackingQueue.dropwhile`."""
        found, survivor = await self.fetchwhile(condition)
        self._forget(each.tag for each in found)
        return survivor

    async def fetchwhile(
        self, condition: Callable[[MessageProperties], bool]
    ) -> tuple[Sequence[QueueDelivery], MessageProperties | None]:
        """See `BackingQueue.fetchwhile`."""
        place, found = self._kept(), list[QueueDelivery]()
        while self._ready:
            facts = place.messages[self._ready[0]][1]
            if not condition(facts):
                return found, facts
            found += await self.fetch()
        return found, None

    async def purge(self) -> int:
        """See `BackingQueue.purge`."""
        self._kept()
        purged, self._ready = self._ready, []
        self._forget(purged)
        return len(purged)

    async def purge_acks(self) -> int:
        """See `BackingQueue.purge_acks`."""
        self._kept()
        unacked = list(self._unacked)
        self._forget(unacked)
        return len(unacked)

    async def length(self) -> int:
        """See `BackingQueue.length`."""
        self._kept()
        return len(self._ready)

    async def depth(self) -> int:
        """See `BackingQueue.depth`."""
        return len(self._kept().messages)

    def set_ram_target(self, size_bytes: int | None) -> None:
        """See `BackingQueue.set_ram_target`."""
        self._kept()

    @property
    def ram_size_bytes(self) -> int:
        """See `BackingQueue.ram_size_bytes`."""
        return sum(len(each.body) for each in self._deliveries(self._ready))

    def rates(self) -> QueueRates:
        """See `BackingQueue.rates`."""
        self._kept()
        return self._rates.rates()

    async def flush(self) -> None:
        """See `BackingQueue.flush`."""
        self._kept()

    async def delete(self) -> None:
        """See `BackingQueue.delete`."""
        if not self._is_closed:
            self._place.messages.clear()
        await self.aclose()

    async def aclose(self) -> None:
        """See `BackingQueue.aclose`."""
        if not self._is_closed:
            self._is_closed, self._place.is_open = True, False

    def _kept(self) -> MemoryPlace:
        if self._is_closed:
            raise Misuse("the queue is closed")
        return self._place

    def _taken(self, tags: Sequence[int]) -> list[int]:
        """Return those that are unacknowledged, each once."""
        self._kept()
        return [tag for tag in dict.fromkeys(tags) if tag in self._unacked]

    def _deliveries(self, tags: Iterable[int]) -> list[QueueDelivery]:
        place = self._kept()
        found = ((tag, *place.messages[tag]) for tag in tags)
        return [QueueDelivery(tag, body, tag <= place.given, facts) for tag, body, facts in found]

    def _forget(self, tags: Iterable[int]) -> None:
        for tag in tags:
            del self._place.messages[tag]
            self._unacked.discard(tag)
