"""The bytes of the plugin's objects: roots, groups, fragments and their indexes.

    root, group    header of 49 bytes, then entries of 34 bytes to the end of the object
    fragment       header of 8 bytes, chunks as osiris stores them, then an index record of 20 bytes for each

A fragment states nothing of itself: its size and its times are in the entry that names it. All integers are
big-endian. The layout is that of the plugin from May 2026 on (docs/rabbitmq-s3.md).

Invariants of a root or a group, checked before writing and after reading: offsets of entries ascend; larger
kinds come first; a group has only entries of lower kinds; the size of a group is 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.formats.chunk import CHUNK_HEADER, CHUNK_SIZE_BYTES_MAX
from offload.formats.layout import layout
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable
from offload.model.entry import ENTRY_DTYPE, Entries, Entry, EntryKind

__all__ = [
    "ENTRY",
    "FRAGMENT_HEADER",
    "FRAGMENT_SIZE_BYTES_MAX",
    "INDEX_RECORD",
    "MANIFEST_HEADER",
    "RabbitmqEntries",
    "RabbitmqManifest",
    "check_fragment_header",
    "encode_index",
    "fragment_header",
    "index_table",
    "rows_of_stored",
    "stored_entries",
    "uid_of",
]

VERSION: Final = 1
MAGICS: Final = (b"OSIR", b"OSIG", b"OSIK", b"OSIM")
"""The magics of a root, and of a group, a kilo-group and a mega-group: by `EntryKind`, 0 for a root."""

FRAGMENT_MAGIC: Final = b"OSIF"

MANIFEST_HEADER: Final = layout(
    "Header of a root or a group",
    ("magic", "4s", "b'OSIR' root, b'OSIG' group, b'OSIK' kilo-group, b'OSIM' mega-group"),
    ("version", "I", "1; a reader refuses any other"),
    ("first_offset", "Q", "first offset of the stream, or of the group's first entry"),
    ("next_offset", "Q", "first offset after the last fragment; 0 in a group"),
    ("first_timestamp_ms", "q", "time of the first chunk; -1 if there is none"),
    ("first_last_timestamp_ms", "q", "time of the last chunk of the first fragment; 0 in a group"),
    ("total_size_high", "B", "two zero bits, then the 6 high bits of the size of all chunks"),
    ("total_size_low", "Q", "the 64 low bits of that size; 0 in a group"),
)
assert MANIFEST_HEADER.size_bytes == 49

ENTRY: Final = layout(
    "Entry of a root or a group",
    ("first_offset", "Q", "first offset of the fragment or the group"),
    ("first_timestamp_ms", "q", "time of its first chunk"),
    ("last_timestamp_ms", "q", "time of its last chunk"),
    ("kind", "B", "0 fragment, 1 group, 2 kilo-group, 3 mega-group"),
    ("size_high", "B", "the 8 high bits of the size of a fragment's chunks"),
    ("size_low", "I", "the 32 low bits of that size; 0 for a group"),
    ("uid", "I", "the UID in the object's key"),
)
assert ENTRY.size_bytes == 34

FRAGMENT_HEADER: Final = layout(
    "Header of a fragment",
    ("magic", "4s", "b'OSIF'"),
    ("version", "I", "1; a reader refuses any other"),
)
assert FRAGMENT_HEADER.size_bytes == 8

INDEX_RECORD: Final = layout(
    "Index record of a fragment",
    ("offset", "Q", "offset of the chunk's first record (the chunk id)"),
    ("timestamp_ms", "q", "the chunk's timestamp, in milliseconds since 1970"),
    ("position", "I", "byte at which the chunk begins, counted from the end of the fragment's header"),
)
assert INDEX_RECORD.size_bytes == 20

RabbitmqEntries = npt.NDArray[np.void]
"""An array of `ENTRY`, big-endian as stored."""

MANIFEST_SIZE_BYTES_MAX: Final = 64 * 2**20
"""No larger root or group is read: two million entries, while the plugin makes a group of 1,024."""

FRAGMENT_SIZE_BYTES_MAX: Final = 2**32 + CHUNK_SIZE_BYTES_MAX
"""The most bytes of chunks that an index can address: the last chunk begins below 2^32."""

OLDER: Final = "of an older generation of the plugin, which this program does not read"
OLDER_INDEX_REST: Final = 18
"""A header of 58 bytes and an index header of 8 leave so many bytes, if the index is taken for today's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RabbitmqManifest:
    """A root or a group, decoded. `kind` is `FRAGMENT` for a root. The last three numbers of groups are 0."""

    kind: EntryKind
    first_offset: int
    first_timestamp_ms: int
    next_offset: int = 0
    first_last_timestamp_ms: int = 0
    total_size_bytes: int = 0
    entries: RabbitmqEntries = field(default_factory=lambda: np.empty(0, ENTRY.dtype))

    def encode(self) -> bytes:
        """Return the bytes of the object. Raises `Corrupt` if they would break the format."""
        header = MANIFEST_HEADER.pack(
            magic=MAGICS[self.kind],
            version=VERSION,
            first_offset=self.first_offset,
            next_offset=self.next_offset,
            first_timestamp_ms=self.first_timestamp_ms,
            first_last_timestamp_ms=self.first_last_timestamp_ms,
            total_size_high=self.total_size_bytes >> 64,
            total_size_low=self.total_size_bytes & (2**64 - 1),
        )
        self.check("a new object")
        return header + self.entries.tobytes()

    @classmethod
    def decode(cls, raw: bytes, *, kind: EntryKind, where: str) -> RabbitmqManifest:
        """Return the object that `encode` made.

        Raises `Corrupt` if the format is broken, and `UnsupportedFormat` for another version or generation.
        """
        manifest = cls.decode_header(raw, kind=kind, where=where)
        size_bytes = len(raw) - MANIFEST_HEADER.size_bytes
        count, rest = divmod(size_bytes, ENTRY.size_bytes)
        if rest:
            if (len(raw) - 33) % 27 == 0:
                raise UnsupportedFormat(f"{where} has {len(raw)} bytes, as a manifest {OLDER}, or it is cut")
            expected = f"{MANIFEST_HEADER.size_bytes} and a multiple of {ENTRY.size_bytes}"
            raise Corrupt("size of the object", where, expected=expected, found=len(raw))
        entries = np.frombuffer(raw, ENTRY.dtype, count, MANIFEST_HEADER.size_bytes)
        whole = replace(manifest, entries=entries)
        whole.check(where)
        return whole

    @classmethod
    def decode_header(cls, raw: bytes, *, kind: EntryKind, where: str) -> RabbitmqManifest:
        """Return the object without its entries. Raises as `decode`."""
        if len(raw) < MANIFEST_HEADER.size_bytes:
            raise Corrupt("size of the header", where, expected=MANIFEST_HEADER.size_bytes, found=len(raw))
        values = MANIFEST_HEADER.unpack(raw)
        magic, version = values.pop("magic"), values.pop("version")
        if magic != MAGICS[kind]:
            raise Corrupt("magic", where, expected=MAGICS[kind], found=magic)
        _check_version(version, where)
        high, low = values.pop("total_size_high"), values.pop("total_size_low")
        if high >> 6:
            at = MANIFEST_HEADER.offset_of("total_size_high")
            raise Corrupt("total size", where, position=at, expected="below 2^70", found=(high << 64) + low)
        return cls(kind=kind, total_size_bytes=(high << 64) + low, **values)

    def check(self, where: str) -> None:
        """Raise `Corrupt` unless the invariants at the head of this module hold."""
        entries, starts = self.entries, self.entries["first_offset"].astype(np.uint64)
        kinds, sizes = self.entries["kind"], sizes_of(self.entries)
        kind_max = max(EntryKind) if self.kind is EntryKind.FRAGMENT else self.kind - 1
        # The smallest chunk has an entry without a body.
        least = CHUNK_HEADER.size_bytes + 4
        wrong = (kinds > kind_max) | ((kinds != 0) & (sizes != 0))
        wrong |= (kinds == 0) & ((sizes < least) | (sizes > FRAGMENT_SIZE_BYTES_MAX))
        wrong[1:] |= (starts[1:] <= starts[:-1]) | (kinds[1:] > kinds[:-1])
        if wrong.any():
            row = int(wrong.argmax())
            raise Corrupt(
                f"entry {row}",
                where,
                position=MANIFEST_HEADER.size_bytes + row * ENTRY.size_bytes,
                expected=f"ascending offsets, and kinds that descend from {kind_max}, with their sizes",
                found=f"offset {starts[row]}, kind {kinds[row]}, {sizes[row]} bytes",
            )
        (self._check_root if self.kind is EntryKind.FRAGMENT else self._check_group)(where, len(entries))

    def _check_group(self, where: str, count: int) -> None:
        zeros = (self.next_offset, self.first_last_timestamp_ms, self.total_size_bytes)
        _check("entries", where, "1 or more", count or "none", holds=count > 0)
        _check("last numbers of the header of a group", where, (0, 0, 0), zeros)
        first = self.entries[0]
        _check("first offset", where, self.first_offset, int(first["first_offset"]))
        _check("first timestamp", where, self.first_timestamp_ms, int(first["first_timestamp_ms"]))

    def _check_root(self, where: str, count: int) -> None:
        first, behind, total = self.first_offset, self.next_offset, self.total_size_bytes
        if not count:
            _check("total size", where, 0, total)
            return
        starts = [int(start) for start in self.entries["first_offset"][:2]]
        _check(
            "next offset", where, "above all entries", behind, holds=behind > self.entries["first_offset"][-1]
        )
        is_live = starts[0] <= first < [*starts[1:], behind][0]
        _check("first offset", where, "an offset of the first entry", first, holds=is_live)
        if not self.entries["kind"][0]:  # otherwise the sizes are in the groups: a walk of the tree adds them
            _check("first offset", where, starts[0], first)
            _check("total size", where, total, int(sizes_of(self.entries).sum()))


def sizes_of(entries: RabbitmqEntries) -> npt.NDArray[np.uint64]:
    """Return the sizes of entries in bytes. NumPy has no integer of 40 bits."""
    sizes: npt.NDArray[np.uint64] = entries["size_high"].astype(np.uint64) << np.uint64(32)
    return sizes | entries["size_low"].astype(np.uint64)


def rows_of_stored(entries: RabbitmqEntries, next_offset: int) -> Entries:
    """Return stored entries as rows of this framework. `next_offset` is the end of the last one.

    The number of messages is the number of offsets, which is an upper bound. A fragment is a ledger, whose id
    is its first offset, and its attempt is its UID.
    """
    rows = np.zeros(len(entries), ENTRY_DTYPE)
    starts = entries["first_offset"].astype(np.uint64)
    rows["records"] = rows["messages"] = np.append(starts[1:], np.uint64(next_offset)) - starts
    for name in ("first_offset", "first_timestamp_ms", "last_timestamp_ms", "kind"):
        rows[name] = entries[name]
    rows["data_size_bytes"] = rows["stored_size_bytes"] = sizes_of(entries)
    rows["ledger_id"] = starts
    attempts = np.zeros((len(entries), 16), np.uint8)
    attempts[:, 12:] = np.ascontiguousarray(entries["uid"]).view(np.uint8).reshape(-1, 4)
    rows["attempt"] = attempts.view("V16").reshape(-1)
    rows["fragments"] = rows["ledgers"] = 1
    rows.flags.writeable = False
    return rows


def stored_entries(entries: list[Entry], kind: EntryKind = EntryKind.FRAGMENT) -> RabbitmqEntries:
    """Return entries of this framework as stored ones of one kind: the inverse of the function above."""
    made = np.zeros(len(entries), ENTRY.dtype)
    for name in ("first_offset", "first_timestamp_ms", "last_timestamp_ms"):
        made[name] = [getattr(entry, name) for entry in entries]
    made["kind"], made["uid"] = kind, [uid_of(entry.attempt) for entry in entries]
    made["size_high"] = [entry.data_size_bytes >> 32 for entry in entries]
    made["size_low"] = [entry.data_size_bytes & (2**32 - 1) for entry in entries]
    return made


def uid_of(attempt: UUID) -> int:
    """Return the UID of the object whose entry has this attempt."""
    return attempt.int & (2**32 - 1)


def fragment_header() -> bytes:
    """Return the bytes before the chunks of a fragment."""
    return FRAGMENT_HEADER.pack(magic=FRAGMENT_MAGIC, version=VERSION)


def check_fragment_header(raw: bytes, *, where: str) -> None:
    """Raise `Corrupt` for another magic than a fragment's, and `UnsupportedFormat` for another version."""
    if len(raw) < FRAGMENT_HEADER.size_bytes:
        raise Corrupt("size of the header", where, expected=FRAGMENT_HEADER.size_bytes, found=len(raw))
    values = FRAGMENT_HEADER.unpack(raw)
    _check("magic", where, FRAGMENT_MAGIC, values["magic"])
    _check_version(values["version"], where)


def encode_index(table: ChunkTable) -> bytes:
    """Return the index of a fragment whose chunks are the rows of `table`."""
    records = np.zeros(len(table), INDEX_RECORD.dtype)
    for name in ("offset", "timestamp_ms"):
        records[name] = table[name]
    records["position"] = table["position"] - table["position"][:1]
    return records.tobytes()


def index_table(raw: bytes, entry: Entry, *, where: str) -> ChunkTable:
    """Return the table of a fragment from its index and its entry. Every row is of a user chunk.

    Positions are those in the object. Raises `Corrupt` for the first record that does not continue the ones
    before it, and unless the index fits the entry.
    """
    start = FRAGMENT_HEADER.size_bytes + entry.data_size_bytes
    count, rest = divmod(len(raw), INDEX_RECORD.size_bytes)
    if rest == OLDER_INDEX_REST:
        raise UnsupportedFormat(f"{where} has the size of a fragment {OLDER}, or it is cut")
    if rest or not count:
        expected = f"a multiple of {INDEX_RECORD.size_bytes}, behind {entry.data_size_bytes} bytes of chunks"
        raise Corrupt("size of the index", where, position=start, expected=expected, found=len(raw))
    records = np.frombuffer(raw, INDEX_RECORD.dtype)
    rows: ChunkTable = np.zeros(count, CHUNK_TABLE)
    for name in ("offset", "timestamp_ms", "position"):
        rows[name] = records[name]
    # A step down wraps to a huge number, which is refused as too large.
    numbers = np.append(rows["offset"], np.uint64(entry.next_offset))
    places = np.append(rows["position"], np.uint64(entry.data_size_bytes))
    steps, sizes = numbers[1:] - numbers[:-1], places[1:] - places[:-1]
    sound = (steps >= 1) & (steps < 2**32)
    sound &= (sizes >= CHUNK_HEADER.size_bytes) & (sizes <= CHUNK_SIZE_BYTES_MAX)
    sound[0] &= (int(numbers[0]), int(places[0])) == (entry.first_offset, 0)
    if not sound.all():
        row = int(sound.argmin())
        raise Corrupt(
            f"index record {row}",
            where,
            position=start + row * INDEX_RECORD.size_bytes,
            expected="offset and position before those that follow, the first ones those of the fragment",
            found=f"offset {numbers[row]}, byte {places[row]}, then {numbers[row + 1]}, {places[row + 1]}",
        )
    ends = int(rows["timestamp_ms"][0]), int(rows["timestamp_ms"][-1])
    stated = entry.first_timestamp_ms, entry.last_timestamp_ms
    if ends != stated:
        raise Corrupt("times of the index", where, position=start, expected=stated, found=ends)
    rows["records"], rows["size_bytes"] = steps, sizes
    rows["position"] += np.uint64(FRAGMENT_HEADER.size_bytes)
    return rows


def _check(what: str, where: str, expected: object, found: object, *, holds: bool | None = None) -> None:
    if not (expected == found if holds is None else holds):
        raise Corrupt(what, where, expected=expected, found=found)


def _check_version(version: int, where: str) -> None:
    if version != VERSION:
        raise UnsupportedFormat(f"{where} has version {version}; this program reads version {VERSION}")
