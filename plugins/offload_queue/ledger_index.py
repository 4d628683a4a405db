"""The index of one ledger of a vhost's log: what a start needs of it, without the bodies.

    00000000000000006250.queues    MAGIC, CRC-32 of the rest, a `LedgerIndex` as MessagePack

A sealed ledger gets a file. It is derived: if it is absent, damaged, or of another version, the ledger is
read. So it is not synced, and a torn one is found by its checksum.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from offload.contracts.ledger import ReadHandle
from offload.formats.checksums import crc32
from offload.formats.chunk_check import check_source
from offload.formats.records import RecordRun, record_runs
from offload.model.chunk_table import ChunkTable
from offload_queue.log_records import CONTROL, HEAD, IDS_AT, MESSAGE, MessageTags, PackedOffsets, queues_of

__all__ = ["LedgerIndex"]

MAGIC: Final = b"OFQI\0\0\0\1"
READ_SIZE_BYTES: Final = 4 * 2**20


class LedgerIndex(msgspec.Struct, array_like=True, frozen=True):
    """The records of one ledger."""

    first: int
    end: int
    sizes: bytes
    """The size of each record, as 32 bits."""
    queues: list[tuple[int, PackedOffsets]]
    """The messages of each queue, perhaps several times."""
    controls: list[tuple[int, bytes]]
    """The offsets and bytes of the other records."""


_DECODER: Final = msgspec.msgpack.Decoder(LedgerIndex)


def index_path(folder: Path, ledger_id: int) -> Path:
    """Return the file of a ledger's index."""
    return folder / f"{ledger_id:020}.queues"


def load_index(folder: Path, first: int, end: int) -> LedgerIndex | None:
    """Return the index of a ledger; None if it has to be read. Blocks."""
    try:
        raw = index_path(folder, first).read_bytes()
        if raw[:8] != MAGIC or int.from_bytes(raw[8:12], "big") != crc32(raw[12:]):
            return None
        found = _DECODER.decode(memoryview(raw)[12:])
        is_whole = (found.first, found.end, len(found.sizes)) == (first, end, 4 * (end - first))
        return found if is_whole else None
    except (OSError, msgspec.DecodeError):
        return None


def save_index(folder: Path, index: LedgerIndex) -> None:
    """Write the index of a ledger. Blocks. Raises `OSError`."""
    raw = msgspec.msgpack.encode(index)
    path = index_path(folder, index.first)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(MAGIC + crc32(raw).to_bytes(4, "big") + raw)
    os.replace(unfinished, path)


async def read_index(handle: ReadHandle) -> LedgerIndex:
    """Return the index of a ledger by reading it. Raises `Corrupt` for damage."""
    sizes: list[bytes] = []
    queues: list[MessageTags] = []
    offsets: list[MessageTags] = []
    controls: list[tuple[int, bytes]] = []
    async for run in runs_of(handle, await handle.table()):
        sizes.append(run.sizes.astype("<u4").tobytes())
        data, at = np.frombuffer(run.data, np.uint8), run.starts
        tags = run.offsets.astype(np.int64)
        is_there = run.sizes >= HEAD.size + 4  # a shorter one is empty, a control, or of no queue
        kinds = np.where(run.sizes > 0, data[np.where(run.sizes > 0, at, 0)], 0)
        rows = np.flatnonzero((kinds == MESSAGE) & is_there)
        is_of_one = _numbers(data, at[rows] + 2) == 1
        single = rows[is_of_one]
        queues.append(_numbers(data, at[single] + IDS_AT))
        offsets.append(tags[single])
        for row in rows[~is_of_one].tolist():
            ids = queues_of(record_at(run, row), where=handle.where, offset=int(tags[row]))
            queues.append(ids)
            offsets.append(np.full(len(ids), tags[row]))
        controls += [
            (int(tags[row]), record_at(run, row)) for row in np.flatnonzero(kinds == CONTROL).tolist()
        ]
    grouped = _by_queue(np.concatenate(queues), np.concatenate(offsets)) if queues else []
    return LedgerIndex(handle.first_offset, handle.next_offset, b"".join(sizes), grouped, controls)


async def runs_of(handle: ReadHandle, rows: ChunkTable) -> AsyncGenerator[RecordRun, None]:
    """Yield the records of these chunks, all checked."""
    for window in handle.windows(rows, size_bytes=READ_SIZE_BYTES):
        raw = await handle.read(window)
        check_source(raw, window, where=handle.where)
        for run in record_runs(raw, window, where=handle.where):
            yield run


async def read_records(handle: ReadHandle, tags: MessageTags) -> list[bytes]:
    """Return the records with these ascending offsets, which the handle has."""
    table, found = await handle.table(), list[bytes]()
    chunks = np.unique(np.searchsorted(table["offset"], tags.astype(np.uint64), side="right") - 1)
    for part in np.split(chunks, np.flatnonzero(np.diff(chunks) > 1) + 1):
        async for run in runs_of(handle, table[int(part[0]) : int(part[-1]) + 1]):
            begin, end = np.searchsorted(tags, [int(run.offsets[0]), int(run.offsets[-1]) + 1]).tolist()
            rows = np.searchsorted(run.offsets, tags[begin:end].astype(np.uint64))
            data, starts = run.data, run.starts[rows]
            stops = (starts + run.sizes[rows]).tolist()
            found += [bytes(data[at:stop]) for at, stop in zip(starts.tolist(), stops, strict=True)]
    return found


def record_at(run: RecordRun, row: int) -> bytes:
    """Return one record of a run."""
    start = int(run.starts[row])
    return bytes(run.data[start : start + int(run.sizes[row])])


def _numbers(data: np.ndarray[tuple[int], np.dtype[np.uint8]], at: MessageTags) -> MessageTags:
    """Return the 32-bit numbers at these positions."""
    quads = data[at[:, None] + np.arange(4)].astype(np.int64)
    return np.asarray(quads @ np.array([2**24, 2**16, 2**8, 1]), np.int64)


def _by_queue(queues: MessageTags, offsets: MessageTags) -> list[tuple[int, PackedOffsets]]:
    if not len(queues):
        return []
    order = np.lexsort((offsets, queues))
    queues, offsets = queues[order], offsets[order]
    edges = np.flatnonzero(np.diff(queues)) + 1
    firsts: Sequence[int] = [0, *edges.tolist()]
    return [
        (int(queues[first]), PackedOffsets.of(part))
        for first, part in zip(firsts, np.split(offsets, edges), strict=True)
    ]
