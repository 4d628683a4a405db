"""The fragment's bytes: pinned, undone, and no bit of them unguarded."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from functools import cache
from typing import Any, Final
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.errors import Corrupt, UnsupportedFormat
from offload.formats.checksums import crc32, crc32c
from offload.formats.chunk import scan
from offload.formats.chunk_writer import build_chunk
from offload.formats.fragment import (
    DESCRIPTION,
    FRAGMENT_HEADER,
    HEADER,
    INDEX_RECORD,
    TRAILER,
    FragmentTail,
    FragmentTrailer,
    check_header,
    encode_description,
    index_of,
    stream_digest,
    table_of,
)

SAMPLE: Final = FragmentTrailer(
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
    index_start=4112,
    index_count=2,
    description_size_bytes=14,
    data_checksum=0x01020304,
    index_checksum=0x05060708,
)
TRAILER_HEX: Final = (
    "4f4c465400010000000000000000000000000000000000001c168adb00d208e42f93314529f1fa9c"
    "0427eb63233ceda95a5db52b7012a719000000000000000000000000000000010000000000000000"
    "00000000000000a1000000000000004d000000000000000300000000000000050000000000000064"
    "00000000000000780000000000000012fffffffffffffffb0000018bcfe568000000000000001010"
    "000000020000000e0102030405060708949e46bb"
)
INDEX_HEX: Final = (
    "00000000000000640000000000000007000000000000001000000049000000020000000011223344"
    "00000000000000660000000000000008000000000000005900000041000000010000000055667788"
)
u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def trailers(draw: st.DrawFn) -> FragmentTrailer:
    """Any trailer whose counts are possible."""
    first = draw(st.integers(0, 2**63))
    records = draw(st.integers(1, 2**62))
    return FragmentTrailer(
        stream_digest=draw(st.binary(min_size=32, max_size=32)),
        incarnation=draw(st.uuids()),
        attempt=draw(st.uuids()),
        ledger_id=draw(u64),
        epoch=draw(u64),
        base_version=draw(u64),
        first_offset=first,
        next_offset=first + records,
        messages=draw(st.integers(0, records)),
        first_timestamp_ms=draw(i64),
        last_timestamp_ms=draw(i64),
        index_start=draw(u64),
        index_count=draw(st.integers(1, min(records, 2**32 - 1))),
        description_size_bytes=draw(u32),
        data_checksum=draw(u32),
        index_checksum=draw(u32),
    )


@cache
def fragment() -> bytes:
    """A whole fragment of two chunks, put together by hand."""
    chunks = [
        build_chunk([b"one", b"two"], offset=100, timestamp_ms=7, epoch=1),
        build_chunk([b"three"], offset=102, timestamp_ms=8, epoch=1),
    ]
    table = scan(b"".join(chunks), where="here")
    head = FRAGMENT_HEADER + b"".join(chunks)
    index = index_of(table, np.array([crc32(chunk) for chunk in chunks], np.uint32))
    parts = index.tobytes() + encode_description("orders", {"by": "hand"})
    trailer = replace(
        SAMPLE,
        next_offset=103,
        messages=3,
        index_start=len(head),
        description_size_bytes=len(parts) - index.nbytes,
        data_checksum=crc32c(head),
        index_checksum=crc32c(parts),
    )
    return head + parts + trailer.encode()


def tail_of(raw: bytes) -> FragmentTail:
    start = len(FRAGMENT_HEADER)
    return FragmentTail.decode(raw[start:], where="here", size_bytes=len(raw))


def rebuilt(raw: bytes, change: Any) -> bytes:
    """The fragment with its parts changed under fresh checksums: what a broken writer would store."""
    trailer = FragmentTrailer.decode(raw[-TRAILER.size_bytes :], where="here")
    parts = bytearray(raw[trailer.index_start : -TRAILER.size_bytes])
    change(parts)
    trailer = replace(trailer, index_checksum=crc32c(bytes(parts)))
    return raw[: trailer.index_start] + bytes(parts) + trailer.encode()


def test_the_bytes_of_version_1_do_not_drift() -> None:
    index = np.zeros(2, INDEX_RECORD.dtype)
    index[0] = (100, 7, 16, 73, 2, 0, b"\0\0\0", 0x11223344)
    index[1] = (102, 8, 89, 65, 1, 0, b"\0\0\0", 0x55667788)

    assert FRAGMENT_HEADER.hex() == "4f4c4648000100000000000000000000"
    assert SAMPLE.encode().hex() == TRAILER_HEX
    assert FragmentTrailer.decode(bytes.fromhex(TRAILER_HEX), where="here") == SAMPLE
    assert index.tobytes().hex() == INDEX_HEX
    assert encode_description("orders", {"b": "é", "a": "1"}).hex() == (
        "00000006000000166f72646572737b2261223a2231222c2262223a225c7530306539227d"
    )
    assert encode_description("orders", {}).hex() == "00000006000000006f7264657273"


def test_the_layouts_have_the_sizes_of_version_1() -> None:
    assert (HEADER.size_bytes, INDEX_RECORD.size_bytes, TRAILER.size_bytes) == (16, 40, 180)
    assert DESCRIPTION.size_bytes == 8
    assert INDEX_RECORD.dtype.itemsize == INDEX_RECORD.size_bytes


@given(trailers())
def test_decoding_a_trailer_undoes_encoding(trailer: FragmentTrailer) -> None:
    assert FragmentTrailer.decode(trailer.encode(), where="here") == trailer


@given(trailers(), st.integers(0, 180 * 8 - 1))
def test_no_single_flipped_bit_of_a_trailer_goes_unnoticed(trailer: FragmentTrailer, bit: int) -> None:
    raw = bytearray(trailer.encode())
    raw[bit // 8] ^= 1 << bit % 8

    with pytest.raises(Corrupt):
        FragmentTrailer.decode(bytes(raw), where="here")


def test_no_single_flipped_bit_of_a_header_goes_unnoticed() -> None:
    for bit in range(len(FRAGMENT_HEADER) * 8):
        raw = bytearray(FRAGMENT_HEADER)
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            check_header(bytes(raw), where="here")


def test_no_single_flipped_bit_behind_the_chunks_goes_unnoticed() -> None:
    raw = fragment()
    start = tail_of(raw).trailer.index_start

    for bit in range(start * 8, len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            tail_of(bytes(damaged))


def test_a_tail_says_what_was_written() -> None:
    tail = tail_of(fragment())

    assert (tail.stream, tail.metadata) == ("orders", {"by": "hand"})
    assert tail.index["offset"].tolist() == [100, 102]
    assert table_of(tail.index)["position"].tolist() == [16, 16 + int(tail.index["size_bytes"][0])]


def test_a_tail_decodes_from_exactly_its_own_bytes() -> None:
    raw = fragment()
    start = tail_of(raw).trailer.index_start

    assert FragmentTail.decode(raw[start:], where="here", size_bytes=len(raw)).stream == "orders"
    with pytest.raises(Corrupt):
        FragmentTail.decode(raw[start + 1 :], where="here", size_bytes=len(raw))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=1000)


@given(NAMES, st.dictionaries(st.text(), st.text()))
def test_a_description_holds_any_name_and_any_metadata(stream: str, metadata: dict[str, str]) -> None:
    description = encode_description(stream, metadata)
    raw = fragment()
    trailer = FragmentTrailer.decode(raw[-TRAILER.size_bytes :], where="here")
    parts = raw[trailer.index_start :][: 2 * INDEX_RECORD.size_bytes] + description
    trailer = replace(
        trailer,
        stream_digest=stream_digest(stream),
        description_size_bytes=len(description),
        index_checksum=crc32c(parts),
    )

    tail = tail_of(raw[: trailer.index_start] + parts + trailer.encode())

    assert (tail.stream, tail.metadata) == (stream, metadata)


def test_a_newer_version_asks_for_an_upgrade() -> None:
    raw = bytearray(SAMPLE.encode())
    raw[5] = 2
    raw[-4:] = crc32c(bytes(raw[:-4])).to_bytes(4, "big")

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        FragmentTrailer.decode(bytes(raw), where="here")


@pytest.mark.parametrize("name", ["codec", "key_id"])
def test_a_codec_and_a_key_ask_for_an_upgrade(name: str) -> None:
    raw = bytearray(SAMPLE.encode())
    raw[TRAILER.offset_of(name)] = 1
    raw[-4:] = crc32c(bytes(raw[:-4])).to_bytes(4, "big")

    with pytest.raises(UnsupportedFormat):
        FragmentTrailer.decode(bytes(raw), where="here")


@pytest.mark.parametrize(
    "hostile",
    [
        {"index_count": 2**32 - 1, "next_offset": 2**63},
        {"description_size_bytes": 2**32 - 1},
        {"index_start": 2**64 - 1},
        {"index_start": 0},
        {"index_start": 2**40, "index_count": 3},
    ],
)
def test_a_hostile_length_costs_no_memory(hostile: dict[str, Any]) -> None:
    raw = fragment()
    trailer = FragmentTrailer.decode(raw[-TRAILER.size_bytes :], where="here")
    wrong = raw[: -TRAILER.size_bytes] + replace(trailer, **hostile).encode()
    tracemalloc.start()

    with pytest.raises(Corrupt):
        tail_of(wrong)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 * 1024


@pytest.mark.parametrize(
    "impossible",
    [
        {"next_offset": 100},
        {"next_offset": 99},
        {"index_count": 0},
        {"index_count": 21},
        {"messages": 21},
        {"copied": 2},
    ],
)
def test_impossible_counts_are_corrupt_even_under_their_checksum(impossible: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        FragmentTrailer.decode(replace(SAMPLE, **impossible).encode(), where="here")


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [("offset", 8), ("position", 8), ("size_bytes", 4), ("records", 4), ("type", 1), ("reserved", 3)],
)
@pytest.mark.parametrize("row", [0, 1])
def test_an_index_that_breaks_a_rule_is_corrupt_even_under_its_checksum(
    name: str, size_bytes: int, row: int
) -> None:
    def raise_by_three(parts: bytearray) -> None:
        last = row * INDEX_RECORD.size_bytes + INDEX_RECORD.offset_of(name) + size_bytes - 1
        parts[last] += 3

    with pytest.raises(Corrupt):
        tail_of(rebuilt(fragment(), raise_by_three))


def test_lengths_of_a_description_that_do_not_add_up_are_corrupt() -> None:
    def lengthen(parts: bytearray) -> None:
        parts[2 * INDEX_RECORD.size_bytes : 2 * INDEX_RECORD.size_bytes + 4] = b"\xff\xff\xff\xff"

    with pytest.raises(Corrupt):
        tail_of(rebuilt(fragment(), lengthen))


def test_another_streams_name_is_corrupt() -> None:
    """The digest in the trailer and the name in the description hold each other."""

    def rename(parts: bytearray) -> None:
        parts[2 * INDEX_RECORD.size_bytes + 8] ^= 1

    with pytest.raises(Corrupt, match="digest"):
        tail_of(rebuilt(fragment(), rename))


@given(st.binary(max_size=400))
def test_any_other_bytes_are_corrupt(raw: bytes) -> None:
    for hostile in (raw, raw + b"OLFT\0\1"):
        with pytest.raises(Corrupt):
            FragmentTail.decode(hostile, where="here", size_bytes=len(hostile))


@pytest.mark.parametrize("text", [b"[1]", b'{"a":1}', b"[" * 100_000], ids=["list", "number", "deep"])
def test_metadata_that_is_no_object_of_texts_is_corrupt_even_under_its_checksum(text: bytes) -> None:
    raw = fragment()
    trailer = FragmentTrailer.decode(raw[-TRAILER.size_bytes :], where="here")
    sizes = DESCRIPTION.pack(stream_size_bytes=6, metadata_size_bytes=len(text))
    parts = raw[trailer.index_start :][: 2 * INDEX_RECORD.size_bytes] + sizes + b"orders" + text
    size = len(parts) - 2 * INDEX_RECORD.size_bytes
    trailer = replace(trailer, description_size_bytes=size, index_checksum=crc32c(parts))

    with pytest.raises(Corrupt):
        tail_of(raw[: trailer.index_start] + parts + trailer.encode())
