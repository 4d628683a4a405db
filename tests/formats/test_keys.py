"""Tests of keys: a stable escape, separate prefixes for streams, names that sort like their numbers."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offload.contracts.store import check_key
from offload.formats.keys import (
    ESCAPED_SIZE_BYTES_MAX,
    STREAM_SIZE_BYTES_MAX,
    TIER_ANCHOR,
    StreamKeys,
    escape,
    looks_escaped,
)
from offload.ground.errors import Misuse

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300).filter(
    lambda name: len(name.encode()) <= STREAM_SIZE_BYTES_MAX
)
u64 = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("orders", "orders"),
        ("Orders_2-b", "Orders_2-b"),
        ("a/b", "a%2Fb"),
        ("ü", "%C3%BC"),
        ("..", "%2E%2E"),
        (" ", "%20"),
        ("%2E", "%252E"),
        ("%s", "%25s"),
        ("stream.anchor", "stream%2Eanchor"),
        ("tier.anchor", "tier%2Eanchor"),
        ("metadata", "metadata"),
        ("\0", "%00"),
        ("x" * 200, "x" * 200),
        (
            "x" * 300,
            "x" * 134 + "%s0d4e2ca9e9cbced7a7a5380eb29e1a3783b9b6d0db72de36a1051038e1c1fbc7",
        ),
    ],
)
def test_the_escape_of_version_1_does_not_drift(name: str, escaped: str) -> None:
    assert escape(name) == escaped


@given(names, names)
@example("a", "A")
@example("a/b", "a%2Fb")
@example("x" * 300, "x" * 301)
@example("x" * 134 + "%s" + "0" * 64, "x" * 300)
def test_two_names_never_share_an_escape(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


@given(names)
@example("." * 4096)
def test_an_escape_is_a_single_plain_part_of_a_key(name: str) -> None:
    escaped = escape(name)

    assert re.fullmatch(r"[A-Za-z0-9_%-]{1,200}", escaped)
    assert len(escaped) <= ESCAPED_SIZE_BYTES_MAX
    assert looks_escaped(escaped)
    assert check_key(StreamKeys(name).fragment(2**64 - 1, UUID(int=0)))
    assert escaped != TIER_ANCHOR


@given(names)
def test_a_short_name_can_be_read_out_of_its_escape(name: str) -> None:
    escaped = escape(name)

    if "%s" not in escaped:
        parts = re.findall(r"%([0-9A-F]{2})|([A-Za-z0-9_-])", escaped)
        assert bytes(int(code, 16) if code else ord(plain) for code, plain in parts).decode() == name


def test_names_that_differ_only_in_case_are_two_streams() -> None:
    assert StreamKeys("Orders").prefix != StreamKeys("orders").prefix


@pytest.mark.parametrize("name", ["", "\ud800", "x" * 4097, "ü" * 2049])
def test_an_invalid_name_is_misuse(name: str) -> None:
    with pytest.raises(Misuse):
        escape(name)


def test_the_longest_name_is_valid() -> None:
    assert len(escape("x" * 4096)) == 200


@given(names, u64, st.uuids())
def test_parsing_undoes_naming(name: str, number: int, attempt: UUID) -> None:
    keys = StreamKeys(name)

    assert keys.parse_fragment(keys.fragment(number, attempt)) == (number, attempt)
    assert keys.parse_root(keys.root(number)) == number
    assert keys.parse_root(keys.fragment(number, attempt)) is None
    assert keys.parse_fragment(keys.root(number)) is None


@given(names, names, st.uuids(), st.uuids(), u64)
@example("orders", "order", UUID(int=0), UUID(int=0), 0)
def test_a_key_object_has_a_name_of_its_own(
    one: str, other: str, life: UUID, uid: UUID, generation: int
) -> None:
    mine, others = StreamKeys(one), StreamKeys(other)
    key, copy = mine.key_objects(life, uid, generation)

    assert key != copy
    for name in (key, copy):
        assert check_key(name).startswith(mine.keys_of_life(life))
        assert mine.keys_of_life(life).startswith(mine.stream_keys)
        assert mine.parse_key_object(name) == (life, uid, generation)
        assert (others.parse_key_object(name) is None) == (one != other)
        assert mine.parse_fragment(name) is mine.parse_root(name) is None
    assert mine.parse_key_object(mine.fragment(0, uid)) is mine.parse_key_object(mine.root(0)) is None


def test_the_names_of_key_objects_do_not_drift() -> None:
    keys = StreamKeys("a/b")
    name = (
        "a%2Fb/keys/00000000-0000-0000-0000-00000000000b.00000000-0000-0000-0000-00000000000a"
        ".00000000000000000012"
    )

    assert keys.stream_keys == "a%2Fb/keys/"
    assert keys.key_objects(UUID(int=11), UUID(int=10), 12) == (f"{name}.key", f"{name}.copy")


@given(names, names, u64, st.uuids())
def test_a_key_of_another_stream_does_not_parse(one: str, other: str, number: int, uid: UUID) -> None:
    mine, others = StreamKeys(one), StreamKeys(other)

    assert (mine.parse_fragment(others.fragment(number, uid)) is None) == (one != other)
    assert (mine.parse_root(others.root(number)) is None) == (one != other)
    assert others.prefix.startswith(mine.prefix) == (one == other)


@given(u64, u64, st.uuids(), st.uuids())
def test_keys_sort_by_name_as_by_number(a: int, b: int, uid: UUID, other: UUID) -> None:
    keys = StreamKeys("orders")

    assert (keys.root(a) < keys.root(b)) == (a < b)
    if a != b:
        assert (keys.fragment(a, uid) < keys.fragment(b, other)) == (a < b)
    assert (keys.before_fragments_of(a) < keys.fragment(b, uid)) == (a <= b)


@pytest.mark.parametrize(
    "key",
    [
        "orders/data/0.00000000-0000-0000-0000-000000000000.fragment",
        "orders/data/00000000000000000000.00000000-0000-0000-0000-00000000000.fragment",
        "orders/data/00000000000000000000.00000000-0000-0000-0000-00000000000A.fragment",
        "orders/data/00000000000000000000.00000000-0000-0000-0000-000000000000.fragment.tmp",
        "orders/data/"
        + "\N{ARABIC-INDIC DIGIT ZERO}" * 20
        + ".00000000-0000-0000-0000-000000000000.fragment",
        "orders/metadata/root.00000000000000000001.manifest\n",
        "orders/metadata/root.1.manifest",
        "orders/metadata/00000000000000000001.manifest",
        "order/metadata/root.00000000000000000001.manifest",
        "orders/keys/00000000-0000-0000-0000-000000000000.00000000-0000-0000-0000-00000000000.00000000000000000000.key",
        "orders/keys/00000000-0000-0000-0000-00000000000A.00000000-0000-0000-0000-000000000000.00000000000000000000.key",
        "orders/keys/00000000-0000-0000-0000-000000000000.00000000-0000-0000-0000-000000000000.key",
        "orders/keys/00000000-0000-0000-0000-000000000000.00000000-0000-0000-0000-000000000000.1.key",
        "orders/keys/00000000-0000-0000-0000-000000000000.00000000-0000-0000-0000-000000000000.99999999999999999999.key",
        "orders/keys/00000000-0000-0000-0000-000000000000.00000000-0000-0000-0000-000000000000.00000000000000000000.key\n",
        "orders/keys/00000000-0000-0000-0000-000000000000.00000000-0000-0000-0000-000000000000.00000000000000000000.key.tmp",
        "orders/keys/00000000-0000-0000-0000-000000000000.00000000000000000000.key",
        "orders/keys/x/00000000-0000-0000-0000-000000000000.00000000-0000-0000-0000-000000000000.00000000000000000000.key",
        "orders/key/00000000-0000-0000-0000-000000000000.00000000-0000-0000-0000-000000000000.00000000000000000000.key",
        "order/keys/00000000-0000-0000-0000-000000000000.00000000-0000-0000-0000-000000000000.00000000000000000000.key",
        "",
    ],
)
def test_an_almost_correct_key_does_not_parse(key: str) -> None:
    keys = StreamKeys("orders")

    assert keys.parse_fragment(key) is None
    assert keys.parse_root(key) is None
    assert keys.parse_key_object(key) is None
