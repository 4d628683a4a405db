"""The index of a queue of version 2: segments `n.qi` of fixed slots, and `n.qs` with the small bodies.

    both begin with     magic, version 2, first and last sequence id as u64, zeros: 64 bytes together
    slot of `n.qi`      1 = present, flags (bit 0: persistent), 0, kind of place and 16 bytes of it,
                        payload size u32, expiry u64 in microseconds: 32 bytes
    place               1 and an id of the message store, or 2, offset u64 and size u32 in `n.qs`
    entry of `n.qs`     size u32, flags (bit 0: the CRC counts), low 16 bits of the body's CRC-32, 0, the body

A slot counts until it is acknowledged; then its first byte is 0. The formats are those of
`rabbit_classic_queue_index_v2.erl` and `rabbit_classic_queue_store_v2.erl` of RabbitMQ 3.10 to 4.

Invariant: a row is returned only if its body is whole, and has the stored CRC if there is one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from offload.local.files import shown_path
from offload_rabbitmq.queues.store_files import (
    IN_STORE,
    ROW,
    TERM_SIZE_BYTES_MAX,
    Damages,
    FileWindow,
    QueueRows,
    VhostFiles,
)

HEADER_SIZE_BYTES: Final = 64
SLOTS_MAX: Final = 2**20
"""The most slots of a segment that are read: 256 times as many as the broker writes."""

SLOT: Final = np.dtype(
    [
        *(("present", "u1"), ("flags", "u1"), ("zero", "u1"), ("kind", "u1"), ("offset", ">u8")),
        *(("size", ">u4"), ("rest", "S4"), ("payload", ">u4"), ("expiry_us", ">u8")),
    ]
)
assert SLOT.itemsize == 32

_HEAD: Final = (b"RCQI\x02", b"RCQS\x02")
_SEGMENT: Final = re.compile(r"(0|[1-9][0-9]{0,13})\.qi")
_STORED, _QUEUED = 1, 2


def read_index_v2(folder: Path, names: Collection[str], files: VhostFiles, damages: Damages) -> QueueRows:
    """Return the persistent messages of a queue that were not acknowledged, in the order of the queue.

    `names` are those in the folder of the queue.
    """
    numbers = sorted(int(match[1]) for name in names if (match := _SEGMENT.fullmatch(name)))
    rows = [np.zeros(0, ROW)]
    for number in numbers:
        found = _read_segment(folder / f"{number}.qi", files, damages)
        is_queued = found["file"] != IN_STORE
        bodies = f"{number}.qs"
        if bodies in names:
            found = found[_check_bodies(folder / bodies, found, files, damages)]
        elif is_queued.any():
            damages[_name(folder / bodies, files), "the file is gone"] += int(is_queued.sum())
            found = found[~is_queued]
        rows.append(found)
    return np.concatenate(rows)


def _read_segment(path: Path, files: VhostFiles, damages: Damages) -> QueueRows:
    """Return the live rows of a segment. `file` is 0 if the body is in the queue's own store."""
    file = files.files[files.add(path)]
    name, nothing = _name(path, files), np.zeros(0, ROW)
    slots_size_bytes = min(file.size_bytes - HEADER_SIZE_BYTES, SLOTS_MAX * SLOT.itemsize)
    with file.window() as window:
        head = window.at(0, min(HEADER_SIZE_BYTES, file.size_bytes))
        if head[:5] != _HEAD[0] or slots_size_bytes < 0:
            damages[name, "no header of an index"] += 1
            return nothing
        if slots_size_bytes % SLOT.itemsize:
            damages[name, "the last record is cut off"] += 1
        count = slots_size_bytes // SLOT.itemsize
        slots = np.frombuffer(window.at(HEADER_SIZE_BYTES, count * SLOT.itemsize), SLOT)
    first = int.from_bytes(head[5:13], "big")
    if first + count >= 2**63:
        damages[name, "no header of an index"] += 1
        return nothing
    is_slot = (slots["present"] <= 1) & (slots["zero"] == 0)
    is_live = is_slot & (slots["present"] == 1) & (slots["flags"] & 1 == 1)
    has_place = (slots["kind"] == _STORED) | (slots["kind"] == _QUEUED)
    for is_bad, reason in (
        (~is_slot, "bytes that are no slot"),
        (is_live & ~has_place, "a slot that names no place of its message"),
    ):
        if bad := int(is_bad.sum()):
            damages[name, reason] += bad
    live = np.flatnonzero(is_live & has_place)
    return _rows(slots[live], live.astype(np.uint64) + np.uint64(first))


def _rows(slots: npt.NDArray[Any], sequences: npt.NDArray[np.uint64]) -> QueueRows:
    rows = np.zeros(len(slots), ROW)
    rows["sequence"], rows["expiry_us"] = sequences, slots["expiry_us"]
    is_stored = slots["kind"] == _STORED
    rows["file"] = np.where(is_stored, IN_STORE, 0)
    raw = np.ascontiguousarray(slots).view(np.uint8).reshape(len(slots), SLOT.itemsize)
    rows["id"] = np.ascontiguousarray(raw[:, 4:20]).view("S16").ravel()
    rows["position"], rows["size"] = slots["offset"], slots["size"]
    return rows


def _check_bodies(path: Path, rows: QueueRows, files: VhostFiles, damages: Damages) -> npt.NDArray[np.bool_]:
    """Set the places of the bodies that are in a file. Return which rows are sound."""
    number = files.add(path)
    file, name = files.files[number], _name(path, files)
    keep = np.ones(len(rows), np.bool_)
    queued = np.flatnonzero(rows["file"] != IN_STORE)
    with file.window() as window:
        has_header = file.size_bytes >= HEADER_SIZE_BYTES and window.at(0, 5) == _HEAD[1]
        if not has_header:
            damages[name, "no header of a store"] += 1
        places = zip(
            queued.tolist(),
            rows["position"][queued].tolist(),
            rows["size"][queued].tolist(),
            strict=True,
        )
        for row, position, size in places:
            if reason := _wrong(window, position, size):
                damages[name, reason] += 1
                keep[row] = False
    rows["file"][queued], rows["position"][queued] = number, rows["position"][queued] + np.uint64(8)
    return keep


def _wrong(window: FileWindow, position: int, size: int) -> str:
    """Return what is wrong with an entry."""
    if position < HEADER_SIZE_BYTES or position + 8 + size > window.file.size_bytes:
        return "a body that ends behind the file"
    if size > TERM_SIZE_BYTES_MAX or int.from_bytes(window.at(position, 4), "big") != size:
        return "a body of another size than its index says"
    entry = window.at(position, 8 + size)
    if entry[4] & 1 and zlib.crc32(entry[8:]) & 0xFFFF != int.from_bytes(entry[5:7], "big"):
        return "a body whose CRC is wrong"
    return ""


def _name(path: Path, files: VhostFiles) -> str:
    return shown_path(path.relative_to(files.folder))
