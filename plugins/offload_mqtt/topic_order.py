"""The order of the topics of one ledger: their structures, and each topic's place among the others.

Structures are found from the root down, a level of all topics at a time. Of a node with more children than
its threshold, all children become one, `+`, and their subtrees merge. So the result depends on the set of
topics alone, and not on their order or number.

Invariants: each topic has one structure; two topics have the same rank only if they have the same key. No
step is taken for each topic in Python but for those whose keys are asked for. Memory is some
60 bytes for each level of a topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from offload_mqtt.structure import (
    LEVELS_MAX,
    NO_STRUCTURE,
    STRUCTURES_MAX,
    VALUE_SIZE_BYTES_MAX,
    Structure,
    encode_key,
    encode_structures,
)
from offload_mqtt.topics import ANY, REST, SIZE_BYTES_MAX, levels_of

__all__ = ["TopicOrder", "are_topic_names"]

THRESHOLDS: Final = (100, 10)
"""The most literal children of a node, by level. The last number is that of all deeper levels."""

_Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TopicOrder:
    """The order of different topics."""

    topics: Any
    """A `pyarrow.LargeBinaryArray`. What is no topic name is in structure 0."""
    structures: tuple[Structure, ...]
    """By number."""
    numbers: _Integers
    """The number of the structure of each topic."""
    ranks: _Integers
    """The rank of each topic's key among the keys of all topics."""

    @classmethod
    def of(cls, topics: Sequence[bytes] | Any) -> TopicOrder:
        """Return the order of these topics, of which no two are equal."""
        values = topics if isinstance(topics, pa.Array) else pa.array(topics, pa.large_binary())
        names = np.flatnonzero(are_topic_names(values))
        levels = _Levels.of(values.take(pa.array(names)))
        nodes = levels.nodes(THRESHOLDS)
        thresholds = list(THRESHOLDS)
        while len(np.unique(nodes.ends)) > STRUCTURES_MAX:
            thresholds = [each // 2 for each in thresholds]
            nodes = levels.nodes(thresholds)
        structures, numbers, ranks = levels.ordered(nodes)
        all_numbers, all_ranks = np.full(len(values), NO_STRUCTURE), np.zeros(len(values), np.int64)
        all_numbers[names], all_ranks[names] = numbers, ranks + 1
        return cls(values, (Structure((), ()), *structures), all_numbers, all_ranks)

    @cached_property
    def about(self) -> bytes:
        """The structures as bytes."""
        return encode_structures(self.structures)

    def key(self, topic: int) -> bytes:
        """Return the key of one of the topics, as bytes."""
        number = int(self.numbers[topic])
        values: tuple[bytes, ...] = ()
        if number != NO_STRUCTURE:
            values = self.structures[number].values(levels_of(self.topics[topic].as_py()))
        return encode_key((number, *values))


def are_topic_names(values: Any) -> npt.NDArray[np.bool_]:
    """Return which of these binary values MQTT allows as the topic of a message."""
    sizes = pc.binary_length(values).to_numpy(zero_copy_only=False)
    good: npt.NDArray[np.bool_] = (sizes > 0) & (sizes <= SIZE_BYTES_MAX)
    for byte in (b"\0", ANY, REST):
        good &= ~pc.match_substring(values, byte).to_numpy(zero_copy_only=False)
    try:
        values.cast(pa.large_string())
    except pa.ArrowInvalid:  # one of them is no UTF-8, and each is looked at by itself
        good &= np.fromiter(map(_is_utf8, values.to_pylist()), np.bool_, len(values))
    return good


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Nodes:
    """A trie: the parent of each node, and its level's code. `ends` has the last node of each topic."""

    parents: _Integers
    codes: _Integers
    ends: _Integers


@dataclass(frozen=True, slots=True)
class _Levels:
    """The levels of topics: those of topic `k` are `codes[starts[k] : starts[k] + counts[k]]`."""

    starts: _Integers
    counts: _Integers
    codes: _Integers
    """The rank of each level's value among all values."""
    values: Any
    """All values, in order."""
    is_long: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, topics: Any) -> _Levels:
        split = pc.split_pattern(topics, b"/", max_splits=LEVELS_MAX)
        offsets = split.offsets.to_numpy().astype(np.int64)
        flat = split.values
        found = pc.binary_slice(flat.cast(pa.binary()), 0, VALUE_SIZE_BYTES_MAX).dictionary_encode()
        order = pc.array_sort_indices(found.dictionary).to_numpy()
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        codes = ranks[found.indices.to_numpy()]
        is_long = pc.binary_length(flat).to_numpy() > VALUE_SIZE_BYTES_MAX
        return cls(offsets[:-1], np.diff(offsets), codes, found.dictionary.take(pa.array(order)), is_long)

    def nodes(self, thresholds: Sequence[int]) -> _Nodes:
        """Return the trie of the topics, in which nodes with too many children have one, of code -1."""
        wild = len(self.values)
        parents, codes, ends, begin = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], self.counts * 0, 1
        for depth in range(int(self.counts.max(initial=0))):
            here = np.flatnonzero(self.counts > depth)
            at = self.starts[here] + depth
            children, inverse = np.unique(ends[here] * wild + self.codes[at], return_inverse=True)
            owner, count = np.unique(children // wild, return_counts=True)
            is_wild = (count > thresholds[min(depth, len(thresholds) - 1)]) | (depth == LEVELS_MAX)
            is_wild[np.searchsorted(owner, ends[here[self.is_long[at]]])] = True
            merged = np.where(np.repeat(is_wild, count), wild, children % wild)
            made, node_of = np.unique(children // wild * (wild + 1) + merged, return_inverse=True)
            ends[here] = begin + node_of[inverse]
            parents.append(made // (wild + 1))
            codes.append(np.where(made % (wild + 1) == wild, -1, made % (wild + 1)))
            begin += len(made)
        return _Nodes(np.concatenate(parents), np.concatenate(codes), ends)

    def ordered(self, nodes: _Nodes) -> tuple[list[Structure], _Integers, _Integers]:
        """Return the structures in order, and the number and the rank of each topic."""
        found = sorted((self._levels_at(nodes, int(end)), int(end)) for end in np.unique(nodes.ends))
        by_end = np.argsort(nodes.ends, kind="stable")
        edges = np.searchsorted(nodes.ends[by_end], [[end, end + 1] for _, end in found])
        structures, numbers, ranks, rank = list[Structure](), nodes.ends * 0, nodes.ends * 0, 0
        for (levels, _), (first, stop) in zip(found, edges.reshape(-1, 2).tolist(), strict=True):
            here = by_end[first:stop]
            varying = [at for at, level in enumerate(levels) if level in (ANY, REST)]
            columns = {at: self.codes[self.starts[here] + at] for at in varying}
            order = sorted(varying, key=lambda at: (len(np.unique(columns[at])), at))
            place, is_new = np.arange(len(here)), np.ones(len(here), np.bool_)
            if order:
                rows = np.stack([columns[at] for at in order])
                place = np.lexsort(rows[::-1])
                is_new[1:] = (rows[:, place[1:]] != rows[:, place[:-1]]).any(axis=0)
            elif len(here):
                is_new[1:] = False
            structures.append(Structure(levels, tuple(order)))
            numbers[here] = len(structures)
            ranks[here[place]] = rank + np.cumsum(is_new) - 1
            rank += int(is_new.sum())
        return structures, numbers, ranks

    def _levels_at(self, nodes: _Nodes, end: int) -> tuple[bytes, ...]:
        levels = list[bytes]()
        while end:
            code = int(nodes.codes[end])
            levels.append(ANY if code < 0 else self.values[code].as_py())
            end = int(nodes.parents[end])
        if len(levels) > LEVELS_MAX:
            levels[0] = REST
        return tuple(reversed(levels))
