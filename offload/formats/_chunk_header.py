"""The header of a chunk: its first 48 bytes, and the rules for its fields.

It is byte for byte what osiris (the log behind RabbitMQ streams) writes. After the header come `filter`,
`data` and `trailer`, in this order and without padding. The next chunk follows at once.

Invariants of a header, checked before writing and after reading:

- A chunk has at least one entry, and at least one record per entry. (A sub-batch is one entry with many
  records.) So every chunk takes at least one offset, and offsets never repeat.
- A tracking chunk is one entry and one record: it takes one offset, though it carries no message.
- There is no filter, or one of 16 to 255 bytes.
- The whole chunk is smaller than 4 GiB, so that an index can keep its size in 32 bits.

The header has no checksum of its own: `crc` covers only the data section. Header, filter and trailer are
covered by the checksum of the whole stored chunk, which an index keeps.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from offload.formats.layout import layout
from offload.ground.errors import Corrupt, Misuse
from offload.model.chunk_table import ChunkType

CHUNK_HEADER: Final = layout(
    "Chunk header",
    ("magic", "B", "0x50: magic 5 in the high half, version 0 in the low half"),
    ("type", "B", "0 user, 1 tracking delta, 2 tracking snapshot"),
    ("entries", "H", "number of entries in the data section"),
    ("records", "I", "number of records, which is the sum over the entries; the chunk takes as many offsets"),
    ("timestamp_ms", "q", "time at which the chunk was written, in milliseconds since 1970"),
    ("epoch", "Q", "the broker's leader epoch"),
    ("offset", "Q", "offset of the first record (the chunk id)"),
    ("crc", "I", "CRC-32 of the data section only"),
    ("data_size_bytes", "I", "size of the data section: the entries"),
    ("trailer_size_bytes", "I", "size of the trailer: tracking blocks"),
    ("filter_size_bytes", "B", "size of the bloom filter: 0, or 16 to 255"),
    ("reserved", "3s", "zero, and refused otherwise"),
)
assert CHUNK_HEADER.size_bytes == 48

CHUNK_MAGIC: Final = 0x50
CHUNK_SIZE_BYTES_MAX: Final = 2**32 - 1
FILTER_SIZE_BYTES_MIN: Final = 16
FILTER_SIZE_BYTES_MAX: Final = 255

_RESERVED: Final = bytes(3)


class _Violation(NamedTuple):
    """A broken rule of a header: the field, the expected value and the found value."""

    field: str
    expected: object
    found: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHeader:
    """The header of a chunk, decoded."""

    type: ChunkType
    entries: int
    records: int
    timestamp_ms: int
    epoch: int
    offset: int
    crc: int
    data_size_bytes: int
    trailer_size_bytes: int
    filter_size_bytes: int

    @property
    def data_start(self) -> int:
        """The position of the data section in the stored chunk: after header and filter."""
        return CHUNK_HEADER.size_bytes + self.filter_size_bytes

    @property
    def trailer_start(self) -> int:
        """The position of the trailer in the stored chunk: at the end of the data section."""
        return self.data_start + self.data_size_bytes

    @property
    def size_bytes(self) -> int:
        """The size of the whole stored chunk: header, filter, data and trailer."""
        return self.trailer_start + self.trailer_size_bytes

    @property
    def next_offset(self) -> int:
        """The offset at which the next chunk must begin."""
        return self.offset + self.records

    def encode(self) -> bytes:
        """Return the 48 bytes. Raises `Misuse` if a rule of the format is broken or a number does not fit."""
        if broken := self._violation():
            raise Misuse(f"chunk header: {broken.field}: expected {broken.expected}, found {broken.found}")
        values = {name: getattr(self, name) for name in self.__slots__}
        try:
            return CHUNK_HEADER.pack(magic=CHUNK_MAGIC, reserved=_RESERVED, **values)
        except struct.error as exc:
            raise Misuse(f"chunk header: a number does not fit its field: {exc}") from exc

    @classmethod
    def decode(
        cls, raw: bytes | bytearray | memoryview, position: int = 0, *, where: str, origin: int = 0
    ) -> ChunkHeader:
        """Return the header that begins at `position` of `raw`.

        `origin` is the position of `raw` within `where`. `Corrupt` names the field and its position within
        `where`. The rest of the chunk need not be in `raw`, and is not read.
        """
        at = origin + position
        available = len(raw) - position
        if available < CHUNK_HEADER.size_bytes:
            raise Corrupt("chunk header size", where, position=at, expected=48, found=max(available, 0))
        values = CHUNK_HEADER.unpack(raw, position)
        # Constants first: the other rules mean nothing for bytes that are not a chunk of this version.
        broken = _first_wrong_constant(values.pop("magic"), values["type"], values.pop("reserved"))
        if broken is None:
            header = cls(**values | {"type": ChunkType(values["type"])})
            broken = header._violation()
            if broken is None:
                return header
        raise Corrupt(
            f"chunk {broken.field}",
            where,
            position=at + CHUNK_HEADER.offset_of(broken.field),
            expected=broken.expected,
            found=broken.found,
        )

    def _violation(self) -> _Violation | None:
        """Return the first rule that the fields break, or None."""
        if self.entries < 1:
            return _Violation("entries", "at least 1", self.entries)
        if self.records < self.entries:
            return _Violation("records", f"at least one for each of {self.entries} entries", self.records)
        if self.type is not ChunkType.USER and self.records != 1:
            return _Violation("records", "1 in a tracking chunk", self.records)
        if 0 < self.filter_size_bytes < FILTER_SIZE_BYTES_MIN:
            return _Violation("filter_size_bytes", "0, or 16 to 255", self.filter_size_bytes)
        if self.size_bytes > CHUNK_SIZE_BYTES_MAX:
            return _Violation("data_size_bytes", "a chunk smaller than 4 GiB", self.size_bytes)
        if self.next_offset >= 2**64:
            return _Violation("offset", "a last offset that fits 64 bits", self.offset)
        return None


def _first_wrong_constant(magic: int, type_number: int, reserved: bytes) -> _Violation | None:
    if magic != CHUNK_MAGIC:
        return _Violation("magic", CHUNK_MAGIC, magic)
    if type_number > max(ChunkType):
        return _Violation("type", "0, 1 or 2", type_number)
    if reserved != _RESERVED:
        return _Violation("reserved", _RESERVED.hex(), reserved.hex())
    return None
