"""The store of a vhost: one log for the messages, declarations and acknowledgements of all queues.

    put ----> tags at once ----> [records that wait] --one append--> log ----> confirmed
    ack ----> counts at once --> [acks that wait   ]

One task writes: it takes everything that waits, messages first, then the acknowledgements as one record. So
the tag of a message is known before it is written: the log, what is being written, and what waits have their
offsets one behind the other.

Invariants: `counts` and the places of the queues agree at each moment between two awaits; a ledger is deleted
only if no queue has a message of it and a checkpoint behind it is durable; below `moved`, a message is on the
tier. A failed append takes its messages back, and all that wait behind it. A tag that a consumer has got is
not given again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np

from offload.contracts.log import LedgerLog
from offload.ground.env import Env
from offload.ground.errors import Misuse, NoSpace, NotOffloaded, OffloadError, TryAgain
from offload_queue.counts import ReferenceCounts
from offload_queue.ledger_index import index_path, read_index, read_records, save_index
from offload_queue.log_records import (
    Acks,
    BatchState,
    Control,
    MessageTags,
    PackedOffsets,
    QueueAcks,
    QueueDeclared,
    QueueDeleted,
    QueueState,
    StoreState,
    encode_control,
)
from offload_queue.positions import QueuePositions
from offload_queue.stored_queue import StoredQueue

__all__ = ["MessageStore"]

WAITING_SIZE_BYTES_MAX: Final = 16 * 2**20
"""A publisher waits for the disk if records of this size wait already."""
ACK_DELAY_SECONDS: Final = 0.2
"""Acknowledgements wait for this time for a batch that has messages."""
ACKS_OF_RECORD: Final = 1_000_000
OnFull = Literal["block", "refuse"]


@dataclass(slots=True)
class _Batch:
    base: int
    records: list[bytes] = field(default_factory=list)
    confirms: list[asyncio.Future[None]] = field(default_factory=list)
    acks: list[tuple[int, bool, MessageTags]] = field(default_factory=list)
    """Queue, whether they are offsets of the tier, and the offsets."""
    controls: list[Control | Callable[[], Control]] = field(default_factory=list)
    size_bytes: int = 0
    reserved: int = 0
    """The first records are empty: their tags were given to a consumer, and are not given again."""
    checkpoint: int = -1
    """The offset of the newest state in it."""

    @property
    def is_needed(self) -> bool:
        return bool(self.records[self.reserved :] or self.acks or self.controls or self.confirms)

    def rows(self, tags: MessageTags) -> list[int]:
        """Return the rows of those of these ascending tags that are in it."""
        first, end = np.searchsorted(tags, [self.base, self.base + len(self.records)])
        found: list[int] = (tags[first:end] - self.base).tolist()
        return found


class MessageStore:
    """The messages of one vhost. `offload_queue.opening` opens one."""

    def __init__(
        self,
        log: LedgerLog,
        index_folder: Path,
        *,
        state: StoreState,
        queues: dict[int, StoredQueue],
        counts: ReferenceCounts,
        log_size_bytes_max: int,
        roll_size_bytes: int,
        on_full: OnFull,
        env: Env,
    ) -> None:
        self.log, self.env, self.queues, self.counts = log, env, queues, counts
        self.instance, self.moved, self._next_queue = state.instance, state.moved, state.next_queue
        self.batches: list[BatchState] = list(state.batches)
        """The ledgers of the tier, in order."""
        self.log_size_bytes_max, self._on_full = log_size_bytes_max, on_full
        self._roll_size_bytes = roll_size_bytes
        self._index_folder = index_folder
        self.failed: BaseException | None = None
        """The error that ended the store. Every later call raises it."""
        self.ended = asyncio.Event()
        """Set when `failed` is."""
        self._waiting = _Batch(log.next_offset)
        self._writing = _Batch(log.next_offset)
        self._task: asyncio.Task[None] | None = None
        self._later: asyncio.Task[None] | None = None
        self._progress = asyncio.Event()
        """Set, and replaced, when a batch has ended or the store has."""
        self._checkpoint = -1
        """The offset of the newest state that is durable."""
        self._is_closing = self._is_closed = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when the log has grown."""
        self.log_size_bytes = sum(ledger.size_bytes for ledger in log.ledgers)
        self._indexed = len(log.ledgers) - 1

    # Changes, all of them at once.

    def put(
        self, queues: Sequence[StoredQueue], records: list[bytes], size_bytes: int
    ) -> tuple[int, asyncio.Future[None]]:
        """Append messages for these queues. Return the first tag, and the future of their confirm."""
        self.check()
        waiting = self._waiting
        first = waiting.base + len(waiting.records)
        waiting.records += records
        waiting.size_bytes += size_bytes
        self.counts.append(len(queues), np.fromiter(map(len, records), np.uint32, len(records)))
        return first, self._confirm()

    def acked(self, queue: StoredQueue, tags: MessageTags) -> None:
        """Forget messages of a queue that are in the log."""
        if len(tags):
            self.counts.release(tags)
            self._waiting.acks.append((queue.number, False, tags))
            self._write_later()

    def acked_on_tier(self, queue: StoredQueue, offsets: MessageTags) -> None:
        """Note that the queue has marked these offsets of the tier."""
        if len(offsets):
            self._waiting.acks.append((queue.number, True, offsets))
            self._write_later()

    async def declare(self, name: str) -> StoredQueue:
        """Return the queue of this name. A new one is durable."""
        self.check()
        found = next((queue for queue in self.queues.values() if queue.name == name), None)
        if found is None:
            found = StoredQueue(self._next_queue, name, QueuePositions())
            self._next_queue += 1
            self.queues[found.number] = found
            try:
                await self.write(QueueDeclared(found.number, name))
            except OffloadError:
                del self.queues[found.number]
                raise
        return found

    async def delete(self, queue: StoredQueue) -> None:
        """Delete a queue with its messages. Returns when that is durable."""
        self.check()
        if not queue.is_deleted:
            queue.is_deleted = True
            del self.queues[queue.number]
            self.counts.release(queue.local_below(self.counts.end, self.moved))
        await self.write(QueueDeleted(queue.number))

    async def flush(self) -> None:
        """Return when everything that was done before is durable."""
        self.check()
        if self._waiting.records or self._waiting.acks or self._waiting.controls or self._task is not None:
            await self._confirm()

    async def write(self, control: Control | Callable[[], Control]) -> None:
        """Append a control, which is made when its batch begins. Return when it is durable."""
        self.check()
        self._waiting.controls.append(control)
        await self._confirm()

    async def checkpoint(self) -> None:
        """Append the state, so that nothing before it is needed but messages and acknowledgements."""
        await self.write(self.state)

    def state(self) -> StoreState:
        """Return the state of this moment."""
        queues = [
            QueueState(each.number, each.name, each.places.given, [run.state() for run in each.places.runs])
            for each in self.queues.values()
        ]
        return StoreState(
            self.instance, self.moved, self._next_queue, self._is_closing, queues, list(self.batches)
        )

    async def room(self) -> None:
        """Wait until a publisher may go on, or raise `NoSpace` if the log is full and refuses."""
        while True:
            self.check()
            is_full = self.log_size_bytes + self._waiting.size_bytes >= self.log_size_bytes_max
            if not is_full and self._waiting.size_bytes < WAITING_SIZE_BYTES_MAX:
                return
            if is_full:
                self.on_change()
                if self._on_full == "refuse":
                    raise NoSpace(
                        f"{self.log.where} has {self.log_size_bytes} bytes, and its bound is "
                        f"{self.log_size_bytes_max}: consume messages, or mend the tier, and publish again"
                    )
            await self._progress.wait()

    # Reading.

    async def read(self, tags: MessageTags) -> list[bytes]:
        """Return the records with these ascending tags of the log. Raises `NotOffloaded` if one has moved."""
        batches = (self._writing, self._waiting)
        waiting = [batch.records[row] for batch in batches for row in batch.rows(tags)]
        local = len(tags) - len(waiting)
        ledgers, found, begin = self.log.ledgers, list[bytes](), 0
        ends = [each.next_offset for each in ledgers]
        while begin < local:
            ledger = ledgers[int(np.searchsorted(ends, tags[begin], side="right"))]
            if tags[begin] < ledger.first_offset:
                raise NotOffloaded(f"{self.log.where} does not have offset {tags[begin]} any more")
            end = min(int(np.searchsorted(tags, ledger.next_offset)), local)
            async with await self.log.open_ledger(ledger.ledger_id) as handle:
                found += await read_records(handle, tags[begin:end])
            begin = end
        return found + waiting

    # Writing.

    def check(self) -> None:
        """Raise the error that ended the store, or `Misuse` after it was closed."""
        if self.failed is not None:
            raise _again(self.failed)
        if self._is_closed:
            raise Misuse(f"{self.log.where} is closed")

    def fail(self, error: BaseException) -> None:
        """End the store by an error."""
        self._end(error)
        self._take_back(error)

    def _end(self, error: BaseException) -> None:
        self.failed = self.failed or error
        self.ended.set()
        self._wake()

    def _measure(self) -> None:
        self.log_size_bytes = sum(ledger.size_bytes for ledger in self.log.ledgers)

    def _wake(self) -> None:
        passed, self._progress = self._progress, asyncio.Event()
        passed.set()

    def _confirm(self) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.confirms.append(done)
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        return done

    def _write_later(self) -> None:
        if self._task is None and self._later is None:
            self._later = asyncio.create_task(self._sleep_and_write())

    async def _sleep_and_write(self) -> None:
        try:
            await self.env.sleep(ACK_DELAY_SECONDS)
        finally:
            self._later = None
        if self._task is None and self.failed is None:
            self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        """Write batches until nothing waits."""
        try:
            while self._waiting.is_needed:
                batch = self._take()
                try:
                    if batch.records:
                        await self.log.append(batch.records, timestamp_ms=self.env.now_ms())
                except OffloadError as exc:
                    self._failed(batch, exc)
                    break
                else:
                    self._measure()  # a publisher that goes on must find a full log full
                    self._written(batch)
                    with suppress(NoSpace, TryAgain):  # after the next batch
                        await self._tend_ledgers()
                self._measure()
                self._wake()
                self.on_change()
        except Exception as exc:  # noqa: BLE001 (every later call raises it)
            self.fail(exc)
        finally:
            self._task = None
            if self._waiting.is_needed and self.failed is None:
                self._write_later()  # acknowledgements, after a disk that was full
            self._wake()

    def _take(self) -> _Batch:
        batch = self._waiting
        batch_end = batch.base + len(batch.records)
        if batch.records:
            for row in self.counts.dead_from(batch.base).tolist():
                batch.records[row] = b""  # a flying write
        made = [each() if callable(each) else each for each in [*self._acks_of(batch), *batch.controls]]
        self._writing, self._waiting = batch, _Batch(batch_end + len(made))
        states = [row for row, each in enumerate(made) if isinstance(each, StoreState)]
        batch.checkpoint = batch_end + states[-1] if states else -1
        records = [encode_control(each) for each in made]
        self.counts.append(0, np.fromiter(map(len, records), np.uint32, len(records)))
        batch.records += records
        return batch

    def _acks_of(self, batch: _Batch) -> list[Control]:
        """Return the acknowledgements of a batch as records, without those of flying writes."""
        by_queue: dict[tuple[int, bool], list[MessageTags]] = {}
        for number, on_tier, offsets in batch.acks:
            by_queue.setdefault((number, on_tier), []).append(offsets)
        controls: list[Control] = []
        sections: list[QueueAcks] = []
        count = 0
        for (number, on_tier), arrays in by_queue.items():
            offsets = arrays[0] if len(arrays) == 1 else np.unique(np.concatenate(arrays))
            if not on_tier:
                offsets = offsets[offsets >= self.counts.first]
                new = offsets >= batch.base
                if new.any():
                    new[new] = self.counts.references(offsets[new]) == 0
                    offsets = offsets[~new]
            for at in range(0, len(offsets), ACKS_OF_RECORD):
                part = offsets[at : at + ACKS_OF_RECORD]
                sections.append(QueueAcks(number, on_tier, PackedOffsets.of(part)))
                count += len(part)
                if count >= ACKS_OF_RECORD:
                    controls.append(Acks(sections))
                    sections, count = [], 0
        return [*controls, Acks(sections)] if sections else controls

    def _written(self, batch: _Batch) -> None:
        self._writing = _Batch(self._waiting.base)
        self._checkpoint = max(self._checkpoint, batch.checkpoint)
        for done in batch.confirms:
            if not done.done():
                done.set_result(None)

    def _failed(self, batch: _Batch, error: OffloadError) -> None:
        """Take back a batch that was not written. A disk that is full may have room later."""
        if not isinstance(error, NoSpace | TryAgain) or self.log.next_offset != batch.base:
            self._end(error)
        self._take_back(error)

    def _take_back(self, error: BaseException) -> None:
        writing, waiting = self._writing, self._waiting
        base = writing.base
        reserved = max([0, *(queue.places.given - base for queue in self.queues.values())])
        for queue in self.queues.values():
            queue.take_back(base)
        self.counts.cut(base)
        acks = [
            (number, on_tier, offsets if on_tier else offsets[offsets < base])
            for number, on_tier, offsets in writing.acks + waiting.acks
        ]
        kept = [each for each in acks if len(each[2])]
        self._writing = _Batch(base)
        self._waiting = _Batch(base, [b""] * reserved, acks=kept, reserved=reserved)
        self.counts.append(0, np.zeros(reserved, np.uint32))
        for done in writing.confirms + waiting.confirms:
            if not done.done():
                done.set_exception(_again(error))
                done.exception()  # nobody has to await it

    async def _tend_ledgers(self) -> None:
        """Seal a full ledger, index sealed ones, and delete the oldest as long as nothing in it is live."""
        ledgers = self.log.ledgers
        if ledgers[-1].size_bytes >= self._roll_size_bytes:
            await self.log.roll(now_ms=self.env.now_ms())
            ledgers = self.log.ledgers
        for ledger in ledgers[self._indexed : -1]:
            async with await self.log.open_ledger(ledger.ledger_id) as handle:
                index = await read_index(handle)
            with suppress(OSError):  # without it, the ledger is read
                await asyncio.to_thread(save_index, self._index_folder, index)
        self._indexed = len(ledgers) - 1
        low = min(self.counts.lowest_live(), self._writing.base)
        dead = [ledger for ledger in ledgers[:-1] if ledger.next_offset <= low]
        if dead and self._checkpoint < dead[-1].next_offset:
            self._waiting.controls.append(self.state)  # they go behind the next batch
            return
        for ledger in dead:
            await self.log.delete(ledger.ledger_id)
            self._indexed -= 1
            with suppress(OSError):
                path = index_path(self._index_folder, ledger.ledger_id)
                await asyncio.to_thread(path.unlink, missing_ok=True)
        self.counts.forget(self.log.first_offset)

    async def aclose(self) -> None:
        """Write what waits and a clean state, and close the log. Idempotent."""
        if self._is_closed:
            return
        try:
            if self.failed is None:
                with suppress(OffloadError):
                    self._is_closing = True  # every state from here on is a clean one
                    await self.checkpoint()
        finally:
            self._is_closed = True
            self._wake()  # publishers that wait for room find it closed
            for task in (self._task, self._later):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
            await self.log.aclose()


def _again(error: BaseException) -> BaseException:
    """Return an error for one caller of several: each adds its traceback."""
    if not isinstance(error, OffloadError):
        return TryAgain(f"the store of the queue ended: {error!r}")
    kind, arguments, state = error.__reduce__()[:3]
    found: OffloadError = kind(*arguments)
    found.__dict__.update(state)
    found.__cause__ = error
    return found
