"""Memory for what is read from a store, used again when nothing refers to its bytes any more.

Fresh memory is expensive: the kernel clears each page at its first use, which takes about as long as a copy.
So a store that reads large runs takes their memory from a pool.

Invariants:

- Memory is used again only after the last view of it is gone. A consumer that keeps a view keeps its bytes.
  So nobody has to say that memory is free, and nobody can say it too early.
- A pool keeps at most `kept_size_bytes_max` of free memory. It does not bound what is in use: readers do.

Views may be dropped in any thread.

Python code cannot use memory after its last view is gone, but native code with an address can, and so can a
thread of a store that was not awaited. In Python's development mode (`python -X dev`), memory that waits is
filled with `FREED`. Bytes that are read there fit no checksum. If anything else is found there when the
memory is used again, somebody has written into it, and `take` raises `Misuse`.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from offload.ground.errors import Misuse

__all__ = ["POOLED_SIZE_BYTES_MIN", "BufferPool"]

_Memory = npt.NDArray[np.uint8]

POOLED_SIZE_BYTES_MIN: Final = 256 * 1024
"""Smaller reads take plain bytes: the allocator keeps small blocks by itself."""

_STEP_SIZE_BYTES: Final = 1024 * 1024

FREED: Final = 0xDD
"""The byte that fills memory in development mode while nobody uses it."""


class BufferPool:
    """Memory for reads. Safe in threads."""

    __slots__ = (
        "__weakref__",
        "_free",
        "_is_checked",
        "_kept_size_bytes_max",
        "_leases",
        "_lock",
        "_returned",
    )

    def __init__(
        self, kept_size_bytes_max: int = 96 * 1024 * 1024, *, is_checked: bool = sys.flags.dev_mode
    ) -> None:
        """`is_checked` finds memory that is used after its last view is gone, by two passes over it."""
        self._kept_size_bytes_max, self._is_checked = kept_size_bytes_max, is_checked
        self._lock = threading.Lock()
        self._free: list[_Memory] = []
        # The callback of a lease may run at any moment, also while this thread holds the lock. So it only
        # appends, and `take` sorts in what came back.
        self._returned: deque[_Memory] = deque()
        self._leases: dict[int, weakref.ref[Any]] = {}

    @property
    def free_size_bytes(self) -> int:
        """The size of the memory that waits for its next use."""
        with self._lock:
            self._sort_in()
            return sum(memory.size for memory in self._free)

    def take(self, size_bytes: int) -> memoryview:
        """Return writable memory of this size. It is free again when this view and all views of it are gone.

        The bytes are those of an earlier use. Give consumers a view `toreadonly()`. Raises `Misuse` in
        development mode if somebody wrote into the memory while it was free.
        """
        # In steps, so that reads of about the same size use the same memory.
        wanted = -(-size_bytes // _STEP_SIZE_BYTES) * _STEP_SIZE_BYTES
        with self._lock:
            self._sort_in()
            fitting = [number for number, each in enumerate(self._free) if wanted <= each.size <= 2 * wanted]
            memory = self._free.pop(fitting[-1]) if fitting else None
        if memory is None:
            memory = np.empty(wanted, np.uint8)
        elif self._is_checked and not (memory == FREED).all():
            raise Misuse("memory of a read was written after its last view was gone")
        # A view of its own for each use. All memoryviews below refer to it, so its end is the end of the use.
        lease = memory.view()
        number, returned, leases, is_checked = id(lease), self._returned, self._leases, self._is_checked

        def give_back(_: object, memory: _Memory = memory) -> None:
            leases.pop(number, None)
            if is_checked:
                memory.fill(FREED)
            returned.append(memory)

        leases[number] = weakref.ref(lease, give_back)
        return lease.data[:size_bytes]

    def clear(self) -> None:
        """Release the memory that waits for its next use. A store that closes does so."""
        with self._lock:
            self._returned.clear()
            self._free.clear()

    def _sort_in(self) -> None:
        """Take back dropped memory. The last one is used next, because it is still in the caches."""
        while self._returned:
            self._free.append(self._returned.popleft())
        while sum(memory.size for memory in self._free) > self._kept_size_bytes_max:
            del self._free[0]
