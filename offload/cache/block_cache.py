"""A cache of checked chunks that the readers of a session share.

    cache = BlockCache(size_bytes=128 * 2**20)
    reader = await StreamReader.open(tier, "orders", cache=cache)
    ...
    await cache.aclose()

The cache owns all fetches: one for each block and each tail, however many readers want it. Readers hold no
bytes: they take a block when they come to it, and ask again if it has left by then.

Memory: `size_bytes` for blocks, fetches and tails together (`room` has the rules). A block may lie in memory
that is an eighth larger. Besides: the window in the hands of each consumer of `windows`, and the memory that
the store's client keeps for its next reads. A block larger than `size_bytes` is held by its readers.

Invariants: only chunks that a handle of a tier has checked enter; an error goes to all who wait for the
fetch, and is not kept; a fetch that nobody wants any more is cancelled; after `aclose`, nothing runs. A
cache belongs to one event loop of one process: a forked child begins with an empty one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from offload.cache.cached_windows import CachedWindows
from offload.cache.contents import Block, CachedStream, CachedStreams, Fragment, Kept, KeptState, KeptTail
from offload.cache.memory import AGE_SECONDS, CacheMemory
from offload.cache.reader_speeds import Pace
from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.ledger import ReadHandle
from offload.contracts.row_choice import RowChoice
from offload.contracts.store import Buffer
from offload.ground.env import Env
from offload.ground.errors import Misuse, OffloadError
from offload.model.chunk_table import ChunkTable
from offload.read.batches import Window
from offload.read.windows import FIRST_WINDOW_SIZE_BYTES, READ_WINDOW_SIZE_BYTES

__all__ = ["BlockCache", "CacheCounts"]

T = TypeVar("T")
K = TypeVar("K", bound=Kept[Any])

CACHE_SIZE_BYTES: Final = 128 * 1024 * 1024
"""The default: 10,000 readers that stand still leave a process with an S3 client below 300 MiB."""

_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCounts:
    """The totals of a cache since it was made, and the memory that it takes now."""

    hits: int
    """The blocks and tails that were ready when a reader asked for them."""

    shared: int
    """Those that were being fetched for another reader."""

    fetched: int
    """Those for which a fetch began."""

    left_for_room: int
    left_by_age: int
    size_bytes: int
    """The memory of what is ready, and of the blocks that are being fetched."""


class BlockCache:
    """A cache that readers of any number of streams share. It belongs to one event loop."""

    def __init__(
        self,
        size_bytes: int = CACHE_SIZE_BYTES,
        *,
        env: Env | None = None,
        throttled: Callable[[], int] = lambda: 0,
        step_size_bytes: int = FIRST_WINDOW_SIZE_BYTES,
    ) -> None:
        """`throttled` returns the number of requests that the stores have refused because of their rate.

        Readers read less far ahead when it rises. `step_size_bytes` is the size of the smallest fetch.
        """
        if size_bytes < 1 or step_size_bytes < 1:
            raise Misuse(f"a cache has 1 byte or more, not {size_bytes} in steps of {step_size_bytes}")
        self.size_bytes, self.step_size_bytes, self.throttled = size_bytes, step_size_bytes, throttled
        self.block_size_bytes_max = max(step_size_bytes, min(READ_WINDOW_SIZE_BYTES, size_bytes // 16))
        """The largest fetch: with several blocks, the cache can drop one and keep the others."""

        self.clock, self._sleep = (env or Env()).monotonic, (env or Env()).sleep
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._streams = CachedStreams()
        self._room = CacheMemory(self.size_bytes, clock=self.clock, gone=self._drop)
        self._fetches: dict[Kept[Any], asyncio.Task[Any]] = {}
        self._starts: dict[Block, Callable[[], Coroutine[Any, Any, tuple[Window, int]]]] = {}
        """How to fetch the blocks that wait for room."""

        self._closings: set[asyncio.Task[None]] = set()
        self._ageing: asyncio.Task[None] | None = None
        self._hits = self._shared = self._fetched = 0

    @property
    def counts(self) -> CacheCounts:
        """The counters, for example to tune `size_bytes`."""
        return CacheCounts(
            hits=self._hits,
            shared=self._shared,
            fetched=self._fetched,
            left_for_room=self._room.left["room"],
            left_by_age=self._room.left["age"],
            size_bytes=self._room.size_bytes,
        )

    def windows(
        self,
        catalogue: Catalogue,
        view: StreamView,
        offset: int,
        *,
        in_flight_max: int,
        until: int,
        rows_of: RowChoice | None = None,
    ) -> CachedWindows:
        """Return the windows of a view, from the chunk that holds `offset`. Close them when done."""
        return CachedWindows(
            self, catalogue, view, offset, in_flight_max=in_flight_max, until=until, rows_of=rows_of
        )

    def stream(self, catalogue: Catalogue, view: StreamView) -> CachedStream:
        """Return the stream of a view, which all readers of this catalogue share."""
        if self._process != os.getpid():
            self._begin()  # the tasks are the parent's, and so are the sockets behind them
        return self._streams.of(catalogue, view)

    def tail(self, fragment: Fragment, view: StreamView) -> Kept[KeptTail]:
        """Return the fragment's tail, which `release` gives back. It may still be fetched."""
        self._refuse_if_closed()
        if fragment.tail is not None:
            return self._found(fragment.tail)
        entry = fragment.entry
        kept = fragment.tail = Kept[KeptTail](fragment, entry.first_offset, entry.next_offset, 0)
        kept.state = KeptState.FETCHING
        self._start(kept, partial(self._open, fragment, view))
        kept.wanted += 1
        return kept

    def block(
        self, fragment: Fragment, row: int, *, size_bytes: int, until: int, is_ahead: bool
    ) -> Block | None:
        """Return the block that has the chunk `row`, which `release` gives back. It may still be fetched.

        The fragment's tail is ready: the caller has just waited for it. A new block has about `size_bytes`,
        and ends with the step that has the chunk before `until` at the latest. Returns None if a new block
        is to be read ahead, and there is no room for it.
        """
        self._refuse_if_closed()
        if (found := fragment.block_of(row)) is not None:
            return self._found(found)
        assert fragment.tail is not None, "a tail stays until the caller of `wait` has used it"
        tail = fragment.tail.value
        assert tail is not None, "as above"
        covered = fragment.covered_from(row)
        end = tail.run_of_steps(until - 1, size_bytes=0, before=len(tail.table))[1]
        end = end if covered is None else min(end, covered)
        start, stop = tail.run_of_steps(row, size_bytes=size_bytes, before=end)
        block = Block(fragment, tail.table[start:stop], start)
        # Before the room is asked for, because the tail could leave for it.
        self._pin_tail_of(block)
        if is_ahead and not self._room.enter_ahead(block):
            self._unpin_tail_of(block)
            return None
        fragment.add(block)
        # The first window of a reader comes alone: a reader of one message should not begin a long request.
        then = tail.table[stop:stop] if size_bytes <= self.step_size_bytes else tail.table[stop:end]
        fetch = partial(self._read, tail, tail.table[start:stop], then)
        if is_ahead or self._room.enter(block):
            self._start(block, fetch)
        else:
            self._starts[block] = fetch
        block.wanted += 1
        return block

    async def wait(self, kept: Kept[T]) -> T | None:
        """Return the value when it is there, or None if it has left: then ask again.

        Raises the error of its fetch. The caller uses the value before it waits for anything else.
        """
        self._room.come_to(kept)
        kept.pins += 1
        try:
            await kept.settled.wait()
            if kept.error is not None:
                raise kept.error
            if kept.state is KeptState.READY:
                self._room.use(kept)
            return kept.value
        finally:
            self._unpin(kept)

    def release(self, kept: Kept[Any]) -> None:
        """Give back what `tail` or `block` returned. If nobody wants it any more, its fetch is cancelled."""
        kept.wanted -= 1
        if kept.wanted:
            return
        if kept.state is KeptState.FETCHING:
            kept.state = KeptState.GONE
            kept.fragment.forget(kept)  # at once: a reader that asks now begins another fetch
            self._fetches[kept].cancel()
        elif kept.state is KeptState.QUEUED and isinstance(kept, Block):
            self._room.withdraw(kept)
            self._give_up(kept)

    def moved(self, stream: CachedStream, pace: Pace, offset: int) -> None:
        """Note that a reader has come to `offset`."""
        stream.paces.move(pace, offset, self.clock())

    async def aclose(self) -> None:
        """End all fetches and forget everything. Readers that are used later raise `Misuse`. Idempotent."""
        if self._process != os.getpid():
            return  # nothing here is the child's
        self._is_closed = True
        if self._ageing is not None:
            self._ageing.cancel()
        for block in self._room.empty_queue():
            self._give_up(block)
        for fetch in self._fetches.values():
            fetch.cancel()
        # Handles are closed after the fetches that use them have ended.
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        self._room.drop_all()
        ending = [*self._closings, *([] if self._ageing is None else [self._ageing])]
        await asyncio.gather(*ending, return_exceptions=True)

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise Misuse("the cache of this reader was closed")

    def _found(self, kept: K) -> K:
        if kept.state is KeptState.READY:
            self._hits += 1
            self._room.use(kept)
        else:
            self._shared += 1
        kept.wanted += 1
        return kept

    async def _open(self, fragment: Fragment, view: StreamView) -> tuple[KeptTail, int]:
        handle = await view.open(fragment.entry)
        try:
            tail = await KeptTail.of(handle, self.step_size_bytes)
        except BaseException:
            await handle.aclose()
            raise
        return tail, tail.size_bytes

    async def _read(self, tail: KeptTail, rows: ChunkTable, then: ChunkTable) -> tuple[Window, int]:
        handle = tail.handle
        data = _kept(await handle.read_on(rows, then) if len(then) else await handle.read(rows))
        rows = rows.copy()  # not a slice of the table, which may leave before the block
        rows.flags.writeable = False  # all readers get the same rows
        return Window(rows, data, handle.where), len(data) + rows.nbytes

    def _start(self, kept: Kept[T], fetch: Callable[[], Coroutine[Any, Any, tuple[T, int]]]) -> None:
        self._fetched += 1
        task = self._fetches[kept] = asyncio.ensure_future(fetch())
        # A callback, and not the end of a coroutine: a task that is cancelled before its first step runs
        # nothing of it.
        task.add_done_callback(partial(self._settle, kept))

    def _settle(self, kept: Kept[T], fetch: asyncio.Task[tuple[T, int]]) -> None:
        """Take what a fetch returned."""
        del self._fetches[kept]
        value, size_bytes = None, 0
        if not fetch.cancelled():
            kept.error = fetch.exception()
            if kept.error is None:
                value, size_bytes = fetch.result()
        if kept.is_gone and isinstance(value, KeptTail):  # given up, and yet it came
            self._close(value)
        if kept.is_gone or value is None:
            self._room.fetched(kept, 0)
            self._give_up(kept)
        else:
            kept.value = value
            self._room.fetched(kept, size_bytes)
            kept.settled.set()
            self._unpin_tail_of(kept)
        if self._ageing is None and not self._room.is_empty and not self._is_closed:
            self._ageing = asyncio.ensure_future(self._age())
        self._admit()

    def _give_up(self, kept: Kept[Any]) -> None:
        """End the life of a value that never came."""
        kept.state = KeptState.GONE
        kept.fragment.forget(kept)
        kept.settled.set()
        if isinstance(kept, Block):
            self._starts.pop(kept, None)
        self._unpin_tail_of(kept)

    def _drop(self, kept: Kept[Any]) -> None:
        """End the life of a value that leaves."""
        if isinstance(kept.value, KeptTail):
            self._close(kept.value)
        kept.state, kept.value = KeptState.GONE, None
        kept.fragment.forget(kept)

    def _close(self, tail: KeptTail) -> None:
        closing = asyncio.ensure_future(_closed(tail.handle))
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)

    def _unpin(self, kept: Kept[Any]) -> None:
        kept.pins -= 1
        if not kept.pins:
            self._admit_soon()

    def _pin_tail_of(self, block: Block) -> None:
        block.tail = block.fragment.tail
        assert block.tail is not None
        block.tail.pins += 1

    def _unpin_tail_of(self, kept: Kept[Any]) -> None:
        if isinstance(kept, Block) and kept.tail is not None:
            kept.tail.pins -= 1
            kept.tail = None

    def _admit_soon(self) -> None:
        # Not now: the caller of `wait` has yet to use the value, and nothing may leave before that.
        asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        """Begin the fetches for which there is room by now."""
        self._room.shrink()
        while (block := self._room.next_admitted()) is not None:
            self._start(block, self._starts.pop(block))

    async def _age(self) -> None:
        while not self._room.is_empty:
            await self._sleep(AGE_SECONDS / 4)
            self._room.drop_old()
            self._admit()
        self._ageing = None


def _kept(data: Buffer) -> Buffer:
    """Return the same bytes, in memory that is at most an eighth larger."""
    if isinstance(data, bytes):
        return data
    return data if 8 * memoryview(data.obj).nbytes <= 9 * len(data) else bytes(data)


async def _closed(handle: ReadHandle) -> None:
    try:
        await handle.aclose()
    except OffloadError as error:
        _log.warning("%s: closing it failed: %s", handle.where, error)
