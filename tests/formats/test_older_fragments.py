"""Tests of fragments of version 1: this program still reads them, and finds every flipped bit."""

from __future__ import annotations

import struct
from functools import cache
from typing import Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_fragments import chunk_of, chunks_of, peak_below, table_of_chunks, tail_of, with_flipped_bit
from older_formats import INDEX_RECORD, TRAILER, crc32c, fragment_1, sealed

from offload.formats.checksums import crc32
from offload.formats.fragment import FragmentTail
from offload.formats.fragment_trailer import FragmentTrailer, stream_digest
from offload.formats.fragment_v1 import INDEX_RECORD_1, TRAILER_1
from offload.ground.errors import Corrupt, UnsupportedFormat

TRAILER_1_HEX: Final = (
    "4f4c465400010000000000000000000000000000000000001c168adb00d208e42f93314529f1fa9c"
    "0427eb63233ceda95a5db52b7012a719000000000000000000000000000000010000000000000000"
    "00000000000000a1000000000000004d000000000000000300000000000000050000000000000064"
    "00000000000000780000000000000012fffffffffffffffb0000018bcfe568000000000000001010"
    "000000020000000e0102030405060708949e46bb"
)
"""A trailer of release 0.2."""
INDEX_1_HEX: Final = (
    "00000000000000640000000000000007000000000000001000000049000000020000000011223344"
    "00000000000000660000000000000008000000000000005900000041000000010000000055667788"
)
"""An index of release 0.2: two chunks of 73 and 65 bytes."""


@cache
def fragment() -> bytes:
    """Return a whole fragment of two chunks."""
    chunks = [chunk_of(b"one", offset=100, timestamp_ms=7), chunk_of(b"three", offset=101, timestamp_ms=8)]
    return fragment_1(chunks, table_of_chunks(chunks), metadata={"by": "hand"})


INDEX_START: Final = 16 + 2 * 52 + 8
"""The position in `fragment()`: behind two chunks of 48 and 4 bytes, and bodies of 3 and 5 bytes."""


def resealed(raw: bytes) -> bytes:
    """Return a fragment with changed bytes and right checksums, as a broken writer would store it."""
    parts, trailer = raw[INDEX_START:-180], bytearray(raw[-180:])
    trailer[-8:-4] = crc32c(parts).to_bytes(4, "big")
    trailer[-4:] = crc32c(bytes(trailer[:-4])).to_bytes(4, "big")
    return raw[:-180] + bytes(trailer)


def test_a_trailer_of_version_1_is_still_read() -> None:
    assert FragmentTrailer.decode(bytes.fromhex(TRAILER_1_HEX), where="here") == FragmentTrailer(
        version=1,
        stream_digest=stream_digest("orders"),
        incarnation=UUID(int=1),
        attempt=UUID(int=0xA1),
        ledger_id=77,
        epoch=3,
        base_version=5,
        first_offset=100,
        next_offset=120,
        messages=18,
        first_timestamp_ms=-5,
        last_timestamp_ms=1_700_000_000_000,
        data_size_bytes=4096,
        tail_start=4112,
        size_bytes=4112 + 2 * 40 + 14 + 180,
        chunk_count=2,
        data_checksum=0x01020304,
        tail_checksum=0x05060708,
    )


def test_an_index_of_version_1_is_still_read() -> None:
    parts = bytes.fromhex(INDEX_1_HEX) + struct.pack(">II", 6, 0) + b"orders"
    fields = TRAILER.unpack(bytes.fromhex(TRAILER_1_HEX)[:-4])
    numbers = (103, 3, 7, 8, 154, 2, 14, 0, crc32c(parts))  # from `next_offset` on
    raw = parts + sealed(TRAILER.pack(*fields[: -len(numbers)], *numbers))

    tail = FragmentTail.decode(raw, where="here", size_bytes=154 + len(raw))

    assert tail.table.tolist() == [(100, 7, 16, 73, 2, 0), (102, 8, 89, 65, 1, 0)]
    assert tail.checksums.tolist() == [0x11223344, 0x55667788]


def test_the_layouts_have_the_sizes_of_version_1() -> None:
    assert (
        (INDEX_RECORD_1.size_bytes, TRAILER_1.size_bytes)
        == (INDEX_RECORD.size, TRAILER.size + 4)
        == (40, 180)
    )


def test_a_tail_of_version_1_says_what_was_written() -> None:
    tail = tail_of(fragment())

    assert (tail.trailer.version, tail.trailer.tail_start) == (1, INDEX_START)
    assert (tail.stream, tail.metadata, tail.blocks, tail.sections) == ("orders", {"by": "hand"}, None, {})
    assert tail.table["position"].tolist() == [16, 16 + 55]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.data())
def test_any_run_of_chunks_of_version_1_reads_back_verbatim(sizes: list[int], data: st.DataObject) -> None:
    chunks = chunks_of(sizes)
    raw = fragment_1(chunks, table_of_chunks(chunks))
    first = data.draw(st.integers(0, len(chunks) - 1))
    stop = data.draw(st.integers(first + 1, len(chunks)))
    tail = tail_of(raw)

    start, end = tail.span_of(first, stop)

    assert tail.chunks_in(raw[start:end], first, stop, where="here") == b"".join(chunks[first:stop])
    assert tail.checksums.tolist() == [crc32(chunk) for chunk in chunks]


def test_no_flipped_bit_behind_the_chunks_of_version_1_goes_unnoticed() -> None:
    raw = fragment()

    for bit in range(INDEX_START * 8, len(raw) * 8):
        with pytest.raises(Corrupt):
            tail_of(with_flipped_bit(raw, bit))


def test_no_flipped_bit_of_a_chunk_of_version_1_goes_unnoticed() -> None:
    raw = fragment()
    tail = tail_of(raw)

    for bit in range(16 * 8, INDEX_START * 8):
        damaged = with_flipped_bit(raw, bit)[16:INDEX_START]
        with pytest.raises(Corrupt):
            tail.chunks_in(damaged, 0, 2, where="here")


@pytest.mark.parametrize("at", [6, 8, 23], ids=["codec", "first of key_id", "last of key_id"])
def test_a_version_1_fragment_with_a_codec_or_a_key_asks_for_an_upgrade(at: int) -> None:
    raw = bytearray(fragment())
    raw[len(raw) - 180 + at] = 1

    with pytest.raises(UnsupportedFormat):
        tail_of(resealed(bytes(raw)))


def with_trailer(name: str, value: int) -> bytes:
    raw = bytearray(fragment())
    size = next(field.size_bytes for field in TRAILER_1.fields if field.name == name)
    at = len(raw) - 180 + TRAILER_1.offset_of(name)
    raw[at : at + size] = value.to_bytes(size, "big")
    return resealed(bytes(raw))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index_count", 2**32 - 1),
        ("index_count", 3),
        ("index_count", 1),
        ("index_count", 0),
        ("description_size_bytes", 2**32 - 1),
        ("description_size_bytes", 0),
        ("index_start", 2**64 - 1),
        ("index_start", 0),
        ("index_start", 2**40),
        ("next_offset", 2**63),
        ("next_offset", 100),
        ("messages", 1),
        ("copied", 2),
    ],
)
def test_a_hostile_number_in_version_1_is_corrupt_and_costs_no_memory(name: str, value: int) -> None:
    raw = with_trailer(name, value)

    with peak_below(256 * 1024), pytest.raises(Corrupt):
        tail_of(raw)


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [("offset", 8), ("position", 8), ("size_bytes", 4), ("records", 4), ("type", 1), ("reserved", 3)],
)
@pytest.mark.parametrize("row", [0, 1])
def test_an_index_of_version_1_that_breaks_a_rule_is_corrupt_even_under_its_checksum(
    name: str, size_bytes: int, row: int
) -> None:
    raw = bytearray(fragment())
    raw[INDEX_START + row * 40 + INDEX_RECORD_1.offset_of(name) + size_bytes - 1] += 3

    with pytest.raises(Corrupt):
        tail_of(resealed(bytes(raw)))


def test_a_copy_of_version_1_is_still_a_copy() -> None:
    chunks = chunks_of([3])

    assert tail_of(fragment_1(chunks, table_of_chunks(chunks), copied=1)).trailer.copied == 1
