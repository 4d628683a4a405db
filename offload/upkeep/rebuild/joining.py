"""Joining two histories of one stream, if all roots were lost and a sync began the stream again.

The rebuilt history keeps its fragments. The chunks that the other history holds beyond it are copied into new
fragments, because a fragment records its incarnation, and a reader checks it. The copies are uploaded while
the fence of the rebuild is the newest root, so no sweep deletes them. Each copy touches data that is there
already. So a rebuild that is killed leaves a longer history, and the next one continues from there.

Invariant: nothing is joined unless the two histories touch or overlap, and each chunk that both hold is the
same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from offload.formats.chunk import ChunkHeader
from offload.formats.fragment import FragmentTail
from offload.ground.env import Env
from offload.ground.errors import Conflict, Denied
from offload.model.attempt import Attempt
from offload.model.entry import Entry, entries_of_rows
from offload.model.manifest import Manifest, Running
from offload.native.fragment_reader import FragmentHandle, load_tail
from offload.native.key_ring import unlocked
from offload.native.offloader import ObjectStoreOffloader
from offload.read.handles import CutHandle

COMPARED: Final = ("offset", "timestamp_ms", "size_bytes", "records", "type")
"""Columns of a table that are equal for two copies of one chunk, wherever they are stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingOffsets:
    """Offsets of the other history that the rebuilt one lacks, within one fragment."""

    entry: Entry
    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A history: its fragments in order, and a manifest of their incarnation."""

    manifest: Manifest
    entries: Sequence[Entry]

    @property
    def first_offset(self) -> int:
        """First offset of its first fragment."""
        return self.entries[0].first_offset

    @property
    def next_offset(self) -> int:
        """First offset after its last fragment."""
        return self.entries[-1].next_offset

    def within(self, begin: int, end: int) -> list[MissingOffsets]:
        """Return the fragments, or parts of fragments, that hold the offsets from `begin` to below `end`."""
        clipped = (
            MissingOffsets(
                entry=entry,
                first_offset=max(begin, entry.first_offset),
                next_offset=min(end, entry.next_offset),
            )
            for entry in self.entries
            if entry.first_offset < end and begin < entry.next_offset
        )
        return list(clipped)


async def fragments_of(offloader: ObjectStoreOffloader, manifest: Manifest) -> list[Entry]:
    """Return all live fragments of a manifest, in order. Raises `Corrupt` if a group cannot be read."""
    entries: list[Entry] = []
    async with aclosing(offloader.tree(manifest).walk()) as runs:
        async for run in runs:
            entries += entries_of_rows(run)
    return entries


async def parts_to_copy(
    offloader: ObjectStoreOffloader, kept: Side, other: Side
) -> tuple[list[MissingOffsets], list[MissingOffsets]]:
    """Return the parts of `other` before `kept`, and the parts behind it.

    Raises `Conflict` if there is a gap between the two, if they hold different chunks, or if `kept` adds
    nothing to `other`.
    """
    begin, end = max(kept.first_offset, other.first_offset), min(kept.next_offset, other.next_offset)
    if begin > end:
        raise Conflict(_refused(kept, other, f"no fragment of either holds offsets [{end}, {begin})"))
    if begin < end:
        await _check_same_chunks(offloader, kept, other, begin, end)
    else:  # they only touch: no chunk is in both, and the leader epochs are all that can contradict
        await _check_order(offloader, kept, other, begin)
    if other.first_offset <= kept.first_offset and kept.next_offset <= other.next_offset:
        raise Conflict(
            f"stream {kept.manifest.stream!r}: the manifest holds all of history "
            f"{kept.manifest.incarnation}; nothing is lost"
        )
    return (
        other.within(other.first_offset, kept.first_offset),
        other.within(kept.next_offset, other.next_offset),
    )


async def copied_parts(
    offloader: ObjectStoreOffloader,
    parts: Sequence[MissingOffsets],
    *,
    source: Manifest,
    target: Manifest,
    env: Env,
) -> AsyncIterator[Entry]:
    """Upload these parts as fragments of `target`'s incarnation, one after the other.

    Raises `Denied` if a part is encrypted and the target has no key: no copy is made in the clear.
    """
    for part in parts:
        if part.entry.encrypted and not await offloader.encrypts(target):
            lacks = f"history {target.incarnation} has no key for a copy of what history"
            raise Denied(
                f"stream {target.stream!r}: {lacks} {source.incarnation} holds encrypted; copy the stream to "
                "another tier with --encrypt instead"
            )
        attempt = Attempt(stream=target.stream, ledger_id=part.entry.ledger_id, uid=env.uuid())
        # `offload` accepts only an attempt that its manifest runs. No root announces this one: see the head.
        running = Running(
            attempt=attempt.uid, ledger_id=attempt.ledger_id, epoch=target.epoch, writer=target.writer
        )
        handle = await _handle(offloader, source, part.entry)  # checks every chunk as it reads it
        cut = CutHandle(handle, first_offset=part.first_offset, next_offset=part.next_offset)
        receipt = await offloader.offload(
            cut, attempt, manifest=replace(target, running=(running,)), extra_metadata={}
        )
        for entry in receipt.entries:
            yield entry


async def last_leader_epoch(offloader: ObjectStoreOffloader, manifest: Manifest, entry: Entry) -> int:
    """Return the broker's leader epoch in the last chunk of a fragment."""
    return (await _chunk(offloader, manifest, entry, entry.next_offset - 1)).epoch


async def _check_same_chunks(
    offloader: ObjectStoreOffloader, kept: Side, other: Side, begin: int, end: int
) -> None:
    # Indexes are compared, not bytes: each row has its chunk's checksum, and readers verify it.
    ours, theirs = [[row async for row in _chunks(offloader, side, begin, end)] for side in (kept, other)]
    differing = (a[0] for a, b in zip(ours, theirs, strict=False) if a != b)
    parted = next(differing, None)
    if parted is None and len(ours) != len(theirs):  # one side is a prefix of the other
        parted = max(ours, theirs, key=len)[min(len(ours), len(theirs))][0]
    if parted is not None:
        raise Conflict(_refused(kept, other, f"they hold different chunks from offset {parted} on"))


async def _chunks(
    offloader: ObjectStoreOffloader, side: Side, begin: int, end: int
) -> AsyncIterator[tuple[int, ...]]:
    for part in side.within(begin, end):
        tail = await load_tail(offloader.store, side.manifest, part.entry)
        if part.entry.encrypted:
            where = f"attempt {part.entry.attempt}"
            tail = await unlocked(offloader.store, tail, offloader.ring, where=where)
        assert tail.checksums is not None
        for number in _between(tail, begin, end):
            row = tail.table[number]
            yield *(int(row[name]) for name in COMPARED), int(tail.checksums[number])


def _between(tail: FragmentTail, begin: int, end: int) -> list[int]:
    """Return the numbers of the chunks that hold any of these offsets.

    A chunk that only begins before them counts too: if one side has a chunk across `begin`, the other side
    cannot have the same chunk, and the comparison must show it.
    """
    offsets = tail.table["offset"]
    nexts = offsets + tail.table["records"].astype(np.uint64)
    return np.flatnonzero((nexts > np.uint64(begin)) & (offsets < np.uint64(end))).tolist()


async def _check_order(offloader: ObjectStoreOffloader, kept: Side, other: Side, offset: int) -> None:
    """Raise `Conflict` if the broker's leader epoch falls where one history follows the other."""
    before, after = (kept, other) if kept.next_offset == offset else (other, kept)
    # The leader epoch never falls within a stream. If it does here, the later data was written first.
    older = await last_leader_epoch(offloader, before.manifest, before.entries[-1])
    newer = (await _chunk(offloader, after.manifest, after.entries[0], offset)).epoch
    if newer < older:
        raise Conflict(
            _refused(
                kept, other, f"at offset {offset} the broker's leader epoch falls from {older} to {newer}"
            )
        )


async def _chunk(
    offloader: ObjectStoreOffloader, manifest: Manifest, entry: Entry, offset: int
) -> ChunkHeader:
    handle = await _handle(offloader, manifest, entry)
    table = await handle.table()
    row = int(np.searchsorted(table["offset"], np.uint64(offset), side="right")) - 1
    rows = table[row : row + 1]
    return ChunkHeader.decode(await handle.read(rows), where=handle.where)


async def _handle(offloader: ObjectStoreOffloader, manifest: Manifest, entry: Entry) -> FragmentHandle:
    return await FragmentHandle.open(
        offloader.store, manifest, entry, emit=lambda event: None, ring=offloader.ring
    )


def _refused(kept: Side, other: Side, why: str) -> str:
    one, two = kept.manifest.incarnation, other.manifest.incarnation
    return (
        f"stream {kept.manifest.stream!r}: offsets [{kept.first_offset}, {kept.next_offset}) of history "
        f"{one} and [{other.first_offset}, {other.next_offset}) of history {two}, which the manifest "
        f"names, cannot be joined: {why}. Nothing was changed. To give up what the manifest names, "
        "delete the stream with `offload delete`, do not sweep, and run this again"
    )
