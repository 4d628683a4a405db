"""Tests of a shared note's bytes: pinned, decoding undoes encoding, every flip and cut is found."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.formats.checksums import crc32c
from offload.formats.keys import NoteName, StreamKeys
from offload.formats.shared_note import NOTE_OBJECT_SIZE_BYTES_MAX, NOTE_VALUE_SIZE_BYTES_MAX, NoteObject
from offload.ground.errors import Corrupt, UnsupportedFormat

KEYS: Final = StreamKeys("orders")
NAME: Final = NoteName("group%2Eg1", UUID(int=3), 2)
SAMPLE: Final = NoteObject(
    name=NAME, base_version=17, uid=UUID(int=5), parents=(UUID(int=4),), value=b"the value"
)
VERSION_1: Final = (
    "4f4c4e5400010000914e998c9f1718007ef65bdcbfc2fd2d3145a5f6580c6dc03ccbee7e866623180000000000000011"
    "000000000000000000000000000000050000000100000009000000000000000000000000000000047468652076616c75"
    "653c7cc1d9"
)


def decode(raw: bytes, name: NoteName = NAME) -> NoteObject:
    return NoteObject.decode(raw, name, where=KEYS.note(name))


def test_the_bytes_of_version_1_do_not_change() -> None:
    assert SAMPLE.encode(KEYS).hex() == VERSION_1


@given(st.integers(1, 100), st.binary(max_size=99))
def test_decoding_undoes_encoding(number: int, value: bytes) -> None:
    parents = tuple(UUID(int=each) for each in range(min(number - 1, 32)))
    note = NoteObject(
        name=NAME._replace(number=number), base_version=1, uid=UUID(int=9), parents=parents, value=value
    )

    assert decode(note.encode(KEYS), note.name) == note


def test_the_largest_note_can_be_read_and_no_larger_object() -> None:
    parents = tuple(UUID(int=each) for each in range(32))
    value = bytes(NOTE_VALUE_SIZE_BYTES_MAX)
    name = NAME._replace(number=99)
    note = NoteObject(name=name, base_version=1, uid=UUID(int=9), parents=parents, value=value)

    raw = note.encode(KEYS)
    assert len(raw) == NOTE_OBJECT_SIZE_BYTES_MAX
    assert decode(raw, name) == note
    with pytest.raises(Corrupt, match="note size"):
        decode(raw + b"x", name)


def test_no_flipped_bit_and_no_cut_goes_unnoticed() -> None:
    raw = SAMPLE.encode(KEYS)

    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode(bytes(damaged))
    for size in range(len(raw)):
        with pytest.raises(Corrupt):
            decode(raw[:size])


@pytest.mark.parametrize(
    "other", [NAME._replace(number=3), NAME._replace(incarnation=UUID(int=4)), NAME._replace(folder="g2")]
)
def test_a_note_is_damage_under_another_key(other: NoteName) -> None:
    with pytest.raises(Corrupt, match="note key"):
        decode(SAMPLE.encode(KEYS), other)


@pytest.mark.parametrize(
    ("position", "number", "what"),
    [(7, 1, "reserved"), (67, 2, "parents"), (67, 0, "parents"), (71, 10, "size"), (68, 255, "size")],
)
def test_a_forged_number_allocates_nothing_and_is_damage(position: int, number: int, what: str) -> None:
    body = bytearray(SAMPLE.encode(KEYS)[:-4])
    body[position] = number

    with pytest.raises(Corrupt, match=f"note {what}"):
        decode(bytes(body) + crc32c(body).to_bytes(4, "big"))


def test_a_newer_note_asks_for_an_upgrade() -> None:
    body = bytearray(SAMPLE.encode(KEYS)[:-4])
    body[5] = 2

    with pytest.raises(UnsupportedFormat, match="upgrade"):
        decode(bytes(body) + crc32c(body).to_bytes(4, "big"))


def test_a_key_has_its_name_and_nothing_else_has() -> None:
    key = KEYS.note(NAME)

    assert key == "orders/notes/group%2Eg1/00000000-0000-0000-0000-000000000003.00000000000000000002.note"
    assert KEYS.parse_note(key) == NAME
    for other in (
        key.replace("00000000000000000002", "00000000000000000000"),
        key.replace("00000000000000000002", f"{2**63}".zfill(20)),
        key.replace("00000000000000000002", "99999999999999999999"),
        key.replace("00000000000000000002", "2"),
        key.replace("orders", "other"),
        key.replace("group%2Eg1", "a/b"),
        key + "x",
    ):
        assert KEYS.parse_note(other) is None
