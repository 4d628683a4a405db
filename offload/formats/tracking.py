"""Tracking blocks: a broker's records of producers and consumers.

They hold the last publishing id of a producer, and the offset or the timestamp that a consumer stored. They
are in chunks of their own or in the trailer of a user chunk, back to back:

    type u8 | name length u8 | name | value u64 (in a snapshot, a sequence has its chunk offset before it)

`blocks_of` reads them in both places. Names are bytes: the broker accepts any bytes, up to 255 of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from offload.formats.chunk import ChunkHeader
from offload.formats.entries import entries
from offload.ground.errors import Corrupt, Misuse, UnsupportedFormat
from offload.model.chunk_table import ChunkType

__all__ = ["ConsumerOffset", "ProducerSequence"]


_SEQUENCE: Final = 0
_OFFSET: Final = 1
_TIMESTAMP: Final = 2

_UNSIGNED: Final = struct.Struct(">Q")
_SIGNED: Final = struct.Struct(">q")
_PAIR: Final = struct.Struct(">QQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSequence:
    """The last publishing id that the broker took from a producer.

    By it the broker recognizes repetitions.
    """

    name: bytes
    chunk_offset: int
    """The offset of the chunk in which the broker took it.

    Stored in a snapshot, else that of the own chunk.
    """
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOffset:
    """The offset that a consumer stored."""

    name: bytes
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerTimestamp:
    """The timestamp that a consumer stored."""

    name: bytes
    timestamp_ms: int


TrackingBlock: TypeAlias = ProducerSequence | ConsumerOffset | ConsumerTimestamp


def blocks_of(chunk: bytes, *, where: str, position: int = 0) -> list[TrackingBlock]:
    """Return the tracking blocks of one whole chunk: of its trailer, or of the data of a tracking chunk.

    A user chunk without a trailer has none. `position` is that of `chunk` in `where`. Raises as
    `decode_blocks` does.
    """
    header = ChunkHeader.decode(chunk, where=where, origin=position)
    if header.type is ChunkType.USER:
        raw, at = bytes(chunk[header.trailer_start : header.size_bytes]), header.trailer_start
    else:
        (entry,) = entries(chunk, where=where, position=position)
        if not isinstance(entry, bytes):
            at = position + header.data_start
            raise Corrupt(
                "tracking entry", where, position=at, expected="a simple entry", found="a sub-batch"
            )
        raw, at = entry, header.data_start + 4
    return decode_blocks(
        raw, chunk_type=header.type, chunk_offset=header.offset, where=where, position=position + at
    )


def decode_blocks(
    raw: bytes, *, chunk_type: ChunkType, chunk_offset: int, where: str, position: int = 0
) -> list[TrackingBlock]:
    """Return the blocks in `raw`, which comes from a chunk of this type and offset.

    Raises `Corrupt` if a block is cut short. Raises `UnsupportedFormat` for an unknown type of block: its
    length is unknown too, so the blocks after it cannot be read.
    """
    blocks, at = [], 0
    while at < len(raw):
        kind, value_start = raw[at], at + 2 + raw[at + 1] if at + 1 < len(raw) else len(raw)
        if kind > _TIMESTAMP:
            raise UnsupportedFormat(
                f"{where} at byte {position + at}: unknown tracking type {kind}; upgrade the program"
            )
        snapshot_of_sequence = kind == _SEQUENCE and chunk_type is ChunkType.TRACKING_SNAPSHOT
        stop = value_start + (_PAIR if snapshot_of_sequence else _UNSIGNED).size
        if stop > len(raw):
            left = len(raw) - at
            raise Corrupt(
                "tracking block size", where, position=position + at, expected=stop - at, found=left
            )
        name, value = raw[at + 2 : value_start], raw[value_start:stop]
        blocks.append(_block(kind, name, value, chunk_offset))
        at = stop
    return blocks


def encode_blocks(blocks: Iterable[TrackingBlock], *, chunk_type: ChunkType) -> bytes:
    """Return the bytes of the blocks in a chunk of this type. `decode_blocks` is the inverse.

    Only a snapshot keeps `chunk_offset`. Raises `Misuse` for a name of more than 255 bytes, or a number that
    does not fit.
    """
    try:
        return b"".join([_encoded(block, chunk_type) for block in blocks])
    except (struct.error, ValueError) as exc:
        raise Misuse(f"a tracking block does not fit its format: {exc}") from exc


def _block(kind: int, name: bytes, value: bytes, chunk_offset: int) -> TrackingBlock:
    if kind == _TIMESTAMP:
        return ConsumerTimestamp(name=name, timestamp_ms=_SIGNED.unpack(value)[0])
    if kind == _OFFSET:
        return ConsumerOffset(name=name, offset=_UNSIGNED.unpack(value)[0])
    if len(value) == _PAIR.size:
        chunk_offset, sequence = _PAIR.unpack(value)
    else:
        (sequence,) = _UNSIGNED.unpack(value)
    return ProducerSequence(name=name, chunk_offset=chunk_offset, sequence=sequence)


def _encoded(block: TrackingBlock, chunk_type: ChunkType) -> bytes:
    match block:
        case ProducerSequence() if chunk_type is ChunkType.TRACKING_SNAPSHOT:
            kind, value = _SEQUENCE, _PAIR.pack(block.chunk_offset, block.sequence)
        case ProducerSequence():
            kind, value = _SEQUENCE, _UNSIGNED.pack(block.sequence)
        case ConsumerOffset():
            kind, value = _OFFSET, _UNSIGNED.pack(block.offset)
        case ConsumerTimestamp():
            kind, value = _TIMESTAMP, _SIGNED.pack(block.timestamp_ms)
    return bytes((kind, len(block.name))) + block.name + value
