"""Fragments of version 1, which releases up to 0.2 wrote. They are read as fragments of today's version.

```text
header | chunks, back to back and verbatim | index | description | trailer
0        16                                  index_start           size - 180
```

The index is a run of records, one per chunk. There are no sections, no codec and no key.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.formats.layout import layout
from offload.ground.errors import Corrupt, UnsupportedFormat
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable

INDEX_RECORD_1: Final = layout(
    "Fragment index record of version 1, one per chunk, in order",
    ("offset", "Q", "offset of the chunk's first record"),
    ("timestamp_ms", "q", "the chunk's timestamp, milliseconds since the Unix epoch"),
    ("position", "Q", "byte position of the stored chunk within this object"),
    ("size_bytes", "I", "length of the stored chunk: header, filter, data and trailer"),
    ("records", "I", "number of offsets that the chunk takes"),
    ("type", "B", "0 user, 1 tracking delta, 2 tracking snapshot"),
    ("reserved", "3s", "zero, and refused otherwise"),
    ("checksum", "I", "CRC-32 of the whole stored chunk (the chunk's own covers only its data)"),
)

TRAILER_1: Final = layout(
    "Fragment trailer of version 1",
    ("magic", "4s", "`OLFT`"),
    ("version", "H", "1"),
    ("codec", "B", "zero, and refused otherwise"),
    ("copied", "B", "1: a copy of committed fragments, made to replace them; 0: made from a source"),
    ("key_id", "16s", "zero, and refused otherwise"),
    ("stream_digest", "32s", "SHA-256 of the stream's name"),
    ("incarnation", "16s", "UUID of the stream's incarnation"),
    ("attempt", "16s", "UUID of the attempt that wrote this object"),
    ("ledger_id", "Q", "the ledger that was copied"),
    ("epoch", "Q", "epoch of the writer; in a copy, that of the first copied fragment"),
    ("base_version", "Q", "version of the newest root that the writer knew"),
    ("first_offset", "Q", "offset of the first record"),
    ("next_offset", "Q", "first offset after the last record"),
    ("messages", "Q", "records in user chunks; the rest are tracking records"),
    ("first_timestamp_ms", "q", "the least timestamp of any chunk"),
    ("last_timestamp_ms", "q", "the greatest timestamp of any chunk"),
    ("index_start", "Q", "byte position of the index: 16 + the size of all chunks"),
    ("index_count", "I", "number of index records, and of chunks"),
    ("description_size_bytes", "I", "length of the description, both texts included"),
    ("data_checksum", "I", "CRC-32C of every byte before the index: header and chunks"),
    ("index_checksum", "I", "CRC-32C of index and description"),
    ("checksum", "I", "CRC-32C of the trailer before this field"),
)

_SAME: Final = (
    "stream_digest", "ledger_id", "epoch", "base_version", "first_offset", "next_offset", "messages",
    "first_timestamp_ms", "last_timestamp_ms", "data_checksum", "copied",
)  # fmt: skip
"""The fields that mean the same in both versions."""


def trailer_fields(raw: bytes, *, header_size_bytes: int, where: str) -> dict[str, Any]:
    """Return a trailer of version 1, whose checksum was checked, as the fields of today's `FragmentTrailer`.

    Raises `UnsupportedFormat` if it names a codec or a key: no program writes such a fragment.
    """
    fields = TRAILER_1.unpack(raw)
    if fields["codec"] or fields["key_id"] != bytes(16):
        raise UnsupportedFormat(f"{where}: its chunks are compressed or encrypted; upgrade the program")
    count = fields["index_count"]
    tail_size_bytes = count * INDEX_RECORD_1.size_bytes + fields["description_size_bytes"]
    return {name: fields[name] for name in _SAME} | {
        "version": 1,
        "incarnation": UUID(bytes=fields["incarnation"]),
        "attempt": UUID(bytes=fields["attempt"]),
        "data_size_bytes": max(fields["index_start"] - header_size_bytes, 0),
        "size_bytes": fields["index_start"] + tail_size_bytes + TRAILER_1.size_bytes,
        "tail_start": fields["index_start"],
        "chunk_count": count,
        "section_count": 0,
        "tail_checksum": fields["index_checksum"],
    }


def tail_parts_of(
    raw: bytes, *, count: int, position: int, where: str
) -> tuple[ChunkTable, npt.NDArray[np.uint32], bytes]:
    """Return chunk table, checksums of chunks, and description from the bytes of index and description.

    `position` is that of `raw` in the object. Raises `Corrupt` if reserved bytes are not zero, or if offsets
    or positions are not those of chunks that follow each other.
    """
    index = np.frombuffer(raw, INDEX_RECORD_1.dtype, count=count)
    table = np.empty(count, CHUNK_TABLE)
    for name in CHUNK_TABLE.names or ():
        table[name] = index[name]
    faults = (
        ("index reserved bytes", index["reserved"] != np.void(bytes(3))),
        ("index position", _is_apart(table["position"], table["size_bytes"])),
        ("index offset", _is_apart(table["offset"], table["records"])),
    )
    for what, wrong in faults:
        if wrong.any():
            row = int(wrong.argmax())
            at = position + row * INDEX_RECORD_1.size_bytes
            raise Corrupt(what, where, expected="chunks back to back", found=f"record {row}", position=at)
    return table, index["checksum"].astype(np.uint32), raw[count * INDEX_RECORD_1.size_bytes :]


def _is_apart(begins: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that do not begin at the end of the row before them."""
    apart = np.zeros(len(begins), np.bool_)
    apart[1:] = begins[1:] != (begins + sizes)[:-1]
    return apart
