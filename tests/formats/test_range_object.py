"""Tests of range objects as bytes: their layout is fixed, and no damage goes unnoticed."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from uuid import UUID

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from offload import Corrupt, Misuse
from offload.formats.block_codecs import compressor
from offload.formats.checksums import crc32c
from offload.formats.keys import IndexName, StreamKeys
from offload.formats.range_object import (
    RANGE_LEDGER,
    RANGE_OBJECT_HEADER,
    LedgerRanges,
    decode_ranges,
    encode_ranges,
)
from offload.model.compression import BlockCodec, Compression

KEYS = StreamKeys("orders")
NAME = IndexName(KEYS.index_folder("ranges=mqtt:topic", 1), 100, 300, 17, UUID(int=3), UUID(int=5))
GOLDEN_HEADER = "4f4c5258 0001 0000 00000060"
GOLDEN_BODY = """
0000000000000064 00000000000000c8 00000005 00000002 00000003
61626f7574 00000000 0000000a 0000 0001 0002 0002 0001 0000 6161 62
00000000000000c8 000000000000012c 00000000 00000001 00000000
00000000 0000 0000 0000 0000
"""
"""Two ledgers: one with keys `aa`, `ab`, `ab`, and one whose keys are empty."""


def ledger(first: int, following: int, about: bytes, offsets: list[int], keys: list[bytes]) -> LedgerRanges:
    """Return the ranges of a ledger."""
    return LedgerRanges(first, following, about, np.array(offsets, np.uint64), keys)


def plain(ledgers: list[LedgerRanges]) -> list[tuple[object, ...]]:
    """Return ledgers as values that can be compared."""
    return [(e.first_offset, e.next_offset, e.about, e.offsets.tolist(), [*e.keys]) for e in ledgers]


EXAMPLE = [
    ledger(100, 200, b"about", [100, 110], [b"aa", b"ab", b"ab"]),
    ledger(200, 300, b"", [200], [b"", b""]),
]


@st.composite
def some_ledgers(draw: st.DrawFn) -> list[LedgerRanges]:
    """Return ledgers that cover the offsets of the name."""
    edges = sorted({100, 300, *draw(st.lists(st.integers(101, 299), max_size=4))})
    found = []
    for first, following in pairwise(edges):
        offsets = sorted({first, *draw(st.lists(st.integers(first, following - 1), max_size=9))})
        keys = sorted(draw(st.binary(max_size=4)) for _ in [*offsets, 0])
        found.append(ledger(first, following, draw(st.binary(max_size=9)), offsets, keys))
    return found


@given(some_ledgers())
def test_decoding_undoes_encoding(ledgers: list[LedgerRanges]) -> None:
    assert plain(decode_ranges(encode_ranges("orders", NAME, ledgers), "orders", NAME)) == plain(ledgers)


def test_the_bytes_are_fixed() -> None:
    """The compression of the body may change with its library, and its content may not."""
    raw, size = encode_ranges("orders", NAME, EXAMPLE), RANGE_OBJECT_HEADER.size_bytes

    assert zstandard.ZstdDecompressor().decompress(raw[size:]) == bytes.fromhex(GOLDEN_BODY)
    assert raw[:12].hex() == bytes.fromhex(GOLDEN_HEADER)[:12].hex()
    assert decode_ranges(sealed(bytes.fromhex(GOLDEN_BODY)), "orders", NAME)


def sealed(body: bytes, *, size_bytes: int | None = None, version: int = 1, reserved: int = 0) -> bytes:
    """Return an object with this body and a right checksum."""
    size = len(body) if size_bytes is None else size_bytes
    packed = compressor(Compression(BlockCodec.ZSTD, 3))(body)
    head = b"OLRX" + version.to_bytes(2, "big") + reserved.to_bytes(2, "big") + size.to_bytes(4, "big")
    return head + crc32c(KEYS.index(NAME).encode() + head + packed).to_bytes(4, "big") + packed


def test_an_object_that_is_cut_at_any_byte_is_damage() -> None:
    raw = encode_ranges("orders", NAME, EXAMPLE)
    for size in range(len(raw)):
        with pytest.raises(Corrupt):
            decode_ranges(raw[:size], "orders", NAME)


def test_no_single_flipped_bit_goes_unnoticed() -> None:
    raw = bytearray(encode_ranges("orders", NAME, EXAMPLE))
    for bit in range(len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode_ranges(raw, "orders", NAME)
        raw[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize(
    "name", [NAME._replace(uid=UUID(int=6)), NAME._replace(folder="ranges%3Dx.1"), NAME._replace(version=1)]
)
def test_an_object_under_another_key_is_damage(name: IndexName) -> None:
    with pytest.raises(Corrupt):
        decode_ranges(encode_ranges("orders", NAME, EXAMPLE), "orders", name)


BODY = bytes.fromhex(GOLDEN_BODY)
FIRST = 28 + 5 + 8 + 12 + 3
"""The size of the first ledger in the body."""


def changed(at: int, *values: int) -> bytes:
    """Return the body with other bytes at a position."""
    return BODY[:at] + bytes(values) + BODY[at + len(values) :]


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(sealed(BODY, version=2), id="a newer version"),
        pytest.param(sealed(BODY, reserved=1), id="reserved bytes"),
        pytest.param(sealed(BODY, size_bytes=2**32 - 1), id="a size of 4 GiB"),
        pytest.param(sealed(b""), id="no ledger"),
        pytest.param(sealed(BODY[:FIRST]), id="a ledger is missing"),
        pytest.param(sealed(BODY[FIRST:]), id="the first ledger is missing"),
        pytest.param(sealed(BODY + BODY), id="ledgers twice"),
        pytest.param(sealed(BODY[:-1]), id="cut within a ledger"),
        pytest.param(sealed(changed(16, 0xFF)), id="a huge size of about"),
        pytest.param(sealed(changed(20, 0xFF, 0xFF, 0xFF, 0xFF)), id="2^32 ranges"),
        pytest.param(sealed(changed(23, 0)), id="no range"),
        pytest.param(sealed(changed(27, 4)), id="fewer bytes of keys than rests"),
        pytest.param(sealed(changed(36, 1)), id="the first range begins behind its ledger"),
        pytest.param(sealed(changed(40, 0)), id="two ranges at one offset"),
        pytest.param(sealed(changed(40, 100)), id="a range behind the ledger"),
        pytest.param(sealed(changed(42, 1)), id="a first key that shares bytes"),
        pytest.param(sealed(changed(55, 0x60)), id="keys that fall"),
    ],
)
def test_bytes_with_a_right_checksum_are_not_believed(raw: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_ranges(raw, "orders", NAME)


def bomb(*, count: int, shared: int) -> bytes:
    """Return a body whose keys have nearly all bytes from the first one, and count up in two bytes more."""
    rests = [bytes(shared), *(number.to_bytes(2, "big") for number in range(1, count + 1))]
    sizes = np.array([0, *[shared] * count, *map(len, rests)], ">u2")
    head = RANGE_LEDGER.pack(
        first_offset=100,
        next_offset=300,
        about_size_bytes=0,
        range_count=count,
        key_bytes=sum(map(len, rests)),
    )
    steps = np.minimum(np.arange(count), 1).astype(">u4")
    return b"".join([head, steps.tobytes(), sizes.tobytes(), *rests])


@pytest.mark.parametrize(("count", "shared"), [(199, 2**16 - 1), (20_000, 2**16 - 3)])
def test_keys_that_state_more_than_they_may_have_take_no_memory(count: int, shared: int) -> None:
    """A few bytes of an object are a key of 64 KiB, if it has the rest from the key before."""
    raw = sealed(bomb(count=count, shared=shared))

    tracemalloc.start()
    with pytest.raises(Corrupt, match="keys of"):
        decode_ranges(raw, "orders", NAME)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 2**22


@pytest.mark.parametrize(
    "ledgers",
    [
        pytest.param(EXAMPLE[:1], id="an end is left out"),
        pytest.param(EXAMPLE[1:], id="a beginning is left out"),
        pytest.param([EXAMPLE[0], ledger(200, 300, b"", [200], [b"b", b"a"])], id="keys that fall"),
        pytest.param([EXAMPLE[0], ledger(200, 300, b"", [200], [b"b"])], id="a key is missing"),
        pytest.param([EXAMPLE[0], ledger(200, 300, b"", [200], [b"", b"x" * 2**16])], id="a long key"),
    ],
)
def test_ledgers_that_a_reader_would_refuse_are_not_encoded(ledgers: list[LedgerRanges]) -> None:
    with pytest.raises(Misuse):
        encode_ranges("orders", NAME, ledgers)
