"""The tree of a manifest: old entries move into groups, and offsets and times are found in them.

A root holds at most `factor` - 1 entries of each kind. When a commit brings a run to `factor`, its oldest
`factor` entries move into a new object of the next kind, and one entry names that: so a commit writes much
the same however long the stream is, and a fragment is at most three objects below the root.

Where a change edits fragments that stand in a group, that group and those above it are made anew (`edited`).

Invariants: collapsing changes no total and no fragment, only where entries stand; a walk yields each live
fragment once, in order of offsets, none below the root's first offset; an object that is fetched is what
the entry above it says. Groups are fetched through `load`, and never changed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.errors import Misuse
from offload.formats.group import Group
from offload.formats.manifest import (
    CommittedStream,
    Entries,
    Entry,
    Kind,
    Manifest,
    decode_entries,
    joined,
)

FACTOR: Final = 1024
OFFSET_MAX: Final = 2**64 - 1
"""No fragment reaches beyond: what is asked for from there on, or from any integer above, is nothing."""

LoadGroup = Callable[[CommittedStream, Entries], Awaitable[Entries]]
"""The entries of the group that this one entry of the stream's tree names."""


def collapse(
    manifest: Manifest, *, factor: int, version: int, uuid: Callable[[], UUID]
) -> tuple[Manifest, list[tuple[Group, bytes]]]:
    """`manifest` with its long runs in groups, and the groups to store before `version` is created."""
    kinds = manifest.entries["kind"]
    if len(kinds) < factor or np.bincount(kinds, minlength=1).max() < factor:
        return manifest, []
    runs = {kind: manifest.entries[kinds == kind] for kind in Kind}
    groups = []
    for kind in (Kind.FRAGMENT, Kind.GROUP, Kind.KILO_GROUP):
        while len(runs[kind]) >= factor:
            group = Group(
                stream=manifest.stream,
                incarnation=manifest.incarnation,
                kind=Kind(kind + 1),
                uid=uuid(),
                version=version,
                entries=runs[kind][:factor],
            )
            raw = group.encode()
            groups.append((group, raw))
            runs[kind] = runs[kind][factor:]
            runs[group.kind] = joined(runs[group.kind], group.entry(raw))
    return replace(manifest, entries=joined(*(runs[kind] for kind in reversed(Kind)))), groups


@dataclass(frozen=True, slots=True)
class Edit:
    """Other fragments in the place of some that stand together: in the root, or in one group."""

    offset: int
    """A live one, among the fragments to edit."""

    edited: Callable[[Entries], Entries]
    """What all fragments that stand together around `offset` become. Raises `Conflict` if it does not fit."""


async def edited(
    tree: Tree, edit: Edit, *, version: int, uuid: Callable[[], UUID]
) -> tuple[Entries, list[tuple[Group, bytes]]]:
    """The root's entries with the edit in them.

    With them the groups to store before `version` is created: those on the way down to the edited fragments,
    made anew. A group that becomes small stays one.
    """
    manifest, groups = tree.manifest, list[tuple[Group, bytes]]()

    async def below(entries: Entries) -> Entries:
        row = _row_of(entries, edit.offset)
        one = entries[row : row + 1]
        if not one["kind"][0]:
            leaves = _leaves_of(entries)
            return joined(entries[:leaves], edit.edited(entries[leaves:]))
        group = Group(
            stream=manifest.stream,
            incarnation=manifest.incarnation,
            kind=Kind(one["kind"][0]),
            uid=uuid(),
            version=version,
            entries=await below(await tree.load(manifest, one)),
        )
        raw = group.encode()
        groups.append((group, raw))
        return joined(entries[:row], group.entry(raw), entries[row + 1 :])

    return await below(manifest.entries), groups


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
            row = _row_of(entries, offset)
            if not entries["kind"][row]:
                return decode_entries(entries[row : row + 1])[0]
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
            entries = entries[_row_of(entries, self.committed.first_offset) :]
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
        entries = entries[_row_of(entries, start) :]
        leaves = _leaves_of(entries)
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
        entries = entries[_row_of(entries, self.committed.first_offset) :]
        for row in np.flatnonzero(fits(entries)):
            one = entries[row : row + 1]
            if not one["kind"][0]:
                return decode_entries(one)[0]
            found = await self._first_in(await self.load(self.committed, one), fits)
            if found is not None:  # else what fits in this group is trimmed
                return found
        return None

    async def _last(self, entries: Entries) -> Entry | None:
        entries = entries[_row_of(entries, self.committed.first_offset) :]
        for row in np.flatnonzero(entries["messages"])[::-1]:
            one = entries[row : row + 1]
            if not one["kind"][0]:
                return decode_entries(one)[0]
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


def _leaves_of(entries: Entries) -> int:
    """The row from which on the entries are those of fragments. Larger kinds come first."""
    return int(np.searchsorted(-entries["kind"].astype(np.int8), 0))


def _row_of(entries: Entries, offset: int) -> int:
    """The row whose entry holds `offset`; the first where it lies before all, their number where behind."""
    nexts = entries["first_offset"] + entries["records"]
    return int(np.searchsorted(nexts, np.uint64(min(offset, OFFSET_MAX)), side="right"))
