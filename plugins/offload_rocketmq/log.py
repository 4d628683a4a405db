"""The commit log of a store: its files, mapped, and the end at which no record counts any more.

The files have one size, and are named by the position of their first byte in 20 digits. The broker deletes
the oldest. The last one, or the last two, are filled up with zeros in advance.

If the broker stopped in order, or runs, what its consume queues name was written. If it crashed, it scans the
log when it starts again, and drops everything from the first bad record on, also sound records behind it. The
same rule is applied here in memory. Its source is `CommitLog.recoverAbnormally` of RocketMQ 5.3.3.

Invariant: files are opened read-only. Those of the log keep their size while they exist, so a mapped file is
never read behind its end.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import struct
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.formats.checksums import crc32
from offload.ground.env import Env
from offload.ground.errors import Corrupt, NotOffloaded, TryAgain
from offload.local.files import explained, opened, read_at, shown_path
from offload.model.record_columns import Integers, RecordBytes
from offload_rocketmq.record import (
    BLANK_HEAD,
    BLANK_MAGIC,
    BODY_CRC_MASK,
    MAGICS,
    RECORD_SIZE_BYTES_MIN,
    RecordColumns,
)

__all__ = ["CommitLog", "LogExtent", "bad_bodies", "numbered_files"]

FILE_NAME: Final = re.compile(r"[0-9]{20}")
MAPPED_FILES_MAX: Final = 16
SCANNED_AT_ONCE: Final = 2**14
"""How many records of a crashed store are checked at once."""

CHECKPOINT_EARLIER_MS: Final = 3000
"""RocketMQ distrusts the last seconds before its checkpoint."""

SETTLED_MS: Final = 1000
"""A folder that was changed so long ago is not listed again until it changes."""

_CHECKPOINT: Final = struct.Struct(">qq")
_FLOCK: Final = struct.Struct("hhqqi0q")
"""`struct flock` of Linux on 64 bits: kind, whence, start, length, and the process that has the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtent:
    """The files of the log at one moment."""

    starts: tuple[int, ...]
    """The position of the first byte of each file, in order."""

    file_size_bytes: int
    end: int
    """No record that ends behind it counts."""
    is_crashed: bool
    """True if the broker will drop what units name behind the end. Otherwise such a unit is damaged."""

    @property
    def first(self) -> int:
        """The first position that can still be read."""
        return self.starts[0]


class CommitLog:
    """The log of the store in a folder. It may be used by several threads."""

    def __init__(self, store: Path, *, env: Env | None = None) -> None:
        self._store, self.folder, self._env = store, store / "commitlog", env or Env()
        self._maps: dict[int, memoryview] = {}
        self._maps_of: tuple[list[int], int] | None = None
        self._listed: tuple[int, tuple[list[int], int]] | None = None
        self._scanned: tuple[object, int] | None = None
        self._lock, self._maps_lock = threading.Lock(), threading.Lock()

    def look(self) -> LogExtent:
        """Return what the log has now. Scans it once if the broker has crashed.

        Raises `Corrupt` if a file has another size than the others, and `NotOffloaded` if there is no file.
        """
        starts, size = listed = self._files()
        if not starts:
            raise NotOffloaded(f"{shown_path(self.folder)} has no file of a commit log")
        with self._lock:
            # A map would keep the space of a deleted file, and its bytes if the name is used again.
            if listed is not self._maps_of:
                self._maps, self._maps_of = {}, listed
            is_crashed = self._is_crashed()
            end = self._recovered_end(starts, size) if is_crashed else starts[-1] + size
        return LogExtent(starts=tuple(starts), file_size_bytes=size, end=end, is_crashed=is_crashed)

    def mapped(self, start: int, size_bytes: int) -> memoryview:
        """Return the file that begins at this position. Raises `TryAgain` if the broker has deleted it."""
        maps = self._maps
        data = maps.get(start)
        if data is None:
            path = self.path_of(start)
            with opened(path) as descriptor:
                found = os.fstat(descriptor).st_size
                if found != size_bytes:
                    raise Corrupt("size", shown_path(path), expected=size_bytes, found=found)
                with explained("map", path):
                    data = memoryview(mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ))
            with self._maps_lock:
                while len(maps) >= MAPPED_FILES_MAX:
                    del maps[next(iter(maps))]
                maps[start] = data
        return data

    def path_of(self, start: int) -> Path:
        """Return the path of the file that begins at this position."""
        return self.folder / f"{start:020}"

    def close(self) -> None:
        """Forget the mapped files. They are mapped again when they are read again."""
        self._maps = {}

    def _files(self) -> tuple[list[int], int]:
        """Return what `numbered_files` does. All queues share a listing while no file comes or goes."""
        with explained("look at", self.folder):
            changed_ns = os.stat(self.folder).st_mtime_ns
        if self._listed is not None and self._listed[0] == changed_ns:
            return self._listed[1]
        starts, size = numbered_files(self.folder)
        # Another change in the same tick of the clock would not show. Nor does a new file that still grows.
        is_settled = self._env.now_ms() - changed_ns // 10**6 > SETTLED_MS
        is_growing = bool(starts) and os.path.lexists(self.path_of(starts[-1] + size))
        self._listed = (changed_ns, (starts, size)) if is_settled and not is_growing else None
        return starts, size

    def _is_crashed(self) -> bool:
        """Return True if no broker runs, and the last one did not stop in order."""
        return os.path.lexists(self._store / "abort") and not _is_locked(self._store / "lock")

    def _recovered_end(self, starts: Sequence[int], size: int) -> int:
        """Return where the broker will cut the log when it starts. The log is scanned when it has changed."""
        with explained("look at", self.folder):
            stats = [os.stat(self.path_of(start)) for start in starts]
        key = [(start, each.st_ino, each.st_mtime_ns) for start, each in zip(starts, stats, strict=True)]
        if self._scanned is None or self._scanned[0] != key:
            self._scanned = key, self._scan(starts, size)
        return self._scanned[1]

    def _scan(self, starts: Sequence[int], size: int) -> int:
        """Return the position of the first bad record. A file that is missing is passed over."""
        for start in starts[self._first_scanned(starts, size) :]:
            bad = _first_bad(self.mapped(start, size))
            if bad is not None:
                return start + bad
        return starts[-1] + size

    def _first_scanned(self, starts: Sequence[int], size: int) -> int:
        """Return the number of the file at which the scan begins.

        It is the newest whose first record is older than the checkpoint; the first one if there is none.
        """
        path = self._store / "checkpoint"
        try:
            with opened(path) as descriptor:
                raw = read_at(descriptor, 0, _CHECKPOINT.size, path=path)
        except TryAgain:  # there is none
            raw = b""
        limit = min(_CHECKPOINT.unpack(raw)) - CHECKPOINT_EARLIER_MS if len(raw) == _CHECKPOINT.size else 0
        for number in range(len(starts) - 1, 0, -1):
            data = np.frombuffer(self.mapped(starts[number], size), np.uint8)
            head = RecordColumns.of(RecordBytes(data, np.zeros(1, np.int64), np.full(1, len(data))))
            if int(head.heads["magic"][0]) in MAGICS and 0 < int(head.store_ms[0]) <= limit:
                return number
        return 0


def numbered_files(folder: Path) -> tuple[list[int], int]:
    """Return the numbers that are the names of the files in a folder, in order, and the size of each file.

    An empty last file is left out: the broker is creating it, or removes it when it starts. Raises `Corrupt`
    if the others do not have one size, or overlap.
    """
    with explained("list", folder), os.scandir(folder) as entries:
        sizes = {
            int(entry.name): entry.stat().st_size for entry in entries if FILE_NAME.fullmatch(entry.name)
        }
    starts = sorted(sizes)
    if starts and starts[-1] >= 2**63 - 2**31:
        where = shown_path(folder / f"{starts[-1]:020}")
        raise Corrupt("name of the file", where, expected="a position below 2^63", found=starts[-1])
    if starts and sizes[starts[-1]] == 0:
        starts.pop()
    size = Counter(sizes[start] for start in starts).most_common(1)[0][0] if starts else 0
    for before, start in zip([None, *starts], starts, strict=False):
        where = shown_path(folder / f"{start:020}")
        if sizes[start] != size:
            expected = f"{size}, as its neighbours have"
            raise Corrupt("size of the file", where, expected=expected, found=sizes[start])
        if before is not None and start < before + size:
            raise Corrupt("name of the file", where, expected=f"{before + size} or more", found=start)
    return starts, size


def bad_bodies(columns: RecordColumns, rows: Integers) -> Integers:
    """Return the rows, among these, whose body has another checksum than the record states."""
    view, starts = columns.records.data.data, columns.body.starts[rows]
    edges = zip(starts.tolist(), (starts + columns.body.sizes[rows]).tolist(), strict=True)
    found = np.fromiter(map(crc32, [view[start:stop] for start, stop in edges]), np.int64, len(rows))
    wrong: npt.NDArray[np.bool_] = found & BODY_CRC_MASK != columns.heads["body_crc"][rows]
    return rows[wrong]


def _first_bad(file: memoryview) -> int | None:
    """Return the position of the first record that RocketMQ's recovery refuses. None if the file is whole."""
    data, at = np.frombuffer(file, np.uint8), 0
    while True:
        starts, sizes, is_blank = _chain(file, at)
        columns = RecordColumns.of(RecordBytes(data, np.array(starts, np.int64), np.array(sizes, np.int64)))
        wrong = [
            *np.flatnonzero(~columns.is_sound)[:1],
            *bad_bodies(columns, np.flatnonzero(columns.is_sound))[:1],
        ]
        if wrong:
            return starts[int(min(wrong))]
        if is_blank:
            return None
        if not starts:
            return at
        at = starts[-1] + sizes[-1]


def _chain(file: memoryview, at: int) -> tuple[list[int], list[int], bool]:
    """Return the begins and sizes of records from `at` on, and whether a blank record is behind them."""
    starts, sizes = list[int](), list[int]()
    while at + BLANK_HEAD.size_bytes <= len(file) and len(starts) < SCANNED_AT_ONCE:
        size, magic = BLANK_HEAD.struct.unpack_from(file, at)
        if magic == BLANK_MAGIC:
            return starts, sizes, True
        if not RECORD_SIZE_BYTES_MIN <= size <= len(file) - at:
            break
        starts.append(at)
        sizes.append(size)
        at += size
    return starts, sizes, False


def _is_locked(path: Path) -> bool:
    """Return True if another process has a lock on the file. Takes none itself: a broker may be starting."""
    try:
        with opened(path) as descriptor, explained("look at the lock of", path):
            question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
    except TryAgain:  # there is no such file
        return False
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
