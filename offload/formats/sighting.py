"""A sighting: an object with the names of a stream's objects that a sweep saw condemned, for a later sweep.

```text
header | rows | CRC-32C of all before it
```

A command ends before the readers' grace is over, so it notes the condemned objects in the tier itself. A
later sweep deletes an object if its own judgement condemns the object too and a sighting did so one grace
ago. So a sighting decides nothing alone. If one is lost, damaged or forged, objects stay longer, or a slow
reader loses one early. An object that a root names is never deleted.

Invariants: rows ascend as bytes, and no row occurs twice. The object never changes. The header is checked
before memory is allocated by its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.formats.checksums import check_sealed, crc32c
from offload.formats.fragment_trailer import stream_digest
from offload.formats.layout import layout
from offload.ground.errors import Corrupt

SIGHTING_FORMAT_VERSION: Final = 1
SIGHTING_MAGIC: Final = b"OLSG"
ROWS_MAX: Final = 2**18

SIGHTING_HEADER: Final = layout(
    "Sighting header",
    ("magic", "4s", "`OLSG`"),
    ("format_version", "H", "1; a reader refuses any other"),
    ("reserved", "H", "zero, and refused otherwise"),
    ("stream_digest", "32s", "SHA-256 of the stream's name"),
    ("uid", "16s", "UUID of this object"),
    ("time_ms", "Q", "time at which it was written, by the sweep's wall clock: no row was seen later"),
    ("version", "Q", "version of the root by which its first row was judged"),
    ("row_count", "I", "number of rows, at most 262,144"),
)

SIGHTING_ROW: Final = layout(
    "Sighting row",
    ("kind", "B", "0 fragment or companion, 1 group, 2 kilo-group, 3 mega-group, 4 root, 5 key object"),
    ("first_offset", "Q", "first offset of the object; zero for a root; key object: 1 for `.copy`, else 0"),
    (
        "version",
        "Q",
        "group: the root it was made for; root: its own; companion: name; key object: generation",
    ),
    ("uid", "16s", "UUID of the attempt, of the group, or of the stream's key; zero for a root"),
)
assert SIGHTING_ROW.size_bytes == 33

ROOT_KIND: Final = 4
KEY_KIND: Final = 5
SIZE_BYTES_MAX: Final = SIGHTING_HEADER.size_bytes + ROWS_MAX * SIGHTING_ROW.size_bytes + 4

SightingRows = npt.NDArray[np.void]
"""Names of objects as stored: an array of `SIGHTING_ROW.dtype`."""

NO_ROWS: Final[SightingRows] = np.empty(0, SIGHTING_ROW.dtype)


def as_bytes(rows: SightingRows) -> npt.NDArray[np.bytes_]:
    """Return the same memory as byte strings, which NumPy compares and sorts in the order of the bytes."""
    # NumPy drops zeros from the end of a byte string. That changes no comparison: all have one length.
    return np.ascontiguousarray(rows).view(f"S{SIGHTING_ROW.size_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sighting:
    """One sighting, decoded. Immutable. Fields as in `SIGHTING_HEADER`."""

    stream: str
    uid: UUID
    time_ms: int
    version: int
    rows: SightingRows

    def encode(self) -> bytes:
        """Return the object's bytes."""
        header = SIGHTING_HEADER.pack(
            magic=SIGHTING_MAGIC,
            format_version=SIGHTING_FORMAT_VERSION,
            reserved=0,
            stream_digest=stream_digest(self.stream),
            uid=self.uid.bytes,
            time_ms=self.time_ms,
            version=self.version,
            row_count=len(self.rows),
        )
        body = header + self.rows.tobytes()
        return body + crc32c(body).to_bytes(4, "big")

    @classmethod
    def decode(cls, raw: bytes, *, stream: str, where: str) -> Sighting:
        """Undo `encode`.

        Raises `Corrupt` for any damaged bit, and `UnsupportedFormat` for another version.
        """
        fields = _header_of(raw, where)
        if fields["stream_digest"] != stream_digest(stream):
            found = fields["stream_digest"].hex()
            raise Corrupt("sighting stream", where, expected=stream_digest(stream).hex(), found=found)
        rows = np.frombuffer(
            raw, SIGHTING_ROW.dtype, count=fields["row_count"], offset=SIGHTING_HEADER.size_bytes
        )
        names = as_bytes(rows)
        if (names[1:] <= names[:-1]).any() or (rows["kind"] > KEY_KIND).any():
            raise Corrupt("sighting rows", where, expected="known kinds, in order", found="others")
        return cls(
            stream=stream,
            uid=UUID(bytes=fields["uid"]),
            time_ms=fields["time_ms"],
            version=fields["version"],
            rows=rows,
        )


def _header_of(raw: bytes, where: str) -> dict[str, Any]:
    least = SIGHTING_HEADER.size_bytes + 4
    if len(raw) < least:
        raise Corrupt("sighting size", where, expected=f">= {least}", found=len(raw))
    fields = SIGHTING_HEADER.unpack(raw)
    if fields["magic"] != SIGHTING_MAGIC:
        raise Corrupt("sighting magic", where, expected=SIGHTING_MAGIC, found=fields["magic"])
    check_sealed(
        "sighting", raw, version=fields["format_version"], known=SIGHTING_FORMAT_VERSION, where=where
    )
    size = least + fields["row_count"] * SIGHTING_ROW.size_bytes
    if fields["row_count"] > ROWS_MAX or size != len(raw):
        raise Corrupt("sighting size", where, expected=size, found=len(raw))
    if fields["reserved"]:
        raise Corrupt("sighting reserved bytes", where, expected=0, found=fields["reserved"], position=6)
    return fields
