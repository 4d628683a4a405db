"""Entries: what a manifest says of each fragment or group, as rows of one array.

Entries stay NumPy records from disk to disk: appending one decodes none of the others. `Entry` is one row of
a fragment, decoded, for code that handles few of them.

Invariant: the columns are those of `formats.root.ENTRY`, in its byte order, so that reading a root copies
nothing; that module asserts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.errors import Corrupt

__all__ = ["Entries", "Entry", "EntryKind", "entries_of_rows", "joined_entries"]


ENTRY_DTYPE: Final = np.dtype(
    [
        ("first_offset", ">u8"),
        ("records", ">u8"),
        ("messages", ">u8"),
        ("first_timestamp_ms", ">i8"),
        ("last_timestamp_ms", ">i8"),
        ("data_size_bytes", ">u8"),
        ("stored_size_bytes", ">u8"),
        ("ledger_id", ">u8"),
        ("attempt", "V16"),
        ("checksum", ">u4"),
        ("fragments", ">u4"),
        ("ledgers", ">u4"),
        ("kind", "u1"),
        ("copied", "u1"),
        ("reserved", "V2"),
    ]
)
"""The columns of `Entries`. What each means: docs/format.md, "Manifest entry"."""

GROUP_ROOT_VERSION: Final = "ledger_id"
"""The column that says, in the entry of a group, for which root version the group was made.

A fragment's entry has its ledger there. Version 2 of the format will give the two columns of their own.
"""

Entries = npt.NDArray[np.void]
"""Manifest entries as stored: an array of `ENTRY_DTYPE`, ascending by offset."""

NO_ENTRIES: Final[Entries] = np.empty(0, ENTRY_DTYPE)


class EntryKind(IntEnum):
    """What an entry names."""

    FRAGMENT = 0
    GROUP = 1
    KILO_GROUP = 2
    MEGA_GROUP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One fragment's manifest entry, decoded. Fields as the columns of `ENTRY_DTYPE`."""

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
    if (kinds > max(EntryKind)).any() or (entries["reserved"] != np.void(bytes(2))).any():
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


def joined_entries(*runs: Entries) -> Entries:
    """Runs of entries as one. Not `np.concatenate`: it would turn big-endian records into native ones."""
    return np.frombuffer(b"".join(run.tobytes() for run in runs), ENTRY_DTYPE)


def rows_of_entries(entries: Sequence[Entry], *, after_ledger: int | None = None) -> Entries:
    """Fragments' entries as rows. `after_ledger` is that of the fragment before them, if there is one."""
    befores = (after_ledger, *(entry.ledger_id for entry in entries))
    rows = np.zeros(len(entries), ENTRY_DTYPE)
    for name in _ENTRY_NUMBERS:
        rows[name] = [getattr(entry, name) for entry in entries]
    rows["attempt"] = [np.void(entry.attempt.bytes) for entry in entries]
    rows["fragments"] = 1
    rows["ledgers"] = [entry.ledger_id != before for entry, before in zip(entries, befores, strict=False)]
    rows.flags.writeable = False
    return rows


def entries_of_rows(entries: Entries) -> list[Entry]:
    """Undo `rows_of_entries`. Every row must be a fragment's."""
    columns = [entries[name].tolist() for name in _ENTRY_NUMBERS]
    attempts = [UUID(bytes=bytes(raw)) for raw in entries["attempt"]]
    return [
        Entry(attempt=attempt, **dict(zip(_ENTRY_NUMBERS, row, strict=True)))
        for attempt, row in zip(attempts, zip(*columns, strict=True), strict=True)
    ]


_ENTRY_NUMBERS: Final = tuple(name for name in Entry.__dataclass_fields__ if name != "attempt")
