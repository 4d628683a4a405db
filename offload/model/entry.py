"""Entries: a manifest's description of each fragment or group, as rows of one array.

Entries are NumPy records from the read of a root to the write of the next one, so appending an entry decodes
none of the others. `Entry` is one decoded row of a fragment, for code that handles few of them.

Invariant: the columns are those of `formats.root.ENTRY`, in its byte order, so that reading a root copies
nothing. That module asserts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.compression import BlockCodec

__all__ = [
    "ENTRY_DTYPE",
    "Entries",
    "Entry",
    "EntryKind",
    "entries_of_rows",
    "joined_entries",
    "rows_of_entries",
]


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
        ("root_version", ">u8"),
        ("attempt", "V16"),
        ("checksum", ">u4"),
        ("tail_size_bytes", ">u4"),
        ("fragments", ">u4"),
        ("ledgers", ">u4"),
        ("kind", "u1"),
        ("copied", "u1"),
        ("codec", "u1"),
        ("encrypted", "u1"),
        ("reserved", "V4"),
    ]
)
"""The columns of `Entries`. docs/format.md, "Manifest entry", explains each."""

Entries = npt.NDArray[np.void]
"""Manifest entries as stored: an array of `ENTRY_DTYPE`, ascending by offset."""

NO_ENTRIES: Final[Entries] = np.empty(0, ENTRY_DTYPE)


class EntryKind(IntEnum):
    """The kind of object that an entry describes."""

    FRAGMENT = 0
    GROUP = 1
    KILO_GROUP = 2
    MEGA_GROUP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One fragment's manifest entry, decoded. The fields are the columns of `ENTRY_DTYPE`."""

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
    tail_size_bytes: int = 0
    """0 for an object that has no tail of ours."""
    codec: int = 0
    encrypted: int = 0
    copied: int = 0

    @property
    def next_offset(self) -> int:
        """The first offset after this entry."""
        return self.first_offset + self.records


KIND_MAX: Final = max(EntryKind)
CODEC_MAX: Final = max(BlockCodec)  # here, because walking over an enum is slow
PLAIN_ROWS_MAX: Final = 50
"""The most rows that Python adds faster than NumPy."""

TOTALS: Final = ("messages", "data_size_bytes", "stored_size_bytes", "fragments")
"""The totals that a root has for all live fragments and an entry for its own, under the same names."""


def check_entries(entries: Entries, first_offset: int, next_offset: int, *, where: str) -> None:
    """Raise `Corrupt` unless each entry is possible and together they cover exactly these offsets.

    Raises `UnsupportedFormat` if all of this holds, and a fragment has an unknown codec.
    """
    starts, records = entries["first_offset"], entries["records"]
    nexts = starts + records
    # `nexts` wraps at 2**64, so this refuses empty entries and those that end beyond 64 bits.
    if (nexts <= starts).any() or (entries["messages"] > records).any():
        raise Corrupt("entry records", where, expected="1 or more, below 2**64", found="an impossible range")
    # Each entry must begin at the end of the one before it, the first one at `first_offset`, and the last one
    # must end at `next_offset`. Without entries, both bounds must be equal.
    begins = np.concatenate(([np.uint64(first_offset)], nexts))
    ends = np.concatenate((starts, [np.uint64(next_offset)]))
    if (begins != ends).any():
        row = int((begins != ends).argmax())
        raise Corrupt("coverage", where, expected=f"offset {begins[row]}", found=f"offset {ends[row]}")
    kinds, fragments = entries["kind"], entries["fragments"]
    if (kinds > KIND_MAX).any() or (entries["reserved"] != np.void(bytes(4))).any():
        raise Corrupt("entry kind", where, expected="0 to 3", found="another kind or reserved bytes")
    if ((kinds != 0) & (entries["codec"] != 0)).any():
        raise Corrupt("entry codec", where, expected="0 of a group", found="another number")
    if ((kinds == 0) & (entries["root_version"] != 0)).any():
        raise Corrupt("entry root version", where, expected="0 of a fragment", found="another number")
    if (entries["tail_size_bytes"] > entries["stored_size_bytes"]).any():
        raise Corrupt("entry tail", where, expected="within the object", found="a larger tail")
    if (entries["copied"] > (kinds == 0)).any():
        raise Corrupt("entry copied", where, expected="0, or 1 of a fragment", found="another number")
    if (entries["encrypted"] > (kinds == 0)).any():
        raise Corrupt("entry encrypted", where, expected="0, or 1 of a fragment", found="another number")
    impossible = (fragments < 1) | ((kinds == 0) & (fragments != 1)) | (entries["ledgers"] > fragments)
    if impossible.any():
        raise Corrupt("entry fragments", where, expected="1, or a group's sum", found="an impossible number")
    # Last: an upgrade does not help against damage.
    if (newest := int(entries["codec"].max(initial=0))) > CODEC_MAX:
        raise UnsupportedFormat(f"{where}: codec {newest} is not known; upgrade the program")


def exact_sum(column: npt.NDArray[np.unsignedinteger[Any]]) -> int:
    """Return the sum as an integer of any size: NumPy's own sum would wrap at 2**64."""
    # Most manifests are short. Their rows are added before NumPy would have begun.
    if len(column) <= PLAIN_ROWS_MAX:
        return sum(column.tolist())
    # The sums of 32-bit halves cannot wrap with fewer than 2**32 rows.
    wide = column.astype(np.uint64)
    high, low = wide >> np.uint64(32), wide & np.uint64(2**32 - 1)
    return (int(high.sum(dtype=np.uint64)) << 32) + int(low.sum(dtype=np.uint64))


def joined_entries(*runs: Entries) -> Entries:
    """Return runs of entries as one run."""
    # `np.concatenate` would turn big-endian records into native ones.
    return np.frombuffer(b"".join(run.tobytes() for run in runs), ENTRY_DTYPE)


def rows_of_entries(entries: Sequence[Entry], *, after_ledger: int | None = None) -> Entries:
    """Return the entries of fragments as rows.

    `after_ledger` is the ledger of the fragment before them, if any.
    """
    # A ledger is counted in the row at which it begins, so that sums over rows count each ledger once.
    befores = (after_ledger, *(entry.ledger_id for entry in entries))
    rows = np.zeros(len(entries), ENTRY_DTYPE)
    for name in _ENTRY_NUMBERS:
        rows[name] = [getattr(entry, name) for entry in entries]
    rows["attempt"] = [np.void(entry.attempt.bytes) for entry in entries]
    rows["fragments"] = 1
    rows["ledgers"] = [entry.ledger_id != before for entry, before in zip(entries, befores, strict=False)]
    rows.flags.writeable = False  # manifests share rows, and are immutable
    return rows


def entries_of_rows(entries: Entries) -> list[Entry]:
    """Return rows as entries: the inverse of `rows_of_entries`. Every row must be a fragment's."""
    columns = [entries[name].tolist() for name in _ENTRY_NUMBERS]
    attempts = [UUID(bytes=bytes(raw)) for raw in entries["attempt"]]
    return [
        Entry(attempt=attempt, **dict(zip(_ENTRY_NUMBERS, row, strict=True)))
        for attempt, row in zip(attempts, zip(*columns, strict=True), strict=True)
    ]


_ENTRY_NUMBERS: Final = tuple(name for name in Entry.__dataclass_fields__ if name != "attempt")
