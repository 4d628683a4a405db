"""The index of a queue of version 1: segments `n.idx`, and a journal of what is in no segment yet.

    journal    2 bits of kind, 62 bits of sequence id; a publish continues with the fields below
    segment    `1`, persistent bit, 14 bits of sequence id within the segment; a publish continues likewise
               `01`, 14 bits: the first one of a message delivers it, the second one acknowledges it
    publish    id of 16 bytes, expiry u64 in microseconds, size u32, size u32 of a term and the term itself;
               without one, the message store has it

The journal is overlaid on the segments. A crash may leave an entry in both, or an acknowledgement alone. So
an entry counts if it was published in one of them and acknowledged in none. The format is that of
`rabbit_queue_index.erl` of RabbitMQ 3.8 to 3.13.

Invariant: a file counts up to its first record that is cut off or is none. What is behind is reported once.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from offload.ground.errors import Corrupt
from offload.local.files import opened, read_at, shown_path
from offload_rabbitmq.queues.store_files import (
    IN_STORE,
    REDELIVERED,
    ROW,
    TERM_SIZE_BYTES_MAX,
    BrokerFile,
    Damages,
    FileWindow,
    QueueRows,
    VhostFiles,
)

ENTRIES_MAX: Final = 2**14
"""The most entries of a segment, and their number in vhosts without a `.config`."""

JOURNAL: Final = "journal.jif"
_SEGMENT: Final = re.compile(r"(0|[1-9][0-9]{0,13})\.idx")
_FIELDS: Final = struct.Struct(">16sQII")
_ACKED: Final = 3
_DELIVERED: Final = 2
_TERM: Final = b"\x83"
_EMPTY: Final = bytes(40)
"""A journal ends at so many zeros: the tail was allocated, and not written."""

CUT_OFF: Final = "the last record is cut off"
NO_RECORD: Final = "bytes that are no record: all behind them is lost"


@dataclass(slots=True)
class _Segment:
    """What is known of the persistent messages of one segment, by sequence id within it."""

    published: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)


def read_index_v1(
    folder: Path, names: Collection[str], entries: int, files: VhostFiles, damages: Damages
) -> QueueRows:
    """Return the persistent messages of a queue that were not acknowledged, in the order of the queue.

    `names` are those in the folder of the queue. `entries` is the number of entries of each segment.
    """
    journal = defaultdict[int, _Segment](_Segment)
    if JOURNAL in names:
        _read_journal(_Records.of(folder / JOURNAL, files, damages), entries, journal)
    segments = {int(match[1]): name for name in names if (match := _SEGMENT.fullmatch(name))}
    rows = [np.zeros(0, ROW)]
    for number in sorted({*segments, *journal}):
        stored, later = _Segment(), journal.get(number) or _Segment()
        if number in segments:
            _read_segment(_Records.of(folder / segments[number], files, damages), entries, stored)
        published, delivered = stored.published | later.published, stored.delivered | later.delivered
        live = sorted(published.keys() - stored.acked - later.acked)
        found = np.array([published[each] for each in live], ROW)
        found["sequence"] = np.array(live, np.uint64) + np.uint64(number * entries)
        found["flags"] = [REDELIVERED * (each in delivered) for each in live]
        rows.append(found)
    return np.concatenate(rows)


def entries_of_segment(folder: Path) -> int:
    """Return how many entries the segments of a vhost have. Raises `Corrupt` if its `.config` is damaged."""
    path = folder / ".config"
    if not path.is_file():
        return ENTRIES_MAX
    with opened(path) as descriptor:
        raw = read_at(descriptor, 0, 4096, path=path)
    found = re.search(rb"\{\s*segment_entry_count\s*,\s*([0-9]{1,9})\s*\}", raw)
    number = int(found[1]) if found else 0
    if not 0 < number <= ENTRIES_MAX:
        expected = f"a segment_entry_count of 1 to {ENTRIES_MAX}"
        raise Corrupt("configuration of a vhost", shown_path(path), expected=expected, found=number)
    return number


@dataclass(slots=True)
class _Records:
    """The records of one file, and the place of the next one."""

    number: int
    files: VhostFiles
    damages: Damages
    at: int = 0

    @classmethod
    def of(cls, path: Path, files: VhostFiles, damages: Damages) -> _Records:
        return cls(files.add(path), files, damages)

    @property
    def file(self) -> BrokerFile:
        return self.files.files[self.number]

    @property
    def left(self) -> int:
        return self.file.size_bytes - self.at

    def stop(self, reason: str) -> None:
        """Count damage, and read no further."""
        self.damages[self.files.name(self.number), reason] += 1
        self.at = self.file.size_bytes

    def publish(self, window: FileWindow, head_size_bytes: int) -> tuple[Any, ...] | None:
        """Return the row of a publish whose head has this size, and go on behind it. None if it is none."""
        at = self.at + head_size_bytes
        if self.left < head_size_bytes + _FIELDS.size:
            self.stop(CUT_OFF)
            return None
        message_id, expiry_us, _, size = _FIELDS.unpack(window.at(at, _FIELDS.size))
        at += _FIELDS.size
        if size > self.file.size_bytes - at:
            self.stop(CUT_OFF)
            return None
        if size and (size > TERM_SIZE_BYTES_MAX or window.at(at, 1) != _TERM):
            self.stop(NO_RECORD)
            return None
        self.at = at + size
        return (0, message_id, self.number if size else IN_STORE, at, size, expiry_us, 0, 0)


def _read_journal(records: _Records, entries: int, journal: Mapping[int, _Segment]) -> None:
    with records.file.window() as window:
        while records.left:
            seen = window.at(records.at, min(len(_EMPTY), records.left))
            if seen == _EMPTY[: len(seen)]:
                break
            if len(seen) < 8:
                records.stop(CUT_OFF)
                break
            head = int.from_bytes(seen[:8], "big")
            kind, (number, within) = head >> 62, divmod(head & 2**62 - 1, entries)
            if kind == _ACKED:
                journal[number].acked.add(within)
                records.at += 8
            elif kind == _DELIVERED:
                journal[number].delivered.add(within)
                records.at += 8
            elif (row := records.publish(window, 8)) is not None and kind == 0:
                journal[number].published[within] = row


def _read_segment(records: _Records, entries: int, segment: _Segment) -> None:
    with records.file.window() as window:
        while records.left:
            if records.left < 2:
                records.stop(CUT_OFF)
                break
            head = int.from_bytes(window.at(records.at, 2), "big")
            within = head & 0x3FFF
            if within >= entries or not head & 0xC000:
                records.stop(NO_RECORD)
            elif not head & 0x8000:
                # The first one delivers, the second one acknowledges.
                (segment.acked if within in segment.delivered else segment.delivered).add(within)
                records.at += 2
            elif (row := records.publish(window, 2)) is not None and head & 0x4000:
                segment.published[within] = row
