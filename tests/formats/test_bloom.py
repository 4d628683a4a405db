"""Tests of bloom filters: they equal osiris' filters, bit by bit."""

from __future__ import annotations

import osiris_data
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.formats.bloom import build_filter, filter_bits, matches
from offload.formats.chunk import ChunkHeader
from offload.ground.errors import Misuse

SIZES = st.integers(16, 255)
VALUES = st.lists(st.none() | st.binary(max_size=40), max_size=20)
FILTERED = osiris_data.MANIFEST["streams"]["filtered"]


def filters() -> list[bytes]:
    found = []
    for chunk in osiris_data.chunks("filtered"):
        header = ChunkHeader.decode(chunk, where="filtered")
        found.append(chunk[48 : header.data_start])
    return found


@pytest.mark.parametrize(("value", "bits", "first", "second"), FILTERED["filter_hashes"]["rows"])
def test_a_value_sets_the_bits_that_erlang_computed(value: str, bits: int, first: int, second: int) -> None:
    assert filter_bits(value.encode(), bits // 8) == (first, second)


def test_real_filters_are_rebuilt_from_the_values_of_their_chunks() -> None:
    found = filters()

    assert {len(each) for each in found} == {0, 16, 64}
    for number, real in enumerate(found):
        assert build_filter(osiris_data.filter_values_of(number), 16 if number < 40 else 64) == real


def test_real_filters_never_deny_a_value_that_they_contain() -> None:
    for number, real in enumerate(filters()):
        for value in set(osiris_data.filter_values_of(number)):
            assert matches(real, value)


def test_real_filters_deny_most_values_that_they_lack() -> None:
    yes = sum(matches(real, b"g%d" % other) for real in filters() for other in range(100, 200))

    assert yes < len(filters()) * 100 * 0.02


@given(VALUES, SIZES)
def test_a_filter_never_denies_an_added_value(values: list[bytes | None], size: int) -> None:
    built = build_filter(values, size)

    assert len(built) == (size if any(values) else 0)
    assert all(matches(built, value) for value in values)
    assert matches(built, None) == (not any(values) or not all(values))


@given(st.binary(max_size=40), SIZES)
def test_bit_0_belongs_to_records_without_a_value(value: bytes, size: int) -> None:
    assert all(1 <= bit < size * 8 for bit in filter_bits(value, size))


def test_a_chunk_without_filter_has_only_records_without_value() -> None:
    assert matches(b"", None)
    assert not matches(b"", b"g0")


@pytest.mark.parametrize("size", [0, 15, 256])
def test_sizes_that_osiris_refuses_are_refused(size: int) -> None:
    with pytest.raises(Misuse):
        build_filter([b"g0"], size)
