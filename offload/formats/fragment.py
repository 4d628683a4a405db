"""The fragment: one immutable object with a run of a ledger's chunks, which describes itself.

```text
header | chunks, or blocks of chunks | sections that few readers need | sections | directory | trailer
0        16                                                             tail_start             size - 180
```

Chunks are verbatim, or compressed in blocks (`formats.blocks`). Behind them are named sections
(`formats.sections`): `index` and `checksums` have a row for each chunk, `blocks` has one for each block,
`description` has texts. Readers ignore sections that they do not know.

Header and trailer are in `formats.fragment_trailer`. A reader that has the manifest's entry fetches the tail
with one exact range. A reader that has only the key fetches the trailer with a suffix range, and then the
tail.

Invariants:

- The chunks' offsets run from `first_offset` to `next_offset` without hole or overlap, and their plain bytes
  are back to back. A chunk's position is the byte at which it would be if nothing were compressed.
- Every byte of the object is under one of three checksums: the bytes before the tail; the tail up to the
  trailer; the trailer. They are of the stored bytes, so no codec is needed to check them.
- The object names its stream, incarnation, ledger, attempt and first offset. So an object under a wrong key
  is detected from the object alone, and a lost manifest can be rebuilt from such objects.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hmac import compare_digest
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt

from offload.formats.blocks import Blocks
from offload.formats.checksums import crc32c
from offload.formats.chunk import CHUNK_HEADER, check_stored
from offload.formats.fragment_trailer import (
    FRAGMENT_HEADER,
    HEADER,
    TRAILER,
    FragmentTrailer,
    expect,
    stream_digest,
)
from offload.formats.fragment_v1 import tail_parts_of
from offload.formats.keys import escape
from offload.formats.layout import layout
from offload.formats.sealing import KEY_SECTION, TAG_SIZE_BYTES, DataKey
from offload.formats.sections import SECTION, Section, decode_directory, encode_sections, section_of
from offload.ground.errors import Corrupt, Denied, Misuse
from offload.ground.outside import json_outside
from offload.model.chunk_table import CHUNK_TABLE, ChunkTable, ChunkType
from offload.model.compression import Compression

__all__ = ["FragmentTail"]

SECTION_SIZE_BYTES_MAX: Final = 64 * 2**20
"""The most plain bytes of a section that every reader needs. An index of `CHUNKS_MAX` chunks has 17 MiB."""
METADATA_SIZE_BYTES_MAX: Final = 2**20
"""The most bytes of metadata that are written. Every reader of the fragment fetches them."""

SEAL: Final = "seal"
"""The last section of an encrypted fragment: the tag over everything that stays readable."""

KNOWN_SECTIONS: Final = frozenset({"index", "checksums", "blocks", "description", "key", SEAL})
"""The sections that this program writes. All others are those of other programs."""

SOURCE_EPOCH: Final = "offload.source_epoch"
"""The only text of the description that is read back: by a rebuild, if all roots are lost."""

INDEX: Final = layout(
    "Fragment index, one value per chunk in each column",
    ("timestamp_ms", "q", "the chunk's timestamp, less that of the chunk before it; milliseconds since 1970"),
    ("size_bytes", "I", "plain length of the chunk: header, filter, data and trailer"),
    ("records", "I", "number of offsets that the chunk takes"),
    ("type", "B", "0 user, 1 tracking delta, 2 tracking snapshot"),
)
"""The columns of the section `index`, one behind the other: all timestamps, all sizes, and so on.

Offsets and positions are sums, so no hole can be written down. Columns compress better than rows.
"""

CHECKSUM: Final = np.dtype(">u4")
"""A value of the section `checksums`: the CRC-32 of a whole plain chunk. The chunk's own covers its data."""

DESCRIPTION: Final = layout(
    "Fragment description, followed by its two texts",
    ("stream_size_bytes", "I", "length of the stream's name, UTF-8, which follows"),
    ("metadata_size_bytes", "I", "length of the JSON object for people, which follows the name"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentTail:
    """A fragment's tail, decoded and checked. With it a reader finds the chunks."""

    trailer: FragmentTrailer
    table: ChunkTable
    """The chunks. A position is the byte at which a chunk would be if nothing were compressed."""
    checksums: npt.NDArray[np.uint32] | None
    """The CRC-32 of each whole plain chunk. None if they are encrypted, and the tail is not `unlocked`."""
    blocks: Blocks | None
    """The blocks of the chunks; None if the chunks are stored verbatim."""
    sections: Mapping[str, Section]
    """All sections, those of later programs included. A fragment of version 1 has none."""
    stream: str
    metadata: Mapping[str, str]
    raw: bytes = field(default=b"", repr=False)
    """The stored tail of an encrypted fragment, which `unlocked` needs."""
    key: DataKey | None = None

    @property
    def wrapped_key(self) -> tuple[UUID, bytes]:
        """The stream's key that wraps the data key of an encrypted fragment, and the wrapped data key."""
        raw = self._part("key", size_bytes=KEY_SECTION.size_bytes)
        fields = KEY_SECTION.unpack(raw)
        return UUID(bytes=fields["stream_key"]), fields["wrapped"]

    def unlocked(self, raw_key: bytes, *, where: str) -> FragmentTail:
        """Return the tail of an encrypted fragment with the checksums of its chunks, ready to read them.

        Raises `Corrupt` if anything that stays readable, or the order and size of the parts, was changed by
        somebody without the data key.
        """
        trailer = self.trailer
        key = DataKey(
            raw=raw_key,
            incarnation=trailer.incarnation,
            attempt=trailer.attempt,
            first_offset=trailer.first_offset,
        )
        parts = self.raw[: -TRAILER.size_bytes]
        directory = parts[len(parts) - trailer.section_count * SECTION.size_bytes :]
        # Sections before the tail were not fetched. Their rows in the directory have their sizes and
        # checksums.
        bodies = [
            self.raw[each.position - trailer.tail_start : each.stop - trailer.tail_start]
            for each in self.sections.values()
            if each.position >= trailer.tail_start
        ]
        expected, found = key.tag_of(_sealed_text(trailer, bodies[:-1], directory)), bodies[-1]
        if not compare_digest(expected, found):
            # The expected tag would be the one that a forger lacks, and errors end up in logs.
            what, changed = "its own", "changed bytes, or another key"
            raise Corrupt("seal", where, expected=what, found=changed, position=trailer.tail_start)
        stored = self._part("checksums", size_bytes=trailer.chunk_count * CHECKSUM.itemsize, key=key)
        checksums = np.frombuffer(stored, CHECKSUM).astype(np.uint32)
        return replace(self, checksums=checksums, key=key, raw=b"")

    def _part(self, name: str, *, size_bytes: int, key: DataKey | None = None) -> bytes:
        origin, where = self.trailer.tail_start, str(self.trailer.attempt)
        return _part_of(
            self.raw, self.sections, name, size_bytes=size_bytes, key=key, origin=origin, where=where
        )

    @property
    def source_epoch(self) -> int:
        """The broker's leader epoch that the writer knew. 0 if the fragment does not record it."""
        # Anybody may have written the text. `int` would take signs, spaces and underscores, and a rebuild
        # packs the number into 8 bytes.
        text = self.metadata.get(SOURCE_EPOCH, "")
        return int(text) if re.fullmatch("[0-9]{1,20}", text) and int(text) < 2**64 else 0

    @classmethod
    def decode(cls, raw: bytes, *, where: str, size_bytes: int) -> FragmentTail:
        """Decode the last `len(raw)` bytes of an object of `size_bytes`, which must hold the whole tail.

        Raises `Corrupt` for any damaged bit of the tail, and `UnsupportedFormat` as
        `FragmentTrailer.decode` does.
        """
        begin = size_bytes - len(raw)
        trailer_start = max(len(raw) - TRAILER.size_bytes, 0)
        trailer = FragmentTrailer.decode(raw[trailer_start:], where=where, position=begin + trailer_start)
        at = trailer.tail_start
        # An object that lost its begin still ends with a sound trailer.
        expect("object size", where, 0, expected=trailer.size_bytes, found=size_bytes)
        if begin > at:
            raise Corrupt("tail", where, expected=f"from {at}", found=f"from {begin}")
        parts = raw[at - begin : trailer_start]
        # Before any section is parsed, so that the parsers meet only bytes that a program wrote.
        expect("tail checksum", where, at, expected=trailer.tail_checksum, found=crc32c(parts))
        sections, blocks = dict[str, Section](), None
        if trailer.version == 1:
            table, checksums, description = tail_parts_of(
                parts, count=trailer.chunk_count, position=at, where=where
            )
        else:
            directory_start = len(parts) - trailer.section_count * SECTION.size_bytes
            sections = decode_directory(parts[directory_start:], where=where, position=at + directory_start)
            # Otherwise the tail could begin among the chunks, and its checksum would not be that of sections.
            if at not in {section.position for section in sections.values()}:
                raise Corrupt("tail", where, expected="a section at its start", found="none", position=at)
            part = partial(_part_of, parts, sections, origin=at, where=where)
            table = table_of(part("index", size_bytes=trailer.chunk_count * INDEX.size_bytes), trailer)
            # They are sealed: a checksum of plain bytes would confirm a guess of the chunk. See `unlocked`.
            checksums = None
            if not trailer.encrypted:
                stored = part("checksums", size_bytes=trailer.chunk_count * CHECKSUM.itemsize)
                checksums = np.frombuffer(stored, CHECKSUM).astype(np.uint32)
            description = part("description")
            # Encrypted chunks have blocks even without a codec, because each block is sealed alone.
            if trailer.codec or trailer.encrypted:
                blocks = Blocks.decode(
                    part("blocks"),
                    start=HEADER.size_bytes,
                    table=table,
                    codec=trailer.codec,
                    where=where,
                    position=at,
                )
        _check_table(table, trailer, where=where)
        end = HEADER.size_bytes + trailer.data_size_bytes if blocks is None else int(blocks.positions[-1])
        # Bytes between the chunks and the sections would be in no chunk and in no section, so nobody could
        # ever say what they are.
        first_section = min((each.position for each in sections.values()), default=at)
        expect("end of chunks", where, at, expected=first_section, found=end)
        stream, metadata = _decode_description(description, trailer, where)
        return cls(
            trailer=trailer,
            table=table,
            checksums=checksums,
            blocks=blocks,
            sections=sections,
            stream=stream,
            metadata=metadata,
            raw=raw[at - begin :] if trailer.encrypted else b"",
        )

    def windows(self, first: int, stop: int, *, size_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the chunks from number `first` up to `stop` in runs of about `size_bytes` of plain bytes.

        Each run is the numbers of its first chunk and its end. No block is in two of them.
        """
        # A block in two runs would be fetched and decoded twice.
        stops = np.arange(1, len(self.table) + 1) if self.blocks is None else self.blocks.rows[1:]
        last = self.table[stops - 1]
        ends = last["position"] + last["size_bytes"]
        while first < stop:
            enough = self.table["position"][first] + np.uint64(size_bytes)
            unit = min(int(np.searchsorted(ends, enough)), len(stops) - 1)
            end = min(max(int(stops[unit]), first + 1), stop)
            yield first, end
            first = end

    def span_of(self, first: int, stop: int) -> tuple[int, int]:
        """Return the byte range of the object that holds the chunks from number `first` up to `stop`."""
        if self.blocks is None:
            begin, last = self.table[first], self.table[stop - 1]
            return int(begin["position"]), int(last["position"]) + int(last["size_bytes"])
        numbers = self.blocks.holding(first, stop)
        return int(self.blocks.positions[numbers.start]), int(self.blocks.positions[numbers.stop])

    def check_stored(self, raw: bytes | memoryview, first: int, stop: int, *, where: str) -> None:
        """Check the stored blocks that hold these chunks. `raw` are the bytes of their `span_of`.

        Needs no key. Raises `Corrupt` as `chunks_in` does.
        """
        start, end = self.span_of(first, stop)
        expect("size of a range", where, start, expected=end - start, found=len(raw))
        if self.blocks is not None:
            self.blocks.check(raw, self.blocks.holding(first, stop), where=where)

    def chunks_in(self, raw: bytes | memoryview, first: int, stop: int, *, where: str) -> bytes | memoryview:
        """Return the plain chunks from number `first` up to `stop`. `raw` are the bytes of their `span_of`.

        Raises `Corrupt` for a damaged bit, at the chunk, or at the block that holds it.
        """
        if self.checksums is None:
            raise Denied(f"{where}: its chunks are encrypted, and no key was given")
        rows = self.table[first:stop]
        begin, size = int(rows["position"][0]), int(rows["size_bytes"].sum())
        start, end = self.span_of(first, stop)
        blocks, checksums = self.blocks, self.checksums[first:stop]
        if blocks is None:
            expect("size of a range", where, start, expected=end - start, found=len(raw))
            check_stored(raw, rows, checksums, window_position=begin, where=where)
            return raw
        numbers = blocks.holding(first, stop)
        try:
            expect("size of a range", where, begin, expected=end - start, found=len(raw))
            raw = blocks.decoded(raw, numbers, key=self.key, where=where)
            skip = begin - int(blocks.plain_positions[numbers.start])
            if skip or len(raw) > size:
                raw = raw[skip : skip + size]
            check_stored(raw, rows, checksums, window_position=begin, where=where)
        except Corrupt as damage:
            # The checks of chunks know plain positions alone. A person needs the block's place in the object.
            if damage.plain_position is not None:
                raise
            number = int(np.searchsorted(blocks.plain_positions, damage.position, side="right")) - 1
            raise blocks.in_block(damage, number, plain_position=damage.position) from damage
        return raw


def _part_of(
    parts: bytes,
    sections: Mapping[str, Section],
    name: str,
    *,
    size_bytes: int | None = None,
    key: DataKey | None = None,
    origin: int,
    where: str,
) -> bytes:
    """Return the plain bytes of a section that every reader needs. `size_bytes` is its size, if known."""
    section = sections.get(name)
    if section is None:
        raise Corrupt(f"section {name!r}", where, expected="in the directory", found="none", position=origin)
    most = SECTION_SIZE_BYTES_MAX if size_bytes is None else size_bytes
    plain = section_of(parts, section, origin=origin, plain_size_bytes_max=most, key=key, where=where)
    if size_bytes is not None:
        what = f"size of section {name!r}"
        expect(what, where, section.position, expected=size_bytes, found=len(plain))
    return plain


def table_of(raw: bytes, trailer: FragmentTrailer) -> ChunkTable:
    """Return the bytes of an `index` as a chunk table."""
    count, at = trailer.chunk_count, 0
    table = np.empty(count, CHUNK_TABLE)
    for column in INDEX.fields:
        table[column.name] = np.frombuffer(raw, INDEX.dtype[column.name], count=count, offset=at)
        at += count * column.size_bytes
    table["timestamp_ms"] = np.cumsum(table["timestamp_ms"])
    for name, sizes, first in (
        ("offset", "records", trailer.first_offset),
        ("position", "size_bytes", HEADER.size_bytes),
    ):
        ends = np.cumsum(table[sizes], dtype=np.uint64)
        table[name] = ends - table[sizes] + np.uint64(first)
    return table


def encode_tail(
    trailer: FragmentTrailer,
    table: ChunkTable,
    checksums: npt.NDArray[np.uint32],
    *,
    blocks: bytes,
    description: bytes,
    compression: Compression,
    key: DataKey | None = None,
    key_section: bytes = b"",
) -> tuple[bytes, FragmentTrailer]:
    """Return the tail of a fragment, and its trailer, which is `trailer` with what only the tail knows.

    `blocks` are the records of its blocks; empty if chunks are stored verbatim. An encrypted fragment has a
    `key`, and the section that names it. Raises `Corrupt` if the table is not that of the trailer's chunks.
    """
    deltas = np.diff(table["timestamp_ms"], prepend=0)
    columns = [deltas if field.name == "timestamp_ms" else table[field.name] for field in INDEX.fields]
    index = b"".join(
        column.astype(INDEX.dtype[field.name]).tobytes()
        for column, field in zip(columns, INDEX.fields, strict=True)
    )
    parts = {"index": index, "checksums": checksums.astype(CHECKSUM).tobytes(), "description": description}
    if trailer.codec or key is not None:
        parts["blocks"] = blocks
    if key is not None:
        parts |= {"key": key_section, SEAL: bytes(TAG_SIZE_BYTES)}
    found = encode_sections(
        parts,
        position=trailer.tail_start,
        compression=compression,
        key=key,
        sealed=("checksums",),
        verbatim=("key", SEAL),  # the seal is written last, and must not change in size
    )
    bodies, rows = [body for body, _ in found], [row for _, row in found]
    size_bytes = trailer.tail_start + sum(map(len, bodies + rows)) + TRAILER.size_bytes
    whole = replace(trailer, size_bytes=size_bytes, section_count=len(parts))
    # After the sizes are known, because the seal covers them: the directory and the trailer.
    if key is not None:
        bodies[-1] = key.tag_of(_sealed_text(whole, bodies[:-1], b"".join(rows)))
        fields = SECTION.unpack(rows[-1]) | {"checksum": crc32c(bodies[-1])}
        rows[-1] = SECTION.pack(**fields)
    # Last, because it covers the seal. The seal covers the trailer with a zero in its place.
    tail = b"".join(bodies + rows)
    whole = replace(whole, tail_checksum=crc32c(tail))
    # Each window was checked alone. This checks that they fit together.
    _check_table(table_of(index, whole), whole, where=trailer.attempt.hex)
    return tail + whole.encode(), whole


def _sealed_text(trailer: FragmentTrailer, bodies: Sequence[bytes], directory: bytes) -> bytes:
    """Return what the seal of an encrypted fragment covers, except its own tag and checksum."""
    own_row = SECTION.unpack(directory, len(directory) - SECTION.size_bytes) | {"checksum": 0}
    rows = directory[: -SECTION.size_bytes] + SECTION.pack(**own_row)
    digests = b"".join(hashlib.sha256(body).digest() for body in bodies)
    return FRAGMENT_HEADER + rows + digests + replace(trailer, tail_checksum=0).encode()


def verbatim_size_bytes(data_size_bytes: int, chunks: int, description: bytes) -> int:
    """Return the size of a fragment whose chunks are stored verbatim."""
    # The size is sent before the first byte, so it must be that of `encode_tail`: with 3 sections,
    # uncompressed.
    tail = chunks * (INDEX.size_bytes + CHECKSUM.itemsize) + len(description) + 3 * SECTION.size_bytes
    return HEADER.size_bytes + data_size_bytes + tail + TRAILER.size_bytes


def encode_description(stream: str, metadata: Mapping[str, str]) -> bytes:
    """Return the description: the stream's full name, and a JSON object for people who inspect the bucket.

    Raises `Misuse` for metadata that a reader would refuse, because the fragment could never be read then.
    """
    for key, text in metadata.items():
        if not (isinstance(key, str) and isinstance(text, str)):
            raise Misuse(f"metadata are texts under texts, not {text!r} under {key!r}")
    name = stream.encode()
    text = json.dumps(dict(metadata), sort_keys=True, separators=(",", ":")) if metadata else ""
    if len(text) > METADATA_SIZE_BYTES_MAX:
        raise Misuse(f"metadata take at most {METADATA_SIZE_BYTES_MAX} bytes as JSON, not {len(text)}")
    return DESCRIPTION.pack(stream_size_bytes=len(name), metadata_size_bytes=len(text)) + name + text.encode()


def _check_table(table: ChunkTable, trailer: FragmentTrailer, *, where: str) -> None:
    """Raise `Corrupt` unless the chunks agree with the trailer: known types, exact sums and bounds."""
    # Types and sizes first: an unknown type is in no sum, and a chunk without records would share an offset
    # with the next one while all sums are right.
    at, records, times = trailer.tail_start, table["records"], table["timestamp_ms"]
    for what, wrong in (
        ("chunk type", table["type"] > max(ChunkType)),
        ("chunk size", table["size_bytes"] < CHUNK_HEADER.size_bytes),
        ("index records", records == 0),
    ):
        if wrong.any():
            row = int(wrong.argmax())
            raise Corrupt(what, where, expected="a possible value", found=f"chunk {row}", position=at)
    # Bounds of all times, not of the first and the last chunk: the clock of a broker may go back.
    begin = int(table["offset"][0]), int(table["position"][0])
    times_found = int(times.min()), int(times.max())
    for what, expected, found in (
        ("first chunk", (trailer.first_offset, HEADER.size_bytes), begin),
        ("next offset", trailer.next_offset, trailer.first_offset + int(records.sum(dtype=np.uint64))),
        ("data size", trailer.data_size_bytes, int(table["size_bytes"].sum())),
        ("messages", trailer.messages, int(records[table["type"] == ChunkType.USER].sum(dtype=np.uint64))),
        ("timestamps", (trailer.first_timestamp_ms, trailer.last_timestamp_ms), times_found),
    ):
        expect(what, where, at, expected=expected, found=found)


def _decode_description(raw: bytes, trailer: FragmentTrailer, where: str) -> tuple[str, dict[str, str]]:
    at = trailer.tail_start
    sizes = DESCRIPTION.unpack(raw) if len(raw) >= DESCRIPTION.size_bytes else None
    if sizes is None or DESCRIPTION.size_bytes + sum(sizes.values()) != len(raw):
        raise Corrupt("description size", where, expected=len(raw), found=sizes, position=at)
    texts = raw[DESCRIPTION.size_bytes :]
    name = texts[: sizes["stream_size_bytes"]]
    try:
        stream = name.decode()
        escape(stream)  # a name that no key can hold
        metadata = json_outside(texts[len(name) :] or b"{}", size_bytes_max=len(raw))
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("the metadata is not an object of texts")
    except ValueError as exc:
        raise Corrupt("description", where, expected="UTF-8 and JSON", found=str(exc), position=at) from exc
    # The trailer has no room for the name. Without this, a rebuild could give a fragment to another stream.
    expect("stream digest", where, at, expected=trailer.stream_digest, found=stream_digest(stream))
    return stream, metadata
