"""Reading one ledger from Pulsar's objects, from any entry and by any number of readers.

The index says where blocks begin, and only a walk over a block says where its entries are. A walk goes from
window to window, as far as a reader needs. What it found is remembered for all ledgers of a bucket, so that a
second look at an entry costs one request.

Invariants: a walk begins behind a checked header, and only grows. Memory is bounded: `Walks` by a number of
entries, and the windows of one ledger by their number.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from offload.contracts.entries import EntryLedger, EntryRun
from offload.contracts.store import Buffer, ObjectStore, Span
from offload.ground.errors import Corrupt, Misuse, NotFound
from offload_pulsar.blocks import (
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE_BYTES,
    HEADER_SIZE_BYTES,
    BlockHeader,
    FoundEntries,
    Positions,
    walk,
)
from offload_pulsar.index import LedgerGroup, PulsarIndex
from offload_pulsar.ledger_metadata import LedgerInfo

__all__ = ["PulsarLedger", "Walks"]


WINDOW_SIZE_BYTES: Final = 4 * 2**20
WINDOWS_MAX: Final = 4
"""Windows that one ledger keeps: as many readers as usual at different places."""

WINDOWS_SIZE_BYTES_MAX: Final = 128 * 2**20
LEDGERS_WITH_WINDOWS_MAX: Final = 64
"""The windows that all ledgers of a bucket keep together. A snapshot has open ledgers without end."""

WALKED_ENTRIES_MAX: Final = 2**22
"""Entries whose positions a bucket remembers, with 16 bytes for each."""

_BLOCK_WEIGHT: Final = 64
"""A remembered block counts as so many entries, so that blocks of one entry are bounded too."""


@dataclass(slots=True, eq=False)
class _Walked:
    """What is known of one block. Positions are bytes of the data object."""

    at: int
    """The byte at which the walk continues."""

    starts: Positions = field(default_factory=lambda: np.empty(0, np.uint64))
    ends: Positions = field(default_factory=lambda: np.empty(0, np.uint64))
    is_over: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a walk: a second reader waits for it instead of reading the same bytes."""


class Walks:
    """The walks of all ledgers of a bucket, and their windows. What was not used for longest goes first."""

    def __init__(self, entries_max: int = WALKED_ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._entries = 0
        self._kept: OrderedDict[tuple[str, int], _Walked] = OrderedDict()
        self._windows: OrderedDict[int, OrderedDict[int, Buffer]] = OrderedDict()
        """The windows of ledgers, by the identity of their dictionaries, which are held."""

    def of(self, key: str, offset: int) -> _Walked:
        """Return what is known of the block at `offset`, perhaps nothing yet."""
        walked = self._kept.get((key, offset))
        if walked is None:
            walked = self._kept[key, offset] = _Walked(offset)
            self._grow(_BLOCK_WEIGHT)
        self._kept.move_to_end((key, offset))
        return walked

    def grew(self, key: str, offset: int, entries: int) -> None:
        """Count the entries by which a walk grew. A reader keeps a forgotten walk until it is done."""
        if (key, offset) in self._kept:
            self._grow(entries)

    def read(self, windows: OrderedDict[int, Buffer]) -> None:
        """Take the windows of a ledger as used last. Clears those of others while all are too many."""
        self._windows[id(windows)] = windows
        self._windows.move_to_end(id(windows))
        held = sum(len(each) for kept in self._windows.values() for each in kept.values())
        while len(self._windows) > 1 and (
            held > WINDOWS_SIZE_BYTES_MAX or len(self._windows) > LEDGERS_WITH_WINDOWS_MAX
        ):
            _, oldest = self._windows.popitem(last=False)
            held -= sum(map(len, oldest.values()))
            oldest.clear()

    def closed(self, windows: OrderedDict[int, Buffer]) -> None:
        """Forget the windows of a ledger."""
        self._windows.pop(id(windows), None)
        windows.clear()

    def _grow(self, entries: int) -> None:
        self._entries += entries
        while self._entries > self._entries_max and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._entries -= len(oldest.starts) + _BLOCK_WEIGHT


@dataclass(frozen=True, slots=True)
class LedgerBlock:
    """A block of a data object: its first entry, and its bytes with header and padding."""

    first_entry: int
    size_bytes: int


class PulsarLedger(EntryLedger):
    """A ledger in Pulsar's objects, V1 or V2. `PulsarBucket.open` makes it.

    Times are those of the ledger: when it was closed (V2) or created (V1), or 0 if the index does not say.
    Readers may call `entries` at the same time.

    `entries` raises `Corrupt`, with object and byte, for a block that is not the one that the index says, an
    entry that is missing, and a data object that is absent or too short. It raises `Misuse` for entries that
    the object does not have. A V2 object may begin after entry 0 (`first_entry`).
    """

    __slots__ = ("_group", "_is_v2", "_key", "_read_ends", "_size", "_store", "_time", "_walks", "_windows")

    is_sealed = True

    def __init__(
        self, store: ObjectStore, key: str, index: PulsarIndex, group: LedgerGroup, walks: Walks
    ) -> None:
        self._store, self._key, self._group, self._walks = store, key, group, walks
        self._is_v2 = index.version == 2
        self._size = index.data_size_bytes
        metadata = group.metadata
        time = metadata.closed_ms if isinstance(metadata, LedgerInfo) else metadata.ctime_ms
        self._time = time or 0
        self._windows: OrderedDict[int, Buffer] = OrderedDict()
        self._read_ends: deque[int] = deque(maxlen=2 * WINDOWS_MAX)

    @property
    def ledger_id(self) -> int:
        """The id of the ledger."""
        return self._group.ledger_id

    @property
    def where(self) -> str:
        """The key of the data object."""
        return self._key

    @property
    def data_size_bytes(self) -> int:
        """The size of the data object, as the index states it."""
        return self._size

    @property
    def blocks(self) -> Sequence[LedgerBlock]:
        """The blocks, in the order of their entries."""
        rows, ends = self._group.blocks, self._group.ends
        sizes = (ends - rows["offset"]).tolist()
        return [*map(LedgerBlock, rows["first_entry_id"].tolist(), sizes)]

    @property
    def first_entry(self) -> int:
        """The first entry that the data object has: 0 in V1."""
        return self._group.first_entry

    @property
    def last_entry(self) -> int:
        """The last entry, as the index says."""
        return self._group.last_entry

    @property
    def length(self) -> int:
        """The sum of the sizes of all entries, as the index says. Nothing else proves it."""
        return self._group.metadata.length

    @property
    def closed_ms(self) -> int | None:
        """The time when the ledger was closed. Only V2 has it."""
        metadata = self._group.metadata
        return metadata.closed_ms if isinstance(metadata, LedgerInfo) else None

    async def entries(self, first: int, last: int, *, size_bytes: int) -> EntryRun:
        """Return entries in one buffer. Only the bytes of one window are held besides."""
        if not self.first_entry <= first <= last <= self.last_entry:
            has = f"{self.first_entry} to {self.last_entry}"
            raise Misuse(f"{self._key} has the entries {has}, not {first} to {last}")
        pieces: list[Buffer] = []
        starts: list[Positions] = []
        ends: list[Positions] = []
        at, held, found = first, 0, 0
        while at <= last and (at == first or found < size_bytes):
            data, begin, end = await self._some(at, last, size_bytes - found)
            starts.append(begin + np.uint64(held))
            ends.append(end + np.uint64(held))
            pieces.append(data)
            held, at, found = held + len(data), at + len(begin), found + int((end - begin).sum())
        whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return EntryRun(
            first=first,
            data=whole,
            starts=np.concatenate(starts),
            ends=np.concatenate(ends),
            timestamps_ms=self._time,
        )

    async def _some(self, entry: int, last: int, wanted: int) -> tuple[Buffer, Positions, Positions]:
        """Return at least `entry`, in a buffer: the entries behind it as far as they are wanted and known."""
        number = self._group.block_of(entry)
        row = entry - int(self._group.blocks["first_entry_id"][number])
        walked = self._walks.of(self._key, int(self._group.blocks["offset"][number]))
        async with walked.lock:
            while row >= len(walked.starts):
                if walked.is_over:
                    found = f"the end of its block, behind {len(walked.starts)} entries"
                    raise Corrupt(
                        f"entry {entry}", self._key, expected="present", found=found, position=walked.at
                    )
                await self._walk_on(number, walked)
        # As many as bring the run to the wanted size, with the one that reaches it.
        sizes = np.cumsum(walked.ends[row:] - walked.starts[row:], dtype=np.uint64)
        count = int(np.searchsorted(sizes, max(wanted, 0), side="left")) + 1
        stop = min(row + count, len(walked.starts), row + last - entry + 1)
        start, end = int(walked.starts[row]), int(walked.ends[stop - 1])
        data = await self._bytes(start, end, int(self._group.ends[number]))
        base = np.uint64(start)
        return data, walked.starts[row:stop] - base, walked.ends[row:stop] - base

    async def _walk_on(self, number: int, walked: _Walked) -> None:
        """Walk over the next window of a block. Nothing changes if it fails."""
        offset, end = int(self._group.blocks["offset"][number]), int(self._group.ends[number])
        at = walked.at
        data = await self._bytes(at, min(at + WINDOW_SIZE_BYTES, end), end)
        if at == offset:
            self._check_header(number, data)
            at, data = at + HEADER_SIZE_BYTES, data[HEADER_SIZE_BYTES:]
        first = int(self._group.blocks["first_entry_id"][number]) + len(walked.starts)
        found = self._walk(data, first, at, end)
        if not len(found.starts) and not found.is_over:
            # One entry is larger than the window, and its header says by how much.
            needed = ENTRY_HEADER_SIZE_BYTES + ENTRY_HEADER.unpack(data)["size_bytes"]
            data = await self._bytes(at, min(at + needed, end), end)
            found = self._walk(data, first, at, end)
        blocks = self._group.blocks["first_entry_id"]
        behind = int(blocks[number + 1]) if number + 1 < len(blocks) else self.last_entry + 1
        if first + len(found.starts) > behind:
            entries = first + len(found.starts) - 1
            raise Corrupt(
                "last entry of a block", self._key, expected=behind - 1, found=entries, position=offset
            )
        if found.is_damaged and first + len(found.starts) == behind:
            # The padding is damaged. A reader of the last entry learns it, and the others are read.
            found = self._walk(data, first, at, end, entries_max=len(found.starts) - 1)
        base = np.uint64(at)
        walked.starts = np.concatenate((walked.starts, found.starts + base))
        walked.ends = np.concatenate((walked.ends, found.ends + base))
        walked.at, walked.is_over = at + found.used_bytes, found.is_over
        self._walks.grew(self._key, offset, len(found.starts))

    def _walk(
        self, data: Buffer, first: int, at: int, end: int, entries_max: int | None = None
    ) -> FoundEntries:
        # An entry is not lost by the damage of one behind it. The next walk begins there, and raises.
        return walk(
            data,
            first=first,
            is_last_data=at + len(data) == end,
            where=self._key,
            position=at,
            entries_max=entries_max or None,
            stops_at_damage=entries_max != 0,
        )

    def _check_header(self, number: int, data: Buffer) -> None:
        row, end = self._group.blocks[number], int(self._group.ends[number])
        offset = int(row["offset"])
        wanted = BlockHeader(
            block_size_bytes=end - offset,
            first_entry_id=int(row["first_entry_id"]),
            ledger_id=self.ledger_id if self._is_v2 else None,
        )
        found = BlockHeader.decode(data, where=self._key, position=offset)
        found.check(wanted, where=self._key, position=offset)

    async def _bytes(self, start: int, end: int, block_end: int) -> Buffer:
        """Return these bytes of the data object, from a kept window if one has them."""
        head: Buffer = b""
        for at, window in self._windows.items():
            if at <= start < at + len(window):
                if end <= at + len(window):
                    self._windows.move_to_end(at)
                    self._read_ends.append(end)
                    return memoryview(window)[start - at : end - at]
                head = memoryview(window)[start - at :]
        # A read that begins where another ended is likely to be followed by others. It begins exactly there,
        # so that a store can answer it from the reply to the one before.
        is_next = bool(head) or any(0 <= start - each <= ENTRY_HEADER_SIZE_BYTES for each in self._read_ends)
        begin, stop = start + len(head), end
        if is_next:
            stop = max(end, min(start + WINDOW_SIZE_BYTES, self._size))
        follows = (self._size if is_next else block_end) - stop if stop - start >= WINDOW_SIZE_BYTES else 0
        try:
            data = await self._store.get(self._key, Span(begin, stop - begin, follows=follows))
        except NotFound as exc:
            raise Corrupt("data object", self._key, expected="present", found="absent") from exc
        if len(data) != stop - begin:
            reached = begin + len(data)
            found = reached if data else f"at most {reached}"
            raise Corrupt(
                "size of the data object", self._key, expected=self._size, found=found, position=reached
            )
        if head:
            data = b"".join((head, data))
        self._windows[start] = data
        self._windows.move_to_end(start)
        while len(self._windows) > WINDOWS_MAX:
            self._windows.popitem(last=False)
        self._walks.read(self._windows)
        self._read_ends.append(end)
        return memoryview(data)[: end - start]

    async def aclose(self) -> None:
        """Forget the windows. A later read fetches them again."""
        self._walks.closed(self._windows)
