"""Tests of built chunks: they equal osiris' chunks, byte for byte."""

from __future__ import annotations

import osiris_data
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.formats.chunk import ChunkHeader, check_chunks, scan
from offload.formats.chunk_writer import build_chunk, build_tracking_chunk, seal_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SubBatch, encode_entries, entries, messages
from offload.formats.tracking import ConsumerOffset, ProducerSequence, blocks_of, encode_blocks
from offload.ground.errors import Misuse
from offload.model.chunk_table import ChunkType

BODIES = st.lists(st.binary(max_size=50), min_size=1, max_size=20)


def rebuilt(chunk: bytes, filter_values: list[bytes | None] | None = None, filter_size: int = 16) -> bytes:
    """Build a new chunk from everything that was parsed out of `chunk`."""
    header = ChunkHeader.decode(chunk, where="original")
    blocks = blocks_of(chunk, where="original")
    if header.type is not ChunkType.USER:
        return build_tracking_chunk(
            blocks,
            chunk_type=header.type,
            offset=header.offset,
            timestamp_ms=header.timestamp_ms,
            epoch=header.epoch,
        )
    return build_chunk(
        entries(chunk, where="original"),
        offset=header.offset,
        timestamp_ms=header.timestamp_ms,
        epoch=header.epoch,
        filter_values=filter_values,
        filter_size_bytes=filter_size,
        trailer=encode_blocks(blocks, chunk_type=header.type),
    )


@pytest.mark.parametrize("stream", ["tiny", "batches"])
def test_real_chunks_are_rebuilt_from_their_parts(stream: str) -> None:
    """Sub-batches stay as the client compressed them; trailers and tracking chunks come from their blocks."""
    for chunk in osiris_data.chunks(stream):
        assert rebuilt(chunk) == chunk


def test_real_chunks_are_rebuilt_with_their_filters() -> None:
    for number, chunk in enumerate(osiris_data.chunks("filtered")):
        values, size = osiris_data.filter_values_of(number), 16 if number < 40 else 64

        assert rebuilt(chunk, values, size) == chunk


@given(st.lists(BODIES, min_size=1, max_size=5), st.integers(0, 2**40), st.sampled_from(Codec))
def test_chunks_built_one_after_the_other_are_a_run(
    bodies: list[list[bytes]], first_offset: int, codec: Codec
) -> None:
    window, offset = b"", first_offset
    for group in bodies:
        parts = [*group, SubBatch.of(group, codec)]
        window += build_chunk(parts, offset=offset, timestamp_ms=-5, epoch=2**64 - 1)
        offset += 2 * len(group)

    rows = scan(window, where="memory")

    check_chunks(window, rows, window_position=0, where="memory")
    assert int(rows["offset"][0]) == first_offset
    assert int(rows["records"].sum()) == offset - first_offset


def test_the_bulk_writer_makes_the_same_chunk() -> None:
    bodies = [osiris_data.body_of(i) for i in range(300)]
    data = encode_entries(bodies)

    bulk = seal_chunk(data, entries=300, records=300, offset=9, timestamp_ms=1, epoch=1)

    assert bulk == build_chunk(bodies, offset=9, timestamp_ms=1, epoch=1)
    assert messages(bulk, where="memory") == bodies


def test_a_snapshot_keeps_the_fields_that_a_trailer_takes_from_its_chunk() -> None:
    block = ProducerSequence(name=b"p", chunk_offset=3, sequence=8)

    snapshot = build_tracking_chunk(
        [block], chunk_type=ChunkType.TRACKING_SNAPSHOT, offset=9, timestamp_ms=0, epoch=1
    )

    assert blocks_of(snapshot, where="memory") == [block]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""] * 65_536,
        [SubBatch(codec=8, records=1, uncompressed_size_bytes=0, payload=b"")],
        [SubBatch(codec=0, records=0, uncompressed_size_bytes=0, payload=b"")],
        [SubBatch(codec=0, records=65_536, uncompressed_size_bytes=0, payload=b"")],
    ],
)
def test_impossible_parts_of_a_chunk_are_refused(parts: list[bytes | SubBatch]) -> None:
    with pytest.raises(Misuse):
        build_chunk(parts, offset=0, timestamp_ms=0, epoch=1)


def test_offsets_end_where_64_bits_do() -> None:
    build_chunk([b"a", b"b"], offset=2**64 - 3, timestamp_ms=0, epoch=1)

    with pytest.raises(Misuse):
        build_chunk([b"a", b"b"], offset=2**64 - 2, timestamp_ms=0, epoch=1)


def test_every_entry_needs_its_filter_value() -> None:
    with pytest.raises(Misuse):
        build_chunk([b"a", b"b"], offset=0, timestamp_ms=0, epoch=1, filter_values=[b"v"])


def test_a_user_chunk_is_no_tracking_chunk() -> None:
    with pytest.raises(Misuse):
        build_tracking_chunk(
            [ConsumerOffset(name=b"c", offset=1)],
            chunk_type=ChunkType.USER,
            offset=0,
            timestamp_ms=0,
            epoch=1,
        )
