"""Tests of tracking blocks: the values that brokers keep in deltas, snapshots and trailers."""

from __future__ import annotations

from typing import Any

import osiris_data
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.formats.chunk import ChunkHeader
from offload.formats.tracking import (
    ConsumerOffset,
    ConsumerTimestamp,
    ProducerSequence,
    TrackingBlock,
    blocks_of,
    decode_blocks,
    encode_blocks,
)
from offload.ground.errors import Corrupt, Misuse, UnsupportedFormat
from offload.model.chunk_table import ChunkType

KINDS = {
    ChunkType.USER: "trailer",
    ChunkType.TRACKING_DELTA: "delta",
    ChunkType.TRACKING_SNAPSHOT: "snapshot",
}
U64 = st.integers(0, 2**64 - 1)
NAMES = st.binary(max_size=255)


def blocks(chunk_offset: st.SearchStrategy[int]) -> st.SearchStrategy[list[TrackingBlock]]:
    return st.lists(
        st.builds(ProducerSequence, name=NAMES, chunk_offset=chunk_offset, sequence=U64)
        | st.builds(ConsumerOffset, name=NAMES, offset=U64)
        | st.builds(ConsumerTimestamp, name=NAMES, timestamp_ms=st.integers(-(2**63), 2**63 - 1)),
        max_size=8,
    )


def in_manifest(block: TrackingBlock, chunk_type: ChunkType) -> list[Any]:
    """Return a block as the manifest lists it: type, name, value or values."""
    name = block.name.decode()
    match block:
        case ProducerSequence() if chunk_type is ChunkType.TRACKING_SNAPSHOT:
            return [0, name, block.chunk_offset, block.sequence]
        case ProducerSequence():
            return [0, name, block.sequence]
        case ConsumerOffset():
            return [1, name, block.offset]
        case ConsumerTimestamp():
            return [2, name, block.timestamp_ms]


def test_real_tracking_reads_as_the_manifest_lists_it() -> None:
    found = []
    for chunk in osiris_data.chunks("batches"):
        header = ChunkHeader.decode(chunk, where="batches")
        read = blocks_of(chunk, where="batches")
        if read:
            listed = [in_manifest(block, header.type) for block in read]
            found.append([KINDS[header.type], header.offset, listed])

    assert found == osiris_data.MANIFEST["streams"]["batches"]["tracking"]


def test_the_trailer_of_the_worked_example() -> None:
    (block,) = blocks_of(osiris_data.chunks("tiny")[0], where="tiny")

    assert isinstance(block, ProducerSequence)
    assert block.name.startswith(b"<0.710.0>_")
    assert (len(block.name), block.chunk_offset, block.sequence) == (33, 0, 1)


def test_a_chunk_without_trailer_has_no_tracking() -> None:
    assert blocks_of(osiris_data.chunks("filtered")[0], where="filtered") == []


@given(blocks(U64))
def test_decoding_undoes_encoding_in_a_snapshot(given_blocks: list[TrackingBlock]) -> None:
    raw = encode_blocks(given_blocks, chunk_type=ChunkType.TRACKING_SNAPSHOT)

    read = decode_blocks(raw, chunk_type=ChunkType.TRACKING_SNAPSHOT, chunk_offset=5, where="memory")
    assert read == given_blocks


@given(blocks(st.just(5)), st.sampled_from([ChunkType.USER, ChunkType.TRACKING_DELTA]))
def test_outside_a_snapshot_a_sequence_belongs_to_the_enclosing_chunk(
    given_blocks: list[TrackingBlock], chunk_type: ChunkType
) -> None:
    raw = encode_blocks(given_blocks, chunk_type=chunk_type)

    assert decode_blocks(raw, chunk_type=chunk_type, chunk_offset=5, where="memory") == given_blocks


def test_a_block_that_is_cut_anywhere_is_corrupt() -> None:
    raw = encode_blocks([ConsumerOffset(name=b"consumer", offset=1)], chunk_type=ChunkType.USER)
    for size in range(1, len(raw)):
        with pytest.raises(Corrupt, match="at byte 90"):
            decode_blocks(raw[:size], chunk_type=ChunkType.USER, chunk_offset=0, where="memory", position=90)


def test_an_unknown_type_of_block_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedFormat):
        decode_blocks(b"\x03\x01nxxxxxxxx", chunk_type=ChunkType.USER, chunk_offset=0, where="memory")


@pytest.mark.parametrize(
    "block", [ConsumerOffset(name=bytes(256), offset=0), ConsumerOffset(name=b"", offset=2**64)]
)
def test_a_value_that_does_not_fit_is_not_written(block: TrackingBlock) -> None:
    with pytest.raises(Misuse):
        encode_blocks([block], chunk_type=ChunkType.USER)
