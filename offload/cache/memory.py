"""The memory of a block cache: what may enter, and what leaves for it.

Ready blocks, blocks that are being fetched, and tails share one bound. Before a fetch begins, the memory of
its block is reserved.

    who                              gets room
    a reader that waits              takes the room of what nobody waits for. If even that is too little, it
                                     queues, and those that asked first enter first
    a reader that reads ahead        takes the room of what is wanted later than its own block. It never
                                     queues. All readers together take half of the bound at most

Blocks that no reader will come to leave first, the least recently used before the others. Then the blocks
leave that are wanted last, by the places and speeds of the readers. If there are many candidates, only the
`SAMPLE` least recently used are compared.

Invariants: the bound is exceeded only by one block that is larger than the bound, while no other is fetched,
and by tails that arrive while nothing can leave; what is pinned stays.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from math import inf
from typing import Any, Final

from offload.cache.contents import Block, Kept, KeptState
from offload.cache.reader_speeds import STILL_SECONDS

__all__ = ["AGE_SECONDS", "CacheMemory"]

AGE_SECONDS: Final = STILL_SECONDS
"""A block that nobody has used for so long leaves, unless a reader is about to come to it. Blocks that are
encrypted in the store leave after this time even if they are used."""

SAMPLE: Final = 16

NOW: Final = -1.0


class CacheMemory:
    """The kept values of one cache, in the order of their last use."""

    def __init__(
        self, size_bytes: int, *, clock: Callable[[], float], gone: Callable[[Kept[Any]], None]
    ) -> None:
        """`gone` is called with each value before it leaves."""
        self._size_bytes, self._clock, self._gone = size_bytes, clock, gone
        self._ready: OrderedDict[Kept[Any], float] = OrderedDict()
        """With the time of each arrival."""

        self._queue: deque[Block] = deque()
        self.fetching_size_bytes = 0
        self.ready_size_bytes = 0
        self.ahead_size_bytes = 0
        """The blocks that were fetched ahead, or are, and that nobody has come to yet."""

        self.left: Final[Counter[str]] = Counter()
        """The number of blocks that have left, by reason: room, age, closed."""

    @property
    def size_bytes(self) -> int:
        """The memory that is taken or reserved."""
        return self.fetching_size_bytes + self.ready_size_bytes

    @property
    def is_empty(self) -> bool:
        """True if nothing is ready."""
        return not self._ready

    def enter(self, block: Block) -> bool:
        """Reserve the room of a block for which a reader waits, or put the block in the queue."""
        if not self._queue and self._admits(block):
            self._reserve(block)
            return True
        self._queue.append(block)
        return False

    def enter_ahead(self, block: Block) -> bool:
        """Reserve the room of a block to read ahead. Return False if there is none."""
        wanted_in = self._wanted_in(block)
        if self._queue or self.ahead_size_bytes + block.size_bytes > self._size_bytes // 2:
            return False
        if not self._make_room(block.size_bytes, wanted_in):
            return False
        block.is_ahead = True
        self.ahead_size_bytes += block.size_bytes
        self._reserve(block)
        return True

    def next_admitted(self) -> Block | None:
        """Return the first block of the queue if there is room for it now, which is then reserved."""
        if not self._queue or not self._admits(self._queue[0]):
            return None
        block = self._queue.popleft()
        self._reserve(block)
        return block

    def withdraw(self, block: Block) -> None:
        """Take a block out of the queue."""
        self._queue.remove(block)

    def fetched(self, kept: Kept[Any], size_bytes: int) -> None:
        """Note that a fetch has ended. Its value takes `size_bytes` from now on; 0 if there is none."""
        self.fetching_size_bytes -= kept.size_bytes
        if not size_bytes:
            self.come_to(kept)
            return
        if kept.is_ahead:
            self.ahead_size_bytes += size_bytes - kept.size_bytes
        kept.size_bytes = size_bytes
        self.ready_size_bytes += size_bytes
        kept.state, kept.used_at = KeptState.READY, self._clock()
        self._ready[kept] = kept.used_at
        self.shrink()

    def use(self, kept: Kept[Any]) -> None:
        """Note that a ready value is used."""
        kept.used_at = self._clock()
        self._ready.move_to_end(kept)

    def come_to(self, kept: Kept[Any]) -> None:
        """Note that a reader has come to a block. It is no longer one that was fetched ahead."""
        if kept.is_ahead:
            kept.is_ahead = False
            self.ahead_size_bytes -= kept.size_bytes

    def shrink(self) -> None:
        """Let values leave as long as the bound is exceeded."""
        self._make_room(0, NOW)

    def drop_old(self) -> None:
        """Let everything leave that nobody has used for long, and that nobody will come to soon."""
        now = self._clock()
        for kept, arrived_at in [*self._ready.items()]:
            is_expired = kept.fragment.entry.encrypted and now - arrived_at >= AGE_SECONDS
            is_unused = now - kept.used_at >= AGE_SECONDS
            if not kept.pins and (is_expired or (is_unused and self._wanted_in(kept) > AGE_SECONDS)):
                self._leave(kept, "age")

    def empty_queue(self) -> list[Block]:
        """Return the blocks of the queue, which are not in it any more."""
        queued = [*self._queue]
        self._queue.clear()
        return queued

    def drop_all(self) -> None:
        """Let everything leave."""
        for kept in [*self._ready]:
            self._leave(kept, "closed")

    def _admits(self, block: Block) -> bool:
        if self._make_room(block.size_bytes, NOW):
            return True
        # Nothing that is left may leave. If no other block is left, this one is larger than the bound.
        return not self.fetching_size_bytes and not any(isinstance(each, Block) for each in self._ready)

    def _reserve(self, block: Block) -> None:
        block.state = KeptState.FETCHING
        self.fetching_size_bytes += block.size_bytes

    def _make_room(self, size_bytes: int, wanted_in: float) -> bool:
        """Let values leave that are wanted later than in `wanted_in` seconds, until so much more fits."""
        while self.size_bytes + size_bytes > self._size_bytes:
            found = self._wanted_last()
            if found is None or found[1] <= wanted_in:
                return False
            self._leave(found[0], "room")
        return True

    def _wanted_last(self) -> tuple[Kept[Any], float] | None:
        """Return a value that may leave, and in how many seconds somebody will want it."""
        last, asked = None, 0
        for kept in self._ready:
            if kept.pins:
                continue
            wanted_in = self._wanted_in(kept)
            if last is None or wanted_in > last[1]:
                last = kept, wanted_in
            asked += 1
            if wanted_in == inf or asked == SAMPLE:
                break
        return last

    def _wanted_in(self, kept: Kept[Any]) -> float:
        paces = kept.fragment.stream.paces
        return paces.seconds_until(kept.first_offset, kept.next_offset, self._clock())

    def _leave(self, kept: Kept[Any], reason: str) -> None:
        del self._ready[kept]
        self.come_to(kept)
        self.ready_size_bytes -= kept.size_bytes
        self.left[reason] += 1
        self._gone(kept)
