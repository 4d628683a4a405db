"""The files of a vhost, read as they are, and its message store: `n.rdq` with the bodies that queues share.

    entry of `n.rdq`   size u64 = 16 + body, id of 16 bytes, body, 0xFF; integers are big-endian

After a crash, or during a compaction, a file has torn entries, zeros, and entries of which a newer copy
exists. The scan accepts an entry whose size and end fit. If they do not, it looks at every byte for the next
entry that a queue names. Of two entries of one id the first one counts. `n.rdt` is what a compaction appends
to `n.rdq`.

Invariants: a file is never written, and never read if it changed since it was first seen; a size is compared
with the file before it is used. The format is that of `rabbit_msg_store.erl` of RabbitMQ 3.8 to 4.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from offload.ground.errors import TryAgain
from offload.local.files import explained, opened, read_at, shown_path

WINDOW_SIZE_BYTES: Final = 2**20
TERM_SIZE_BYTES_MAX: Final = 2**30
"""A larger message is none: the broker takes 512 MiB at most. A sparse file can have any size."""

RESYNC_SIZE_BYTES: Final = 2**18
"""So much is searched at once for the next entry behind damage."""

_HEAD_SIZE_BYTES: Final = 24
_END: Final = b"\xff"
_STORE_FILE: Final = re.compile(r"([0-9]{1,18})\.rd([qt])")

ROW: Final = np.dtype(
    [
        *(("sequence", "u8"), ("id", "S16"), ("file", "i4"), ("position", "u8"), ("size", "u4")),
        *(("expiry_us", "u8"), ("level", "u1"), ("flags", "u1")),
    ]
)
"""A message in an index: its place in the queue, and that of its term. `file` is a number in `VhostFiles`."""

IN_STORE: Final = -1
"""The `file` of a message that is in the message store, under its id."""

REDELIVERED: Final = 1

QueueRows: TypeAlias = npt.NDArray[Any]
Damages: TypeAlias = Counter[tuple[str, str]]
"""How often something could not be read, by file and reason."""


@dataclass(frozen=True, slots=True)
class BrokerFile:
    """A file, as it was when it was first seen."""

    path: Path
    mark: tuple[int, int, int]
    """Its inode, its size and the time of its last change."""

    @property
    def size_bytes(self) -> int:
        """The size."""
        return self.mark[1]

    @contextmanager
    def window(self, size_bytes: int = WINDOW_SIZE_BYTES) -> Iterator[FileWindow]:
        """Yield the bytes of the file. Raises `TryAgain` if it is another one now, or changes meanwhile."""
        with opened(self.path) as descriptor:
            self._check(descriptor)
            yield FileWindow(descriptor, self, size_bytes)
            self._check(descriptor)

    def _check(self, descriptor: int) -> None:
        if _mark(os.fstat(descriptor)) != self.mark:
            raise changed(self.path)


@dataclass(slots=True)
class FileWindow:
    """A file that is read from front to back, mostly: so much at once."""

    descriptor: int
    file: BrokerFile
    read_size_bytes: int
    _begin: int = 0
    _data: bytes = b""

    def at(self, position: int, size: int) -> bytes:
        """Return bytes that are within the size of the file."""
        begin = position - self._begin
        if begin < 0 or begin + size > len(self._data):
            assert position + size <= self.file.size_bytes, "checked by the caller"
            most = min(max(size, self.read_size_bytes), self.file.size_bytes - position)
            self._data = read_at(self.descriptor, position, most, path=self.file.path)
            self._begin, begin = position, 0
            if len(self._data) < most:
                raise changed(self.file.path)
        return self._data[begin : begin + size]


@dataclass(slots=True)
class VhostFiles:
    """All files of a vhost that were opened, by number, each with the mark of its first look."""

    folder: Path
    files: list[BrokerFile] = field(default_factory=list)

    def add(self, path: Path) -> int:
        """Return the number of a file."""
        with explained("look at", path):
            self.files.append(BrokerFile(path, _mark(os.stat(path))))
        return len(self.files) - 1

    def check(self) -> None:
        """Raise `TryAgain` if one of the files is not as it was."""
        for each in self.files:
            with explained("look at", each.path):
                if _mark(os.stat(each.path)) != each.mark:
                    raise changed(each.path)

    def name(self, number: int) -> str:
        """Return the path below the vhost's folder, for people."""
        return shown_path(self.files[number].path.relative_to(self.folder))


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """The entries of a message store that queues name: arrays in the order of ids, each id once."""

    ids: npt.NDArray[np.bytes_]
    places: QueueRows
    """`file`, `position` and `size` of each body."""

    def resolve(self, rows: QueueRows, damages: Damages, file: str) -> QueueRows:
        """Return the rows with their places. Rows without an entry are left out, and counted for `file`."""
        lacking = np.flatnonzero(rows["file"] == IN_STORE)
        if not len(lacking):
            return rows
        keep = np.ones(len(rows), np.bool_)
        at = np.searchsorted(self.ids, rows["id"][lacking])
        there = at < len(self.ids)
        there[there] = self.ids[at[there]] == rows["id"][lacking][there]
        for name in ("file", "position", "size"):
            rows[name][lacking[there]] = self.places[name][at[there]]
        keep[lacking[~there]] = False
        if lost := int((~there).sum()):
            damages[file, "the message store has no such message: lost, or never confirmed"] += lost
        return rows[keep]


def scan_store(
    folder: Path, wanted: npt.NDArray[np.bytes_], files: VhostFiles, damages: Damages
) -> StoreIndex:
    """Return the entries of a message store whose ids are in `wanted`, which is sorted."""
    found = [np.zeros(0, ROW)]
    for path in _store_files(folder) if len(wanted) else ():
        number = files.add(path)
        with files.files[number].window() as window:
            rows = _scan_file(window, number, wanted, damages, files.name(number))
        at = np.minimum(np.searchsorted(wanted, rows["id"]), len(wanted) - 1)
        found.append(rows[wanted[at] == rows["id"]])
    every = np.concatenate(found)
    every = every[np.argsort(every["id"], kind="stable")]
    is_first = np.ones(len(every), np.bool_)
    is_first[1:] = every["id"][1:] != every["id"][:-1]
    first = every[is_first]
    is_other = every["size"] != first["size"][np.cumsum(is_first) - 1]
    for number in every["file"][is_other].tolist():
        damages[files.name(number), "a second entry of the same id, with another body"] += 1
    return StoreIndex(first["id"].copy(), first)


def _store_files(folder: Path) -> Sequence[Path]:
    """Return the files of the store, the oldest first, and the rest of a compaction behind its file."""
    if not folder.is_dir():
        return ()
    with explained("list", folder):
        named = [(match, entry) for entry in os.listdir(folder) if (match := _STORE_FILE.fullmatch(entry))]
    return [folder / entry for match, entry in sorted(named, key=lambda each: (int(each[0][1]), each[0][2]))]


def _scan_file(
    window: FileWindow, number: int, wanted: npt.NDArray[np.bytes_], damages: Damages, name: str
) -> QueueRows:
    found, at, size_bytes = list[tuple[Any, ...]](), 0, window.file.size_bytes
    while at < size_bytes:
        if at + _HEAD_SIZE_BYTES < size_bytes:
            head = window.at(at, _HEAD_SIZE_BYTES)
            end = at + 8 + int.from_bytes(head[:8], "big")
            position = at + _HEAD_SIZE_BYTES
            is_size = position <= end < min(size_bytes, position + TERM_SIZE_BYTES_MAX)
            if is_size and window.at(end, 1) == _END:
                found.append((0, head[8:], number, position, end - position, 0, 0, 0))
                at = end + 1
                continue
        following, is_empty = _next_entry(window, at, wanted)
        if not is_empty:
            damages[name, "bytes that are no entry, or one that is cut off"] += 1
        at = following
    return np.array(found, ROW)


def _next_entry(window: FileWindow, at: int, wanted: npt.NDArray[np.bytes_]) -> tuple[int, bool]:
    """Return where the next entry of a wanted id begins, or the end, and whether only zeros are before it."""
    size_bytes, is_empty = window.file.size_bytes, True
    while at < size_bytes:
        block = np.frombuffer(
            window.at(at, min(RESYNC_SIZE_BYTES + _HEAD_SIZE_BYTES, size_bytes - at)), np.uint8
        )
        for start in _candidates(block, size_bytes - at, wanted).tolist():
            end = at + start + 8 + int.from_bytes(block[start : start + 8].tobytes(), "big")
            if window.at(end, 1) == _END:
                return at + start, is_empty and not block[:start].any()
        step = min(RESYNC_SIZE_BYTES, size_bytes - at)
        is_empty = is_empty and not block[:step].any()
        at += step
    return size_bytes, is_empty


def _candidates(
    block: npt.NDArray[np.uint8], left: int, wanted: npt.NDArray[np.bytes_]
) -> npt.NDArray[np.int64]:
    """Return the positions at which a size that fits and a wanted id are."""
    count = len(block) - _HEAD_SIZE_BYTES
    if count <= 0:
        return np.zeros(0, np.int64)
    # No message has 4 GiB: half of a size is zero. The windows of `sizes` begin at the other half.
    halves = np.lib.stride_tricks.sliding_window_view(block, 4)
    high = halves[:count] == 0
    at = np.flatnonzero(high.all(axis=1))
    sizes = np.ascontiguousarray(halves[at + 4]).view(">u4").ravel().astype(np.int64)
    at = at[(sizes >= 16) & (sizes < TERM_SIZE_BYTES_MAX) & (at + 8 + sizes < left)]
    if not len(at):
        return at
    ids = block[at[:, None] + np.arange(8, _HEAD_SIZE_BYTES)].view("S16").ravel()
    rows = np.minimum(np.searchsorted(wanted, ids), len(wanted) - 1)
    found: npt.NDArray[np.int64] = at[wanted[rows] == ids]
    return found


def changed(path: Path) -> TryAgain:
    """Return the error for a file of a broker that runs."""
    return TryAgain(f"{shown_path(path)} changed while it was read: stop the node, or copy the folder")


def _mark(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns
