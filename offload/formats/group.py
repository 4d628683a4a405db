"""A group: an object with manifest entries of one kind, for which a manifest has one entry of the next kind.

```text
header | entries | CRC-32C of all before it
```

Invariants:

- All entries are of the next lower kind, ascend by offset and touch each other.
- The object never changes, even if some of its fragments are trimmed. The root's first offset says which
  still live.
- The object agrees with the entry that names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np

from offload.formats.checksums import check_sealed, crc32c
from offload.formats.fragment_trailer import stream_digest
from offload.formats.keys import StreamKeys
from offload.formats.layout import layout
from offload.formats.older_manifests import ENTRY_2, upgraded_entries
from offload.formats.root import ENTRY
from offload.ground.errors import Corrupt
from offload.model.entry import TOTALS, Entries, EntryKind, check_entries, exact_sum

GROUP_FORMAT_VERSION: Final = 2
GROUP_MAGIC: Final = b"OLMG"

GROUP_HEADER: Final = layout(
    "Group header",
    ("magic", "4s", "`OLMG`"),
    ("format_version", "H", "2; a reader also knows 1, and refuses any other"),
    ("kind", "B", "1 group, 2 kilo-group, 3 mega-group"),
    ("reserved", "B", "zero, and refused otherwise"),
    ("stream_digest", "32s", "SHA-256 of the stream's name"),
    ("incarnation", "16s", "UUID of the stream's incarnation"),
    ("uid", "16s", "UUID of this object"),
    ("version", "Q", "version of the root for which it was made"),
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
    """The version of the root for which it was made.

    When that root exists, it names the group or no root does.
    """

    entries: Entries
    size_bytes: int = 0
    """The size of the object that was decoded. It depends on the version; 0 if the group was not decoded."""

    @property
    def key(self) -> str:
        """The key of the object."""
        first_offset = int(self.entries["first_offset"][0])
        return StreamKeys(self.stream).group(first_offset, self.version, self.uid, self.kind)

    def encode(self) -> bytes:
        """Return the object's bytes."""
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
        """Return the one entry that names this group, whose object has the bytes `raw`."""
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
            ledger_id=0,
            root_version=self.version,
            attempt=self.uid.bytes,
            checksum=crc32c(raw),
            tail_size_bytes=0,
            kind=self.kind,
            copied=0,
            codec=0,
            encrypted=0,
            reserved=bytes(4),
        )
        return np.frombuffer(packed, ENTRY.dtype)

    @classmethod
    def decode(cls, raw: bytes, *, stream: str, where: str) -> Group:
        """Undo `encode`.

        Raises `Corrupt` for any damaged bit, and `UnsupportedFormat` for another version.
        """
        fields = _header_of(raw, where)
        if fields["stream_digest"] != stream_digest(stream):  # a sound object, but under a wrong key
            found = fields["stream_digest"].hex()
            raise Corrupt("group stream", where, expected=stream_digest(stream).hex(), found=found)
        rows = raw[GROUP_HEADER.size_bytes : -4]
        if fields["format_version"] == GROUP_FORMAT_VERSION:
            entries = np.frombuffer(rows, ENTRY.dtype)
        else:
            entries = upgraded_entries(rows, ENTRY_2, where=where)
        begin = int(entries["first_offset"][0])
        end = int(entries["first_offset"][-1]) + int(entries["records"][-1])
        check_entries(entries, begin, end % 2**64, where=where)
        if (entries["kind"] != fields["kind"] - 1).any():
            raise Corrupt("entry kind", where, expected=fields["kind"] - 1, found="another kind")
        # No entry can name such a group, and the comparison with its entry could not be made.
        for name in ("ledgers", *TOTALS):
            most = 2 ** (8 * ENTRY.dtype[name].itemsize) - 1
            if (found := exact_sum(entries[name])) > most:
                raise Corrupt(f"sum of {name}", where, expected=f"<= {most}", found=found)
        return cls(
            stream=stream,
            incarnation=UUID(bytes=fields["incarnation"]),
            kind=EntryKind(fields["kind"]),
            uid=UUID(bytes=fields["uid"]),
            version=fields["version"],
            entries=entries,
            size_bytes=len(raw),
        )


def _header_of(raw: bytes, where: str) -> dict[str, Any]:
    least = GROUP_HEADER.size_bytes + min(ENTRY.size_bytes, ENTRY_2.size_bytes) + 4
    if len(raw) < least:
        raise Corrupt("group size", where, expected=f">= {least}", found=len(raw))
    fields = GROUP_HEADER.unpack(raw)
    if fields["magic"] != GROUP_MAGIC:
        raise Corrupt("group magic", where, expected=GROUP_MAGIC, found=fields["magic"])
    is_old = fields["format_version"] == 1
    known = 1 if is_old else GROUP_FORMAT_VERSION
    check_sealed("group", raw, version=fields["format_version"], known=known, where=where)
    if fields["reserved"] or not EntryKind.GROUP <= fields["kind"] <= EntryKind.MEGA_GROUP:
        raise Corrupt("group kind", where, expected="1 to 3", found=fields["kind"])
    entry_size_bytes = (ENTRY_2 if is_old else ENTRY).size_bytes
    size = GROUP_HEADER.size_bytes + fields["entry_count"] * entry_size_bytes + 4
    if size != len(raw) or not fields["entry_count"]:
        raise Corrupt("group size", where, expected=size, found=len(raw))
    return fields
