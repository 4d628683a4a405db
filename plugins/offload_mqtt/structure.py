"""Structures of topics, and the keys by which the messages of a ledger are in order (decision 46).

A structure is a filter that all of its topics match: literal levels, varying ones (`+`), and perhaps, as the
last one, all levels behind the 32nd (`#`). A key is the number of a structure and the values of its varying
levels, in the structure's own order. As bytes, it is the number, and then each value and a zero.

Invariants: the order of keys as bytes is that of keys as tuples, because no topic name has a zero; a value is
the beginning of its level, so that keys are short; structures that were read are checked as what a stranger
may have written.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from offload.ground.errors import Corrupt
from offload_mqtt.topics import ANY, REST

__all__ = [
    "LEVELS_MAX",
    "NO_STRUCTURE",
    "STRUCTURES_MAX",
    "VALUE_SIZE_BYTES_MAX",
    "Structure",
    "TopicKey",
    "decode_key",
    "decode_structures",
    "encode_key",
    "encode_structures",
]

LEVELS_MAX: Final = 32
"""Levels behind these are one level."""
VALUE_SIZE_BYTES_MAX: Final = 128
"""The most bytes of a level that a key has. A longer level is never literal."""
STRUCTURES_MAX: Final = 1024
NO_STRUCTURE: Final = 0
"""The number of the records without a topic name, whose key has no values."""

TopicKey: TypeAlias = tuple[Any, ...]
"""The number of a structure, and a value for each of its varying levels, in its order."""

_NUMBER: Final = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Structure:
    """A set of topics of one form."""

    levels: tuple[bytes, ...]
    """Literal, or `+`, or `#` as the last of 33. Structure 0 has none."""
    order: tuple[int, ...]
    """The numbers of the levels that vary, in the order in which keys have their values."""

    def value(self, level: int, topic_levels: Sequence[bytes]) -> bytes:
        """Return the value that a key has for one varying level of a topic."""
        found = topic_levels[level] if self.levels[level] == ANY else b"/".join(topic_levels[level:])
        return found[:VALUE_SIZE_BYTES_MAX]

    def values(self, topic_levels: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return the values of a topic of this structure, in the order of keys."""
        return tuple(self.value(level, topic_levels) for level in self.order)


def encode_key(key: TopicKey) -> bytes:
    """Return a key as bytes."""
    return _NUMBER.pack(key[0]) + b"".join(value + b"\0" for value in key[1:])


def decode_key(raw: bytes) -> TopicKey:
    """Return the key that these bytes are. Raises `Corrupt` for bytes that are no key."""
    number, *rest = raw[:2], *raw[2:].split(b"\0")
    if len(number) != 2 or rest[-1]:
        raise Corrupt("key", "an index of ranges", expected="a number, and values", found=raw[:100])
    return (*_NUMBER.unpack(number), *rest[:-1])


def encode_structures(structures: Sequence[Structure]) -> bytes:
    """Return the `about` of a ledger: a line of JSON for each structure but that of no topic."""
    rows = [[b"/".join(each.levels).decode(), *each.order] for each in structures[1:]]
    return b"\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() for row in rows)


def decode_structures(about: bytes) -> tuple[Structure, ...]:
    """Return the structures of a ledger by their numbers. Raises `Corrupt` for bytes that are none."""
    found = [Structure((), ())]
    for line in about.split(b"\n") if about else []:
        try:
            text, *order = json.loads(line)
            levels = tuple(text.encode().split(b"/"))
        except (ValueError, TypeError, AttributeError, RecursionError) as exc:
            raise _wrong(line) from exc
        varying = [at for at, level in enumerate(levels) if level in (ANY, REST)]
        is_short = len(levels) <= LEVELS_MAX + 1 and REST not in levels[:LEVELS_MAX]
        if not is_short or any(type(at) is not int for at in order) or sorted(order) != varying:
            raise _wrong(line)
        found.append(Structure(levels, tuple(order)))
    if len(found) > STRUCTURES_MAX + 1:
        raise _wrong(b"%d structures" % len(found))
    return tuple(found)


def _wrong(found: bytes) -> Corrupt:
    return Corrupt("structures", "an index of ranges", expected="structures of topics", found=found[:100])
