"""Fragments that are built in memory, and drafts of fragments as a broken writer would build them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final
from uuid import UUID

import numpy as np

from offload.formats.block_codecs import compressor
from offload.formats.blocks import compressed_blocks
from offload.formats.checksums import crc32, crc32c
from offload.formats.chunk import scan
from offload.formats.chunk_writer import build_chunk
from offload.formats.fragment import FragmentTail, encode_description, encode_tail
from offload.formats.fragment_trailer import FRAGMENT_HEADER, FragmentTrailer, stream_digest
from offload.formats.sealing import KEY_SECTION, DataKey
from offload.formats.sections import SECTION
from offload.model.chunk_table import ChunkTable
from offload.model.compression import BlockCodec, Compression

CODECS: Final = {text: Compression.parse(text) for text in ("none", "zstd", "lz4")}
NONE: Final = CODECS["none"]
STREAM_KEY: Final = b"s" * 32


def chunk_of(body: bytes, *, offset: int, timestamp_ms: int = 0) -> bytes:
    return build_chunk([body], offset=offset, timestamp_ms=timestamp_ms, epoch=1)


def chunks_of(sizes: Sequence[int], *, first_offset: int = 100, is_random: bool = False) -> list[bytes]:
    """Return chunks of one message each, with bodies of these sizes. Random bodies do not compress."""
    random, chunks = Random(len(sizes)), []
    for number, size in enumerate(sizes):
        body = random.randbytes(size) if is_random else (b"order %d, " % number * size)[:size]
        chunks.append(chunk_of(body, offset=first_offset + number, timestamp_ms=7 + number))
    return chunks


def table_of_chunks(chunks: Sequence[bytes]) -> ChunkTable:
    return scan(b"".join(chunks), where="here")


def fragment_of(
    chunks: Sequence[bytes],
    compression: Compression = NONE,
    *,
    stream: str = "orders",
    metadata: Mapping[str, str] | None = None,
    key: DataKey | None = None,
) -> bytes:
    """Return a whole fragment of these chunks, encrypted if there is a `key`, which `STREAM_KEY` wraps."""
    plain, table, data, blocks = b"".join(chunks), table_of_chunks(chunks), b"".join(chunks), b""
    if compression.codec or key:
        data, blocks = compressed_blocks(plain, table, compression, key=key, is_end=True)
    head = FRAGMENT_HEADER + data
    trailer = FragmentTrailer(
        codec=compression.codec,
        encrypted=int(key is not None),
        stream_digest=stream_digest(stream),
        incarnation=UUID(int=1),
        attempt=UUID(int=0xA1),
        ledger_id=77,
        epoch=3,
        base_version=5,
        first_offset=int(table["offset"][0]),
        next_offset=int(table["offset"][-1]) + int(table["records"][-1]),
        messages=int(table["records"][table["type"] == 0].sum()),
        first_timestamp_ms=int(table["timestamp_ms"].min()),
        last_timestamp_ms=int(table["timestamp_ms"].max()),
        data_size_bytes=len(plain),
        tail_start=len(head),
        chunk_count=len(chunks),
        data_checksum=crc32c(head),
    )
    tail, _ = encode_tail(
        trailer,
        table,
        np.array([crc32(chunk) for chunk in chunks], np.uint32),
        blocks=blocks,
        description=encode_description(stream, metadata or {}),
        compression=compression,
        key=key,
        key_section=KEY_SECTION.pack(stream_key=bytes(16), wrapped=key.wrapped(STREAM_KEY)) if key else b"",
    )
    return head + tail


def compressed(data: bytes, by: Compression) -> bytes:
    """Return one block of these bytes."""
    return compressor(by)(data)


def data_key(**changes: Any) -> DataKey:
    """Return a fresh key for the fragments of `fragment_of`."""
    fields = {"raw": b"d" * 32, "incarnation": UUID(int=1), "attempt": UUID(int=0xA1), "first_offset": 100}
    return DataKey(**fields | changes)


def tail_of(raw: bytes) -> FragmentTail:
    """Return the tail of a whole object."""
    return FragmentTail.decode(raw, where="here", size_bytes=len(raw))


def with_flipped_bit(raw: bytes, bit: int) -> bytes:
    damaged = bytearray(raw)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


@contextmanager
def peak_below(size_bytes: int) -> Iterator[None]:
    """Fail if the block allocates so much at any time, also if it raises."""
    tracemalloc.start()
    try:
        yield
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < size_bytes


@dataclass(kw_only=True)
class DraftSection:
    """A section of a draft. `claims` are the fields of its directory record that are not computed."""

    name: bytes
    body: bytes
    claims: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Draft:
    """A fragment in parts. A test changes a part, and `sealed` makes all checksums right again."""

    data: bytes
    """Header and chunks, as stored."""
    sections: list[DraftSection]
    trailer: FragmentTrailer
    early: int = 0
    """The number of sections that lie before the tail."""

    @classmethod
    def of(cls, raw: bytes) -> Draft:
        tail = tail_of(raw)
        sections = [
            DraftSection(
                name=each.name.encode(),
                body=raw[each.position : each.stop],
                claims={
                    "codec": each.codec,
                    "encrypted": each.encrypted,
                    "plain_size_bytes": each.plain_size_bytes,
                },
            )
            for each in tail.sections.values()
        ]
        return cls(data=raw[: tail.trailer.tail_start], sections=sections, trailer=tail.trailer)

    def section(self, name: str) -> DraftSection:
        return next(each for each in self.sections if each.name == name.encode())

    def replace_plain(self, name: str, body: bytes) -> None:
        """Store a section plain, with another body."""
        section = self.section(name)
        section.body, section.claims = body, {}

    def sealed(self, **claims: Any) -> bytes:
        """Return the object. `claims` are fields of the trailer that differ from what is computed."""
        position, rows = len(self.data), []
        for each in self.sections:
            fields = {
                "name": each.name,
                "version": 1,
                "codec": BlockCodec.NONE,
                "encrypted": 0,
                "position": position,
                "size_bytes": len(each.body),
                "plain_size_bytes": len(each.body),
                "checksum": crc32c(each.body),
            }
            rows.append(SECTION.pack(**fields | each.claims))
            position += len(each.body)
        before = self.data + b"".join(each.body for each in self.sections[: self.early])
        tail = b"".join([*(each.body for each in self.sections[self.early :]), *rows])
        numbers: dict[str, Any] = {
            "tail_start": len(before),
            "section_count": len(rows),
            "size_bytes": len(before) + len(tail) + 180,
            "data_checksum": crc32c(before),
            "tail_checksum": crc32c(tail),
        }
        return before + tail + replace(self.trailer, **numbers | claims).encode()
