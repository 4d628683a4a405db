"""Tests of stored terms: what is decoded, the bounds, and properties that are stored as a tuple."""

from __future__ import annotations

import struct
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_rabbitmq.queues.messages import read_message, read_properties
from offload_rabbitmq.queues.terms import DEPTH_MAX, TERMS_MAX, decode_term
from queue_sets import as_pika
from queue_terms import Atom, message, term_of

from offload.ground.errors import Corrupt

LEAVES = (
    st.binary() | st.integers(-(2**64), 2**64) | st.floats(allow_nan=False) | st.builds(Atom, st.text("abc"))
)
TERMS = st.recursive(LEAVES, lambda each: st.lists(each) | st.lists(each).map(tuple), max_leaves=30)


@given(TERMS)
def test_a_term_is_decoded(term: Any) -> None:
    assert decode_term(term_of(term), where="t") == term


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("836b0003010203", [1, 2, 3]),
        ("836900000001610a", (10,)),
        ("837400000001610161ff", [(1, 255)]),
        ("8373036f6b21", "ok!"),
        ("8376000268c3", None),
        ("8377026f6b", "ok"),
        ("8362ffffffff", -1),
        ("836e020100ff", -0xFF00),
        ("836e0100ff00", None),
    ],
)
def test_each_other_tag_is_decoded(raw: str, value: Any) -> None:
    """The bytes are what `term_to_binary` of Erlang/OTP 25 and newer writes. None: they are no term."""
    if value is None:
        with pytest.raises(Corrupt):
            decode_term(bytes.fromhex(raw), where="t")
    else:
        assert decode_term(bytes.fromhex(raw), where="t") == value


@given(st.binary(max_size=60))
def test_bytes_that_are_no_term_are_damage(raw: bytes) -> None:
    with suppress(Corrupt):
        decode_term(b"\x83" + raw, where="t")


@given(TERMS, st.data())
def test_a_term_that_is_cut_is_damage(term: Any, data: st.DataObject) -> None:
    raw = term_of(term)

    with pytest.raises(Corrupt):
        decode_term(raw[: data.draw(st.integers(0, len(raw) - 1))], where="t")


@pytest.mark.parametrize("level", ["h\x01", "l\0\0\0\1", "i\0\0\0\1", "t\0\0\0\1a\1"])
def test_terms_that_are_nested_too_deep_are_damage(level: str) -> None:
    with pytest.raises(Corrupt, match="depth of a term"):
        decode_term(b"\x83" + level.encode() * 10**5 + b"j", where="t")

    assert decode_term(b"\x83" + b"h\x01" * DEPTH_MAX + b"j", where="t")


def test_a_count_is_bounded_before_its_terms_are_made() -> None:
    with pytest.raises(Corrupt, match="number of terms"):
        decode_term(b"\x83l" + struct.pack(">I", TERMS_MAX + 1) + b"j" * (TERMS_MAX + 2), where="t")
    with pytest.raises(Corrupt, match="number of terms"):
        decode_term(b"\x83l\0\x0f\0\0j", where="t")


HEADERS = {
    b"longstr": ("text \u00fc".encode(), "text \u00fc"),
    b"binary": (b"\0\xff", {"bytes": "00ff"}),
    b"signedint": (-5, -5),
    b"unsignedint": (2**32 - 1, 2**32 - 1),
    b"long": (2**40, 2**40),
    b"short": (-2, -2),
    b"unsignedshort": (65534, 65534),
    b"byte": (-2, -2),
    b"unsignedbyte": (254, 254),
    b"double": (1.5, 1.5),
    b"float": (0.25, 0.25),
    b"timestamp": (1790000000, "2026-09-21 14:13:20+00:00"),
    b"bool": (Atom("true"), True),
    b"void": (Atom("undefined"), None),
    b"decimal": ((2, 1234), "12.34"),
    b"table": ([(b"a", Atom("long"), 1)], {"a": 1}),
    b"array": ([(Atom("longstr"), b"x"), (Atom("long"), 2)], ["x", 2]),
}
"""A value of each type of headers: as the broker stores it, and as a client sees it."""


def test_a_tuple_of_properties_has_every_property_and_type() -> None:
    headers = [(name, Atom(name.decode()), stored) for name, (stored, _) in HEADERS.items()]
    texts = (b"corr", b"answers", b"2592000000", b"m-1")
    stored = (
        Atom("P_basic"),
        b"json",
        b"utf-8",
        headers,
        2,
        4,
        *texts,
        1790000000,
        b"kind",
        b"guest",
        b"app",
        b"c1",
    )

    found = read_message(message(b"body", fields=stored), where="t")

    properties = read_properties(found.properties, where="t")
    assert as_pika(properties.pop("headers")) == {name.decode(): seen for name, (_, seen) in HEADERS.items()}
    assert properties == {
        "content_type": "json",
        "content_encoding": "utf-8",
        "delivery_mode": 2,
        "priority": 4,
        "correlation_id": "corr",
        "reply_to": "answers",
        "expiration": "2592000000",
        "message_id": "m-1",
        "timestamp": datetime.fromtimestamp(1790000000, UTC),
        "type": "kind",
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "c1",
    }


def test_the_fragments_of_a_body_are_joined_from_the_last_one_on() -> None:
    assert read_message(message(b"c", b"b", b"a"), where="t").body == b"abc"
    assert read_message(message(), where="t").body == b""


@pytest.mark.parametrize(
    "term",
    [
        (Atom("mc"), 1),
        Atom("basic_message"),
        (Atom("P_basic"),),
        (Atom("basic_message"), (Atom("resource"), b"/", Atom("exchange"), b""), [], 1, b"", Atom("true")),
    ],
)
def test_another_term_is_no_message(term: Any) -> None:
    with pytest.raises(Corrupt, match="expected basic_message of RabbitMQ before"):
        read_message(term_of(term), where="t")


@pytest.mark.parametrize(
    "fields", [(Atom("P_basic"),), (Atom("P_basic"), *[b"x" * 256] * 14), Atom("none"), b""]
)
def test_wrong_tuples_of_properties_are_damage(fields: Any) -> None:
    with pytest.raises(Corrupt, match="properties"):
        read_message(message(fields=fields), where="t")


def deep_table(levels: int) -> bytes:
    table = b""
    for _ in range(levels):
        table = b"\1aF" + struct.pack(">I", len(table)) + table
    return b"\x20\x00" + struct.pack(">I", len(table)) + table


@pytest.mark.parametrize(
    "wire",
    [
        *(b"", b"\x80", b"\0\1\0\0", b"\x80\0\3ab\xff"),
        b"\0\x40" + struct.pack(">Q", 253402300800000),
        b"\0\x40" + b"\xff" * 8,
        b"\x20\0\0\0\0\x05\1aZ\0\0",
        deep_table(5000),
    ],
    ids=["empty", "half", "more flags", "no UTF-8", "year 10000", "year 5e8", "unknown type", "deep"],
)
def test_properties_that_cannot_be_read_are_damage(wire: bytes) -> None:
    found = read_message(message(b"x", wire=wire), where="t")

    assert found.properties == wire
    with pytest.raises(Corrupt, match="properties"):
        read_properties(wire, where="t")
