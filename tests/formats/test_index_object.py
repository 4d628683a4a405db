"""Tests of index objects as bytes: their layout is fixed, and no damage goes unnoticed."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload import Corrupt, UnsupportedFormat
from offload.formats.checksums import crc32c
from offload.formats.index_object import (
    INDEX_OBJECT_HEADER,
    ROW_SIZE_BYTES,
    Directory,
    IndexShape,
    IndexWriter,
    check_index_header,
    split_rows,
)
from offload.formats.keys import IndexName, StreamKeys

KEYS = StreamKeys("orders")
NAME = IndexName(KEYS.index_folder("amqp:key", 1), 100, 200, 17, UUID(int=3), UUID(int=5))
GOLDEN = """
000000000001 00000007
ffffffffffff 00000063
0000000000000000 4e4dd8f6 047e771b
4f4c4958 0001 0000
1c168adb00d208e42f93314529f1fa9c0427eb63233ceda95a5db52b7012a719
0000000000000064 00000000000000c8 0000000000000011
00000000000000000000000000000003 00000000000000000000000000000005
0000000000000002 f07e0041
"""
"""Two rows, the entry of their bucket, and the header."""

rows = st.lists(st.tuples(st.integers(0, 2**48 - 1), st.integers(0, 99)), max_size=40, unique=True).map(
    sorted
)


def encoded(found: list[tuple[int, int]], *, pieces: int = 1) -> bytes:
    """Return an object with these rows, written in so many pieces."""
    writer = IndexWriter("orders", NAME, len(found))
    raw = b""
    for part in np.array_split(np.arange(len(found)), pieces):
        hashes = np.array([found[row][0] for row in part], np.uint64)
        offsets = np.array([found[row][1] for row in part], np.uint32)
        raw += writer.rows(hashes, offsets)
    return raw + writer.end()


def decoded(raw: bytes) -> list[tuple[int, int]]:
    """Return the rows of a whole object, all of it checked."""
    where, found = KEYS.index(NAME), list[tuple[int, int]]()
    shape = IndexShape.of_size(len(raw), where=where)
    check_index_header(raw[shape.header_start :], "orders", NAME, shape)
    start, size = shape.entries(0, shape.buckets)
    directory = Directory.decode(raw[start : start + size], shape, 0, shape.buckets, where=where)
    for bucket, checksum in enumerate(directory.checksums.tolist()):
        begin, end = (int(edge) * ROW_SIZE_BYTES for edge in directory.edges[bucket : bucket + 2])
        if crc32c(raw[begin:end]) != checksum:
            raise Corrupt("index rows checksum", where, expected=checksum, found="another")
        hashes, offsets = split_rows(raw[begin:end])
        assert {shape.bucket_of(each) for each in hashes.tolist()} <= {bucket}
        found += zip(hashes.tolist(), offsets.tolist(), strict=True)
    return found


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload.formats.index_object.BUCKET_ROWS", 4)


@given(rows, st.integers(1, 5))
def test_decoding_undoes_encoding_in_any_pieces(found: list[tuple[int, int]], pieces: int) -> None:
    assert decoded(encoded(found, pieces=pieces)) == found


def test_the_bytes_of_version_1() -> None:
    raw = encoded([(1, 7), (2**48 - 1, 99)])

    assert raw == bytes.fromhex(GOLDEN)


def test_every_size_belongs_to_one_number_of_rows() -> None:
    sizes = [IndexShape(count).size_bytes for count in range(5_000)]

    assert sorted({*sizes}) == sizes
    assert [IndexShape.of_size(size, where="x").rows for size in sizes] == [*range(5_000)]
    assert {size for size in range(max(sizes)) if has_a_shape(size)} == {*sizes[:-1]}


def has_a_shape(size_bytes: int) -> bool:
    try:
        IndexShape.of_size(size_bytes, where="x")
    except Corrupt:
        return False
    return True


@given(rows.filter(bool), st.data())
def test_no_single_flipped_bit_goes_unnoticed(found: list[tuple[int, int]], data: st.DataObject) -> None:
    raw = bytearray(encoded(found))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8

    with pytest.raises((Corrupt, UnsupportedFormat)):
        decoded(bytes(raw))


def test_an_object_that_is_cut_anywhere_is_damage() -> None:
    raw = encoded([(number << 40, number) for number in range(30)])

    for size in range(len(raw)):
        with pytest.raises(Corrupt):
            decoded(raw[:size])


@pytest.mark.parametrize(
    "other",
    [
        NAME._replace(first_offset=99),
        NAME._replace(next_offset=201),
        NAME._replace(version=18),
        NAME._replace(incarnation=UUID(int=4)),
        NAME._replace(uid=UUID(int=6)),
        NAME._replace(folder=KEYS.index_folder("amqp:key", 2)),
    ],
)
def test_the_directory_is_damage_under_another_key(other: IndexName) -> None:
    raw = encoded([(1, 7), (2**48 - 1, 99)])
    shape = IndexShape(2)
    start, size = shape.entries(0, 1)

    with pytest.raises(Corrupt, match="index bucket checksum"):
        Directory.decode(raw[start : start + size], shape, 0, 1, where=KEYS.index(other))


def test_a_newer_header_asks_for_an_upgrade() -> None:
    raw = bytearray(encoded([])[IndexShape(0).header_start :])
    raw[INDEX_OBJECT_HEADER.offset_of("format_version") + 1] = 2
    raw[-4:] = crc32c(raw[:-4]).to_bytes(4, "big")

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        check_index_header(bytes(raw), "orders", NAME, IndexShape(0))


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**33))
def test_the_top_bits_of_a_hash_are_its_bucket(term_hash: int, count: int) -> None:
    shape = IndexShape(count)

    assert shape.bucket_of(term_hash) == term_hash * shape.buckets // 2**48
    assert count <= shape.buckets * 4


def test_a_key_has_its_name_and_nothing_else_has() -> None:
    key = KEYS.index(NAME)

    assert KEYS.parse_index(key) == NAME
    assert key == (
        "orders/index/amqp%3Akey.1/00000000000000000100.00000000000000000200.00000000000000000017"
        ".00000000-0000-0000-0000-000000000003.00000000-0000-0000-0000-000000000005.index"
    )
    for other in (
        key.replace("200", "100", 1),  # covers nothing
        key.replace("00000000000000000200", "00000000004294967397"),  # more than 2^32 offsets
        key.replace("00000000000000000017", "99999999999999999999"),  # above 64 bits
        key.replace(".1/", ".01/"),
        key.replace("orders", "other"),
        key + "x",
    ):
        assert KEYS.parse_index(other) is None
