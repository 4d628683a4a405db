"""The first and the last bytes of a fragment: its header and its trailer.

The trailer has a fixed size, so a reader that has only the key fetches it with a suffix range. It names the
object, and says where the tail begins (`formats.fragment`). Everything else of the object is found from it.

Invariants:

- The trailer is decoded first. Its version decides how the header and the tail are read.
- `FragmentTrailer.decode` refuses impossible numbers before anybody allocates memory or computes a range
  from them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from offload.formats.checksums import check_sealed, crc32c
from offload.formats.fragment_v1 import TRAILER_1, trailer_fields
from offload.formats.layout import layout
from offload.formats.sections import SECTION
from offload.ground.errors import Corrupt, Misuse, UnsupportedFormat
from offload.model.compression import BlockCodec

FRAGMENT_FORMAT_VERSION: Final = 2
HEADER_MAGIC: Final = b"OLFH"
TRAILER_MAGIC: Final = b"OLFT"
CHUNKS_MAX: Final = 2**20
"""The most chunks of one fragment. It keeps the index small if chunks are tiny."""
TAIL_SIZE_BYTES_MAX: Final = 2**32 - 1
"""The most bytes of a tail: the number that an entry of a manifest can hold."""

HEADER: Final = layout(
    "Fragment header",
    ("magic", "4s", "`OLFH`"),
    ("version", "H", "2; 1 in a fragment of version 1"),
    ("reserved", "10s", "zero, and refused otherwise"),
)

TRAILER: Final = layout(
    "Fragment trailer",
    ("magic", "4s", "`OLFT`"),
    ("version", "H", "2; a reader also knows 1, and refuses any other"),
    ("codec", "B", "compression of the blocks; 0: none, 1: zstd, 2: lz4"),
    (
        "flags",
        "B",
        "bit 0: a copy of committed fragments, made to replace them; bit 1: encrypted; others zero",
    ),
    ("stream_digest", "32s", "SHA-256 of the stream's name"),
    ("incarnation", "16s", "UUID of the stream's incarnation"),
    (
        "attempt",
        "16s",
        "UUID of the attempt that wrote this object; of version 8 if it begins with a batch's token",
    ),
    ("ledger_id", "Q", "the ledger that was copied"),
    ("epoch", "Q", "epoch of the writer; in a copy, that of the first copied fragment"),
    ("base_version", "Q", "version of the newest root that the writer knew"),
    ("first_offset", "Q", "offset of the first record"),
    ("next_offset", "Q", "first offset after the last record"),
    ("messages", "Q", "records in user chunks; the rest are tracking records"),
    ("first_timestamp_ms", "q", "the least timestamp of any chunk"),
    ("last_timestamp_ms", "q", "the greatest timestamp of any chunk"),
    ("data_size_bytes", "Q", "plain size of all chunks"),
    ("size_bytes", "Q", "size of this object"),
    ("tail_start", "Q", "byte position of the tail: of the first section that every reader needs"),
    ("chunk_count", "I", "number of chunks"),
    ("section_count", "I", "number of records in the directory"),
    ("data_checksum", "I", "CRC-32C of every byte before the tail"),
    ("tail_checksum", "I", "CRC-32C of the tail before the trailer"),
    ("checksum", "I", "CRC-32C of the trailer before this field"),
)
assert TRAILER.size_bytes == TRAILER_1.size_bytes  # a reader fetches it before it knows the version

FRAGMENT_HEADER: Final = HEADER.pack(magic=HEADER_MAGIC, version=FRAGMENT_FORMAT_VERSION, reserved=bytes(10))


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentTrailer:
    """The trailer of a fragment, decoded. Fields as in `TRAILER`, also for a fragment of version 1."""

    version: int = FRAGMENT_FORMAT_VERSION
    codec: int = 0
    copied: int = 0
    encrypted: int = 0
    stream_digest: bytes
    incarnation: UUID
    attempt: UUID
    ledger_id: int
    epoch: int
    base_version: int
    first_offset: int
    next_offset: int
    messages: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    data_size_bytes: int
    tail_start: int
    chunk_count: int
    data_checksum: int
    size_bytes: int = 0
    section_count: int = 0
    tail_checksum: int = 0
    """`encode_tail` sets these three."""

    @property
    def tail_size_bytes(self) -> int:
        """The size of the tail, trailer included."""
        return self.size_bytes - self.tail_start

    def encode(self) -> bytes:
        """Return the bytes of a trailer of today's version, checksum included.

        Raises `Misuse` if a mark is neither 0 nor 1: it would set the bit of another.
        """
        if not {self.copied, self.encrypted} <= {0, 1}:
            found = f"copied={self.copied} and encrypted={self.encrypted}"
            raise Misuse(f"the marks of a trailer are 0 or 1, not {found}")
        body = TRAILER.pack(
            magic=TRAILER_MAGIC,
            flags=self.copied | self.encrypted << 1,
            incarnation=self.incarnation.bytes,
            attempt=self.attempt.bytes,
            checksum=0,
            **{name: getattr(self, name) for name in _PLAIN_FIELDS},
        )[:-4]
        return body + crc32c(body).to_bytes(4, "big")

    @classmethod
    def decode(cls, raw: bytes, *, where: str, position: int = 0) -> FragmentTrailer:
        """Undo `encode`. `position` is that of `raw` in the object, for messages.

        Raises `Corrupt` for any damaged bit and for impossible counts, and `UnsupportedFormat` for another
        version or an unknown codec.
        """
        if len(raw) != TRAILER.size_bytes:
            raise Corrupt(
                "trailer size", where, expected=TRAILER.size_bytes, found=len(raw), position=position
            )
        fields = TRAILER.unpack(raw)
        expect("trailer magic", where, position, expected=TRAILER_MAGIC, found=fields["magic"])
        is_old = fields["version"] == 1
        check_sealed(
            "trailer",
            raw,
            version=fields["version"],
            known=1 if is_old else FRAGMENT_FORMAT_VERSION,
            where=where,
            position=position,
        )
        if is_old:
            trailer = cls(**trailer_fields(raw, header_size_bytes=HEADER.size_bytes, where=where))
        else:
            trailer = cls(
                copied=fields["flags"] & 1,
                encrypted=fields["flags"] >> 1,
                incarnation=UUID(bytes=fields["incarnation"]),
                attempt=UUID(bytes=fields["attempt"]),
                **{name: fields[name] for name in _PLAIN_FIELDS},
            )
        trailer.check(where=where, position=position)
        if trailer.codec > max(BlockCodec):
            raise UnsupportedFormat(f"{where}: codec {trailer.codec} is not known; upgrade the program")
        return trailer

    def check(self, *, where: str, position: int) -> None:
        """Raise `Corrupt` for impossible numbers. `position` is that of the trailer in its object."""
        # The checksum does not protect against a writer's bug. Impossible numbers are refused here, before
        # anybody allocates memory or computes a range from them.
        records, directory = self.next_offset - self.first_offset, self.section_count * SECTION.size_bytes
        expect("trailer flags", where, position, expected=min(self.encrypted, 1), found=self.encrypted)
        expect("trailer copied", where, position, expected=min(self.copied, 1), found=self.copied)
        if not 0 < self.chunk_count <= min(records, CHUNKS_MAX) or not 0 <= self.messages <= records:
            expected = f"1 <= chunks <= records, and at most {CHUNKS_MAX} chunks"
            raise Corrupt("trailer counts", where, expected=expected, found=self, position=position)
        if not HEADER.size_bytes <= self.tail_start <= self.size_bytes - TRAILER.size_bytes - directory:
            expected = "a tail within the object"
            raise Corrupt("trailer sizes", where, expected=expected, found=self, position=position)
        if self.tail_size_bytes > TAIL_SIZE_BYTES_MAX:
            expected = f"a tail of at most {TAIL_SIZE_BYTES_MAX} bytes"
            raise Corrupt("tail size", where, expected=expected, found=self, position=position)


def stream_digest(stream: str) -> bytes:
    """Return the 32 bytes by which a trailer names its stream."""
    return hashlib.sha256(stream.encode()).digest()


def check_header(raw: bytes, *, version: int, where: str) -> None:
    """Raise `Corrupt` unless an object begins with the header of a fragment of this version.

    The version in the trailer decides, and the trailer is decoded first. So another version here is damage.
    """
    if len(raw) < HEADER.size_bytes:
        raise Corrupt("header size", where, expected=HEADER.size_bytes, found=len(raw))
    fields = HEADER.unpack(raw)
    expect("header magic", where, 0, expected=HEADER_MAGIC, found=fields["magic"])
    expect("header version", where, 4, expected=version, found=fields["version"])
    expect("header reserved bytes", where, 6, expected=bytes(10), found=fields["reserved"])


def expect(what: str, where: str, position: int, *, expected: Any, found: Any) -> None:
    """Raise `Corrupt` at this position of the object unless `found` is what is expected."""
    if expected != found:
        raise Corrupt(what, where, expected=expected, found=found, position=position)


_PLAIN_FIELDS: Final = tuple(
    name
    for name in FragmentTrailer.__dataclass_fields__
    if name not in {"copied", "encrypted", "incarnation", "attempt"}
)
