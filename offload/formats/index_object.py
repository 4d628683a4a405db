"""An index object: where the records with a term are, for a run of offsets of one stream (decision 43).

```text
rows, sorted | directory: an entry for each bucket | header
```

A row is a term of a record: 48 bits of the term's hash, and the record's offset. The top bits of the hash are
the number of the row's bucket. So a lookup reads the entry of one bucket and of the next, and then the rows
between the two. All positions follow from the size of the object, which a listing shows.

Invariants:

- Rows ascend as bytes, and none occurs twice. There are `2**bits` buckets for `rows` rows, where `bits` is
  the least number with at most 1,024 rows a bucket on average. So a size belongs to one number of rows.
- An entry's checksum covers the object's key and the number of the bucket. So an object under another key, or
  an entry in another place, is damage, and so is the object of a newer format.
- The header repeats what the key says. A lookup does not need it. It is checked by a verify and by a merge.
- Sizes from bytes are checked against the listed size before memory is allocated by them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.formats.checksums import check_sealed, crc32c
from offload.formats.fragment_trailer import stream_digest
from offload.formats.keys import IndexName, StreamKeys
from offload.formats.layout import layout
from offload.ground.errors import Corrupt

__all__ = [
    "Directory",
    "Hashes",
    "IndexShape",
    "IndexWriter",
    "Offsets",
    "check_index_header",
    "split_rows",
]

INDEX_OBJECT_VERSION: Final = 1
INDEX_OBJECT_MAGIC: Final = b"OLIX"
HASH_BITS: Final = 48
BUCKET_ROWS: Final = 1024
INDEX_ROWS_MAX: Final = 2**40

INDEX_ROW: Final = layout(
    "Index row",
    ("hash", "6s", "the top 48 bits of the XXH64 of the term, with seed 0"),
    ("offset", "I", "the record's offset, less the first offset of the object"),
)
INDEX_BUCKET: Final = layout(
    "Index bucket",
    ("first_row", "Q", "number of the bucket's first row; the next bucket's, or the end, is behind its last"),
    ("rows_checksum", "I", "CRC-32C of the bucket's rows"),
    (
        "checksum",
        "I",
        "CRC-32C of magic, format version, key, number of the bucket (8 bytes), and the bytes before it",
    ),
)
INDEX_OBJECT_HEADER: Final = layout(
    "Index object header",
    ("magic", "4s", "`OLIX`"),
    ("format_version", "H", "1; a reader refuses any other"),
    ("reserved", "H", "zero, and refused otherwise"),
    ("stream_digest", "32s", "SHA-256 of the stream's name"),
    ("first_offset", "Q", "first offset that the object covers"),
    ("next_offset", "Q", "first offset behind those that it covers"),
    ("version", "Q", "version of the root on which it was made"),
    ("incarnation", "16s", "UUID of the stream's life"),
    ("uid", "16s", "UUID of this object"),
    ("row_count", "Q", "number of rows"),
    ("checksum", "I", "CRC-32C of the bytes before it"),
)
ROW_SIZE_BYTES: Final = INDEX_ROW.size_bytes
assert (ROW_SIZE_BYTES, INDEX_BUCKET.size_bytes, INDEX_OBJECT_HEADER.size_bytes) == (10, 16, 108)

Octets = bytes | memoryview
Hashes = npt.NDArray[np.uint64]
"""The top 48 bits of hashes, as integers."""
Offsets = npt.NDArray[np.uint32]
"""Offsets, less the first offset of the object."""

_NUMBER: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class IndexShape:
    """The positions in an index object of so many rows."""

    rows: int

    @property
    def bits(self) -> int:
        """The number of bits of a bucket's number."""
        return (max(self.rows - 1, 0) // BUCKET_ROWS).bit_length()

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        return 1 << self.bits

    @property
    def header_start(self) -> int:
        """The position of the header, which is behind rows and directory."""
        return self.rows * ROW_SIZE_BYTES + self.buckets * INDEX_BUCKET.size_bytes

    @property
    def size_bytes(self) -> int:
        """The size of the object."""
        return self.header_start + INDEX_OBJECT_HEADER.size_bytes

    @classmethod
    def of_size(cls, size_bytes: int, *, where: str) -> IndexShape:
        """Return the shape of an object of this size. Raises `Corrupt` if none has it."""
        for bits in range(INDEX_ROWS_MAX.bit_length()):
            rows, rest = divmod(size_bytes - INDEX_OBJECT_HEADER.size_bytes - (16 << bits), ROW_SIZE_BYTES)
            if rows >= 0 and not rest and rows <= INDEX_ROWS_MAX and cls(rows).bits == bits:
                return cls(rows)
        raise Corrupt("index size", where, expected="the size of some number of rows", found=size_bytes)

    def bucket_of(self, term_hash: int) -> int:
        """Return the number of the bucket for a hash of 48 bits."""
        return term_hash >> (HASH_BITS - self.bits)

    def entries(self, first: int, stop: int) -> tuple[int, int]:
        """Return position and size of the entries of these buckets, and of the next one if there is one."""
        begin = self.rows * ROW_SIZE_BYTES + first * INDEX_BUCKET.size_bytes
        return begin, (min(stop + 1, self.buckets) - first) * INDEX_BUCKET.size_bytes


@dataclass(frozen=True, slots=True)
class Directory:
    """The checked entries of some neighbouring buckets."""

    edges: npt.NDArray[np.int64]
    """The first row of each bucket, and the row behind the last bucket."""
    checksums: npt.NDArray[np.uint32]

    @classmethod
    def decode(cls, raw: Octets, shape: IndexShape, first: int, stop: int, *, where: str) -> Directory:
        """Check the entries from bucket `first` to before `stop`, which `IndexShape.entries` placed.

        Raises `Corrupt` if one is damaged, of another object, or in another place.
        """
        start, size = shape.entries(first, stop)
        if len(raw) != size:
            raise Corrupt("index directory size", where, expected=size, found=len(raw), position=start)
        found, salt = np.frombuffer(raw, INDEX_BUCKET.dtype), _salt(where)
        for number, stored in enumerate(found["checksum"].tolist()):
            at = number * INDEX_BUCKET.size_bytes
            checksum = _entry_checksum(salt, first + number, bytes(raw[at : at + 12]))
            if checksum != stored:
                raise Corrupt(
                    "index bucket checksum", where, expected=stored, found=checksum, position=start + at
                )
        edges = found["first_row"].astype(np.int64)
        if stop == shape.buckets:
            edges = np.append(edges, shape.rows)
        in_order = (np.diff(edges) >= 0).all() and edges[0] >= 0 and edges[-1] <= shape.rows
        if not in_order or (first == 0 and edges[0]):
            raise Corrupt("index directory", where, expected="rows in order", found="others", position=start)
        return cls(edges, found["rows_checksum"][: stop - first].astype(np.uint32))

    def between(self, first: int, stop: int) -> Directory:
        """Return the entries from number `first` of these to before number `stop`."""
        return Directory(self.edges[first : stop + 1], self.checksums[first:stop])


class IndexWriter:
    """Encodes one index object, piece by piece, into exactly the bytes of its shape."""

    def __init__(self, stream: str, name: IndexName, rows: int) -> None:
        self.shape, self._stream, self._name = IndexShape(rows), stream, name
        self._salt = _salt(StreamKeys(stream).index(name))
        self._directory = bytearray()
        self._written = self._begun = self._checksum = self._bucket = 0

    def rows(self, hashes: Hashes, offsets: Offsets) -> bytes:
        """Return the next rows as bytes. All rows ascend by hash, and those of one hash by offset."""
        raw = _joined(hashes, offsets)
        buckets = hashes >> np.uint64(HASH_BITS - self.shape.bits)
        last = int(buckets[-1]) if len(buckets) else self._bucket
        edges = np.searchsorted(buckets, np.arange(self._bucket, last + 1, dtype=np.uint64), "right").tolist()
        for begin, end in pairwise([0, *edges]):
            self._checksum = crc32c(raw[begin * ROW_SIZE_BYTES : end * ROW_SIZE_BYTES], self._checksum)
            self._written += end - begin
            if self._bucket < last:  # rows of the last one may follow
                self._close_bucket()
        return bytes(raw)

    def end(self) -> bytes:
        """Return the directory and the header, once all rows were written."""
        while self._bucket < self.shape.buckets:
            self._close_bucket()
        assert self._written == self.shape.rows
        return bytes(self._directory) + encode_header(self._stream, self._name, self.shape.rows)

    def _close_bucket(self) -> None:
        head = struct.pack(">QI", self._begun, self._checksum)
        self._directory += head + _entry_checksum(self._salt, self._bucket, head).to_bytes(4, "big")
        self._begun, self._checksum, self._bucket = self._written, 0, self._bucket + 1


def encode_header(stream: str, name: IndexName, rows: int) -> bytes:
    """Return the header of an index object."""
    raw = INDEX_OBJECT_HEADER.pack(
        magic=INDEX_OBJECT_MAGIC,
        format_version=INDEX_OBJECT_VERSION,
        reserved=0,
        stream_digest=stream_digest(stream),
        first_offset=name.first_offset,
        next_offset=name.next_offset,
        version=name.version,
        incarnation=name.incarnation.bytes,
        uid=name.uid.bytes,
        row_count=rows,
        checksum=0,
    )[:-4]
    return raw + crc32c(raw).to_bytes(4, "big")


def check_index_header(raw: Octets, stream: str, name: IndexName, shape: IndexShape) -> None:
    """Check that this is the header of the object with this name and shape.

    Raises `Corrupt`, and `UnsupportedFormat` for a sound header of another version.
    """
    where, expected = StreamKeys(stream).index(name), encode_header(stream, name, shape.rows)
    if bytes(raw) == expected:
        return
    what, position = "index header", shape.header_start
    if len(raw) == len(expected) and bytes(raw[:4]) == INDEX_OBJECT_MAGIC:
        version = INDEX_OBJECT_HEADER.unpack(raw)["format_version"]
        check_sealed(
            what, bytes(raw), version=version, known=INDEX_OBJECT_VERSION, where=where, position=position
        )
    raise Corrupt(what, where, expected=expected.hex(), found=bytes(raw).hex(), position=position)


def split_rows(raw: Octets) -> tuple[Hashes, Offsets]:
    """Return the hashes and the offsets of stored rows. `raw` has whole rows."""
    rows = np.frombuffer(raw, np.uint8).reshape(-1, ROW_SIZE_BYTES)
    padded = np.zeros((len(rows), 8), np.uint8)
    padded[:, 2:] = rows[:, :6]
    offsets = np.ascontiguousarray(rows[:, 6:]).view(">u4")[:, 0]
    return padded.view(">u8")[:, 0].astype(np.uint64), offsets.astype(np.uint32)


def _joined(hashes: Hashes, offsets: Offsets) -> memoryview:
    rows = np.empty((len(hashes), ROW_SIZE_BYTES), np.uint8)
    rows[:, :6] = hashes.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 2:]
    rows[:, 6:] = offsets.astype(">u4").view(np.uint8).reshape(-1, 4)
    return rows.reshape(-1).data


def _salt(key: str) -> int:
    return crc32c(INDEX_OBJECT_MAGIC + INDEX_OBJECT_VERSION.to_bytes(2, "big") + key.encode())


def _entry_checksum(salt: int, number: int, head: bytes) -> int:
    return crc32c(_NUMBER.pack(number) + head, salt)
