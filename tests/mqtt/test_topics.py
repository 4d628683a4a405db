"""Tests of topics and topic filters, by the sentences of MQTT and by all small cases."""

from __future__ import annotations

from itertools import product

import pytest
from offload_mqtt.topics import QUEUE_GROUP, TopicFilter, check_topic, intersection, match, subset

from offload.ground.errors import Misuse

LEVELS = ("", "a", "b", "$x")
TOPICS = ["/".join(each) for size in (1, 2, 3) for each in product(LEVELS, repeat=size) if each != ("",)]
FILTERS = [
    "/".join((*each, *rest))
    for size in (0, 1, 2)
    for each in product(("", "a", "$x", "+"), repeat=size)
    for rest in ((), ("#",))
    if (*each, *rest) not in ((), ("",))
]


def by_the_text(topic: str, wanted: str) -> bool:
    """The rules of MQTT 5, 4.7, a level at a time. Written apart from the module."""

    def walk(levels: list[str], filters: list[str]) -> bool:
        if filters == ["#"]:
            return True
        if not levels or not filters:
            return not levels and not filters
        return filters[0] in ("+", levels[0]) and walk(levels[1:], filters[1:])

    return not (topic[0:1] == "$" and wanted[0] in "+#") and walk(topic.split("/"), wanted.split("/"))


def of(text: str) -> TopicFilter:
    return TopicFilter.parse(text)


def matched(by: TopicFilter | None) -> set[str]:
    return set() if by is None else {topic for topic in TOPICS if match(topic.encode(), by)}


@pytest.mark.parametrize(
    ("topic", "wanted", "answer"),
    [
        ("a", "a/#", True),
        ("a/", "a/#", True),
        ("a/b/c", "a/#", True),
        ("ab", "a/#", False),
        ("a//b", "a/+/b", True),
        ("/a", "+/a", True),
        ("/a", "a", False),
        ("a", "A", False),
        ("$SYS/up", "#", False),
        ("$SYS/up", "+/up", False),
        ("$SYS/up", "$SYS/#", True),
        ("a/$SYS", "a/+", True),
    ],
)
def test_a_filter_matches_as_mqtt_says(topic: str, wanted: str, answer: bool) -> None:
    assert match(topic.encode(), of(wanted)) is answer


def test_match_follows_the_rules_for_all_small_topics_and_filters() -> None:
    for wanted in FILTERS:
        assert matched(of(wanted)) == {topic for topic in TOPICS if by_the_text(topic, wanted)}, wanted


def test_the_intersection_matches_what_both_match_and_a_subset_nothing_else() -> None:
    for one, other in product(map(of, FILTERS), repeat=2):
        both = matched(one) & matched(other)
        found = intersection(one, other)

        assert matched(found) == both, (one, other)
        assert bool(found) == bool(both), (one, other)
        assert subset(one, other) == (bool(both) and both == matched(one)), (one, other)


def test_the_intersection_has_the_literals_of_both() -> None:
    both = intersection(of("t/global/#"), of("t/+/1/+"))

    assert both is not None
    assert both.text == "t/global/1/+"


def test_a_topic_of_ten_thousand_levels_is_matched() -> None:
    deep = "/".join("l" * 10_000)

    assert match(deep.encode(), of("l/#"))
    assert match(deep.encode(), of("/".join("+" * 10_000)))
    assert not match(deep.encode(), of("/".join("+" * 9_999)))


@pytest.mark.parametrize(
    ("text", "filter_", "group"),
    [
        ("$share/g/a/+", "a/+", "g"),
        ("$queue/a", "a", QUEUE_GROUP),
        ("$share/g//a", "/a", "g"),
        ("$queue", "$queue", None),
    ],
)
def test_a_shared_filter_has_a_group_and_matches_as_its_inner_filter(
    text: str, filter_: str, group: str | None
) -> None:
    shared = of(text)

    assert (shared.text, shared.group) == (filter_, group)
    assert matched(shared) == matched(of(filter_))


@pytest.mark.parametrize(
    "text",
    ["", "a\0b", "a" * 65_536, "\ud800", "a+/b", "+a", "a/#/b", "a#", "#/", "$share", "$share/g", "$share//a",
     "$share/g+/a", "$share/g/", "$share/g/$share/h/a", "$queue/", "$queue/$share/g/a"],
)  # fmt: skip
def test_a_filter_that_mqtt_refuses_is_a_misuse(text: str) -> None:
    with pytest.raises(Misuse):
        of(text)


def test_a_filter_of_the_largest_size_is_allowed() -> None:
    assert match(b"a" * 65_535, of("a" * 65_535))


@pytest.mark.parametrize("topic", [b"", b"a\0", b"a/+", b"#", b"\xff", b"a" * 65_536])
def test_a_topic_that_mqtt_refuses_is_a_misuse(topic: bytes) -> None:
    with pytest.raises(Misuse):
        check_topic(topic)


def test_a_stored_topic_that_breaks_the_grammar_is_still_matched_by_its_levels() -> None:
    assert match(b"a/\xff/+", of("a/+/+"))
