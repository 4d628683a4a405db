"""The pair of files that takes appends, and the order of its writes and syncs.

The index decides at recovery, so an acknowledged chunk needs its bytes and its index record. If syncs are
asked for:

    chunks    order
    one       write chunk | write record | sync both files at the same time
    several   write chunks | sync the segment | write records | sync the index

One chunk may be synced beside its record: if a power cut keeps the record alone, the chunk is not sound, and
recovery drops both. With several chunks, it could keep the records and the last chunk, and lose one before
it. That would be a hole in the middle, which recovery does not look for. So the index gets no record of a
chunk that might be lost before it.

Two syncs at the same time take 1.0 to 1.4 times as long as one on ext4, and one after the other 1.7 times:
the file system writes its journal once for both.

Without syncs, the kernel writes pages in any order. After a power cut, a chunk that was never synced may be a
hole before a sound one. A reader then raises `Corrupt`. A killed process loses and breaks nothing.

Invariants:

- `end` moves only when the policy of the write is kept: never back, and never by a part of a write.
- A write that failed is cut off again, durably. If that fails, or if any sync fails, nobody knows what is on
  the disk: `broken` has the error, and every later write raises it.
- The pair before is synced before a pair is created, and the names are durable when `create_pair` returns. So
  an empty pair with whole headers proves that the pair before it is sealed. Sealed pairs survive a power cut.

Every method blocks. One thread at a time may change a pair. `end` and `synced` may be read in any thread.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from offload.formats.checksums import crc32
from offload.formats.chunk import CHUNK_HEADER, ChunkHeader
from offload.formats.segment import (
    INDEX_HEADER,
    INDEX_MAGIC,
    INDEX_RECORD,
    SEGMENT_HEADER,
    SEGMENT_MAGIC,
    VERSION,
    record_position,
)
from offload.ground.errors import Denied, NoSpace, OffloadError
from offload.local.files import explained, shown_path
from offload.local.newest import recover_newest
from offload.local.pair import Pair
from offload.log.appended import NewChunk
from offload.log.disk import Disk
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable, ChunkType

__all__ = ["OpenPair", "PairEnd", "create_pair", "remove_pair"]


SYNCS_BESIDE: Final = 8
"""The number of logs of a process that sync two files at the same time. Others wait for one of them."""

TIME_MS_MIN: Final = -(2**63)


class PairEnd(NamedTuple):
    """Where a pair ends."""

    next_offset: int
    position: int = SEGMENT_HEADER.size_bytes
    """The size of the segment."""
    chunks: int = 0


class OpenPair:
    """The newest pair of a log. Its files are opened by the first write, and again after `close`."""

    __slots__ = ("_disk", "_files", "_rows", "broken", "end", "epoch", "pair", "synced", "timestamp_ms")

    def __init__(self, pair: Pair, end: PairEnd, *, epoch: int, timestamp_ms: int, disk: Disk) -> None:
        self.pair, self.epoch, self._disk = pair, epoch, disk
        self.end = self.synced = end
        self.timestamp_ms = timestamp_ms
        """The timestamp of the log's last chunk."""
        self.broken: OffloadError | None = None
        self._files: tuple[int, int] | None = None
        self._rows: ChunkTable | None = np.empty(0, CHUNK_TABLE) if not end.chunks else None

    @property
    def is_open(self) -> bool:
        """True if the files are open."""
        return self._files is not None

    def write(self, chunks: Sequence[NewChunk], *, sync: bool) -> None:
        """Append chunks, all or nothing. If `sync`, they are durable when this returns."""
        self.check()
        segment, index = self._open()
        old = self.end
        # Before the first byte goes to a file: an error of this needs no cut.
        parts, records, rows, new = self._encoded(chunks)
        try:
            with explained("write", self.pair.segment):
                self._disk.write(segment, old.position, parts)
            if sync and len(chunks) > 1:
                self._sync(segment)
            with explained("write", self.pair.index):
                self._disk.write(index, record_position(old.chunks), [records])
            if sync and len(chunks) > 1:
                self._sync(index)
            elif sync:
                self._sync_both(segment, index)
        except BaseException as exc:  # any: bytes behind `end` would be taken for chunks at the next recovery
            self._take_back(segment, index, old, exc)
            raise
        # Rows first, `end` last: readers in other threads take `end` and then the rows below it.
        self._add(rows, old.chunks)
        self.timestamp_ms = chunks[-1].timestamp_ms
        self.end = new
        if sync:
            self.synced = new

    def sync(self) -> None:
        """Make everything durable that was written."""
        self.check()
        if self.synced != self.end:
            segment, index = self._open()
            # In this order for the same reason as in `write`: several chunks may wait.
            self._sync(segment)
            self._sync(index)
            self.synced = self.end

    def seal(self, now_ms: int) -> int:
        """Sync the files, keep the time at which that was, and return it as the file system keeps it."""
        self.check()
        segment, index = self._open()
        self._sync(index)
        # `set_time` syncs the segment. Its time is the moment of sealing, from which ages of ledgers count.
        try:
            with explained("sync", self.pair.segment):
                self._disk.set_time(segment, now_ms)
        except BaseException as exc:
            self.break_off(exc)
            raise
        self.synced = self.end
        return os.fstat(segment).st_mtime_ns // 1_000_000

    def close(self) -> None:
        """Close the files, and forget the rows. Idempotent."""
        files, self._files = self._files, None
        for descriptor in files or ():
            os.close(descriptor)
        if self.end.chunks:
            self._rows = None

    def kept_rows(self, count: int) -> ChunkTable | None:
        """Return the first rows of the table if they are in memory. They never change."""
        rows = self._rows
        if rows is None:
            return None
        found = rows[:count]
        found.flags.writeable = False  # of the view alone: later rows go into the same memory
        return found

    def read_rows(self, count: int) -> ChunkTable:
        """Return the first rows of the table, from the index."""
        return _rows_of(self.pair)[:count]

    def check(self) -> None:
        """Raise the error that broke the log."""
        if self.broken is not None:
            raise copy(self.broken) from self.broken

    def _open(self) -> tuple[int, int]:
        if self._files is None:
            with explained("open", self.pair.segment):
                segment = self._disk.open(self.pair.segment)
            try:
                with explained("open", self.pair.index):
                    self._files = segment, self._disk.open(self.pair.index)
            except BaseException:
                os.close(segment)
                raise
        if self._rows is None:
            self._rows = _rows_of(self.pair)[: self.end.chunks].copy()
        return self._files

    def _encoded(self, chunks: Sequence[NewChunk]) -> tuple[list[bytes], bytes, ChunkTable, PairEnd]:
        """Return the bytes for the segment and for the index, the rows, and the new end."""
        parts: list[bytes] = []
        records: list[bytes] = []
        rows = np.empty(len(chunks), CHUNK_TABLE)
        offset, position, count = self.end
        timestamp_ms = self.timestamp_ms
        for number, chunk in enumerate(chunks):
            # Never back: a search by time takes the first chunk that is late enough.
            chunk.timestamp_ms = timestamp_ms = max(timestamp_ms, chunk.timestamp_ms)
            data = chunk.parts if len(chunk.parts) <= _PARTS_JOINED_MIN else [b"".join(chunk.parts)]
            checksum = 0
            for part in data:
                checksum = crc32(part, checksum)
            header = ChunkHeader(
                type=ChunkType.USER,
                entries=chunk.records,
                records=chunk.records,
                timestamp_ms=timestamp_ms,
                epoch=self.epoch,
                offset=offset,
                crc=checksum,
                data_size_bytes=chunk.size_bytes,
                trailer_size_bytes=0,
                filter_size_bytes=0,
            )
            size_bytes = CHUNK_HEADER.size_bytes + chunk.size_bytes
            parts += header.encode(), *data
            records.append(
                INDEX_RECORD.struct.pack(offset, timestamp_ms, self.epoch, position, ChunkType.USER)
            )
            rows[number] = offset, timestamp_ms, position, size_bytes, chunk.records, ChunkType.USER
            offset, position = offset + chunk.records, position + size_bytes
        return parts, b"".join(records), rows, PairEnd(offset, position, count + len(chunks))

    def _add(self, rows: ChunkTable, count: int) -> None:
        """Put rows behind the first `count`. The array doubles, and views of the old one stay as they are."""
        assert self._rows is not None
        wanted = count + len(rows)
        if wanted > len(self._rows):
            larger = np.empty(max(wanted, 2 * len(self._rows)), CHUNK_TABLE)
            larger[:count] = self._rows[:count]
            self._rows = larger
        self._rows[count:wanted] = rows

    def _sync(self, descriptor: int) -> None:
        try:
            with explained("sync the files of", self.pair.segment.parent):
                self._disk.sync(descriptor)
        except BaseException as exc:
            # The kernel may have dropped what it could not write, and would not say so a second time.
            self.break_off(exc)
            raise

    def _sync_both(self, segment: int, index: int) -> None:
        beside = _beside(os.getpid()).submit(self._sync, index)
        try:
            self._sync(segment)
        finally:
            error = beside.exception()  # also waits: no sync may run when the files are closed
        if error is not None:
            raise error

    def _take_back(self, segment: int, index: int, old: PairEnd, cause: BaseException) -> None:
        """Cut off a write that failed. If this fails too, the log is broken."""
        try:
            # The index first: it decides, so the failed chunks are gone from here on.
            with explained("cut", self.pair.index):
                self._disk.cut(index, record_position(old.chunks))
                self._disk.cut(segment, old.position)
                # A crash must not bring back what this log never acknowledged.
                self._disk.sync(index)
                self._disk.sync(segment)
        except Exception:  # noqa: BLE001 - whatever it is, the files are not as they were
            self.break_off(cause)

    def break_off(self, cause: BaseException) -> None:
        """Refuse every later write with this error."""
        if self.broken is None:
            # To try again would not help, whatever the error of one call says.
            kind = next((kind for kind in (Denied, NoSpace) if isinstance(cause, kind)), OffloadError)
            folder = shown_path(self.pair.segment.parent)
            broken = kind(f"{folder} takes no appends until it is opened again: {cause}")
            broken.__cause__ = cause
            self.broken = broken


_PARTS_JOINED_MIN: Final = 16
"""Many small parts are joined: the kernel takes longer for each of them than a copy."""


def create_pair(pair: Pair, *, disk: Disk) -> None:
    """Create an empty pair, durably. After an error, there is none.

    The index first, as osiris does: recovery removes an index without a segment.
    """
    try:
        for path, header in (
            (pair.index, INDEX_HEADER.pack(magic=INDEX_MAGIC, version=VERSION)),
            (pair.segment, SEGMENT_HEADER.pack(magic=SEGMENT_MAGIC, version=VERSION)),
        ):
            with explained("create", path):
                descriptor = disk.create(path)
                # The headers before the names: a durable name of an empty file would be a pair that is no
                # pair.
                try:
                    disk.write(descriptor, 0, [header])
                    disk.sync(descriptor)
                finally:
                    os.close(descriptor)
        with explained("sync", pair.folder):
            disk.sync_folder(pair.folder)
    except OffloadError:
        remove_pair(pair, disk=disk, is_empty=True)
        raise


def remove_pair(pair: Pair, *, disk: Disk, is_empty: bool = False) -> None:
    """Remove a pair, durably, in an order that recovery understands when a crash leaves one of the files.

    Recovery removes a segment without an index if it is the oldest and has records, and an index without a
    segment if it is the newest and empty.
    """
    for path in (pair.segment, pair.index) if is_empty else (pair.index, pair.segment):
        with explained("delete", path):
            disk.remove(path)
    with explained("sync", pair.folder):
        disk.sync_folder(pair.folder)


def _rows_of(pair: Pair) -> ChunkTable:
    newest = recover_newest(pair)
    return np.empty(0, CHUNK_TABLE) if newest is None else newest.rows


@lru_cache(1)
def _beside(process: int) -> ThreadPoolExecutor:
    """Return the threads that sync an index beside its segment. A forked process gets threads of its own."""
    return ThreadPoolExecutor(SYNCS_BESIDE, f"folder-log-{process}")
