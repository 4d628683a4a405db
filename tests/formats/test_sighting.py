"""Tests of a sighting's bytes: pinned, decoding undoes encoding, every flipped bit is found, sizes
checked.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.formats.checksums import crc32c
from offload.formats.keys import StreamKeys
from offload.formats.sighting import (
    NO_ROWS,
    ROWS_MAX,
    SIGHTING_HEADER,
    SIGHTING_ROW,
    Sighting,
    SightingRows,
    as_bytes,
)
from offload.ground.errors import Corrupt


def rows_of(*rows: tuple[int, int, int, UUID]) -> SightingRows:
    packed = b"".join(
        SIGHTING_ROW.pack(kind=kind, first_offset=first, version=version, uid=uid.bytes)
        for kind, first, version, uid in rows
    )
    return np.frombuffer(packed, SIGHTING_ROW.dtype)


SAMPLE: Final = Sighting(
    stream="orders",
    uid=UUID(int=0xA1),
    time_ms=1_700_000_000_123,
    version=17,
    rows=rows_of((0, 100, 0, UUID(int=0xB2)), (1, 100, 12, UUID(int=0xC3)), (4, 0, 3, UUID(int=0))),
)
VERSION_1: Final = (
    "4f4c5347000100001c168adb00d208e42f93314529f1fa9c0427eb63233ceda95a5db52b7012a7190000000000000000"
    "00000000000000a10000018bcfe5687b0000000000000011000000030000000000000000640000000000000000000000"
    "000000000000000000000000b2010000000000000064000000000000000c000000000000000000000000000000c30400"
    "00000000000000000000000000000300000000000000000000000000000000b455ce72"
)
u64 = st.integers(0, 2**64 - 1)
names = st.tuples(st.integers(0, 4), u64, u64, st.uuids())


def decode(raw: bytes) -> Sighting:
    return Sighting.decode(raw, stream="orders", where="memory")


def sealed(body: bytes) -> bytes:
    """Return `body` with a valid checksum."""
    return body + crc32c(body).to_bytes(4, "big")


def test_the_bytes_of_version_1_do_not_drift() -> None:
    assert SAMPLE.encode().hex() == VERSION_1


@given(u64, u64, st.uuids(), st.lists(names, max_size=9, unique=True))
def test_decoding_undoes_encoding(
    time_ms: int, version: int, uid: UUID, objects: list[tuple[int, int, int, UUID]]
) -> None:
    in_order = sorted(objects, key=lambda row: (*row[:3], row[3].bytes))
    sighting = Sighting(stream="orders", uid=uid, time_ms=time_ms, version=version, rows=rows_of(*in_order))

    found = decode(sighting.encode())

    assert (found.uid, found.time_ms, found.version) == (uid, time_ms, version)
    assert found.rows.tobytes() == sighting.rows.tobytes()
    assert found.encode() == sighting.encode()


def test_no_single_flipped_bit_goes_unnoticed() -> None:
    for position in range(8 * len(SAMPLE.encode())):
        raw = bytearray(SAMPLE.encode())
        raw[position // 8] ^= 1 << position % 8

        with pytest.raises(Corrupt):
            pytest.fail(f"bit {position} is not noticed: {decode(bytes(raw))}")


def test_a_shortened_sighting_is_refused() -> None:
    for size in range(len(SAMPLE.encode())):
        with pytest.raises(Corrupt):
            pytest.fail(f"{size} bytes are taken: {decode(SAMPLE.encode()[:size])}")


def test_a_sighting_of_another_stream_is_refused() -> None:
    with pytest.raises(Corrupt, match="sighting stream"):
        Sighting.decode(SAMPLE.encode(), stream="other", where="memory")


@pytest.mark.parametrize("count", [0, 4, 2**32 - 1])
def test_a_wrong_size_is_refused_even_under_a_valid_checksum(count: int) -> None:
    body = bytearray(SAMPLE.encode()[:-4])
    at = SIGHTING_HEADER.offset_of("row_count")
    body[at : at + 4] = count.to_bytes(4, "big")

    with pytest.raises(Corrupt, match="sighting size"):
        decode(sealed(bytes(body)))


def test_more_rows_than_a_sighting_may_have_are_refused() -> None:
    rows = np.zeros(ROWS_MAX + 1, SIGHTING_ROW.dtype)
    rows["first_offset"] = np.arange(ROWS_MAX + 1)

    with pytest.raises(Corrupt, match="sighting size"):
        decode(Sighting(stream="orders", uid=UUID(int=1), time_ms=0, version=1, rows=rows).encode())


@pytest.mark.parametrize(
    "rows",
    [
        rows_of((0, 2, 0, UUID(int=1)), (0, 1, 0, UUID(int=1))),
        rows_of((0, 1, 0, UUID(int=1)), (0, 1, 0, UUID(int=1))),
        rows_of((6, 1, 0, UUID(int=1))),
    ],
    ids=["out of order", "twice", "unknown kind"],
)
def test_rows_that_break_the_format_are_refused(rows: SightingRows) -> None:
    with pytest.raises(Corrupt, match="sighting rows"):
        decode(Sighting(stream="orders", uid=UUID(int=1), time_ms=0, version=1, rows=rows).encode())


def test_an_empty_sighting_is_sound() -> None:
    raw = Sighting(stream="orders", uid=UUID(int=1), time_ms=0, version=1, rows=NO_ROWS).encode()

    assert len(decode(raw).rows) == 0


@given(st.lists(names, min_size=2, max_size=6))
def test_rows_compare_as_their_bytes_do(objects: list[tuple[int, int, int, UUID]]) -> None:
    rows = rows_of(*objects)

    ordered = rows[np.argsort(as_bytes(rows), kind="stable")]

    assert [row.tobytes() for row in ordered] == sorted(row.tobytes() for row in rows)


@given(u64, st.uuids())
def test_the_key_of_a_sighting_parses_back_and_as_nothing_else(time_ms: int, uid: UUID) -> None:
    keys = StreamKeys("orders")

    key = keys.sighting(time_ms, uid)

    assert keys.parse_sighting(key) == (time_ms, uid)
    assert keys.parse_root(key) is keys.parse_group(key) is keys.parse_fragment(key) is None
    assert StreamKeys("other").parse_sighting(key) is None
    assert key.startswith(keys.sightings)
    assert not key.startswith(keys.roots)
