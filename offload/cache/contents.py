"""The contents of a block cache: the tails of fragments, and blocks of their chunks.

A tail gives its fragment's *steps*: runs of about 256 KiB that are cheap to read, always cut in the same way.
A *block* is a run of neighbouring steps. So readers that begin anywhere meet at the same borders.

Invariants: no step is in two blocks of a fragment; a `Kept` goes through its states in order, and has a value
only while it is `READY`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import numpy as np

from offload.cache.reader_speeds import Paces
from offload.contracts.catalogue import Catalogue, StreamView
from offload.contracts.ledger import ReadHandle
from offload.model.chunk_table import ChunkTable
from offload.model.entry import Entry
from offload.read.batches import Window

T = TypeVar("T")


class KeptState(Enum):
    """The life of what is kept."""

    QUEUED = auto()
    """It waits for room."""
    FETCHING = auto()
    READY = auto()
    GONE = auto()
    """It has left the cache, or its fetch has failed or was given up. Whoever wants it asks again."""


class Kept(Generic[T]):
    """A value that is fetched once for all who want it, and that may leave memory at any time."""

    __slots__ = (
        "error",
        "first_offset",
        "fragment",
        "is_ahead",
        "next_offset",
        "pins",
        "settled",
        "size_bytes",
        "state",
        "used_at",
        "value",
        "wanted",
    )

    def __init__(self, fragment: Fragment, first_offset: int, next_offset: int, size_bytes: int) -> None:
        self.fragment, self.first_offset, self.next_offset = fragment, first_offset, next_offset
        self.size_bytes: int = size_bytes
        """The memory that it takes, or that its fetch will take."""

        self.state = KeptState.QUEUED
        self.value: T | None = None
        self.error: BaseException | None = None
        self.settled = asyncio.Event()
        """Set when it is no longer fetched."""

        self.used_at = 0.0
        self.wanted = 0
        """The readers that will take it. Its fetch continues as long as there is one."""

        self.pins = 0
        """The readers that wait for it now, and the fetches that use it. It stays as long as there is one."""

        self.is_ahead = False
        """True until somebody waits for it, if it was asked for before that."""

    @property
    def is_gone(self) -> bool:
        """True if it must be asked for again."""
        return self.state is KeptState.GONE


@dataclass(frozen=True, slots=True)
class KeptTail:
    """An opened fragment."""

    handle: ReadHandle
    table: ChunkTable
    steps: list[int]
    """The number of the first chunk of each step, and the number of chunks at the end."""

    breaks: frozenset[int]
    """The chunks that do not follow the chunk before them in the bytes: a handle may join several objects."""

    @classmethod
    async def of(cls, handle: ReadHandle, step_size_bytes: int) -> KeptTail:
        """Return the tail of a fragment that was just opened."""
        table = await handle.table()
        steps = [0]
        for step in handle.windows(table, size_bytes=step_size_bytes):
            steps.append(steps[-1] + len(step))
        ends = table["position"] + table["size_bytes"]
        breaks = np.flatnonzero(table["position"][1:] != ends[:-1]) + 1
        return cls(handle, table, steps, frozenset(breaks.tolist()))

    @property
    def size_bytes(self) -> int:
        """The memory of the table, and about that of the checksums and steps beside it."""
        return self.table.nbytes + 8 * len(self.table) + 32 * len(self.steps)

    def run_of_steps(self, row: int, *, size_bytes: int, before: int) -> tuple[int, int]:
        """Return the first chunk and the end of a run of steps of about `size_bytes`, or of one larger step.

        It begins with the step that has the chunk `row`, and ends before the step at `before` at the latest.
        """
        number = bisect_right(self.steps, row) - 1
        start = self.steps[number]
        enough = int(self.table["position"][start]) + size_bytes
        number += 1
        while (stop := self.steps[number]) < before and stop not in self.breaks:
            if int(self.table["position"][stop]) >= enough:
                break
            number += 1
        return start, stop


class Block(Kept[Window]):
    """A run of steps of one fragment: chunks `start` to `stop`, checked and plain."""

    __slots__ = ("start", "stop", "tail")

    def __init__(self, fragment: Fragment, rows: ChunkTable, start: int) -> None:
        next_offset = int(rows["offset"][-1]) + int(rows["records"][-1])
        super().__init__(fragment, int(rows["offset"][0]), next_offset, int(rows["size_bytes"].sum()))
        self.size_bytes += rows.nbytes
        self.start, self.stop = start, start + len(rows)
        self.tail: Kept[KeptTail] | None = None
        """The tail that its fetch uses, and pins."""


class Fragment:
    """One fragment of a stream: what is kept of it. It lives as long as a reader or a `Kept` refers to it."""

    __slots__ = ("__weakref__", "_blocks", "_starts", "entry", "stream", "tail")

    def __init__(self, stream: CachedStream, entry: Entry) -> None:
        self.stream, self.entry = stream, entry
        self.tail: Kept[KeptTail] | None = None
        self._blocks: list[Block] = []
        self._starts: list[int] = []

    def block_of(self, row: int) -> Block | None:
        """Return the block that has this chunk, ready or not."""
        number = bisect_right(self._starts, row) - 1
        return self._blocks[number] if number >= 0 and row < self._blocks[number].stop else None

    def covered_from(self, row: int) -> int | None:
        """Return the first chunk of the first block that begins at `row` or behind it, or None."""
        number = bisect_left(self._starts, row)
        return self._starts[number] if number < len(self._starts) else None

    def add(self, block: Block) -> None:
        """Add a block that covers none of the others' steps."""
        number = bisect_left(self._starts, block.start)
        assert not number or self._blocks[number - 1].stop <= block.start, "two blocks have a step"
        assert number == len(self._starts) or block.stop <= self._starts[number], "two blocks have a step"
        self._starts.insert(number, block.start)
        self._blocks.insert(number, block)

    def forget(self, kept: Kept[Any]) -> None:
        """Remove a tail or a block. Whoever wants it begins a new one."""
        if kept is self.tail:
            self.tail = None
        elif isinstance(kept, Block) and self.block_of(kept.start) is kept:
            number = bisect_left(self._starts, kept.start)
            del self._starts[number], self._blocks[number]


class CachedStream:
    """One life of a stream in one catalogue. It lives as long as a reader or a `Kept` refers to it.

    Another catalogue of the same URL may have other rights and keys, so nothing is shared with it.
    """

    __slots__ = ("__weakref__", "_fragments", "paces")

    def __init__(self) -> None:
        self._fragments: WeakValueDictionary[Entry, Fragment] = WeakValueDictionary()
        self.paces: Final = Paces()

    def fragment(self, entry: Entry) -> Fragment:
        """Return the fragment of an entry."""
        # By all fields of the entry. A damaged root that says something else of the same object must not be
        # answered from the cache: its entry was never checked.
        found = self._fragments.get(entry)
        if found is None:
            found = self._fragments[entry] = Fragment(self, entry)
        return found


class CachedStreams:
    """The streams of which something is kept or read."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: WeakValueDictionary[tuple[_Same, str, UUID], CachedStream] = WeakValueDictionary()

    def of(self, catalogue: Catalogue, view: StreamView) -> CachedStream:
        """Return the stream of a view of this catalogue."""
        key = _Same(catalogue), view.committed.stream, view.committed.incarnation
        found = self._streams.get(key)
        if found is None:
            found = self._streams[key] = CachedStream()
        return found


class _Same:
    """A key that equals only another key of the very same catalogue, and keeps the catalogue alive."""

    __slots__ = ("_catalogue",)

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._catalogue is self._catalogue

    def __hash__(self) -> int:
        return object.__hash__(self._catalogue)
