"""Tests of structures and keys: they depend on topics alone, and keys as bytes have the order of tuples."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from offload_mqtt.structure import (
    LEVELS_MAX,
    STRUCTURES_MAX,
    VALUE_SIZE_BYTES_MAX,
    Structure,
    decode_key,
    decode_structures,
    encode_key,
    encode_structures,
)
from offload_mqtt.topic_order import TopicOrder, are_topic_names
from offload_mqtt.topics import check_topic

from offload import Corrupt, Misuse

words = st.sampled_from(["", "a", "b", "ab", "$x", "ü", "z" * 127, "z" * 128, "z" * 128 + "y", "z" * 129])
some_topics = st.lists(
    st.lists(words, min_size=1, max_size=4).map(lambda levels: "/".join(levels).encode()),
    max_size=60,
    unique=True,
)


def by_key(order: TopicOrder) -> list[bytes]:
    """Return the topics in the order of their keys."""
    keys = [order.key(row) for row in range(len(order.topics))]
    return [order.topics[row].as_py() for row in sorted(range(len(keys)), key=keys.__getitem__)]


@given(some_topics, st.integers(0, 3))
def test_ranks_are_those_of_keys_as_bytes_and_as_tuples(topics: list[bytes], bits: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offload_mqtt.topic_order.THRESHOLDS", (2**bits, 2))
        order = TopicOrder.of(topics)
    keys = [order.key(row) for row in range(len(topics))]
    tuples = [decode_key(key) for key in keys]

    assert [encode_key(key) for key in tuples] == keys
    for one in range(len(topics)):
        for other in range(one):
            sign = keys[one] > keys[other], keys[one] == keys[other]
            assert (tuples[one] > tuples[other], tuples[one] == tuples[other]) == sign
            assert (order.ranks[one] > order.ranks[other], order.ranks[one] == order.ranks[other]) == sign
    assert decode_structures(order.about) == order.structures


@given(some_topics, st.randoms(use_true_random=False))
def test_structures_depend_on_the_set_of_topics_alone(topics: list[bytes], chance: random.Random) -> None:
    shuffled = [*topics]
    chance.shuffle(shuffled)
    one, other = TopicOrder.of(topics), TopicOrder.of(shuffled)

    assert one.about == other.about
    assert {t: one.key(row) for row, t in enumerate(topics)} == {
        t: other.key(row) for row, t in enumerate(shuffled)
    }


def test_a_node_with_more_children_than_its_threshold_becomes_one_and_its_subtrees_merge() -> None:
    few = [b"few/%d/x" % number for number in range(10)]
    many = [b"many/%d/%s" % (number, b"xy"[number % 2 :][:1]) for number in range(11)]
    order = TopicOrder.of([*few, *many, b"many/1"])

    assert [b"/".join(each.levels) for each in order.structures] == [
        b"",
        *sorted(few),
        b"many/+",
        b"many/+/x",
        b"many/+/y",
    ]
    assert decode_key(order.key(11)) == (13, b"1")


def test_values_of_levels_with_fewer_values_come_first() -> None:
    topics = [b"s/%d/l/%d/m/%d" % (s, line, m) for s in range(40) for line in range(20) for m in range(11)]
    order = TopicOrder.of(topics)

    assert order.structures[1:] == (Structure((b"s", b"+", b"l", b"+", b"m", b"+"), (5, 3, 1)),)
    assert by_key(order)[:2] == [b"s/0/l/0/m/0", b"s/1/l/0/m/0"]


def test_levels_behind_the_32nd_are_one_and_long_levels_are_cut() -> None:
    deep = b"/".join([b"l"] * 10_000)
    long = b"x" * 65_533
    order = TopicOrder.of([deep, b"p/" + long, b"/" * 65_535])

    assert [len(each.levels) for each in order.structures] == [0, LEVELS_MAX + 1, LEVELS_MAX + 1, 2]
    assert decode_key(order.key(0)) == (2, deep[2 * LEVELS_MAX :][:VALUE_SIZE_BYTES_MAX])
    assert decode_key(order.key(1)) == (3, long[:VALUE_SIZE_BYTES_MAX])
    assert len(order.about) < 1000


def test_topics_that_differ_behind_what_keys_have_share_a_key() -> None:
    order = TopicOrder.of([b"z" * 129, b"z" * 128 + b"y", b"z"])

    assert order.ranks.tolist() == [2, 2, 1]


def test_there_are_never_too_many_structures() -> None:
    topics = [
        b"%d/%d/%d/%d" % (a, b, c, d) for a in range(9) for b in range(9) for c in range(9) for d in range(9)
    ]
    order = TopicOrder.of(topics)

    assert 1 < len(order.structures) <= STRUCTURES_MAX + 1
    assert len({*order.ranks.tolist()}) == len(topics)


@pytest.mark.parametrize(
    "topic",
    [
        b"",
        b"\0",
        b"a\0b",
        b"a/+",
        b"a+b",
        b"#",
        b"a/#",
        b"\xff",
        b"a/\xed\xa0\x80",
        b"x" * 65_536,
        b"x" * 65_535,
        b"/",
        b"a//b",
        b"$SYS/x",
        "ü/ö".encode(),
        b"a b",
    ],
)
def test_what_is_no_topic_name_has_the_first_key(topic: bytes) -> None:
    try:
        check_topic(topic)
        is_name = True
    except Misuse:
        is_name = False
    order = TopicOrder.of([b"other", topic])

    assert are_topic_names(order.topics).tolist() == [True, is_name]
    assert (order.key(1) == b"\0\0") is not is_name


@given(st.binary(max_size=40))
def test_any_bytes_are_a_key_or_are_refused(raw: bytes) -> None:
    try:
        assert encode_key(decode_key(raw)) == raw
    except Corrupt:
        assert len(raw) < 2 or raw[2:][-1:] not in (b"", b"\0")


@pytest.mark.parametrize(
    "about",
    [
        b"x",
        b"[]",
        b"[1]",
        b"{}",
        b'["a/+"]',
        b'["a/+",0]',
        b'["a/+",1,1]',
        b'["a/+",true]',
        b'["a/+",1.0]',
        b'["a/+","1"]',
        b'["a/#",1]',
        b'["\\ud800"]',
        b"[" * 100_000,
        b'["%s"]' % (b"a/" * 40),
        b"\n".join([b'["a"]'] * (STRUCTURES_MAX + 1)),
    ],
)
def test_structures_of_strangers_are_not_believed(about: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_structures(about)


def test_the_bytes_of_structures_and_keys_are_fixed() -> None:
    structures = (Structure((), ()), Structure((b"a", b"+", b"\n"), (1,)))

    assert encode_structures(structures) == b'["a/+/\\n",1]'
    assert encode_key((258, b"a", b"")) == b"\x01\x02a\0\0"
