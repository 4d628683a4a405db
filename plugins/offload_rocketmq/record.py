"""A record of RocketMQ's commit log, as bytes and as columns of many records.

```text
head        RECORD_HEAD, 48 bytes
born host   address of 4 or 16 bytes | port (4 bytes)
store time  8 bytes
store host  address of 4 or 16 bytes | port (4 bytes)
retries     reconsume times (4 bytes) | prepared transaction offset (8 bytes)
body        size (4 bytes) | body, perhaps compressed
topic       size (1 byte, in version 2: 2 bytes) | UTF-8
properties  size (2 bytes, signed) | name 01 value 02 | name 01 value 02 | ...
```

Integers are big-endian and signed. The rest of a log file behind its last record begins with a blank record:
`BLANK_HEAD`, and undefined bytes. The source is RocketMQ 5.3.3: `MessageExtEncoder`, `MessageDecoder`,
`CommitLog`.

Invariant: no column leads out of its record. A record whose parts do not fill it exactly is not sound.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property
from ipaddress import ip_address
from typing import Final

import numpy as np
import numpy.typing as npt

from offload.formats.checksums import crc32
from offload.formats.layout import layout
from offload.formats.patterns import words_at
from offload.model.record_columns import Bytes, Integers, RecordBytes

__all__ = [
    "BLANK_MAGIC",
    "BODY_CRC_MASK",
    "COMPRESSION_SHIFT",
    "RecordColumns",
    "SysFlag",
    "host_text",
    "parse_properties",
    "property_crc_agrees",
]

MAGICS: Final = (0xDAA320A7, 0xDAA320AB)
"""Of versions 1 and 2, which differ in the size of the topic's length."""

BLANK_MAGIC: Final = 0xCBD43194

RECORD_HEAD: Final = layout(
    "Record head",
    ("size_bytes", "i", "the whole record, this field included"),
    ("magic", "I", "`DA A3 20 A7` in version 1, `DA A3 20 AB` in version 2"),
    ("body_crc", "i", "CRC-32 of the stored body, without its top bit"),
    ("queue_id", "i", "the number of the queue"),
    ("flag", "i", "of the application"),
    ("queue_offset", "q", "the offset in the queue"),
    ("physical_offset", "q", "the position in the commit log that holds it"),
    ("sys_flag", "i", "`SysFlag`, and the compression in bits 8 to 10"),
    ("born_ms", "q", "milliseconds since 1970 by the producer's clock"),
)
assert RECORD_HEAD.size_bytes == 48

BLANK_HEAD: Final = layout(
    "Blank record",
    ("size_bytes", "i", "up to the end of the file"),
    ("magic", "I", "`CB D4 31 94`"),
)
assert BLANK_HEAD.size_bytes == 8

RECORD_SIZE_BYTES_MIN: Final = 91
"""Without topic, body and properties, with both hosts in IPv4."""

COMPRESSION_SHIFT: Final = 8
_HOST_6_MORE: Final = 12
_CRC_NAME: Final = b"__CRC32#\x01"
_CRC_SIZE_BYTES: Final = 20
BODY_CRC_MASK: Final = 0x7FFFFFFF
"""RocketMQ keeps a CRC-32 without its top bit."""


class SysFlag(IntFlag):
    """The bits of `sys_flag` that have a name. Bits 8 to 10 are the compression of the body."""

    COMPRESSED = 1
    MULTI_TAGS = 2
    PREPARED = 4
    COMMITTED = 8
    ROLLED_BACK = 12
    BORN_HOST_6 = 16
    STORE_HOST_6 = 32
    NEEDS_UNWRAP = 64
    INNER_BATCH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSlices:
    """One field of each record: where it begins in the buffer, and its size."""

    starts: Integers
    sizes: Integers

    def of(self, data: Bytes, row: int) -> bytes:
        """Return a copy of the field of one record."""
        start = int(self.starts[row])
        return data[start : start + int(self.sizes[row])].tobytes()


@dataclass(frozen=True, kw_only=True)
class RecordColumns:
    """The fields of many records, one row each. Those of a row that is not sound mean nothing.

    A field of such a row lies at the beginning of the buffer, and is empty.
    """

    records: RecordBytes
    heads: npt.NDArray[np.void]
    """The fields of `RECORD_HEAD`, by name."""

    store_ms: Integers
    """The time at which the broker stored the record, in milliseconds since 1970."""

    reconsume_times: Integers
    prepared_offset: Integers
    body: FieldSlices
    topic: FieldSlices
    properties: FieldSlices
    is_sound: npt.NDArray[np.bool_]
    """True if the record has the size that was expected, a known magic, and parts that fill it exactly."""

    @classmethod
    def of(cls, records: RecordBytes) -> RecordColumns:
        """Return the columns of these records. Reads no body. Allocates some 200 bytes for each record."""
        data, starts, sizes = records.data, records.starts, records.sizes
        sound = (starts >= 0) & (sizes >= RECORD_SIZE_BYTES_MIN) & (starts <= len(data) - sizes)
        starts = np.where(sound, starts, 0)
        heads = _gathered(data, starts, RECORD_HEAD.dtype)
        sound &= (heads["size_bytes"] == sizes) & np.isin(heads["magic"], MAGICS)
        more_born = _HOST_6_MORE * ((heads["sys_flag"] & SysFlag.BORN_HOST_6) != 0)
        more = more_born + _HOST_6_MORE * ((heads["sys_flag"] & SysFlag.STORE_HOST_6) != 0)

        body_at = starts + 88 + more
        body_size = _integers(data, body_at - 4, ">i4")
        room = sizes - (RECORD_SIZE_BYTES_MIN - 3) - more
        sound &= (body_size >= 0) & (body_size <= room - 3)
        body_size = np.where(sound, body_size, 0)

        width = 1 + (heads["magic"] == MAGICS[1])
        topic_at = body_at + body_size + width
        first, second = (_integers(data, topic_at - each, "u1") for each in (width, 1))
        topic_size = np.where(width == 2, first << 8 | second, first)
        sound &= topic_size <= room - body_size - width - 2

        properties_at = topic_at + np.where(sound, topic_size, 0) + 2
        properties_size = _integers(data, properties_at - 2, ">i2")
        sound &= (properties_size >= 0) & (properties_at + properties_size == starts + sizes)

        def slices(at: Integers, size_bytes: Integers) -> FieldSlices:
            return FieldSlices(starts=np.where(sound, at, 0), sizes=np.where(sound, size_bytes, 0))

        return cls(
            records=records,
            heads=heads,
            store_ms=_integers(data, starts + 56 + more_born, ">i8"),
            reconsume_times=_integers(data, starts + 72 + more, ">i4"),
            prepared_offset=_integers(data, starts + 76 + more, ">i8"),
            body=slices(body_at, body_size),
            topic=slices(topic_at, topic_size),
            properties=slices(properties_at, properties_size),
            is_sound=sound,
        )

    @cached_property
    def hosts(self) -> tuple[FieldSlices, FieldSlices]:
        """The born host and the store host of each sound record, each an address and a port."""
        found, at = list[FieldSlices](), np.where(self.is_sound, self.records.starts, 0) + 48
        for bit in (SysFlag.BORN_HOST_6, SysFlag.STORE_HOST_6):
            sizes = 8 + _HOST_6_MORE * ((self.heads["sys_flag"] & bit) != 0)
            found.append(FieldSlices(starts=at, sizes=np.where(self.is_sound, sizes, 0)))
            at = at + sizes + 8  # behind the born host is the store time
        return found[0], found[1]


def store_times(data: Bytes, starts: Integers) -> Integers:
    """Return the store time of the record at each position, unchecked. Positions may lead out of `data`."""
    flags = _integers(data, starts + RECORD_HEAD.offset_of("sys_flag"), ">i4")
    return _integers(data, starts + 56 + _HOST_6_MORE * ((flags & SysFlag.BORN_HOST_6) != 0), ">i8")


def property_crc_agrees(record: bytes) -> bool | None:
    """Return whether a sound record agrees with the checksum at the end of its properties. None without one.

    The store appends it if `enabledAppendPropCRC` is set: ten digits, the least significant first. Without
    this setting, a producer may have written a property of this name.
    """
    stored = record[-_CRC_SIZE_BYTES:]
    digits = stored[len(_CRC_NAME) : -1]
    if not stored.startswith(_CRC_NAME) or stored[-1:] != b"\x02" or not digits.isdigit():
        return None
    return int(digits[::-1]) == crc32(memoryview(record)[:-_CRC_SIZE_BYTES]) & BODY_CRC_MASK


def parse_properties(raw: bytes) -> dict[str, str]:
    """Return properties by name, as RocketMQ's clients read them.

    The last end may be missing. Pairs without a name or a value are left out. Of equal names the last counts.
    A value may contain the byte 01. Bytes that are no UTF-8 become U+FFFD.
    """
    found = dict[str, str]()
    for pair in raw.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            found[name.decode(errors="replace")] = value.decode(errors="replace")
    return found


def host_text(raw: bytes) -> str:
    """Return a host as `10.0.0.1:54321` or `[::1]:54321`. `raw` has 8 or 20 bytes."""
    address, port = ip_address(raw[:-4]), int.from_bytes(raw[-4:], "big", signed=True)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _gathered(data: Bytes, at: Integers, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Return the row of this type at each position, or any bytes if it is not in the data."""
    rows = np.ndarray((max(len(data) - dtype.itemsize + 1, 0),), dtype, data, strides=(1,))
    if not len(rows) or not len(at):
        return np.zeros(len(at), dtype)
    return rows[np.clip(at, 0, len(rows) - 1)]


def _integers(data: Bytes, at: Integers, code: str) -> Integers:
    """Return the integer at each position, or any number if it is not in the data."""
    words = words_at(data, code)
    if not len(words) or not len(at):
        return np.zeros(len(at), np.int64)
    return words[np.clip(at, 0, len(words) - 1)].astype(np.int64)
