"""Tests of messages from chunks: also from sub-batches, complete, in order, never from a damaged chunk."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress

import osiris_data
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.formats.chunk import ChunkHeader
from offload.formats.chunk_writer import build_chunk, seal_chunk
from offload.formats.codecs import Codec
from offload.formats.entries import SUB_BATCH_HEADER, SubBatch, encode_entries, entries, messages
from offload.ground.errors import Corrupt, Misuse, UnsupportedFormat
from offload.model.chunk_table import ChunkType

BODIES = st.lists(st.binary(max_size=60), min_size=1, max_size=30)
ENTRIES = st.lists(
    st.binary(max_size=60) | st.builds(SubBatch.of, BODIES, st.sampled_from(Codec)), min_size=1, max_size=12
)


def chunk_of(data: bytes, *, entries: int, records: int) -> bytes:
    """Return a chunk with this data section and a valid checksum."""
    return seal_chunk(data, entries=entries, records=records, offset=0, timestamp_ms=0, epoch=1)


def user_chunks(stream: str) -> list[bytes]:
    return [chunk for chunk in osiris_data.chunks(stream) if chunk[1] == ChunkType.USER]


def opened(parts: list[bytes | SubBatch]) -> list[bytes]:
    bodies: list[bytes] = []
    for part in parts:
        bodies += part.messages(where="part", position=0) if isinstance(part, SubBatch) else [part]
    return bodies


@pytest.mark.parametrize("stream", osiris_data.STREAMS)
def test_real_streams_hold_every_message_once_and_in_order(stream: str) -> None:
    bodies = [body for chunk in user_chunks(stream) for body in messages(chunk, where=stream)]

    assert len(bodies) == osiris_data.MANIFEST["streams"][stream]["messages"]
    for i, body in enumerate(bodies):
        assert body.endswith(osiris_data.body_of(i))


def test_real_sub_batches_are_those_of_the_publish_plan() -> None:
    """Each row of the plan is (first message, number of messages, the way they were sent)."""
    found, first = [], 0
    for chunk in user_chunks("batches"):
        for entry in entries(chunk, where="batches"):
            if isinstance(entry, SubBatch):
                found.append([first, entry.records, {0: "No", 1: "Gzip"}[entry.codec]])
                first += entry.records
                continue
            if found and found[-1][2] == "simple" and found[-1][1] < 20:
                found[-1][1] += 1
            else:
                found.append([first, 1, "simple"])
            first += 1

    assert found == osiris_data.MANIFEST["streams"]["batches"]["publish_plan"]


@given(ENTRIES)
@settings(deadline=None)
def test_reading_undoes_building(parts: list[bytes | SubBatch]) -> None:
    chunk = build_chunk(parts, offset=7, timestamp_ms=0, epoch=1)

    assert entries(chunk, where="memory") == parts
    assert messages(memoryview(chunk), where="memory") == opened(parts)
    assert len(opened(parts)) == ChunkHeader.decode(chunk, where="memory").records


def test_a_sub_batch_of_one_record_is_not_a_simple_entry() -> None:
    parts = [b"a", SubBatch.of([b"b"], Codec.GZIP), b"c"]
    chunk = build_chunk(parts, offset=0, timestamp_ms=0, epoch=1)

    assert messages(chunk, where="memory") == [b"a", b"b", b"c"]


def test_a_tracking_chunk_has_no_messages() -> None:
    (delta, *_) = [chunk for chunk in osiris_data.chunks("batches") if chunk[1] != ChunkType.USER]

    with pytest.raises(Misuse):
        messages(delta, where="batches")


GOOD = encode_entries([b"one", b"two", b"three"])
BATCH = SubBatch.of([b"one", b"two"], Codec.NONE)


@pytest.mark.parametrize(
    ("data", "count", "records"),
    [
        (GOOD, 2, 2),
        (GOOD, 4, 4),
        (GOOD, 3, 4),
        (GOOD[:-1], 3, 3),
        (GOOD + b"\0", 3, 3),
        (b"", 1, 1),
        (b"\0\0", 1, 1),
        (b"\xff\xff\xff\xff", 1, 1),
        (b"\x7f\xff\xff\xffabc", 1, 1),
        (BATCH.encode(), 1, 1),
        (BATCH.encode(), 1, 3),
        (BATCH.encode()[:-1], 1, 2),
        (BATCH.encode()[:9], 1, 2),
    ],
)
def test_entries_that_do_not_add_up_are_corrupt(data: bytes, count: int, records: int) -> None:
    chunk = chunk_of(data, entries=count, records=records)

    with pytest.raises(Corrupt) as caught:
        messages(chunk, where="a segment", position=1000)

    assert 1048 <= caught.value.position <= 1048 + len(data)


@pytest.mark.parametrize(
    ("kind", "records", "uncompressed", "size"),
    [
        (0x81, 2, 14, 14),  # bits that must be zero
        (0x80, 0, 14, 14),  # no record
        (0x80, 1, 14, 14),  # fewer than there are
        (0x80, 3, 14, 14),  # more than there are
        (0x80, 2, 13, 14),
        (0x80, 2, 15, 14),
        (0x80, 2, 14, 13),
        (0x80, 2, 14, 2**32 - 1),
        (0x90, 2, 14, 14),  # not gzip at all
    ],
)
def test_a_false_sub_batch_header_is_corrupt(kind: int, records: int, uncompressed: int, size: int) -> None:
    head = SUB_BATCH_HEADER.struct.pack(kind, records, uncompressed, size)
    chunk = chunk_of(head + BATCH.payload, entries=1, records=2)

    with pytest.raises(Corrupt):
        messages(chunk, where="memory")


def test_a_sub_batch_within_a_sub_batch_is_corrupt() -> None:
    inner = BATCH.encode()
    outer = SubBatch(codec=0, records=2, uncompressed_size_bytes=len(inner), payload=inner)

    with pytest.raises(Corrupt, match="entries of a sub-batch"):
        messages(chunk_of(outer.encode(), entries=1, records=2), where="memory")


def test_an_unknown_compression_is_carried_along_but_not_opened() -> None:
    unknown = SubBatch(codec=6, records=2, uncompressed_size_bytes=9, payload=b"??")
    chunk = build_chunk([unknown], offset=0, timestamp_ms=0, epoch=1)

    assert entries(chunk, where="memory") == [unknown]
    with pytest.raises(UnsupportedFormat):
        messages(chunk, where="memory")


def test_a_chunk_with_more_or_fewer_bytes_than_its_header_says_is_corrupt() -> None:
    chunk = chunk_of(GOOD, entries=3, records=3)

    for wrong in (chunk + b"\0", chunk[:-1]):
        with pytest.raises(Corrupt, match="chunk size"):
            messages(wrong, where="memory")


@pytest.mark.parametrize("codec", list(Codec))
def test_claimed_sizes_of_four_gigabytes_cost_no_memory(codec: Codec) -> None:
    head = SUB_BATCH_HEADER.struct.pack(0x80 | codec << 4, 2**16 - 1, 2**32 - 1, 4)
    chunk = chunk_of(head + b"????", entries=1, records=2**16 - 1)

    tracemalloc.start()
    with pytest.raises(Corrupt):
        messages(chunk, where="memory")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 2**20


def test_sub_batches_that_are_too_large_together_are_refused() -> None:
    """Each sub-batch is within the cap, but a chunk of a few MiB must not grow to thousands of MiB."""
    zeros = SubBatch.of([bytes(40 * 2**20)], Codec.ZSTD)
    chunk = build_chunk([zeros] * 7, offset=0, timestamp_ms=0, epoch=1)

    with pytest.raises(Corrupt, match="in one chunk"):
        messages(chunk, where="memory")


@given(st.binary(max_size=80), st.integers(1, 5), st.integers(0, 5))
def test_arbitrary_data_gives_the_right_count_or_is_corrupt(data: bytes, count: int, more: int) -> None:
    chunk = chunk_of(data, entries=count, records=count + more)

    with suppress(Corrupt, UnsupportedFormat):
        assert len(messages(chunk, where="memory")) == count + more


def test_simple_entries_are_length_and_body() -> None:
    assert encode_entries([b"ab", b""]) == struct.pack(">I2sI", 2, b"ab", 0)
