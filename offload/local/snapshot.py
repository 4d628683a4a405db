"""The snapshot of a stream's folder, and the mark that shows whether it has changed.

The table of a sealed segment is read from its index when it is needed. A few tables are kept, at 37 bytes
for each chunk: a lookup by time may walk every segment of a stream.

Invariant: no file is changed, and none is open before something of it is read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, TypeAlias

from offload.contracts.source import Snapshot
from offload.ground.errors import TryAgain
from offload.local.files import explained
from offload.local.pair import parse_name
from offload.local.recovery import recover
from offload.local.sealed import sealed_table
from offload.local.segment_ledger import SegmentLedger
from offload.store.buffers import BufferPool

__all__ = ["FolderMark", "folder_mark", "folder_snapshot"]


TABLES_KEPT: Final = 16
KEPT_SIZE_BYTES_MAX: Final = 384 * 2**20
"""The memory of windows that waits for its next use: that of four fragments, which may end together."""

FolderMark: TypeAlias = tuple[int, tuple[str, ...], tuple[int, ...]]


def folder_snapshot(folder: Path, *, stream: str) -> Snapshot:
    """Return what a broker would show of this folder now, as `recovery` decides. Blocks.

    If the newest segment is damaged, or a file is missing, the snapshot ends before it and has this damage
    as `damage`. Damage of a sealed segment is raised by its ledger. Raises `TryAgain` if the broker moves or
    deletes the files, and `UnsupportedFormat` if their version is newer than this program.
    """
    recovered = recover(folder, stream=stream)
    table = lru_cache(TABLES_KEPT)(partial(sealed_table, stream=stream))
    # Of this snapshot alone, so that a process which waits for new data holds no free memory.
    ledger = partial(SegmentLedger, pool=BufferPool(KEPT_SIZE_BYTES_MAX))
    ledgers = [
        ledger(sealed.pair, next_offset=sealed.next_offset, load=partial(table, sealed))
        for sealed in recovered.sealed
    ]
    if newest := recovered.newest:
        rows = newest.rows
        ledgers.append(ledger(newest.pair, next_offset=newest.last.next_offset, load=lambda: rows))
    return Snapshot(
        ledgers=ledgers,
        first_offset=recovered.first_offset,
        next_offset=recovered.next_offset,
        epoch=recovered.epoch,
        damage=recovered.damage,
    )


def folder_mark(folder: Path) -> FolderMark:
    """Return the name and the sizes of the newest pair of files, and the number of files. Blocks.

    An append makes them larger, and retention and a new segment change the number. Osiris writes the chunk
    first and its index record second, so a mark may change before a snapshot shows the chunk, and changes
    once more with the record.
    """
    with explained("list", folder), os.scandir(folder) as entries:
        names = [entry.name for entry in entries if parse_name(entry.name) is not None]
    newest = sorted(names)[-2:]
    sizes = []
    for name in newest:
        # The broker may delete a file between the two calls. The next mark then has other names.
        with suppress(TryAgain), explained("look at", folder / name):
            sizes.append((folder / name).stat().st_size)
    return len(names), tuple(newest), tuple(sizes)
