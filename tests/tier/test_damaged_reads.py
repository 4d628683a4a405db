"""Tests of reading a damaged tier: everything before the damage is delivered, and nothing else.

Each used byte is damaged in turn: tier anchor, stream anchor, newest root, the group of the first two
fragments, and of every fragment the chunks with header, filter and trailer, index, description and trailer.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
from pathlib import Path

import pytest
import small_tier
from campaign import CAMPAIGN
from small_tier import Delivered, Objects, marked_chunks

from offload.formats.fragment_trailer import HEADER
from offload.ground.errors import Corrupt, OffloadError

FRAGMENTS = {0: marked_chunks(2), 10: marked_chunks(1, first_number=2), 15: marked_chunks(2, first_number=3)}
"""The first offset and the chunks of each fragment of `marked`."""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    """Return a small tier. Tests damage copies of it."""
    return small_tier.make(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def whole(objects: Objects) -> Delivered:
    """Return all messages of `marked`."""
    delivered, error = small_tier.read(objects, "marked")
    assert error is None
    assert len(delivered) == small_tier.MARKED_MESSAGES
    return delivered


def flipped(raw: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[position] ^= 1 << bit
    return bytes(changed)


def bits(position: int) -> range | list[int]:
    return range(8) if CAMPAIGN else [random.Random(position).randrange(8)]


def newest_root(objects: Objects) -> str:
    return max(key for key in objects if key.startswith("marked/metadata/"))


def group(objects: Objects) -> str:
    [key] = [key for key in objects if key.startswith("marked/groups/")]
    return key


def fragment(objects: Objects, first_offset: int) -> str:
    [key] = [key for key in objects if key.startswith(f"marked/data/{first_offset:020}.")]
    return key


@pytest.mark.parametrize("which", ["tier.anchor", "marked/stream.anchor", "newest root"])
def test_a_damaged_bit_before_any_data_delivers_nothing(objects: Objects, which: str) -> None:
    """Above all, no older root replaces a damaged newest one."""
    key = newest_root(objects) if which == "newest root" else which
    for position in range(len(objects[key])):
        for bit in bits(position):
            damaged = objects | {key: flipped(objects[key], position, bit)}
            delivered, error = small_tier.read(damaged, "marked")
            assert (delivered, isinstance(error, OffloadError)) == ([], True), position


@pytest.mark.parametrize("cut", [0, 100, -1])
def test_a_shortened_newest_root_is_refused(objects: Objects, cut: int) -> None:
    key = newest_root(objects)

    delivered, error = small_tier.read(objects | {key: objects[key][:cut]}, "marked")

    assert delivered == []
    assert isinstance(error, Corrupt)
    assert error.where == key


def test_a_damaged_group_delivers_none_of_its_fragments(objects: Objects) -> None:
    key = group(objects)
    for position in range(len(objects[key])):
        for bit in bits(position):
            damaged = objects | {key: flipped(objects[key], position, bit)}
            delivered, error = small_tier.read(damaged, "marked")
            assert (delivered, isinstance(error, Corrupt)) == ([], True), position
            assert key in str(error), position


@pytest.mark.parametrize("first_offset", [0, 10, 14])
def test_a_missing_or_wrong_group_is_refused(objects: Objects, first_offset: int, tmp_path: Path) -> None:
    key, other = group(objects), small_tier.make(tmp_path)
    without = {stands: raw for stands, raw in objects.items() if stands != key}

    for raw in (None, b"", objects[key][:-1], other[group(other)], objects[fragment(objects, 0)]):
        damaged = without if raw is None else without | {key: raw}
        delivered, error = small_tier.read(damaged, "marked", first_offset)
        assert delivered == []
        assert isinstance(error, Corrupt)
        assert error.where == key


def test_a_stream_is_readable_behind_a_damaged_group(objects: Objects, whole: Delivered) -> None:
    damaged = objects | {group(objects): b""}

    assert small_tier.read(damaged, "marked", 15) == ([row for row in whole if row[0] >= 15], None)


@pytest.mark.parametrize("first_offset", FRAGMENTS)
def test_everything_before_a_damaged_chunk_is_delivered(
    objects: Objects, whole: Delivered, first_offset: int
) -> None:
    key = fragment(objects, first_offset)
    starts = [HEADER.size_bytes, *(len(chunk) for chunk in FRAGMENTS[first_offset])]
    *starts, index_start = itertools.accumulate(starts)
    raw = objects[key]
    for position in range(HEADER.size_bytes, len(raw), 1 if CAMPAIGN else 29):
        number = bisect_right(starts, position) - 1
        first_lost = first_offset + (number // 2 * 5 + number % 2 * 4 if position < index_start else 0)
        expected = [row for row in whole if row[0] < first_lost]
        for bit in bits(position):
            damaged = objects | {key: flipped(raw, position, bit)}
            delivered, error = small_tier.read(damaged, "marked")
            assert delivered == expected, position
            assert isinstance(error, OffloadError), position
            assert key in str(error), position


def test_damage_in_unused_bytes_does_not_stop_a_reader(objects: Objects, whole: Delivered) -> None:
    """Superseded roots, fragments that no root names, and the 16 bytes before a fragment's chunks."""
    unused = [key for key in objects if key.startswith("marked/metadata/")]
    unused.remove(newest_root(objects))
    unused += [key for key in objects if key.startswith(f"marked/data/{25:020}.")]
    assert len(unused) == 12

    for key in unused:
        damaged = objects | {key: flipped(objects[key], len(objects[key]) // 2, 3)}
        assert small_tier.read(damaged, "marked") == (whole, None)
    key = fragment(objects, 10)
    assert small_tier.read(objects | {key: flipped(objects[key], 3, 0)}, "marked") == (whole, None)


@pytest.mark.parametrize("first_offset", FRAGMENTS)
def test_a_missing_or_shortened_fragment_ends_the_reading_at_its_beginning(
    objects: Objects, whole: Delivered, first_offset: int
) -> None:
    key = fragment(objects, first_offset)
    expected = [row for row in whole if row[0] < first_offset]
    without = {other: raw for other, raw in objects.items() if other != key}

    for damaged in (without, without | {key: objects[key][:-1]}, without | {key: b""}):
        delivered, error = small_tier.read(damaged, "marked")
        assert delivered == expected
        assert isinstance(error, Corrupt)
        assert error.where == key


def test_two_swapped_fragments_deliver_no_wrong_data(objects: Objects, whole: Delivered) -> None:
    for one, other in itertools.combinations(FRAGMENTS, 2):
        a, b = fragment(objects, one), fragment(objects, other)

        delivered, error = small_tier.read(objects | {a: objects[b], b: objects[a]}, "marked")

        assert delivered == [row for row in whole if row[0] < one]
        assert isinstance(error, Corrupt)


def test_the_fragment_of_another_tier_with_the_same_data_is_refused(objects: Objects, tmp_path: Path) -> None:
    other = small_tier.make(tmp_path)
    key = fragment(objects, 0)

    delivered, error = small_tier.read(objects | {key: other[fragment(other, 0)]}, "marked")

    assert delivered == []
    assert isinstance(error, Corrupt)
