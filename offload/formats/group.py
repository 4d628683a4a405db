"""A group: manifest entries of one kind under an object of their own, one entry of the next kind.

```text
header | entries | CRC-32C of all before it
```

Invariants: the entries are all of the next lower kind, ascend by offset and touch each other; the object
never changes, also when a part of what it names was trimmed (the root says from where on it lives); it
says of itself what the entry that names it says of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np

from offload.errors import Corrupt
from offload.formats.checksums import check_sealed, crc32c
from offload.formats.fragment import stream_digest
from offload.formats.keys import StreamKeys
from offload.formats.layout import layout
from offload.formats.root import ENTRY
from offload.model.entry import GROUP_ROOT_VERSION, TOTALS, Entries, EntryKind, check_entries, exact_sum

GROUP_FORMAT_VERSION: Final = 1
GROUP_MAGIC: Final = b"OLMG"

GROUP_HEADER: Final = layout(
    "Group header",
    ("magic", "4s", "`OLMG`"),
    ("format_version", "H", "1; a reader refuses any other"),
    ("kind", "B", "1 group, 2 kilo-group, 3 mega-group"),
    ("reserved", "B", "zero, and refused otherwise"),
    ("stream_digest", "32s", "SHA-256 of the stream's name"),
    ("incarnation", "16s", "UUID of the stream's incarnation"),
    ("uid", "16s", "UUID of this object"),
    ("version", "Q", "version of the root that it was made for"),
    ("entry_count", "I", "number of entries"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """One group object, decoded. Immutable."""

    stream: str
    incarnation: UUID
    kind: EntryKind
    uid: UUID
    version: int
    """Of the root that it was made for: once that number is decided, so is whether the group is named."""

    entries: Entries

    @property
    def key(self) -> str:
        """Where the object is."""
        first_offset = int(self.entries["first_offset"][0])
        return StreamKeys(self.stream).group(first_offset, self.version, self.uid, self.kind)

    def encode(self) -> bytes:
        """The object's bytes."""
        header = GROUP_HEADER.pack(
            magic=GROUP_MAGIC,
            format_version=GROUP_FORMAT_VERSION,
            kind=self.kind,
            reserved=0,
            stream_digest=stream_digest(self.stream),
            incarnation=self.incarnation.bytes,
            uid=self.uid.bytes,
            version=self.version,
            entry_count=len(self.entries),
        )
        body = header + self.entries.tobytes()
        return body + crc32c(body).to_bytes(4, "big")

    def entry(self, raw: bytes) -> Entries:
        """The one entry that names the object whose bytes are `raw`."""
        children = self.entries
        row = {
            "first_offset": int(children["first_offset"][0]),
            "records": exact_sum(children["records"]),
            "first_timestamp_ms": int(children["first_timestamp_ms"].min()),
            "last_timestamp_ms": int(children["last_timestamp_ms"].max()),
            "ledgers": exact_sum(children["ledgers"]),
            **{total: exact_sum(children[total]) for total in TOTALS},
        }
        packed = ENTRY.pack(
            **row,
            **{GROUP_ROOT_VERSION: self.version},
            attempt=self.uid.bytes,
            checksum=crc32c(raw),
            kind=self.kind,
            copied=0,
            reserved=bytes(2),
        )
        return np.frombuffer(packed, ENTRY.dtype)

    @classmethod
    def decode(cls, raw: bytes, *, stream: str, where: str) -> Group:
        """Undo `encode`. Raises `Corrupt` where any bit is off, `UnsupportedFormat` for another version."""
        fields = _header_of(raw, where)
        if fields["stream_digest"] != stream_digest(stream):
            found = fields["stream_digest"].hex()
            raise Corrupt("group stream", where, expected=stream_digest(stream).hex(), found=found)
        entries = np.frombuffer(raw, ENTRY.dtype, count=fields["entry_count"], offset=GROUP_HEADER.size_bytes)
        begin = int(entries["first_offset"][0])
        end = int(entries["first_offset"][-1]) + int(entries["records"][-1])
        check_entries(entries, begin, end % 2**64, where=where)
        if (entries["kind"] != fields["kind"] - 1).any():
            raise Corrupt("entry kind", where, expected=fields["kind"] - 1, found="another kind")
        return cls(
            stream=stream,
            incarnation=UUID(bytes=fields["incarnation"]),
            kind=EntryKind(fields["kind"]),
            uid=UUID(bytes=fields["uid"]),
            version=fields["version"],
            entries=entries,
        )


def group_size_bytes(entries: int) -> int:
    """The size of a group's object with so many entries."""
    return GROUP_HEADER.size_bytes + entries * ENTRY.size_bytes + 4


def _header_of(raw: bytes, where: str) -> dict[str, Any]:
    if len(raw) < group_size_bytes(1):
        raise Corrupt("group size", where, expected=f">= {group_size_bytes(1)}", found=len(raw))
    fields = GROUP_HEADER.unpack(raw)
    if fields["magic"] != GROUP_MAGIC:
        raise Corrupt("group magic", where, expected=GROUP_MAGIC, found=fields["magic"])
    check_sealed("group", raw, version=fields["format_version"], known=GROUP_FORMAT_VERSION, where=where)
    if fields["reserved"] or not EntryKind.GROUP <= fields["kind"] <= EntryKind.MEGA_GROUP:
        raise Corrupt("group kind", where, expected="1 to 3", found=fields["kind"])
    size = group_size_bytes(fields["entry_count"])
    if size != len(raw):
        raise Corrupt("group size", where, expected=size, found=len(raw))
    return fields
