"""The entries of a chunk, which fill its data section: parsing them into messages, and encoding them.

    simple entry   u32 length, top bit 0 | record
    sub-batch      SUB_BATCH_HEADER, top bit 1 | compressed run of simple entries

Record k of a chunk has offset `chunk offset + k`, counted through sub-batches.

Invariants:

- The entries fill the data section exactly.
- The numbers of entries and of records are those of the header.
- The entries of a sub-batch are simple, and fill its uncompressed size exactly.

Reading is the hottest loop of the framework. So the entries are first read as simple entries, without a check
of each record: a wrong length leads the loop past the end, or ends it before the end, and so is always
noticed. Only then are the entries parsed with every check.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.formats.chunk import ChunkHeader
from offload.formats.codecs import SUB_BATCH_SIZE_BYTES_MAX, Codec, compress, decompress
from offload.formats.layout import layout
from offload.ground.errors import Corrupt, Misuse
from offload.model.chunk_table import ChunkType

__all__ = ["SubBatch", "encode_run", "messages"]


SUB_BATCH_HEADER: Final = layout(
    "Sub-batch header",
    ("kind", "B", "top bit 1, then the compression in 3 bits, then 4 bits of zero"),
    ("records", "H", "number of records within"),
    ("uncompressed_size_bytes", "I", "size of the simple entries before compression"),
    ("size_bytes", "I", "size of the compressed entries, which follow"),
)
assert SUB_BATCH_HEADER.size_bytes == 11

RECORD_SIZE_BYTES_MAX: Final = 2**31 - 1

SCATTERED_SIZE_BYTES_MAX: Final = 512
"""Runs of smaller records are encoded byte by byte in one pass of NumPy, others record by record.

Measured on runs of 4 MB, in MiB/s, by byte and by record: 1,110 and 240 with 100-byte records, 1,780 and 780
with 300 bytes, 1,490 and 3,150 with 1 KB, 1,590 and 10,300 with 10 KB.
"""

_LENGTH: Final = struct.Struct(">I")
_SUB_BATCH_BIT: Final = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class SubBatch:
    """Several records that a client sent and the broker stored as one compressed entry."""

    codec: int
    """Usually a `Codec`. An unknown number is kept, and refused only when the sub-batch is opened."""
    records: int
    uncompressed_size_bytes: int
    payload: bytes

    @classmethod
    def of(cls, messages: Iterable[bytes], codec: Codec) -> SubBatch:
        """Compress `messages` into one entry."""
        bodies = list(messages)
        data = encode_entries(bodies)
        return cls(
            codec=codec,
            records=len(bodies),
            uncompressed_size_bytes=len(data),
            payload=compress(data, codec),
        )

    def encode(self) -> bytes:
        """Return the bytes of the entry in a data section. Raises `Misuse` if a number does not fit."""
        if not (0 <= self.codec <= 7 and 1 <= self.records < 2**16):
            found = f"{self.records} records and compression {self.codec}"
            raise Misuse(f"a sub-batch has 1 to 65,535 records and a compression of 0 to 7, not {found}")
        head = SUB_BATCH_HEADER.pack(
            kind=_SUB_BATCH_BIT | self.codec << 4,
            records=self.records,
            uncompressed_size_bytes=self.uncompressed_size_bytes,
            size_bytes=len(self.payload),
        )
        return head + self.payload

    def messages(self, *, where: str, position: int) -> list[bytes]:
        """Return the records. `position` is that of the payload. Raises as `codecs.decompress` does."""
        data = decompress(
            self.payload, self.codec, size_bytes=self.uncompressed_size_bytes, where=where, position=position
        )
        bodies = _simple_records(data, self.records)
        if bodies is None:
            raise Corrupt(
                "entries of a sub-batch",
                where,
                position=position,
                expected=f"{self.records} simple entries that fill {len(data)} bytes",
                found="entries that do not",
            )
        return bodies


def messages(chunk: bytes | memoryview, *, where: str, position: int = 0) -> list[bytes]:
    """Return the bodies of all records of one user chunk, in the order of their offsets.

    `chunk` is one whole stored chunk at `position` of `where`, whose checksum was checked. There are exactly
    as many bodies as the header has records. Raises `Corrupt` if an entry breaks the format,
    `UnsupportedFormat` for an unknown compression, and `Misuse` for a tracking chunk, which has no messages.
    """
    header, data = _data_section(chunk, where=where, position=position)
    if header.type is not ChunkType.USER:
        raise Misuse(f"{where} at byte {position}: a {header.type.name} chunk has no messages")
    if header.entries == header.records:  # otherwise there are sub-batches
        bodies = _simple_records(data, header.entries)
        if bodies is not None:
            return bodies

    bodies, total_size_bytes = [], 0
    for at, entry in _entries(data, header, where=where, position=position + header.data_start):
        if isinstance(entry, bytes):
            bodies.append(entry)
            continue
        # Checked before the sub-batch is opened: many small ones may claim more memory together than one may.
        total_size_bytes += entry.uncompressed_size_bytes
        if total_size_bytes > SUB_BATCH_SIZE_BYTES_MAX:
            limit = f"at most {SUB_BATCH_SIZE_BYTES_MAX} in one chunk"
            raise Corrupt("sub-batch size", where, position=at, expected=limit, found=total_size_bytes)
        bodies += entry.messages(where=where, position=at + SUB_BATCH_HEADER.size_bytes)
    return bodies


def entries(chunk: bytes | memoryview, *, where: str, position: int = 0) -> list[bytes | SubBatch]:
    """Return the entries of one chunk of any type, as they are stored: sub-batches stay compressed.

    `chunk` and `position` are as for `messages`. `build_chunk` takes these entries.
    """
    header, data = _data_section(chunk, where=where, position=position)
    found = _entries(data, header, where=where, position=position + header.data_start)
    return [entry for _, entry in found]


def encode_entries(entries: Iterable[bytes | SubBatch]) -> bytes:
    """Return a data section: a simple entry for each body, and each sub-batch as it is.

    Raises `Misuse` for a body of 2 GiB or more.
    """
    length, parts = _LENGTH.pack, []
    for entry in entries:
        if isinstance(entry, SubBatch):
            parts.append(entry.encode())
        elif len(entry) <= RECORD_SIZE_BYTES_MAX:
            parts += length(len(entry)), entry
        else:
            raise Misuse(f"a record of {len(entry)} bytes is too long: at most {RECORD_SIZE_BYTES_MAX}")
    return b"".join(parts)


def encode_run(
    data: bytes | memoryview, starts: npt.NDArray[np.uint64], ends: npt.NDArray[np.uint64]
) -> bytes | memoryview:
    """Return the data section of the records `data[starts[k]:ends[k]]`, as `encode_entries` does.

    The caller has checked that the records lie in `data`, in order and without overlap. Raises `Misuse` for a
    record of 2 GiB or more.
    """
    sizes = ends - starts
    count, size_bytes = len(sizes), int(sizes.sum())
    if count and int(sizes.max()) > RECORD_SIZE_BYTES_MAX:
        found = int(sizes.max())
        raise Misuse(f"a record of {found} bytes is too long: at most {RECORD_SIZE_BYTES_MAX}")
    lengths = sizes.astype(">u4").view(np.uint8).reshape(count, 4)
    is_packed = count > 0 and int(ends[-1] - starts[0]) == size_bytes
    if not is_packed or size_bytes > SCATTERED_SIZE_BYTES_MAX * count:
        heads, view = lengths.tobytes(), memoryview(data)
        parts: list[bytes | memoryview] = [b""] * (2 * count)
        parts[::2] = [heads[at : at + 4] for at in range(0, len(heads), 4)]
        parts[1::2] = [view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return b"".join(parts)
    # The length of record k is at the record's old place, and four bytes further for each length before it.
    heads_at = (starts - starts[0] + np.arange(count, dtype=np.uint64) * np.uint64(4)).astype(np.int64)
    places = heads_at[:, np.newaxis] + np.arange(4)
    is_body = np.ones(size_bytes + 4 * count, np.bool_)
    is_body[places] = False
    section = np.empty(len(is_body), np.uint8)
    section[places] = lengths
    section[is_body] = np.frombuffer(data, np.uint8)[int(starts[0]) : int(ends[-1])]
    return section.data


def _data_section(chunk: bytes | memoryview, *, where: str, position: int) -> tuple[ChunkHeader, bytes]:
    header = ChunkHeader.decode(chunk, where=where, origin=position)
    if len(chunk) != header.size_bytes:
        raise Corrupt("chunk size", where, position=position, expected=header.size_bytes, found=len(chunk))
    return header, bytes(chunk[header.data_start : header.trailer_start])


def _simple_records(data: bytes, count: int) -> list[bytes] | None:
    """Return the records of the `count` simple entries that fill `data`, or None if it has other contents."""
    # No length is checked in the loop, because later lengths cannot make up for a wrong one: positions only
    # grow, and the length of a sub-batch, whose top bit is 1, leads at least 2 GiB further. So it is enough
    # to check that the last entry ends at the end.
    length_at = _LENGTH.unpack_from
    bodies, at = [b""] * count, 0
    try:
        for index in range(count):
            start = at + 4
            at = start + length_at(data, at)[0]
            bodies[index] = data[start:at]
    except struct.error:
        return None
    return bodies if at == len(data) else None


def _entries(
    data: bytes, header: ChunkHeader, *, where: str, position: int
) -> Iterator[tuple[int, bytes | SubBatch]]:
    """Yield every entry with its position in `where`. `position` is that of the data section.

    Raises `Corrupt` if the entries do not fill the data section, or are not as many as the header says.
    """
    at = records = 0
    for _ in range(header.entries):
        start = at
        is_sub_batch = data[at : at + 1] >= b"\x80"
        body_start = at + (SUB_BATCH_HEADER.size_bytes if is_sub_batch else _LENGTH.size)
        if body_start > len(data):
            expected, found = f"{header.entries} entries", f"{len(data) - at} bytes left for one"
            raise Corrupt("chunk entries", where, position=position + at, expected=expected, found=found)
        if is_sub_batch:
            head = SUB_BATCH_HEADER.unpack(data, at)
            size_bytes, count = head["size_bytes"], head["records"]
        else:
            size_bytes, count = _LENGTH.unpack_from(data, at)[0], 1
        at = body_start + size_bytes
        if at > len(data):
            limit = f"at most {len(data) - body_start}"
            raise Corrupt("entry size", where, position=position + start, expected=limit, found=size_bytes)
        payload = data[body_start:at]
        records += count
        yield (
            position + start,
            _sub_batch(head, payload, where, position + start) if is_sub_batch else payload,
        )
    if at != len(data):
        raise Corrupt("data size", where, position=position + at, expected=at, found=len(data))
    if records != header.records:
        raise Corrupt("records", where, position=position, expected=header.records, found=records)


def _sub_batch(head: dict[str, int], payload: bytes, where: str, position: int) -> SubBatch:
    if head["kind"] & 0x0F or not head["records"]:
        expected = "four zero bits, and a record or more"
        found = f"kind {head['kind']:#04x}, {head['records']} records"
        raise Corrupt("sub-batch header", where, position=position, expected=expected, found=found)
    return SubBatch(
        codec=head["kind"] >> 4 & 0b111,
        records=head["records"],
        uncompressed_size_bytes=head["uncompressed_size_bytes"],
        payload=payload,
    )
