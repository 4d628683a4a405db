"""A shared note: one object of the sequence of a small value that several processes change.

```text
header | UUIDs of the objects before it | value | CRC-32C of all before it
```

The value is bytes of whoever uses the note. `native.shared_note` has the rules by which it changes.

Invariants: the object never changes. It is sound under its own key alone: a stranger's, or one that was
copied to another place, is damage. The UUIDs are those of the numbers just below, the nearest one first. The
header is checked before memory is allocated by its numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from offload.formats.checksums import check_sealed, crc32c
from offload.formats.keys import NoteName, StreamKeys
from offload.formats.layout import layout
from offload.ground.errors import Corrupt

__all__ = ["NOTE_VALUE_SIZE_BYTES_MAX"]

NOTE_FORMAT_VERSION: Final = 1
NOTE_MAGIC: Final = b"OLNT"
NOTE_VALUE_SIZE_BYTES_MAX: Final = 64 * 2**10
NOTE_PARENTS_MAX: Final = 32

SHARED_NOTE_HEADER: Final = layout(
    "Shared note header",
    ("magic", "4s", "`OLNT`"),
    ("format_version", "H", "1; a reader refuses any other"),
    ("reserved", "H", "zero, and refused otherwise"),
    ("key_digest", "32s", "SHA-256 of the object's key, which has stream, name, incarnation and number"),
    ("base_version", "Q", "version of a root of this incarnation that its author had seen"),
    ("uid", "16s", "UUID of this object"),
    ("parent_count", "I", "number of UUIDs behind the header, at most 32 and below the object's number"),
    ("value_size", "I", "bytes of the value, at most 65,536"),
)
assert SHARED_NOTE_HEADER.size_bytes == 72
_LEAST: Final = SHARED_NOTE_HEADER.size_bytes + 4
NOTE_OBJECT_SIZE_BYTES_MAX: Final = _LEAST + 16 * NOTE_PARENTS_MAX + NOTE_VALUE_SIZE_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteObject:
    """One object, decoded. Immutable. Fields as in `SHARED_NOTE_HEADER`."""

    name: NoteName
    base_version: int
    uid: UUID
    parents: tuple[UUID, ...] = ()
    value: bytes

    def encode(self, keys: StreamKeys) -> bytes:
        """Return the object's bytes, for the key that a stream with these keys gives it."""
        header = SHARED_NOTE_HEADER.pack(
            magic=NOTE_MAGIC,
            format_version=NOTE_FORMAT_VERSION,
            reserved=0,
            key_digest=_digest(keys.note(self.name)),
            base_version=self.base_version,
            uid=self.uid.bytes,
            parent_count=len(self.parents),
            value_size=len(self.value),
        )
        body = b"".join((header, *(uid.bytes for uid in self.parents), self.value))
        return body + crc32c(body).to_bytes(4, "big")

    @classmethod
    def decode(cls, raw: bytes, name: NoteName, *, where: str) -> NoteObject:
        """Undo `encode` for the object under the key `where`, which has this name.

        Raises `Corrupt` for any damaged bit and for a stranger's object, and `UnsupportedFormat` for another
        version.
        """
        if not _LEAST <= len(raw) <= NOTE_OBJECT_SIZE_BYTES_MAX:
            possible = f"{_LEAST} to {NOTE_OBJECT_SIZE_BYTES_MAX}"
            raise Corrupt("note size", where, expected=possible, found=len(raw))
        fields = SHARED_NOTE_HEADER.unpack(raw)
        if fields["magic"] != NOTE_MAGIC:
            raise Corrupt("note magic", where, expected=NOTE_MAGIC, found=fields["magic"])
        check_sealed("note", raw, version=fields["format_version"], known=NOTE_FORMAT_VERSION, where=where)
        count, size_bytes = fields["parent_count"], fields["value_size"]
        value_start = SHARED_NOTE_HEADER.size_bytes + 16 * count
        checks: tuple[tuple[str, object, object], ...] = (
            ("note reserved bytes", 0, fields["reserved"]),
            ("note key", _digest(where).hex(), fields["key_digest"].hex()),
            ("note parents", min(NOTE_PARENTS_MAX, name.number - 1), count),
            ("note size", value_start + size_bytes + 4, len(raw)),
        )
        for what, expected, found in checks:
            if expected != found:
                raise Corrupt(what, where, expected=expected, found=found)
        uids = (raw[at : at + 16] for at in range(SHARED_NOTE_HEADER.size_bytes, value_start, 16))
        return cls(
            name=name,
            base_version=fields["base_version"],
            uid=UUID(bytes=fields["uid"]),
            parents=tuple(UUID(bytes=uid) for uid in uids),
            value=raw[value_start:-4],
        )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
