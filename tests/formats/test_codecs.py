"""Tests of the codecs of sub-batches: round trips, and the cost of false sizes and of compression bombs."""

from __future__ import annotations

import gzip
import tracemalloc
from contextlib import suppress

import lz4.frame
import pytest
import snappy
import zstandard
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st

from offload.formats.codecs import SUB_BATCH_SIZE_BYTES_MAX, Codec, compress, decompress
from offload.ground.errors import Corrupt, UnsupportedFormat

CODECS = st.sampled_from(Codec)
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


def undone(payload: bytes, codec: int, size_bytes: int) -> bytes:
    return decompress(payload, codec, size_bytes=size_bytes, where="chunk", position=77)


def peak_of_refusing(payload: bytes, codec: Codec, size_bytes: int) -> int:
    """Return the peak memory in bytes until `payload` is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            undone(payload, codec, size_bytes)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=300_000) | st.integers(0, 3_000_000).map(bytes), CODECS)
@settings(max_examples=60 if CAMPAIGN else 8, deadline=None)
def test_decompressing_undoes_compressing(data: bytes, codec: Codec) -> None:
    assert undone(compress(data, codec), codec, len(data)) == data


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 2**20 + 1, 5 * 2**20])
@pytest.mark.parametrize("codec", Codec)
def test_sizes_around_a_step_decompress_completely(codec: Codec, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)

    assert undone(compress(data, codec), codec, size) == data


def test_streams_of_other_writers_are_read() -> None:
    data = b"a message " * 10_000
    unsized = zstandard.ZstdCompressor(write_content_size=False).compressobj()

    for codec, payload in (
        (Codec.GZIP, gzip.compress(data)),
        (Codec.SNAPPY, snappy.StreamCompressor().add_chunk(data)),
        (Codec.LZ4, lz4.frame.compress(data, block_linked=False, store_size=False)),
        (Codec.ZSTD, unsized.compress(data) + unsized.flush()),
    ):
        assert undone(payload, codec, len(data)) == data


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_a_codec_without_meaning_asks_for_an_upgrade(codec: int) -> None:
    with pytest.raises(UnsupportedFormat, match="byte 77"):
        undone(b"?", codec, 1)


@pytest.mark.parametrize("claim", [9_999, 10_001, 0, 2**28])
@pytest.mark.parametrize("codec", Codec)
def test_a_claimed_size_that_differs_from_the_real_one_is_corrupt(codec: Codec, claim: int) -> None:
    with pytest.raises(Corrupt) as caught:
        undone(compress(b"x" * 10_000, codec), codec, claim)

    assert (caught.value.where, caught.value.position) == ("chunk", 77)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_compressed_stream_that_is_cut_anywhere_is_corrupt(codec: Codec) -> None:
    data = bytes(range(256)) * 20
    payload = compress(data, codec)

    for size in range(len(payload)):
        with pytest.raises(Corrupt):
            undone(payload[:size], codec, len(data))


@pytest.mark.parametrize("garbage", [b"\0", b"garbage", bytes(300)])
@pytest.mark.parametrize("codec", Codec)
def test_bytes_after_the_compressed_stream_are_corrupt(codec: Codec, garbage: bytes) -> None:
    with pytest.raises(Corrupt):
        undone(compress(b"x" * 5_000, codec) + garbage, codec, 5_000)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_second_compressed_stream_is_corrupt(codec: Codec) -> None:
    half = compress(b"x" * 5_000, codec)

    with pytest.raises(Corrupt):
        undone(half + half, codec, 10_000)


@given(st.binary(max_size=200), st.sampled_from(COMPRESSED))
def test_arbitrary_bytes_are_corrupt_and_never_another_error(payload: bytes, codec: Codec) -> None:
    with pytest.raises(Corrupt):
        undone(payload, codec, 100)


@given(st.data(), st.sampled_from(COMPRESSED))
@settings(deadline=None)
def test_a_damaged_stream_is_corrupt_or_yields_the_same(data: st.DataObject, codec: Codec) -> None:
    """Every codec here checks its data, but a few bits in the head of a compressed stream have no meaning."""
    original = b"".join(b"message %d, " % i for i in range(300))
    payload = bytearray(compress(original, codec))
    bit = data.draw(st.integers(0, len(payload) * 8 - 1))
    payload[bit // 8] ^= 1 << bit % 8

    with suppress(Corrupt):
        assert undone(bytes(payload), codec, len(original)) == original


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_refused_at_once_and_in_little_memory(codec: Codec) -> None:
    """64 MiB of zeros are compressed into a sub-batch that claims 1,000 bytes."""
    bomb = compress(bytes(64 * 2**20), codec)

    assert peak_of_refusing(bomb, codec, 1_000) < 12 * 2**20


@pytest.mark.parametrize("codec", Codec)
def test_a_large_claim_alone_costs_no_memory(codec: Codec) -> None:
    payload = compress(b"small", codec)

    assert peak_of_refusing(payload, codec, SUB_BATCH_SIZE_BYTES_MAX) < 4 * 2**20


def test_a_sub_batch_above_the_documented_cap_is_refused_unread() -> None:
    for claim in (SUB_BATCH_SIZE_BYTES_MAX + 1, 2**32 - 1):
        assert peak_of_refusing(b"never looked at", Codec.GZIP, claim) < 2**16
