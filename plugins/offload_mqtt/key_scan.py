"""Which chunks of a sorted ledger can hold a topic that a filter matches: a seek over their keys.

A filter and a structure give one constraint for each element of a key: any value, one value, or a range. The
chunks of a ledger have ascending keys, so a seek goes from one key to the next that fits, and jumps over all
chunks between the two. The cost is a step for each candidate and for each jump, and not for each chunk.

    chunk 0 ... site/7/line/3     chunk 1 ... site/9/line/2     filter site/8/+/+
    next_match("site/7/line/3")  =  "site/8//"                  lies in chunk 0: a candidate

Invariant: a chunk is left out only if no key in its range fits. A candidate may hold no match: the topic of
each record decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from offload_mqtt.structure import Structure, TopicKey, decode_key, encode_key
from offload_mqtt.topics import ANY, REST, TopicFilter

__all__ = ["KeyPart", "candidates", "constraints", "next_match"]


@dataclass(frozen=True, slots=True)
class KeyPart:
    """The values of one element of a key that a filter allows: from `low` to `high`, both included.

    Values are integers, or bytes without NUL. `high` is None if there is no upper bound.
    """

    low: Any
    high: Any = None

    @classmethod
    def one(cls, value: int | bytes) -> KeyPart:
        """Allow this value only."""
        return cls(value, value)

    def after(self, value: Any) -> Any:
        """Return the next allowed value behind one that is not below `low`. None if there is none."""
        following = value + 1 if isinstance(value, int) else value + b"\1"
        return following if self.high is None or following <= self.high else None


ANYTHING: Final = KeyPart(b"")


def next_match(parts: Sequence[KeyPart], key: TopicKey) -> TopicKey | None:
    """Return the least key that fits and is not below `key`. None if there is none."""
    for at, part in enumerate(parts):
        if at >= len(key) or key[at] < part.low:
            return *key[:at], *(each.low for each in parts[at:])
        if part.high is not None and key[at] > part.high:
            for above in range(at - 1, -1, -1):
                following = parts[above].after(key[above])
                if following is not None:
                    return *key[:above], following, *(each.low for each in parts[above + 1 :])
            return None
    return tuple(key[: len(parts)])


def constraints(number: int, structure: Structure, by: TopicFilter) -> list[KeyPart] | None:
    """Return what a filter demands of the keys of a structure. None if it matches none of its topics."""
    wanted, levels = by.levels, structure.levels
    if not levels or (by.begins_with_wildcard and levels[0].startswith(b"$")):
        return None
    values: dict[int, KeyPart] = {}
    for at, level in enumerate(levels):
        if level == REST:  # the levels from here on, joined
            if at >= len(wanted):
                return None
            is_open = ANY in wanted[at:] or REST in wanted[at:]
            values[at] = ANYTHING if is_open else KeyPart.one(structure.value(at, wanted))
            break
        if wanted[at : at + 1] == (REST,):
            values |= dict.fromkeys(range(at, len(levels)), ANYTHING)
            break
        if at >= len(wanted):
            return None
        if level == ANY:
            values[at] = ANYTHING if wanted[at] == ANY else KeyPart.one(structure.value(at, wanted))
        elif wanted[at] not in (ANY, level):
            return None
    else:
        if wanted[len(levels) :] not in ((), (REST,)):
            return None
    return [KeyPart.one(number), *(values[at] for at in structure.order)]


def candidates(keys: Sequence[bytes], parts: Sequence[KeyPart]) -> Iterator[int]:
    """Yield the numbers of the chunks that can hold a key that fits, in order.

    Chunk `i` has keys from `keys[i]` to `keys[i + 1]`, both included.
    """
    at, chunks = 0, len(keys) - 1
    while at < chunks:
        found = next_match(parts, decode_key(keys[at]))
        if found is None:
            return
        wanted = encode_key(found)
        if wanted > keys[at + 1]:
            # The last chunk that begins below the wanted key, or at it: an equal key may be in both.
            at = max(bisect_left(keys, wanted, lo=at + 1) - 1, at + 1)
            continue
        yield at
        at += 1


def of_filters(
    keys: Sequence[bytes], structures: Sequence[Structure], filters: Iterable[TopicFilter]
) -> dict[int, list[int]]:
    """Return the candidates of several filters, for each structure that has some: ascending, each once.

    Structures ascend too, whatever the order of the filters.
    """
    found = dict[int, set[int]]()
    for by in filters:
        for number, structure in enumerate(structures):
            parts = constraints(number, structure, by)
            if parts is not None:
                found.setdefault(number, set()).update(candidates(keys, parts))
    return {number: sorted(chunks) for number, chunks in sorted(found.items()) if chunks}
