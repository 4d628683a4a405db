"""The rules of index objects: which of them count, what they cover, which are unused, and which are merged.

An index object is never the truth. It says where terms are in the offsets of its name, and it was made on a
root that its name has. Within one life of a stream, a committed offset keeps its record. So an object counts
if two things are true:

    its incarnation is that of the root             a deleted life had other records at the same offsets
    the root's version is its own, or less than     a rebuild goes `JUMP` numbers ahead: what was committed
    `JUMP` above it                                 before it may be gone

    an object                                       is
    of another life, or `JUMP` or more below        unused: it never counts again
    below the first offset of the stream            unused
    within another one that counts                  unused. Of equal ones the one with the least uid stays
    above the root                                  proof that roots are lost: nothing is deleted

Invariant: the objects were listed before the root was loaded. So none is above the newest root, unless roots
were lost. Unused objects are deleted at once, without a grace: a lookup whose object is gone lists again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from offload.commit.rebuild import JUMP
from offload.formats.keys import INDEX_RECORDS_MAX, IndexName
from offload.model.manifest import CommittedStream

__all__ = ["Judged", "WhyUnused", "judged", "merges", "uncovered"]

MERGED_AT_ONCE: Final = 8
_SMALLEST_CLASS_BITS: Final = 16
_CLASS_BITS: Final = 3
_CLASS_MAX: Final = 5
"""The class of 2^31 records. Its objects are not merged: a row has 32 bits for an offset."""


class WhyUnused(StrEnum):
    """The reason why no lookup uses an index object."""

    OLD = "an index of an earlier life or time of the stream"
    TRIMMED = "an index of trimmed data"
    WITHIN = "an index that a larger one replaced"


@dataclass(frozen=True, slots=True)
class Judged:
    """Names of index objects of one folder, judged by one root."""

    used: Sequence[IndexName]
    """Those that count and that no other one covers. First and next offsets both ascend."""
    unused: dict[IndexName, WhyUnused]
    above: Sequence[IndexName]
    """Those whose version is above the root's."""


def judged(names: Iterable[IndexName], root: CommittedStream, *, is_live: bool = True) -> Judged:
    """Judge the index objects of one folder by a root that was loaded after they were listed.

    `is_live` is False if the root is a tombstone.
    """
    unused, counting, above = dict[IndexName, WhyUnused](), list[IndexName](), list[IndexName]()
    for name in names:
        if name.version > root.version:
            above.append(name)
        elif not is_live or name.incarnation != root.incarnation or root.version - name.version >= JUMP:
            unused[name] = WhyUnused.OLD
        elif name.next_offset <= root.first_offset:
            unused[name] = WhyUnused.TRIMMED
        else:
            counting.append(name)
    used, end = list[IndexName](), 0
    # Of those that begin together, the longest comes first, and of equal ones the one with the least uid.
    for name in sorted(counting, key=lambda each: (each.first_offset, -each.next_offset, each.uid)):
        if name.next_offset <= end:
            unused[name] = WhyUnused.WITHIN
        else:
            used.append(name)
            end = name.next_offset
    return Judged(used, unused, above)


def uncovered(used: Sequence[IndexName], first_offset: int, next_offset: int) -> list[range]:
    """Return the offsets in [first_offset, next_offset) that no object covers, in order."""
    found, at = list[range](), first_offset
    for name in used:
        if at < min(name.first_offset, next_offset):
            found.append(range(at, min(name.first_offset, next_offset)))
        at = max(at, name.next_offset)
    return [*found, *([range(at, next_offset)] if at < next_offset else [])]


def size_class(name: IndexName) -> int:
    """Return the size class: 0 from 2^16 records on, 1 from 2^19 on, and so on. Below 2^16 it is negative."""
    return min((name.records.bit_length() - 1 - _SMALLEST_CLASS_BITS) // _CLASS_BITS, _CLASS_MAX)


def merges(used: Sequence[IndexName]) -> list[Sequence[IndexName]]:
    """Return the runs of objects that become one each. They share no object.

    A run has eight neighbours of one class, and the smaller ones between them. It covers at most 2^32
    offsets.
    """
    found = list[Sequence[IndexName]]()
    for row in _rows(used):
        classes = sorted({size_class(name) for name in row} - {_CLASS_MAX})
        for one in classes:
            groups = _groups(row, one)
            if groups:  # larger classes wait for the next look, which finds these merged
                found += groups
                break
    return found


def _rows(used: Sequence[IndexName]) -> list[list[IndexName]]:
    """Return the objects in rows without a hole."""
    rows = list[list[IndexName]]()
    for name in used:
        if rows and name.first_offset <= rows[-1][-1].next_offset:
            rows[-1].append(name)
        else:
            rows.append([name])
    return rows


def _groups(row: Sequence[IndexName], one: int) -> list[Sequence[IndexName]]:
    found, group, count = list[Sequence[IndexName]](), list[IndexName](), 0
    for name in row:
        if size_class(name) > one:
            group, count = [], 0
            continue
        if not group and size_class(name) < one:  # a group begins with its own class
            continue
        group.append(name)
        count += size_class(name) == one
        if count == MERGED_AT_ONCE:
            found.append(_fitting(group))
            group, count = [], 0
    return [each for each in found if len(each) > 1]


def _fitting(group: Sequence[IndexName]) -> Sequence[IndexName]:
    """Return the first of these objects that cover no more than one object may."""
    end = group[0].first_offset + INDEX_RECORDS_MAX
    return [name for name in group if name.next_offset <= end]
