"""The manifest root: what is committed of a stream, as one immutable object.

```text
header | stream name | running attempts | entries | CRC-32C of all before it
```

An entry describes a fragment, or a group: an object of its own that holds entries of the next lower kind
(`formats.group`). Larger kinds come first, so the oldest fragments are the deepest.

Invariants: entries ascend by offset, touch each other, and cover [first_offset, next_offset); only a group
may begin below first_offset, and what of it lies there is trimmed and dead. The totals are those of the
live fragments: the sums over the entries, less what is trimmed of the first. Every byte is under the
checksum. Entries stay NumPy records from disk to disk: appending one decodes none of the others.

Sources: the fields and their reasons are those of the commit protocol (docs/commit-protocol.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.errors import Corrupt
from offload.formats.checksums import check_sealed, crc32c
from offload.formats.keys import escape
from offload.formats.layout import layout

VERSION: Final = 2
ROOT_MAGIC: Final = b"OLMR"
NOBODY: Final = UUID(int=0)
"""The writer of a stream that has none: a tombstone's."""

ROOT_HEADER: Final = layout(
    "Manifest root header",
    ("magic", "4s", "`OLMR`"),
    ("format_version", "H", "2; a reader also knows 1, and refuses any other"),
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
    ("fragments", "Q", "live fragments, at any depth"),
    ("ledgers", "Q", "ledgers that they came from"),
    ("last_ledger_id", "Q", "ledger of the newest fragment; zero where there never was one"),
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
    (
        "kind",
        "B",
        "0 stream: adopted or dropped by the next claim; 1 job: left alone by claims; 2 copy: a job's too",
    ),
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
    (
        "ledger_id",
        "Q",
        "the ledger that was copied; of a group, the root version that it was made for",
    ),
    ("attempt", "16s", "UUID of the attempt that wrote the object; of a group, its own"),
    ("checksum", "I", "CRC-32C of the object"),
    ("fragments", "I", "1; of a group, how many it holds at any depth"),
    ("ledgers", "I", "1 where another ledger begins with this fragment, else 0; of a group, the sum"),
    ("kind", "B", "0 fragment, 1 group, 2 kilo-group, 3 mega-group"),
    ("copied", "B", "1: a fragment that took the place of others; 0: any other, or a group"),
    ("reserved", "2s", "zero, and refused otherwise"),
)

Entries = npt.NDArray[np.void]
"""Manifest entries as stored: an array of `ENTRY.dtype`, ascending by offset."""

NO_ENTRIES: Final[Entries] = np.empty(0, ENTRY.dtype)


class Kind(IntEnum):
    """What an entry names."""

    FRAGMENT = 0
    GROUP = 1
    KILO_GROUP = 2
    MEGA_GROUP = 3


class State(IntEnum):
    """What a root says of its stream as a whole."""

    LIVE = 0
    DELETED = 1
    REBUILDING = 2


class AttemptKind(IntEnum):
    """Who answers for a running attempt, and for what: the stream's writer, a job, a job that copies."""

    STREAM = 0
    JOB = 1
    COPY = 2


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
    """One fragment's manifest entry, decoded. Fields as in `ENTRY`."""

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
    copied: int = 0

    @property
    def next_offset(self) -> int:
        """First offset after this entry."""
        return self.first_offset + self.records


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommittedStream:
    """What is committed of one stream at one moment: its totals and its entries. Immutable.

    This is all that a reader needs. A tier of a foreign layout has no more than this; a tier that takes
    commits says the rest in a `Manifest`.
    """

    stream: str
    version: int
    """A higher one for each later state."""

    incarnation: UUID
    """Another one if the stream was deleted and begun again: its offsets then mean other records."""

    first_offset: int
    next_offset: int
    messages: int = 0
    data_size_bytes: int = 0
    stored_size_bytes: int = 0
    fragments: int = 0
    ledgers: int = 0
    entries: Entries = field(default_factory=lambda: NO_ENTRIES)
    """Those at hand, in the order of offsets: fragments, and before them groups of more."""

    @property
    def records(self) -> int:
        """How many offsets are committed, tracking records included."""
        return self.next_offset - self.first_offset


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Manifest(CommittedStream):
    """The committed state of one stream: one root, decoded. Immutable, `entries` included.

    `entries` are the root's own, groups first; `manifest.tree` finds the fragments in them.
    """

    writer: UUID
    epoch: int
    source_epoch: int
    committer: UUID
    commit_id: UUID
    parent_commit_id: UUID = NOBODY
    state: State = State.LIVE
    last_ledger_id: int = 0
    running: tuple[Running, ...] = ()

    @property
    def has_groups(self) -> bool:
        """Whether some fragments are in groups. Larger kinds come first."""
        return bool(len(self.entries) and self.entries["kind"][0])

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
        if raw.startswith(_BEGIN_OF_1):
            from offload.formats.manifest_v1 import upgraded  # which needs the layouts of this module

            raw = upgraded(raw, where=where)
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
        self.check_numbers(where)
        first = self.entries[0] if len(self.entries) else None
        begin = self.first_offset
        if first is not None and first["kind"] and int(first["first_offset"]) < begin:
            begin = int(first["first_offset"])
            if begin + int(first["records"]) <= self.first_offset:
                raise Corrupt("coverage", where, expected="no entry that is trimmed whole", found="one")
        check_entries(self.entries, begin, self.next_offset, where=where)
        if (self.entries["kind"][1:] > self.entries["kind"][:-1]).any():
            raise Corrupt("entry kind", where, expected="larger kinds first", found="another order")
        self._check_totals(where, trimmed=begin < self.first_offset)

    def check_numbers(self, where: str) -> None:
        """Raise `Corrupt` if a number does not fit its field: epochs and versions can come to their end."""
        numbers = [(name, getattr(self, name)) for name in _ROOT_NUMBERS]
        for running in self.running:
            numbers += [("running ledger", running.ledger_id), ("running epoch", running.epoch)]
        for name, number in numbers:
            if not 0 <= number < 2**64:
                raise Corrupt(
                    f"root {name}", where, stream=self.stream, expected="0 or more, below 2**64", found=number
                )

    def _check_totals(self, where: str, *, trimmed: bool) -> None:
        for total in TOTALS:
            claimed, found = getattr(self, total), exact_sum(self.entries[total])
            less = int(self.entries[total][0]) if trimmed else 0
            if not found - less <= claimed <= found:
                raise Corrupt(f"total of {total}", where, expected=claimed, found=found)
        found = exact_sum(self.entries["ledgers"])
        less = int(self.entries["ledgers"][0]) if trimmed else 0
        # One more, where the first live fragment continues a ledger of which the beginning is trimmed.
        least, most = max(found - less, int(self.fragments > 0)), min(found + 1, self.fragments)
        if not least <= self.ledgers <= most:
            raise Corrupt("total of ledgers", where, expected=self.ledgers, found=found)


TOTALS: Final = ("messages", "data_size_bytes", "stored_size_bytes", "fragments")
"""What a root has of all live fragments together, and an entry of its own; both under one name."""


def check_entries(entries: Entries, first_offset: int, next_offset: int, *, where: str) -> None:
    """Raise `Corrupt` unless each entry is possible and together they cover exactly these offsets."""
    starts, records = entries["first_offset"], entries["records"]
    nexts = starts + records
    if (nexts <= starts).any() or (entries["messages"] > records).any():
        raise Corrupt("entry records", where, expected="1 or more, below 2**64", found="an impossible range")
    begins = np.concatenate(([np.uint64(first_offset)], nexts))
    ends = np.concatenate((starts, [np.uint64(next_offset)]))
    if (begins != ends).any():
        row = int((begins != ends).argmax())
        raise Corrupt("coverage", where, expected=f"offset {begins[row]}", found=f"offset {ends[row]}")
    kinds, fragments = entries["kind"], entries["fragments"]
    if (kinds > max(Kind)).any() or (entries["reserved"] != np.void(bytes(2))).any():
        raise Corrupt("entry kind", where, expected="0 to 3", found="another kind or reserved bytes")
    if (entries["copied"] > (kinds == 0)).any():
        raise Corrupt("entry copied", where, expected="0, or 1 of a fragment", found="another number")
    impossible = (fragments < 1) | ((kinds == 0) & (fragments != 1)) | (entries["ledgers"] > fragments)
    if impossible.any():
        raise Corrupt("entry fragments", where, expected="1, or a group's sum", found="an impossible number")


def exact_sum(column: npt.NDArray[np.unsignedinteger[Any]]) -> int:
    """The sum as an integer of any size: NumPy's own would wrap at 2**64."""
    wide = column.astype(np.uint64)
    high, low = wide >> np.uint64(32), wide & np.uint64(2**32 - 1)
    return (int(high.sum(dtype=np.uint64)) << 32) + int(low.sum(dtype=np.uint64))


def joined(*runs: Entries) -> Entries:
    """Runs of entries as one. Not `np.concatenate`: it would turn big-endian records into native ones."""
    return np.frombuffer(b"".join(run.tobytes() for run in runs), ENTRY.dtype)


def encode_entries(entries: Sequence[Entry], *, after_ledger: int | None = None) -> Entries:
    """Fragments' entries as stored. `after_ledger` is that of the fragment before them, if there is one."""
    rows = b"".join(
        ENTRY.pack(
            kind=Kind.FRAGMENT,
            fragments=1,
            ledgers=int(entry.ledger_id != before),
            reserved=bytes(2),
            attempt=entry.attempt.bytes,
            **{n: getattr(entry, n) for n in _ENTRY_NUMBERS},
        )
        for entry, before in zip(entries, (after_ledger, *(e.ledger_id for e in entries)), strict=False)
    )
    return np.frombuffer(rows, ENTRY.dtype)


def decode_entries(entries: Entries) -> list[Entry]:
    """Undo `encode_entries`. Every row must be a fragment's."""
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
    check_sealed("root", raw, version=fields["format_version"], known=VERSION, where=where)
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
                "running attempt", where, expected="kind 0 to 2", found=row["kind"], position=position
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


_BEGIN_OF_1: Final = ROOT_MAGIC + b"\0\1"
_ROOT_UUIDS: Final = ("incarnation", "writer", "committer", "commit_id", "parent_commit_id")
_ROOT_NUMBERS: Final = (
    "state", "version", "epoch", "source_epoch", "first_offset", "next_offset",
    "messages", "data_size_bytes", "stored_size_bytes", "fragments", "ledgers", "last_ledger_id",
)  # fmt: skip
_ENTRY_NUMBERS: Final = tuple(name for name in Entry.__dataclass_fields__ if name != "attempt")
