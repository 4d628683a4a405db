"""Tests of AMQP 1.0 messages: every type, every section, real records, and hostile input."""

from __future__ import annotations

import json
import struct
import tracemalloc
from decimal import Decimal
from typing import Any
from uuid import UUID

import osiris_data
import pytest
from amqp_messages import DATA, PROPERTIES, SEQUENCE, VALUE, VALUES, compound, encoded, records, sized
from campaign import CAMPAIGN
from hypothesis import given, settings
from hypothesis import strategies as st
from offload_rabbitmq.amqp import AmqpMessage, Described, Symbol, Timestamp, data_bodies, decode, to_jsonable

from offload.ground.errors import Corrupt


def value_of(encoded: bytes) -> Any:
    return decode(VALUE + encoded).body


@given(VALUES)
def test_decoding_undoes_encoding(value: Any) -> None:
    decoded = value_of(encoded(value))

    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("40", None),
        ("41", True),
        ("42", False),
        ("56 01", True),
        ("56 00", False),
        ("43", 0),
        ("44", 0),
        ("45", []),
        ("50 ff", 255),
        ("51 ff", -1),
        ("52 ff", 255),
        ("53 ff", 255),
        ("54 80", -128),
        ("55 80", -128),
        ("60 ffff", 65535),
        ("61 ffff", -1),
        ("70 ffffffff", 2**32 - 1),
        ("71 ffffffff", -1),
        ("72 3fc00000", 1.5),
        ("73 0001f600", "\U0001f600"),
        ("74 32800001", Decimal(1)),
        ("74 b2800001", Decimal(-1)),
        ("74 32000001", Decimal("0.1")),
        ("74 6cb8967f", Decimal(9999999)),  # the form with a hidden 100
        ("74 6cb89680", Decimal(0)),  # one digit too many
        ("74 78000000", Decimal("Infinity")),
        ("80 ffffffffffffffff", 2**64 - 1),
        ("81 ffffffffffffffff", -1),
        ("82 3ff8000000000000", 1.5),
        ("83 0000018bcfe56800", Timestamp(1700000000000)),
        ("84 31c0000000000001", Decimal(1)),
        ("84 b1a000000000007b", Decimal("-12.3")),
        ("94 30400000000000000000000000000001", Decimal(1)),
        ("94 303e000000000000000000000000007b", Decimal("12.3")),
        ("98 00112233445566778899aabbccddeeff", UUID("00112233-4455-6677-8899-aabbccddeeff")),
        ("a0 02 00ff", b"\x00\xff"),
        ("b0 00000002 00ff", b"\x00\xff"),
        ("a1 02 c3a9", "é"),
        ("b1 00000002 c3a9", "é"),
        ("a3 01 78", Symbol("x")),
        ("b3 00000001 78", Symbol("x")),
        ("c0 03 02 43 41", [0, True]),
        ("d0 00000006 00000002 43 41", [0, True]),
        ("c1 04 02 5301 40", {1: None}),
        ("d1 00000007 00000002 5301 40", {1: None}),
        ("e0 04 02 50 0102", [1, 2]),
        ("f0 00000007 00000002 50 0102", [1, 2]),
        ("e0 06 02 a1 0161 0162", ["a", "b"]),
        ("e0 02 03 41", [True, True, True]),
        ("e0 05 01 00 5307 40", [Described(7, None)]),
        ("00 5307 00 5308 43", Described(7, Described(8, 0))),
    ],
)
def test_every_constructor_is_decoded(raw: str, value: Any) -> None:
    assert value_of(bytes.fromhex(raw)) == value


@pytest.mark.parametrize("raw", ["74 7c000000", "72 7fc00000", "82 7ff8000000000000"])
def test_nan_is_decoded_as_nan(raw: str) -> None:
    found = value_of(bytes.fromhex(raw))

    assert found != found


# --- messages ---


def test_real_messages_of_the_older_protocol_have_all_their_sections() -> None:
    for i, record in enumerate(records("tiny")):
        assert decode(record) == AmqpMessage(
            body_kind="data",
            body=osiris_data.body_of(i),
            message_annotations={"x-routing-key": "tiny", "x-exchange": "", "x-basic-delivery-mode": 2},
            properties={
                "message_id": f"m{i}",
                "content_type": "application/json",
                "creation_time": Timestamp(1700000000000 + 1000 * i),
            },
            application_properties={"n": i, "s": f"v{i}"},
        )


@pytest.mark.parametrize("stream", ["tiny", "batches", "filtered"])
def test_the_bodies_of_real_records_are_the_published_ones(stream: str) -> None:
    found = records(stream)

    assert data_bodies(found) == [osiris_data.body_of(i) for i in range(len(found))]


def test_every_section_is_kept_separate() -> None:
    fields = [b"\x41", b"\x50\x04", b"\x40"]
    record = b"".join(
        (
            b"\0\x53\x70" + compound(0xC0, fields),
            b"\0\x53\x71" + encoded({"a": 2}),
            b"\0\x80" + struct.pack(">Q", 0x72) + encoded({"b": 3}),  # the long form of a descriptor
            PROPERTIES + compound(0xC0, [encoded(str(i)) for i in range(13)]),
            b"\0" + encoded(Symbol("amqp:application-properties:map")) + encoded({"c": 4}),
            DATA + encoded(b"body, "),
            DATA + encoded(b"continued"),
            b"\0\x53\x78" + encoded({"d": 5}),
        )
    )

    message = decode(record)

    assert message.header == {"durable": True, "priority": 4}
    assert message.delivery_annotations == {"a": 2}
    assert message.message_annotations == {"b": 3}
    assert list(message.properties.values()) == [str(i) for i in range(13)]
    assert (message.properties["message_id"], message.properties["reply_to_group_id"]) == ("0", "12")
    assert message.application_properties == {"c": 4}
    assert (message.body_kind, message.body) == ("data", b"body, continued")
    assert message.footer == {"d": 5}
    assert data_bodies([record]) == [b"body, continued"]


def test_bodies_are_of_four_kinds() -> None:
    assert decode(DATA + b"\xa0\0").body_kind == "data"
    sequences = decode(SEQUENCE + encoded([2]) + SEQUENCE + encoded([3, 4]))
    assert (sequences.body_kind, sequences.body) == ("sequence", [[2], [3, 4]])
    assert (decode(VALUE + b"\x40").body_kind, decode(VALUE + b"\x40").body) == ("value", None)
    assert (decode(PROPERTIES + b"\x45").body_kind, decode(PROPERTIES + b"\x45").body) == ("none", None)


def test_bodies_of_any_form_come_in_the_order_of_their_records() -> None:
    long = bytes(range(256)) * 3
    properties = PROPERTIES + compound(0xC0, [encoded("id")])
    forms = [
        (DATA + encoded(b"short"), b"short"),
        (DATA + encoded(b""), b""),
        (DATA + encoded(long), long),
        (properties + DATA + encoded(long), long),
        (b"\0\x53\x72" + encoded({"k": "v" * 300}) + DATA + encoded(b"x"), b"x"),
        (DATA + encoded(b"x") + b"\0\x53\x78" + encoded({}), b"x"),
        (DATA + encoded(b"one") + DATA + encoded(b"two"), b"onetwo"),
        (VALUE + encoded("text é"), "text é".encode()),
        (VALUE + encoded(b"binary"), b"binary"),
        (properties, b""),
    ]

    assert data_bodies([record for record, _ in forms]) == [body for _, body in forms]


@given(
    st.lists(st.binary(max_size=400), max_size=5), st.dictionaries(st.text(max_size=9), VALUES, max_size=3)
)
def test_the_fast_decoder_agrees_with_the_thorough_one(
    bodies: list[bytes], annotations: dict[str, Any]
) -> None:
    head = b"\0\x53\x72" + encoded(annotations)
    found = [head + DATA + encoded(body) for body in bodies] + [DATA + encoded(body) for body in bodies]

    assert data_bodies(found) == [decode(record).body for record in found] == bodies * 2


# --- what is no message ---


def nested_arrays(*, levels: int, descriptors: int) -> bytes:
    """Return arrays within arrays, one element each, every element described so many times; the last is
    null.
    """
    element = b"\x40"
    for _ in range(levels):
        body = struct.pack(">I", 1) + b"\0\x40" * descriptors + element
        element = b"\xf0" + struct.pack(">I", len(body)) + body
    return element


NO_MESSAGES = {
    "nothing": b"",
    "text": b'{"seq":0}',
    "no section's descriptor": b"\0\x53\x01\x40",
    "a descriptor that is a list": b"\0\x45\x40",
    "cut after the descriptor": DATA,
    "cut in a size": DATA + b"\xb0\0\0",
    "cut in the data": DATA + b"\xa0\x05abcd",
    "bytes after the end": DATA + b"\xa0\x01ab",
    "data that is text": DATA + encoded("text"),
    "a property list that is a map": PROPERTIES + encoded({}),
    "too many properties": PROPERTIES + compound(0xC0, [b"\x40"] * 14),
    "the same section twice": (PROPERTIES + b"\x45") * 2,
    "bodies of two kinds": DATA + b"\xa0\0" + VALUE + b"\x40",
    "two values": (VALUE + b"\x40") * 2,
    "an unknown constructor": VALUE + b"\x99",
    "a boolean that is 2": VALUE + b"\x56\x02",
    "text that is no UTF-8": VALUE + b"\xa1\x01\xff",
    "a symbol that is no ASCII": VALUE + b"\xa3\x02\xc3\xa9",
    "a surrogate for a character": VALUE + b"\x73\0\0\xd8\0",
    "an odd map": VALUE + b"\xc1\x02\x01\x40",
    "a map with a key twice": VALUE + compound(0xC1, [encoded("k"), b"\x40"] * 2),
    "a map whose key is a list": VALUE + compound(0xC1, [b"\x45", b"\x40"]),
    "a list longer than its size": VALUE + b"\xc0\x02\x02\x40\x40",
    "a list shorter than its size": VALUE + b"\xc0\x03\x01\x40\x40",
    "an inner list shorter than its size": VALUE + b"\xc0\x06\x02\xc0\x03\x01\x40\x40",
    "a list larger than the record": VALUE + b"\xc0\x40\x01\x40",
    "an inner list larger than the outer": VALUE + b"\xc0\x04\x01\xc0\x02\x01\x40",
    "a list of size nothing": VALUE + b"\xc0\0",
    "four billion elements": VALUE + b"\xd0\0\0\0\x05\xff\xff\xff\xff\x40",
    "four billion elements of no bytes": VALUE + b"\xf0\0\0\0\x05\xff\xff\xff\xff\x43",
    "four billion elements of one byte": VALUE + b"\xf0\0\0\0\x05\xff\xff\xff\xff\x50",
    "four billion bytes": DATA + b"\xb0\xff\xff\xff\xff",
    "nesting without end": VALUE + b"\0" * 100_000,
    "lists within lists": VALUE
    + b"".join(b"\xd0" + struct.pack(">II", 9 * left + 5, 1) for left in range(5_000, -1, -1))
    + b"\x40",
    "descriptors of an array's elements without end": VALUE
    + b"\xf0\0\0\xff\xff\0\0\0\1"
    + b"\0\x40" * 40_000,
    "arrays within arrays, each with descriptors": VALUE + nested_arrays(levels=30, descriptors=30),
}


@pytest.mark.parametrize("record", NO_MESSAGES.values(), ids=NO_MESSAGES.keys())
def test_an_invalid_message_is_corrupt_quickly_and_in_little_memory(record: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt) as caught:
            decode(record, where="record 5")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert caught.value.where == "record 5"
    assert 0 <= caught.value.position <= len(record)
    assert peak < 2**20


@pytest.mark.parametrize("record", NO_MESSAGES.values(), ids=NO_MESSAGES.keys())
def test_an_invalid_message_has_no_body_either(record: bytes) -> None:
    with pytest.raises(Corrupt, match="chunk 7, record 0"):
        data_bodies([record], where="chunk 7")


def test_a_value_of_the_greatest_depth_is_shown() -> None:
    """Arrays and descriptors count alike, in any mixture. Their depth ends with them, so a second value
    fits.
    """
    for levels, descriptors in ((31, 0), (1, 30), (10, 2)):
        deep = nested_arrays(levels=levels, descriptors=descriptors)

        decoded = value_of(compound(0xC0, [deep, deep]))  # 32 levels, with the list

        assert decoded[0] == decoded[1]
        json.dumps(to_jsonable(decoded), allow_nan=False)


def test_shared_descriptors_do_not_multiply() -> None:
    """Written out, such values would be as long as the product of all counts. Each line here is one form."""
    within = b"\x40"
    for _ in range(10):  # descriptors that are arrays with descriptors that are arrays ...
        body = struct.pack(">I", 20) + b"\0" + within + b"\x40"
        within = b"\xf0" + struct.pack(">I", len(body)) + body
    body = struct.pack(">I", 5_000) + b"\0" + sized(0xA0, bytes(5_000)) + b"\x40"
    long = b"\xf0" + struct.pack(">I", len(body)) + body

    for value, what in ((within, "descriptor"), (long, "descriptors of elements")):
        with pytest.raises(Corrupt, match=f"AMQP {what}: "):
            decode(PROPERTIES + compound(0xC0, [encoded(bytes(5_000))]) + VALUE + value)


@pytest.mark.parametrize("elements", [1, 20, 255])
def test_elements_may_share_a_descriptor_of_any_usual_length(elements: int) -> None:
    name = Symbol("com.example:a-rather-long-descriptor:list")
    body = bytes((elements,)) + b"\0" + encoded(name) + b"\x50" + bytes(elements)

    value = value_of(b"\xf0" + struct.pack(">II", len(body) + 3, elements) + body[1:])

    assert value == [Described(name, 0)] * elements


def test_elements_without_bytes_do_not_multiply() -> None:
    """Many small arrays, each with as many nulls as the record has bytes, would take quadratic memory."""
    array = b"\xf0\0\0\0\x05" + struct.pack(">I", 5_000) + b"\x40"
    record = VALUE + compound(0xC0, [array] * 500)

    with pytest.raises(Corrupt, match="element count"):
        decode(record)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda raw: VALUE + raw))
@settings(max_examples=400 if CAMPAIGN else 40)
def test_arbitrary_bytes_are_a_message_or_corrupt_and_nothing_else(record: bytes) -> None:
    try:
        decoded = decode(record)
    except Corrupt:
        return
    json.dumps(to_jsonable(decoded), allow_nan=False)


def test_the_first_of_many_records_without_a_body_is_named() -> None:
    good = DATA + encoded(b"x")

    for bad in (b"raw bytes", VALUE + encoded([2]), SEQUENCE + encoded([2])):
        with pytest.raises(Corrupt) as caught:
            data_bodies([good, good, bad, good, b"also bad"], where="chunk 7")
        assert caught.value.where == "chunk 7, record 2"


# --- JSON ---


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\xff", {"encoding": "base64", "value": "/w=="}),
        (Symbol("x"), "x"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Timestamp(1700000000001), "2023-11-14T22:13:20.001Z"),
        (Timestamp(-1), "1969-12-31T23:59:59.999Z"),
        (Timestamp(2**63 - 1), 2**63 - 1),
        (Decimal("1.50"), "1.50"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (float("nan"), "NaN"),
        (1.5, 1.5),
        ([True, None, 3], [True, None, 3]),
        ({1: 2, None: 3, b"k": 5}, {"1": 2, "null": 3, "aw==": 5}),
        ({1: "a", "1": "b"}, {"encoding": "pairs", "value": [[1, "a"], ["1", "b"]]}),
        (Described(7, b""), {"descriptor": 7, "value": {"encoding": "base64", "value": ""}}),
    ],
)
def test_values_are_shown_as_json(value: Any, shown: Any) -> None:
    assert to_jsonable(value) == shown
    json.dumps(to_jsonable(value), allow_nan=False)


def test_a_whole_message_is_shown_as_json() -> None:
    shown = to_jsonable(decode(records("tiny")[0]))

    assert shown["properties"]["creation_time"] == "2023-11-14T22:13:20.000Z"
    assert shown["body"]["encoding"] == "base64"
    json.dumps(shown, allow_nan=False)


@given(VALUES)
def test_every_value_can_be_shown(value: Any) -> None:
    json.dumps(to_jsonable(value), allow_nan=False)


def test_a_value_outside_amqp_is_not_shown() -> None:
    with pytest.raises(TypeError):
        to_jsonable(object())
