"""A queue whose near end is in memory and in a log, and whose deep end lies on a tier: `VariableQueue`.

    where the body is     what a fetch costs
    memory                nothing: new messages stay there as long as the RAM target has room
    the log               one read of many chunks, for this message and those behind it
    the tier              one read ahead through the block cache, for this message and those behind it

A fetch looks first whether the bodies at the head are in memory, loads them if not, and looks again, because
other tasks may have taken them. It takes messages only when all of their bodies are there. So a read that
fails leaves the queue as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import TYPE_CHECKING, Final

import numpy as np

from offload.ground.errors import Misuse, NotOffloaded, TryAgain
from offload_queue.backing_queue import (
    BackingQueue,
    HeldMessage,
    MessageProperties,
    PublishedMessages,
    QueueDelivery,
    QueueRates,
)
from offload_queue.log_records import PLAIN, MessageTags, head_of, message_of
from offload_queue.message_store import MessageStore
from offload_queue.offset_set import OffsetSet
from offload_queue.positions import ACKED
from offload_queue.rates import RateMeter
from offload_queue.stored_queue import StoredQueue

if TYPE_CHECKING:
    from offload_queue.queue_tier import QueueTier

__all__ = ["VariableQueue"]

RAM_TARGET_SIZE_BYTES: Final = 16 * 2**20
TAKE_COUNT_MAX: Final = 4096
LOAD_SIZE_BYTES: Final = 2**20
LOAD_COUNT_MAX: Final = 2048


class VariableQueue(BackingQueue):
    """A queue of a `MessageStore`."""

    __slots__ = ("_head", "_is_closed", "_loading", "_queue", "_ram_target", "_rates", "_store", "_tier")

    def __init__(self, store: MessageStore, queue: StoredQueue, tier: QueueTier | None = None) -> None:
        self._store, self._queue, self._tier = store, queue, tier
        self._ram_target = RAM_TARGET_SIZE_BYTES
        self._rates = RateMeter(store.env)
        self._loading = asyncio.Lock()
        self._head = head_of([queue.number])
        self._is_closed = False

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._queue.name

    async def put(
        self,
        bodies: Sequence[bytes],
        *,
        properties: Sequence[MessageProperties] | None = None,
        delivered: bool = False,
    ) -> PublishedMessages:
        """See `BackingQueue.put`."""
        self._check()
        if delivered and self._queue.places.ready:
            raise Misuse(f"queue {self.name!r} has ready messages: a delivered one would overtake them")
        await self._store.room()
        records = records_of([self._head], bodies, properties, [self._queue.number])
        return put_into(self._store, [self], records, tier=self._tier, delivered=delivered)

    def accept(self, first: int, records: list[bytes], size_bytes: int, *, delivered: bool) -> None:
        """Take new messages that the store has. For callers that put them into several queues."""
        queue, end = self._queue, first + len(records)
        self._rates.published += len(records)
        if delivered:
            queue.places.unacked.append(first, end)
            queue.places.given = max(queue.places.given, end)
            return
        queue.places.near.append(first, end)
        if queue.ram_size_bytes + size_bytes <= self._ram_target:
            queue.keep(first, records, size_bytes)

    @property
    def is_over(self) -> bool:
        """Whether it was closed or deleted."""
        return self._is_closed or self._queue.is_deleted

    @property
    def stored(self) -> StoredQueue:
        """The queue as the store knows it."""
        return self._queue

    async def fetch(self, count: int = 1, *, ack_required: bool = True) -> Sequence[QueueDelivery]:
        """See `BackingQueue.fetch`."""
        self._check()
        found: list[QueueDelivery] = []
        with self._taking(ack_required=ack_required) as taken:
            while len(found) < count and (ahead := await self._ahead(count - len(found))) is not None:
                head, tags, records = ahead
                found += self._deliveries(tags, records)
                self._take(head, tags)
                taken.append(tags)
        return found

    async def drop(self, count: int = 1, *, ack_required: bool = False) -> Sequence[int]:
        """See `BackingQueue.drop`."""
        self._check()
        found: list[int] = []
        with self._taking(ack_required=ack_required) as taken:
            while len(found) < count:
                head = self._queue.places.head
                if head is None:
                    await self._load_deep()
                    continue
                tags = head.first(count - len(found))
                if not len(tags):
                    break
                found += tags.tolist()
                self._take(head, tags)
                taken.append(tags)
        return found

    async def ack(self, tags: Sequence[int]) -> Sequence[int]:
        """See `BackingQueue.ack`."""
        self._check()
        removed, known = self._unacked(tags)
        self._forget(removed)
        self._rates.acked += len(removed)
        return known

    async def requeue(self, tags: Sequence[int]) -> Sequence[int]:
        """See `BackingQueue.requeue`."""
        self._check()
        removed, known = self._unacked(tags)
        self._queue.places.requeue(removed, self._store.moved)
        return known

    async def ackfold(self, tags: Sequence[int]) -> Sequence[QueueDelivery]:
        """See `BackingQueue.ackfold`."""
        self._check()
        wanted, unacked = _array(tags), self._queue.places.unacked
        wanted = np.unique(wanted[unacked.contains(wanted)])
        found = dict(zip(wanted.tolist(), await self._read(wanted), strict=True))
        return [
            self._delivery(tag, record)
            for tag in dict.fromkeys(tags)
            if (record := found.get(tag)) is not None
        ]

    async def fold(self) -> AsyncGenerator[HeldMessage, None]:
        """See `BackingQueue.fold`."""
        self._check()
        places = self._queue.places
        unacked = set(places.unacked.values.tolist())
        runs = [(run, run.marks.copy()) for run in places.runs]
        near = self._queue.local_below(self._store.counts.end, self._store.moved)
        for run, marks in runs:
            at = 0
            while at < run.count:
                tags, records = await self._tier_side().records(run, at)
                for position, (tag, message) in enumerate(zip(tags.tolist(), records, strict=True), at):
                    if marks[position] != ACKED:
                        yield HeldMessage(self._delivery(tag, message), tag in unacked)
                at += len(tags)
        for begin in range(0, len(near), LOAD_COUNT_MAX):
            part = near[begin : begin + LOAD_COUNT_MAX]
            is_there = places.near.contains(part) | places.unacked.contains(part)
            part = part[is_there | (part < self._store.moved)]
            for tag, record in zip(part.tolist(), await self._read(part), strict=True):
                if record is not None:
                    yield HeldMessage(self._delivery(tag, record), tag in unacked)

    async def dropwhile(self, condition: Callable[[MessageProperties], bool]) -> MessageProperties | None:
        """See `BackingQueue.dropwhile`."""
        return (await self._while(condition, ack_required=False))[1]

    async def fetchwhile(
        self, condition: Callable[[MessageProperties], bool]
    ) -> tuple[Sequence[QueueDelivery], MessageProperties | None]:
        """See `BackingQueue.fetchwhile`."""
        return await self._while(condition, ack_required=True)

    async def purge(self) -> int:
        """See `BackingQueue.purge`."""
        self._check()
        places, count = self._queue.places, self._queue.places.ready
        for head in (places.front, places.near):
            tags = head.first(len(head))
            head.drop_first(len(tags))
            self._queue.let_go(tags)
            self._forget(tags)
        for offsets in places.drop_deep():
            self._store.acked_on_tier(self._queue, offsets)
        return count

    async def purge_acks(self) -> int:
        """See `BackingQueue.purge_acks`."""
        self._check()
        unacked = self._queue.places.unacked
        tags = unacked.first(len(unacked))
        unacked.drop_first(len(tags))
        self._forget(tags)
        return len(tags)

    async def length(self) -> int:
        """See `BackingQueue.length`."""
        self._check()
        return self._queue.places.ready

    async def depth(self) -> int:
        """See `BackingQueue.depth`."""
        self._check()
        return self._queue.places.ready + len(self._queue.places.unacked)

    def set_ram_target(self, size_bytes: int | None) -> None:
        """See `BackingQueue.set_ram_target`. Records of the tail go first: the head is wanted next."""
        self._ram_target = RAM_TARGET_SIZE_BYTES if size_bytes is None else size_bytes
        queue = self._queue
        # What is not written yet is in memory anyway.
        for tag in sorted(queue.records, reverse=True):
            if queue.ram_size_bytes <= self._ram_target:
                break
            queue.ram_size_bytes -= len(queue.records.pop(tag))

    @property
    def ram_size_bytes(self) -> int:
        """See `BackingQueue.ram_size_bytes`."""
        return self._queue.ram_size_bytes

    def rates(self) -> QueueRates:
        """See `BackingQueue.rates`."""
        return self._rates.rates()

    async def flush(self) -> None:
        """See `BackingQueue.flush`."""
        self._check()
        await self._store.flush()

    async def delete(self) -> None:
        """See `BackingQueue.delete`."""
        if not (self._is_closed and self._queue.is_deleted):
            # Again, if the record of an earlier call was not written.
            await self._store.delete(self._queue)
        self._is_closed = True

    async def aclose(self) -> None:
        """See `BackingQueue.aclose`."""
        if not self._is_closed:
            self._is_closed = True
            places = self._queue.places
            unacked = places.unacked
            tags = unacked.first(len(unacked))
            unacked.drop_first(len(tags))
            places.requeue(tags, self._store.moved)
            if self._store.failed is None:
                await self._store.flush()

    # The head of the queue.

    async def _ahead(self, count: int) -> tuple[OffsetSet, MessageTags, list[bytes]] | None:
        """Return tags of the head with their records, at least one; None if nothing is ready.

        Nothing is awaited between the return and the last look, so the caller may take them.
        """
        queue = self._queue
        while True:
            head = queue.places.head
            if head is None:
                await self._load_deep()
                continue
            if not len(head):
                return None
            tags = head.first(min(count, TAKE_COUNT_MAX))
            records = list(map(queue.records.get, tags.tolist()))
            there = next((row for row, record in enumerate(records) if record is None), len(records))
            if there:
                return head, tags[:there], [record for record in records[:there] if record is not None]
            await self._load(head)

    @contextmanager
    def _taking(self, *, ack_required: bool) -> Iterator[list[MessageTags]]:
        """Take messages in several steps: all of them, or none if a later step fails or is cancelled."""
        taken: list[MessageTags] = []
        try:
            yield taken
        except BaseException:
            for tags in taken:
                self._queue.places.requeue(self._queue.places.unacked.remove(tags), self._store.moved)
            raise
        if not ack_required:
            for tags in taken:
                self._forget(self._queue.places.unacked.remove(tags))

    def _take(self, head: OffsetSet, tags: MessageTags) -> None:
        self._queue.places.take(head, tags)
        self._queue.let_go(tags)
        self._rates.fetched += len(tags)

    async def _load(self, head: OffsetSet) -> None:
        """Load records of the head into memory, if they are still missing when the turn comes."""
        async with self._loading:
            queue = self._queue
            tags = head.first(LOAD_COUNT_MAX)
            if not len(tags) or int(tags[0]) in queue.records or head is not queue.places.head:
                return
            missing = [tag not in queue.records for tag in tags.tolist()]
            tags = tags[: missing.index(False) if False in missing else None]
            if head is queue.places.near:
                sizes = np.cumsum(self._store.counts.sizes(tags))
                tags = tags[: max(int(np.searchsorted(sizes, LOAD_SIZE_BYTES)), 1)]
            for tag, record in zip(tags.tolist(), await self._read(tags), strict=True):
                if record is not None and tag not in queue.records:
                    queue.records[tag] = record
                    queue.ram_size_bytes += len(record)
            gone = tags[~(queue.places.near.contains(tags) | queue.places.front.contains(tags))]
            queue.let_go(gone)  # others took them, or the store took them back

    async def _load_deep(self) -> None:
        """Load the next records of a run into memory, if nothing is loaded when the turn comes."""
        async with self._loading:
            places = self._queue.places
            run = places.next_run()
            if run is None or len(places.front):
                return
            at = run.loaded
            tags, records = await self._tier_side().records(run, at)
            if run.loaded != at or run not in places.runs:
                return  # the run was collected meanwhile
            ready = places.loaded(run, tags)
            if len(ready) < len(tags):
                there = np.isin(tags, ready).tolist()
                records = list(compress(records, there))
            self._queue.records.update(zip(ready.tolist(), records, strict=True))
            self._queue.ram_size_bytes += sum(map(len, records))

    async def _read(self, tags: MessageTags) -> Sequence[bytes | None]:
        """Return records by ascending tags, from the log or the tier. None: it is gone since."""
        while True:
            deep = int(np.searchsorted(tags, self._store.moved))
            try:
                local = await self._store.read(tags[deep:]) if deep < len(tags) else []
            except (NotOffloaded, TryAgain):
                if deep == int(np.searchsorted(tags, self._store.moved)):
                    raise
                continue  # they moved to the tier while they were read
            return [*await self._tier_side().find(self._queue.places, tags[:deep]), *local] if deep else local

    async def _while(
        self, condition: Callable[[MessageProperties], bool], *, ack_required: bool
    ) -> tuple[list[QueueDelivery], MessageProperties | None]:
        self._check()
        fetched: list[QueueDelivery] = []
        with self._taking(ack_required=ack_required) as taken:
            while (ahead := await self._ahead(TAKE_COUNT_MAX)) is not None:
                head, tags, records = ahead
                found = self._deliveries(tags, records)
                fails = (row for row, each in enumerate(found) if not condition(each.properties))
                stops = next(fails, len(found))
                if stops:
                    self._take(head, tags[:stops])
                    taken.append(tags[:stops])
                    if ack_required:
                        fetched += found[:stops]
                if stops < len(found):
                    return fetched, found[stops].properties
        return fetched, None

    # Tags and records.

    def _deliveries(self, tags: MessageTags, records: list[bytes]) -> list[QueueDelivery]:
        head, given, at = self._head, self._queue.places.given, len(self._head)
        return [
            QueueDelivery(tag, record[at:], tag < given, PLAIN)
            if record.startswith(head)
            else self._delivery(tag, record)
            for tag, record in zip(tags.tolist(), records, strict=True)
        ]

    def _delivery(self, tag: int, record: bytes) -> QueueDelivery:
        body, properties = message_of(record, where=self._store.log.where, offset=tag)
        return QueueDelivery(tag, body, tag < self._queue.places.given, properties)

    def _unacked(self, tags: Sequence[int]) -> tuple[MessageTags, Sequence[int]]:
        """Remove tags from the unacknowledged ones. Return them, and those of the caller that were there."""
        wanted = _array(tags)
        if len(wanted) > 1 and not (wanted[1:] > wanted[:-1]).all():
            wanted = np.unique(wanted)
        removed = self._queue.places.unacked.remove(wanted)
        if len(removed) == len(tags):
            return removed, tags
        there = set(removed.tolist())
        firsts = dict.fromkeys(tags)
        return removed, list(compress(firsts, (tag in there for tag in firsts)))

    def _forget(self, tags: MessageTags) -> None:
        """Forget messages that are in no set of places any more."""
        deep = int(np.searchsorted(tags, self._store.moved))
        if deep:
            self._store.acked_on_tier(self._queue, self._queue.places.acked_on_tier(tags[:deep]))
        self._store.acked(self._queue, tags[deep:])

    def _tier_side(self) -> QueueTier:
        if self._tier is None:
            raise Misuse(f"queue {self.name!r} has messages on a tier, and was opened without one")
        return self._tier

    def _check(self) -> None:
        self._store.check()
        if self.is_over:
            raise Misuse(f"queue {self.name!r} is {'deleted' if self._queue.is_deleted else 'closed'}")


def records_of(
    plain_heads: Sequence[bytes],
    bodies: Sequence[bytes],
    properties: Sequence[MessageProperties] | None,
    numbers: Sequence[int],
) -> list[bytes]:
    """Return the records of messages for these queues. `plain_heads` has the head without properties."""
    if not all(type(body) is bytes for body in bodies):  # one body alone is a sequence too, of numbers
        raise Misuse("publish a list of bodies; each body is bytes")
    if properties is None:
        (head,) = plain_heads
        return [head + body for body in bodies]
    if len(properties) != len(bodies):
        raise Misuse(f"{len(properties)} properties for {len(bodies)} bodies")
    for expires_ms, priority, headers in properties:
        if not (0 <= priority <= 255 and 0 <= expires_ms < 2**63 and len(headers) < 2**31):
            raise Misuse(f"a priority of {priority}, an expiry of {expires_ms}: they do not fit")
    return [head_of(numbers, each) + body for each, body in zip(properties, bodies, strict=True)]


def put_into(
    store: MessageStore,
    queues: Sequence[VariableQueue],
    records: list[bytes],
    *,
    tier: QueueTier | None,
    delivered: bool = False,
) -> PublishedMessages:
    """Put messages into several queues of a store, once. Nothing is awaited."""
    if not records:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return PublishedMessages((), done)
    size_bytes = sum(map(len, records))
    first, confirmed = store.put([each.stored for each in queues], records, size_bytes)
    for queue in queues:
        queue.accept(first, records, size_bytes, delivered=delivered)
    if tier is not None and tier.confirms:
        confirmed = tier.confirmed(first + len(records), confirmed)
    return PublishedMessages(range(first, first + len(records)), confirmed)


def _array(tags: Sequence[int]) -> MessageTags:
    if isinstance(tags, range) and tags.step == 1:
        return np.arange(tags.start, tags.stop)
    try:
        return np.fromiter(tags, np.int64, len(tags))
    except OverflowError:  # no message has such a tag
        return np.fromiter((tag for tag in tags if 0 <= tag < 2**62), np.int64)
