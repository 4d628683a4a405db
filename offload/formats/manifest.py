"""The manifest root: what is committed of a stream, as one immutable object.

```text
header | stream name | running attempts | entries | CRC-32C of all before it
```

Invariants: entries ascend by offset, touch each other, and cover exactly [first_offset,
next_offset); the totals are the sums over the entries; every byte is under the checksum. Entries
stay NumPy records from disk to disk: appending one decodes none of the others.

Sources: the fields and their reasons are those of the commit protocol (docs/commit-protocol.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.errors import Corrupt
from offload.formats.checksums import crc32c
from offload.formats.fragment import check_version
from offload.formats.keys import escape
from offload.formats.layout import layout

VERSION: Final = 1
ROOT_MAGIC: Final = b"OLMR"
NOBODY: Final = UUID(int=0)
"""The writer of a stream that has none: a tombstone's."""

ROOT_HEADER: Final = layout(
    "Manifest root header",
    ("magic", "4s", "`OLMR`"),
    ("format_version", "H", "1; a reader refuses any other"),
    ("state", "B", "0 live, 1 deleted (a tombstone), 2 rebuilding"),
    ("reserved", "B", "zero, and refused otherwise"),
    ("version", "Q", "the number in the object's name; rises by one with each commit"),
    ("incarnation", "16s", "UUID of the stream's incarnation; new at birth and at each rebirth"),
    ("writer", "16s", "UUID of the writer that holds the stream; set only by a claim"),
    ("epoch", "Q", "rises with each claim"),
    ("source_epoch", "Q", "the broker's own leader epoch; never falls"),
    ("committer", "16s", "UUID of who made this commit: the writer, or a guest"),
    ("commit_id", "16s", "UUID of this commit"),
    ("parent_commit_id", "16s", "UUID of the commit before it; zero for the first"),
    ("first_offset", "Q", "first committed offset"),
    ("next_offset", "Q", "first offset that is not committed yet"),
    ("messages", "Q", "records in user chunks, over all entries"),
    ("data_size_bytes", "Q", "stored chunk bytes, over all entries"),
    ("stored_size_bytes", "Q", "size of the objects, over all entries"),
    ("stream_size_bytes", "I", "length of the stream's name, UTF-8"),
    ("running_count", "I", "number of running attempts"),
    ("entry_count", "I", "number of entries"),
)

RUNNING: Final = layout(
    "Running attempt",
    ("attempt", "16s", "UUID of the attempt"),
    ("ledger_id", "Q", "the ledger that is being copied"),
    ("epoch", "Q", "epoch of the writer that prepared it"),
    ("writer", "16s", "UUID of that writer"),
    ("kind", "B", "0 stream: adopted or dropped by the next claim; 1 job: left alone by claims"),
    ("reserved", "7s", "zero, and refused otherwise"),
)

ENTRY: Final = layout(
    "Manifest entry",
    ("first_offset", "Q", "offset of the first record"),
    ("records", "Q", "how many offsets it covers"),
    ("messages", "Q", "how many of them are records of user chunks"),
    ("first_timestamp_ms", "q", "the least timestamp of any chunk"),
    ("last_timestamp_ms", "q", "the greatest timestamp of any chunk"),
    ("data_size_bytes", "Q", "stored chunk bytes; a fragment's index begins at 16 + this"),
    ("stored_size_bytes", "Q", "size of the object"),
    ("ledger_id", "Q", "the ledger that was copied"),
    ("attempt", "16s", "UUID of the attempt that wrote the object"),
    ("checksum", "I", "CRC-32C of the object"),
    ("kind", "B", "0 fragment; 1 group, 2 kilo-group, 3 mega-group are kept for the tree"),
    ("reserved", "3s", "zero, and refused otherwise"),
)

Entries = npt.NDArray[np.void]
"""Manifest entries as stored: an array of `ENTRY.dtype`, ascending by offset."""

NO_ENTRIES: Final[Entries] = np.empty(0, ENTRY.dtype)


class State(IntEnum):
    """What a root says of its stream as a whole."""

    LIVE = 0
    DELETED = 1
    REBUILDING = 2


class AttemptKind(IntEnum):
    """Who answers for a running attempt: the stream's writer, or a job beside it."""

    STREAM = 0
    JOB = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """An attempt that is announced and not yet committed or dropped. Fields as in `RUNNING`."""

    attempt: UUID
    ledger_id: int
    epoch: int
    writer: UUID
    kind: AttemptKind = AttemptKind.STREAM


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One manifest entry, decoded. Fields as in `ENTRY`; only fragments exist in version 1."""

    first_offset: int
    records: int
    messages: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    data_size_bytes: int
    stored_size_bytes: int
    ledger_id: int
    attempt: UUID
    checksum: int

    @property
    def next_offset(self) -> int:
        """First offset after this entry."""
        return self.first_offset + self.records


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Manifest:
    """The committed state of one stream: one root, decoded. Immutable, `entries` included.

    The totals (`records`, `messages`, `data_size_bytes`, `stored_size_bytes`) are the entries' sums.
    """

    stream: str
    version: int
    incarnation: UUID
    writer: UUID
    epoch: int
    source_epoch: int
    committer: UUID
    commit_id: UUID
    parent_commit_id: UUID = NOBODY
    state: State = State.LIVE
    first_offset: int
    next_offset: int
    messages: int = 0
    data_size_bytes: int = 0
    stored_size_bytes: int = 0
    running: tuple[Running, ...] = ()
    entries: Entries = field(default_factory=lambda: NO_ENTRIES)

    @property
    def records(self) -> int:
        """How many offsets are committed, tracking records included."""
        return self.next_offset - self.first_offset

    @property
    def fragments(self) -> int:
        """How many fragments hold them."""
        return len(self.entries)

    @property
    def ledgers(self) -> int:
        """How many ledgers they came from."""
        return len(np.unique(self.entries["ledger_id"]))

    def entry(self, row: int) -> Entry:
        """The entry in this row, decoded."""
        return decode_entries(self.entries[row : row + 1])[0]

    def names(self, attempt: UUID) -> bool:
        """Whether any entry names an object of this attempt."""
        return bool((self.entries["attempt"] == np.void(attempt.bytes)).any())

    def runs(self, attempt: UUID) -> bool:
        """Whether the attempt is announced and neither committed whole nor dropped."""
        return any(running.attempt == attempt for running in self.running)

    def encode(self) -> bytes:
        """The root object's bytes."""
        name = self.stream.encode()
        header = ROOT_HEADER.pack(
            magic=ROOT_MAGIC,
            format_version=VERSION,
            reserved=0,
            stream_size_bytes=len(name),
            running_count=len(self.running),
            entry_count=len(self.entries),
            **{name: getattr(self, name).bytes for name in _ROOT_UUIDS},
            **{name: int(getattr(self, name)) for name in _ROOT_NUMBERS},
        )
        body = b"".join((header, name, *map(_encode_running, self.running), self.entries.tobytes()))
        return body + crc32c(body).to_bytes(4, "big")

    @classmethod
    def decode(cls, raw: bytes, *, where: str) -> Manifest:
        """Undo `encode`. Raises `Corrupt` where any bit is off, `UnsupportedFormat` for another version."""
        fields = _decode_header(raw, where)
        at = ROOT_HEADER.size_bytes
        name = raw[at : at + fields["stream_size_bytes"]]
        at += len(name)
        running_size = fields["running_count"] * RUNNING.size_bytes
        running = _decode_running(raw[at : at + running_size], where, at)
        at += running_size
        entries = np.frombuffer(raw, ENTRY.dtype, count=fields["entry_count"], offset=at)
        try:
            stream, state = name.decode(), State(fields["state"])
            escape(stream)  # a name that no key can hold
        except ValueError as exc:
            raise Corrupt("root name or state", where, expected="UTF-8, 0..2", found=str(exc)) from exc
        plain: dict[str, Any] = {name: fields[name] for name in _ROOT_NUMBERS}
        plain |= {name: UUID(bytes=fields[name]) for name in _ROOT_UUIDS}
        manifest = cls(**plain | {"stream": stream, "state": state, "running": running, "entries": entries})
        manifest.check(where)
        return manifest

    def check(self, where: str) -> None:
        """Raise `Corrupt` unless the invariants at the head of this module hold.

        Called before a root is written and after it was read.
        """
        starts, records = self.entries["first_offset"], self.entries["records"]
        nexts = starts + records
        if (nexts <= starts).any() or (self.entries["messages"] > records).any():
            raise Corrupt(
                "entry records", where, expected="1 or more, below 2**64", found="an impossible range"
            )
        begins = np.concatenate(([np.uint64(self.first_offset)], nexts))
        ends = np.concatenate((starts, [np.uint64(self.next_offset)]))
        if (begins != ends).any():
            row = int((begins != ends).argmax())
            raise Corrupt("coverage", where, expected=f"offset {begins[row]}", found=f"offset {ends[row]}")
        if self.entries["kind"].any() or (self.entries["reserved"] != np.void(bytes(3))).any():
            raise Corrupt("entry kind", where, expected="fragments", found="another kind or reserved bytes")
        for total in ("messages", "data_size_bytes", "stored_size_bytes"):
            found = _exact_sum(self.entries[total])
            if found != getattr(self, total):
                raise Corrupt(f"total of {total}", where, expected=getattr(self, total), found=found)


def _exact_sum(column: npt.NDArray[np.uint64]) -> int:
    """The sum as an integer of any size: NumPy's own would wrap at 2**64."""
    high, low = column >> np.uint64(32), column & np.uint64(2**32 - 1)
    return (int(high.sum(dtype=np.uint64)) << 32) + int(low.sum(dtype=np.uint64))


def encode_entries(entries: list[Entry]) -> Entries:
    """Entries as stored."""
    rows = b"".join(
        ENTRY.pack(
            kind=0,
            reserved=bytes(3),
            attempt=entry.attempt.bytes,
            **{n: getattr(entry, n) for n in _ENTRY_NUMBERS},
        )
        for entry in entries
    )
    return np.frombuffer(rows, ENTRY.dtype)


def decode_entries(entries: Entries) -> list[Entry]:
    """Undo `encode_entries`."""
    columns = [entries[name].tolist() for name in _ENTRY_NUMBERS]
    attempts = [UUID(bytes=bytes(raw)) for raw in entries["attempt"]]
    return [
        Entry(attempt=attempt, **dict(zip(_ENTRY_NUMBERS, row, strict=True)))
        for attempt, row in zip(attempts, zip(*columns, strict=True), strict=True)
    ]


def _decode_header(raw: bytes, where: str) -> dict[str, Any]:
    if len(raw) < ROOT_HEADER.size_bytes + 4:
        raise Corrupt("root size", where, expected=f">= {ROOT_HEADER.size_bytes + 4}", found=len(raw))
    fields = ROOT_HEADER.unpack(raw)
    if fields["magic"] != ROOT_MAGIC:
        raise Corrupt("root magic", where, expected=ROOT_MAGIC, found=fields["magic"])
    check_version("manifest", fields["format_version"], VERSION, where)
    checksum, stored = crc32c(raw[:-4]), int.from_bytes(raw[-4:], "big")
    if checksum != stored:
        raise Corrupt("root checksum", where, expected=stored, found=checksum, position=len(raw) - 4)
    if fields["reserved"]:
        raise Corrupt("root reserved byte", where, expected=0, found=fields["reserved"], position=7)
    size = ROOT_HEADER.size_bytes + 4 + fields["stream_size_bytes"]
    size += fields["running_count"] * RUNNING.size_bytes + fields["entry_count"] * ENTRY.size_bytes
    if size != len(raw):
        raise Corrupt("root size", where, expected=size, found=len(raw))
    return fields


def _encode_running(running: Running) -> bytes:
    return RUNNING.pack(
        attempt=running.attempt.bytes,
        ledger_id=running.ledger_id,
        epoch=running.epoch,
        writer=running.writer.bytes,
        kind=running.kind,
        reserved=bytes(7),
    )


def _decode_running(raw: bytes, where: str, position: int) -> tuple[Running, ...]:
    rows = [RUNNING.unpack(raw, at) for at in range(0, len(raw), RUNNING.size_bytes)]
    for row in rows:
        if row["kind"] > max(AttemptKind) or row["reserved"] != bytes(7):
            raise Corrupt(
                "running attempt", where, expected="kind 0 or 1", found=row["kind"], position=position
            )
    return tuple(
        Running(
            attempt=UUID(bytes=row["attempt"]),
            ledger_id=row["ledger_id"],
            epoch=row["epoch"],
            writer=UUID(bytes=row["writer"]),
            kind=AttemptKind(row["kind"]),
        )
        for row in rows
    )


_ROOT_UUIDS: Final = ("incarnation", "writer", "committer", "commit_id", "parent_commit_id")
_ROOT_NUMBERS: Final = (
    "state", "version", "epoch", "source_epoch", "first_offset", "next_offset",
    "messages", "data_size_bytes", "stored_size_bytes",
)  # fmt: skip
_ENTRY_NUMBERS: Final = tuple(name for name in Entry.__dataclass_fields__ if name != "attempt")
