"""Tests of the seek over keys, against a bit mapper that knows every key, and on keys of topics."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from offload_mqtt.key_scan import KeyPart, candidates, constraints, next_match
from offload_mqtt.structure import Structure, encode_key
from offload_mqtt.topics import TopicFilter, match

WORKED = [KeyPart(0xA, 0xA), KeyPart(2, 4), KeyPart(7, 7), KeyPart(0, 0xF)]
"""Topic 0xA, times 0x23 to 0x4F, level 7: the most significant part first, 4 bits each."""

SCHEMAS = [
    [(4, 10, 10), (4, 2, 4), (4, 7, 7), (5, 0, 31)],
    [(3, 0, 7), (6, 17, 40), (2, 1, 1), (6, 0, 63)],
    [(5, 3, 3), (1, 1, 1), (8, 100, 100), (3, 2, 5)],
]
"""Parts of keys of 17 bits: bits, and the least and the greatest value that fits."""


def of_hex(text: str) -> tuple[int, ...]:
    return tuple(int(digit, 16) for digit in text)


@pytest.mark.parametrize(
    ("key", "found"),
    [("0000", "a270"), ("a275", "a275"), ("a280", "a370"), ("a2f3", "a370"), ("a3c1", "a470"), ("a480", None),
     ("b000", None)],
)  # fmt: skip
def test_the_worked_example_has_its_answers(key: str, found: str | None) -> None:
    assert next_match(WORKED, of_hex(key)) == (None if found is None else of_hex(found))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_next_match_equals_a_bit_mapper_on_all_keys(schema: list[tuple[int, int, int]]) -> None:
    """393,216 keys in three schemas. The mapper marks the keys that fit, and looks for the next one."""
    keys = np.arange(2 ** sum(bits for bits, _, _ in schema))
    fits, columns, low = np.ones(len(keys), np.bool_), list[list[int]](), sum(bits for bits, _, _ in schema)
    for bits, least, greatest in schema:
        low -= bits
        column = keys >> low & (2**bits - 1)
        fits &= (column >= least) & (column <= greatest)
        columns.append(column.tolist())
    following = np.minimum.accumulate(np.where(fits, keys, len(keys))[::-1])[::-1].tolist()
    parts = [KeyPart(least, greatest) for _, least, greatest in schema]
    tuples: list[Any] = list(zip(*columns, strict=True))

    tuples.append(None)  # behind the last key
    wrong = [
        key
        for key, found in zip(tuples[:-1], following, strict=True)
        if next_match(parts, key) != tuples[found]
    ]

    assert wrong == []


VALUES = (b"", b"a", b"a\x01", b"ab", b"b")
PARTS = [KeyPart(b""), KeyPart.one(b"a"), KeyPart.one(b""), KeyPart(b"a", b"ab"), KeyPart.one(b"zz")]


def test_next_match_finds_the_least_key_of_bytes() -> None:
    """Between `a` and `ab` lies `a\\x01`: nothing that a topic can have is jumped over."""
    keys = sorted((1, *values) for values in product(VALUES, repeat=3))
    for chosen in product(PARTS, repeat=3):
        parts = [KeyPart.one(1), *chosen]
        fitting = [key for key in keys if _fits(parts, key)]

        for key in keys:
            found = next_match(parts, key)
            least = next((each for each in fitting if each >= key), None)

            assert found is None or (found >= key and _fits(parts, found))
            assert least is None or (found is not None and found <= least), (parts, key)


def _fits(parts: list[KeyPart], key: tuple[int | bytes, ...]) -> bool:
    return all(
        part.low <= value and (part.high is None or value <= part.high)
        for part, value in zip(parts, key, strict=True)
    )


STRUCTURES = [
    Structure((), ()),
    Structure((b"$odd", b"+"), (1,)),
    Structure((b"site", b"+", b"line", b"+"), (3, 1)),
    Structure((b"+", b"+"), (0, 1)),
    Structure((b"deep", b"+", b"#"), (1, 2)),
]
LEVELS = ("", "site", "7", "line", "$odd", "x" * 200)
FILTERS = ["#", "+/+", "site/+/line/#", "site/7/#", "+/7/line/+", "$odd/+", "deep/+/7/7", "deep/#",
           "deep/7/+/7", "x/#", "x" * 200 + "/7", "7/#", "site/#", "+", "deep/7", "site/7/line/7/#",
           "/+"]  # fmt: skip


def topics_of(structure: Structure) -> list[str]:
    """Return topics of a structure: a varying level takes all values, and `#` up to two levels."""
    choices = list[tuple[str, ...]]()
    for level in structure.levels:
        several = (*LEVELS, *map("/".join, product(LEVELS[:3], repeat=2)))
        choices.append({b"+": LEVELS, b"#": several}.get(level, (level.decode(),)))
    return ["/".join(each) for each in product(*choices)] if choices else []


@pytest.mark.parametrize("chunk_size", [1, 7, 1000])
@pytest.mark.parametrize("wanted", FILTERS)
def test_no_chunk_with_a_match_is_left_out(wanted: str, chunk_size: int) -> None:
    by = TopicFilter.parse(wanted)
    keyed = list[tuple[bytes, int, str]]()
    for number, structure in enumerate(STRUCTURES):
        for topic in topics_of(structure):
            levels = topic.encode().split(b"/")
            key = encode_key((number, *(structure.value(each, levels) for each in structure.order)))
            keyed.append((key, number, topic))
    keyed.sort()
    keys = [keyed[at][0] for at in range(0, len(keyed), chunk_size)]
    keys.append(keyed[-1][0])
    found = set[int]()
    for number, structure in enumerate(STRUCTURES):
        parts = constraints(number, structure, by)
        if parts is not None:
            found |= set(candidates(keys, parts))

    matching = {at // chunk_size for at, (_, _, topic) in enumerate(keyed) if match(topic.encode(), by)}

    assert matching <= found
    assert wanted in ("#", "+/+") or chunk_size == 1000 or len(found) < len(keys) - 1


def test_a_seek_costs_a_step_for_each_run_and_not_for_each_chunk() -> None:
    """The chunks of 500 sites with 20 machines. One from a site to the next may hold a site between."""
    keys = _Counted(encode_key((1, b"%04d" % site, b"%02d" % of)) for site in range(500) for of in range(20))

    one_site = list(candidates(keys, [KeyPart.one(1), KeyPart.one(b"0250"), KeyPart(b"")]))
    read, keys.read = keys.read, 0
    one_machine = list(candidates(keys, [KeyPart.one(1), KeyPart(b""), KeyPart.one(b"07")]))

    assert one_site == [*range(4999, 5020)]
    assert read < 100
    assert len(one_machine) <= 3 * 500
    assert keys.read < 500 * 50


class _Counted(list[bytes]):
    """Keys that count how often one is read."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        self.read += 1
        return super().__getitem__(at)
