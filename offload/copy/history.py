"""Comparing the source's history of a stream with the committed one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from offload.contracts.catalogue import Catalogue
from offload.contracts.ledger import ReadHandle
from offload.contracts.offloader import LedgerOffloader
from offload.contracts.source import Snapshot
from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_check import check_source
from offload.ground.errors import Absent, Corrupt, Diverged, Divergence, NotOffloaded
from offload.model.attempt import Leftover
from offload.model.chunk_table import ChunkTable
from offload.model.manifest import CommittedStream, Manifest
from offload.read.reader import newer_manifest
from offload.read.snapshots import chunk_at
from offload.write.writer import Agree


async def first_damage(handle: ReadHandle) -> tuple[int, Corrupt] | None:
    """Return the offset of the first damaged chunk of `handle`, and the damage, or None if there is none."""
    for rows in handle.windows(await handle.table()):
        try:
            raw = await handle.read(rows)
        except Corrupt as damage:  # of a source that checks what it reads: its place is not that of a chunk
            return await _first_unread(handle, rows, damage)
        try:
            await asyncio.to_thread(check_source, raw, rows, where=handle.where)
        except Corrupt as damage:
            row = int(np.searchsorted(rows["position"], np.uint64(damage.position), side="right")) - 1
            return int(rows["offset"][max(row, 0)]), damage
    return None


async def _first_unread(handle: ReadHandle, rows: ChunkTable, damage: Corrupt) -> tuple[int, Corrupt]:
    """Return the offset of the first of these chunks that cannot be read, and why."""
    for row in range(len(rows) - 1):
        try:
            await handle.read(rows[row : row + 1])
        except Corrupt as found:
            return int(rows["offset"][row]), found
    return int(rows["offset"][-1]), damage


PAGE: Final = "see: offload help a-sync-stopped"
"""The page that an operator reads if the source does not continue a stream."""


async def newest(offloader: LedgerOffloader, stream: str) -> Manifest | None:
    """Return the newest manifest, or None if the stream or the whole tier does not exist yet."""
    try:
        return await offloader.load_manifest(stream)
    except NotOffloaded:
        return None


def agreement(
    offloader: LedgerOffloader,
    stream: str,
    snapshot: Snapshot,
    *,
    check: Callable[[Manifest, Snapshot], Awaitable[object]] | None = None,
) -> Agree:
    """Return the function that decides whether the source still has what an earlier writer left.

    Its first call compares the histories once more, and may raise `Diverged`: by `check`, or by the last
    chunk alone.
    """
    compare = check or partial(check_same_history, offloader)
    # The sync compared the histories before the claim. A job may have appended since, from another log, and
    # the leftovers continue the job's data. One comparison is enough: nobody else appends after the claim but
    # jobs, and the resolution is refused if one of them does.
    is_compared = False

    async def agrees(leftover: Leftover) -> bool:
        nonlocal is_compared
        manifest = None if is_compared else await newest(offloader, stream)
        if manifest is not None:
            await compare(manifest, snapshot)
        is_compared = True
        return await source_agrees(snapshot, leftover)

    return agrees


async def source_agrees(snapshot: Snapshot, leftover: Leftover) -> bool:
    """Return whether the source has the last chunk of this upload, or no longer has that offset."""
    if leftover.last_chunk_offset < snapshot.first_offset:
        return True  # the source no longer has this chunk, so it cannot contradict it
    return await checksum_at(snapshot, leftover.last_chunk_offset) == leftover.last_chunk_checksum


async def check_same_history(offloader: LedgerOffloader, manifest: Manifest, snapshot: Snapshot) -> None:
    """Raise `Diverged` unless the source continues what is committed.

    The last committed chunk must be the source's chunk at that offset, with the same id, leader epoch,
    timestamp and CRC. The source must neither end before it nor begin behind it. If that chunk was trimmed
    and swept since `manifest` was loaded, the newest manifest is compared instead. Raises `Absent` if the
    newest manifest names an object that is gone, and `StreamDeleted` if the stream was deleted.
    """
    # Without a committed chunk that the source still has, there is nothing to compare.
    if not reaches(manifest.stream, manifest.next_offset, snapshot) or not manifest.fragments:
        return
    try:
        raw = await last_chunk(offloader, manifest)
    except Absent as absent:
        newer = await newer_manifest(offloader, manifest, absent)
        await check_same_history(offloader, newer, snapshot)
        return
    await check_chunk(manifest.stream, raw, snapshot)


async def check_continues(manifest: Manifest, last: bytes | None, snapshot: Snapshot) -> None:
    """Raise `Diverged` unless the source continues this writer's data. Sends no request.

    `last` is the last chunk that the writer copied, or None if it copied none yet.
    """
    if reaches(manifest.stream, manifest.next_offset, snapshot) and last is not None:
        await check_chunk(manifest.stream, last, snapshot)


async def check_behind(stream: str, header: bytes, snapshot: Snapshot) -> None:
    """Raise `Diverged` unless the source continues the chunk behind which an empty part begins."""
    if reaches(stream, end_of_chunk(header), snapshot):
        await check_chunk(stream, header, replace(snapshot, holds=None))


def end_of_chunk(header: bytes) -> int:
    """Return the offset behind the chunk that has this header."""
    return ChunkHeader.decode(header, where="the chunk behind which a part begins").next_offset


def reaches(stream: str, end: int, snapshot: Snapshot) -> bool:
    """Return whether the source has records before and from the offset `end`, or ends there.

    Returns False if the source begins there. Raises `Diverged` for a gap, or a source too short.
    """
    if snapshot.first_offset > end:
        gap = f"{snapshot.first_offset}, but offset {end} is the next to be copied: there is a gap"
        raise Diverged(f"stream {stream!r}: the source begins at offset {gap}; {PAGE}", kind=Divergence.GAP)
    if snapshot.next_offset < end:
        raise Diverged(
            f"stream {stream!r}: the source ends at offset {snapshot.next_offset}, "
            f"but the tier holds it up to {end}; {PAGE}",
            kind=Divergence.BEHIND,
        )
    return snapshot.first_offset != end


async def check_chunk(stream: str, raw: bytes, snapshot: Snapshot, *, held_by: str = "tier") -> None:
    """Raise `Diverged` unless the source has this chunk, which is `held_by` the tier or a reader."""
    committed = ChunkHeader.decode(raw, where=f"last chunk of stream {stream!r}")
    offset = committed.offset
    if offset < snapshot.first_offset and snapshot.holds is None:
        within = f"within the tier's last chunk, which is at offset {offset}"
        raise Diverged(f"stream {stream!r}: the source begins {within}; {PAGE}", kind=Divergence.FORK)
    theirs = await (snapshot.holds or partial(_lacks, snapshot, committed))(raw)
    if theirs is not None:
        ours = f"leader epoch {committed.epoch}, CRC {committed.crc:08x}"
        raise Diverged(
            f"stream {stream!r}: source and {held_by} part at or before offset {offset}: the {held_by}'s "
            f"chunk has {ours}; in the source: {theirs}; {PAGE}",
            kind=Divergence.FORK,
        )


async def _lacks(snapshot: Snapshot, committed: ChunkHeader, _: bytes) -> str | None:
    """Return what the source has instead of this chunk, or None if it has the same. See `Snapshot.holds`."""
    raw = await chunk_at(snapshot, committed.offset)
    if raw is None:
        return "no chunk begins there"
    found = ChunkHeader.decode(raw, where=f"chunk at offset {committed.offset}")
    if (found.epoch, found.crc) == (committed.epoch, committed.crc):
        if found.timestamp_ms == committed.timestamp_ms:
            return None
        # The CRC is that of the records alone. A producer may have sent them to two brokers.
        return f"the same records at another time, {found.timestamp_ms} and not {committed.timestamp_ms}"
    return f"leader epoch {found.epoch}, CRC {found.crc:08x}"


async def last_chunk(catalogue: Catalogue, committed: CommittedStream) -> bytes:
    """Return the last committed chunk, read and checked."""
    view = catalogue.view_of(committed)
    entry = await view.find(committed.next_offset - 1)
    assert entry is not None, "the caller has checked that there are fragments"
    async with await view.open(entry) as handle:
        return bytes(await handle.read((await handle.table())[-1:]))


async def checksum_at(snapshot: Snapshot, offset: int) -> int | None:
    """Return the CRC-32 of the source's whole stored chunk at `offset`, or None if it has no sound one."""
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
