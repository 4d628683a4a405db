"""Comparing two histories of a stream: the source's, and what is committed."""

from __future__ import annotations

import asyncio
from typing import Final

import numpy as np

from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.errors import Absent, Corrupt, Diverged, NotOffloaded
from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_check import check_source
from offload.model.attempt import Leftover
from offload.model.chunk_table import windows_of
from offload.model.manifest import Manifest
from offload.streams.reader import newer_manifest
from offload.streams.writer import Agree


async def first_damage(handle: ReadHandle) -> tuple[int, Corrupt] | None:
    """The offset of the first chunk of `handle` that does not hold, and what is wrong with it; or None."""
    for rows in windows_of(await handle.table()):
        raw = await handle.read(rows)
        try:
            await asyncio.to_thread(check_source, raw, rows, where=handle.where)
        except Corrupt as damage:
            row = int(np.searchsorted(rows["position"], np.uint64(damage.position), side="right")) - 1
            return int(rows["offset"][max(row, 0)]), damage
    return None


PAGE: Final = 'see "A sync stopped: what now" (docs/a-sync-stopped.md)'
"""Where a person reads on whose stream the source does not continue."""


async def newest(offloader: LedgerOffloader, stream: str) -> Manifest | None:
    """The newest manifest, or None where the stream, or the whole tier, is not there yet."""
    try:
        return await offloader.load_manifest(stream)
    except NotOffloaded:
        return None


def agreement(offloader: LedgerOffloader, stream: str, snapshot: Snapshot) -> Agree:
    """Return the function that says whether the source still has what an earlier writer left.

    The histories are compared once more before the first answer, which may raise `Diverged`. A job may have
    appended since the sync compared them, and the leftovers continue what that job appended.
    """
    is_compared = False

    async def agrees(leftover: Leftover) -> bool:
        nonlocal is_compared
        manifest = None if is_compared else await newest(offloader, stream)
        if manifest is not None:
            await check_same_history(offloader, manifest, snapshot)
        is_compared = True
        if leftover.last_chunk_offset < snapshot.first_offset:
            return True  # the source no longer has it, so nobody can disagree
        return await checksum_at(snapshot, leftover.last_chunk_offset) == leftover.last_chunk_checksum

    return agrees


async def check_same_history(offloader: LedgerOffloader, manifest: Manifest, snapshot: Snapshot) -> None:
    """Raise `Diverged` unless the source continues what is committed.

    The last committed chunk must be the source's chunk at that offset: same id, leader epoch and
    CRC; and the source must neither end before it nor begin behind it. If that chunk was trimmed and swept
    since `manifest` was loaded, the newest manifest is asked instead. Raises `Absent` if it too names what
    is gone, and `StreamDeleted`.
    """
    stream, end = manifest.stream, manifest.next_offset
    if snapshot.first_offset > end:
        gap = f"{snapshot.first_offset}, but offset {end} is the next to be copied: there is a gap"
        raise Diverged(f"stream {stream!r}: the source begins at offset {gap}; {PAGE}")
    if snapshot.next_offset < end:
        raise Diverged(
            f"stream {stream!r}: the source ends at offset {snapshot.next_offset}, "
            f"but the tier holds it up to {end}; {PAGE}"
        )
    if not manifest.fragments or snapshot.first_offset == end:
        return
    try:
        committed = await last_chunk(offloader, manifest)
    except Absent as absent:
        newer = await newer_manifest(offloader, manifest, absent)
        await check_same_history(offloader, newer, snapshot)
        return
    offset = committed.offset
    if offset < snapshot.first_offset:
        within = f"within the tier's last chunk, which is at offset {offset}"
        raise Diverged(f"stream {stream!r}: the source begins {within}; {PAGE}")
    raw = await snapshot.chunk_at(offset)
    found = None if raw is None else ChunkHeader.decode(raw, where=f"chunk at offset {offset}")
    if found is None or (found.epoch, found.crc) != (committed.epoch, committed.crc):
        theirs = (
            "no chunk begins there" if found is None else f"leader epoch {found.epoch}, CRC {found.crc:08x}"
        )
        raise Diverged(
            f"stream {stream!r}: source and tier part at or before offset {offset}: the tier's chunk has "
            f"leader epoch {committed.epoch}, CRC {committed.crc:08x}; in the source: {theirs}; {PAGE}"
        )


async def last_chunk(offloader: LedgerOffloader, manifest: Manifest) -> ChunkHeader:
    """The header of the last committed chunk, read and checked."""
    view = offloader.view_of(manifest)
    entry = await view.find(manifest.next_offset - 1)
    assert entry is not None, "only asked where there are fragments"
    async with await view.open(entry) as handle:
        rows = (await handle.table())[-1:]
        return ChunkHeader.decode(await handle.read(rows), where=handle.where)


async def checksum_at(snapshot: Snapshot, offset: int) -> int | None:
    """CRC-32 of the source's whole stored chunk at `offset`; None where there is no sound one."""
    for ledger in snapshot.ledgers:
        if ledger.first_offset <= offset < ledger.next_offset:
            try:
                table = await ledger.table()
                rows = table[table["offset"] == offset]
                return (
                    int(check_source(await ledger.read(rows), rows, where=ledger.where)[0])
                    if len(rows)
                    else None
                )
            except Corrupt:
                return None
    return None
