"""The fragments of a manifest, found by offset and by time, in the root or in groups.

Groups are fetched through `load` and never changed. `commit.grouping` makes them.

Invariants: a walk yields each live fragment once, in order of offsets, and no fragment below the root's first
offset. A fetched group agrees with the entry that names it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.ground.errors import Misuse
from offload.model.entry import Entries, Entry, entries_of_rows
from offload.model.manifest import CommittedStream, Manifest
from offload.model.position import OFFSET_MAX

__all__ = ["EntryTree", "Tree", "no_groups"]


LoadGroup = Callable[[CommittedStream, Entries], Awaitable[Entries]]
"""A function that returns the entries of the group that one entry of the stream's tree names."""


class EntryTree:
    """The fragments of one committed state of a stream. Finds them by offset and time."""

    __slots__ = ("committed", "load")

    def __init__(self, committed: CommittedStream, load: LoadGroup) -> None:
        self.committed, self.load = committed, load

    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        """Yield the entries of the live fragments from the one that holds `offset` on, in runs. Close it."""
        start = max(offset, self.committed.first_offset)
        async with aclosing(self._walk(self.committed.entries, start)) as runs:
            async for run in runs:
                yield run

    async def find(self, offset: int) -> Entry | None:
        """Return the live fragment that holds `offset`, or None. Costs at most one request per level."""
        if not self.committed.first_offset <= offset < self.committed.next_offset:
            return None
        entries = self.committed.entries
        while True:  # ends, because the entries of a group are of a lower kind than the group
            row = row_of(entries, offset)
            if not entries["kind"][row]:
                return entries_of_rows(entries[row : row + 1])[0]
            entries = await self.load(self.committed, entries[row : row + 1])

    async def last(self) -> Entry | None:
        """Return the newest fragment, or None if there is none."""
        return await self.find(self.committed.next_offset - 1) if self.committed.fragments else None

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        """Return the first live fragment, in order of offsets, with a chunk of that time or later.

        Timestamps of a stream may go back a little. An entry's last timestamp is its greatest, so no fragment
        before the returned one has a chunk that fits.

        Costs at most one request per level. Costs twice as many if only the trimmed part of a group reaches
        that time.
        """
        return await self._first(lambda entries: entries["last_timestamp_ms"] >= timestamp_ms)

    async def last_timestamp_ms(self) -> int | None:
        """Return the greatest timestamp of any live chunk, or None if no chunk lives.

        Costs a request only if a group that is trimmed in part may have the greatest one.
        """
        # A group that is trimmed in part may owe its greatest timestamp to a dead fragment. It is loaded only
        # if that timestamp exceeds those of the whole entries behind it.
        entries, greatest_ms = self.committed.entries, None
        while True:
            entries = entries[row_of(entries, self.committed.first_offset) :]
            whole = entries[entries["first_offset"] >= np.uint64(self.committed.first_offset)]
            if len(whole):
                last_ms = int(whole["last_timestamp_ms"].max())
                greatest_ms = last_ms if greatest_ms is None else max(greatest_ms, last_ms)
            trimmed = entries[: len(entries) - len(whole)]
            if not len(trimmed) or (
                greatest_ms is not None and trimmed["last_timestamp_ms"][0] <= greatest_ms
            ):
                return greatest_ms
            entries = await self.load(self.committed, trimmed)

    async def last_with_messages(self) -> Entry | None:
        """Return the newest live fragment with a record that is a message, or None."""
        return await self._last(self.committed.entries)

    async def names(self, first_offset: int, attempt: UUID) -> bool:
        """Return True if the tree names the fragment of this attempt that begins at this offset."""
        entry = await self.find(first_offset)
        return entry is not None and (entry.first_offset, entry.attempt) == (first_offset, attempt)

    async def _walk(self, entries: Entries, start: int) -> AsyncGenerator[Entries, None]:
        entries = entries[row_of(entries, start) :]
        leaves = leaves_of(entries)
        for row in range(leaves):
            # One group at a time, and only when the walk reaches it: a consumer may stop early.
            below = await self.load(self.committed, entries[row : row + 1])
            async with aclosing(self._walk(below, start)) as runs:
                async for run in runs:
                    yield run
        if leaves < len(entries):
            yield entries[leaves:]

    async def _first(self, fits: Callable[[Entries], npt.NDArray[np.bool_]]) -> Entry | None:
        return await self._first_in(self.committed.entries, fits)

    async def _first_in(
        self, entries: Entries, fits: Callable[[Entries], npt.NDArray[np.bool_]]
    ) -> Entry | None:
        entries = entries[row_of(entries, self.committed.first_offset) :]
        for row in np.flatnonzero(fits(entries)):
            one = entries[row : row + 1]
            if not one["kind"][0]:
                return entries_of_rows(one)[0]
            found = await self._first_in(await self.load(self.committed, one), fits)
            if found is not None:  # None if all that fits in this group is trimmed
                return found
        return None

    async def _last(self, entries: Entries) -> Entry | None:
        entries = entries[row_of(entries, self.committed.first_offset) :]
        for row in np.flatnonzero(entries["messages"])[::-1]:
            one = entries[row : row + 1]
            if not one["kind"][0]:
                return entries_of_rows(one)[0]
            found = await self._last(await self.load(self.committed, one))
            if found is not None:
                return found
        return None


class Tree(EntryTree):
    """The fragments of one manifest, with the manifest itself, for commits."""

    __slots__ = ("manifest",)

    def __init__(self, manifest: Manifest, load: LoadGroup) -> None:
        super().__init__(manifest, load)
        self.manifest = manifest


async def no_groups(committed: CommittedStream, entry: Entries) -> Entries:
    """Raise `Misuse`: the `LoadGroup` of a tier whose streams have no groups."""
    raise Misuse(f"stream {committed.stream!r} has no groups here")


def leaves_of(entries: Entries) -> int:
    """Return the first row whose entry is a fragment's. The rows before it are those of groups."""
    # Larger kinds come first, so the negated kinds ascend, as `searchsorted` demands.
    return int(np.searchsorted(-entries["kind"].astype(np.int8), 0))


def row_of(entries: Entries, offset: int) -> int:
    """Return the row whose entry holds `offset`. It is 0 before all entries, and their number behind all."""
    # As u64, because NumPy would compare a plain integer as a float. `np.uint64` refuses 2**64 and above.
    nexts = entries["first_offset"] + entries["records"]
    return int(np.searchsorted(nexts, np.uint64(min(offset, OFFSET_MAX)), side="right"))
