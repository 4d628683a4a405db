"""The fragment: one immutable object that holds a run of a ledger's chunks and describes itself.

```text
header | chunks, back to back and verbatim | index | description | trailer
0        16                                  index_start           size - 180
```

The trailer has a fixed size and sits last. The header has a fixed size too, so the index begins
right behind `16 + data size`, and a reader that holds the manifest's entry fetches index,
description and trailer with one exact range; one that holds only the key fetches them with a suffix.

Invariants: the chunks' offsets run from `first_offset` to `next_offset` without hole or overlap;
their bytes lie back to back; every byte of the object is under one of three checksums (the bytes
before the index; index and description; the trailer); the object names its stream, incarnation,
ledger, attempt and first offset, so that an object under a wrong key, or a manifest lost
altogether, is found out from the object alone.

Room is kept for a codec and an encryption key per fragment: both are zero in version 1 and
refused otherwise. Chunk boundaries, and with them range reads, would survive either.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.errors import Corrupt, UnsupportedFormat
from offload.formats.checksums import check_sealed, crc32c
from offload.formats.keys import escape
from offload.formats.layout import layout
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable, ChunkType

FRAGMENT_FORMAT_VERSION: Final = 1
HEADER_MAGIC: Final = b"OLFH"
TRAILER_MAGIC: Final = b"OLFT"
NO_KEY: Final = bytes(16)
SOURCE_EPOCH: Final = "offload.source_epoch"
"""The one text of the description that is read back: by a rebuild, if all roots are lost."""

HEADER: Final = layout(
    "Fragment header",
    ("magic", "4s", "`OLFH`"),
    ("version", "H", "1; a reader refuses any other"),
    ("reserved", "10s", "zero, and refused otherwise"),
)

INDEX_RECORD: Final = layout(
    "Fragment index record, one per chunk, in order",
    ("offset", "Q", "offset of the chunk's first record"),
    ("timestamp_ms", "q", "the chunk's timestamp, milliseconds since the Unix epoch"),
    ("position", "Q", "byte position of the stored chunk within this object"),
    ("size_bytes", "I", "length of the stored chunk: header, filter, data and trailer"),
    ("records", "I", "how many offsets the chunk takes"),
    ("type", "B", "0 user, 1 tracking delta, 2 tracking snapshot"),
    ("reserved", "3s", "zero, and refused otherwise"),
    ("checksum", "I", "CRC-32 of the whole stored chunk (the chunk's own covers its data alone)"),
)

DESCRIPTION: Final = layout(
    "Fragment description, followed by the two texts it measures",
    ("stream_size_bytes", "I", "length of the stream's name, UTF-8, which follows"),
    ("metadata_size_bytes", "I", "length of the JSON object for people that follows the name"),
)

TRAILER: Final = layout(
    "Fragment trailer",
    ("magic", "4s", "`OLFT`"),
    ("version", "H", "1; a reader refuses any other"),
    ("codec", "B", "how chunks are transformed; 0: not at all"),
    ("copied", "B", "1: a copy of committed fragments, made to take their place; 0: of a source"),
    ("key_id", "16s", "the encryption key; zero: none"),
    ("stream_digest", "32s", "SHA-256 of the stream's name"),
    ("incarnation", "16s", "UUID of the stream's incarnation"),
    (
        "attempt",
        "16s",
        "UUID of the attempt that wrote this object; of version 8 where it begins with a batch's token",
    ),
    ("ledger_id", "Q", "the ledger that was copied"),
    ("epoch", "Q", "epoch of the writer; of a copy, that of the first fragment that it copies"),
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

FragmentIndex = npt.NDArray[np.void]
"""Index records as stored: an array of `INDEX_RECORD.dtype`."""

FRAGMENT_HEADER: Final = HEADER.pack(magic=HEADER_MAGIC, version=FRAGMENT_FORMAT_VERSION, reserved=bytes(10))


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentTrailer:
    """What a fragment says of itself. Fields as in `TRAILER`."""

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
    index_start: int
    index_count: int
    description_size_bytes: int
    data_checksum: int
    index_checksum: int
    copied: int = 0

    @property
    def size_bytes(self) -> int:
        """Length of the whole object."""
        return self.index_start + self.tail_size_bytes

    @property
    def tail_size_bytes(self) -> int:
        """Length of index, description and trailer."""
        return self.index_count * INDEX_RECORD.size_bytes + self.description_size_bytes + TRAILER.size_bytes

    def encode(self) -> bytes:
        """The trailer's bytes, checksum included."""
        body = TRAILER.pack(
            magic=TRAILER_MAGIC,
            version=FRAGMENT_FORMAT_VERSION,
            codec=0,
            key_id=NO_KEY,
            checksum=0,
            **_raw_fields(self),
        )[:-4]
        return body + crc32c(body).to_bytes(4, "big")

    @classmethod
    def decode(cls, raw: bytes, *, where: str, position: int = 0) -> FragmentTrailer:
        """Undo `encode`. `position` is where in the object `raw` begins, for messages.

        Raises `Corrupt` where any bit is off, `UnsupportedFormat` for another version, a codec or
        a key. Room for more is checked here as well: the parts must add up.
        """
        if len(raw) != TRAILER.size_bytes:
            raise Corrupt(
                "trailer size", where, expected=TRAILER.size_bytes, found=len(raw), position=position
            )
        fields = TRAILER.unpack(raw)
        _expect("trailer magic", where, position, expected=TRAILER_MAGIC, found=fields["magic"])
        check_sealed(
            "trailer",
            raw,
            version=fields["version"],
            known=FRAGMENT_FORMAT_VERSION,
            where=where,
            position=position,
        )
        _expect("trailer copied", where, position, expected=min(fields["copied"], 1), found=fields["copied"])
        if fields["codec"] or fields["key_id"] != NO_KEY:
            raise UnsupportedFormat(f"{where}: its chunks are compressed or encrypted; upgrade to read them")
        trailer = cls(
            incarnation=UUID(bytes=fields["incarnation"]),
            attempt=UUID(bytes=fields["attempt"]),
            **{name: fields[name] for name in _PLAIN_FIELDS},
        )
        records = trailer.next_offset - trailer.first_offset
        if not 0 < trailer.index_count <= records or not 0 <= trailer.messages <= records:
            raise Corrupt(
                "trailer counts", where, expected="1 <= chunks <= records", found=trailer, position=position
            )
        return trailer


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentTail:
    """Everything behind a fragment's chunks, decoded and checked: what a reader needs to find them."""

    trailer: FragmentTrailer
    index: FragmentIndex
    stream: str
    metadata: Mapping[str, str]

    def table(self) -> ChunkTable:
        """The index as a chunk table, its positions within this object."""
        return table_of(self.index)

    @property
    def source_epoch(self) -> int:
        """The broker's leader epoch that the writer knew; 0 if the fragment does not record it."""
        text = self.metadata.get(SOURCE_EPOCH, "")
        return int(text) if re.fullmatch("[0-9]{1,20}", text) and int(text) < 2**64 else 0

    @classmethod
    def decode(cls, raw: bytes, *, where: str, size_bytes: int) -> FragmentTail:
        """Decode the last `len(raw)` bytes of an object of `size_bytes`, which must hold the whole tail.

        Raises `Corrupt` where any bit of index, description or trailer is off.
        """
        begin = size_bytes - len(raw)
        trailer_start = max(len(raw) - TRAILER.size_bytes, 0)
        trailer = FragmentTrailer.decode(raw[trailer_start:], where=where, position=begin + trailer_start)
        _expect("object size", where, 0, expected=trailer.size_bytes, found=size_bytes)
        if begin > trailer.index_start:
            raise Corrupt("index", where, expected=f"from {trailer.index_start}", found=f"from {begin}")
        parts = raw[trailer.index_start - begin : trailer_start]
        _expect(
            "index checksum", where, trailer.index_start, expected=trailer.index_checksum, found=crc32c(parts)
        )
        index = np.frombuffer(parts, INDEX_RECORD.dtype, count=trailer.index_count)
        check_index(index, trailer, where=where)
        description = parts[trailer.index_count * INDEX_RECORD.size_bytes :]
        stream, metadata = _decode_description(description, trailer, where)
        return cls(trailer=trailer, index=index, stream=stream, metadata=metadata)


def table_of(index: FragmentIndex) -> ChunkTable:
    """Index records as a chunk table in native byte order."""
    table = np.empty(len(index), CHUNK_TABLE)
    for name in CHUNK_TABLE.names or ():
        table[name] = index[name]
    return table


def index_of(table: ChunkTable, checksums: npt.NDArray[np.uint32]) -> FragmentIndex:
    """Index records for chunks that stand back to back behind a fragment's header, in order of `table`."""
    index = np.zeros(len(table), INDEX_RECORD.dtype)
    for name in ("offset", "timestamp_ms", "size_bytes", "records", "type"):
        index[name] = table[name]
    sizes = table["size_bytes"]
    index["position"] = HEADER.size_bytes + np.cumsum(sizes) - sizes
    index["checksum"] = checksums
    return index


def encode_description(stream: str, metadata: Mapping[str, str]) -> bytes:
    """The description: the stream's true name, and a JSON object for people who inspect the bucket."""
    name = stream.encode()
    text = json.dumps(dict(metadata), sort_keys=True, separators=(",", ":")).encode() if metadata else b""
    return DESCRIPTION.pack(stream_size_bytes=len(name), metadata_size_bytes=len(text)) + name + text


def stream_digest(stream: str) -> bytes:
    """The 32 bytes by which a trailer names its stream."""
    return hashlib.sha256(stream.encode()).digest()


def check_header(raw: bytes, *, where: str) -> None:
    """Refuse an object that does not begin as a fragment of this version does.

    A fragment's version is that of its trailer, which is decoded first: another one here is damage.
    """
    if len(raw) < HEADER.size_bytes:
        raise Corrupt("header size", where, expected=HEADER.size_bytes, found=len(raw))
    fields = HEADER.unpack(raw)
    _expect("header magic", where, 0, expected=HEADER_MAGIC, found=fields["magic"])
    _expect("header version", where, 4, expected=FRAGMENT_FORMAT_VERSION, found=fields["version"])
    _expect("header reserved bytes", where, 6, expected=bytes(10), found=fields["reserved"])


def check_index(index: FragmentIndex, trailer: FragmentTrailer, *, where: str) -> None:
    """The invariants of the index against its trailer: no hole, no overlap, nothing out of place."""
    sizes, records = index["size_bytes"].astype(np.uint64), index["records"].astype(np.uint64)
    ends = index["position"] + sizes
    nexts = index["offset"] + records
    faults = (
        ("index reserved bytes", index["reserved"] != np.void(bytes(3))),
        ("chunk type", index["type"] > max(ChunkType)),
        ("index records", records == 0),
        ("index position", index["position"] != _shifted(HEADER.size_bytes, ends)),
        ("index offset", index["offset"] != _shifted(trailer.first_offset, nexts)),
    )
    for what, wrong in faults:
        if wrong.any():
            row = int(wrong.argmax())
            at = trailer.index_start + row * INDEX_RECORD.size_bytes
            raise Corrupt(what, where, expected="chunks back to back", found=f"record {row}", position=at)
    _expect("end of chunks", where, trailer.index_start, expected=trailer.index_start, found=int(ends[-1]))
    _expect("next offset", where, trailer.index_start, expected=trailer.next_offset, found=int(nexts[-1]))
    messages = int(records[index["type"] == ChunkType.USER].sum())
    _expect("messages", where, trailer.index_start, expected=trailer.messages, found=messages)


def _shifted(first: int, column: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """What each row should begin with: the first, then the end of the row before. Never by way of floats."""
    return np.concatenate((np.array([first], np.uint64), column[:-1]))


def _decode_description(raw: bytes, trailer: FragmentTrailer, where: str) -> tuple[str, dict[str, str]]:
    at = trailer.index_start + trailer.index_count * INDEX_RECORD.size_bytes
    sizes = DESCRIPTION.unpack(raw) if len(raw) >= DESCRIPTION.size_bytes else None
    if sizes is None or DESCRIPTION.size_bytes + sum(sizes.values()) != len(raw):
        raise Corrupt("description size", where, expected=len(raw), found=sizes, position=at)
    texts = raw[DESCRIPTION.size_bytes :]
    name = texts[: sizes["stream_size_bytes"]]
    try:
        stream = name.decode()
        escape(stream)  # a name that no key can hold
        metadata = json.loads(texts[len(name) :] or b"{}")
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("metadata that is no object of texts")
    except (ValueError, RecursionError) as exc:
        raise Corrupt("description", where, expected="UTF-8 and JSON", found=str(exc), position=at) from exc
    _expect("stream digest", where, at, expected=trailer.stream_digest, found=stream_digest(stream))
    return stream, metadata


def _expect(what: str, where: str, position: int, *, expected: Any, found: Any) -> None:
    if expected != found:
        raise Corrupt(what, where, expected=expected, found=found, position=position)


_PLAIN_FIELDS: Final = tuple(
    name for name in FragmentTrailer.__dataclass_fields__ if name not in {"incarnation", "attempt"}
)


def _raw_fields(trailer: FragmentTrailer) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(trailer, name) for name in _PLAIN_FIELDS}
    return fields | {"incarnation": trailer.incarnation.bytes, "attempt": trailer.attempt.bytes}
