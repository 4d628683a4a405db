"""The fragments of a manifest, found by offset and by time, in the root or in groups.

Groups are fetched through `load`, and never changed; `commit.grouping` makes them.

Invariants: a walk yields each live fragment once, in order of offsets, none below the root's first offset;
an object that is fetched is what the entry above it says.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.errors import Misuse
from offload.model.entry import Entries, Entry, entries_of_rows
from offload.model.manifest import CommittedStream, Manifest
from offload.model.position import OFFSET_MAX

__all__ = ["EntryTree", "Tree"]


LoadGroup = Callable[[CommittedStream, Entries], Awaitable[Entries]]
"""The entries of the group that this one entry of the stream's tree names."""


class EntryTree:
    """The fragments of one committed state of a stream, to be found by offset and time."""

    __slots__ = ("committed", "load")

    def __init__(self, committed: CommittedStream, load: LoadGroup) -> None:
        self.committed, self.load = committed, load

    async def walk(self, offset: int = 0) -> AsyncGenerator[Entries, None]:
        """The entries of the live fragments from the one that holds `offset` on, in runs. Close it."""
        start = max(offset, self.committed.first_offset)
        async with aclosing(self._walk(self.committed.entries, start)) as runs:
            async for run in runs:
                yield run

    async def find(self, offset: int) -> Entry | None:
        """The fragment that holds `offset`, or None where no live one does. One request per level at most."""
        if not self.committed.first_offset <= offset < self.committed.next_offset:
            return None
        entries = self.committed.entries
        while True:
            row = row_of(entries, offset)
            if not entries["kind"][row]:
                return entries_of_rows(entries[row : row + 1])[0]
            entries = await self.load(self.committed, entries[row : row + 1])

    async def last(self) -> Entry | None:
        """The newest fragment."""
        return await self.find(self.committed.next_offset - 1) if self.committed.fragments else None

    async def first_since(self, timestamp_ms: int) -> Entry | None:
        """The first live fragment, in order of offsets, with a chunk of that time or later.

        Timestamps of a stream may go back a little: an entry's last one is its greatest, so no fragment
        before this one holds anything that fits. One request per level at most; twice that where a group
        that was trimmed in part says that it reaches so far, and what of it lives does not.
        """
        return await self._first(lambda entries: entries["last_timestamp_ms"] >= timestamp_ms)

    async def last_timestamp_ms(self) -> int | None:
        """The greatest timestamp of any live chunk; None where nothing lives.

        No request, unless only a group that was trimmed in part says that it reaches so far.
        """
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
        """The newest live fragment with a record that is a message."""
        return await self._last(self.committed.entries)

    async def names(self, first_offset: int, attempt: UUID) -> bool:
        """Whether it names the fragment of this attempt that begins at this offset."""
        entry = await self.find(first_offset)
        return entry is not None and (entry.first_offset, entry.attempt) == (first_offset, attempt)

    async def _walk(self, entries: Entries, start: int) -> AsyncGenerator[Entries, None]:
        entries = entries[row_of(entries, start) :]
        leaves = leaves_of(entries)
        for row in range(leaves):
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
            if found is not None:  # else what fits in this group is trimmed
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
    """The fragments of one manifest: what a commit looks at as well."""

    __slots__ = ("manifest",)

    def __init__(self, manifest: Manifest, load: LoadGroup) -> None:
        super().__init__(manifest, load)
        self.manifest = manifest


async def no_groups(committed: CommittedStream, entry: Entries) -> Entries:
    """The `LoadGroup` of a tier whose streams have no groups."""
    raise Misuse(f"stream {committed.stream!r} has no groups here")


def leaves_of(entries: Entries) -> int:
    """The row from which on the entries are those of fragments. Larger kinds come first."""
    return int(np.searchsorted(-entries["kind"].astype(np.int8), 0))


def row_of(entries: Entries, offset: int) -> int:
    """The row whose entry holds `offset`; the first where it lies before all, their number where behind."""
    nexts = entries["first_offset"] + entries["records"]
    return int(np.searchsorted(nexts, np.uint64(min(offset, OFFSET_MAX)), side="right"))
