"""Tests of sealed parts: each opens only in its own place, with its own key, unchanged."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.formats.sealing import TAG_SIZE_BYTES, DataKey, SealedKind, SealedRange, unwrapped
from offload.ground.errors import Corrupt, Denied

PLAIN: Final = b"a customer's order"
GOLDEN: Final = "1aac5458a08580915bd400857344d793eb314eb0ac66149afec74472de6faf576238"
"""`PLAIN` at `PART`, under a key of zeros."""

PART: Final = SealedRange(kind=SealedKind.BLOCK, number=3, plain_size_bytes=len(PLAIN), codec=1)


def fresh(**changes: Any) -> DataKey:
    return replace(
        DataKey(raw=bytes(32), incarnation=UUID(int=1), attempt=UUID(int=2), first_offset=5),
        _digests={},
        **changes,
    )


def test_the_bytes_of_a_sealed_block_do_not_drift() -> None:
    sealed = fresh().seal(PLAIN, PART)

    assert sealed.hex() == GOLDEN
    assert len(sealed) == len(PLAIN) + TAG_SIZE_BYTES
    assert fresh().open(sealed, PART, where="w", position=0) == PLAIN


@given(st.integers(0, (len(PLAIN) + TAG_SIZE_BYTES) * 8 - 1))
def test_a_flipped_bit_does_not_open(bit: int) -> None:
    sealed = bytearray(fresh().seal(PLAIN, PART))
    sealed[bit // 8] ^= 1 << bit % 8

    with pytest.raises(Corrupt, match="seal of block 3"):
        fresh().open(bytes(sealed), PART, where="w", position=0)


@pytest.mark.parametrize(
    "part",
    [
        replace(PART, kind=SealedKind.SECTION),
        replace(PART, number=4),
        replace(PART, plain_size_bytes=1),
        replace(PART, codec=2),
        replace(PART, is_last=True),
    ],
)
def test_a_block_does_not_open_in_another_place(part: SealedRange) -> None:
    with pytest.raises(Corrupt):
        fresh().open(fresh().seal(PLAIN, PART), part, where="w", position=0)


@pytest.mark.parametrize(
    "change",
    [{"raw": b"k" * 32}, {"incarnation": UUID(int=9)}, {"attempt": UUID(int=9)}, {"first_offset": 6}],
    ids=str,
)
def test_a_block_does_not_open_in_another_fragment(change: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        fresh(**change).open(fresh().seal(PLAIN, PART), PART, where="w", position=0)


@pytest.mark.parametrize("size", [0, 1, TAG_SIZE_BYTES - 1])
def test_a_part_that_is_cut_does_not_open(size: int) -> None:
    with pytest.raises(Corrupt):
        fresh().open(fresh().seal(PLAIN, PART)[:size], PART, where="w", position=0)


def test_a_part_is_sealed_again_with_the_same_bytes_alone() -> None:
    """A second pass over a source that has changed would encrypt two texts with one nonce."""
    key = fresh()

    assert key.seal(PLAIN, PART) == key.seal(PLAIN, PART)
    with pytest.raises(Corrupt, match="bytes of a second read"):
        key.seal(PLAIN[::-1], PART)


@pytest.mark.parametrize("change", [{"plain_size_bytes": 1}, {"codec": 2}, {"is_last": True}], ids=str)
def test_a_part_is_not_sealed_again_for_another_place(change: dict[str, Any]) -> None:
    """Two tags of one nonce give away the key of the tags, also for the same bytes."""
    key = fresh()
    key.seal(PLAIN, PART)

    with pytest.raises(Corrupt, match="bytes of a second read"):
        key.seal(PLAIN, replace(PART, **change))


def test_a_key_makes_one_tag_alone() -> None:
    key = fresh()

    assert key.tag_of(b"header and index") == key.tag_of(b"header and index")
    with pytest.raises(Corrupt, match="bytes of a second read"):
        key.tag_of(b"header and another index")


def test_the_tag_covers_what_stays_readable() -> None:
    tag = fresh().tag_of(b"header, index and trailer")

    assert len(tag) == TAG_SIZE_BYTES
    assert tag != fresh().tag_of(b"header, index and trailer.")
    assert tag != fresh(first_offset=6).tag_of(b"header, index and trailer")


def test_a_wrapped_key_opens_with_its_stream_key_alone() -> None:
    wrapped = fresh(raw=b"d" * 32).wrapped(b"s" * 32)

    assert unwrapped(wrapped, b"s" * 32, where="w") == b"d" * 32
    for other, damaged in (
        (b"t" * 32, wrapped),
        (b"s" * 32, wrapped[:-1]),
        (b"s" * 32, b""),
        (b"s" * 32, bytes(40)),
    ):
        with pytest.raises(Denied, match="another key"):
            unwrapped(damaged, other, where="w")


def test_no_key_is_in_a_text_or_a_pickle() -> None:
    key = fresh(raw=b"hush" * 8)
    key.seal(PLAIN, PART)

    assert "hush" not in repr(key)
    assert "hush" not in str(vars(key) if hasattr(key, "__dict__") else key)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(key)
