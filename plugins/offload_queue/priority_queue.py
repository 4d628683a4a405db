"""A queue with priorities: a proxy over one queue for each level.

    priority 9      level 9   |head ... |  <- fetched first
    priority 2      level 2   |head ... |
    none, 0         level 0   |head ... |

A priority above the highest level counts as the highest. `fetch` takes from the highest level that has ready
messages, so lower levels may starve. Within a level, messages come in their order.

A tag here is the tag of the level's queue and the level: `tag << 8 | level`. Tags rise with every `put` if
the levels draw theirs from one sequence, as the queues of one vhost do.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from offload.ground.errors import Misuse
from offload_queue.backing_queue import (
    BackingQueue,
    HeldMessage,
    MessageProperties,
    PublishedMessages,
    QueueDelivery,
    QueueRates,
)

__all__ = ["PRIORITY_MAX", "PriorityQueue"]

PRIORITY_MAX: Final = 255
_LEVEL_BITS: Final = 8


class PriorityQueue(BackingQueue):
    """`levels[p]` has the messages of priority p. The queue owns them: it closes and deletes them.

    It keeps every clause of the contract among messages of one priority. A call for several levels is a call
    to each of them, the highest first. If one of them raises, messages that were fetched above it are
    requeued; any other call has happened to those above it.
    """

    __slots__ = ("_levels",)

    def __init__(self, levels: Sequence[BackingQueue]) -> None:
        if not 1 <= len(levels) <= PRIORITY_MAX + 1:
            raise Misuse(f"a queue has 1 to {PRIORITY_MAX + 1} levels of priority, not {len(levels)}")
        self._levels = tuple(reversed([*enumerate(levels)]))

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        """See `BackingQueue.put`."""
        properties = [MessageProperties()] * len(bodies) if properties is None else properties
        if len(bodies) != len(properties):
            raise Misuse(f"{len(bodies)} bodies have {len(properties)} properties: give one item for each")
        if delivered and not await self.is_empty():
            raise Misuse("only an empty queue takes messages that were delivered already")
        if not bodies:
            return await self._levels[-1][1].put([])
        levels = [max(0, min(each.priority, len(self._levels) - 1)) for each in properties]
        tags, confirms = [0] * len(bodies), list[Future[None]]()
        for level, queue in self._levels:
            rows = [row for row, its in enumerate(levels) if its == level]
            if rows:
                found = await queue.put(
                    [bodies[row] for row in rows],
                    properties=[properties[row] for row in rows],
                    delivered=delivered,
                )
                confirms.append(found.confirmed)
                for row, tag in zip(rows, found.tags, strict=True):
                    tags[row] = _outer(tag, level)
        return PublishedMessages(tags, confirms[0] if len(confirms) == 1 else _all_of(confirms))

    async def fetch(self, count: int = 1, *, ack_required: bool = True) -> Sequence[QueueDelivery]:
        """See `BackingQueue.fetch`."""
        found = list[QueueDelivery]()
        async with _taking(ack_required=ack_required) as taken:
            for level, queue in self._levels:
                some = await queue.fetch(count - len(found))
                taken.append((queue, [each.tag for each in some]))
                found += [_delivery(each, level) for each in some]
                if len(found) >= count:
                    break
        return found

    async def drop(self, count: int = 1, *, ack_required: bool = False) -> Sequence[int]:
        """See `BackingQueue.drop`."""
        found = list[int]()
        async with _taking(ack_required=ack_required) as taken:
            for level, queue in self._levels:
                some = await queue.drop(count - len(found), ack_required=True)
                taken.append((queue, some))
                found += [_outer(tag, level) for tag in some]
                if len(found) >= count:
                    break
        return found

    async def ack(self, tags: Sequence[int]) -> Sequence[int]:
        """See `BackingQueue.ack`."""
        return await self._each_level(tags, lambda queue, its: queue.ack(its))

    async def requeue(self, tags: Sequence[int]) -> Sequence[int]:
        """See `BackingQueue.requeue`."""
        return await self._each_level(tags, lambda queue, its: queue.requeue(its))

    async def ackfold(self, tags: Sequence[int]) -> Sequence[QueueDelivery]:
        """See `BackingQueue.ackfold`."""
        found = dict[int, QueueDelivery]()
        for level, queue in self._levels:
            some = await queue.ackfold(_inner(tags, level))
            found.update((_outer(each.tag, level), _delivery(each, level)) for each in some)
        return [found[tag] for tag in dict.fromkeys(tags) if tag in found]

    async def fold(self) -> AsyncGenerator[HeldMessage, None]:
        """See `BackingQueue.fold`. The messages come level by level."""
        for level, queue in self._levels:
            async for each in queue.fold():
                yield HeldMessage(_delivery(each.message, level), each.is_unacked)

    async def dropwhile(self, condition: Callable[[MessageProperties], bool]) -> MessageProperties | None:
        """See `BackingQueue.dropwhile`."""
        for _, queue in self._levels:
            if (survivor := await queue.dropwhile(condition)) is not None:
                return survivor
        return None

    async def fetchwhile(
        self, condition: Callable[[MessageProperties], bool]
    ) -> tuple[Sequence[QueueDelivery], MessageProperties | None]:
        """See `BackingQueue.fetchwhile`."""
        found = list[QueueDelivery]()
        async with _taking(ack_required=True) as taken:
            for level, queue in self._levels:
                some, survivor = await queue.fetchwhile(condition)
                taken.append((queue, [each.tag for each in some]))
                found += [_delivery(each, level) for each in some]
                if survivor is not None:
                    return found, survivor
        return found, None

    async def purge(self) -> int:
        """See `BackingQueue.purge`."""
        return sum([await queue.purge() for _, queue in self._levels])

    async def purge_acks(self) -> int:
        """See `BackingQueue.purge_acks`."""
        return sum([await queue.purge_acks() for _, queue in self._levels])

    async def length(self) -> int:
        """See `BackingQueue.length`."""
        return sum([await queue.length() for _, queue in self._levels])

    async def depth(self) -> int:
        """See `BackingQueue.depth`."""
        return sum([await queue.depth() for _, queue in self._levels])

    def set_ram_target(self, size_bytes: int | None) -> None:
        """See `BackingQueue.set_ram_target`. Each level gets an equal share."""
        for _, queue in self._levels:
            queue.set_ram_target(None if size_bytes is None else size_bytes // len(self._levels))

    @property
    def ram_size_bytes(self) -> int:
        """See `BackingQueue.ram_size_bytes`."""
        return sum(queue.ram_size_bytes for _, queue in self._levels)

    def rates(self) -> QueueRates:
        """See `BackingQueue.rates`."""
        columns = zip(*(queue.rates() for _, queue in self._levels), strict=True)
        return QueueRates(*map(sum, columns))

    async def flush(self) -> None:
        """See `BackingQueue.flush`."""
        for _, queue in self._levels:
            await queue.flush()

    async def delete(self) -> None:
        """See `BackingQueue.delete`."""
        for _, queue in self._levels:
            await queue.delete()

    async def aclose(self) -> None:
        """See `BackingQueue.aclose`."""
        for _, queue in self._levels:
            await queue.aclose()

    async def _each_level(
        self, tags: Sequence[int], call: Callable[[BackingQueue, list[int]], Awaitable[Sequence[int]]]
    ) -> Sequence[int]:
        """Call each level with its tags. Return the tags that they return, in the given order."""
        found = set[int]()
        for level, queue in self._levels:
            found.update(_outer(tag, level) for tag in await call(queue, _inner(tags, level)))
        return [tag for tag in dict.fromkeys(tags) if tag in found]


@asynccontextmanager
async def _taking(*, ack_required: bool) -> AsyncIterator[list[tuple[BackingQueue, Sequence[int]]]]:
    """Take messages level by level: all of them, or none if a level fails or the call is cancelled."""
    taken: list[tuple[BackingQueue, Sequence[int]]] = []
    try:
        yield taken
    except BaseException:
        for queue, tags in taken:
            await queue.requeue(tags)
        raise
    if not ack_required:
        for queue, tags in taken:
            await queue.ack(tags)


def _outer(tag: int, level: int) -> int:
    return tag << _LEVEL_BITS | level


def _inner(tags: Sequence[int], level: int) -> list[int]:
    """Return the tags of one level, as its queue has them."""
    return [tag >> _LEVEL_BITS for tag in tags if tag & PRIORITY_MAX == level]


def _delivery(found: QueueDelivery, level: int) -> QueueDelivery:
    return found._replace(tag=_outer(found.tag, level))


def _all_of(confirms: Sequence[Future[None]]) -> Future[None]:
    """Return a future that is done when all of these are, or when the first one failed."""
    joined: Future[None] = asyncio.get_running_loop().create_future()
    waiting = set(confirms)

    def done(each: Future[None]) -> None:
        waiting.discard(each)
        if joined.done():
            return
        if each.cancelled():
            joined.cancel()
        elif (error := each.exception()) is not None:
            joined.set_exception(error)
            joined.exception()  # nobody has to await it, and asyncio would log it otherwise
        elif not waiting:
            joined.set_result(None)

    for each in confirms:
        each.add_done_callback(done)
    return joined
